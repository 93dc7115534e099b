"""How long a new connection takes: connect() for TCP; for UDP a new socket's connect(), its first packet and the answer.

One thread does all, on one core: a packet to a pod is received, and answered, inside the call that sends it. So there is
nothing to wait for, and what is measured is the way of the packets, there and back. Roads that are to be compared take
turns, one connection each, in an order that changes with every turn (who is behind whom matters to caches); a difference is
one of a round's medians, so that what happens on the machine meanwhile happens to both. Roads to be compared end at the same
places, as often each: a place that was not asked for some time costs up to a microsecond more, whatever the rules.
"""

from __future__ import annotations

import gc
import os
import random
import socket
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns

from bench.dataplane_services import Places
from bench.dataplane_world import World, clients

RESAMPLES = 2000
COLD = 5  # so many of a round come first and do not count: other rules were in the caches


@dataclass
class Road:
    """A way to connect to places, and how long it took, in ns, by round. places: for each connection in turn, those of
    which one is drawn. sources: gives addresses to connect from, so many; None: the kernel chooses."""

    places: Sequence[Places]
    sources: Callable[[int], Sequence[str]] | None = None
    rounds: list[list[int]] = field(default_factory=list)


@contextmanager
def undisturbed(core: int = 0) -> Iterator[None]:
    """On one core, without the garbage collector."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[core % len(cores)]})
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        os.sched_setaffinity(0, cores)


def tcp(world: World, origin: str, listener: socket.socket, roads: Sequence[Road], count: int) -> None:
    """One round: `count` connections on each road, and COLD that do not count."""
    count += COLD
    sockets = [_sockets(world, origin, road, count, udp=False) for road in roads]
    times = [[0] * count for _ in roads]
    places = [_draw(road, count) for road in roads]
    clock = perf_counter_ns
    for i in range(count):
        for which in _order(roads):
            to, connect = places[which][i], sockets[which][i].connect
            started = clock()
            connect(to)
            times[which][i] = clock() - started
    _note(roads, times)
    for road in sockets:
        for sock in road:
            listener.accept()[0].close()
            sock.close()


def udp(world: World, origin: str, receiver: socket.socket, roads: Sequence[Road], count: int) -> None:
    """The same."""
    count += COLD
    sockets = [_sockets(world, origin, road, count, udp=True) for road in roads]
    times = [[0] * count for _ in roads]
    places = [_draw(road, count) for road in roads]
    clock = perf_counter_ns
    receive, answer = receiver.recvmsg, receiver.sendmsg
    for i in range(count):
        for which in _order(roads):
            to, sock = places[which][i], sockets[which][i]
            started = clock()
            sock.connect(to)
            sock.send(b"?")
            data, to_whom, _, whence = receive(16, 64)
            answer([data], to_whom, 0, whence)
            sock.recv(16)
            times[which][i] = clock() - started
    _note(roads, times)
    for road in sockets:
        for sock in road:
            sock.close()


def _sockets(world: World, origin: str, road: Road, count: int, *, udp: bool) -> list[socket.socket]:
    return clients(world.origin(origin), count, udp=udp, sources=road.sources(count) if road.sources else ())


def each(places: Places) -> list[Places]:
    """One after the other, with nothing to draw."""
    return [[place] for place in places]


def _draw(road: Road, count: int) -> Places:
    """Before the clock starts, so that to draw costs all roads the same: nothing."""
    return [random.choice(road.places[i % len(road.places)]) for i in range(count)]


def _order(roads: Sequence[Road]) -> list[int]:
    order = list(range(len(roads)))
    random.shuffle(order)
    return order


def _note(roads: Sequence[Road], times: list[list[int]]) -> None:
    for road, taken in zip(roads, times, strict=True):
        road.rounds.append(taken[COLD:])


Figures = dict[str, float]


def time_of(road: Road) -> Figures:
    """Microseconds: the median of all, and the quartiles."""
    low, median, high = statistics.quantiles((t / 1e3 for times in road.rounds for t in times), n=4)
    return {"median": round(median, 3), "quartile 1": round(low, 3), "quartile 3": round(high, 3)}


def difference(road: Road, base: Road) -> Figures:
    """Microseconds that `road` takes longer: the median of the rounds' differences of medians, and what it is with 95%
    confidence (bootstrap over the rounds)."""
    found = [
        (statistics.median(these) - statistics.median(those)) / 1e3
        for these, those in zip(road.rounds, base.rounds, strict=True)
    ]
    low, high = _confidence(found)
    return {"median": round(statistics.median(found), 3), "low": round(low, 3), "high": round(high, 3)}


def ratio(part: Sequence[float], whole: Sequence[float]) -> Figures:
    """The median of the rounds' ratios, and what it is with 95% confidence."""
    found = [a / b for a, b in zip(part, whole, strict=True)]
    low, high = _confidence(found)
    return {"median": round(statistics.median(found), 4), "low": round(low, 4), "high": round(high, 4)}


def _confidence(values: Sequence[float]) -> tuple[float, float]:
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[RESAMPLES // 40], medians[-RESAMPLES // 40]
