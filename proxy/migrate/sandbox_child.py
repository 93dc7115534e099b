"""The process in the throw-away network namespace: python -m proxy.migrate.sandbox_child. See `sandbox`, its other end.

It moves into a new network namespace, and into a user namespace of its own where it may not do that otherwise, before
it does anything else. Then, until standard input ends, it does what it is told:

    C <length> <a batch of nftables messages>      sends it, answers [[sequence, errno, offset], ...]: what was refused
    N <length> <family's number> <table> NUL <set> counts the set's elements, answers the number

Its first line is {"how": "network" or "user", "buffer": bytes of a batch that fit}, or {"errno": ..., "step": ...}.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import struct
import sys
from typing import Final

from rules.netlink import (
    GETSETELEM,
    NETLINK_EXT_ACK,
    NLM_F_DUMP,
    NLMSG_DONE,
    NLMSG_ERROR,
    SO_RCVBUFFORCE,
    SO_SNDBUFFORCE,
    SOL_NETLINK,
    attributes,
    error_of,
    message,
    messages,
    text,
)
from rules.netlink_socket import RECEIVE_SIZE, enlarge, open_socket

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
BUFFER: Final = 256 << 20
FRAME: Final = struct.Struct("=cI")
ELEM_LIST_TABLE, ELEM_LIST_SET, ELEM_LIST_ELEMENTS = 1, 2, 3
CAP_NET_ADMIN: Final = 12
_OWN: Final = "/proc/self/ns/net"


def main() -> int:
    try:
        how = _leave()
        sock = open_socket()
        sock.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
        enlarge(sock, SO_RCVBUFFORCE, socket.SO_RCVBUF, 4 << 20)
        _say({"how": how, "buffer": enlarge(sock, SO_SNDBUFFORCE, socket.SO_SNDBUF, BUFFER)})
    except OSError as error:
        _say({"errno": error.errno or errno.EIO, "step": error.filename or "socket"})
        return 1
    while header := sys.stdin.buffer.read(FRAME.size):
        kind, length = FRAME.unpack(header)
        data = sys.stdin.buffer.read(length)
        _say(_commit(sock, data) if kind == b"C" else _count(sock, data))
    return 0


def _leave() -> str:
    """Into a network namespace of its own. "network", or "user": what it took. Raises OSError."""
    before = os.stat(_OWN).st_ino
    how = "network"
    try:
        if not _may_program():  # a user namespace of its own gives that back
            raise PermissionError
        _unshare(CLONE_NEWNET)
    except PermissionError:
        how = "user"
        _unshare(CLONE_NEWUSER | CLONE_NEWNET)
    if os.stat(_OWN).st_ino == before:
        raise OSError(errno.EBUSY, "the network namespace is still the old one", "unshare")
    return how


def _may_program() -> bool:
    """Whether this process has CAP_NET_ADMIN, in the namespace that it makes as well."""
    with open("/proc/self/status") as lines:
        effective = next((line for line in lines if line.startswith("CapEff:")), "CapEff: 0")
    return bool(int(effective.split()[1], 16) >> CAP_NET_ADMIN & 1)


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "unshare")


def _commit(sock: socket.socket, batch: bytes) -> list[tuple[int, int, int]]:
    """What was refused; sequence 0: the batch as a whole. (Not Replies: each of its messages may be refused.)"""
    try:
        sock.send(batch)
    except OSError as error:
        return [(0, error.errno or errno.EIO, 0)]
    refused: list[tuple[int, int, int]] = []
    while True:  # the kernel has done the whole batch when send returns: what it has to say is waiting
        try:
            data = sock.recv(RECEIVE_SIZE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return refused
        except OSError as error:
            refused.append((0, error.errno or errno.EIO, 0))
            continue
        for reply in messages(data):
            if reply.kind == NLMSG_ERROR:
                code, offset = error_of(reply)
                if code:
                    refused.append((reply.sequence, code, offset))


def _count(sock: socket.socket, named: bytes) -> int:
    """Up to the end, of which a refusal is one like others (not so of Replies): the parent compares the number."""
    family, (table, name) = named[0], named[1:].decode().split("\0")
    body = text(ELEM_LIST_TABLE, table) + text(ELEM_LIST_SET, name)
    sock.send(message(GETSETELEM, NLM_F_DUMP, 1, family, body))
    found = 0
    while True:
        for reply in messages(sock.recv(RECEIVE_SIZE)):
            if reply.kind in (NLMSG_DONE, NLMSG_ERROR):
                return found
            for number, value in attributes(reply.body[4:]):
                if number == ELEM_LIST_ELEMENTS:
                    found += sum(1 for _ in attributes(value))


def _say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
