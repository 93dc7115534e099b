"""A flow through every row of the policy table, with real packets, against a plain model of what is right.

All of a configuration's Services are there at once, in one agent; the senders take their flows in bulk.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from integration import privileges
from integration.bulk import Outcome, Question, send
from integration.cluster import CONFIG, SERVICE_CIDRS, Cluster, node
from integration.third_node import BedWithThirdNode
from integration.topology import Host
from tests.policy_rows import KINDS, MORE_STATES, STATES, ZONE, Row, Rows
from tests.service_model import DROPPED, MASQUERADED, PRESERVED, REJECTED, Expected, Source, World, expected

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`")

FEW: Final = 5
ENOUGH: Final = 10
MANY: Final = 70
"""Connections of a flow. With MANY, all expected endpoints have to answer: of four, one is missed by 70 connections
once in 10^8 runs."""

SAMPLE: Final = 17
"""One in so many flows that have a choice gets MANY connections. A prime: it meets all dimensions of the table."""

ANSWER_SECONDS: Final = 8.0
SILENCE_SECONDS: Final = 0.3
LABELS: Final = {"topology.kubernetes.io/zone": ZONE}

CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "cluster-cidr": {},
    "masquerade-all": {"nftables": {"masqueradeAll": True}},
    "no-cluster-cidr": {"clusterCIDR": None},
    "no-cluster-cidr-masquerade-all": {"clusterCIDR": None, "nftables": {"masqueradeAll": True}},
    "cluster-cidr-of-ipv4": {"clusterCIDR": "10.244.0.0/16"},
    "bridge-interface": {"detectLocalMode": "BridgeInterface", "detectLocal": {"bridgeInterface": "cni0"}},
    "interface-name-prefix": {"detectLocalMode": "InterfaceNamePrefix", "detectLocal": {"interfaceNamePrefix": "cni"}},
    "node-cidr": {"detectLocalMode": "NodeCIDR", "clusterCIDR": None},
}
BLOCKS: Final = {name: block for block, name in enumerate((*CONFIGS, "more"))}

# Where packets of each host come into the node.
INTERFACES: Final = {
    "client": "eth0",
    "client2": "eth0",
    "node0": "",
    "pod-1": "cni0",
    "pod-2": "cni0",
    "pod-5": "eth2",
}
# By which address the node reaches endpoints, so the source of what it masquerades.
GATEWAYS: Final = {"10.244.0": "10.244.0.1", "10.244.1": "192.168.78.2", "fd44::": "fd44::1", "fd44:1:": "fd78::2"}


@dataclass(frozen=True)
class Flow:
    row: Row
    source: Host
    kind: str
    version: int
    protocol: str

    def __str__(self) -> str:
        return f"{self.row.label}: {self.source.name} -> {self.kind} IPv{self.version} {self.protocol}"

    @property
    def to(self) -> tuple[str, int]:
        return self.row.destination(self.kind, self.version)


def flows(rows: Sequence[Row], sources: Sequence[Host]) -> list[Flow]:
    return [Flow(*each) for each in itertools.product(rows, sources, KINDS, (4, 6), ("TCP", "UDP"))]


def expectations(config: Mapping[str, Any], wanted: Sequence[Flow]) -> list[Expected]:
    """What the model says of each flow."""
    merged = {key: value for key, value in {**CONFIG, **config}.items() if value is not None}
    found = []
    for flow in wanted:
        # Services do not touch each other, so each has a world of its own, and the model need not be fast.
        world = World([flow.row.service], flow.row.slices, node(LABELS), merged, SERVICE_CIDRS["spec"]["cidrs"])
        source = Source(flow.source.address(flow.version), INTERFACES[flow.source.name])
        result = expected(world, source, *flow.to, flow.protocol)
        assert result is not None, f"the model does not know {flow}"
        found.append(result)
    return found


def question(flow: Flow, wanted: Expected, few: int, many: bool) -> Question:
    address, port = flow.to
    bind = "" if flow.source.picks_source else flow.source.address(flow.version)
    if wanted.fails == DROPPED:
        return Question(address, port, flow.protocol, bind, 2, SILENCE_SECONDS)
    if wanted.fails:
        return Question(address, port, flow.protocol, bind, 2, ANSWER_SECONDS)
    return Question(address, port, flow.protocol, bind, MANY if many else few, ANSWER_SECONDS)


def difference(wanted: Expected, got: Outcome, all_of_them: bool) -> str:
    """Why the outcome is not as expected, or ''."""
    if wanted.fails:
        if got.answers or set(got.failures) != {wanted.fails}:
            return f"{summary(got)}, not {wanted.fails}"
        return ""
    if got.failures:
        return f"{summary(got)}, not {wanted.reach}"
    reached = set()
    for address, port, seen, own in got.answers:
        treatment = wanted.reach.get((address, port))
        if treatment is None or not _is_source(seen, treatment, address, own):
            return f"{summary(got)}, not {wanted.reach}"
        reached.add((address, port))
    if wanted.sticky and len(reached) != 1:
        return f"{summary(got)}, should stick to one"
    if not wanted.sticky and all_of_them and reached != set(wanted.reach):
        return f"{summary(got)}, not all of {wanted.reach}"
    return ""


def _is_source(seen: str, treatment: str, endpoint: str, own: str) -> bool:
    if treatment == PRESERVED:
        return seen == own
    return seen == gateway(endpoint) and seen != own


def gateway(endpoint: str) -> str:
    """The node's address towards an endpoint."""
    return max(((prefix, ip) for prefix, ip in GATEWAYS.items() if endpoint.startswith(prefix)))[1]


