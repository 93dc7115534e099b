"""The tables of docs/detect.md and docs/detect-v1.schema.json from the code that they describe: python -m docs.generate_detect."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from docs.tables import filled, table
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
    """The document with its tables made anew."""
    return filled(text, {"versions": _versions(), "reasons": _reasons()})


def _versions() -> str:
    rows = [
        (case, f"[{kep}]({versions.URLS[kep]})", versions.show(row.since), row.severity, row.what)
        for case, kep, table in _CASES
        for row in table
    ]
    return table(("what", "source", "from", "severity", "what happens"), rows)


def _reasons() -> str:
    by_reason: dict[str, list[str]] = {}
    for check, reason in REASONS.items():
        by_reason.setdefault(reason, []).append(f"`{check}`")
    return table(("reason", "check"), [(f"`{reason}`", ", ".join(checks)) for reason, checks in by_reason.items()])


if __name__ == "__main__":
    FILE.write_text(current(FILE.read_text(encoding="utf-8")), encoding="utf-8")
    SCHEMA.write_bytes(report.schema())
