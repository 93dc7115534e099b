"""This node: what is read of its object, its IPs, where NodePorts answer, and what the log says of it."""

from __future__ import annotations

import ipaddress
import json
import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.config import ClusterCIDR, Config, NodePortAddresses
from proxy.model import NODE, Node, convert, decode
from proxy.node_log import NodeLog
from proxy.nodes import ABSENT, NodeInfo, node_ips, read_node
from proxy.settings import Settings, settings
from rules.objects import Family
from tests.objects import Object

V4, V6 = Family.IPV4, Family.IPV6
BOTH = frozenset(Family)
RECORDED = Path(__file__).parent / "data/api/07-list-node.txt"


def packed(*texts: str) -> tuple[bytes, ...]:
    return tuple(ipaddress.ip_address(text).packed for text in texts)


def node(*addresses: str, **spec: Any) -> Object:
    """addresses: "InternalIP 192.0.2.1". spec: besides, `labels` and `deletionTimestamp`."""
    meta = {"name": "node0"} | {k: spec.pop(k) for k in ("labels", "deletionTimestamp") if k in spec}
    split = [address.split(" ") for address in addresses]
    return {"metadata": meta, "spec": spec, "status": {"addresses": [{"type": t, "address": a} for t, a in split]}}


def info(*addresses: str, **spec: Any) -> NodeInfo:
    read, faults = read_node(_node(node(*addresses, **spec)))
    assert not faults
    return read


def _node(data: Object) -> Node:
    converted = convert(NODE, data)
    assert isinstance(converted, Node)
    return converted


# -- What is read of the object ----------------------------------------------------------------------------------------


def test_a_recorded_node() -> None:
    listed = json.loads(re.search(r"^\{.*\}$", RECORDED.read_text(), re.MULTILINE)[0])  # type: ignore[index]
    obj = decode(NODE, json.dumps(listed["items"][0]).encode())
    assert isinstance(obj, Node)
    expected = NodeInfo(
        "z1",
        packed("192.168.77.2", "fd77::2"),
        (IPv4Network("10.244.0.0/24"), IPv6Network("fd44::/64")),
        uid="4b3975b7-2a7f-4c8b-bff3-7575d0a2cd8c",
    )
    assert read_node(obj) == (expected, [])


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ([], []),
        (["Hostname node0", "InternalDNS a.b", "ExternalDNS c.d"], []),
        (["InternalIP 192.0.2.1", "InternalIP 192.0.2.2"], ["192.0.2.1"]),
        # The first one's family is the primary one.
        (["InternalIP 192.0.2.1", "InternalIP fd00::1"], ["192.0.2.1", "fd00::1"]),
        (["InternalIP fd00::1", "InternalIP 192.0.2.1"], ["fd00::1", "192.0.2.1"]),
        # InternalIPs go first, wherever they stand; an ExternalIP where there is none of its family.
        (["ExternalIP 203.0.113.1", "InternalIP 192.0.2.1"], ["192.0.2.1"]),
        (["ExternalIP 203.0.113.1"], ["203.0.113.1"]),
        (["ExternalIP 203.0.113.1", "InternalIP fd00::1"], ["fd00::1", "203.0.113.1"]),
        (["ExternalIP fd00::1", "ExternalIP 203.0.113.1"], ["fd00::1", "203.0.113.1"]),
        (["InternalIP 192.000.002.001"], ["192.0.2.1"]),
    ],
)
def test_addresses(addresses: list[str], expected: list[str]) -> None:
    assert info(*addresses).addresses == packed(*expected)


def test_what_is_no_address_is_told_and_left_out() -> None:
    read, faults = read_node(
        _node(node("InternalIP nonsense", "InternalIP 192.0.2.1", podCIDRs=["10.0.0.0", "10.1.0.0/24"]))
    )
    assert (read.addresses, read.pod_cidrs) == (packed("192.0.2.1"), (IPv4Network("10.1.0.0/24"),))
    assert faults == [
        "status.addresses: 'nonsense' is not an IP address",
        "spec.podCIDRs: '10.0.0.0' is not a CIDR (address/length)",
    ]


