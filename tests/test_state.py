"""The state: which objects count, which endpoints a packet may reach, who keeps an address that two claim."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from proxy.events import Delete, Event, Put, Replace
from proxy.model import ENDPOINT_SLICE, NODE, SERVICE, SERVICE_CIDR, convert
from proxy.nodes import ABSENT, NodeInfo
from proxy.object_faults import Problem
from proxy.state import State
from rules.elements import ServicePort, describe_key
from tests.objects import Object, endpoint_slice, service

HERE, THERE = "node0", "node1"


def put(data: Object) -> Put:
    return Put(convert(data["kind"], data))


class World:
    """A state, what it said, and what an agent would have programmed of it."""

    def __init__(self, *objects: Object) -> None:
        self.state = State(HERE)
        self.ports: dict[bytes, ServicePort] = {}
        self.changed: set[str] = set()
        self.looked_at: set[str] = set()
        self.put(*objects)

    def apply(self, *events: Event) -> World:
        for event in events:
            self.state.apply(event)
        wanted = self.state.wanted()
        self.looked_at = {describe_key(key) for key in wanted}
        self.changed = {describe_key(key) for key, port in wanted.items() if port != self.ports.get(key)}
        for key, port in wanted.items():
            if port:
                self.ports[key] = port
            else:
                self.ports.pop(key, None)
        self.state.settle(wanted)
        everything = {key: port for key, port in self.state.everything().items() if port}
        assert {k: same(p) for k, p in everything.items()} == {k: same(p) for k, p in self.ports.items()}
        return self

    def put(self, *objects: Object) -> World:
        return self.apply(*map(put, objects))

    def delete(self, obj: Object) -> World:
        return self.apply(Delete(obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]))

    def problems(self) -> list[Problem]:
        """What was found since last asked."""
        found = list(self.state.faults.news)
        self.state.faults.news.clear()
        return found

    def port(self, name: str) -> ServicePort:
        """The service port "address:port/protocol"."""
        [found] = [port for key, port in self.ports.items() if describe_key(key) == name]
        return found

    def leads_to(self, name: str = "10.96.0.1:80/TCP") -> list[str]:
        return sorted(described(endpoint) for endpoint in self.port(name).endpoints)

    @property
    def names(self) -> set[str]:
        return {describe_key(key) for key in self.ports}


def same(port: ServicePort) -> Any:
    return port.name, sorted(port.endpoints), sorted(port.hairpins), port.drop


def described(packed: bytes) -> str:
    address, port = ipaddress.ip_address(packed[:-4]), int.from_bytes(packed[-4:-2])
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def labelled(obj: Object, **labels: str) -> Object:
    """With these labels besides its own; "__" stands for "/" and "_" for "-"; a name that begins so is under it."""
    full = {name.replace("__", ".kubernetes.io/").replace("_", "-"): value for name, value in labels.items()}
    return obj | {"metadata": obj["metadata"] | {"labels": obj["metadata"].get("labels", {}) | full}}


def born(obj: Object, time: str | None) -> Object:
    return obj | {"metadata": obj["metadata"] | {"creationTimestamp": time}}


def endpoint(address: str, node: str | None = None, **fields: Any) -> Object:
    """conditions by name (ready, serving, terminating); zones, nodes: hints."""
    conditions = {name: fields[name] for name in ("ready", "serving", "terminating") if name in fields}
    hints = {
        key: [{"name": name} for name in fields[field]]
        for field, key in (("zones", "forZones"), ("nodes", "forNodes"))
        if field in fields
    }
    made: Object = {"addresses": [address]}
    if conditions:
        made["conditions"] = conditions
    if hints:
        made["hints"] = hints
    if node is not None:
        made["nodeName"] = node
    return made


def place(zone: str | None, name: str = HERE) -> Object:
    labels = {} if zone is None else {"topology.kubernetes.io/zone": zone}
    return {"kind": NODE, "metadata": {"name": name, "labels": labels}}


def web(**spec: Any) -> Object:
    return service("web", "10.96.0.1", **spec)


A, B, C = "10.244.0.1", "10.244.0.2", "10.244.0.3"


# Which objects count.


def test_a_service_leads_to_its_endpoints() -> None:
    world = World(web(), endpoint_slice("web", A, B))
    assert world.names == {"10.96.0.1:80/TCP"}
    assert world.leads_to() == [f"{A}:8080", f"{B}:8080"]
    assert world.port("10.96.0.1:80/TCP").name == "default/web:http"
    assert not world.problems()


def test_the_order_of_events_does_not_matter() -> None:
    assert World(endpoint_slice("web", A), web()).leads_to() == [f"{A}:8080"]
    world = World(endpoint_slice("web", A)).apply(Delete(SERVICE, "default", "web"))
    assert world.put(web()).leads_to() == [f"{A}:8080"]


@pytest.mark.parametrize(
    "ignored",
    [
        service("web", "10.96.0.1", type="ExternalName"),
        service("web", "None"),
        service("web", ""),
        labelled(web(), service__service_proxy_name="other"),
        labelled(web(), service__service_proxy_name=""),
    ],
    ids=["ExternalName", "headless", "no clusterIP", "another proxy's", "some other proxy's"],
)
def test_services_that_are_not_ours(ignored: Object) -> None:
    world = World(endpoint_slice("web", A), ignored)
    assert not world.names and not world.problems()
    assert World(web(), endpoint_slice("web", A)).put(ignored).names == set()
    assert world.put(web()).names == {"10.96.0.1:80/TCP"}


@pytest.mark.parametrize(
    "ignored",
    [
        labelled(endpoint_slice("web", A), service__headless=""),
        labelled(endpoint_slice("web", A), service__service_proxy_name="other"),
        endpoint_slice("web", {"addresses": ["example.org"]}) | {"addressType": "FQDN"},
        endpoint_slice("web", A) | {"metadata": {"name": "web-1", "namespace": "default"}},
        endpoint_slice("web", A, namespace="other"),
        endpoint_slice("", A, name="web-1"),
    ],
    ids=["headless", "another proxy's", "FQDN", "no label", "another namespace", "empty label"],
)
def test_slices_that_are_not_ours(ignored: Object) -> None:
    world = World(web(), ignored)
    assert world.leads_to() == [] and not world.problems()
    if ignored["metadata"]["namespace"] == "default":
        assert World(web(), endpoint_slice("web", A)).put(ignored).leads_to() == []


def test_ports_meet_by_name_and_protocol() -> None:
    ports = [{"name": "a", "port": 80}, {"name": "b", "port": 81}, {"name": "a", "port": 80, "protocol": "UDP"}]
    targets: list[Object] = [
        {"name": "a", "port": 1},
        {"name": "a", "port": 2, "protocol": "UDP"},
        {"name": "b", "port": 3, "protocol": "UDP"},
        {"name": "c", "port": 4},
        {"name": "", "port": 5},
        {"name": "b"},
    ]
    world = World(web(ports=ports), endpoint_slice("web", A, ports=targets))
    assert world.leads_to("10.96.0.1:80/TCP") == [f"{A}:1"]
    assert world.leads_to("10.96.0.1:80/UDP") == [f"{A}:2"]
    assert world.leads_to("10.96.0.1:81/TCP") == []
    assert not world.problems()


@pytest.mark.parametrize("target", [{"port": 1}, {"name": "", "port": 1}, {"name": None, "port": 1, "protocol": None}])
def test_the_unnamed_port(target: Object) -> None:
    world = World(web(ports=[{"port": 80}]), endpoint_slice("web", A, ports=[target]))
    assert world.leads_to() == [f"{A}:1"]
    assert world.port("10.96.0.1:80/TCP").name == "default/web"


def test_target_ports_differ_from_slice_to_slice() -> None:
    other = endpoint_slice("web", B, name="web-2", ports=[{"name": "http", "port": 9}])
    assert World(web(), endpoint_slice("web", A), other).leads_to() == [f"{A}:8080", f"{B}:9"]


@pytest.mark.parametrize("ips", [("10.96.0.1", "fd00::1"), ("fd00::1", "10.96.0.1")])
def test_dual_stack_is_two_single_stacks(ips: tuple[str, str]) -> None:
    world = World(service("web", *ips), endpoint_slice("web", A), endpoint_slice("web", "fd44::1", name="web-6"))
    assert world.leads_to("10.96.0.1:80/TCP") == [f"{A}:8080"]
    assert world.leads_to("[fd00::1]:80/TCP") == ["[fd44::1]:8080"]
    world.put(service("web", ips[0]))
    assert len(world.names) == 1
    world.put(service("web", ips[1]))
    assert len(world.names) == 1


def test_one_port_number_for_three_protocols() -> None:
    ports = [{"name": p, "port": 53, "protocol": p} for p in ("TCP", "UDP", "SCTP")]
    world = World(web(ports=ports), endpoint_slice("web", A, ports=[{**p, "port": 1053} for p in ports]))
    assert world.names == {f"10.96.0.1:53/{p}" for p in ("TCP", "UDP", "SCTP")}
    assert all(world.leads_to(name) == [f"{A}:1053"] for name in world.names)


def test_only_the_first_address_of_an_endpoint_counts() -> None:
    assert World(web(), endpoint_slice("web", {"addresses": [A, B]})).leads_to() == [f"{A}:8080"]


def test_a_slice_moves_to_another_service() -> None:
    world = World(web(), service("api", "10.96.0.2"), endpoint_slice("web", A, name="x"))
    world.put(endpoint_slice("api", A, name="x"))
    assert world.leads_to() == [] and world.leads_to("10.96.0.2:80/TCP") == [f"{A}:8080"]
    assert world.changed == {"10.96.0.1:80/TCP", "10.96.0.2:80/TCP"}
    world.delete(endpoint_slice("api", A, name="x"))
    assert world.leads_to("10.96.0.2:80/TCP") == []


def test_only_what_may_have_changed_is_looked_at() -> None:
    hints = endpoint_slice("web", endpoint(A, zones=["z"]))
    world = World(place("z"), web(), hints, service("api", "10.96.0.2"), endpoint_slice("api", B))
    world.put(endpoint_slice("web", A, C))
    assert world.looked_at == world.changed == {"10.96.0.1:80/TCP"}
    world.put(hints).put(hints, web(), place("z"), place("y", THERE))
    assert world.looked_at == set()
    assert world.put(place("y")).looked_at == {"10.96.0.1:80/TCP"}


def test_nothing_is_left_of_what_is_gone() -> None:
    clash, bad = service("api", "10.96.0.1"), service("bad", "10.96.0.256")
    objects = [web(), clash, bad, endpoint_slice("web", A), endpoint_slice("web", "10.244.0.256", name="web-2")]
    world = World(*objects, cidr("kubernetes", "10.96.0.0/33"))
    for obj in [*objects, cidr("kubernetes")]:
        world.delete(obj)
    world.problems()
    kept = vars(world.state) | vars(world.state._claims) | vars(world.state.faults)
    assert {name: held for name, held in kept.items() if isinstance(held, dict | set | list) and held} == {}


# Conditions.


@pytest.mark.parametrize(
    ("conditions", "usable"),
    [
        ({}, True),
        ({"ready": None, "serving": None, "terminating": None}, True),
        ({"ready": True}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True}, False),
        ({"ready": True, "serving": False}, True),  # publishNotReadyAddresses
        ({"ready": False, "serving": True, "terminating": True}, True),
        ({"ready": False, "terminating": True}, True),  # serving missing is true
        ({"ready": False, "serving": False, "terminating": True}, False),
        ({"ready": False, "serving": True, "terminating": None}, False),
        ({"ready": True, "serving": True, "terminating": True}, True),
    ],
)
def test_conditions_of_the_only_endpoint(conditions: Object, usable: bool) -> None:
    world = World(web(), endpoint_slice("web", endpoint(A, **conditions)))
    assert world.leads_to() == ([f"{A}:8080"] if usable else [])
    assert not world.port("10.96.0.1:80/TCP").drop


def test_those_that_terminate_are_the_last_resort() -> None:
    going = endpoint(A, ready=False, serving=True, terminating=True)
    assert World(web(), endpoint_slice("web", going, B)).leads_to() == [f"{B}:8080"]
    assert World(web(), endpoint_slice("web", going, endpoint(B, ready=False))).leads_to() == [f"{A}:8080"]
    other = endpoint_slice("web", B, name="web-2")
    assert World(web(), endpoint_slice("web", going), other).delete(other).leads_to() == [f"{A}:8080"]


# One address in two slices.


READY = endpoint(A)
NOT_READY = endpoint(A, ready=False)
GOING = endpoint(A, ready=False, serving=True, terminating=True)
GOING_READY = endpoint(A, ready=True, serving=True, terminating=True)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("better", "worse"),
    [(READY, GOING), (READY, NOT_READY), (READY, GOING_READY), (NOT_READY, GOING), (NOT_READY, GOING_READY)],
)
def test_the_better_of_two_with_one_address_counts(better: Object, worse: Object, turned: bool) -> None:
    pair = [(better | {"nodeName": HERE}, "web-a"), (worse | {"nodeName": THERE}, "web-b")]
    if turned:
        pair = [(better | {"nodeName": HERE}, "web-b"), (worse | {"nodeName": THERE}, "web-a")]
    slices = [endpoint_slice("web", one, name=name) for one, name in sorted(pair, key=lambda p: p[1])]
    alone = World(web(), endpoint_slice("web", better | {"nodeName": HERE}))
    world = World(web(), *slices)
    assert world.leads_to() == alone.leads_to()
    assert same(world.port("10.96.0.1:80/TCP")) == same(alone.port("10.96.0.1:80/TCP"))  # its node, too: hairpins
    in_one = World(web(), endpoint_slice("web", *(one for one, _ in sorted(pair, key=lambda p: p[1]))))
    assert in_one.leads_to() == alone.leads_to()


def test_a_merged_address_is_one_endpoint_and_another_port_is_another() -> None:
    twice = [endpoint_slice("web", A, name=f"web-{i}") for i in range(2)]
    other = endpoint_slice("web", A, name="web-9", ports=[{"name": "http", "port": 9}])
    assert World(web(), *twice).leads_to() == [f"{A}:8080"]
    assert World(web(), *twice, other).leads_to() == [f"{A}:8080", f"{A}:9"]


def test_an_endpoint_does_not_flap_while_it_moves_between_slices() -> None:
    old, new = endpoint_slice("web", A, B, name="old"), endpoint_slice("web", A, name="new")
    world = World(web(), old)
    world.put(new)
    assert world.leads_to() == [f"{A}:8080", f"{B}:8080"] and not world.changed
    world.put(endpoint_slice("web", B, name="old"))
    assert world.leads_to() == [f"{A}:8080", f"{B}:8080"]


# Hints.


def hinted(*endpoints: Object) -> list[Object]:
    return [web(), endpoint_slice("web", *endpoints)]


def test_hints_for_this_node() -> None:
    ours, theirs = endpoint(A, nodes=[HERE]), endpoint(B, nodes=[THERE])
    assert World(*hinted(ours, theirs)).leads_to() == [f"{A}:8080"]
    assert World(*hinted(ours, endpoint(B, nodes=[THERE, HERE]))).leads_to() == [f"{A}:8080", f"{B}:8080"]
    assert World(*hinted(theirs)).leads_to() == [f"{B}:8080"]  # none for us: no narrowing
    assert World(*hinted(ours, endpoint(B))).leads_to() == [f"{A}:8080", f"{B}:8080"]  # one without


def test_hints_for_this_zone() -> None:
    ours, theirs = endpoint(A, zones=["z"]), endpoint(B, zones=["y"])
    assert World(place("z"), *hinted(ours, theirs)).leads_to() == [f"{A}:8080"]
    assert World(place("x"), *hinted(ours, theirs)).leads_to() == [f"{A}:8080", f"{B}:8080"]
    assert World(place(None), *hinted(ours, theirs)).leads_to() == [f"{A}:8080", f"{B}:8080"]
    assert World(place("z"), *hinted(ours, endpoint(B))).leads_to() == [f"{A}:8080", f"{B}:8080"]
    assert World(place(""), *hinted(endpoint(A, zones=[""]), theirs)).leads_to() == [f"{A}:8080", f"{B}:8080"]


def test_a_hint_for_a_node_goes_before_one_for_a_zone() -> None:
    both = [endpoint(A, nodes=[HERE], zones=["y"]), endpoint(B, nodes=[THERE], zones=["z"])]
    assert World(place("z"), *hinted(*both)).leads_to() == [f"{A}:8080"]
    both = [endpoint(A, nodes=[THERE], zones=["y"]), endpoint(B, nodes=[THERE], zones=["z"])]
    assert World(place("z"), *hinted(*both)).leads_to() == [f"{B}:8080"]  # none for this node: by zone


def test_only_ready_endpoints_have_a_say_in_hints() -> None:
    unready = endpoint(C, ready=False)
    ours, theirs = endpoint(A, zones=["z"]), endpoint(B, zones=["y"])
    assert World(place("z"), *hinted(ours, theirs, unready)).leads_to() == [f"{A}:8080"]
    unready_ours = endpoint(A, zones=["z"], ready=False)
    assert World(place("z"), *hinted(unready_ours, theirs)).leads_to() == [f"{B}:8080"]


def test_hints_do_not_narrow_the_last_resort() -> None:
    going = [endpoint(a, zones=[z], ready=False, serving=True, terminating=True) for a, z in ((A, "z"), (B, "y"))]
    assert World(place("z"), *hinted(*going)).leads_to() == [f"{A}:8080", f"{B}:8080"]


def test_the_zone_may_change_while_running() -> None:
    ours, theirs = endpoint(A, zones=["z"]), endpoint(B, zones=["y"])
    world = World(*hinted(ours, theirs), service("api", "10.96.0.2"), endpoint_slice("api", C))
    assert world.put(place("z")).leads_to() == [f"{A}:8080"]
    assert world.changed == {"10.96.0.1:80/TCP"}
    assert world.put(place("y")).leads_to() == [f"{B}:8080"]
    assert world.put(place("z", THERE)).leads_to() == [f"{B}:8080"]  # another node's label
    assert world.delete(place("z", THERE)).leads_to() == [f"{B}:8080"]
    assert world.delete(place("y")).leads_to() == [f"{A}:8080", f"{B}:8080"]
    assert world.put(place("y")).apply(Replace(NODE, [])).leads_to() == [f"{A}:8080", f"{B}:8080"]


def test_an_empty_slice_does_not_keep_the_zone_from_counting() -> None:
    world = World(place("z"), *hinted(endpoint(A, zones=["z"]), endpoint(B, zones=["y"])))
    world.put(endpoint_slice("web", name="web-2"))
    assert world.put(place("y")).leads_to() == [f"{B}:8080"]


# internalTrafficPolicy: Local.

LOCAL = web(internalTrafficPolicy="Local")


def drops(world: World) -> bool:
    return world.port("10.96.0.1:80/TCP").drop


def test_local_leads_to_this_nodes_endpoints() -> None:
    world = World(LOCAL, endpoint_slice("web", endpoint(A, HERE), endpoint(B, THERE), endpoint(C)))
    assert world.leads_to() == [f"{A}:8080"] and not drops(world)
    assert world.put(web()).leads_to() == [f"{A}:8080", f"{B}:8080", f"{C}:8080"]
    assert world.put(LOCAL).leads_to() == [f"{A}:8080"]


def test_local_with_endpoints_elsewhere_only_drops() -> None:
    world = World(LOCAL, endpoint_slice("web", endpoint(B, THERE)))
    assert world.leads_to() == [] and drops(world)
    going = endpoint(B, THERE, ready=False, serving=True, terminating=True)
    assert drops(World(LOCAL, endpoint_slice("web", going)))
    assert drops(World(LOCAL, endpoint_slice("web", endpoint(A, HERE, ready=False), endpoint(B, THERE))))


def test_local_without_endpoints_anywhere_refuses() -> None:
    assert not drops(World(LOCAL))
    assert not drops(
        World(LOCAL, endpoint_slice("web", endpoint(A, HERE, ready=False), endpoint(B, THERE, ready=False)))
    )


def test_local_falls_back_to_those_that_terminate_here() -> None:
    going = endpoint(A, HERE, ready=False, serving=True, terminating=True)
    world = World(LOCAL, endpoint_slice("web", going, endpoint(B, THERE)))
    assert world.leads_to() == [f"{A}:8080"] and not drops(world)
    assert World(LOCAL, endpoint_slice("web", going, endpoint(B, HERE))).leads_to() == [f"{B}:8080"]
    assert World(web(), endpoint_slice("web", going, endpoint(B, THERE))).leads_to() == [f"{B}:8080"]


def test_hints_do_not_apply_to_local() -> None:
    ends = [endpoint(A, HERE, zones=["y"], nodes=[THERE]), endpoint(B, HERE, zones=["z"], nodes=[HERE])]
    assert World(place("z"), LOCAL, endpoint_slice("web", *ends)).leads_to() == [f"{A}:8080", f"{B}:8080"]


# Endpoints that may be the sender itself.


def test_hairpins_are_the_endpoints_on_this_node() -> None:
    world = World(web(), endpoint_slice("web", endpoint(A, HERE), endpoint(B, THERE), endpoint(C)))
    hairpins = {str(ipaddress.ip_address(packed)) for packed in world.port("10.96.0.1:80/TCP").hairpins}
    assert hairpins == {A, C}  # C says no node: it may be here


def test_an_endpoint_that_is_not_used_is_no_hairpin() -> None:
    world = World(web(), endpoint_slice("web", endpoint(A, HERE, ready=False), endpoint(B, THERE)))
    assert world.port("10.96.0.1:80/TCP").hairpins == ()


# Sloppy and bad objects.


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("010.096.0.01", "10.96.0.1"),
        ("10.96.000.1", "10.96.0.1"),
        ("::ffff:10.96.0.1", "10.96.0.1"),
        ("::FFFF:0a60:0001", "10.96.0.1"),
        ("FD00:0:0::0001", "fd00::1"),
    ],
)
def test_sloppy_addresses(text: str, address: str) -> None:
    world = World(service("web", text), endpoint_slice("web", {"addresses": ["010.244.000.1"]}))
    assert world.names == {f"[{address}]:80/TCP" if ":" in address else f"{address}:80/TCP"}
    if ":" not in address:
        assert world.leads_to() == [f"{A}:8080"]
    assert not world.problems()


IMPOSSIBLE = [
    "10.96.0",
    "10.96.0.256",
    "10.96.0.0x1",
    "10.96.0.1/32",
    "10..0.1",
    "10.96.0.-1",
    "10.96.0.²",
    "fd00::g",
    "fd00::1%eth0",
    "x",
    "127.0.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "169.254.1.1",
    "::",
    "::1",
    "ff02::1",
    "fe80::1",
    "::ffff:127.0.0.1",
]


@pytest.mark.parametrize("text", [*IMPOSSIBLE, " 10.96.0.1", "10.96.0.1\n", "\0", "1" * 500], ids=ascii)
def test_impossible_addresses(text: str) -> None:
    world = World(web(), endpoint_slice("web", A), service("bad", text), endpoint_slice("bad", {"addresses": [text]}))
    if ":" in text:
        world.put(endpoint_slice("bad", {"addresses": [text]}) | {"addressType": "IPv6"})
    assert world.names == {"10.96.0.1:80/TCP"}
    problems = world.problems()
    assert {(p.kind, p.name) for p in problems} == {(SERVICE, "bad"), (ENDPOINT_SLICE, "bad-1")}
    assert all(repr(text) in p.reason for p in problems if p.kind == SERVICE)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"ports": [{"port": 0}]}, "0 is not in 1..65535"),
        ({"ports": [{"port": -1}]}, "-1 is not in 1..65535"),
        ({"ports": [{"port": 65536}]}, "65536 is not in 1..65535"),
        ({"ports": [{"name": "a", "port": 1}, {"name": "a", "port": 2}]}, "spec.ports[1].name: 'a'"),
        ({"ports": [{"name": "a", "port": 1}, {"name": "b", "port": 1}]}, "this port and protocol is there twice"),
        ({"ports": [{"port": 1, "protocol": "tcp"}]}, "'tcp' is none of"),
        ({"clusterIPs": ["10.96.0.9", "10.96.0.8"]}, "of one IP family"),
        ({"clusterIPs": ["10.96.0.9", "::ffff:10.96.0.8"]}, "of one IP family"),
    ],
)
def test_impossible_services(spec: Object, words: str) -> None:
    world = World(web(), service("bad", "10.96.0.9", **spec))
    [problem] = world.problems()
    assert (problem.namespace, problem.name) == ("default", "bad") and words in problem.reason
    assert world.names == {"10.96.0.1:80/TCP"}
    assert world.put(service("bad", "10.96.0.9")).names == {"10.96.0.1:80/TCP", "10.96.0.9:80/TCP"}
    assert world.put(service("bad", "10.96.0.9", **spec)).names == {"10.96.0.1:80/TCP"}


def test_the_greatest_and_the_smallest_port() -> None:
    ports = [{"name": "a", "port": 1}, {"name": "b", "port": 65535}]
    targets = [{"name": "a", "port": 65535}, {"name": "b", "port": 1}]
    world = World(web(ports=ports), endpoint_slice("web", A, ports=targets))
    assert world.leads_to("10.96.0.1:1/TCP") == [f"{A}:65535"]
    assert world.leads_to("10.96.0.1:65535/TCP") == [f"{A}:1"]


def test_what_is_bad_of_a_slice_is_left_out_and_the_rest_stays() -> None:
    ends: list[str | Object] = [A, {"addresses": []}, {"addresses": ["10.244.0.300"]}, {"addresses": ["fd44::1"]}, B]
    ports = [{"name": "http", "port": 8080}, {"name": "x", "port": 0}, {"name": "y", "port": 1, "protocol": "ICMP"}]
    world = World(web(), endpoint_slice("web", *ends, ports=ports))
    assert world.leads_to() == [f"{A}:8080", f"{B}:8080"]
    reasons = [problem.reason for problem in world.problems()]
    assert [reason.split(":")[0] for reason in reasons] == [
        "ports[1].port",
        "ports[2].protocol",
        "endpoints.addresses",
        "endpoints.addresses",
        "endpoints.addresses",
    ]


def test_more_endpoints_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.state.MAX_ENDPOINTS", 2)
    world = World(web(), endpoint_slice("web", A, B), endpoint_slice("web", C, name="web-2"))
    assert world.leads_to() == [f"{A}:8080", f"{B}:8080"]
    assert "has 3 endpoints; only 2 are used" in world.problems()[0].reason
    assert world.put(endpoint_slice("web", B)).leads_to() == [f"{B}:8080", f"{C}:8080"]


def test_too_many_endpoints_are_told_once_for_all_addresses_and_forgotten_when_they_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.state.MAX_ENDPOINTS", 1)
    several = web(externalIPs=["192.0.2.1", "192.0.2.2"])
    many, few = endpoint_slice("web", A, B), endpoint_slice("web", A)
    world = World(several, many)
    assert len(world.leads_to()) == 1 and len(world.problems()) == 1
    world.put(endpoint_slice("web", A, B, C)).leads_to()
    assert not world.problems() and len(world.state.faults.known) == 1
    world.put(few).leads_to()
    assert not world.state.faults.known
    world.put(many).leads_to()
    assert len(world.problems()) == 1
    world.delete(several)
    assert not world.state.faults.known


def test_an_unknown_address_type() -> None:
    world = World(web(), endpoint_slice("web", A) | {"addressType": "IPv5"})
    [problem] = world.problems()
    assert "IPv5" in problem.reason and world.leads_to() == []


def test_a_problem_is_told_once_and_again_when_it_comes_back() -> None:
    bad = service("bad", "10.96.0.256")
    world = World(bad, bad)
    assert len(world.problems()) == 1
    world.put(bad).apply(Replace(SERVICE, [convert(SERVICE, bad)]))
    assert not world.problems()
    world.put(service("bad", "10.96.0.257"))
    assert "257" in world.problems()[0].reason
    world.put(bad)
    assert "256" in world.problems()[0].reason
    world.put(service("bad", "10.96.0.2")).put(bad)
    assert len(world.problems()) == 1
    world.delete(bad).put(bad)
    assert len(world.problems()) == 1


def test_a_bad_endpoint_is_told_once_also_when_others_come_and_go() -> None:
    world = World(web(), endpoint_slice("web", A, "10.244.0.300", B))
    assert len(world.problems()) == 1
    world.put(endpoint_slice("web", "10.244.0.300", B))
    assert not world.problems()


# ServiceCIDRs.


def cidr(name: str, *cidrs: str) -> Object:
    return {"kind": SERVICE_CIDR, "metadata": {"name": name}, "spec": {"cidrs": list(cidrs)}}


def cidrs(world: World) -> list[str]:
    return [str(network) for network in world.state.service_cidrs]


def test_service_cidrs() -> None:
    world = World(cidr("a", "10.96.0.0/16", "fd00::/112"), cidr("b", "10.200.0.0/16", "10.96.0.0/16"))
    assert cidrs(world) == ["10.96.0.0/16", "10.200.0.0/16", "fd00::/112"]
    assert cidrs(world.delete(cidr("b"))) == ["10.96.0.0/16", "fd00::/112"]
    assert cidrs(world.apply(Replace(SERVICE_CIDR, []))) == []


def test_a_service_cidr_counts_from_the_first_event_to_the_last() -> None:
    """As in kube-proxy: neither its conditions nor its deletion change what is a Service's address until it is gone."""
    pending = cidr("a", "10.96.0.0/16")
    ready = {"type": "Ready", "status": "False", "reason": "Terminating"}
    leaving = pending | {"status": {"conditions": [ready]}}
    leaving["metadata"] = leaving["metadata"] | {"deletionTimestamp": "2026-11-30T04:34:38Z", "finalizers": ["x"]}
    world = World(pending)
    assert cidrs(world) == cidrs(world.put(leaving)) == ["10.96.0.0/16"]
    assert cidrs(world.delete(pending)) == []


