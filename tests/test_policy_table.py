"""A flow through every row of the policy table, with real packets, against a plain model of what is right.

All of a configuration's Services are there at once, in one agent; the senders take their flows in bulk.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from integration import privileges
from integration.bulk import Outcome, Question, send
from integration.cluster import CONFIG, SERVICE_CIDRS, Cluster, node
from integration.third_node import BedWithThirdNode
from integration.topology import Host
from tests.policy_rows import KINDS, MORE_STATES, NETWORKS, STATES, STRAY, ZONE, Row, Rows
from tests.service_model import DROPPED, MASQUERADED, PRESERVED, REJECTED, Expected, Source, World, expected

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`")

FEW: Final = 4
ENOUGH: Final = 10
"""Connections of a flow."""

SAMPLE: Final = 17
"""The first flow of every row, kind of destination and choice of endpoints gets `enough_for_all` connections, and one
in so many of all that have a choice: a prime, to meet all dimensions of the table."""

ANSWER_SECONDS: Final = 5.0
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
BLOCKS: Final = {name: block for block, name in enumerate((*CONFIGS, "more", "sticky", "sticky at all addresses"))}

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

    @property
    def own(self) -> str:
        """The client's address."""
        if self.row.on_node and self.source.picks_source and self.kind == "loadBalancer":
            return self.to[0]
        return self.source.address(self.version)


def flows(rows: Sequence[Row], sources: Sequence[Host], kinds: Sequence[str] = KINDS) -> list[Flow]:
    return [Flow(*each) for each in itertools.product(rows, sources, kinds, (4, 6), ("TCP", "UDP"))]


def expectations(config: Mapping[str, Any], wanted: Sequence[Flow]) -> list[Expected]:
    """What the model says of each flow."""
    merged = {key: value for key, value in {**CONFIG, **config}.items() if value is not None}
    found = []
    for flow in wanted:
        # Services do not touch each other, so each has a world of its own, and the model need not be fast.
        world = World([flow.row.service], flow.row.slices, node(LABELS), merged, SERVICE_CIDRS["spec"]["cidrs"])
        source = Source(flow.own, INTERFACES[flow.source.name])
        result = expected(world, source, *flow.to, flow.protocol)
        assert result is not None, f"the model does not know {flow}"
        found.append(result)
    return found


def question(flow: Flow, wanted: Expected, few: int, many: bool) -> Question:
    address, port = flow.to
    bind = "" if flow.source.picks_source else flow.own
    if wanted.fails == DROPPED:
        return Question(address, port, flow.protocol, bind, 2, SILENCE_SECONDS)
    if wanted.fails:
        return Question(address, port, flow.protocol, bind, 2, ANSWER_SECONDS)
    return Question(
        address, port, flow.protocol, bind, enough_for_all(len(wanted.reach)) if many else few, ANSWER_SECONDS
    )


def enough_for_all(endpoints: int) -> int:
    """Connections that miss one of 2, 3 or 4 endpoints once in 10^8 times."""
    return 20 * endpoints - 10


def difference(wanted: Expected, got: Outcome, own: str, all_of_them: bool) -> str:
    """Why the outcome is not as expected, or ''. own: the address that the client should have had."""
    if wanted.fails:
        return "" if not got.answers and set(got.failures) == {wanted.fails} else f"{summary(got)}, not {wanted.fails}"
    for address, port, seen, had in got.answers:
        treatment = wanted.reach.get((address, port))
        right = own if treatment == PRESERVED else gateway(address)
        if treatment is None or had != own or seen != right:
            return f"{summary(got)}, not {wanted.reach}"
    reached = {answer[:2] for answer in got.answers}
    if got.failures:
        return f"{summary(got)}, not {wanted.reach}"
    if wanted.sticky and len(reached) != 1:
        return f"{summary(got)}, should stick to one"
    if all_of_them and not wanted.sticky and reached != set(wanted.reach):
        return f"{summary(got)}, not all of {wanted.reach}"
    return ""


def gateway(endpoint: str) -> str:
    """The node's address towards an endpoint."""
    return max((prefix, ip) for prefix, ip in GATEWAYS.items() if endpoint.startswith(prefix))[1]


def summary(got: Outcome) -> str:
    answers = [f"{a} {p} saw {'its own' if seen == own else seen}" for a, p, seen, own in sorted(got.answers)]
    return ", ".join([*answers, *(f"{n}x {name}" for name, n in sorted(got.failures.items()))]) or "nothing"


