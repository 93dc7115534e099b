"""The process that loads our layout and the peers' at one size, in namespaces of its own, and tells how long it took.

Ours goes through our own socket; what is timed is the plan, its bytes, and the acknowledged commit. The peers' are text that is
there already: what is timed is the program that reads it, from its start to its end.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from bench import records
from bench.cluster import FIRST_CLUSTER_IP, address
from bench.dataplane_peers import iptables, nftables
from bench.dataplane_rules import (
    IPTABLES_LEGACY,
    IPTABLES_NFT,
    NFTABLES,
    OPTIONS,
    SERVICE_CIDR,
    available,
    service_ports,
)
from bench.dataplane_services import Port, Size, pods
from bench.marks import FIRST_POD
from bench.peer_text import IptablesChanges, nftables_change
from bench.plan import LEAST, Plan, title
from bench.records import Step, Teller
from bench.subjects import OURS
from rules.diff import Programmed
from rules.layout import LAYOUTS
from rules.objects import Family
from rules.tables import create
from tests.netns import Namespace

PART: Final = "layouts"
NAMES: Final = (OURS, NFTABLES, IPTABLES_NFT, IPTABLES_LEGACY)
Change = Callable[[Port], float]


class Refused(Exception):
    """A program did not take its text; it says why."""


class Loaded:
    """seconds: of the first load. change: makes one change and returns its seconds."""

    def __init__(self, seconds: float, change: Change) -> None:
        self.seconds, self.change = seconds, change


def plain_ports(size: Size) -> list[Port]:
    """The same Services as `cluster` has: a clusterIP and one TCP port each."""
    return [
        Port(f"default/service-{i}:http", "tcp", address(FIRST_CLUSTER_IP + i), pods(i, size.endpoints))
        for i in range(size.services)
    ]


def ours(namespace: Namespace, ports: Sequence[Port], timeout: float) -> Loaded:
    wanted = {port.key: port for port in service_ports(ports)}
    programmed = Programmed(Family.IPV4)
    gc.collect()
    started = time.perf_counter()
    plan = programmed.plan(wanted, frozenset())
    namespace.kernel.commit([*create(LAYOUTS[Family.IPV4], OPTIONS, [SERVICE_CIDR]), *plan.operations])
    seconds = time.perf_counter() - started
    programmed.accept(plan)

    def change(port: Port) -> float:
        [wanted] = service_ports([port])
        started = time.perf_counter()
        plan = programmed.plan({wanted.key: wanted})
        namespace.kernel.commit(plan.operations)
        programmed.accept(plan)
        return time.perf_counter() - started

    return Loaded(seconds, change)


def kube_proxy_nftables(namespace: Namespace, ports: Sequence[Port], timeout: float) -> Loaded:
    def run(text: str) -> float:
        return _timed(namespace, ["nft", "-f", "-"], text, timeout)

    return Loaded(run(nftables(ports)), lambda port: run(nftables_change(port)))


def kube_proxy_iptables(program: str) -> Callable[[Namespace, Sequence[Port], float], Loaded]:
    def load(namespace: Namespace, ports: Sequence[Port], timeout: float) -> Loaded:
        text = iptables(ports)
        changes = IptablesChanges(text)
        seconds = _timed(namespace, [f"{program}-restore"], text, timeout)
        partly = [f"{program}-restore", "--noflush"]
        return Loaded(seconds, lambda port: _timed(namespace, partly, changes.change(port), timeout))

    return load


LOADERS: Final = {
    OURS: ours,
    NFTABLES: kube_proxy_nftables,
    IPTABLES_NFT: kube_proxy_iptables("iptables-nft"),
    IPTABLES_LEGACY: kube_proxy_iptables("iptables-legacy"),
}


def _timed(namespace: Namespace, argv: Sequence[str], text: str, timeout: float) -> float:
    """Raises TimeoutExpired, Refused."""
    path = f"/proc/{os.getpid()}/fd/{namespace.descriptor}"
    data = text.encode()
    started = time.perf_counter()
    done = subprocess.run(["nsenter", f"--net={path}", *argv], input=data, capture_output=True, timeout=timeout)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise Refused(f"{' '.join(argv)}: {done.stderr.decode(errors='replace').strip()[:500]}")
    return seconds


def measure(size: Size, plan: Plan) -> None:
    names = [name for name in NAMES if available(name)]
    ports = plain_ports(size)
    out: set[str] = set()
    for number in range(plan.layout_rounds):
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            if name not in out:
                teller = Teller(PART, str(size), name, number, records.tell)
                teller.begins("loading the layout")
                if not _measure_one(name, ports, plan, teller):
                    out.add(name)
            records.tell(Step(f"{title(size)}: {name} loaded", done=1))


def _measure_one(name: str, ports: Sequence[Port], plan: Plan, teller: Teller) -> bool:
    """Whether it is quick enough for another round."""
    namespace = Namespace()
    figure = "load_s"
    try:
        loaded = LOADERS[name](namespace, ports, plan.timeout)
        teller.measured(figure, loaded.seconds)
        figure = "change_ms"
        changes: list[float] = []
        deadline = time.monotonic() + plan.budget
        for i in range(plan.services):
            if len(changes) >= LEAST and time.monotonic() > deadline:
                break
            port = ports[i * 7919 % len(ports)]
            port = replace(port, pods=(address(FIRST_POD + i), *port.pods[1:]))
            changes.append(loaded.change(port) * 1e3)
        teller.measured(figure, *changes)
    except subprocess.TimeoutExpired:
        teller.too_slow(figure, plan.timeout)
        return False
    except (Refused, OSError) as error:
        teller.failed("loading" if figure == "load_s" else "changing one endpoint", str(error))
        return False
    finally:
        namespace.close()
    return loaded.seconds <= plan.layout_repeat


def main(task: dict[str, Any]) -> None:
    measure(Size.of(task["size"]), Plan(**task["plan"]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
