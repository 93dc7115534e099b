"""What a source tells the agent, and the inbox between their threads.

A source (manifests, API server) turns what it reads into three kinds of event. Nothing else crosses the border:
no sockets, no files, no time. The state takes events in any order.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from msgspec import Struct

from proxy.reading import Item
from rules.changes import Touched


class Put(Struct, frozen=True, gc=False):
    """This object exists now, and looks like this."""

    obj: Item


class Delete(Struct, frozen=True, gc=False):
    """This object is gone. `namespace` is '' for Node and ServiceCIDR. Unknown objects are ignored."""

    kind: str
    namespace: str
    name: str


class Replace(Struct, frozen=True):
    """All objects of `kind` that exist: a complete list. What is not in it is gone.

    The first Replace of Service and of EndpointSlice opens the agent's gate: before both, nothing is programmed.
    """

    kind: str
    objects: Sequence[Item]


class LocalAddresses(Struct, frozen=True):
    """All IP addresses of this node's interfaces, packed."""

    addresses: frozenset[bytes]


class TablesTouched(Struct, frozen=True):
    """Others changed our tables: `changes`. Without any, all of the tables is to be looked at, and `why`."""

    changes: Sequence[Touched]
    why: str = ""


class Failed(Struct, frozen=True):
    """The source cannot go on, ever (not a passing fault: those it retries itself). The agent raises `error`."""

    error: Exception


Event = Put | Delete | Replace | LocalAddresses | TablesTouched | Failed


class Inbox:
    """Where sources leave events and the agent takes all that are waiting. Any thread may put; one takes."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._ready = threading.Condition()
        self._closed = False

    def put(self, *events: Event) -> None:
        """Leave events, kept in this order. They are taken together."""
        with self._ready:
            self._events.extend(events)
            self._ready.notify()

    @property
    def waiting(self) -> int:
        """How many events there are to be taken."""
        return len(self._events)

    def close(self) -> None:
        """No more: `take` returns [] at once, now and later."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def take(self, timeout: float | None = None) -> list[Event]:
        """Wait until there is something, then take everything that is there. [] when closed or after `timeout` seconds."""
        with self._ready:
            self._ready.wait_for(lambda: self._events or self._closed, timeout)
            if self._closed:
                return []
            events, self._events = self._events, []
            return events
