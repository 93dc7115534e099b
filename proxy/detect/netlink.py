"""Questions to the kernel over netlink, whatever the protocol: one request, all its replies.

In the network namespace of the thread that opens the socket. linux/netlink.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, Self, TypeVar

from rules.netlink import NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST
from rules.netlink_socket import SYSTEM, Replies, open_socket

NETLINK_ROUTE, NETLINK_GENERIC = 0, 16
PATIENCE: Final = 5.0
"""Seconds for one answer. The kernel has it at once; this is for a kernel that has none at all."""
TRIES: Final = 3
"""How often a listing is read again that a change disturbed. The last one counts: it is nearly true, and on a busy node
there may be no better."""

_HEADER = struct.Struct("=IHHII")
T = TypeVar("T")


class Netlink:
    """A context manager, for one thread. After an error it can only be closed.

    Everything raises OSError for what the kernel refuses, and ValueError for replies that cannot be.
    """

    _errors = SYSTEM

    def __init__(self, protocol: int, errors: Mapping[int, int] = _errors) -> None:
        """errors: as of Replies."""
        self._errors = errors
        self._socket = open_socket(protocol, PATIENCE)
        self._sequence = 0
        self._disturbed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def get(self, kind: int, body: bytes, read: Callable[[memoryview], T]) -> T:
        """`read` of the one reply's body. `kind`: of nlmsghdr, with the subsystem."""
        found = self._read(kind, body, NLM_F_ACK, read)
        if len(found) != 1:
            raise ValueError(f"{len(found)} replies to a netlink request for one")
        return found[0]

    def do(self, kind: int, body: bytes, flags: int = 0) -> None:
        """A request that changes something, acknowledged."""
        self._read(kind, body, NLM_F_ACK | flags, bytes)

    def dump(self, kind: int, body: bytes, read: Callable[[memoryview], T]) -> list[T]:
        """`read` of each reply's body."""
        for _ in range(TRIES):
            found = self._read(kind, body, NLM_F_DUMP, read)
            if not self._disturbed:
                break
        return found

    def _read(self, kind: int, body: bytes, flags: int, read: Callable[[memoryview], T]) -> list[T]:
        self._sequence += 1
        replies = Replies(self._socket, request(kind, flags, self._sequence, body), self._errors)
        try:
            found = [read(reply.body) for piece in replies for reply in piece]
        except (struct.error, LookupError, OverflowError) as error:
            raise ValueError(f"a netlink reply cannot be: {error}") from error
        self._disturbed = replies.disturbed
        return found


def request(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    """nlmsghdr and body."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags | NLM_F_REQUEST, sequence, 0) + body