def test_a_service_cidr_grows_by_a_family() -> None:
    world = World(cidr("kubernetes", "10.96.0.0/16"), cidr("more", "10.97.0.0/16"))
    assert cidrs(world.put(cidr("kubernetes", "10.96.0.0/16", "fd00::/112"))) == [
        "10.96.0.0/16",
        "10.97.0.0/16",
        "fd00::/112",
    ]
    assert cidrs(world.put(cidr("more", "10.98.0.0/16")))[:2] == ["10.96.0.0/16", "10.98.0.0/16"]
    assert not world.changed  # no service port depends on it


def test_a_server_without_service_cidrs() -> None:
    world = World(web()).apply(Replace(SERVICE_CIDR, ()))
    assert cidrs(world) == [] and world.names == {"10.96.0.1:80/TCP"}


def test_sloppy_and_bad_service_cidrs() -> None:
    world = World(cidr("a", "010.96.0.1/16", "fd00::5/112", " 10.200.0.0/16 "))
    assert cidrs(world) == ["10.96.0.0/16", "10.200.0.0/16", "fd00::/112"] and not world.problems()
    world.put(cidr("b", "10.201.0.0/16", "10.96.0.0/33", "10.96.0.0", "x/8", "10.0.0.0/-1", ""))
    assert cidrs(world)[:3] == ["10.96.0.0/16", "10.200.0.0/16", "10.201.0.0/16"] and len(cidrs(world)) == 4
    problems = world.problems()
    assert [problem.name for problem in problems] == ["b"] * 5
    assert all(problem.reason.startswith("spec.cidrs: ") for problem in problems)
    world.put(cidr("b", "10.201.0.0/16", "10.96.0.0/33", "10.96.0.0", "x/8", "10.0.0.0/-1", ""))
    assert not world.problems()
    assert cidrs(world.put({"kind": SERVICE_CIDR, "metadata": {"name": "a"}})) == ["10.201.0.0/16"]


