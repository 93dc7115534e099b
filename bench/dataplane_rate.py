"""How many new TCP connections a second, with a process on each core that does nothing else."""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import statistics
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from time import perf_counter
from typing import Any

from bench.dataplane_connect import ratio, undisturbed
from bench.dataplane_world import Way, clients

A_TIME = 20
PATIENCE = 60.0

Ways = Mapping[str, Way]


def measure(ways: Ways, rounds: int, seconds: float) -> dict[str, Any]:
    """To one of its places each, by way: connections a second of all processes together, and the ratio to its base's.
    seconds: of each turn. Each round begins with another way."""
    context = multiprocessing.get_context("fork")
    cores = len(os.sched_getaffinity(0))
    barrier = context.Barrier(cores)
    processes, pipes = [], []
    for core in range(cores):
        ours, its = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(core, ways, rounds, seconds, barrier, its), daemon=True)
        process.start()
        its.close()
        processes.append(process)
        pipes.append(ours)
    try:
        results = [pipe.recv() for pipe in pipes]
    except EOFError:
        raise RuntimeError("a process that makes connections ended before its time") from None
    finally:
        for process in processes:
            process.terminate()
            process.join()
    rates = {way: [sum(found) for found in zip(*(result[way] for result in results), strict=True)] for way in ways}
    return {
        way: {"connections/s": round(statistics.median(rate)), "ratio": ratio(rate, rates[ways[way].base])}
        for way, rate in rates.items()
    }


def _work(core: int, ways: Ways, rounds: int, seconds: float, barrier: Barrier, results: Connection) -> None:
    # One for each world: connections are spread over all that listen there, and who does not accept them soon has no place.
    worlds = {id(way.world): way.world for way in ways.values()}
    listeners = {which: world.listener(shared=True) for which, world in worlds.items()}
    for listener in listeners.values():
        listener.setblocking(False)
    found: dict[str, list[float]] = {way: [] for way in ways}
    names = list(ways)  # the same order in all processes
    with undisturbed(core):
        for number in range(rounds + 1):
            turn = number % len(ways)
            for name in (*names[turn:], *names[:turn]):
                barrier.wait(PATIENCE)
                rate = _connect(ways[name], listeners[id(ways[name].world)], seconds)
                if number:
                    found[name].append(rate)
    results.send(found)


def _connect(way: Way, listener: socket.socket, seconds: float) -> float:
    count, started = 0, perf_counter()
    while (taken := perf_counter() - started) < seconds:
        sockets = clients(way.world.origin(way.origin), A_TIME)
        for sock in sockets:
            sock.connect(random.choice(way.places))
        with suppress(BlockingIOError):
            while True:
                listener.accept()[0].close()
        for sock in sockets:
            sock.close()
        count += A_TIME
    return count / taken
