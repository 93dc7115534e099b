"""The data plane: what rules cost the packets: python -m bench.dataplane [--quick] [SERVICESxENDPOINTS …]

At each size, our table, kube-proxy's layouts, and tables that show what is the kernel's own cost, each on a node of its
own, all at the same time; they take turns, a few connections each (`dataplane_connect` has how). A "difference" is to a
connection to an endpoint's address on the same node at the same time. Needs root and nft; better on an idle machine.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from bench import affinity, arguments, dataplane_flow, dataplane_rate, dataplane_report
from bench.dataplane_connect import Road, difference, each, tcp, time_of, udp, undisturbed
from bench.dataplane_rules import (
    CONNTRACK,
    DESCRIPTIONS,
    HERE,
    HOOKS,
    IPTABLES_LEGACY,
    IPTABLES_NFT,
    LOADERS,
    NFTABLES,
    ONE_RULE,
    OURS,
    available,
)
from bench.dataplane_services import Places, Port, Size, endpoints, ports, roads
from bench.dataplane_world import Way, World

SIZES = ("100x10", "1000x10", "5000x10", "10000x10", "44000x2", "5000x50")
QUICK_SIZES = ("1000x10",)
MAIN = "10000x10"  # where the rest is measured, too
VARIANTS = (OURS, HERE, CONNTRACK, HOOKS, ONE_RULE, NFTABLES, IPTABLES_NFT, IPTABLES_LEGACY)
ONE_SIZE = {HERE}
"""At other sizes they would tell nothing new."""
MOST_SERVICES = {NFTABLES: 10_000, IPTABLES_NFT: 10_000, IPTABLES_LEGACY: 10_000}
"""Beyond that it would take minutes to load them."""
A_ROUND = 50
MANY = " in turn"
FROM_OUTSIDE = ", outside"

Progress = Callable[[str], None]


class Plan(NamedTuple):
    """How much is measured: rounds of each part, and the seconds of a turn of connections a second."""

    connect: int
    flow: int
    rate: int
    rate_seconds: float
    affinity: int


FULL = Plan(connect=50, flow=40, rate=8, rate_seconds=0.25, affinity=150)
QUICK = Plan(connect=14, flow=6, rate=3, rate_seconds=0.1, affinity=15)


def measure(
    sizes: Sequence[str],
    quick: bool,
    progress: Progress,
    plan: Plan | None = None,
    found: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """For JSON. `found` is filled while it goes on, for those who want what there is when they are interrupted.
    Times are microseconds, as `dataplane_connect.time_of` and `difference` give them.

    "plan": rounds of each part, and connections of a round. "variants": what each is. "connect": by size, origin ("pod",
    "node", "outside"), protocol, variant and way ("direct", "clusterIP", "nodePort", "externalIP"): "time"; "difference" to the variant's own direct way; "above no nat": the
    difference to the direct way on the node without nat. All that again under "direct in turn", "clusterIP in turn" …:
    many Services, or endpoints, each connected to in its turn. Variants without Services have the direct ways alone.
    "rate", "flow": see `dataplane_rate`, `dataplane_flow`, at "main size"; what begins outside has ", outside" in its name.
    "affinity": see there. "left out": by size and variant, why. "load": the machine's load average before and after; "seconds": all of it.
    """
    plan = plan or (QUICK if quick else FULL)
    started = time.monotonic()
    found = {} if found is None else found
    found["plan"] = plan._asdict() | {"connections": A_ROUND, "affinity_connections": affinity.A_ROUND}
    found |= {"variants": DESCRIPTIONS, "load": [os.getloadavg()[0]], "connect": {}, "left out": {}}
    main = MAIN if MAIN in sizes else sizes[-1]
    found["main size"] = main
    for name in sizes:
        size = Size.of(name)
        with _loaded(size, name == main, found["left out"].setdefault(name, {}), progress) as worlds:
            found["connect"][name] = _connect(size, worlds, plan, progress)
            if name == main:
                progress(f"{name}: established flows")
                found["flow"] = dataplane_flow.measure(_ways(size, worlds, roads(size)["direct"]), plan.flow)
                progress(f"{name}: connections a second, all cores busy")
                found["rate"] = dataplane_rate.measure(
                    _ways(size, worlds, [end for ends in endpoints(size) for end in ends]),
                    plan.rate, plan.rate_seconds,
                )  # fmt: skip
    found["affinity"] = affinity.measure(plan.affinity, progress)
    found["load"].append(os.getloadavg()[0])
    found["seconds"] = round(time.monotonic() - started, 1)
    return found


@contextmanager
def _loaded(size: Size, is_main: bool, left_out: dict[str, str], progress: Progress) -> Iterator[dict[str, World]]:
    """A node with each of the variants. What cannot be had is noted in `left_out`."""
    worlds: dict[str, World] = {}
    wanted = list(ports(size))
    try:
        for name in VARIANTS:
            if name in ONE_SIZE and not is_main:
                continue
            if size.services > MOST_SERVICES.get(name, size.services):
                left_out[name] = f"more than {MOST_SERVICES[name]:,} Services take minutes to load"
            elif not available(name):
                left_out[name] = "the program that loads it is not installed"
            else:
                progress(f"{size}: loading {name}")
                worlds[name] = World()
                LOADERS[name](worlds[name].node, _abridged(wanted) if name.startswith("iptables") else wanted)
        del wanted
        gc.collect()
        yield worlds
    finally:
        for world in worlds.values():
            world.close()


def _abridged(wanted: Iterable[Port]) -> Iterator[Port]:
    """Of Services that nobody connects to, one endpoint: packets pass their rules in the chain that all share, but not
    their endpoints'; iptables would load those for minutes."""
    for port in wanted:
        measured = port.external_ip or port.protocol == "udp"
        yield port if measured else replace(port, pods=port.pods[:1])