# This node's object.


def node_at(*addresses: str, **spec: Any) -> Object:
    status = {"addresses": [{"type": "InternalIP", "address": address} for address in addresses]}
    return {"kind": NODE, "metadata": {"name": HERE}, "spec": spec, "status": status}


def test_the_node_is_unknown_then_there_then_gone() -> None:
    world = World()
    assert world.state.node is None
    assert world.apply(Replace(NODE, [])).state.node == ABSENT
    assert world.put(node_at("192.0.2.1")).state.node == NodeInfo(addresses=(bytes([192, 0, 2, 1]),))
    assert world.put(place("z", THERE)).delete(place("z", THERE)).state.node != ABSENT  # another one
    assert world.delete(node_at()).state.node == ABSENT
    marked = convert(NODE, node_at(taints=[{"key": "ToBeDeletedByClusterAutoscaler"}]))
    node = world.apply(Replace(NODE, [marked])).state.node
    assert node and node.exists and not node.eligible


def test_what_does_not_concern_us_is_not_another_node() -> None:
    """A Node is written again and again: what depends on it must not be looked at each time."""
    world = World(node_at("192.0.2.1"))
    before = world.state.node
    conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-30T04:34:38Z"}]
    again = node_at("192.0.2.1", taints=[{"key": "other", "effect": "NoSchedule"}])
    again["status"] |= {"conditions": conditions, "images": [{"names": ["a"]}]}
    assert world.put(again).state.node is before
    assert world.apply(Replace(NODE, [convert(NODE, again)])).state.node is before


