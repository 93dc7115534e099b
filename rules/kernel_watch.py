"""Listens to what others do to our tables: the multicast group of nftables, in the network namespace of the thread that
opens it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import select
import socket
import struct
import sys
from typing import Final

from rules.changes import Changes, Touched
from rules.errors import KernelUnreachable
from rules.neighbours import Neighbour
from rules.netlink import NETLINK_ADD_MEMBERSHIP, NFNLGRP_NFTABLES, SO_ATTACH_FILTER, SO_RCVBUFFORCE, SOL_NETLINK
from rules.netlink_socket import RECEIVE_SIZE, open_socket

RECEIVE_BUFFER: Final = 32 << 20  # a firewall that loads 50,000 rules at once is no reason to read all of our table

_LOAD_WORD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h


class Lost(Exception):
    """The kernel had more to tell than the buffer holds: nobody knows what."""


class KernelWatch:
    """own: the port id of the socket whose transactions are ours, 0: of none. They cost nothing here, however large.
    Raises KernelUnreachable. `close` from any thread."""

    def __init__(self, own: int, receive_buffer: int = RECEIVE_BUFFER) -> None:
        self._changes, self._own = Changes(own), own
        try:
            self._socket = open_socket()
            with contextlib.suppress(PermissionError):
                self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, receive_buffer)
            if own:
                with contextlib.suppress(OSError):  # `feed` leaves it out, too
                    _ignore(self._socket, own)
            self._socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, NFNLGRP_NFTABLES)
        except OSError as error:
            raise KernelUnreachable(error.errno or errno.EIO, "cannot listen to nftables' changes") from error
        self._wake = socket.socketpair()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._wake[0], select.POLLIN)

    def read(self, timeout: float | None = None) -> list[Touched] | None:
        """Wait for foreign transactions that concern our tables; [] after `timeout` seconds, or when there are new
        neighbours; None when closed.

        Raises Lost, and goes on to listen after that.
        """
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll(None if timeout is None else timeout * 1e3)}
            if self._wake[0].fileno() in ready:
                return None
            if not ready:
                return []
            try:
                found = self._changes.feed(self._socket.recv(RECEIVE_SIZE))
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._changes = Changes(self._own)  # half a transaction is none
                raise Lost from None
            if found or self._changes.neighbours:
                return found

    def take_neighbours(self) -> list[Neighbour]:
        """Chains of others that have come to stand where ours do, since the last call."""
        found, self._changes.neighbours = self._changes.neighbours, []
        return found

    def wake(self) -> None:
        """`read` returns None from now on."""
        with contextlib.suppress(OSError):
            self._wake[1].send(b"x")

    def close(self) -> None:
        for sock in (self._socket, *self._wake):
            sock.close()


def _ignore(sock: socket.socket, port: int) -> None:
    """Have the kernel throw away what this port id did (socket(7), SO_ATTACH_FILTER): all messages that come together
    are of one transaction, and so is the first (struct nlmsghdr, nlmsg_pid)."""
    seen = int.from_bytes(port.to_bytes(4, sys.byteorder))  # the filter loads in network order
    steps = ((_LOAD_WORD, 0, 0, 12), (_JUMP_EQUAL, 0, 1, seen), (_RETURN, 0, 0, 0), (_RETURN, 0, 0, 0xFFFFFFFF))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
