"""`explain` against what was recorded of upstream's packets, and against our own kernel's."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from integration import flows
from integration.cluster import CONFIG, SERVICE_CIDRS, Object, merged, node
from integration.flows import Case, Outcome, difference
from proxy.addresses import parse_address
from proxy.config import parse_config
from proxy.errors import UsageError
from proxy.events import Event, Put, Replace
from proxy.explain.answer import Answer, answer
from proxy.explain.question import questions
from proxy.explain.world import World, world
from proxy.model import API_VERSIONS, KINDS, convert
from rules.diff import scratch
from rules.elements import Scheduler, ServicePort, endpoint, service_key
from rules.fake import FakeKernel
from rules.interpret import fates
from rules.jhash import jhash
from rules.layout import LAYOUTS, Options
from rules.objects import OUTPUT, POSTROUTING, Chain, Family, Field, Rule, Set, Table
from rules.packet import Packet
from rules.statements.marks import HasMark, SetMark
from rules.statements.matches import InSet
from rules.statements.nat import Masquerade
from rules.statements.verdicts import drop
from rules.tables import create
from rules.transaction import AddChain, AddRule, AddSet, AddTable
from tests.netns import Namespace

CASES: Final = [flows.load(path) for path in sorted((Path(__file__).parent / "data/flows").glob("*.json"))]
SOURCES: Final = {  # as in integration.topology
    "external": ("192.168.77.1", "fd77::1"),
    "external2": ("192.168.77.9", "fd77::9"),
    "pod-l1": ("10.244.0.2", "fd44::2"),
    "pod-l2": ("10.244.0.3", "fd44::3"),
    "pod-remote": ("10.244.1.2", "fd44:1::2"),
    "host": ("node", "node"),
}
PODS: Final = {address for name, pair in SOURCES.items() if name.startswith("pod") for address in pair}
INTERFACES: Final = ("127.0.0.1", "::1", "192.168.77.2", "fd77::2", "192.168.78.2", "fd78::2", "10.244.0.1", "fd44::1")


def made(case: Case, objects: Sequence[Object]) -> World:
    config = parse_config(json.dumps(merged(CONFIG, case.config)).encode(), "config.json")
    events: list[Event] = [Replace(kind, []) for kind in KINDS]
    events += [Put(convert(obj["kind"], obj)) for obj in (SERVICE_CIDRS, node(case.node_labels), *objects)]
    return world(config, "node0", events, [parse_address(a) for a in INTERFACES])


def asked(here: World, flow: flows.Flow) -> list[Answer]:
    source = SOURCES[flow.source]["::" in flow.to or ":" in flow.to]
    to = f"[{flow.to}]" if ":" in flow.to else flow.to
    return [answer(here, q) for q in questions(here, source, f"{to}:{flow.port}/{flow.protocol}", {})]


def outcome(of: Answer, flow: flows.Flow) -> Outcome:
    got = of.outcome
    if got.untouched == 1.0 and flow.to in PODS:
        return Outcome(frozenset([f"{flow.to}:{flow.port}"]), frozenset(["preserved"]), frozenset())
    fails = {name for name, chance in (("rejected", got.refused), ("dropped", got.dropped)) if chance}
    if got.untouched and flow.to in INTERFACES:
        fails.add("rejected")  # nobody listens there on the node itself
    elif got.untouched:
        fails.add("dropped")
    source = {"masqueraded" if e.masqueraded else "preserved" for e in got.endpoints}
    return Outcome(frozenset(e.endpoint for e in got.endpoints), frozenset(source), frozenset(fails))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_says_what_was_recorded(case: Case) -> None:
    there: dict[tuple[str, str], Any] = {}
    for number, step in enumerate(case.steps):
        for reference in step.deletes:
            kind, name = reference.split("/")
            del there[kind, name]
        there |= {(obj["kind"], obj["metadata"]["name"]): obj for obj in step.objects}
        here = made(case, list(there.values()))
        for flow in step.flows:
            (said,) = asked(here, flow)
            got = outcome(said, flow)
            if case.sticky:  # one of them, whichever: a client has no ticket here, and may get any
                assert flow.expected.reach <= got.reach, (number, str(flow), said)
                got = Outcome(flow.expected.reach, flow.expected.source, got.fails)
            elif flow.source == "host" and flow.to in INTERFACES:  # what it is masqueraded to may be what it was
                got = Outcome(got.reach, flow.expected.source, got.fails)
            assert not difference(flow.expected, got), (number, str(flow), said)
            assert said.policy
            known = {e.endpoint for e in said.outcome.endpoints} | {e.endpoint for e in said.excluded}
            assert len(known) == len(said.outcome.endpoints) + len(said.excluded)
            assert all("do not lead there" not in e.why for e in said.excluded), said


# -- What an answer holds ----------------------------------------------------------------------------------------------


def small(*endpoints: Object, **spec: Any) -> list[Object]:
    """A Service `web` with these endpoints."""
    spec = {"clusterIP": "10.96.1.1", "ports": [{"name": "http", "port": 80}], **spec}
    slice_ = {
        "kind": "EndpointSlice",
        "metadata": {"name": "web-a", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": list(endpoints),
    }
    return [{"kind": "Service", "metadata": {"name": "web"}, "spec": spec}, slice_]


def pod(number: int, node: str = "node0", **more: Any) -> Object:
    return {"addresses": [f"10.244.9.{number}"], "nodeName": node, **more}


def say(objects: Sequence[Object], source: str = "outside", target: str = "svc/web", **config: Any) -> Answer:
    case = Case("", config, {"topology.kubernetes.io/zone": "a"}, False, [])
    here = made(case, objects)
    (question,) = questions(here, source, target, {"default/web-0": (parse_address("10.244.9.1"),)})
    return answer(here, question)


def test_chances_are_those_of_the_rules() -> None:
    for count in (5, 20):
        said = say(small(*(pod(n) for n in range(1, count + 1))))
        assert {e.endpoint for e in said.outcome.endpoints} == {f"10.244.9.{n}:8080" for n in range(1, count + 1)}
        chances = sorted(e.chance for e in said.outcome.endpoints)
        assert sum(chances) == pytest.approx(1, abs=1e-4)
        # Above 16: five misses among 32 numbers, then one below 16: docs/data-plane.md.
        missed = (12 / 32) ** 5 if count == 20 else 0
        assert chances[0] == pytest.approx((1 - missed) / count, abs=1e-5)
        assert chances[-1] == pytest.approx((1 - missed) / count + missed / 16, abs=1e-5)


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        (pod(2, conditions={"ready": False}), "not ready"),
        (
            pod(2, conditions={"ready": False, "serving": True, "terminating": True}),
            "terminating, and others are ready",
        ),
        (pod(2, conditions={"ready": False, "serving": False, "terminating": True}), "does not serve any more"),
        (pod(2, "node1"), "on node node1, and internalTrafficPolicy is Local"),
        (pod(2, hints={"forZones": [{"name": "b"}]}), "hints are for zone b, and this node is in a"),
        (pod(2, hints={"forNodes": [{"name": "node1"}]}), "hints are for node node1"),
    ],
)
def test_who_is_left_out_and_why(endpoint: Object, why: str) -> None:
    near = {"forZones": [{"name": "a"}], "forNodes": [{"name": "node0"}]}
    policy = {"internalTrafficPolicy": "Local"} if "Local" in why else {}
    said = say(small(pod(1, hints=near), endpoint, **policy))
    assert [e.endpoint for e in said.outcome.endpoints] == ["10.244.9.1:8080"]
    ((excluded),) = said.excluded
    assert excluded.endpoint == "10.244.9.2:8080" and why in excluded.why


def test_a_younger_claim_is_named() -> None:
    objects = small(pod(1))
    rival = {"kind": "Service", "metadata": {"name": "xeb"}, "spec": objects[0]["spec"]}
    said = say([*objects, rival], target="10.96.1.1:80")
    assert said.service == "default/web:http" and said.also == ("default/xeb:http",)


def test_sources_and_targets_by_name() -> None:
    objects = small(pod(1), type="NodePort", ports=[{"name": "http", "port": 80, "nodePort": 30080}])
    said = say(objects, "pod/web-0", "node:30080")
    assert said.address == "NodePort" and said.source == "pod/web-0"
    assert [e.masqueraded for e in said.outcome.endpoints] == [True]
    assert say(objects, "pod/default/web-0", "svc/default/web:http").outcome.endpoints[0].masqueraded  # to itself


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("outside", "10.96.1.1", "names no port"),
        ("outside", "10.96.1.1:http", "names no port"),
        ("outside", "10.96.1.1:80/icmp", "names no port"),
        ("outside", "10.96.1:80", "not an IP address"),
        ("outside", "svc/wab", "no Service default/wab"),
        ("outside", "svc/web:81", "no such port; "),
        ("somebody", "svc/web", "not an IP address"),
        ("pod/wab", "svc/web", "no such pod"),
        ("fd00::1", "svc/web", "another IP family"),
    ],
)
def test_questions_that_cannot_be_asked(source: str, target: str, error: str) -> None:
    with pytest.raises(UsageError) as caught:
        say(small(pod(1)), source, target)
    assert error.rstrip("; ") in str(caught.value)


# -- The kernel's own table --------------------------------------------------------------------------------------------


@pytest.mark.root
def test_what_was_changed_by_hand_shows(namespace: Namespace, tmp_path: Path) -> None:
    objects = small(pod(1), pod(2), pod(3))
    (tmp_path / "objects.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": API_VERSIONS[o["kind"]], **o} for o in (*objects, SERVICE_CIDRS, node({}))
    ]}))  # fmt: skip
    options = ("--manifests", str(tmp_path), "--node", "node0")
    command = (sys.executable, "-m", "proxy.cli")
    assert namespace.run(*command, "run", "--once", *options).returncode == 0

    def asked(*more: str) -> str:
        done = namespace.run(*command, "explain", "outside", "svc/web", "--live", *options, *more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "kernel    does the same" in asked()
    table = ("ip", "kube-proxy-nft")
    key = "10.96.1.1 . tcp . 80 . 2"
    namespace.nft("delete", "element", *table, "endpoints", "{", key, "}")
    (said,) = json.loads(asked("-o", "json"))
    gone = {e["endpoint"] for e in said["outcome"]["endpoints"]} - {e["endpoint"] for e in said["live"]["endpoints"]}
    assert len(gone) == 1
    assert any(f"{gone.pop()} is missing" in why for why in said["differs"])
    namespace.nft("insert", "rule", *table, "cluster-ip-port", "drop")
    assert "dropped: 100.0% in the kernel's table, not 0.0%" in asked()
    namespace.nft("insert", "rule", *table, "cluster-ip-port", "counter")
    done = namespace.run(*command, "explain", "outside", "svc/web", "--live", *options)
    assert done.returncode == 2 and "somebody has changed it" in done.stderr and "counter" in done.stderr


# -- The rules on one packet against the kernel's own ------------------------------------------------------------------

_CLIENTS = """
import socket, sys
server = socket.create_server(("", 8080))
for number in range(1, 65):
    client = socket.socket()
    client.bind((f"10.9.0.{number}", 0))
    client.connect(("10.96.1.1", 80))
    print(server.accept()[0].getsockname()[0])