@pytest.mark.parametrize(
    ("fields", "eligible"),
    [
        ({}, True),
        ({"taints": []}, True),
        ({"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]}, True),
        (
            {"taints": [{"key": "DeletionCandidateOfClusterAutoscaler", "value": "1", "effect": "PreferNoSchedule"}]},
            True,
        ),
        (
            {"unschedulable": True, "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]},
            True,
        ),
        (
            {
                "taints": [
                    {"key": "a"},
                    {"key": "ToBeDeletedByClusterAutoscaler", "value": "17", "effect": "NoSchedule"},
                ]
            },
            False,
        ),
        ({"taints": [{"key": "ToBeDeletedByClusterAutoscaler"}]}, False),
        ({"deletionTimestamp": "2026-11-30T04:34:38Z"}, False),
        ({"deletionTimestamp": None}, True),
    ],
)
def test_which_nodes_get_new_traffic(fields: Object, eligible: bool) -> None:
    assert info(**fields).eligible is eligible


def test_bare_objects() -> None:
    assert read_node(_node({"metadata": {"name": "node0"}})) == (NodeInfo(), [])
    assert read_node(_node({"metadata": {"name": "node0"}, "spec": None, "status": None})) == (NodeInfo(), [])
    assert info(podCIDR="10.244.7.0/24").pod_cidrs == (IPv4Network("10.244.7.0/24"),)


# -- The node's IPs, and NodePorts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_node", "bound", "expected"),
    [
        ([], [], []),
        (["192.0.2.1", "fd00::1"], [], ["192.0.2.1", "fd00::1"]),
        # bindAddress overrides its family, and makes it the primary one.
        (["192.0.2.1", "fd00::1"], ["192.0.2.9"], ["192.0.2.9", "fd00::1"]),
        (["192.0.2.1", "fd00::1"], ["fd00::9"], ["fd00::9", "192.0.2.1"]),
        (["192.0.2.1"], ["fd00::9"], ["fd00::9", "192.0.2.1"]),
        (["192.0.2.1", "fd00::1"], ["fd00::9", "192.0.2.9"], ["fd00::9", "192.0.2.9"]),
        ([], ["192.0.2.9"], ["192.0.2.9"]),
    ],
)
def test_what_counts_as_the_nodes_ips(of_node: list[str], bound: list[str], expected: list[str]) -> None:
    assert node_ips(NodeInfo(addresses=packed(*of_node)), packed(*bound)) == packed(*expected)


def test_bind_addresses_count_before_there_is_a_node() -> None:
    assert node_ips(None, packed("192.0.2.9")) == node_ips(ABSENT, packed("192.0.2.9")) == packed("192.0.2.9")


@pytest.mark.parametrize(
    ("bind", "bound"),
    [
        (["0.0.0.0"], []),
        (["::"], []),
        (["0.0.0.0", "::"], []),
        (["192.0.2.9"], ["192.0.2.9"]),
        (["::", "192.0.2.9"], ["192.0.2.9"]),
    ],
)
def test_an_unspecified_bind_address_overrides_nothing(bind: list[str], bound: list[str]) -> None:
    config = Config(bind_address=tuple(map(ipaddress.ip_address, bind)))
    assert settings(config).bound == packed(*bound)


LOCAL = packed("127.0.0.1", "192.0.2.1", "198.51.100.1", "::1", "fd00::1", "fe80::1")
EVERYWHERE = {"192.0.2.1", "198.51.100.1", "fd00::1", "fe80::1"}
PRIMARY = NodePortAddresses(primary=True)


@pytest.mark.parametrize(
    ("made", "of_node", "expected"),
    [
        (Settings(), info("InternalIP 192.0.2.1"), {"192.0.2.1"}),
        (Settings(), info("InternalIP fd00::1", "InternalIP 192.0.2.1"), {"192.0.2.1", "fd00::1"}),
        (Settings(bound=packed("198.51.100.1")), info("InternalIP 192.0.2.1"), {"198.51.100.1"}),
        (Settings(bound=packed("fd00::1")), info("InternalIP 192.0.2.1"), {"fd00::1", "192.0.2.1"}),
        (Settings(bound=packed("192.0.2.1")), ABSENT, {"192.0.2.1"}),
        (Settings(bound=packed("192.0.2.1")), None, {"192.0.2.1"}),
        # There is no Node (yet): nowhere. It has no address: everywhere, as kube-proxy does.
        (Settings(), None, set()),
        (Settings(), ABSENT, set()),
        (Settings(), info("Hostname node0"), EVERYWHERE),
        (Settings(bound=packed("127.0.0.1")), ABSENT, set()),
        (Settings(bound=packed("127.0.0.1")), info("InternalIP fd00::1"), {"fd00::1"}),
        # CIDRs: the Node has no say.
        (
            Settings(node_ports=NodePortAddresses(cidrs=(IPv4Network("192.0.2.0/24"),))),
            ABSENT,
            {"192.0.2.1", "fd00::1", "fe80::1"},
        ),
        (Settings(node_ports=NodePortAddresses(cidrs=(IPv4Network("127.0.0.0/8"),))), ABSENT, {"fd00::1", "fe80::1"}),
        (
            Settings(node_ports=NodePortAddresses(primary=True, cidrs=(IPv6Network("fd00::/8"),))),
            info("InternalIP 192.0.2.1"),
            {"192.0.2.1", "fd00::1"},
        ),
    ],
)
def test_where_node_ports_answer(made: Settings, of_node: NodeInfo | None, expected: set[str]) -> None:
    found = made.nodeport_ips(of_node, LOCAL)
    assert found.keys() == set(Family)
    assert {str(ipaddress.ip_address(a)) for addresses in found.values() for a in addresses} == expected
    assert all(Family.of(a) is family for family, addresses in found.items() for a in addresses)


@pytest.mark.parametrize(
    ("made", "follows"),
    [
        (Settings(), True),
        (Settings(bound=packed("192.0.2.1")), False),
        (Settings(bound=packed("::1")), True),
        (Settings(bound=packed("192.0.2.1"), node_ports=NodePortAddresses(cidrs=(IPv4Network("0.0.0.0/0"),))), True),
    ],
)
def test_local_addresses_are_followed_where_they_can_matter(made: Settings, follows: bool) -> None:
    assert made.follows_addresses is follows


# -- What the log says -------------------------------------------------------------------------------------------------


def said(log: NodeLog, *nodes: NodeInfo | None) -> list[str]:
    with capture_logs() as logs:
        for each in nodes:
            log(each)
    return [entry["event"] for entry in logs]


def node_log(config: Config | None = None, families: frozenset[Family] = BOTH) -> NodeLog:
    config = config or Config(cluster_cidr=ClusterCIDR(IPv4Network("10.244.0.0/16"), IPv6Network("fd44::/48")))
    return NodeLog("node0", config, settings(config).bound, families)


HEALTHY = info("InternalIP 192.0.2.1")


def test_a_node_that_is_not_there_is_missed_once() -> None:
    log = node_log()
    assert said(log, None, None) == []
    assert said(log, ABSENT, ABSENT) == ["node_not_found"]
    assert said(log, HEALTHY, HEALTHY) == ["node_eligible", "node_known"]
    assert said(log, ABSENT) == ["node_deleted"]


def test_what_it_says_of_a_node_that_is_not_there() -> None:
    with capture_logs() as logs:
        node_log()(ABSENT)
    assert logs == [
        {
            "event": "node_not_found",
            "log_level": "warning",
            "node": "node0",
            "cause": "there is no Node of this name (yet)",
            "then": "/healthz answers 503; hints for a zone do not count; there are no NodePorts",
            "remedy": "if this node is registered under another name, set hostnameOverride to that",
        }
    ]


def test_what_changes_is_told_and_nothing_else() -> None:
    log = node_log()
    dual = info("InternalIP 192.0.2.1", "InternalIP fd00::1", podCIDRs=["10.244.0.0/24"], labels={"a": "b"})
    with capture_logs() as logs:
        for each in (HEALTHY, HEALTHY, dual, dual, info("InternalIP 192.0.2.1", podCIDRs=["10.244.0.0/24"])):
            log(each)
    assert [(entry["ips"], entry["pod_cidrs"], entry["primary"]) for entry in logs] == [
        (["192.0.2.1"], [], "IPv4"),
        (["192.0.2.1", "fd00::1"], ["10.244.0.0/24"], "IPv4"),
        (["192.0.2.1"], ["10.244.0.0/24"], "IPv4"),
    ]
    going = info("InternalIP 192.0.2.1", podCIDRs=["10.244.0.0/24"], deletionTimestamp="2026-11-30T04:34:38Z")
    assert said(log, going, going) == ["node_not_eligible"]
    assert said(log, info("InternalIP 192.0.2.1", podCIDRs=["10.244.0.0/24"])) == ["node_eligible"]


def test_a_node_that_is_about_to_go_from_the_start() -> None:
    going = info("InternalIP 192.0.2.1", taints=[{"key": "ToBeDeletedByClusterAutoscaler"}])
    assert said(node_log(), going, HEALTHY) == ["node_not_eligible", "node_known", "node_eligible"]
    log = node_log()
    assert said(log, ABSENT, going, going) == ["node_not_found", "node_not_eligible", "node_known"]


def test_a_node_without_an_ip_is_told_once() -> None:
    log = node_log()
    bare = info("Hostname node0")
    assert said(log, bare) == ["node_known", "node_without_ip"]
    assert said(log, HEALTHY, bare) == ["node_known", "node_known"]
    bound = node_log(Config(bind_address=(IPv4Address("192.0.2.9"),)))
    assert "node_without_ip" not in said(bound, bare)


def test_each_doubt_is_told_once() -> None:
    log = node_log(Config(bind_address=(IPv6Address("fd00::9"),), cluster_cidr=ClusterCIDR(IPv4Network("10.0.0.0/8"))))
    assert said(log, HEALTHY) == ["node_known", "configuration_doubtful"]
    assert said(log, info("InternalIP 192.0.2.2"), ABSENT, HEALTHY).count("configuration_doubtful") == 0
