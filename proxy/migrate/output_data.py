"""The report for programs: JSON and YAML, as docs/migrate-v1.schema.json describes it. Pure."""

from __future__ import annotations

from typing import Final

import msgspec
import yaml

from proxy.migrate.output_words import mapped
from proxy.migrate.report import Report

_PIECE: Final = 500


def as_json(report: Report) -> str:
    return msgspec.json.format(_encoded(report), indent=2).decode() + "\n"


def as_yaml(report: Report) -> str:
    """In pieces: the library holds several hundred bytes for each text in what it writes."""
    parts = []
    for key, value in msgspec.json.decode(_encoded(report)).items():
        if key == "services" and value:
            parts.append(f"{key}:\n")
            parts += (_yaml(value[start : start + _PIECE]) for start in range(0, len(value), _PIECE))
        else:
            parts.append(_yaml({key: value}))
    return "".join(parts)


def _yaml(value: object) -> str:
    # The dumper in C, where there is it.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=1000)
    return text


def _encoded(report: Report) -> bytes:
    try:
        return msgspec.json.encode(report)
    except UnicodeEncodeError:  # half a surrogate pair, which neither form can hold
        return msgspec.json.encode(mapped(report, lambda text: text.encode(errors="backslashreplace").decode()))
