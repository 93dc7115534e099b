"""When events pass the wire and when the kernel commits what they ask for, from a process of its own: see `Listener`.

This file is the program too. An event and its commit are told by marked addresses (`marks`). An event's time is the
kernel's, of the packet that carries the mark to the proxy (or when a watch of our own has it, where packets cannot be read); a commit's is when its NEWGEN
arrives on nftables' multicast group: both are seen from outside, for any proxy. Nothing is said between an event and its commit, so that saying it disturbs nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench import marks, watches
from rules.netlink import (
    DELCHAIN,
    DELRULE,
    DELSET,
    DELSETELEM,
    NETLINK_NETFILTER,
    NEWCHAIN,
    NEWGEN,
    NEWRULE,
    NEWSET,
    NEWSETELEM,
    NFNLGRP_NFTABLES,
    SO_RCVBUFFORCE,
    SUBSYSTEM,
    messages,
)

_NEW_GENERATION: Final = SUBSYSTEM << 8 | NEWGEN
_ADDS: Final = frozenset(SUBSYSTEM << 8 | kind for kind in (NEWSETELEM, NEWRULE))
_REMOVES: Final = frozenset(SUBSYSTEM << 8 | kind for kind in (DELSETELEM, DELRULE))
_THINGS: Final = frozenset(
    SUBSYSTEM << 8 | kind for kind in (NEWCHAIN, DELCHAIN, NEWRULE, DELRULE, NEWSET, DELSET, NEWSETELEM, DELSETELEM)
)
NLMSG_HDR: Final = 16
_SO_TIMESTAMPNS: Final = 35
_ETH_P_IP: Final = 0x0800
_BUFFER: Final = 512 << 20
_QUIET: Final = 0.05


@dataclass
class Commit:
    """at: nanoseconds since 1970. size: bytes of all that the kernel tells of it. things: how many chains, rules, sets and elements
    that is. added, removed: marks in new things, and in
    those that are gone and not there anew."""

    at: int
    size: int
    things: int
    added: frozenset[str]
    removed: frozenset[str]

    def mentions(self, mark: str) -> bool:
        return mark in self.added or mark in self.removed


@dataclass
class Seen:
    """events: marks and when they passed the wire last."""

    events: dict[str, int] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)


class Silence(Exception):
    """What was waited for did not come in time."""


class Listener:
    """Listens to an API server's events and to nftables, from now until `stop`. sightings: how to see the events:
    "packets" and the server's port, for plain HTTP over loopback; "watches", its URL, the file of its CA and a token."""

    def __init__(self, sightings: Sequence[str]) -> None:
        argv = [sys.executable, "-m", "bench.listener", *sightings]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout
        self._output = self._process.stdout.fileno()
        self._rest = b""
        self._lines: list[list[str]] = []
        self._fill(60.0)
        self._lines.clear()

    def wait(self, done: Callable[[Seen], bool], timeout: float) -> Seen:
        """What was seen since the last call, until it is `done`. Raises Silence when it is not in time."""
        seen = Seen()
        deadline = time.monotonic() + timeout
        while not done(seen):
            self._next(seen, deadline - time.monotonic())
        return seen

    def listen(self, seconds: float) -> Seen:
        """All that comes in this time."""
        seen = Seen()
        with contextlib.suppress(Silence):
            deadline = time.monotonic() + seconds
            while True:
                self._next(seen, deadline - time.monotonic())
        return seen

    def until_quiet(self, seen: Seen, seconds: float) -> Seen:
        """Add to `seen` what comes until there were no commits for so long."""
        try:
            while True:
                before = len(seen.commits)
                deadline = time.monotonic() + seconds
                while len(seen.commits) == before:
                    self._next(seen, deadline - time.monotonic())
        except Silence:
            return seen

    def stop(self) -> None:
        """May be called twice."""
        if self._process.poll() is None:
            self._process.communicate()

    def _next(self, seen: Seen, timeout: float) -> None:
        if not self._lines:
            self._fill(timeout)
        kind, moment, *rest = self._lines.pop(0)
        if kind == "wire":
            seen.events |= dict.fromkeys(rest, int(moment))
        else:
            size, things, added, removed = rest
            new = frozenset(added.split(",")) - {""}
            gone = frozenset(removed.split(",")) - {""}
            seen.commits.append(Commit(int(moment), int(size), int(things), new, gone - new))

    def _fill(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self._lines:
            ready, _, _ = select.select([self._output], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise Silence
            data = os.read(self._output, 1 << 20)
            if not data:
                raise RuntimeError("the process that listens to nftables has ended")
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines += [line.decode().split(" ") for line in lines]


def main(kind: str, *arguments: str) -> None:
    events: _Packets | _Watches = _Packets(int(arguments[0])) if kind == "packets" else _Watches(*arguments)
    commits = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    commits.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, _BUFFER)
    commits.bind((0, 1 << NFNLGRP_NFTABLES - 1))
    print("ready", flush=True)
    lines: list[str] = []
    size, things, added, removed = 0, 0, set[str](), set[str]()
    sockets: list[socket.socket | int] = [commits, events.socket, 0]
    due = 0.0
    while True:
        ready, _, _ = select.select(sockets, [], [], _QUIET if lines else None)
        if not lines:
            due = time.monotonic() + _QUIET
        committed = False
        if commits in ready:
            data = commits.recv(1 << 18)
            now = time.time_ns()
            for reply in messages(data):
                size += NLMSG_HDR + len(reply.body)
                things += reply.kind in _THINGS
                if reply.kind in _ADDS:
                    added.update(marks.in_bytes(reply.body))
                elif reply.kind in _REMOVES:
                    removed.update(marks.in_bytes(reply.body))
                elif reply.kind == _NEW_GENERATION:
                    lines.append(f"commit {now} {size} {things} {','.join(added)} {','.join(removed)}")
                    size, things, added, removed = 0, 0, set(), set()
                    committed = True
        elif events.socket in ready:
            lines += events.read()
        elif 0 in ready:
            return
        if lines and (committed or time.monotonic() >= due):  # others' packets may never leave a pause
            print(*lines, sep="\n", flush=True)
            lines.clear()


class _Packets:
    """All IPv4 packets from a port that the loopback interface takes in."""

    def __init__(self, port: int) -> None:
        self._port, self._tail = port, b""
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)  # without their Ethernet headers
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, _BUFFER)
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.socket.bind(("lo", _ETH_P_IP))

    def read(self) -> list[str]:
        data, ancillary, _, _ = self.socket.recvmsg(1 << 17, 100)
        (begin,) = struct.unpack_from(">H", data, 20)
        if begin != self._port:
            return []
        text = self._tail + data[20 + (data[32] >> 4) * 4 :]  # an address may be cut by the end of a packet
        self._tail = text[-marks.LONGEST :]
        seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
        return _wire(seconds * 10**9 + nanoseconds, marks.in_text(text))


class _Watches:
    def __init__(self, url: str, ca: str, token: str) -> None:
        self.socket, self._in = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        watches.start(url, ca, token, self._seen)

    def _seen(self, moment: int, found: list[bytes]) -> None:
        self._in.send("".join(_wire(moment, found)).encode())

    def read(self) -> list[str]:
        return [self.socket.recv(1 << 16).decode()]


def _wire(moment: int, found: list[bytes]) -> list[str]:
    return [f"wire {moment} {b' '.join(found).decode()}"] if found else []


if __name__ == "__main__":
    main(*sys.argv[1:])
