"""Files that are there as a whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from proxy.errors import UsageError


def write(path: str, data: bytes, option: str) -> None:
    """ "-": standard output. option: what named the path, for errors. Raises UsageError."""
    try:
        if path == "-":
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        elif os.path.exists(path) and not os.path.isfile(path):
            Path(path).write_bytes(data)  # a pipe, a device
        else:
            _replace(path, data)
    except OSError as error:
        what = "standard output" if path == "-" else f"{option} {path}"
        raise UsageError(what, f"cannot be written: {error.strerror}", "name another file") from None


def _replace(path: str, data: bytes) -> None:
    """For its owner's eyes only."""
    descriptor, name = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".migrate-")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
