"""How many packets of established flows pass, UDP and TCP: what is sent is delivered inside the call that sends it, so the
time of the calls is that of the packets' way (for TCP, with that of the acknowledgements)."""

from __future__ import annotations

import socket
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter_ns
from typing import Any

from bench.dataplane_connect import ratio, undisturbed
from bench.dataplane_world import Way, clients

PACKETS, BURSTS = 20, 5
A_TIME = b"\0" * 64
STREAM = b"\0" * 32768
UDP, TCP, TCP_STREAM = "UDP, 64 bytes", "TCP, 64 bytes", "TCP, 32 kB"
UNITS = {UDP: "packets/s", TCP: "packets/s", TCP_STREAM: "sends/s"}

Send = Callable[[], list[int]]
"""Sends PACKETS in each of BURSTS for each flow; gives the ns that each burst took."""


def measure(ways: Mapping[str, Way], rounds: int) -> dict[str, Any]:
    """ways: to each of their places a flow. By kind of packet and way: how many a second, and the ratio to its base's."""
    for world in {id(way.world): way.world for way in ways.values()}.values():
        world.remember_udp()
    found: dict[str, Any] = {}
    for kind in (UDP, TCP, TCP_STREAM):
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for way, rate in _rounds(kind, ways, rounds):
            rates[way].append(rate)
        found[kind] = {
            way: {
                UNITS[kind]: round(statistics.median(rate)),
                "ratio": ratio(rate, rates[ways[way].base]),
            }
            for way, rate in rates.items()
        }
    return found


def _rounds(kind: str, ways: Mapping[str, Way], rounds: int) -> Iterator[tuple[str, float]]:
    """The ways take turns, and each round begins with another one."""
    names = list(ways)
    with ExitStack() as stack:
        servers: dict[int, socket.socket] = {}
        sends = {}
        for name, way in ways.items():
            world = way.world
            if id(world) not in servers:
                server = world.receiver() if kind == UDP else world.listener()
                servers[id(world)] = stack.enter_context(server)
            flows = stack.enter_context((_udp if kind == UDP else _tcp)(way, servers[id(world)], kind))
            sends[name] = flows
        with undisturbed():
            for number in range(rounds + 1):
                first = number % len(names)
                for name in (*names[first:], *names[:first]):
                    taken = sends[name]()
                    if number:
                        yield name, PACKETS * 1e9 / statistics.median(taken)


@contextmanager
def _udp(way: Way, receiver: socket.socket, kind: str) -> Iterator[Send]:
    flows = clients(way.world.origin(way.origin), len(way.places), udp=True)
    receiver.setblocking(True)
    for sock, to in zip(flows, way.places, strict=True):
        sock.connect(to)
        for _ in range(3):  # seen in both directions, and again
            sock.send(b"?")
            data, to_whom, _, whence = receiver.recvmsg(16, 64)
            receiver.sendmsg([data], to_whom, 0, whence)
            sock.recv(16)
    receiver.setblocking(False)

    def send() -> list[int]:
        taken = []
        for sock in flows:
            put, clock = sock.send, perf_counter_ns
            for _ in range(BURSTS):
                started = clock()
                for _ in range(PACKETS):
                    put(A_TIME)
                taken.append(clock() - started)
        for _ in range(PACKETS * BURSTS * len(flows)):
            receiver.recv(128)  # BlockingIOError: one is lost
        return taken

    try:
        yield send
    finally:
        _close(flows)


@contextmanager
def _tcp(way: Way, listener: socket.socket, kind: str) -> Iterator[Send]:
    flows = clients(way.world.origin(way.origin), len(way.places))
    ends = []
    for sock, to in zip(flows, way.places, strict=True):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.connect(to)
        ends.append(listener.accept()[0])
    packet = STREAM if kind == TCP_STREAM else A_TIME

    def send() -> list[int]:
        taken = []
        for sock, end in zip(flows, ends, strict=True):
            put, clock = sock.send, perf_counter_ns
            for _ in range(BURSTS):
                # What is read makes room in the window, and may be acknowledged: so small ones are read behind the burst.
                burst = 0
                for _ in range(PACKETS):
                    started = clock()
                    put(packet)
                    burst += clock() - started
                    if kind == TCP_STREAM:
                        _drain(end, len(packet))
                taken.append(burst)
                if kind == TCP:
                    _drain(end, PACKETS * len(packet))
        return taken

    try:
        yield send
    finally:
        _close([*flows, *ends])


def _drain(end: socket.socket, size: int) -> None:
    while size:
        size -= len(end.recv(min(size, 1 << 16)))


def _close(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
