"""What happened within the last hour, in slots of ten seconds: a ring that is filled at each commit."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from proxy.measures import Histogram
from proxy.status.report import History, Slot

STEP: Final = 10
LENGTH: Final = 3600


class Ring:
    """Any thread may read; the agent's fills it, which costs a microsecond.

    commits: how long each took, counted by somebody else. now: seconds since 1970.
    """

    def __init__(self, commits: Histogram, now: Callable[[], float] = time.time) -> None:
        self._commits, self._now = commits, now
        self._slots: deque[Slot] = deque(maxlen=LENGTH // STEP)
        self._lock = threading.Lock()
        self._at = self._start(now())
        self._before = commits.read()
        self._changes = self._full = self._repairs = 0

    def add(self, *, changes: int = 0, full: bool = False, repairs: int = 0) -> None:
        """Something was committed."""
        with self._lock:
            self._turn()
            self._changes += changes
            self._full += full
            self._repairs += repairs

    def read(self) -> History:
        """The last hour, with the slot that is not over yet."""
        with self._lock:
            self._turn()
            oldest = self._at - LENGTH
            slots = [slot for slot in self._slots if slot.at > oldest]
            present, _ = self._slot()
        return History(step=STEP, slots=(*slots, *filter(_has_something, [present])))

    def _turn(self) -> None:
        """Close the slot if its time is over. What another thread counted since then belongs to it, too: it is little."""
        at = self._start(self._now())
        if at == self._at:
            return
        slot, self._before = self._slot()
        if _has_something(slot):
            self._slots.append(slot)
        self._at = at
        self._changes = self._full = self._repairs = 0

    def _slot(self) -> tuple[Slot, tuple[list[int], float]]:
        counts, total = seen = self._commits.read()
        before, total_before = self._before
        commits = counts[-1] - before[-1]
        mean = (total - total_before) / commits if commits else 0.0
        # The first bound below which all of them are; beyond the last one, that.
        places = (i for i, count in enumerate(counts) if count - before[i] == commits)
        slowest = self._commits.bounds[min(next(places), len(self._commits.bounds) - 1)] if commits else 0.0
        slot = Slot(
            self._at, self._changes, commits, round(mean * 1e3, 3), round(slowest * 1e3, 3), self._full, self._repairs
        )
        return slot, seen

    def _start(self, now: float) -> float:
        return now // STEP * STEP


def _has_something(slot: Slot) -> bool:
    return bool(slot.changes or slot.commits or slot.full or slot.repairs)
