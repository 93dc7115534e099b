"""Whether an agent stays as it is when everything changes for long: python -m bench.soak [--minutes 30] [--json]

An API server's stand-in with Services of every kind, and an agent in a process of its own, in a network namespace of
theirs. So many random changes a second; every few seconds the agent's memory and descriptors, every minute an audit: what
the kernel holds (a dump) against what the objects want, found out afresh, and how many chains and sets there are. At the
end a verdict: memory within 5 % (the last third of the time against the first one, after a fifth to warm up), the same
descriptors, chains and sets, and no audit that found anything. Exit code 1 if not. Needs root.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from integration import namespaces, privileges
from integration.agent import Agent
from integration.apiserver import FakeApi
from integration.cluster import SERVICE_CIDRS, endpoint_slice, node, port, service
from integration.faults.audit import differences
from integration.namespaces import Namespace
from integration.topology import CHECKOUT
from proxy.model import KINDS
from proxy.services import SCHEDULER_ANNOTATION
from rules.dump import TableState
from rules.errors import KernelUnreachable
from rules.kernel import Kernel
from rules.layout import LAYOUTS
from rules.objects import Family

NODE: Final = "node0"
WARM_UP: Final = 0.2
"""Of the time: of half an hour, until the agent's own first audit is over, which needs memory once."""
FLAT: Final = 0.05
MOST_ENDPOINTS: Final = 16
CATCH_UP: Final = 10.0
"""Seconds within which, when changes pause, the kernel must hold what the objects say."""
SPECIAL_KINDS: Final = 10
"""One Service in so many is of each special kind; the others are plain ones."""
TROUBLES: Final = ("unexpected_failure", "transaction_refused", "tables_mended")


@dataclass(frozen=True)
class Sample:
    """seconds: since the beginning. memory: MB, resident. descriptors: open ones."""

    seconds: float
    memory: float
    descriptors: int


@dataclass(frozen=True)
class Look:
    """An audit. differences: a line each, as they were when the time to catch up was over."""

    seconds: float
    chains: int
    sets: int
    elements: int
    differences: list[str]


