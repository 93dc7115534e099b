"""When events pass the wire and when the kernel commits them, from a process of its own: see `Listener`.

This file is the program too. Events are told by addresses in MARKED, which nothing else has: as text in a packet to the
agent, as bytes in an element of nftables. The packet's time is the kernel's; a commit's is when its NEWGEN arrives.
"""

from __future__ import annotations

import re
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

from rules.netlink import (
    NETLINK_NETFILTER,
    NEWGEN,
    NEWSETELEM,
    NFNLGRP_NFTABLES,
    SO_RCVBUFFORCE,
    SUBSYSTEM,
    attributes,
    messages,
)

MARKED: Final = 12  # the first byte of addresses to look for: 12.0.0.0/8
_TEXT: Final = re.compile(rb'"(%d\.\d+\.\d+\.\d+)"' % MARKED)
_NEW_GENERATION: Final = SUBSYSTEM << 8 | NEWGEN
_NEW_ELEMENTS: Final = SUBSYSTEM << 8 | NEWSETELEM
_SO_TIMESTAMPNS: Final = 35
_ETH_P_IP: Final = 0x0800
_BUFFER: Final = 256 << 20
_QUIET: Final = 0.1
PATIENCE: Final = 10
_TAIL: Final = 20  # an address may be cut by the end of a packet


class Listener:
    """Watches the loopback interface for packets from `port`, and nftables for commits, from now until `stop`."""

    def __init__(self, port: int) -> None:
        argv = [sys.executable, "-m", "bench.api_listener", str(port)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        self._lines = self._process.stdout
        self._lines.readline()

    def collect(self, addresses: Sequence[str]) -> tuple[dict[str, int], dict[str, int], list[int]]:
        """Wait until all these have been committed. Returns the times of their events and of their commits, and those
        of all commits since the last call, in nanoseconds since 1970. Call it when no more events come. Raises
        TimeoutError when some are missing after PATIENCE seconds of silence."""
        wire: dict[str, int] = {}
        committed: dict[str, int] = {}
        commits: list[int] = []
        wanted = set(addresses)
        silence = 0
        while not wanted <= committed.keys() or not wanted <= wire.keys():
            kind, moment, *found = self._lines.readline().split()
            silence = silence + 1 if kind == "silence" else 0
            if silence > PATIENCE:
                sent, done = len(wanted & wire.keys()), len(wanted & committed.keys())
                raise TimeoutError(f"of {len(wanted)} events, {sent} were on the wire, {done} were committed")
            if kind == "wire":
                wire |= {address: int(moment) for address in found}
            elif kind == "commit":
                commits.append(int(moment))
                committed |= {address: int(moment) for address in found}
        return wire, committed, commits

    def stop(self) -> None:
        self._process.communicate()


def main(port: int) -> None:
    """Say all when it has been quiet for a moment, so that saying it disturbs nothing."""
    packets = _packets()
    commits = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    commits.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, _BUFFER)
    commits.bind((0, 1 << NFNLGRP_NFTABLES - 1))
    print("ready", flush=True)
    lines: list[str] = []
    found: list[str] = []
    tail = b""
    sockets: list[socket.socket | int] = [commits, packets, 0]
    while True:
        ready, _, _ = select.select(sockets, [], [], _QUIET if lines else 1.0)
        if commits in ready:
            data = commits.recv(1 << 18)
            now = time.time_ns()
            for reply in messages(data):
                if reply.kind == _NEW_ELEMENTS:
                    found += _marked(reply.body[4:])
                elif reply.kind == _NEW_GENERATION:
                    lines.append(" ".join(["commit", str(now), *found]))
                    found = []
        elif packets in ready:
            data, ancillary, _, _ = packets.recvmsg(1 << 17, 100)
            (begin,) = struct.unpack_from(">H", data, 20)
            if begin == port:
                text = tail + data[20 + (data[32] >> 4) * 4 :]
                tail = text[-_TAIL:]
                if addresses := _TEXT.findall(text):
                    seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
                    moment = seconds * 10**9 + nanoseconds
                    lines.append(b" ".join([b"wire", b"%d" % moment, *addresses]).decode())
        elif 0 in ready:
            return
        else:
            print(*(lines or ["silence 1"]), sep="\n", flush=True)
            lines.clear()


def _packets() -> socket.socket:
    """All IPv4 packets that the loopback interface takes in, without their Ethernet headers."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, _BUFFER)
    made.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    made.bind(("lo", _ETH_P_IP))
    return made


def _marked(body: memoryview) -> Iterator[str]:
    """Marked addresses in the data of new elements."""
    for _, element in attributes(dict(attributes(body)).get(3, b"")):
        parts = dict(attributes(element))
        data = bytes(dict(attributes(parts[2])).get(1, b"")) if 2 in parts else b""
        if data[:1] == bytes([MARKED]):
            yield socket.inet_ntoa(data[:4])


if __name__ == "__main__":
    main(int(sys.argv[1]))
