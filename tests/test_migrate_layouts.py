"""Rules of any objects, in the layouts of several versions of kube-proxy, are read as what the objects ask for."""

from __future__ import annotations

import pytest

from proxy.migrate.iptables_entries import of_text
from proxy.migrate.iptables_entries import read as read_iptables
from proxy.migrate.nft_entries import read as read_nftables
from tests.dataplane_model import Row, places, read_rows, rows
from tests.dataplanes import inside, needs, needs_root, run
from tests.kube_proxy_iptables import iptables
from tests.kube_proxy_nftables import nftables
from tests.migrate_worlds import odd, of_flows
from tests.netns import Namespace
from tests.service_model import World

WORLDS = [*of_flows(), ("odd", odd())]
DETECTORS = {
    "cidr": ("-s 10.244.0.0/16", "-s fd44::/48"),
    "bridge": ("-i cni0",) * 2,
    "prefix": ("-i veth+",) * 2,
    "none": ("", ""),
}
every_world = pytest.mark.parametrize("world", [world for _, world in WORLDS], ids=[name for name, _ in WORLDS])


def wanted(world: World) -> dict[str, Row]:
    return rows(world)


@every_world
@pytest.mark.parametrize("layout", ["1.36", "1.26", "1.23"])
def test_iptables(world: World, layout: str) -> None:
    texts = [iptables(world, version, layout=layout, detector=DETECTORS["cidr"][version // 6]) for version in (4, 6)]
    found = of_text(*texts)
    assert found is not None
    assert (found.unread, found.remarks) == ((), ())
    assert read_rows(found) == wanted(world)


@pytest.mark.parametrize("detector", DETECTORS)
@pytest.mark.parametrize("comments", [True, False])
def test_iptables_with_any_detector(detector: str, comments: bool) -> None:
    four, six = DETECTORS[detector]
    world = odd()
    found = of_text(
        iptables(world, 4, detector=four, comments=comments), iptables(world, 6, detector=six, comments=comments)
    )
    assert found is not None
    assert (found.unread, found.remarks) == ((), ())
    assert read_rows(found) == wanted(world)


@needs_root
@needs("iptables-nft-restore", "iptables-nft-save")
@pytest.mark.parametrize("layout", ["1.26", "1.23"])
def test_iptables_through_the_kernel(layout: str) -> None:
    world = odd()
    namespace = Namespace()
    try:
        run(namespace, "iptables-nft-restore", stdin=iptables(world, 4, layout=layout, detector="-i veth+"))
        run(namespace, "ip6tables-nft-restore", stdin=iptables(world, 6, layout=layout, detector="-i veth+"))
        found = inside(namespace, read_iptables)
    finally:
        namespace.close()
    assert found is not None
    assert (found.unread, found.remarks) == ((), ())
    assert read_rows(found) == wanted(world)


NFT_DETECTORS = {
    "cidr": ("ip saddr 10.244.0.0/16", "ip6 saddr fd44::/48"),
    "odd-cidr": ("ip saddr 10.240.0.0/13", "ip6 saddr fd40::/11"),
    "prefix": ("iifname veth*",) * 2,
    "interface": ("iif lo",) * 2,
    "none": ("", ""),
}


def of_nftables(world: World, layout: str, detector: str, addresses: tuple[str, str]) -> tuple[dict[str, Row], object]:
    namespace = Namespace()
    try:
        texts = [
            nftables(world, version, layout=layout, detector=NFT_DETECTORS[detector][i], node_ports=addresses[i])
            for i, version in enumerate((4, 6))
        ]
        namespace.nft("-f", "-", stdin="".join(texts))
        found = inside(namespace, read_nftables)
    finally:
        namespace.close()
    assert found is not None
    assert (found.unread, found.remarks) == ((), ())
    return read_rows(found), found.nodeport_addresses


@needs_root
@needs("nft")
@every_world
@pytest.mark.parametrize("layout", ["1.36", "1.31"])
def test_nftables(world: World, layout: str) -> None:
    assert of_nftables(world, layout, "cidr", ("192.168.77.2", "")) == (
        wanted(world),
        (bytes(16), bytes((192, 168, 77, 2))),
    )


@needs_root
@needs("nft")
@pytest.mark.parametrize("detector", NFT_DETECTORS)
@pytest.mark.parametrize("layout", ["1.36", "1.31"])
def test_nftables_with_any_detector(detector: str, layout: str) -> None:
    world = odd()
    assert of_nftables(world, layout, detector, ("", "")) == (wanted(world), None)


def test_worlds_have_every_kind_of_place() -> None:
    """So that the tests above mean something."""
    found = [(place, row) for _, world in WORLDS for place in places(world) for row in [rows(world)[place.key]]]
    assert {place.kind for place, _ in found} == {"clusterIP", "externalIP", "loadBalancer", "nodePort"}
    assert {row.keeps_source for _, row in found} == {None, True, False}
    assert {(row.refusal, row.outside_refusal) for _, row in found} >= {("", ""), ("reject", "reject"), ("", "drop"), ("drop", "drop")}  # fmt: skip
    assert {row.affinity for _, row in found} >= {0, 77, 10800}
    assert any(row.sources for _, row in found)
    assert {place.protocol for place, _ in found} == {"TCP", "UDP", "SCTP"}


@needs_root
@needs("nft")
@pytest.mark.parametrize(
    ("old", "new", "stale"),
    [
        ("meta l4proto tcp dnat to 10.244.1.11:8080", "meta l4proto tcp dnat to 10.244.9.9:8080", "10.244.9.9:8080"),
        ("meta l4proto tcp dnat to 10.244.1.11:8080", "meta l4proto tcp dnat to 10.244.1.11:8089", "10.244.1.11:8089"),
        ("meta l4proto tcp dnat to 10.244.1.11:8080", "limit rate 1/second meta l4proto tcp dnat to 10.244.1.11:8080", ""),
        ("meta l4proto tcp dnat to 10.244.1.11:8080", "accept", ""),
    ],
)  # fmt: skip
def test_an_endpoints_chain_that_is_not_what_its_name_says(old: str, new: str, stale: str) -> None:
    """One of many chains of the same shape."""
    world = odd()
    text = nftables(world, 4, layout="1.31", detector="ip saddr 10.244.0.0/16")
    assert text.count(old) == 1
    namespace = Namespace()
    try:
        namespace.nft("-f", "-", stdin=text.replace(old, new))
        found = inside(namespace, read_nftables)
    finally:
        namespace.close()
    assert found is not None
    there, expected = read_rows(found), {key: row for key, row in wanted(world).items() if _is_ipv4(key)}
    changed = "10.96.9.1:80/TCP"
    assert {key for key in expected if there[key] != expected[key]} == {changed}
    gone = expected[changed].inside - there[changed].inside
    assert gone == {"10.244.1.11:8080"}
    assert there[changed].inside - expected[changed].inside == ({stale} if stale else set())


def _is_ipv4(key: str) -> bool:
    return not key.startswith("[") and not key.endswith("IPv6")
