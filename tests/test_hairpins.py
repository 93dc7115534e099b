"""Endpoints that are led to themselves: masqueraded on every way that chooses an endpoint, and nobody else is for it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from integration import privileges
from integration.cluster import Cluster, Clusters, endpoint_slice, port, service
from integration.topology import Bed
from integration.traffic import until
from tests.blast import datagrams
from tests.packets import Counters
from tests.test_packets import fresh_addresses

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`"),
]

FAMILIES: Final = (4, 6)
BRIDGE_NETFILTER: Final = Path("/proc/sys/net/bridge")
CALLS_OF_BRIDGES: Final = ("bridge__bridge-nf-call-iptables", "bridge__bridge-nf-call-ip6tables")
_numbers: Final = itertools.count(1)
PER_ENDPOINT: Final = 30
# Behind all masquerading. What the pod sends to itself must come from the node.
SEEN: Final = """
chain on-the-way {{
    type filter hook forward priority 0;
    udp dport 7000 {ip} saddr {sender} meta priority != none counter comment "with a priority"
    udp dport 7000 {ip} saddr {sender} ct mark != 0 counter comment "with a mark"
}}
chain last {{
    type filter hook postrouting priority 200;
    udp dport 7000 {ip} daddr {sender} {ip} saddr {gateway} counter comment "to itself, masqueraded"
    udp dport 7000 {ip} daddr {sender} {ip} saddr {sender} counter comment "to itself, not masqueraded"
    udp dport 7000 {ip} daddr != {sender} {ip} saddr {sender} counter comment "to others"
    udp dport 7000 {ip} daddr != {sender} {ip} saddr != {sender} counter comment "to others, masqueraded"
    udp dport 7000 meta priority != none counter comment "left with a priority"
    udp dport 7000 meta mark != 0 counter comment "left with a packet's mark"
    udp dport 7000 ct mark != 0 counter comment "left with a connection's mark"
}}
"""


MARKED: Final = """
chain before { type filter hook prerouting priority -150; udp dport 53 ct mark set ct mark | 0x2a; }
chain on-the-way {
    type filter hook forward priority 0;
    udp dport 7000 ct mark != 0x2a ct mark & 0x2a == 0x2a counter comment "ours besides"
}
chain last { type filter hook postrouting priority 200; udp dport 7000 ct mark == 0x2a counter comment "kept"; }
"""


@pytest.fixture(scope="module", params=["bridged", "routed"])
def clusters(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """routed: local pods' packets pass the node's IP layer, as with most network plugins; IPv4 sets the priority anew
    there. bridged: a bridge hands them on (br_netfilter)."""
    privileges.acquire()
    with Bed() as bed:
        if BRIDGE_NETFILTER.exists():
            on = int(request.param == "bridged")
            bed.node.namespace.sysctl(**dict.fromkeys(CALLS_OF_BRIDGES, on))
        elif request.param == "bridged":
            pytest.skip("the kernel has no br_netfilter")
        yield Clusters(bed, tmp_path_factory.mktemp("clusters"))


@pytest.fixture
def cluster(clusters: Clusters) -> Cluster:
    return clusters.get()


def counters(bed: Bed, family: int) -> Counters:
    ip, gateway = {4: ("ip", "10.244.0.1"), 6: ("ip6", "fd44::1")}[family]
    return Counters(bed.node.namespace, SEEN.format(ip=ip, sender=bed.pod1.address(family), gateway=gateway))


def others(family: int, count: int) -> dict[str, str]:
    """Endpoints of the second node; nobody needs to be there."""
    return {{4: f"10.244.1.{100 + i}", 6: f"fd44:1::{100 + i}"}[family]: "node1" for i in range(count)}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"scheduler": "rr"},
        {"scheduler": "sh"},
        {"sessionAffinity": "ClientIP"},
        {"external": True},
        {"external": True, "externalTrafficPolicy": "Local"},
        {"external": True, "sessionAffinity": "ClientIP"},
        {"internalTrafficPolicy": "Local"},
    ],
    ids=lambda spec: " ".join(map(str, spec.values())) or "random",
)
@pytest.mark.parametrize("endpoints", [1, 2, 16, 17])
def test_an_endpoint_that_is_led_to_itself_is_masqueraded(
    cluster: Cluster, endpoints: int, spec: dict[str, Any], family: int
) -> None:
    bed, spec = cluster.bed, dict(spec)
    address = vip = fresh_addresses()[family]
    sender = bed.pod1.address(family)
    scheduler = spec.pop("scheduler", "random")
    if spec.pop("external", False):
        number = next(_numbers)  # never the same: connections to an earlier Service are remembered
        address = {4: f"203.0.113.{number}", 6: f"fd99::{number:x}"}[family]
        spec |= {"type": "NodePort", "externalIPs": [address]}
    only_here = "internalTrafficPolicy" in spec
    made = service("mirror", [vip], port("", 53, "UDP"), **spec)
    made["metadata"]["annotations"] = {"kube-proxy-nft/scheduler": scheduler}
    ends = {sender: "node0", **others(family, endpoints - 1)}
    cluster.put(made, endpoint_slice("mirror", "mirror", ends, port("", 7000, "UDP")))
    cluster.settle()
    sent = PER_ENDPOINT * endpoints
    with counters(bed, family) as seen:
        with bed.pod1.namespace.entered():
            datagrams(sender, address, 53, range(20000, 20000 + sent))

        def all_arrived() -> bool:
            return sum(count for what, count in seen.read().items() if what.startswith("to ")) == sent

        assert until(all_arrived), seen.read()
        found = seen.read()
    if (
        scheduler != "sh" and "sessionAffinity" not in spec
    ):  # those lead this client to one endpoint, maybe to another one
        assert found["to itself, masqueraded"]
        assert (found["to others"] or found["to others, masqueraded"]) or endpoints == 1 or only_here
    all_masqueraded = address != vip and "externalTrafficPolicy" not in spec
    wrong = [
        "to itself, not masqueraded",
        "left with a priority",
        "left with a packet's mark",
        "left with a connection's mark",
        "to others" + ", masqueraded" * (not all_masqueraded),
    ]
    assert {what: found[what] for what in wrong} == dict.fromkeys(wrong, 0)
    cluster.delete("Service", "mirror")


@pytest.mark.parametrize("family", FAMILIES)
def test_nobody_else_carries_a_mark_on_the_way(cluster: Cluster, family: int) -> None:
    bed, here, there = cluster.bed, fresh_addresses()[family], fresh_addresses()[family]
    sender = bed.pod1.address(family)
    for name, vip, ends in (
        ("here", here, {bed.pod2.address(family): "node0", **others(family, 1)}),
        ("there", there, others(family, 3)),
    ):
        cluster.put(service(name, [vip], port("", 53, "UDP")), endpoint_slice(name, name, ends, port("", 7000, "UDP")))
    cluster.settle()
    sent = 2 * PER_ENDPOINT
    with counters(bed, family) as seen:
        with bed.pod1.namespace.entered():
            for vip in (here, there):
                datagrams(sender, vip, 53, range(20000, 20000 + sent))
        assert until(lambda: seen.read()["to others"] == 2 * sent), seen.read()
        found = seen.read()
        assert (found["with a priority"], found["with a mark"]) == (0, 0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("configuration", [{}, {"nftables": {"masqueradeBit": 31}}], ids=["14", "31"])
def test_other_bits_of_a_connections_mark_stay_and_ours_goes(
    clusters: Clusters, configuration: dict[str, Any], family: int
) -> None:
    cluster, vip = clusters.get(configuration), fresh_addresses()[family]
    bed = cluster.bed
    sender = bed.pod1.address(family)
    ends = {sender: "node0", **others(family, 1)}
    cluster.put(
        service("mirror", [vip], port("", 53, "UDP")), endpoint_slice("mirror", "mirror", ends, port("", 7000, "UDP"))
    )
    cluster.settle()
    sent = 2 * PER_ENDPOINT
    with Counters(bed.node.namespace, MARKED) as seen:
        with bed.pod1.namespace.entered():
            datagrams(sender, vip, 53, range(20000, 20000 + sent))
        assert until(lambda: seen.read()["kept"] == sent), seen.read()
        assert seen.read()["ours besides"] == sent  # on the way: the sender is an endpoint
    cluster.clear()


# Another program that uses the same bit of connections' marks as we do.
SAME_BIT: Final = """
chain before { type filter hook prerouting priority -150; meta l4proto udp ct state new ct mark set 0xabc04321; }
chain behind {
    type filter hook postrouting priority 201;
    udp dport 7000 ct mark 0xabc04321 counter comment "kept"
}
"""


@pytest.mark.parametrize("family", FAMILIES)
def test_connections_to_no_service_keep_our_bit_if_somebody_else_set_it(cluster: Cluster, family: int) -> None:
    bed = cluster.bed
    ports = range(20000 + next(_numbers) * 100, 60000)[:PER_ENDPOINT]  # these are remembered, too
    with counters(bed, family) as seen, Counters(bed.node.namespace, SAME_BIT, "another") as marks:
        with bed.pod1.namespace.entered():
            datagrams(bed.pod1.address(family), bed.pod3.address(family), 7000, ports)
        assert until(lambda: seen.read()["to others"] == PER_ENDPOINT), seen.read()
        assert marks.read()["kept"] == PER_ENDPOINT
