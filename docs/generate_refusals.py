"""The tables of docs/refusals.md from the code that they describe: python -m docs.generate_refusals."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from rules.judgement import JUDGEMENTS, Where
from rules.layout import LAYOUTS
from rules.objects import Family
from rules.probe import features

FILE: Final = Path(__file__).with_name("refusals.md")


def current(text: str) -> str:
    """The document with its tables made anew: each stands between <!-- NAME --> and <!-- end -->."""
    for name, table in {"judgements": _judgements(), "features": _features()}.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not end:
            raise ValueError(f"{FILE.name} has no place for the table {name}")
        text = before + begin + table + end + after
    return text


def _judgements() -> str:
    lines = ["| errno | about | what it means | what is done |", "| --- | --- | --- | --- |"]
    for numbers, places, action, meaning in JUDGEMENTS:
        names = ", ".join(errno.errorcode[number] for number in numbers) or "any other"
        about = "anything" if len(places) == len(Where) else " or ".join(place.value for place in places)
        lines.append(f"| {names} | {about} | {meaning} | {action.value} |")
    return "\n".join(lines) + "\n"


def _features() -> str:
    """Of both families: what is in both is one row."""
    rows: dict[str, list[str]] = {}
    for family in Family:
        for _, what, option in features(LAYOUTS[family]):
            options = rows.setdefault(what, [])
            if f"`{option}`" not in options:
                options.append(f"`{option}`")
    lines = [f"| {what} | {', '.join(options)} |" for what, options in rows.items()]
    return "\n".join(["| what | kernel option |", "| --- | --- |", *lines]) + "\n"


if __name__ == "__main__":
    FILE.write_text(current(FILE.read_text(encoding="utf-8")), encoding="utf-8")
