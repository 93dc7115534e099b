"""The tables of docs/configuration.md from the code that they describe: python -m docs.generate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from docs.tables import filled, table
from proxy.config import Config
from proxy.config_fields import FIELDS, Field
from proxy.config_report import fields
from proxy.errors import EXIT_CODES
from proxy.flags import FLAGS, TLS_FLAGS, Flag

FILE: Final = Path(__file__).with_name("configuration.md")


def current(text: str) -> str:
    """The document with its tables made anew."""
    return filled(text, _tables())


def _tables() -> dict[str, str]:
    flags = [flag for flag in FLAGS.values() if flag.has_effect]
    idle_flags = [flag for flag in FLAGS.values() if not flag.has_effect]
    return {
        "fields": table(
            ("field", "default", "effect"),
            ((f"`{name}`", _default(name), _about(field)) for name, field in FIELDS.items() if field.used),
        ),
        "fields without effect": table(
            ("field", "default", "why it has none"),
            ((f"`{name}`", _default(name), field.about) for name, field in FIELDS.items() if not field.used),
        ),
        "flags": table(("flag", "sets", "beside `--config`"), map(_flag, flags)),
        "flags without effect": ", ".join(f"`--{flag.name}`" for flag in idle_flags) + "\n",
        "flags of our own": table(
            ("flag", "effect"), ((f"`--{flag.name}`", flag.about) for flag in TLS_FLAGS.values())
        ),
        "exit codes": table(("exit code", "meaning"), ((str(code), text) for code, text in EXIT_CODES.items())),
    }


def _default(name: str) -> str:
    silent = FIELDS[name].silent
    value = fields(Config()).get(name, silent[0] if silent else "")
    if value in ("", [], {}):
        return ""
    if isinstance(value, float):
        value = f"{value:g}s"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _about(field: Field) -> str:
    return f"{field.about} (with `detectLocalMode: {field.local_mode}`)" if field.local_mode else field.about


def _flag(flag: Flag) -> Sequence[str]:
    name = "`-v`, `--v`" if flag.name == "v" else f"`--{flag.name}`"
    what = f"`{flag.field}`" if flag.field else ""
    about = flag.about and (f"{what}: {flag.about}" if what else flag.about)
    return name, about or what, "counts" if flag.beside_config else "ignored"


if __name__ == "__main__":
    FILE.write_text(current(FILE.read_text(encoding="utf-8")), encoding="utf-8")
