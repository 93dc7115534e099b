"""SIGINT, SIGTERM and SIGHUP end a run once: the first raises KeyboardInterrupt, later ones do nothing."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_UNTOUCHED: Final = (signal.SIG_DFL, signal.default_int_handler)


class Interrupts:
    """Handlers that somebody else has set stay. Does nothing outside the main thread, where Python allows none."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if handler in _UNTOUCHED:
                self._before[number] = handler
                signal.signal(number, self._interrupt)

    def restore(self) -> None:
        """Put back what was there before `install`. May be called twice."""
        if threading.current_thread() is threading.main_thread():
            while self._before:
                signal.signal(*self._before.popitem())

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        for each in self._before:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt
