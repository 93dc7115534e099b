"""How patient the agent is: with a kernel that refuses, and with others who change our tables again and again.

Pure: whoever asks says what time it is (seconds, of a clock that never goes back).
"""

from __future__ import annotations

import math
from typing import Final

from proxy.events import TablesTouched
from rules.changes import Touched

RETRY_SECONDS: Final = (0.0, 0.1, 0.5, 2.0, 10.0, 30.0)
"""Waits before each try to put all right after the kernel refused a change; the last one from then on."""

TOUCHED_SECONDS: Final = 0.1
"""The longest such wait once others have been at the tables again."""

MENDS_AT_ONCE: Final = 20
"""Others' changes are undone at once so many times; then there are pauses, until it was calm for a while."""
MEND_PAUSE: Final = 1.0
MEND_CALM: Final = 10.0


class Retries:
    """Transactions that the kernel refused, one after the other, and when to try again."""

    def __init__(self) -> None:
        self.failures = 0
        """How many, since the last one that it took."""
        self.clashes = 0
        """How many of them because the tables are not what they were thought to be."""
        self.next_at = 0.0
        self._told = ""

    def failed(self, now: float, *, is_clash: bool) -> float:
        """Returns the wait, ever longer. After the first clash there is none: a look at the tables may be all it takes."""
        self.failures += 1
        self.clashes += is_clash
        step = self.clashes - 1 if is_clash else self.failures
        wait = RETRY_SECONDS[min(step, len(RETRY_SECONDS) - 1)]
        self.next_at = now + wait
        return wait

    def is_news(self, cause: str) -> bool:
        """Once for each cause: the tries go on for as long as it lasts."""
        is_news, self._told = cause != self._told, cause
        return is_news

    def hasten(self, now: float) -> None:
        """Others have been at the tables: whoever stood in the way may have gone."""
        self.next_at = min(self.next_at, now + TOUCHED_SECONDS)

    def worked(self) -> None:
        """The kernel took one."""
        self.failures, self.clashes, self._told = 0, 0, ""


class OthersWork:
    """What others did to our tables that is not undone yet, and when to undo it."""

    def __init__(self) -> None:
        self._events: list[TablesTouched] = []
        self._not_before = -math.inf
        self._mends = 0

    @property
    def next_at(self) -> float:
        """When it is to be undone; math.inf: there is nothing."""
        return self._not_before if self._events else math.inf

    @property
    def changes(self) -> list[Touched]:
        """All that is known of it."""
        return [change for event in self._events for change in event.changes]

    @property
    def why(self) -> str:
        """Why more may have been done than is known; '': it was not."""
        return ", ".join(dict.fromkeys(event.why for event in self._events if event.why))

    def note(self, event: TablesTouched) -> None:
        """They did something."""
        self._events.append(event)

    def begin(self, now: float) -> None:
        """It is being undone: at once, but not a hundred times a second against somebody who does not give in."""
        if now - self._not_before >= MEND_CALM:
            self._mends = 0
        self._mends += 1
        self._not_before = now + (0.0 if self._mends < MENDS_AT_ONCE else MEND_PAUSE)

    def clear(self) -> None:
        """It is undone, or what is read from now on is what they left."""
        self._events = []