def guarded() -> Object:
    """Its load balancer's addresses are sources themselves where the node's IP is within the range."""
    status = {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}, {"ip": "2001:db8::1"}]}}
    ranges = ["192.0.2.0/24", "fd77::/64"]
    made = service("web", "10.96.0.1", "fd00::1", type="LoadBalancer", loadBalancerSourceRanges=ranges)
    return made | {"status": status}


def admitted(world: World) -> set[str]:
    """Of the load balancer's addresses, those that are sources of themselves."""
    return {
        address
        for address in ("203.0.113.1", "2001:db8::1")
        for first, last in world.port(f"{address}:80/TCP" if "." in address else f"[{address}]:80/TCP").sources or ()
        if first == last == ipaddress.ip_address(address).packed
    }


def test_the_nodes_ips_decide_who_may_use_a_load_balancer() -> None:
    world = World(guarded())
    assert admitted(world) == set()
    assert admitted(world.put(node_at("192.0.2.1"))) == {"203.0.113.1"}
    assert admitted(world.put(node_at("192.0.2.1", "fd77::1"))) == {"203.0.113.1", "2001:db8::1"}
    assert admitted(world.put(node_at("198.51.100.1", "fd77::1"))) == {"2001:db8::1"}
    assert admitted(world.delete(node_at())) == set()