def ask(wanted: Sequence[Flow], expectation: Sequence[Expected], few: int) -> tuple[list[Outcome], list[str]]:
    """Send all flows; what became of each, and what differs, as text."""
    by_namespace: dict[str, list[int]] = {}
    questions, everybody = [], []
    choices: set[object] = set()
    for i, (flow, e) in enumerate(zip(wanted, expectation, strict=True)):
        choice = (flow.row.label, flow.kind, frozenset(e.reach))
        everybody.append(len(e.reach) > 1 and not e.sticky and (choice not in choices or i % SAMPLE == 0))
        choices.add(choice)
        questions.append(question(flow, e, few, everybody[-1]))
        by_namespace.setdefault(flow.source.namespace.name, []).append(i)

    def send_from(numbers: list[int]) -> list[tuple[int, Outcome]]:
        outcomes = send(wanted[numbers[0]].source.namespace, [questions[i] for i in numbers])
        return list(zip(numbers, outcomes, strict=True))

    with ThreadPoolExecutor(len(by_namespace)) as pool:
        found = dict(itertools.chain.from_iterable(pool.map(send_from, by_namespace.values())))
    outcomes = [found[i] for i in range(len(wanted))]
    compared = zip(wanted, expectation, outcomes, everybody, strict=True)
    return outcomes, [f"{f}: {why}" for f, e, o, all_ in compared if (why := difference(e, o, f.own, all_))]


def report(differences: Sequence[str], of: int) -> str:
    shown = [*differences[:40], *(["…"] if len(differences) > 40 else [])]
    return "\n".join([f"{len(differences)} of {of} flows differ from the model:", *shown])


@pytest.fixture(scope="module")
def bed() -> Iterator[BedWithThirdNode]:
    privileges.acquire()
    with BedWithThirdNode() as bed:
        bed.prohibit(*NETWORKS)
        yield bed


