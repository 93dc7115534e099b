"""Which IP families a node has, and which settings do not go with them."""

from __future__ import annotations

import ipaddress
import logging
import subprocess
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from proxy.config import ClusterCIDR, Config, DetectLocal, HostPort, NodePortAddresses
from proxy.node_families import concerns, missing, report_missing
from rules.objects import Family
from tests.netns import in_new_namespace

V4, V6 = Family.IPV4, Family.IPV6
BOTH = frozenset(Family)
ADDRESS = "fe800000000000003c3067fffe2d3362 03 40 20 80     eth0\n"


def proc(root: Path, *, addresses: str | None = ADDRESS, switch: str | None = "0\n", ipv4: bool = True) -> Path:
    """A /proc. None: the file is not there."""
    for path, content in {
        "thread-self/net/if_inet6": addresses,
        "sys/net/ipv6/conf/all/disable_ipv6": switch,
        "sys/net/ipv4/ip_forward": "0\n" if ipv4 else None,
    }.items():
        if content is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
    return root


@pytest.mark.parametrize(
    ("files", "families", "cause"),
    [
        ({}, BOTH, ""),
        ({"addresses": ""}, BOTH, ""),  # no interface is up yet
        ({"switch": None}, BOTH, ""),
        ({"addresses": None}, {V4}, "ipv6.disable=1"),
        ({"addresses": None, "switch": None}, {V4}, "ipv6.disable=1"),
        ({"addresses": "", "switch": "1\n"}, {V4}, "disable_ipv6 is 1"),
        ({"switch": "1\n"}, BOTH, ""),  # off, and on again for an interface
        ({"ipv4": False}, {V6}, "no IPv4"),
        ({"ipv4": False, "addresses": None}, {V4}, "ipv6.disable=1"),  # a /proc that tells nothing
    ],
)
def test_what_the_kernel_has(tmp_path: Path, files: dict[str, Any], families: set[Family], cause: str) -> None:
    root = proc(tmp_path, **files)
    assert missing(root).keys() == BOTH - families
    assert [cause in told for told in missing(root).values()] == [True] * (2 - len(families))


@pytest.mark.root
def test_the_switch_in_a_real_kernel() -> None:
    def found() -> list[set[Family]]:
        conf = Path("/proc/sys/net/ipv6/conf")
        before = set(missing())
        (conf / "all/disable_ipv6").write_text("1")
        off = set(missing())
        (conf / "lo/disable_ipv6").write_text("0")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return [before, off, set(missing())]

    assert in_new_namespace(found) == [set(), {V6}, set()]
    assert missing() == {}  # it was another namespace's switch


def test_one_event_says_that_a_family_is_left_out(tmp_path: Path) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    with capture_logs() as logs:
        report_missing({})
        report_missing(missing(proc(tmp_path, addresses=None)))
    (log,) = logs
    assert (log["event"], log["log_level"], log["family"]) == ("ip_family_left_out", "info", "IPv6")
    assert log["remedy"] and log["cause"]


C4, C6 = IPv4Network("10.244.0.0/16"), IPv6Network("fd44::/48")
N4, N6 = IPv4Network("192.0.2.0/24"), IPv6Network("fd77::/64")
DUAL = ClusterCIDR(C4, C6)
FIRST4, FIRST6 = ["192.0.2.1", "fd77::1"], ["fd77::1", "192.0.2.1"]


def doubted(config: Config, families: Any = BOTH, ips: list[str] | None = None, pods: Any = ()) -> list[str]:
    packed = [ipaddress.ip_address(ip).packed for ip in (FIRST4 if ips is None else ips)]
    found = concerns(config, families, packed, pods)
    assert all(concern.cause and concern.remedy for concern in found)
    return [concern.field for concern in found]


def config(**fields: Any) -> Config:
    return Config(**({"cluster_cidr": DUAL} | fields))