def test_a_bind_address_goes_before_the_nodes_ip() -> None:
    world = World()
    world.state = State(HERE, bound=(bytes([198, 51, 100, 9]),))
    assert admitted(world.put(guarded(), node_at("192.0.2.1", "fd77::1"))) == {"2001:db8::1"}
    world.state = State(HERE, bound=(bytes([192, 0, 2, 9]),))
    assert admitted(world.put(guarded())) == {"203.0.113.1"}  # without a Node, too
    assert admitted(world.put(node_at("198.51.100.1", "fd77::1"))) == {"203.0.113.1", "2001:db8::1"}


# Two Services claim one address, protocol and port.

OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


def holder(world: World) -> str:
    return world.port("10.96.0.1:80/TCP").name.removeprefix("default/").removesuffix(":http")


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("keeper", "loser"),
    [
        (born(service("z", "10.96.0.1"), OLD), born(service("a", "10.96.0.1"), NEW)),
        (born(service("a", "10.96.0.1"), OLD), born(service("z", "10.96.0.1"), OLD)),
        (born(service("z", "10.96.0.1"), OLD), born(service("a", "10.96.0.1"), None)),
        (service("a", "10.96.0.1"), service("z", "10.96.0.1")),
    ],
    ids=["older", "name", "dated", "undated"],
)
def test_the_older_keeps_what_two_claim(keeper: Object, loser: Object, turned: bool) -> None:
    objects = [keeper, loser]
    world = World(*(reversed(objects) if turned else objects))
    assert holder(world) == keeper["metadata"]["name"]
    [problem] = world.problems()
    assert problem.name == loser["metadata"]["name"]
    assert "10.96.0.1:80/TCP" in problem.reason and f"default/{keeper['metadata']['name']}" in problem.reason
    world.put(keeper, loser)
    assert not world.problems()
    assert holder(world.delete(keeper)) == loser["metadata"]["name"]
    assert holder(world.put(keeper)) == keeper["metadata"]["name"]
    assert world.delete(loser).delete(keeper).names == set()


