"""Changes without end, beside whatever else is done to an agent."""

from __future__ import annotations

import threading
from typing import Final, Self

from integration.faults.stage import Stage

EVERY: Final = 0.005


class Load:
    """A context manager: a slice changes every `every` seconds. last: the time of the last change, after the block."""

    def __init__(self, stage: Stage, every: float = EVERY) -> None:
        self.last = 0.0
        self._stage, self._every, self._done = stage, every, threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(self._every):
            self.last = self._stage.change(1)
