"""A netlink socket, whatever the protocol, and the replies to one request. linux/netlink.h."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from rules.netlink import (
    NETLINK_CAP_ACK,
    NETLINK_NETFILTER,
    NLM_F_DUMP_INTR,
    NLMSG_DONE,
    NLMSG_ERROR,
    SOL_NETLINK,
    U32,
    Message,
    errno_of,
    messages,
)

RECEIVE_SIZE: Final = 1 << 18
"""Bytes; more than the kernel puts into one datagram."""
DAMAGED: Final = (ValueError, LookupError, struct.error)
"""What readers raise of a message that cannot be."""
SYSTEM: Final[Mapping[int, int]] = MappingProxyType({})

_CODE = struct.Struct("=i")


def open_socket(protocol: int = NETLINK_NETFILTER, timeout: float | None = None) -> socket.socket:
    """In the network namespace of the thread. timeout: seconds for one datagram. Raises OSError."""
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    try:
        made.settimeout(timeout)
        made.bind((0, 0))
        made.setsockopt(SOL_NETLINK, NETLINK_CAP_ACK, 1)
    except OSError:
        made.close()
        raise
    return made


def enlarge(sock: socket.socket, forced: int, plain: int, size: int) -> int:
    """Make a buffer this big; beyond the sysctl's limit if permitted. Returns the size it has."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, forced, size)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, plain, size)
    return sock.getsockopt(socket.SOL_SOCKET, plain)


class Replies(Iterator[list[Message]]):
    """Sends a request and gives its replies, a list for each datagram, up to what ends them.

    Raises OSError for what the kernel refuses, or cannot bring to its end, and DAMAGED. After a datagram that is
    damaged one may go on.
    """

    def __init__(self, sock: socket.socket, request: bytes, errors: Mapping[int, int] = SYSTEM) -> None:
        """errors: a subsystem's own, beyond the system's, and what they are called here."""
        (self._sequence,) = U32.unpack_from(request, 8)
        self._socket, self._errors, self._ended = sock, errors, False
        self.disturbed = False
        """A change did: some may be missing, or have come twice."""
        sock.send(request)

    def __next__(self) -> list[Message]:
        if self._ended:
            raise StopIteration
        piece: list[Message] = []
        for reply in messages(self._socket.recv(RECEIVE_SIZE)):
            if reply.sequence != self._sequence:
                continue
            self.disturbed |= bool(reply.flags & NLM_F_DUMP_INTR)
            if reply.kind in (NLMSG_DONE, NLMSG_ERROR):
                self._ended = True
                if code := self._code(reply):
                    raise OSError(code, os.strerror(code))
                break
            piece.append(reply)
        return piece

    def _code(self, reply: Message) -> int:
        """A dump that fails when it has begun tells so where it ends."""
        (own,) = _CODE.unpack_from(reply.body)
        return self._errors.get(-own) or errno_of(reply)