def summary(got: Outcome) -> str:
    answers = [f"{a} {p} saw {'its own' if seen == own else seen}" for a, p, seen, own in sorted(got.answers)]
    return ", ".join([*answers, *(f"{n}x {name}" for name, n in sorted(got.failures.items()))]) or "nothing"


def ask(wanted: Sequence[Flow], expectation: Sequence[Expected], few: int) -> list[str]:
    """Send all flows; what differs, as text."""
    by_namespace: dict[str, list[int]] = {}
    questions, everybody = [], []
    choices = 0
    for i, (flow, e) in enumerate(zip(wanted, expectation, strict=True)):
        choices += len(e.reach) > 1
        everybody.append(len(e.reach) > 1 and choices % SAMPLE == 0)
        questions.append(question(flow, e, few, everybody[-1]))
        by_namespace.setdefault(flow.source.namespace.name, []).append(i)

    def send_from(numbers: list[int]) -> list[tuple[int, Outcome]]:
        outcomes = send(wanted[numbers[0]].source.namespace, [questions[i] for i in numbers])
        return list(zip(numbers, outcomes, strict=True))

    with ThreadPoolExecutor(len(by_namespace)) as pool:
        outcomes = dict(itertools.chain.from_iterable(pool.map(send_from, by_namespace.values())))
    return [
        f"{flow}: {why}"
        for i, flow in enumerate(wanted)
        if (why := difference(expectation[i], outcomes[i], everybody[i]))
    ]


def report(differences: Sequence[str], of: int) -> str:
    shown = [*differences[:40], *(["…"] if len(differences) > 40 else [])]
    return "\n".join([f"{len(differences)} of {of} flows differ from the model:", *shown])


@pytest.fixture(scope="module")
def bed() -> Iterator[BedWithThirdNode]:
    privileges.acquire()
    with BedWithThirdNode() as bed:
        yield bed


def run(
    bed: BedWithThirdNode,
    directory: Path,
    config: Mapping[str, Any],
    rows: Sequence[Row],
    wanted: Sequence[Flow],
    few: int,
) -> list[str]:
    """An agent with all of these rows' Services, and all flows through it; what differs."""
    expectation = expectations(config, wanted)
    outcomes = {e.fails or "+".join(sorted(set(e.reach.values()))) for e in expectation}
    assert {REJECTED, DROPPED, MASQUERADED, PRESERVED, f"{MASQUERADED}+{PRESERVED}"} <= outcomes
    cluster = Cluster(bed, directory, config, LABELS)
    for row in rows:
        cluster.put(row.service, *row.slices)
    cluster.start()
    try:
        cluster.settle()
        return ask(wanted, expectation, few)
    finally:
        cluster.stop()


def everywhere(bed: BedWithThirdNode) -> list[Host]:
    """Outside, a pod that is an endpoint, one that is none, the node itself, a remote pod."""
    return [bed.client, bed.pod1, bed.pod2, bed.node, bed.pod5]


@needs_root
@pytest.mark.root
@pytest.mark.parametrize("name", CONFIGS)
def test_every_policy_with_every_state_of_endpoints(bed: BedWithThirdNode, tmp_path: Path, name: str) -> None:
    rows = list(Rows(BLOCKS[name]).policies(STATES))
    wanted = flows(rows, everywhere(bed))
    few = FEW if CONFIGS[name] else ENOUGH
    differences = run(bed, tmp_path, CONFIGS[name], rows, wanted, few)
    assert not differences, report(differences, len(wanted))


@needs_root
@pytest.mark.root
def test_hints_source_ranges_affinity_and_rarer_states(bed: BedWithThirdNode, tmp_path: Path) -> None:
    make = Rows(BLOCKS["more"])
    rows = [
        *make.policies(MORE_STATES),
        *make.source_ranges(),
        *make.policies(STATES, "sticky: ", sessionAffinity="ClientIP"),
    ]
    wanted = flows(rows, [*everywhere(bed), bed.client2])
    differences = run(bed, tmp_path, {}, rows, wanted, FEW)
    assert not differences, report(differences, len(wanted))
