"""SIGTERM and SIGINT end `run` within a second, whatever it is doing, with exit code 0. The rules stay: nothing is to be
put in order, so an end that takes longer is cut short.

Imported before everything else, so that it must import next to nothing itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGTERM, signal.SIGINT)
PATIENCE_SECONDS: Final = 0.8


def end_at_once() -> None:
    """For the time before there is anything to end: imports, the command line, the configuration."""
    for number in ENDING:
        signal.signal(number, _exit)


@contextlib.contextmanager
def ending(close: Callable[[], None]) -> Iterator[None]:
    """Inside, a signal calls `close`, and ends the process if that has not ended it in time. In the main thread only."""

    # Not a thread: to start one here would wait for a lock that the interrupted code may hold.
    def end(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGALRM, _exit)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS)
        close()

    before = {number: signal.signal(number, end) for number in ENDING}
    try:
        yield
    finally:
        signal.setitimer(
            signal.ITIMER_REAL, 0
        )  # Python's own end takes a while, and would be cut short with any exit code
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(code: int) -> None:
    """End the process. Python's own end takes a while, and lets signals that come meanwhile have their default effect."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _exit(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)
