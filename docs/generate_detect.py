"""The tables of docs/detect.md and docs/detect-v1.schema.json from the code that they describe: python -m docs.generate_detect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from proxy.detect import report, versions
from proxy.detect.watcher import REASONS

FILE: Final = Path(__file__).with_name("detect.md")
SCHEMA: Final = Path(__file__).with_name("detect-v1.schema.json")

_CASES: Final = (
    ("`mode: ipvs`", versions.KEP_IPVS, versions.IPVS),
    (f"`mode: ipvs` and `{versions.GATE}=true`", versions.KEP_IPVS, versions.IPVS_WITH_GATE),
    (f"`{versions.GATE}=true` without need", versions.KEP_IPVS, versions.GATE_TRUE),
    (f"`{versions.GATE}=false`", versions.KEP_IPVS, versions.GATE_FALSE),
    ("no mode is set (Linux)", versions.KEP_DEFAULT, versions.UNSET),
)


def current(text: str) -> str:
    """The document with its tables made anew: each stands between <!-- NAME --> and <!-- end -->."""
    for name, table in {"versions": _versions(), "reasons": _reasons()}.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not end:
            raise ValueError(f"{FILE.name} has no place for the table {name}")
        text = before + begin + table + end + after
    return text


def _versions() -> str:
    rows = [
        (case, f"[{kep}]({versions.URLS[kep]})", versions.show(row.since), row.severity, row.what)
        for case, kep, table in _CASES
        for row in table
    ]
    return _table(("what", "source", "from", "severity", "what happens"), rows)


def _reasons() -> str:
    by_reason: dict[str, list[str]] = {}
    for check, reason in REASONS.items():
        by_reason.setdefault(reason, []).append(f"`{check}`")
    return _table(("reason", "check"), [(f"`{reason}`", ", ".join(checks)) for reason, checks in by_reason.items()])


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    FILE.write_text(current(FILE.read_text(encoding="utf-8")), encoding="utf-8")
    SCHEMA.write_bytes(report.schema())
