"""The thread that tells the agent what others did to its tables, and the log who else has chains where ours are."""

from __future__ import annotations

import threading
import time
from typing import Final

import structlog

from proxy.events import Inbox, TablesTouched
from proxy.neighbours import Neighbours
from rules.changes import Touched
from rules.errors import KernelUnreachable
from rules.kernel_watch import KernelWatch, Lost

LOG = structlog.get_logger()

LOST_PAUSE: Final = 1.0
"""After lost messages: as long as more get lost, one look at the end is enough."""


class TableWatch:
    """own: the port id of the agent's nftables socket. Of the network namespace of the thread that calls `start`."""

    def __init__(self, inbox: Inbox, own: int) -> None:
        self._inbox, self._own = inbox, own
        self._watch: KernelWatch | None = None
        self._thread: threading.Thread | None = None
        self._neighbours = Neighbours()

    def start(self) -> None:
        """Listen from now on; if that cannot be, say so."""
        try:
            self._watch = KernelWatch(self._own)
        except KernelUnreachable as error:
            LOG.warning(
                "tables_not_watched", cause=str(error), then="changes by others are mended with the next one of ours"
            )
            return
        self._thread = threading.Thread(target=self._run, args=(self._watch,), name="table-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it. Does nothing if there is none."""
        if self._thread and self._watch:
            self._watch.wake()
            self._thread.join()
            self._watch.close()
            self._thread = None

    def _run(self, watch: KernelWatch) -> None:
        self._neighbours.look()
        while True:
            try:
                found = watch.read()
            except Lost:
                self._inbox.put(TablesTouched((), "messages about changes were lost"))
                found = _rest(watch)
                self._neighbours.look()
            except (OSError, ValueError, LookupError) as error:
                LOG.error("tables_not_watched", cause=str(error), remedy="please report this")
                return
            if found is None:
                return
            self._neighbours.came(watch.take_neighbours())
            if found:
                self._inbox.put(TablesTouched(tuple(found)))


def _rest(watch: KernelWatch) -> list[Touched] | None:
    """What comes when messages were lost: as long as more get lost, one look at the end is enough."""
    deadline = time.monotonic() + LOST_PAUSE
    while True:
        try:
            return watch.read(max(0.0, deadline - time.monotonic()))
        except Lost:
            continue
