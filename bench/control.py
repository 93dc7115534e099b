"""The control plane of one proxy at one size: what is measured, from outside of the proxy, in one round."""

from __future__ import annotations

import math
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from random import Random
from typing import Final

from bench import marks
from bench.changes import GANG_MARKS, PREEMPTED, READY, WAITING, Cluster
from bench.generations import Generations
from bench.listener import Commit, Listener, Seen, Silence
from bench.plan import LEAST, Plan
from bench.records import Teller
from bench.subjects import Running, Subject
from integration.probe import Probe

BETWEEN: Final = (0.003, 0.008)  # seconds between a commit and the next change
SETTLE: Final = 1.0
STILL: Final = 0.5  # seconds without any CPU: a large transaction is behind it
CONNECT: Final = 0.25  # seconds that a connection over loopback may take
_RESET: Final = struct.pack("ii", 1, 0)


class TooSlow(Exception):
    """figure: what could not be measured in time."""

    def __init__(self, figure: str) -> None:
        super().__init__(figure)
        self.figure = figure


class Control:
    """`config`: the proxy's configuration. `stop` ends what runs."""

    def __init__(
        self, subject: Subject, cluster: Cluster, plan: Plan, config: Path, log: Path, teller: Teller, seed: int
    ) -> None:
        self._subject, self._cluster, self._plan, self._teller = subject, cluster, plan, teller
        self._config, self._log, self._random = config, log, Random(seed)
        self._generations = Generations()
        self._running: Running | None = None
        self._listener: Listener | None = None
        self.during = ""

    def measure(self) -> None:
        """Raises TooSlow, Ended."""
        self._begin("start")
        seconds, commits, running = self._start("start_s", self._cluster.samples())
        self._teller.measured("start_s", seconds)
        self._teller.measured("start_commits", commits)
        self._settle()
        self._teller.measured("memory_mb", running.memory("VmRSS"))
        self._teller.measured("memory_peak_mb", running.memory("VmHWM"))
        self._rest(running)
        self._changes(running)
        self._teller.measured("memory_end_mb", running.memory("VmRSS"))
        self._restart()

    def stop(self) -> None:
        """May be called twice."""
        for each in (self._listener, self._running, self._generations):
            if each:
                each.stop()

    def tail(self) -> list[str]:
        return self._running.tail() if self._running else []

    def _begin(self, what: str) -> None:
        self.during = what
        self._teller.begins(what)

    def _start(self, figure: str, addresses: Collection[str]) -> tuple[float, int, Running]:
        """Until connections to all these get through. The seconds to the last commit before that, and how many there were."""
        self._generations.forget()
        self._running = running = Running(self._subject, self._config, self._log)
        deadline = running.started + self._plan.timeout
        at, commits, answered = running.started, 0, False
        while not answered:
            if time.monotonic() > deadline:
                raise TooSlow(figure)
            running.check()
            for found in self._generations.next(0.2):
                at, commits = found.at, commits + found.number
            answered = commits > 0 and all(map(answers, addresses))
        return at - running.started, commits, running

    def _settle(self) -> None:
        """Until it follows the API server."""
        self._cluster.api.wait_for_watches(self._plan.timeout, self._check)
        time.sleep(SETTLE)
        self._check()

    def _rest(self, running: Running) -> None:
        if self._teller.round:
            return
        self._begin("at rest")
        self._until_still(running)
        before, began = running.cpu(), time.monotonic()
        time.sleep(self._plan.rest)
        running.check()
        self._teller.measured("cpu_rest_percent", (running.cpu() - before) / (time.monotonic() - began) * 100)

    def _until_still(self, running: Running) -> None:
        """The new rules are used while the kernel still tells about a large transaction. Who never rests is not waited
        for."""
        deadline = time.monotonic() + self._plan.rest
        before = math.nan
        while (now := running.cpu()) != before and time.monotonic() < deadline:
            before = now
            time.sleep(STILL)

    def _changes(self, running: Running) -> None:
        self._listener = listener = Listener(self._cluster.api.sightings)
        cluster, plan = self._cluster, self._plan
        self._begin("one endpoint changes")
        cpu = running.cpu()
        sizes: list[float] = []
        step = 7919  # a prime: each slice in turn, near ones far from each other
        turns = (i * step % cluster.size.services for i in range(plan.changes))
        latencies = self._one_by_one("endpoint_ms", turns, self._change_endpoint, sizes)
        self._teller.measured("cpu_1000_s", (running.cpu() - cpu) / len(latencies) * 1000)
        self._teller.measured("endpoint_bytes", *sizes)
        self._begin("a new Service")
        added: list[int] = []
        self._one_by_one("service_ms", range(plan.services), lambda _: self._add_service(added), [])
        self._begin("a deleted Service")
        self._one_by_one("deleted_ms", added, self._delete_service, [])
        for number in added:
            cluster.delete_slice(number)
        self._begin("a gang of 512")
        usual = sorted(latencies)[len(latencies) // 2] / 1e3
        for _ in range(plan.bursts):
            listener.until_quiet(Seen(), _quiet(usual))
            self._burst("ready", READY, usual)
            self._burst("gone", PREEMPTED, usual)
            cluster.gang(WAITING)
        listener.stop()

    def _one_by_one(
        self, figure: str, turns: Iterable[int], change: Callable[[int], tuple[int, Commit]], sizes: list[float]
    ) -> list[float]:
        """Milliseconds of each, one change at a time; sizes: bytes of each commit. Ends early when the budget is spent."""
        latencies: list[float] = []
        deadline = time.monotonic() + self._plan.budget
        for turn in turns:
            if len(latencies) >= LEAST and time.monotonic() > deadline:
                break
            time.sleep(self._random.uniform(*BETWEEN))
            try:
                event, commit = change(turn)
            except Silence:
                self._check()
                raise TooSlow(figure) from None
            latencies.append((commit.at - event) / 1e6)
            sizes.append(commit.size)
        self._teller.measured(figure, *latencies)
        return latencies

    def _change_endpoint(self, number: int) -> tuple[int, Commit]:
        mark = self._cluster.change_endpoint(number)
        return self._wait([mark], lambda commit: mark in commit.added)

    def _add_service(self, added: list[int]) -> tuple[int, Commit]:
        number, ip, mark = self._cluster.add_service()
        added.append(number)
        return self._wait([ip, mark], lambda commit: mark in commit.added)

    def _delete_service(self, number: int) -> tuple[int, Commit]:
        ip = self._cluster.delete_service(number)
        return self._wait([ip], lambda commit: ip in commit.removed)

    def _wait(self, events: Collection[str], wanted: Callable[[Commit], bool]) -> tuple[int, Commit]:
        """When the last of these events was on the wire, and the first commit that is wanted."""
        assert self._listener
        seen = self._listener.wait(
            lambda seen: all(mark in seen.events for mark in events) and any(map(wanted, seen.commits)),
            self._plan.timeout,
        )
        return max(seen.events[mark] for mark in events), next(filter(wanted, seen.commits))

    def _burst(self, name: str, conditions: dict[str, bool], usual: float) -> None:
        """From the last event on the wire to the last commit that has to do with the gang; and how many there were."""
        assert self._listener
        missing = set(GANG_MARKS)

        def done(seen: Seen) -> bool:
            if not seen.events.keys() >= set(GANG_MARKS):
                return False
            if conditions is READY:
                return not missing.difference(*(commit.added for commit in seen.commits))
            if not missing.difference(*(commit.removed for commit in seen.commits)):
                return True  # also when a watch of ours is told later than the proxy that has done it already
            last = max(seen.events.values())
            return any(commit.mentions(marks.GANG) and commit.at > last for commit in seen.commits)

        self._cluster.gang(conditions)
        try:
            seen = self._listener.wait(done, self._plan.timeout)
        except Silence:
            self._check()
            raise TooSlow(f"{name}_ms") from None
        self._listener.until_quiet(seen, _quiet(usual))
        of_gang = {marks.GANG, *GANG_MARKS}
        commits = [commit for commit in seen.commits if of_gang & (commit.added | commit.removed)]
        self._teller.measured(f"{name}_ms", (commits[-1].at - max(seen.events.values())) / 1e6)
        self._teller.measured(f"{name}_commits", len(commits))

    def _restart(self) -> None:
        """Over what is there. First with one new Service to be known by, then with nothing to do."""
        self._begin("restart")
        self._stop_running()
        number, ip, _ = self._cluster.add_service()
        seconds, _, _ = self._start("restart_s", [ip])
        self._teller.measured("restart_s", seconds)
        self._settle()
        self._cluster.delete_service(number)
        self._cluster.delete_slice(number)
        self._settle()
        if self._teller.round:
            return
        self._begin("restart with nothing to do")
        probe = Probe([f"TCP {self._cluster.samples()[0]} 80"])
        try:
            self._stop_running()
            self._listener = Listener(self._cluster.api.sightings)
            self._running = Running(self._subject, self._config, self._log)
            self._settle()
            seen = self._listener.listen(seconds + SETTLE)
            self._change_endpoint(0)  # it does follow
        except Silence:
            raise TooSlow("restart_commits") from None
        finally:
            [outcome] = probe.stop()
        self._teller.measured("restart_commits", len(seen.commits))
        self._teller.measured("restart_things", sum(commit.things for commit in seen.commits))
        self._teller.measured("restart_failed", outcome.failed)
        self._teller.measured("restart_connections", outcome.attempts)

    def _stop_running(self) -> None:
        if self._running:
            self._running.stop()

    def _check(self) -> None:
        if self._running:
            self._running.check()


def _quiet(usual: float) -> float:
    """Seconds without a commit after which no more is to come of a change. usual: what one change takes."""
    return max(0.3, 3 * usual)


def answers(address: str) -> bool:
    """Whether port 80 can be connected to."""
    with socket.socket() as client:
        client.settimeout(CONNECT)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)  # no port stays in TIME_WAIT
        try:
            client.connect((address, 80))
        except OSError:
            return False
        return True
