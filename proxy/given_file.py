"""A file that the command line names; "-" is standard input."""

from __future__ import annotations

import os
import sys
from typing import Final

from proxy.errors import ConfigError

LARGEST: Final = 32 << 20
"""Bytes that are read. The API server takes no ConfigMap above 1 MiB."""


def name_of(path: str) -> str:
    """As messages call it."""
    return "standard input" if path == "-" else os.fsencode(path).decode(errors="replace")


def read(path: str) -> bytes:
    """What is in it. Raises ConfigError."""
    try:
        if path == "-":
            return sys.stdin.buffer.read(LARGEST) if sys.stdin else b""
        with open(path, "rb") as file:
            return file.read(LARGEST)
    except OSError as error:
        cause = error.strerror or str(error)
        raise ConfigError(name_of(path), cause, "check the path and its permissions") from None
