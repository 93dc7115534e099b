"""The priority of a Service's packets: what was there before leads them right, and nothing of ours is left in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pytest

from integration import privileges
from integration.cluster import Cluster, Clusters, endpoint_slice, port, service
from integration.topology import Bed
from integration.traffic import until
from tests.blast import datagrams
from tests.packets import Counters
from tests.test_packets import fresh_addresses, host

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`"),
]

FAMILIES: Final = (4, 6)
CONNECTIONS: Final = 20
EXTERNAL: Final = {4: "198.51.100.7", 6: "fd99::7"}
# A network plugin that masquerades before we do: chains behind it are not asked any more.
PRIORITIES: Final = """
chain plugin {{
    type nat hook postrouting priority 90;
    udp dport 7000 {plugin}
}}
chain to-others {{
    type filter hook forward priority 0;
    udp dport 7000 meta priority != none counter comment "forwarded with one"
    udp dport 7000 counter comment "forwarded"
}}
chain to-us {{
    type filter hook input priority 0;
    udp dport 7000 meta priority != none counter comment "received with one"
    udp dport 7000 counter comment "received"
}}
chain leaving {{
    type filter hook postrouting priority 200;
    udp dport 7000 meta priority != none counter comment "left with one"
    udp dport 7000 counter comment "left"
}}
"""
ARRIVED: Final = 'chain input { type filter hook input priority 0; udp dport 7000 counter comment "arrived"; }'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    privileges.acquire()
    with Bed() as bed:
        yield Clusters(bed, tmp_path_factory.mktemp("clusters")).get()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("source", ["client", "pod-1", "node"])
@pytest.mark.parametrize("plugin", ["accept", "masquerade"])
def test_none_of_ours_is_seen_by_others(cluster: Cluster, plugin: str, source: str, family: int) -> None:
    bed, here, there = cluster.bed, fresh_addresses()[family], fresh_addresses()[family]
    for name, vip, pods in (
        ("here", here, {bed.node.address(family): "node0"}),
        ("there", there, {bed.pod3.address(family): "node1"}),
    ):
        cluster.put(service(name, [vip], port("", 53, "UDP")), endpoint_slice(name, name, pods, port("", 7000, "UDP")))
    cluster.settle()
    client = host(bed, source)
    with Counters(bed.node.namespace, PRIORITIES.format(plugin=plugin)) as counters:
        with client.namespace.entered():
            for vip in (here, there):
                datagrams(client.address(family), vip, 53, range(20000, 20000 + CONNECTIONS))
        node_sends = source == "node"
        wanted = {
            "forwarded": 0 if node_sends else CONNECTIONS,
            "received": CONNECTIONS,
            "left": CONNECTIONS * (1 + node_sends),
        }
        wanted |= dict.fromkeys(("forwarded with one", "received with one", "left with one"), 0)
        assert until(lambda: counters.read() == wanted), counters.read()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("affinity", ["None", "ClientIP"])
@pytest.mark.parametrize("priority", [0, 6, 0x4B50_0003], ids=["none", "an application's", "one like ours"])
def test_the_node_reaches_all_endpoints_where_policy_local_has_none(
    cluster: Cluster, priority: int, affinity: str, family: int
) -> None:
    bed = cluster.bed
    spec = {"externalIPs": [EXTERNAL[family]], "externalTrafficPolicy": "Local", "type": "NodePort"}
    cluster.put(
        service("away", [fresh_addresses()[family]], port("", 53, "UDP"), sessionAffinity=affinity, **spec),
        endpoint_slice("away", "away", {bed.pod3.address(family): "node1"}, port("", 7000, "UDP")),
    )
    cluster.settle()
    with Counters(bed.pod3.namespace, ARRIVED) as counters:
        with bed.node.namespace.entered():
            datagrams(bed.node.address(family), EXTERNAL[family], 53, range(20000, 20000 + CONNECTIONS), priority)
        assert until(lambda: counters.read()["arrived"] == CONNECTIONS), counters.read()
