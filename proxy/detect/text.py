"""Bytes as text, as far as they are text. Pure."""

from __future__ import annotations

import codecs
from typing import Final

from proxy.detect.yaml_lines import Fault

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16's, which it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def decode(data: bytes) -> tuple[str, list[Fault]]:
    """UTF-8, or what a byte order mark says. What is no text is replaced, and named with its line; binary data give ''."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _decode(data.removeprefix(mark), encoding)
    if b"\0" in data:
        return "", [Fault(1, "it is no text")]
    return _decode(data, "utf-8")


def _decode(data: bytes, encoding: str) -> tuple[str, list[Fault]]:
    try:
        return data.decode(encoding), []
    except UnicodeDecodeError as error:
        line = data[: error.start].decode(encoding, errors="replace").count("\n") + 1
        name = encoding.removesuffix("-le").removesuffix("-be").upper()
        return data.decode(encoding, errors="replace"), [Fault(line, f"not {name} text")]