def test_the_namespace_comes_before_the_name() -> None:
    first, second = service("z", "10.96.0.1", namespace="a"), service("a", "10.96.0.1", namespace="b")
    assert World(second, first).port("10.96.0.1:80/TCP").name == "a/z:http"


def test_a_conflict_is_about_one_port_only() -> None:
    ports = [{"name": "http", "port": 80}, {"name": "more", "port": 81}]
    world = World(service("a", "10.96.0.1"), service("b", "10.96.0.1", ports=ports))
    assert world.names == {"10.96.0.1:80/TCP", "10.96.0.1:81/TCP"}
    assert holder(world) == "a" and world.port("10.96.0.1:81/TCP").name == "default/b:more"
    udp = [{"name": "http", "port": 80, "protocol": "UDP"}]
    assert not World(service("a", "10.96.0.1"), service("b", "10.96.0.1", ports=udp)).problems()


def test_the_endpoints_are_the_holders() -> None:
    world = World(service("a", "10.96.0.1"), service("b", "10.96.0.1"), endpoint_slice("a", A), endpoint_slice("b", B))
    assert world.leads_to() == [f"{A}:8080"]
    world.put(endpoint_slice("b", C))
    assert world.leads_to() == [f"{A}:8080"] and not world.changed
    assert world.delete(service("a", "10.96.0.1")).leads_to() == [f"{C}:8080"]


