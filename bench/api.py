"""How long the way from the API server to the kernel takes: python -m bench.api [--json] [SERVICESxENDPOINTS …]

For each size, in a network namespace of its own: an API server's stand-in in one process, the agent in another, what is
measured in more. Seconds from the start of the agent's process to its first commit, which has all rules; the same for a
restart over rules that are there, while a probe connects through a Service every millisecond; memory; CPU when nothing
changes; milliseconds from an EndpointSlice's event on the wire to the kernel's commit, one change at a time; bursts of
changes, from the last event on the wire to the last commit. Needs root. Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import api_objects as objects
from bench.api_agent import Agent, Generations
from bench.api_listener import MARKED, Listener
from bench.cluster import FIRST_CLUSTER_IP, FIRST_POD_IP, address
from integration.apiserver import FakeApi
from integration.probe import Probe
from rules.kernel import Kernel
from rules.layout import LAYOUTS
from rules.tables import remove

SIZES = ("1000x10", "10000x10", "44000x2")
STARTS = 3
CHANGES = 1000
BETWEEN = (0.003, 0.008)  # seconds between two changes
BURSTS, BURST = 5, 1000
REST = 20.0
SETTLE = 2.0

Result = dict[str, Any]


class Bench:
    """One size, in this process's namespace. What runs is stopped by `ends`."""

    def __init__(self, size: str, directory: Path, ends: contextlib.ExitStack) -> None:
        self.services, self.endpoints = map(int, size.split("x"))
        self.directory, self.ends = directory, ends
        self.generations = Generations()
        self.kernel = Kernel()
        self.api = FakeApi()
        for obj in objects.objects(self.services, self.endpoints):
            self.api.put(obj)
        self.api.compact()
        self.ends.enter_context(self.api)
        self.kubeconfig = Path(self.api.kubeconfig(directory / "kubeconfig"))
        self._marks = 0

    def measure(self) -> Result:
        result: Result = {"services": self.services, "endpoints": self.endpoints}
        agent, seconds = self.start()
        starts = [seconds]
        self.settle()
        for _ in range(STARTS - 1):
            agent.stop()
            self.forget()
            agent, seconds = self.start()
            starts.append(seconds)
            self.settle()
        result |= {"memory_peak_start_mb": agent.memory("VmHWM"), "memory_start_mb": agent.memory("VmRSS")}
        result["start_s"] = starts
        agent, result["restart"] = self.restart(agent)
        before, began = agent.cpu(), time.monotonic()
        time.sleep(REST)
        result["cpu_at_rest_percent"] = (agent.cpu() - before) / (time.monotonic() - began) * 100
        listener = Listener(self.api.port)
        self.ends.callback(listener.stop)
        result["event_to_commit_ms"] = self.changes(listener)
        result["bursts"] = [self.burst(listener) for _ in range(BURSTS)]
        result |= {"memory_peak_mb": agent.memory("VmHWM"), "memory_end_mb": agent.memory("VmRSS")}
        return result

    def start(self) -> tuple[Agent, float]:
        """An agent that has made its first commit, and the seconds that this took."""
        before = self.generations.current()
        agent = Agent(self.kubeconfig, self.directory / "log")
        self.ends.callback(agent.stop)
        return agent, agent.committed(self.generations, before)

    def forget(self) -> None:
        """Remove what agents have programmed."""
        self.kernel.commit([operation for layout in LAYOUTS.values() for operation in remove(layout)])

    def settle(self) -> None:
        self.api.wait_for(self.api.watching)
        time.sleep(SETTLE)

    def restart(self, agent: Agent) -> tuple[Agent, Result]:
        """Several times, under a probe. What changes while no agent is there is what the next one's commit shows."""
        probe = Probe([f"TCP {address(FIRST_CLUSTER_IP + 7)} 80"])
        times: list[float] = []
        for _ in range(STARTS):
            agent.stop()
            self.api.put(self.changed(8 + len(times))[0])
            agent, seconds = self.start()
            times.append(seconds)
            self.settle()
        [seen] = probe.stop()
        return agent, {
            "seconds": times,
            "memory_mb": agent.memory("VmRSS"),
            "memory_peak_mb": agent.memory("VmHWM"),
            "connections": seen.attempts,
            "failures": seen.failures,
            "resent": seen.resent,
            "longest_ms": seen.longest,
            "widest_gap_ms": seen.widest_gap,
        }

    def changes(self, listener: Listener) -> Result:
        """One endpoint of a slice replaced, again and again; each slice in turn, so that no change hides another."""
        rand = random.Random(0)
        marks = []
        due = time.monotonic()
        for i in range(CHANGES):
            slice_, mark = self.changed(i * 7919 % self.services)
            marks.append(mark)
            due += rand.uniform(*BETWEEN)
            time.sleep(max(0.0, due - time.monotonic()))
            self.api.put(slice_)
        wire, committed, commits = listener.collect(marks)
        latencies = sorted((committed[mark] - wire[mark]) / 1e6 for mark in marks)
        percentile = statistics.quantiles(latencies, n=100)
        return {
            "changes": CHANGES,
            "commits": len(commits),
            "p50": percentile[49],
            "p90": percentile[89],
            "p99": percentile[98],
            "max": latencies[-1],
        }

    def burst(self, listener: Listener) -> Result:
        """Many slices changed at once."""
        time.sleep(0.5)
        changed = [self.changed(number % self.services) for number in range(BURST)]
        for slice_, _ in changed:
            self.api.put(slice_)
        marks = [mark for _, mark in changed]
        wire, committed, commits = listener.collect(marks)
        events, done = [wire[mark] for mark in marks], [committed[mark] for mark in marks]
        return {
            "events": BURST,
            "events_took_ms": (max(events) - min(events)) / 1e6,
            "last_event_to_last_commit_ms": (max(done) - max(events)) / 1e6,
            "commits": len(commits),
        }

    def changed(self, number: int) -> tuple[objects.Object, str]:
        """The slice of Service `number` with one endpoint replaced by a new one, and the new one's address."""
        self._marks += 1
        mark = (MARKED << 24) + self._marks
        pods = objects.pods_of(number, self.endpoints)
        pods[self._marks % self.endpoints] = mark - FIRST_POD_IP
        return objects.endpoint_slice(number, pods), address(mark)