@dataclass
class Outcome:
    services: int
    seconds: float = 0.0
    changes: int = 0
    samples: list[Sample] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    cpu: float = 0.0
    """Of the agent, in percent of a core."""

    def thirds(self) -> tuple[list[Sample], list[Sample]]:
        """The first third of the samples after the warm-up, and the last one."""
        warm = [sample for sample in self.samples if sample.seconds >= self.seconds * WARM_UP]
        third = max(1, len(warm) // 3)
        return warm[:third], warm[-third:]

    def growth(self) -> float:
        """Of the memory, as a share."""
        first, last = (statistics.fmean(sample.memory for sample in part) for part in self.thirds())
        return last / first - 1

    def faults(self) -> list[str]:
        """Why this is no good; none: all is well."""
        found = [f"audit at {look.seconds:.0f} s: {line}" for look in self.looks for line in look.differences[:5]]
        if abs(self.growth()) > FLAT:
            found.append(f"memory changed by {self.growth():+.1%}")
        # Connections come and go; what stays is what there is at least.
        before, after = (min(sample.descriptors for sample in part) for part in self.thirds())
        if after > before:
            found.append(f"descriptors: {before} at first, {after} in the end")
        first, last = self.looks[0], self.looks[-1]
        if (first.chains, first.sets) != (last.chains, last.sets):
            found.append(
                f"chains {first.chains} and sets {first.sets} at first, {last.chains} and {last.sets} in the end"
            )
        return found + self.troubles

    def report(self) -> str:
        (first, last), look = self.thirds(), self.looks[-1]
        memory = [statistics.fmean(sample.memory for sample in part) for part in (first, last)]
        peak = max(sample.memory for sample in self.samples)
        lines = [
            (
                f"{self.services:,} Services, {self.seconds:.0f} s, {self.changes:,} changes "
                f"({self.changes / self.seconds:.0f} a second), CPU {self.cpu:.1f} % of a core"
            ),
            (
                f"memory {memory[0]:.1f} MB in the first third, {memory[1]:.1f} in the last ({self.growth():+.1%}); "
                f"at most {peak:.1f}"
            ),
            (
                f"descriptors {_range(first)}, then {_range(last)}; chains {look.chains}, sets {look.sets}, "
                f"elements {look.elements:,}"
            ),
            f"{len(self.looks)} audits, {sum(bool(look.differences) for look in self.looks)} of them found differences",
        ]
        faults = self.faults()
        return "\n".join(
            [*lines, *(f"NOT AS IT SHOULD BE: {fault}" for fault in faults), *([] if faults else ["all is well"])]
        )


def _range(samples: Sequence[Sample]) -> str:
    """How many descriptors there were."""
    least, most = (each(sample.descriptors for sample in samples) for each in (min, max))
    return str(least) if least == most else f"{least} to {most}"


class Cluster:
    """Services of every kind, each of one kind for good, so that what they need at most is known from the start."""

    def __init__(self, api: FakeApi, services: int, rand: Random) -> None:
        self._api, self._services, self._rand = api, services, rand
        self._pods = itertools.count()
        self._gone: set[int] = set()
        api.put_all([dict(SERVICE_CIDRS), dict(node({}))])
        api.put_all(obj for number in range(services) for obj in (self._service(number), self._slice(number, 4)))

    def change(self) -> None:
        """One: mostly endpoints that come and go, sometimes a Service that goes, or comes back."""
        number = self._rand.randrange(self._services)
        what = self._rand.random()
        if number in self._gone:
            self._gone.remove(number)
            self._api.put(self._service(number))
        elif what < 0.1:
            self._gone.add(number)
            self._api.delete("Service", "default", f"s{number}")
        else:
            self._api.put(self._slice(number, self._rand.choice([0, 1, 2, 3, 4, 4, 4, 5, 8, MOST_ENDPOINTS])))

    def visit_all_bands(self) -> None:
        """One Service of each kind with every number of endpoints there will be: what is made for that, stays."""
        for size in range(MOST_ENDPOINTS + 1):
            self._api.put_all(self._slice(number, size) for number in range(min(2 * SPECIAL_KINDS, self._services)))
            time.sleep(0.05)

    def _slice(self, number: int, endpoints: int) -> dict[str, Any]:
        first = next(self._pods) % (1 << 20)
        pods = {
            ".".join(map(str, (0x0B000000 + (first << 4) + i).to_bytes(4))): NODE if i % 2 else "node1"
            for i in range(endpoints)
        }
        to = [port(kind.lower(), 8080, kind) for kind in _protocols(number)]
        return dict(endpoint_slice(f"s{number}", f"s{number}", pods, *to))

    def _service(self, number: int) -> dict[str, Any]:
        spec: dict[str, Any] = {}
        annotations: dict[str, str] = {}
        ports = [dict(port(kind.lower(), 80, kind)) for kind in _protocols(number)]
        kind = number % SPECIAL_KINDS
        if kind == 1:
            spec = {"sessionAffinity": "ClientIP"}
        elif kind in (2, 3):
            spec = {"type": "NodePort", "externalTrafficPolicy": "Local" if kind == 3 else "Cluster"}
            for index, each in enumerate(ports):
                each["nodePort"] = 30000 + number // SPECIAL_KINDS * 2 % 2700 + index if number < 13000 else 0
        elif kind == 4:
            annotations = {SCHEDULER_ANNOTATION: "rr"}
        elif kind == 5:
            annotations = {SCHEDULER_ANNOTATION: "sh"}
        elif kind == 6:
            spec = {"externalIPs": [f"192.0.{number >> 8 & 255}.{number & 255}"]}
        made = dict(
            service(f"s{number}", [f"10.{100 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"], *ports, **spec)
        )
        return made | {"metadata": {**made["metadata"], "annotations": annotations}}


def _protocols(number: int) -> tuple[str, ...]:
    return ("TCP", "UDP") if number % SPECIAL_KINDS == 7 else ("TCP",)


class Soak:
    """In the namespace of the calling thread; what runs is stopped by `ends`."""

    def __init__(self, namespace: Namespace, directory: Path, services: int, seed: int, ends: ExitStack) -> None:
        self._api = FakeApi()
        self._cluster = Cluster(self._api, services, Random(seed))
        self._api.compact()
        ends.enter_context(self._api)
        self._kernel = Kernel()
        ends.callback(self._kernel.close)
        kubeconfig = self._api.kubeconfig(directory / "kubeconfig")
        argv = [sys.executable, "-m", "proxy", "run", "--kubeconfig", kubeconfig, "--node", NODE]
        self._agent = Agent(namespace, argv, CHECKOUT)
        ends.callback(self._agent.stop)
        self._agent.wait("programmed", timeout=120)
        self._cluster.visit_all_bands()
        self.outcome = Outcome(services)

    def run(self, seconds: float, rate: float, sample_every: float, look_every: float) -> Outcome:
        began = due = sample = time.monotonic()
        cpu = self._cpu()
        look = began + min(look_every, seconds * WARM_UP)
        while (now := time.monotonic()) < began + seconds:
            if now >= sample:
                self._sample(now - began)
                sample += sample_every
            if now >= look:
                self._look(now - began)
                look = now + look_every
                due = time.monotonic()
            if now >= due:
                self._cluster.change()
                self.outcome.changes += 1
                due = max(due + 1 / rate, now - 1)  # what a slow moment held up is made up for, but no more than that
            time.sleep(max(0.0, min(due, sample, look) - time.monotonic()))
        self.outcome.seconds = time.monotonic() - began
        self._look(self.outcome.seconds)
        self.outcome.cpu = (self._cpu() - cpu) / self.outcome.seconds * 100
        self.outcome.troubles = [
            line.plain() for line in self._agent.log() if not line.event or line.event in TROUBLES
        ][:10]
        return self.outcome

    def _sample(self, moment: float) -> None:
        self._agent.check()
        process = Path(f"/proc/{self._agent.process.pid}")
        status = process.joinpath("status").read_text()
        memory = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024
        self.outcome.samples.append(Sample(moment, memory, len(list(process.joinpath("fd").iterdir()))))

    def _look(self, moment: float) -> None:
        """While nothing changes. Then the history that no watch needs any more is forgotten."""
        deadline = time.monotonic() + CATCH_UP
        objects = [obj for kind in KINDS for obj in self._api.objects(kind)]
        while True:
            tables = self._tables()
            found = differences(tables, objects, NODE) if tables else ["the tables cannot be read"]
            if not found or time.monotonic() > deadline:
                break
        sets = [set_ for table in tables.values() for set_ in table.sets.values()]
        chains = sum(len(table.chains) for table in tables.values())
        elements = sum(len(set_.elements) for set_ in sets)
        self.outcome.looks.append(Look(moment, chains, len(sets), elements, found))
        print(f"{moment:6.0f} s: {self.outcome.samples[-1]}, {len(found)} differences", file=sys.stderr, flush=True)
        self._api.compact()

    def _tables(self) -> Mapping[Family, TableState]:
        try:
            found = {family: self._kernel.dump(layout.table) for family, layout in LAYOUTS.items()}
        except KernelUnreachable:
            return {}
        return {family: table for family, table in found.items() if table}

    def _cpu(self) -> float:
        """Seconds so far, the user's and the system's."""
        fields = Path(f"/proc/{self._agent.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def soak(
    seconds: float, services: int, rate: float, seed: int = 0, sample_every: float = 5.0, look_every: float = 60.0
) -> Outcome:
    """Needs root. Raises AgentEnded if the agent ends."""
    namespace = Namespace(f"{namespaces.PREFIX}{os.getpid()}-0-soak")
    namespaces.create([namespace])
    try:
        with namespace.entered(), tempfile.TemporaryDirectory() as directory, ExitStack() as ends:
            return Soak(namespace, Path(directory), services, seed, ends).run(seconds, rate, sample_every, look_every)
    finally:
        namespaces.delete([namespace.name])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="%(default)g")
    parser.add_argument("--services", type=int, default=5000, help="%(default)s")
    parser.add_argument("--rate", type=float, default=200.0, help="changes a second (%(default)g)")
    parser.add_argument("--seed", type=int, default=0, help="%(default)s")
    parser.add_argument("--json", action="store_true", help="all that was measured, as JSON")
    options = parser.parse_args(arguments)
    privileges.acquire()
    outcome = soak(options.minutes * 60, options.services, options.rate, options.seed)
    print(json.dumps(asdict(outcome) | {"faults": outcome.faults()}, indent=2) if options.json else outcome.report())
    return 1 if outcome.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
