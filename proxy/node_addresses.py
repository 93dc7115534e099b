"""The IP addresses of this node's interfaces, and the thread that follows them.

The kernel tells each change by rtnetlink (linux/rtnetlink.h, linux/if_addr.h). Everything that it has waiting is one
change. When it could not keep what it had to tell, all addresses are read again; nothing is ever polled.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import threading
from contextlib import closing
from typing import Final

import structlog

from proxy.errors import SourceError
from proxy.events import Failed, Inbox, LocalAddresses
from rules.netlink import NLM_F_DUMP, NLM_F_REQUEST, SO_RCVBUFFORCE, Message, attributes, messages
from rules.netlink_socket import RECEIVE_SIZE, Replies, enlarge

LOG = structlog.get_logger()

RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR = 0x10, 0x100
IFA_ADDRESS, IFA_LOCAL = 1, 2
RECEIVE_BUFFER: Final = 1 << 20
DUMP_TRIES: Final = 10
RETRY_MS: Final = 1000

_REQUEST = struct.Struct("=IHHIIBBBBI")  # nlmsghdr, ifaddrmsg
_IFADDRMSG_SIZE: Final = 8

PAUSE_PER_ADDRESS: Final = 1e-5
"""Seconds between two events, for each address. An event is the whole set; with 50,000 addresses (kube-ipvs0) that are
added one by one, an event for each would bury the agent."""

_SIZES: Final[dict[int, int]] = {socket.AF_INET: 4, socket.AF_INET6: 16}

Entries = dict[bytes, bytes]
"""What makes an address of an interface different from others -> the address. One address may be on two interfaces."""


class AddressSource:
    """Puts LocalAddresses: of the network namespace of the thread that calls `start`."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._entries: Entries = {}
        self._addresses: frozenset[bytes] = frozenset()
        self._following: tuple[_Monitor, threading.Thread] | None = None

    def start(self) -> None:
        """Put the addresses that there are, then each change, from a thread, until `stop`. Raises SourceError."""
        monitor = None
        try:
            monitor = _Monitor()  # before they are read, so that nothing is missed in between
            self._entries = read_all()
        except OSError as error:
            if monitor:
                monitor.close()
            cause = f"cannot be read: {error.strerror}"
            raise SourceError("the node's IP addresses", cause, "allow AF_NETLINK sockets and open files") from None
        self._addresses = frozenset(self._entries.values())
        self._inbox.put(LocalAddresses(self._addresses))
        thread = threading.Thread(target=self._follow, args=(monitor,), name="addresses", daemon=True)
        self._following = monitor, thread
        thread.start()

    def stop(self) -> None:
        """End the thread and wait for it. Does nothing if there is none."""
        if self._following:
            monitor, thread = self._following
            monitor.stop()
            thread.join()
            monitor.close()
            self._following = None

    def _follow(self, monitor: _Monitor) -> None:
        try:
            missed = False
            while monitor.wait(RETRY_MS if missed else None):
                missed = self._step(monitor, missed)
                if not monitor.pause(len(self._addresses) * PAUSE_PER_ADDRESS):
                    return
        except Exception as error:
            LOG.error("addresses_stopped", exc_info=True, remedy="report this bug")
            self._inbox.put(Failed(error))

    def _step(self, monitor: _Monitor, missed: bool) -> bool:
        """Take in all that is waiting, and put the addresses if they are others now. `missed`: what we have is not
        true. Returns whether that is (still) so."""
        waiting, overrun = monitor.read()
        if overrun:
            LOG.info("address_messages_missed", then="read all addresses again")
        if missed or overrun:
            try:
                self._entries = read_all()
            except OSError as error:
                LOG.warning("addresses_unreadable", cause=error.strerror, then=f"again in {RETRY_MS} ms")
                return True
        else:
            for message in waiting:
                apply(message, self._entries)
        addresses = frozenset(self._entries.values())
        if addresses != self._addresses:
            self._addresses = addresses
            self._inbox.put(LocalAddresses(addresses))
        return False


def apply(message: Message, entries: Entries) -> None:
    """Take in one RTM_NEWADDR or RTM_DELADDR. Either may tell what is known."""
    if message.kind not in (RTM_NEWADDR, RTM_DELADDR):
        return
    found = dict(attributes(message.body[_IFADDRMSG_SIZE:]))
    # Of a point-to-point link IFA_ADDRESS is the other end's; otherwise IPv6 has nothing else.
    local = found.get(IFA_LOCAL, found.get(IFA_ADDRESS))
    # MCTP and Phonet have addresses, too.
    if local is None or _SIZES.get(message.body[0]) != len(local):
        return
    address = bytes(local)
    index = bytes(message.body[4:8])
    if len(address) == 4:
        # An interface may have one address with two lengths, or two peers.
        key = index + bytes(message.body[1:2]) + address + bytes(found.get(IFA_ADDRESS, b""))
    else:
        key = index + address
    if message.kind == RTM_NEWADDR:
        entries[key] = address
    else:
        entries.pop(key, None)


def read_all() -> Entries:
    """All addresses. Those that come or go meanwhile may be there or not. Raises OSError."""
    entries: Entries = {}
    with closing(_rtnetlink()) as sock:
        for sequence in range(1, DUMP_TRIES + 1):
            # A dump that was disturbed may lack any; what several of them saw together is as good as can be had.
            if _read_once(sock, sequence, entries):
                break
    return entries


def _read_once(sock: socket.socket, sequence: int, entries: Entries) -> bool:
    """Add what one dump tells. False: a change disturbed it."""
    request = _REQUEST.pack(_REQUEST.size, RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP, sequence, 0, 0, 0, 0, 0, 0)
    replies = Replies(sock, request)
    for piece in replies:
        for reply in piece:
            apply(reply, entries)
    return not replies.disturbed


def _rtnetlink() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)


class _Monitor:
    """Hears of changes of addresses. Raises OSError."""

    def __init__(self) -> None:
        self._socket = _rtnetlink()
        try:
            enlarge(self._socket, SO_RCVBUFFORCE, socket.SO_RCVBUF, RECEIVE_BUFFER)
            self._socket.bind((0, RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR))
            self._socket.setblocking(False)
            self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        except OSError:
            self._socket.close()
            raise
        self._all, self._stopped = select.poll(), select.poll()
        self._all.register(self._socket, select.POLLIN)
        self._all.register(self._stop, select.POLLIN)
        self._stopped.register(self._stop, select.POLLIN)

    def wait(self, timeout_ms: int | None = None) -> bool:
        """Until something is waiting, or the time is over. False: `stop` was called."""
        return all(fd != self._stop for fd, _ in self._all.poll(timeout_ms))

    def pause(self, seconds: float) -> bool:
        """Let so much time pass, in whole milliseconds. False: `stop` was called."""
        return not self._stopped.poll(int(seconds * 1000))

    def read(self) -> tuple[list[Message], bool]:
        """All messages that are waiting, and whether some were lost: then those are of no use, but had to be read, as
        the kernel keeps none before the buffer is empty."""
        found: list[Message] = []
        overrun = False
        while True:
            try:
                found += messages(self._socket.recv(RECEIVE_SIZE))
            except BlockingIOError:
                return found, overrun
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                overrun = True

    def stop(self) -> None:
        """Let `wait` and `pause` return False, in whatever thread they are."""
        os.eventfd_write(self._stop, 1)

    def close(self) -> None:
        self._socket.close()
        os.close(self._stop)
