"""The agent removes kube-proxy's leftovers by itself, once, when its own rules are in place (`run --take-over`).

In a thread of its own. Rules go at once: what they have begun, conntrack goes on with. IPVS carries its connections
itself, so its virtual servers, and kube-ipvs0, stay until there is none, or for DRAIN_SECONDS; new connections are ours by
then.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

import structlog
from msgspec import Struct

from proxy.leftovers import gather, own_source, remove, words
from proxy.leftovers.found import Found
from proxy.leftovers.plan import Plan, plan
from proxy.leftovers.remove import Failed
from proxy.leftovers.running import Running, find

LOG = structlog.get_logger()
LOOK_SECONDS: Final = 1.0
"""Between two looks whether kube-proxy's process has ended."""
UNSEEN_SECONDS: Final = 10.0
"""The same where only its port can be asked."""
TRIES: Final = 5
DRAIN_SECONDS: Final = 900.0
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0
"""Between two looks at IPVS's connections: seconds, twice as long each time."""
JOIN_SECONDS: Final = 0.5


class Edge(Struct, frozen=True):
    """What the thread does to the world."""

    running: Callable[[], list[Running]] = find
    look: Callable[[], Found] = gather.look
    rules: Callable[[Plan], list[Failed]] = remove.rules
    ipvs: Callable[[Plan], list[Failed]] = remove.ipvs
    sets: Callable[[Plan], list[Failed]] = remove.sets
    change_source: Callable[[], int] = own_source.change
    in_use: Callable[[], int] = own_source.in_use
    clock: Callable[[], float] = time.monotonic


class TakeOver:
    """A follower (proxy.committed.Follower): begins with the first commit. `stop` may be called without it."""

    def __init__(self, edge: Edge | None = None, drain_seconds: float = DRAIN_SECONDS) -> None:
        self._edge, self._drain_seconds = edge or Edge(), drain_seconds
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, _done: object) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._guarded, name="take-over", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """What has not been removed by then, stays."""
        self._ends.set()
        if self._thread:
            self._thread.join(JOIN_SECONDS)

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:  # a bug here is no reason for Services to fail
            LOG.error("take_over_failed", error=f"{type(error).__name__}: {error}", exc_info=True)

    def _run(self) -> None:
        if not self._alone():
            return
        with contextlib.suppress(OSError, ValueError):  # then the node's own connections may be cut: no more than that
            self._edge.change_source()
        first, failed = self._remove(self._edge.rules)
        if self._has_drained():
            planned = plan(self._edge.look())
            failed += self._edge.ipvs(planned)
            failed += self._edge.sets(planned)
            self._tell(first, failed)

    def _alone(self) -> bool:
        """Wait for kube-proxy's end. False: we are to end first."""
        told: list[str] = []
        while alive := self._edge.running():
            names = [each.what for each in alive]
            if names != told:
                remedy = "stop kube-proxy on this node: two proxies contradict each other when something changes"
                LOG.warning("take_over_waits", for_end_of=names, remedy=remedy)
                told = names
            pause = LOOK_SECONDS if any(each.pid for each in alive) else UNSEEN_SECONDS
            while not self._ends.wait(pause):
                if not any(each.may_run for each in alive):
                    break
            if self._ends.is_set():
                return False
        return not self._ends.is_set()

    def _remove(self, step: Callable[[Plan], list[Failed]]) -> tuple[Plan, list[Failed]]:
        """The plan as it was at first, and what failed in the end."""
        first = planned = plan(self._edge.look())
        failed = step(planned)
        for _ in range(TRIES - 1):
            if not any(failure.has_changed for failure in failed):
                break
            planned = plan(self._edge.look())
            failed = step(planned)
        return first, failed

    def _has_drained(self) -> bool:
        """Wait until IPVS carries no connection any more, but no longer than that. False: we are to end first."""
        end, pause, told = self._edge.clock() + self._drain_seconds, FIRST_PAUSE, False
        while active := self._active():
            left = end - self._edge.clock()
            if left <= 0:
                LOG.warning(
                    "ipvs_connections_cut",
                    connections=active,
                    cause=f"still there after {self._drain_seconds:g} s",
                    then="IPVS's virtual servers are removed",
                )
                break
            if not told:
                LOG.info("take_over_drains", connections=active, at_most_seconds=self._drain_seconds)
                told = True
            if self._ends.wait(min(pause, left)):
                LOG.warning("take_over_unfinished", connections=active, then="IPVS's virtual servers stay for now")
                return False
            pause = min(2 * pause, LONGEST_PAUSE)
        return True

    def _active(self) -> int:
        """Connections that would be cut."""
        own = 0
        with contextlib.suppress(OSError, ValueError):
            own = self._edge.in_use()
        return max(own, sum(server.active for server in self._edge.look().servers))

    def _tell(self, planned: Plan, failed: list[Failed]) -> None:
        for kept in planned.kept:
            LOG.info("take_over_kept", what=kept.what, why=kept.why)
        for note in planned.notes:
            LOG.info("take_over_note", what=note.what, remedy=note.why)
        for unread in planned.unread:
            remedy = "see by hand whether something is left there"
            LOG.warning("take_over_unread", what=unread.what, cause=unread.cause, remedy=remedy)
        for failure in failed:
            remedy = "run `kube-proxy-nft cleanup --kube-proxy` on the node"
            LOG.error("take_over_failed", what=failure.what, error=failure.cause, remedy=remedy)
        LOG.info("took_over", **words.counts(planned), failed=len(failed))