@contextmanager
def serving(
    bed: BedWithThirdNode, directory: Path, rows: Sequence[Row], config: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """An agent that has these rows' Services, all of them, in the kernel."""
    cluster = Cluster(bed, directory, config, LABELS)
    for row in rows:
        cluster.put(row.service, *row.slices)
    cluster.start()
    try:
        cluster.settle()
        yield
    finally:
        cluster.stop()


def everywhere(bed: BedWithThirdNode) -> list[Host]:
    """Outside, a pod that is an endpoint, one that is none, the node itself, a remote pod."""
    return [bed.client, bed.pod1, bed.pod2, bed.node, bed.pod5]


def kinds_of(expectation: Sequence[Expected]) -> set[str]:
    """All that is expected to happen."""
    return {e.fails or "+".join(sorted(set(e.reach.values()))) for e in expectation}


@needs_root
@pytest.mark.root
@pytest.mark.parametrize("name", CONFIGS)
def test_every_policy_with_every_state_of_endpoints(bed: BedWithThirdNode, tmp_path: Path, name: str) -> None:
    config = CONFIGS[name]
    rows = list(Rows(BLOCKS[name]).policies(STATES))
    wanted = flows(rows, everywhere(bed))
    expectation = expectations(config, wanted)
    assert kinds_of(expectation) >= {REJECTED, DROPPED, MASQUERADED, PRESERVED}
    with serving(bed, tmp_path, rows, config):
        _, differences = ask(wanted, expectation, FEW if config else ENOUGH)
    assert not differences, report(differences, len(wanted))


@needs_root
@pytest.mark.root
def test_hints_source_ranges_affinity_and_rarer_states(bed: BedWithThirdNode, tmp_path: Path) -> None:
    make = Rows(BLOCKS["more"])
    rows = [*make.policies(MORE_STATES), *make.source_ranges()]
    own = [ip for row in rows if row.on_node for ip in row.addresses["loadBalancer"]]
    bed.node.namespace.ip(f"addr add {ip} dev lo {'nodad' if ':' in ip else ''}" for ip in own)
    wanted = [*flows(rows, [*everywhere(bed), bed.client2]), *flows(rows[:1], everywhere(bed), STRAY)]
    expectation = expectations({}, wanted)
    assert kinds_of(expectation) == {REJECTED, DROPPED, MASQUERADED, PRESERVED, f"{MASQUERADED}+{PRESERVED}"}
    with serving(bed, tmp_path, rows):
        _, differences = ask(wanted, expectation, FEW)
    assert not differences, report(differences, len(wanted))


@needs_root
@pytest.mark.root
def test_clients_stay_with_their_endpoint(bed: BedWithThirdNode, tmp_path: Path) -> None:
    rows = list(Rows(BLOCKS["sticky"]).policies(STATES, sessionAffinity="ClientIP"))
    wanted = flows(rows, [*everywhere(bed), bed.client2])
    expectation = expectations({}, wanted)
    assert sum(e.sticky and len(e.reach) > 1 for e in expectation) > 500
    with serving(bed, tmp_path, rows):
        _, differences = ask(wanted, expectation, FEW)
    assert not differences, report(differences, len(wanted))


@needs_root
@pytest.mark.root
def test_clients_stay_with_their_endpoint_at_all_addresses(bed: BedWithThirdNode, tmp_path: Path) -> None:
    states = {name: STATES[name] for name in ("remote ready", "local and remote ready")}
    rows = list(Rows(BLOCKS["sticky at all addresses"]).policies(states, sessionAffinity="ClientIP"))
    reached: defaultdict[tuple[object, ...], set[tuple[str, int]]] = defaultdict(set)
    with serving(bed, tmp_path, rows):
        for kind in KINDS:  # one after the other: no two first connections at a time
            wanted = flows(rows, everywhere(bed), [kind])
            expectation = expectations({}, wanted)
            outcomes, differences = ask(wanted, expectation, FEW)
            assert not differences, report(differences, len(wanted))
            for flow, e, outcome in zip(wanted, expectation, outcomes, strict=True):
                if e.reach:  # addresses whose policies allow other endpoints are another matter
                    client = (flow.row.label, flow.source.name, flow.version, flow.protocol, frozenset(e.reach))
                    reached[client] |= {answer[:2] for answer in outcome.answers}
    moved = [" ".join(map(str, client[:4])) for client, endpoints in reached.items() if len(endpoints) > 1]
    assert not moved, f"{len(moved)} of {len(reached)} clients, such as {moved[0]}"


OURS: Final = {("10.244.0.2", 8080): PRESERVED, ("10.244.1.2", 8081): MASQUERADED}
KEPT: Final = ("10.244.0.2", 8080, "10.244.0.3", "10.244.0.3")
CHANGED: Final = ("10.244.1.2", 8081, "192.168.78.2", "10.244.0.3")


@pytest.mark.parametrize(
    ("wanted", "answers", "failures", "why"),
    [
        (Expected(OURS), [KEPT, CHANGED], {}, ""),
        (Expected(OURS), [KEPT], {}, "not all of"),
        (Expected(OURS), [], {}, "nothing, not all of"),
        (Expected(OURS), [KEPT, CHANGED], {"dropped": 1}, "1x dropped, not"),
        (Expected(OURS), [KEPT, ("10.244.1.2", 8081, "10.244.0.3", "10.244.0.3")], {}, "saw its own, not"),
        (Expected(OURS), [CHANGED, ("10.244.0.2", 8080, "10.244.0.1", "10.244.0.3")], {}, "saw 10.244.0.1"),
        (Expected(OURS), [KEPT, ("10.244.1.2", 8081, "192.168.77.2", "10.244.0.3")], {}, "saw 192.168.77.2"),
        (Expected(OURS), [KEPT, CHANGED, ("10.244.1.3", 8081, "192.168.78.2", "10.244.0.3")], {}, "10.244.1.3 8081"),
        (Expected(OURS), [KEPT, CHANGED, ("10.244.0.2", 8081, "10.244.0.3", "10.244.0.3")], {}, "10.244.0.2 8081"),
        (Expected(OURS, sticky=True), [KEPT], {}, ""),
        (Expected(OURS, sticky=True), [KEPT, CHANGED], {}, "should stick to one"),
        (Expected(fails=REJECTED), [], {"rejected": 2}, ""),
        (Expected(fails=REJECTED), [], {"rejected": 1, "dropped": 1}, "1x dropped, 1x rejected, not rejected"),
        (Expected(fails=DROPPED), [], {"rejected": 2}, "2x rejected, not dropped"),
        (Expected(fails=DROPPED), [], {}, "nothing, not dropped"),
        (Expected(fails=DROPPED), [KEPT], {"dropped": 1}, "10.244.0.2 8080"),
    ],
)
def test_outcomes_are_held_against_the_model(
    wanted: Expected, answers: list[tuple[str, int, str, str]], failures: dict[str, int], why: str
) -> None:
    said = difference(wanted, Outcome(Counter(answers), Counter(failures)), "10.244.0.3", True)
    assert why in said
    assert bool(said) is bool(why)
