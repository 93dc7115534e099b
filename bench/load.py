"""How long the data path takes: python -m bench.load [SERVICESxENDPOINTS …]

For each size, in a network namespace and a process of its own: the first load (decoded objects in, transaction
acknowledged), then single changes among everything, event to acknowledged commit: an endpoint replaced, an endpoint
added and removed (the set that the service port is in changes), a Service added and removed. Memory is the process's
peak. Needs root.
"""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import structlog

from bench import arguments, cluster
from proxy.agent import Agent
from proxy.events import Delete, Event, Inbox, Put, Replace
from proxy.model import ENDPOINT_SLICE, NODE, SERVICE, SERVICE_CIDR
from proxy.state import State
from rules.kernel import Kernel

SIZES = ("10000x10", "44000x2", "5000x50")
ROUNDS = 200


def memory(what: str) -> float:
    """VmHWM (peak) or VmRSS (now), in MB."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(what)) / 1024


def measure(size: str) -> None:
    """One size, in this process and namespace."""
    count, endpoints = map(int, size.split("x"))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    agent = Agent(State("node-1"), Kernel(), Inbox())
    base = memory("VmRSS")
    events: list[Event] = [
        Replace(SERVICE, list(cluster.services(count))),
        Replace(ENDPOINT_SLICE, list(cluster.slices(count, endpoints))),
        Replace(NODE, []),
        Replace(SERVICE_CIDR, []),
    ]
    gc.collect()
    started = time.perf_counter()
    agent.handle(events)
    load = time.perf_counter() - started
    del events
    peak, now = memory("VmHWM"), memory("VmRSS")
    print(f"{size}: first load {load:.2f} s; memory: peak {peak:.0f} MB, then {now:.0f} MB ({base:.0f} MB before)")

    def change(name: str, make: Callable[[int], Event]) -> None:
        times = []
        for i in range(ROUNDS):
            event = make(i)
            started = time.perf_counter()
            agent.handle([event])
            times.append((time.perf_counter() - started) * 1e3)
        times.sort()
        print(f"  {name:<22} median {statistics.median(times):7.3f} ms   p99 {times[int(ROUNDS * 0.99)]:7.3f} ms")

    step = max(1, count // ROUNDS)

    def pods(i: int, *, change: int = 0, more: int = 0) -> Event:
        first = i * step * endpoints
        numbers = list(range(first, first + endpoints + more))
        if change:
            numbers[endpoints // 2] = 0x00F00000 + i
        return Put(cluster.endpoint_slice(i * step, numbers))

    change("endpoint replaced", lambda i: pods(i, change=1))
    change("endpoint added", lambda i: pods(i, more=1))
    change("endpoint removed", lambda i: pods(i))
    change("Service added", lambda i: Put(cluster.service(count + i)))
    change("Service removed", lambda i: Delete(SERVICE, "default", f"service-{count + i}"))


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        measure(sys.argv[2])
        return
    for size in arguments.given(__doc__, "size", arguments.size, [*map(arguments.size, SIZES)]):
        subprocess.run(["unshare", "-n", sys.executable, "-m", "bench.load", "--one", str(size)], check=True)


if __name__ == "__main__":
    main()
