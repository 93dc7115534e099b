"""Questions to the kernel over netlink, whatever the protocol: one request, all its replies.

In the network namespace of the thread that opens the socket. linux/netlink.h.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Self, TypeVar

from rules.netlink import (
    NETLINK_CAP_ACK,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    SOL_NETLINK,
    Message,
    error_of,
    messages,
)

NETLINK_ROUTE, NETLINK_GENERIC = 0, 16
RECEIVE_SIZE: Final = 1 << 17
PATIENCE: Final = 5.0
"""Seconds for one answer. The kernel has it at once; this is for a kernel that has none at all."""
TRIES: Final = 3
"""How often a listing is read again that a change disturbed. The last one counts: it is nearly true, and on a busy node
there may be no better."""

_HEADER = struct.Struct("=IHHII")
_CODE = struct.Struct("=i")
T = TypeVar("T")


class Netlink:
    """A context manager, for one thread. After an error it can only be closed.

    Everything raises OSError for what the kernel refuses, and ValueError for replies that cannot be.
    """

    _errors: Mapping[int, int] = MappingProxyType({})

    def __init__(self, protocol: int, errors: Mapping[int, int] = _errors) -> None:
        """errors: a subsystem's own, beyond the system's, and what they are called here."""
        self._errors = errors
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._sequence = 0
        self._disturbed = False
        try:
            self._socket.settimeout(PATIENCE)
            self._socket.bind((0, 0))
            self._socket.setsockopt(SOL_NETLINK, NETLINK_CAP_ACK, 1)
        except OSError:
            self._socket.close()
            raise

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
        try:
            return [read(reply.body) for reply in self._ask(kind, body, flags)]
        except (struct.error, LookupError, OverflowError) as error:
            raise ValueError(f"a netlink reply cannot be: {error}") from error

    def _ask(self, kind: int, body: bytes, flags: int) -> Iterator[Message]:
        self._sequence += 1
        self._disturbed = False
        self._socket.send(request(kind, flags, self._sequence, body))
        while True:
            for reply in messages(self._socket.recv(RECEIVE_SIZE)):
                if reply.sequence != self._sequence:
                    continue
                self._disturbed |= bool(reply.flags & NLM_F_DUMP_INTR)
                if reply.kind == NLMSG_DONE:
                    return
                if reply.kind == NLMSG_ERROR:
                    (own,) = _CODE.unpack_from(reply.body)
                    code = self._errors.get(-own) or error_of(reply)[0]
                    if code:
                        raise OSError(code, os.strerror(code))
                    return
                yield reply


def request(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    """nlmsghdr and body."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags | NLM_F_REQUEST, sequence, 0) + body
