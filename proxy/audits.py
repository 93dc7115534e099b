"""When the tables are compared with what they should be, a little at a time between the agent's turns."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from proxy.tables import Tables
from rules.changes import Touched
from rules.errors import KernelUnreachable
from rules.netlink_socket import DAMAGED
from rules.table_reader import Reader

LOG = structlog.get_logger()

PERIOD: Final = 300.0
JITTER: Final = 0.1
"""Nodes that start together shall not all look at the same time: this part of the period more or less."""
PAUSE: Final = 0.01
"""Seconds between two steps of an audit, each of which takes a millisecond or two."""
SHARE: Final = 0.01
"""Of the time of a CPU, at most. In the largest clusters audits are rarer."""
AUDIT: Final = "audit"


class Audits:
    """open_reader: called at the start of each audit, in the agent's thread. chance: from 0 to 1, at random. spent: CPU
    seconds of this thread."""

    def __init__(
        self,
        tables: Tables,
        open_reader: Callable[[], Reader],
        period: float = PERIOD,
        chance: Callable[[], float] = random.random,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._tables, self._open_reader = tables, open_reader
        self._period, self._chance, self._spent = period, chance, spent
        self._reader: Reader | None = None
        self._steps: Iterator[Touched | None] = iter(())
        self._programmed: object = None
        self._began = self._pause = self._cost = 0.0
        self._differs = False
        self._next_cause = ""
        self.cause = AUDIT
        """Why there is, or was, the present or last one."""
        self.next_at = math.inf
        """When `step` is to be called."""
        self.done = 0
        """How many audits came to their end."""

    def postpone(self, now: float) -> None:
        """All is well just now: give up what is under way, and begin the next one in a period."""
        self._close()
        period = max(self._period, self._cost / SHARE)
        self.next_at = now + period * (1 + JITTER * (2 * self._chance() - 1))

    def at_once(self, now: float, cause: str) -> None:
        """Begin anew, now, and without pauses: there is a reason to believe that something is wrong. What is under way for
        such a reason comes to its end first: it may go on and on."""
        if self._reader and not self._pause:
            self._next_cause = cause
            return
        self._close()
        self.cause, self.next_at, self._pause = cause, now, 0.0

    def step(self, now: float) -> Touched | None:
        """A little of an audit. Returns what has to be mended before the next step."""
        before = self._spent()
        try:
            return self._step(now)
        finally:
            self._cost += self._spent() - before

    def _step(self, now: float) -> Touched | None:
        try:
            if self._reader is None:
                self._reader = self._open_reader()
                self._steps, self._programmed = self._tables.audit(self._reader), self._tables.programmed
                self._began, self._differs, self._cost = now, False, 0.0
            if self._programmed is self._tables.programmed:
                touched = next(self._steps)
                self._differs |= touched is not None
                self.next_at = now + self._pause
                return touched
        except StopIteration:
            self.done += 1
            LOG.debug(
                "tables_audited",
                differs=self._differs,
                seconds=round(now - self._began, 3),
                cpu_seconds=round(self._cost, 3),
            )
            if cause := self._next_cause:
                self._close()
                self.at_once(now, cause)
                return None
        except (KernelUnreachable, OSError, *DAMAGED) as error:
            LOG.warning("audit_failed", cause=str(error), then="again in some minutes")
        self.postpone(now)  # also when the tables were made anew meanwhile
        return None

    def _close(self) -> None:
        if self._reader:
            self._reader.close()
        self._reader, self._steps, self._programmed = None, iter(()), None
        self.cause, self._next_cause, self._pause = AUDIT, "", PAUSE
