"""Each commit to nftables of a namespace: when it was, which generation it made, and whose it was."""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from integration.namespaces import Namespace
from rules.netlink import (
    GETGEN,
    NETLINK_ADD_MEMBERSHIP,
    NETLINK_NETFILTER,
    NEWGEN,
    NFNLGRP_NFTABLES,
    SOL_NETLINK,
    SUBSYSTEM,
    attributes,
    message,
    messages,
    read_text,
)

_NEW_GENERATION: Final = SUBSYSTEM << 8 | NEWGEN
_SO_ATTACH_FILTER: Final = 26
_LOAD_HALF, _JUMP_EQUAL, _RETURN = 0x28, 0x15, 0x06  # linux/bpf_common.h
_POLL: Final = 0.2


class Commit(NamedTuple):
    """moment: time.monotonic() when it was told. program: of whoever committed, as the kernel knows it."""

    moment: float
    generation: int
    pid: int
    program: str


class Commits:
    """Listens from now on, until `close`. The kernel passes on nothing but the end of each commit, so a million elements
    cost the listener nothing."""

    def __init__(self, namespace: Namespace | None = None) -> None:
        """namespace: None: the calling thread's."""
        self.all: list[Commit] = []
        make = namespace.socket if namespace else socket.socket
        self._asking = make(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self._socket = make(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        for each in (self._asking, self._socket):
            each.bind((0, 0))
        _only(self._socket, _NEW_GENERATION)
        self._socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, NFNLGRP_NFTABLES)
        self._socket.settimeout(_POLL)
        self._news = threading.Condition()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="commits", daemon=True)
        self._thread.start()

    def generation(self) -> int:
        """The number of the last commit, now. (For one thread.)"""
        self._asking.send(message(GETGEN, 0, 1, 0, b""))
        [reply] = messages(self._asking.recv(1 << 16))
        return int.from_bytes(dict(attributes(reply.body[4:]))[1])

    def heard(self, generation: int, timeout: float = 5.0) -> None:
        """Wait until this commit is in `all`. Raises TimeoutError."""
        self.wait(lambda: not generation or (bool(self.all) and self.all[-1].generation >= generation), timeout)

    def wait(self, ready: Callable[[], bool], timeout: float) -> None:
        """Until it is so; asked again at each commit. Raises TimeoutError."""
        with self._news:
            if not self._news.wait_for(ready, timeout):
                raise TimeoutError(f"no such commit within {timeout:g} s; the last was {self.all[-1:]}")

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        for each in (self._asking, self._socket):
            each.close()

    def _loop(self) -> None:
        while not self._done.is_set():
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                continue
            now = time.monotonic()
            for reply in messages(data):
                found = dict(attributes(reply.body[4:]))
                program = read_text(found.get(3, b""))
                with self._news:
                    self.all.append(Commit(now, int.from_bytes(found[1]), int.from_bytes(found.get(2, b"")), program))
                    self._news.notify_all()


def _only(sock: socket.socket, kind: int) -> None:
    """Have the kernel throw away what does not begin with a message of this kind (socket(7), SO_ATTACH_FILTER)."""
    seen = int.from_bytes(kind.to_bytes(2, sys.byteorder))  # the filter loads in network order
    steps = ((_LOAD_HALF, 0, 0, 4), (_JUMP_EQUAL, 0, 1, seen), (_RETURN, 0, 0, 0xFFFFFFFF), (_RETURN, 0, 0, 0))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
