"""How long it takes to mend tables that somebody has flushed, and where the time goes:
python -m bench.repair [--rounds 5] [SERVICESxENDPOINTS …]

The agent's loop without an API server, in a network namespace and a process of its own, with tables that have no owner;
`nft flush ruleset` from another process; from that commit to the one after which all is there again. Of it: until the
agent knows; telling what the tables held; packing messages; the kernel's own work, told apart by doing the same
transaction with the rules alone. Needs root.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from bench import cluster
from integration.faults.commits import Commits
from proxy.agent import Agent
from proxy.events import Inbox, Replace
from proxy.model import ENDPOINT_SLICE, NODE, SERVICE, SERVICE_CIDR
from proxy.state import State
from proxy.table_watch import TableWatch
from rules import wire
from rules.kernel import Kernel
from rules.layout import LAYOUTS, Options
from rules.tables import replace
from rules.transaction import Operation

SIZES: Final = ("1000x10", "10000x1", "10000x2", "10000x10")
PATIENCE: Final = 600.0
PHASES: Final = ("in all", "until known", "contents and rest", "pack", "kernel")


class Stopwatch:
    """Sums up, by name, the milliseconds in calls of functions that it stands before."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.spent[name] = self.spent.get(name, 0.0) + (time.perf_counter() - started) * 1e3

        return timed


def measure(size: str, rounds: int) -> None:
    """One size, in this process and namespace."""
    count, endpoints = map(int, size.split("x"))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    stopwatch = Stopwatch()
    kernel, inbox = Kernel(), Inbox()
    kernel.commit = stopwatch.of("commit", kernel.commit)  # type: ignore[method-assign]
    agent = Agent(State("node-1"), kernel, inbox)
    agent.handle(
        [
            Replace(SERVICE, list(cluster.services(count))),
            Replace(ENDPOINT_SLICE, list(cluster.slices(count, endpoints))),
            Replace(NODE, []),
            Replace(SERVICE_CIDR, []),
        ]
    )
    wire.encode = stopwatch.of("pack", wire.encode)
    commits = Commits()
    watch = TableWatch(inbox, kernel.port)
    watch.start()
    seen: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for _ in range(rounds):
        stopwatch.spent.clear()
        before = commits.generation()
        subprocess.run(["nft", "flush", "ruleset"], check=True)
        began = time.monotonic()
        while not agent.repairs or commits.generation() < before + 2:
            events = inbox.take(PATIENCE)
            began = time.monotonic() if not stopwatch.spent else began
            agent.handle(events)
        commits.heard(before + 2)
        flushed, mended = (c.moment for c in commits.all if before < c.generation <= before + 2)
        spent = stopwatch.spent
        whole = (mended - flushed) * 1e3
        known = max(0.0, began - flushed) * 1e3
        kernel_time = spent["commit"] - spent["pack"]
        rest = whole - known - spent["commit"]
        for phase, value in zip(PHASES, (whole, known, rest, spent["pack"], kernel_time), strict=True):
            seen[phase].append(value)
        while inbox.take(0.3):  # what the watch has to say of it
            pass
    cells = " | ".join(f"{statistics.median(values):.0f}" for values in seen.values())
    print(f"| {count:,} × {endpoints} | {cells} | {rules_alone(kernel, stopwatch):.0f} |", flush=True)
    watch.stop()
    commits.close()


def rules_alone(kernel: Kernel, stopwatch: Stopwatch) -> float:
    """Milliseconds that the kernel takes for both tables without an element: the best of three."""
    times = []
    operations: list[Operation] = [o for layout in LAYOUTS.values() for o in replace(layout, Options(), ())]
    for _ in range(3):
        stopwatch.spent.clear()
        kernel.commit(operations)
        times.append(stopwatch.spent["commit"] - stopwatch.spent["pack"])
    return min(times)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.repair", description="Measure how long a mend takes.")
    parser.add_argument("sizes", nargs="*", metavar="SERVICESxENDPOINTS", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5, help="%(default)s")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        measure(options.sizes[0], options.rounds)
        return
    print(f"| milliseconds, medians of {options.rounds} | {' | '.join(PHASES)} | of it: rules alone |")
    print(f"| --- {'| --- ' * len(PHASES)}| --- |", flush=True)
    for size in options.sizes:
        argv = ["unshare", "-n", sys.executable, "-m", "bench.repair", "--one", "--rounds", str(options.rounds), size]
        subprocess.run(argv, check=True)


if __name__ == "__main__":
    main()
