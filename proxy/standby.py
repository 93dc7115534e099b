"""Keeps the standby beside our tables (rules.standby) as these are. It is built a little at a time between the agent's turns.

It belongs to a socket of its own: when that is closed, or the process ends, the kernel removes it, and our tables are asked
alone. So whatever goes wrong with it is dealt with by closing the socket, and by building it anew after a while.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import structlog

from rules import standby
from rules.contents import PIECE, Contents
from rules.errors import KernelUnreachable, TransactionError
from rules.kernel import Kernel
from rules.transaction import Operation

LOG = structlog.get_logger()

BACKOFF_SECONDS: Final = (1.0, 10.0, 60.0, 300.0)
"""Waits before it is built anew when that failed; the last one from then on."""
CALM: Final = 600.0
"""After so many seconds without a failure the waits begin anew."""
PAUSE: Final = 5.0
"""Seconds from the beginning of one build to that of the next, at least: somebody may be at our tables all the time."""
THEN: Final = "it is built anew; until then, what others do to our tables costs connections until it is undone"


class Nftables(Protocol):
    """What is needed of rules.kernel.Kernel."""

    def commit(self, operations: Sequence[Operation]) -> int: ...

    def close(self) -> None: ...


class Standby:
    """For the agent's thread. open_kernel: a new socket each time; may raise KernelUnreachable."""

    def __init__(
        self, open_kernel: Callable[[], Nftables] = Kernel, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._open, self._clock = open_kernel, clock
        self._mirror = standby.Mirror()
        self._kernel: Nftables | None = None
        self._contents: Callable[[], Sequence[Contents]] = list
        self._build: Iterator[list[Operation]] | None = None
        self._entrance: list[Operation] = []
        self._waiting: deque[Sequence[Operation]] = deque()
        self._began = self._failed_at = -math.inf
        self._failures = 0
        self.is_ready = False
        """Whether it is there, and packets are asked of it."""
        self.next_at = math.inf
        """When `step` is to be called; of time.monotonic(), or the clock that was given."""

    def renew(self, contents: Callable[[], Sequence[Contents]]) -> None:
        """Our tables have been made anew, or were found, and what changes them next would not fit the standby: it goes, and
        is built anew. contents: says what the tables hold when it is asked."""
        self._contents = contents
        self.close()
        self.next_at = self._began + PAUSE

    def follow(self, operations: Sequence[Operation]) -> None:
        """Our tables have changed so: the standby does the same, at once if it is there. Raises nothing: if it cannot, it
        goes, for what is no longer so must not be said of any packet."""
        if not operations or (self._build is None and not self.is_ready):
            return
        self._waiting.append(operations)
        if self.is_ready:
            self._try(self._catch_up)

    def step(self) -> None:
        """A little of what is to be done; nothing before `next_at`. Raises nothing."""
        if self._clock() >= self.next_at:
            self._try(self._step)

    def close(self) -> None:
        """The standby goes. Takes the kernel some milliseconds, in the largest clusters some hundred."""
        self.is_ready, self._build, self._entrance = False, None, []
        self._waiting.clear()
        if self._kernel:
            self._kernel.close()
            self._kernel = None
        self.next_at = math.inf

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (TransactionError, KernelUnreachable) as error:
            self._failed(error)

    def _step(self) -> None:
        if self._build is None:
            self._begin()
        elif piece := next(self._build, None):
            self._commit(piece)
        elif self._waiting:
            self._catch_up()
        else:
            self._commit(self._entrance)
            self._build, self._entrance, self.is_ready = None, [], True
            self.next_at = math.inf
            LOG.info("standby_ready", table=standby.NAME, milliseconds=round((self._clock() - self._began) * 1e3))

    def _catch_up(self) -> None:
        """More than one change may bring, or it would never end where changes come all the time."""
        done = 0
        while self._waiting and done < PIECE:
            operations = self._mirror.follow(self._waiting.popleft())
            self._commit(operations)
            done += len(operations)

    def _begin(self) -> None:
        self._began = self._clock()
        self._kernel = self._kernel or self._open()
        made = [self._mirror.contents(each) for each in self._contents()]
        self._build = _pieces(made)
        self._entrance = [operation for each in made for operation in each.entrance]
        self.next_at = -math.inf

    def _commit(self, operations: Sequence[Operation]) -> None:
        assert self._kernel
        self._kernel.commit(operations)

    def _failed(self, error: Exception) -> None:
        now = self._clock()
        if now - self._failed_at > CALM:
            self._failures = 0
        wait = BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)]
        self._failures += 1
        self._failed_at = now
        self.close()
        self.next_at = now + wait
        log = LOG.warning if self._failures == 1 else LOG.debug
        log("standby_failed", table=standby.NAME, cause=str(error), seconds=wait, then=THEN)


def _pieces(contents: Sequence[Contents]) -> Iterator[list[Operation]]:
    for each in contents:
        yield standby.create(each.family)
    for each in contents:
        yield from each.pieces
