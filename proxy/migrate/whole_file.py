"""Files that are there as a whole, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from proxy.errors import UsageError, UserError

_OF_PATH: Final = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.EROFS,
)


def write(path: str, data: bytes, option: str) -> None:
    """ "-": standard output. option: what named the path, for errors. Raises UsageError where it cannot be
    a file, UserError where it cannot be written (the disk is full)."""
    try:
        if path == "-":
            _print(data)
        elif os.path.exists(path) and not os.path.isfile(path):
            Path(path).write_bytes(data)  # a pipe, a device
        else:
            _replace(path, data)
    except OSError as error:
        what = "standard output" if path == "-" else f"{option} {path}"
        is_path = path != "-" and error.errno in _OF_PATH
        remedy = "look at where it leads" if path == "-" else "name another file" if is_path else "make room there"
        raise (UsageError if is_path else UserError)(what, f"cannot be written: {error.strerror}", remedy) from None


def _print(data: bytes) -> None:
    if sys.stdout is None:
        raise UserError("standard output", "it is closed")
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left in the buffer
        raise


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
