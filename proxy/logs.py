"""structlog, set up once: JSON lines when standard error is not a terminal, coloured text when it is.

A log that nobody reads any more (its pipe is closed, its disk full) is no reason to leave a node without Services.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from typing import Any, TextIO, cast

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


_LOSSES = (OSError, ValueError, AttributeError)  # AttributeError: it was closed before we started, there is none


class _Lossy(io.TextIOBase):
    """Standard error, without its errors. Each event is one write to the file itself: what Python's own buffer cannot
    get rid of would end the process with exit code 120."""

    def __init__(self) -> None:
        self._pending = ""

    def write(self, text: str) -> int:
        self._pending += text
        return len(text)

    def flush(self) -> None:
        text, self._pending = self._pending, ""
        with contextlib.suppress(*_LOSSES):
            if _has_descriptor(sys.stderr):
                data = text.encode(errors="backslashreplace")
                while data:
                    data = data[os.write(sys.stderr.fileno(), data) :]
            else:
                sys.stderr.write(text)


def _has_descriptor(stream: TextIO) -> bool:
    """Not so of what a test puts in its place."""
    try:
        return stream.fileno() >= 0
    except (OSError, ValueError):
        return False


def configure(level: str = "info", json: bool | None = None) -> None:
    """Send events to standard error. `json` None: JSON unless standard error is a terminal."""
    as_json = not (sys.stderr and sys.stderr.isatty()) if json is None else json
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=bool(sys.stderr and sys.stderr.isatty()))
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Lossy())),
        cache_logger_on_first_use=False,
    )
