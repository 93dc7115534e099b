"""The model that real packets are held against is itself held against what was recorded of upstream kube-proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from integration import flows
from integration.cluster import CONFIG, SERVICE_CIDRS, node
from integration.flows import Case, Flow, Outcome
from integration.traffic import endpoint
from tests.service_model import MASQUERADED, Expected, Object, Source, World, expected

CASES: Final = [flows.load(path) for path in sorted((Path(__file__).parent / "data/flows").glob("*.json"))]
SOURCES: Final = {  # addresses of both families, and where their packets come into the node
    "external": ("192.168.77.1", "fd77::1", "eth0"),
    "external2": ("192.168.77.9", "fd77::9", "eth0"),
    "pod-l1": ("10.244.0.2", "fd44::2", "cni0"),
    "pod-l2": ("10.244.0.3", "fd44::3", "cni0"),
    "host": ("192.168.77.2", "fd77::2", ""),
}
INTERFACES: Final = ("127.0.0.1", "192.168.77.2", "192.168.78.2", "10.244.0.1", "::1", "fd77::2", "fd78::2", "fd44::1")

NOT_OURS: Final = frozenset(
    {
        "external-name: pod-l2 -> 10.244.0.2:8080/TCP",
        "headless: pod-l2 -> 10.244.0.2:8080/TCP",
        "lb-cluster: external -> 198.51.100.7:81/TCP",
        "lb-ipmode-proxy: pod-l2 -> 198.51.100.7:80/TCP",
        "nodeport-addresses-all: host -> 127.0.0.1:30081/TCP",
        "nodeport-addresses-config: external -> 192.168.77.2:30081/TCP",
        "nodeport-cluster: external -> 192.168.78.2:30081/TCP",
        "nodeport-cluster: host -> 127.0.0.1:30081/TCP",
        "nodeport-cluster: host -> 192.168.78.2:30081/TCP",
        "nodeport-cluster: pod-l1 -> 10.244.0.1:30081/TCP",
    }
)
"""Flows that no rule may touch: what became of them was the network's doing."""


def recorded(case: Case) -> Iterator[tuple[World, Flow]]:
    objects: dict[str, Object] = {}
    for step in case.steps:
        for reference in step.deletes:
            del objects[reference]
        objects.update({f"{o['kind']}/{o['metadata']['name']}": o for o in step.objects})
        services = [o for o in objects.values() if o["kind"] == "Service"]
        slices = [o for o in objects.values() if o["kind"] == "EndpointSlice"]
        config = {**CONFIG, **case.config}
        cidrs = SERVICE_CIDRS["spec"]["cidrs"]
        for flow in step.flows:
            yield World(services, slices, node(case.node_labels), config, cidrs, INTERFACES), flow


def source_of(flow: Flow) -> Source:
    ipv4, ipv6, interface = SOURCES[flow.source]
    if not interface and flow.to in INTERFACES:
        return Source(flow.to)  # to itself, a node speaks as the one it speaks to
    return Source(ipv6 if ":" in flow.to else ipv4, interface)


def seen(said: Expected, source: Source) -> set[str]:
    """How the recording puts it: a node that is masqueraded may get the address that it had."""
    words = set()
    for (address, _), treatment in said.reach.items():
        gateway = "192.168.78.2" if address.startswith("10.244.1.") else "10.244.0.1"
        kept = treatment == MASQUERADED and gateway == source.address
        words.add("preserved" if kept else treatment)
    return words


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_model_says_what_was_recorded(case: Case) -> None:
    for world, flow in recorded(case):
        source = source_of(flow)
        said = expected(world, source, flow.to, flow.port, flow.protocol)
        if f"{case.name}: {flow}" in NOT_OURS:
            assert said is None, flow
            continue
        assert said is not None, flow
        reach = {endpoint(*e) for e in said.reach}
        fails = {said.fails} if said.fails else set()
        assert said.sticky is case.sticky
        if "blocked" in flow.expected.fails:  # the recording cannot tell how
            assert fails, flow
        elif case.sticky:
            assert flow.expected.reach <= reach, flow
            assert flow.expected.source <= seen(said, source), flow
        else:
            assert Outcome(frozenset(reach), frozenset(seen(said, source)), frozenset(fails)) == flow.expected, flow


def test_recordings_hold_all_that_is_not_ours() -> None:
    assert {f"{case.name}: {flow}" for case in CASES for _, flow in recorded(case)} >= NOT_OURS


def service(**spec: Any) -> Object:
    own = {"clusterIP": "10.96.0.1", "ports": [{"port": 80, "protocol": "TCP"}]}
    status = {"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}]}}
    return {"metadata": {"name": "a", "namespace": "n"}, "spec": {**own, **spec}, "status": status}


def slice_(name: str, *endpoints: Object, **labels: str) -> Object:
    return {
        "metadata": {"name": name, "namespace": "n", "labels": {"kubernetes.io/service-name": "a", **labels}},
        "addressType": "IPv4",
        "ports": [{"port": 8080}],
        "endpoints": list(endpoints),
    }


GOING: Final = {"addresses": ["10.244.0.2"], "conditions": {"ready": False, "terminating": True}}
COME: Final = {"addresses": ["10.244.0.2", "10.244.0.9"], "conditions": {}}


# What no recording shows.
@pytest.mark.parametrize("slices", [[slice_("x", GOING), slice_("y", COME)], [slice_("x", COME), slice_("y", GOING)]])
def test_model_prefers_the_endpoint_that_is_not_terminating(slices: list[Object]) -> None:
    other = {"addresses": ["10.244.1.2"], "conditions": {"ready": True}}
    world = World([service()], [*slices, slice_("z", other)], node({}), CONFIG)
    said = expected(world, Source("10.244.0.3", "cni0"), "10.96.0.1", 80, "TCP")
    assert said and set(said.reach) == {("10.244.0.2", 8080), ("10.244.1.2", 8080)}


@pytest.mark.parametrize("label", ["service.kubernetes.io/headless", "service.kubernetes.io/service-proxy-name"])
def test_model_ignores_slices_of_others(label: str) -> None:
    world = World([service()], [slice_("x", COME, **{label: ""})], node({}), CONFIG)
    assert expected(world, Source("10.244.0.3", "cni0"), "10.96.0.1", 80, "TCP") == Expected(fails="rejected")


@pytest.mark.parametrize(
    ("ranges", "source", "allowed"),
    [
        (["192.168.77.2/32"], "198.51.100.7", True),  # the node's own address is in: so is the load balancer's
        (["192.168.77.1/32"], "198.51.100.7", False),
        (["192.168.77.2/32"], "192.168.77.1", False),
        (["fd00::/8"], "192.168.77.1", True),
        ([" 192.168.77.0/24 "], "192.168.77.1", True),
        (["::/0", "10.0.0.0/8"], "192.168.77.1", False),
        (["10.0.0.0/8", "0.0.0.0/0"], "192.168.77.1", True),
    ],
)
def test_model_of_source_ranges(ranges: list[str], source: str, allowed: bool) -> None:
    world = World([service(loadBalancerSourceRanges=ranges)], [slice_("x", COME)], node({}), CONFIG)
    said = expected(world, Source(source), "198.51.100.7", 80, "TCP")
    assert said and (said.fails == "") is allowed