def _connect(size: Size, worlds: Mapping[str, World], plan: Plan, progress: Progress) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for origin, protocol, ways in (
        ("pod", "tcp", ("clusterIP",)),
        ("pod", "udp", ("clusterIP",)),
        ("node", "tcp", ("clusterIP",)),
        ("node", "udp", ("clusterIP",)),
        ("outside", "tcp", ("nodePort", "externalIP")),
        ("outside", "udp", ("nodePort", "externalIP")),
    ):
        progress(f"{size}: connect() from {origin}, {protocol}")
        trial = _Trial(size, worlds, origin, protocol, ways)
        trial.run(plan.connect)
        found.setdefault(origin, {})[protocol] = trial.figures()
    return found


class _Trial:
    """One kind of connection, on all nodes: to one Service again and again, and to many in turn."""

    def __init__(
        self, size: Size, worlds: Mapping[str, World], origin: str, protocol: str, ways: Sequence[str]
    ) -> None:
        self._worlds, self._origin = worlds, origin
        self._connect = tcp if protocol == "tcp" else udp
        self._receive = World.listener if protocol == "tcp" else World.receiver
        places = {way: each(those) for way, those in roads(size).items()} | {"direct": endpoints(size)}
        targets = len(places["direct"])
        middle = targets // 2  # iptables asks for Services in order
        parts = (slice(middle, middle + 1), slice(None))
        self._roads: dict[str, list[dict[str, Road]]] = {}
        for name in worlds:
            led = ways if name not in (CONNTRACK, HOOKS) else ()
            mine = dict(places)
            if name == ONE_RULE:  # it has no other endpoints
                mine["direct"] = [ends[:1] for ends in mine["direct"]]
            self._roads[name] = [{way: Road(mine[way][part]) for way in ("direct", *led)} for part in parts]

    def run(self, rounds: int) -> None:
        receivers = {name: self._receive(world) for name, world in self._worlds.items()}
        try:
            with undisturbed():
                for _ in range(rounds):
                    for name in random.sample(list(self._worlds), len(self._worlds)):
                        world = self._worlds[name]
                        for together in self._roads[name]:
                            self._connect(world, self._origin, receivers[name], list(together.values()), A_ROUND)
        finally:
            for receiver in receivers.values():
                receiver.close()

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, kinds in self._roads.items():
            of_variant = found.setdefault(name, {})
            for suffix, together, without in zip(("", MANY), kinds, self._roads[CONNTRACK], strict=True):
                for way, road in together.items():
                    of_variant[way + suffix] = {
                        "time": time_of(road),
                        "difference": difference(road, together["direct"]),
                        "above no nat": difference(road, without["direct"]),
                    }
        return found


def _ways(size: Size, worlds: Mapping[str, World], direct: Places) -> dict[str, Way]:
    """For flows and rates: from a pod through each variant's clusterIPs, from outside through its NodePorts (masqueraded),
    and past them."""
    places = roads(size)
    outside = f"{CONNTRACK}{FROM_OUTSIDE}"
    found = {
        CONNTRACK: Way(worlds[CONNTRACK], direct, "pod", CONNTRACK),
        HOOKS: Way(worlds[HOOKS], direct, "pod", CONNTRACK),
        f"{OURS}, direct": Way(worlds[OURS], direct, "pod", CONNTRACK),
    }
    names = [name for name in (OURS, ONE_RULE, NFTABLES, IPTABLES_NFT, IPTABLES_LEGACY) if name in worlds]
    for name in names:
        found[name] = Way(worlds[name], places["clusterIP"], "pod", CONNTRACK)
    found[outside] = Way(worlds[CONNTRACK], direct, "outside", outside)
    for name in names:
        found[f"{name}{FROM_OUTSIDE}"] = Way(worlds[name], places["nodePort"], "outside", outside)
    return found


def main() -> None:
    parser = arguments.parser(__doc__)
    parser.add_argument("size", nargs="*", type=arguments.size, help=f"instead of {' '.join(SIZES)}")
    parser.add_argument("--quick", action="store_true", help=f"few samples, at {' '.join(QUICK_SIZES)}")
    given = parser.parse_args()
    sizes = [str(size) for size in given.size] or (QUICK_SIZES if given.quick else SIZES)
    found = measure(sizes, given.quick, lambda text: print(text, file=sys.stderr, flush=True))
    print("\n".join(dataplane_report.lines(found)))


if __name__ == "__main__":
    main()
