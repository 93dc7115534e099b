"""Traces packets in the network namespace of the thread that opens it."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Iterator
from typing import Final, Self

from rules import trace
from rules.dump import dump_request, read_rules
from rules.errors import KernelUnreachable
from rules.expressions import Expression
from rules.netlink import (
    GETRULE,
    NETLINK_ADD_MEMBERSHIP,
    SO_RCVBUFFORCE,
    SOL_NETLINK,
    Message,
    attributes,
    error_of,
    messages,
)
from rules.netlink_socket import DAMAGED, RECEIVE_SIZE, Replies, open_socket
from rules.objects import Table

RECEIVE_BUFFER: Final = 16 << 20
_SEQUENCE: Final = 1
_HANDLE: Final = 3  # NFTA_RULE_HANDLE


class TraceSocket:
    """A context manager. From `start` on until it is closed, or its process ends, the packets are traced.

    Everything raises KernelUnreachable for what the kernel refuses.
    """

    def __init__(self) -> None:
        self._control = self._events = None
        try:
            self._control = open_socket()
            self._events = open_socket()
            self._events.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
            self._events.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, trace.NFNLGRP_NFTRACE)
        except OSError as error:
            self.close()
            raise KernelUnreachable(error.errno or errno.EIO, "cannot listen to nftables' traces") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The kernel takes the table away together with the socket that owns it."""
        for sock in (self._control, self._events):
            if sock is not None:
                sock.close()

    def start(self, wanted: trace.Wanted) -> None:
        """A batch, which is answered by acknowledgements of several of its messages: not by Replies to one."""
        assert self._control
        try:
            self._control.send(trace.batch(f"{trace.PREFIX}{os.getpid()}", wanted, _SEQUENCE))
            answers = 0
            while answers < 2:  # one for each hook's rule, or what went wrong before
                for reply in messages(self._control.recv(RECEIVE_SIZE)):
                    code, _ = error_of(reply)
                    if code:
                        raise OSError(code, os.strerror(code))
                    answers += 1
        except OSError as error:
            raise KernelUnreachable(error.errno or errno.EIO, "cannot ask nftables for a trace") from error

    def rules(self, table: Table) -> dict[tuple[str, int], tuple[Expression, ...]]:
        """(chain, handle) -> a rule of one table. {}: there is no such table."""
        assert self._control
        found: dict[tuple[str, int], tuple[Expression, ...]] = {}
        try:
            for piece in Replies(self._control, dump_request(GETRULE, table.family, _SEQUENCE, table.name)):
                for reply in piece:
                    for chain, rule in read_rules([reply], table.name):
                        found[chain, _handle(reply)] = rule
            return found
        except OSError as error:
            if error.errno == errno.ENOENT:
                return {}
            raise KernelUnreachable(error.errno or errno.EIO, "cannot read nftables") from error
        except DAMAGED as error:
            raise KernelUnreachable(errno.EBADMSG, f"cannot understand what nftables says ({error})") from error

    def events(self, seconds: float) -> Iterator[trace.Event | None]:
        """What happens to the packets, for so long. None: nothing more for now, and each time that some were missed."""
        assert self._events
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self._events], [], [], min(left, 0.2))[0]:
                yield None
                continue
            try:
                data = self._events.recv(RECEIVE_SIZE)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise KernelUnreachable(error.errno or errno.EIO, "cannot read nftables' traces") from error
                yield None
                continue
            for reply in messages(data):
                try:
                    event = trace.read(reply)
                except DAMAGED:
                    continue  # of a newer kernel; the others still tell
                if event:
                    yield event


def _handle(reply: Message) -> int:
    return int.from_bytes(dict(attributes(reply.body[4:]))[_HANDLE])