@pytest.mark.parametrize("ips", [FIRST4, FIRST6, []])
def test_nothing_to_say(ips: list[str]) -> None:
    assert doubted(config(), ips=ips) == []
    assert doubted(config(bind_address=(ipaddress.ip_address("::"),)), {V4}, ["192.0.2.1"]) == []


@pytest.mark.parametrize(
    ("cidr", "ips", "fields"),
    [
        (DUAL, FIRST6, []),
        (ClusterCIDR(C4), FIRST4, []),
        (ClusterCIDR(v6=C6), FIRST6, []),
        (ClusterCIDR(C4), FIRST6, ["clusterCIDR"]),
        (ClusterCIDR(v6=C6), FIRST4, ["clusterCIDR"]),
        (ClusterCIDR(), FIRST4, ["clusterCIDR"]),
        (ClusterCIDR(), [], []),
    ],
)
def test_cluster_cidr(cidr: ClusterCIDR, ips: list[str], fields: list[str]) -> None:
    assert doubted(Config(cluster_cidr=cidr), ips=ips) == fields
    bridge = DetectLocal(bridge_interface="br0")
    assert doubted(Config(cluster_cidr=cidr, detect_local_mode="BridgeInterface", detect_local=bridge), ips=ips) == []


@pytest.mark.parametrize(
    ("pods", "ips", "fields"),
    [
        ([], FIRST4, []),  # waited for
        ([C4], FIRST4, []),
        ([C4, C6], FIRST6, []),
        ([C6], FIRST4, ["spec.podCIDRs of the Node"]),
    ],
)
def test_pod_cidrs(pods: list[Any], ips: list[str], fields: list[str]) -> None:
    assert doubted(Config(detect_local_mode="NodeCIDR"), ips=ips, pods=pods) == fields
    assert doubted(config(), ips=ips, pods=pods) == []


@pytest.mark.parametrize(
    ("cidrs", "cluster", "ips", "families"),
    [
        ((N4, N6), DUAL, FIRST4, []),
        ((N4,), DUAL, FIRST4, ["IPv6"]),
        ((N6,), DUAL, FIRST4, ["IPv4"]),
        ((N4,), ClusterCIDR(C4), FIRST4, []),  # a cluster of one family, for all we know
        ((N6,), ClusterCIDR(C4), FIRST4, ["IPv4"]),
        ((N4,), ClusterCIDR(v6=C6), FIRST6, ["IPv6"]),
    ],
)
def test_node_port_addresses(cidrs: Any, cluster: ClusterCIDR, ips: list[str], families: list[str]) -> None:
    made = Config(cluster_cidr=cluster, node_port_addresses=NodePortAddresses(cidrs=cidrs))
    packed = [ipaddress.ip_address(ip).packed for ip in ips]
    found = concerns(made, BOTH, packed, ())
    assert [concern.field for concern in found] == ["nodePortAddresses"] * len(families)
    assert all(f"no range of {family}" in concern.cause for family, concern in zip(families, found, strict=True))
    with_primary = Config(cluster_cidr=cluster, node_port_addresses=NodePortAddresses(primary=True, cidrs=cidrs))
    assert concerns(with_primary, BOTH, packed, ()) == []


def test_addresses_of_a_family_that_is_not_there() -> None:
    made = config(
        bind_address=(ipaddress.ip_address("fd77::1"),),
        healthz_bind_address=HostPort("fd77::1", 10256),
        metrics_bind_address=HostPort("::1", 10249),
    )
    fields = ["bindAddress", "healthzBindAddress", "metricsBindAddress"]
    assert doubted(made, {V4}, []) == fields
    assert doubted(made, {V4}, ["192.0.2.1"]) == fields
    assert doubted(made, BOTH, []) == []
    assert doubted(config(), {V4}, ["fd77::1"]) == ["status.addresses of the Node"]
    assert doubted(config(), {V6}, ["fd77::1"]) == ["metricsBindAddress"]  # 127.0.0.1
