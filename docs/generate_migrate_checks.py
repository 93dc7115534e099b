"""The table of docs/migrate-checks.md from the checks: python -m docs.generate_migrate_checks."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from docs.tables import filled, table
from proxy.migrate.checks import CHECKS

FILE: Final = Path(__file__).with_name("migrate-checks.md")


def current(text: str) -> str:
    """The document with its table made anew."""
    rows = [
        (", ".join(f"`{name}`" for name in check.identifiers), ", ".join(check.severities), check.about)
        for check in CHECKS
    ]
    return filled(text, {"checks": table(("check", "severity", "what it is about"), rows)})


if __name__ == "__main__":
    FILE.write_text(current(FILE.read_text(encoding="utf-8")), encoding="utf-8")
