"""Results as files: whether they can be written is known before anything is measured, and an earlier one stays until the
new one is complete."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final

from proxy.errors import UserError

_ROOM: Final = 4 << 20
"""Bytes that all files of a run take, at most."""


def prepare(directory: Path) -> None:
    """Make it. Raises UserError for one in which nothing can be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as probe:
            os.posix_fallocate(probe.fileno(), 0, _ROOM)
    except OSError as error:
        raise UserError(
            f"--output {directory}", f"results cannot be written there: {error.strerror}", "give another directory"
        ) from None


def write(path: Path, text: str) -> None:
    """Whole or not at all. Raises OSError."""
    beside = path.with_name(f"{path.name}.new")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def write_somewhere(path: Path, text: str) -> tuple[Path, str]:
    """What took long to get is not lost: to `path`, else where temporary files are. Where it is; and why not where it
    should be, or "". Raises OSError when it cannot be written there either."""
    try:
        write(path, text)
    except OSError as error:
        descriptor, name = tempfile.mkstemp(prefix="bench-", suffix=".json")
        os.close(descriptor)
        write(Path(name), text)
        return Path(name), f"{path} cannot be written: {error.strerror}"
    return path, ""