def test_three_claims() -> None:
    world = World(*(service(name, "10.96.0.1") for name in "bca"))
    assert holder(world) == "a"
    assert sorted({problem.name for problem in world.problems()}) == ["b", "c"]
    assert holder(world.put(service("a", "10.96.0.9"))) == "b"  # the first gives it up
    assert holder(world.delete(service("b", "10.96.0.1"))) == "c"
    assert world.put(service("c", "None")).names == {"10.96.0.9:80/TCP"}


def test_a_claim_changes_with_its_service() -> None:
    world = World(service("a", "10.96.0.1"), endpoint_slice("a", endpoint(A, HERE), endpoint(B, THERE)))
    assert world.put(service("a", "10.96.0.1", internalTrafficPolicy="Local")).leads_to() == [f"{A}:8080"]
    world.put(service("a", "10.96.0.1", ports=[{"name": "other", "port": 80}]))
    assert world.leads_to() == [] and world.port("10.96.0.1:80/TCP").name == "default/a:other"
    waits = service("b", "10.96.0.1")
    assert holder(world.put(waits)) == "a:other"
    world.put(service("b", "10.96.0.1", internalTrafficPolicy="Local"), endpoint_slice("b", endpoint(B, THERE)))
    world.delete(service("a", "10.96.0.1"))
    assert holder(world) == "b" and drops(world)  # as it is by now, not as it was when it began to wait