def measure(size: str) -> Result:
    """One size, in this process and namespace. All pods' addresses are this machine's, and one listener answers."""
    commands = ["link set lo up", *(f"route add local {net} dev lo" for net in ("10.96.0.0/12", "11.0.0.0/8"))]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)
    pods = socket.create_server(("", 8080), backlog=4096)
    threading.Thread(target=accept, args=[pods], daemon=True).start()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as ends:
        return Bench(size, Path(directory), ends).measure()


def accept(listener: socket.socket) -> None:
    while True:
        listener.accept()[0].close()


def table(results: Sequence[Result]) -> str:
    """For people: a row for each measurement, a column for each size."""

    def spread(values: Sequence[float], form: str) -> str:
        low, middle, high = (format(f(values), form) for f in (min, statistics.median, max))
        return f"{middle} ({low}–{high})"

    rows: list[tuple[str, list[str]]] = [("", [f"{r['services']:,} × {r['endpoints']}" for r in results])]

    def row(name: str, *cells: str) -> None:
        rows.append((name, list(cells)))

    row("start to all rules, s", *(spread(r["start_s"], ".2f") for r in results))
    row("restart to all rules, s", *(spread(r["restart"]["seconds"], ".2f") for r in results))
    row(
        "connections meanwhile, failed, longest ms",
        *(
            f"{r['restart']['connections']:,}, {sum(r['restart']['failures'].values()) + r['restart']['resent']}, "
            f"{r['restart']['longest_ms']:.1f}"
            for r in results
        ),
    )
    for name in ("p50", "p90", "p99", "max"):
        row(f"event to commit, {name}, ms", *(f"{r['event_to_commit_ms'][name]:.2f}" for r in results))
    bursts = [[b["last_event_to_last_commit_ms"] for b in r["bursts"]] for r in results]
    row(f"burst of {BURST:,}: last event to last commit, ms", *(spread(values, ".0f") for values in bursts))
    row("commits a burst", *(spread([b["commits"] for b in r["bursts"]], ".0f") for r in results))
    row(
        "memory after start, peak, MB",
        *(f"{r['memory_start_mb']:.0f}, {r['memory_peak_start_mb']:.0f}" for r in results),
    )
    row(
        "memory after restart, peak, MB",
        *(f"{r['restart']['memory_mb']:.0f}, {r['restart']['memory_peak_mb']:.0f}" for r in results),
    )
    row("memory after bursts, peak, MB", *(f"{r['memory_end_mb']:.0f}, {r['memory_peak_mb']:.0f}" for r in results))
    row("CPU at rest, % of a core", *(f"{r['cpu_at_rest_percent']:.2f}" for r in results))
    widths = [max(len(cells[i]) for _, cells in rows) for i in range(len(results))]
    first = max(len(name) for name, _ in rows)
    return "\n".join(
        f"{name:<{first}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        for name, cells in rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.api", description="Measure from the API server to the kernel."
    )
    parser.add_argument("sizes", nargs="*", metavar="SERVICESxENDPOINTS", default=list(SIZES))
    parser.add_argument("--json", action="store_true", help="all that was measured, as JSON")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        json.dump(measure(options.sizes[0]), sys.stdout)
        return
    results = []
    for size in options.sizes:
        argv = ["unshare", "-n", sys.executable, "-m", "bench.api", "--one", size]
        results.append(json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout))
    print(json.dumps(results, indent=2) if options.json else table(results))


if __name__ == "__main__":
    main()