"""


@pytest.mark.root
def test_hashes_lead_where_the_kernel_s_hash_leads(namespace: Namespace) -> None:
    key = service_key(parse_address("10.96.1.1"), 6, 80)
    pods = tuple(endpoint(parse_address(f"11.0.0.{number}"), 8080) for number in range(1, 12))
    port = ServicePort(key, "default/web:http", pods, scheduler=Scheduler.SH)
    namespace.kernel.commit(create(LAYOUTS[Family.IPV4], Options(), ()))
    namespace.kernel.commit(scratch(Family.IPV4, [port], frozenset()).operations)
    for words in (
        "link set lo up",
        "addr add 10.244.0.2/32 dev lo",
        "route add local 10.9.0.0/16 dev lo",
        "route add local 11.0.0.0/8 dev lo",
        "route add 10.96.0.0/12 dev lo",
    ):
        assert namespace.run("ip", *words.split()).returncode == 0
    done = namespace.run(sys.executable, "-c", _CLIENTS)
    assert done.returncode == 0, done.stderr
    table = namespace.kernel.dump(LAYOUTS[Family.IPV4].table)
    assert table
    said = []
    for number in range(1, 65):
        source = parse_address(f"10.9.0.{number}")
        packet = Packet(Family.IPV4, source, parse_address("10.96.1.1"), 6, 80, "", True)
        ((fate, chance),) = fates(table, packet).items()
        assert chance == 1.0
        said.append(socket.inet_ntoa(fate.endpoint[:4]))
    assert said == done.stdout.split()
    assert len(set(said)) > 8


def test_what_a_rule_did_before_it_gave_up_stays() -> None:
    table, packet = Table(Family.IPV4, "t"), Packet(Family.IPV4, b"\x0a\0\0\1", b"\x0a\0\0\2", 6, 80)
    nobody = Set(table, "nobody", (Field.IP_DADDR,))
    output, postrouting = Chain(table, "output", OUTPUT), Chain(table, "postrouting", POSTROUTING)
    rules = [Rule(output, (SetMark(1), InSet(nobody), drop())), Rule(postrouting, (HasMark(1), Masquerade()))]
    kernel = FakeKernel()
    kernel.commit([AddTable(table), AddSet(nobody), AddChain(output), AddChain(postrouting), *map(AddRule, rules)])
    found = kernel.dump(table)
    assert found
    ((fate, chance),) = fates(found, packet).items()
    assert (fate.what, fate.is_masqueraded, chance) == ("untouched", True, 1.0)


@pytest.mark.parametrize(
    ("words", "seed", "expected"),
    [([], 0, 0xDEADBEEF), ([1], 1, None), ([1, 2, 3], 7, None), ([1, 2, 3, 4], 7, None)],
)
def test_a_hash_is_of_32_bits_and_of_all_that_it_is_made_of(words: list[int], seed: int, expected: int | None) -> None:
    data = b"".join(word.to_bytes(4, "little") for word in words)
    value = jhash(data, seed)
    assert 0 <= value < 2**32 and (expected is None or value == expected)
    assert not words or value != jhash(data, seed + 1)
    for position in range(len(data)):
        assert jhash(data[:position] + bytes((data[position] ^ 1,)) + data[position + 1 :], seed) != value
