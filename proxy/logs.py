"""structlog, set up once: JSON lines when standard error is not a terminal, coloured text when it is.

A log that nobody reads any more (its pipe is closed, its disk full) is no reason to leave a node without Services.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from typing import Any, TextIO, cast

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


_LOSSES = (OSError, ValueError, AttributeError)  # AttributeError: it was closed before we started, there is none


class _Lossy(io.TextIOBase):
    """Standard error, without its errors."""

    def write(self, text: str) -> int:
        with contextlib.suppress(*_LOSSES):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(*_LOSSES):
            sys.stderr.flush()


def configure(level: str = "info", json: bool | None = None) -> None:
    """Send events to standard error. `json` None: JSON unless standard error is a terminal."""
    as_json = not (sys.stderr and sys.stderr.isatty()) if json is None else json
    renderer: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=True)
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
