"""The tables of docs/events.md from the code that logs and from docs/log_meanings.py: python -m docs.generate_events."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Final

from docs.log_calls import LEVELS, Call, calls
from docs.log_meanings import REASONS, SECTIONS, Meaning
from docs.tables import filled, table

FILE: Final = Path(__file__).with_name("events.md")
PACKAGES: Final = ("proxy", "rules")
USUAL: Final = ("cause", "error", "exception", "reason", "remedy", "then")
"""Fields that mean the same everywhere, and come last."""


def current(text: str) -> str:
    """The document with its tables made anew."""
    found = {
        "events": "\n".join(f"### {title}\n\n{_section(entries)}" for title, entries in SECTIONS.items()),
        "reasons": table(("reason", "meaning"), ((f"`{reason}`", about) for reason, about in REASONS.items())),
    }
    return filled(text, found)


@cache
def logged() -> tuple[Call, ...]:
    """All that the code can log."""
    return tuple(calls(FILE.parent.parent, PACKAGES))


def _section(entries: dict[str, Meaning]) -> str:
    rows = []
    for names, meaning in entries.items():
        made = [call for call in logged() if call.event in names.split()]
        levels = sorted({call.level for call in made}, key=LEVELS.index)
        fields = sorted({*meaning.more, *(field for call in made for field in call.fields)}, key=_place)
        do = meaning.do or ("see `remedy`" if "remedy" in fields else "")
        rows.append((_code(names.split(), "<br>"), ", ".join(levels), _code(fields, ", "), meaning.about, do))
    return table(("event", "level", "fields", "meaning", "what to do"), rows)


def _place(field: str) -> tuple[bool, str]:
    return field in USUAL, field


def _code(words: Collection[str], between: str) -> str:
    return between.join(f"`{word}`" for word in words)


if __name__ == "__main__":
    FILE.write_text(current(FILE.read_text(encoding="utf-8")), encoding="utf-8")