def test_a_bad_service_claims_nothing() -> None:
    world = World(service("a", "10.96.0.1", ports=[{"port": 80}, {"port": 81}]), service("b", "10.96.0.1"))
    assert holder(world) == "b"
    assert [problem.name for problem in world.problems()] == ["a"]


# Lists.


def test_a_list_is_complete() -> None:
    world = World(web(), service("api", "10.96.0.2"), endpoint_slice("web", A), endpoint_slice("web", B, name="web-2"))
    world.apply(Replace(SERVICE, [convert(SERVICE, web())]))
    assert world.names == {"10.96.0.1:80/TCP"} and world.leads_to() == [f"{A}:8080", f"{B}:8080"]
    world.apply(Replace(ENDPOINT_SLICE, [convert(ENDPOINT_SLICE, endpoint_slice("web", B, name="web-2"))]))
    assert world.leads_to() == [f"{B}:8080"]
    assert world.changed == {"10.96.0.1:80/TCP"}
    assert world.apply(Replace(SERVICE, [])).names == set()


def test_complete_is_services_and_slices_and_listed_is_all() -> None:
    state = State(HERE)
    for kind, complete, listed in ((SERVICE, False, False), (NODE, False, False), (ENDPOINT_SLICE, True, False)):
        state.apply(Replace(kind, []))
        assert (state.is_complete, state.is_listed) == (complete, listed)
    state.apply(Replace(SERVICE_CIDR, []))
    assert state.is_listed


def test_what_is_wanted_stays_wanted_until_it_is_settled() -> None:
    state = State(HERE)
    state.apply(put(web()))
    assert len(state.wanted()) == 1
    assert len(state.wanted()) == 1
    wanted = state.wanted()
    state.apply(put(service("api", "10.96.0.2")))
    state.settle(wanted)
    assert [describe_key(key) for key in state.wanted()] == ["10.96.0.2:80/TCP"]
    state.settle_all()
    assert not state.wanted()


@pytest.mark.parametrize(
    ("ranges", "v4", "v6"),
    [
        (["fd77::/64"], "everybody", "some"),
        (["192.0.2.0/40", "fd77::/64"], "nobody", "some"),
        (["nonsense", "192.0.2.0/24"], "some", "nobody"),
        (["nonsense"], "nobody", "nobody"),
        (["nonsense", "0.0.0.0/0"], "everybody", "nobody"),
    ],
)
def test_a_source_range_that_cannot_be_read_opens_nothing(ranges: list[str], v4: str, v6: str) -> None:
    made = guarded()
    made["spec"]["loadBalancerSourceRanges"] = ranges
    world = World(made)
    for key, expected in (("203.0.113.1:80/TCP", v4), ("[2001:db8::1]:80/TCP", v6)):
        sources = world.port(key).sources
        assert ("everybody" if sources is None else "some" if sources else "nobody") == expected
