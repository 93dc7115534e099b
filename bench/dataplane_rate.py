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
from bench.dataplane_services import Places
from bench.dataplane_world import World, clients

A_TIME = 20
PATIENCE = 60.0

Ways = Mapping[str, tuple[World, Places]]


def measure(ways: Ways, base: str, rounds: int, seconds: float) -> dict[str, Any]:
    """From the pod to one of these places each, by way: connections a second of all processes together, and the ratio to `base`'s.
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
        way: {"connections/s": round(statistics.median(rate)), "ratio": ratio(rate, rates[base])}
        for way, rate in rates.items()
    }


def _work(core: int, ways: Ways, rounds: int, seconds: float, barrier: Barrier, results: Connection) -> None:
    listeners = {way: world.listener(shared=True) for way, (world, _) in ways.items()}
    for listener in listeners.values():
        listener.setblocking(False)
    found: dict[str, list[float]] = {way: [] for way in ways}
    names = list(ways)  # the same order in all processes
    with undisturbed(core):
        for number in range(rounds + 1):
            turn = number % len(ways)
            for way in (*names[turn:], *names[:turn]):
                world, places = ways[way]
                barrier.wait(PATIENCE)
                rate = _connect(world, places, listeners[way], seconds)
                if number:
                    found[way].append(rate)
    results.send(found)


def _connect(world: World, places: Places, listener: socket.socket, seconds: float) -> float:
    count, started = 0, perf_counter()
    while (taken := perf_counter() - started) < seconds:
        sockets = clients(world.pod, A_TIME)
        for sock in sockets:
            sock.connect(random.choice(places))
        with suppress(BlockingIOError):
            while True:
                listener.accept()[0].close()
        for sock in sockets:
            sock.close()
        count += A_TIME
    return count / taken
