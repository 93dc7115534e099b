"""Real packets for Services without endpoints: each is refused and counted once, and nothing else is counted."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from integration import privileges
from integration.cluster import Cluster, Clusters, Object, endpoint_slice, port, service
from integration.topology import Bed
from integration.traffic import until
from tests.packets import Counters, send_sctp_init
from tests.test_packets import end, host

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`"),
]

METRIC: Final = "kube_proxy_nft_no_endpoint_packets_total"
FAMILIES: Final = (4, 6)
SOURCES: Final = ("client", "pod-1", "node")
VIPS: Final = ("10.96.7.1", "fd00:10:96::701")
OUTSIDE: Final = {"externalIP": ("192.0.2.71", "2001:db8::71"), "loadBalancer": ("198.51.100.71", "2001:db8:1::71")}
NODE_PORTS: Final = {"TCP": 30071, "UDP": 30072}
PORTS: Final = {"TCP": 80, "UDP": 53}
ALL: Final = (*VIPS, *OUTSIDE["externalIP"], *OUTSIDE["loadBalancer"])

# All that comes to the Service, before our tables see it.
WATCH: Final = """
chain arriving {{ type filter hook prerouting priority -150; jump count; }}
chain leaving {{ type filter hook output priority -150; jump count; }}
chain count {{
    {to} tcp dport {{ 80, 30071 }} counter comment "TCP"
    {to} udp dport {{ 53, 30072 }} counter comment "UDP"
    {to} sctp dport 5000 counter comment "SCTP"
}}
"""


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    privileges.acquire()
    with Bed() as bed:
        yield Clusters(bed, tmp_path_factory.mktemp("clusters"))


@pytest.fixture
def cluster(clusters: Clusters) -> Iterator[Cluster]:
    it = clusters.get()
    yield it
    it.clear()
    it.settle()
    assert until(lambda: not counted(it.bed))  # or what comes next under the same name would go on from there


def watched(bed: Bed) -> Counters:
    """Both families' packets to the Service."""
    chains = []
    v4 = ", ".join([*(a for a in ALL if ":" not in a), bed.node.ipv4])
    v6 = ", ".join([*(a for a in ALL if ":" in a), bed.node.ipv6])
    for number, to in enumerate((f"ip daddr {{ {v4} }}", f"ip6 daddr {{ {v6} }}")):
        text = WATCH.format(to=to)
        for name in ("arriving", "leaving", "count"):
            text = text.replace(f"chain {name}", f"chain {name}{number}").replace(
                f"jump {name}", f"jump {name}{number}"
            )
        chains.append(text.replace('comment "', f'comment "{4 + 2 * number} '))
    return Counters(bed.node.namespace, "".join(chains))


def everywhere(name: str, policy: str) -> Object:
    """A Service with every kind of address."""
    ports: list[Object] = [{**port(kind.lower(), PORTS[kind], kind), "nodePort": NODE_PORTS[kind]} for kind in PORTS]
    ports.append(port("sctp", 5000, "SCTP"))
    made = service(
        name,
        list(VIPS),
        *ports,
        type="LoadBalancer",
        externalIPs=list(OUTSIDE["externalIP"]),
        externalTrafficPolicy=policy,
        internalTrafficPolicy=policy,
    )
    return {**made, "status": {"loadBalancer": {"ingress": [{"ip": ip} for ip in OUTSIDE["loadBalancer"]]}}}


def counted(bed: Bed) -> dict[tuple[str, str, str], int]:
    """What the agent says: by Service, port and protocol."""
    with bed.node.namespace.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(10)
        sock.connect(("127.0.0.1", 10249))
        sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        said = b"".join(iter(lambda: sock.recv(65536), b""))
    found = {}
    for family in parse(said.partition(b"\r\n\r\n")[2].decode()):
        for sample in family.samples:
            if sample.name == METRIC:
                labels: Mapping[str, Any] = sample.labels
                assert labels["namespace"] == "default"
                found[labels["service"], labels["port"], labels["protocol"]] = int(sample.value)
    return found


def check(cluster: Cluster, name: str, expected: Mapping[str, int]) -> None:
    """By protocol, of one Service."""

    def of() -> dict[str, int]:
        return {protocol: n for (service_, _, protocol), n in counted(cluster.bed).items() if service_ == name}

    cluster.settle()
    until(lambda: of() == expected, timeout=5)  # the kernel is a moment ahead of what the agent knows of it
    assert of() == expected


@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_every_packet_is_counted_once(cluster: Cluster, policy: str) -> None:
    bed = cluster.bed
    cluster.put(everywhere("empty", policy))
    check(cluster, "empty", {"TCP": 0, "UDP": 0, "SCTP": 0})
    sent = dict.fromkeys(("4 TCP", "4 UDP", "6 TCP", "6 UDP"), 0)
    with watched(bed) as watch:
        for source, index, protocol in product(SOURCES, range(2), PORTS):
            family = FAMILIES[index]
            targets = [(a[index], PORTS[protocol]) for a in (VIPS, *OUTSIDE.values())]
            targets.append((bed.node.address(family), NODE_PORTS[protocol]))
            for address, number in targets * 2:
                assert end(host(bed, source), address, number, protocol) == "refused", (source, address, protocol)
                sent[f"{family} {protocol}"] += 1
        send_sctp_init(bed.client, VIPS[0], 5000, random.getrandbits(32))
        arrived = watch.read()
    for kind, count in sent.items():
        assert arrived[kind] == count  # refused at once, so nothing was sent again
    both = {kind: arrived[f"4 {kind}"] + arrived[f"6 {kind}"] for kind in ("TCP", "UDP", "SCTP")}
    assert both["SCTP"] == 1
    check(cluster, "empty", both)


def test_packets_that_are_sent_again_are_counted_again(cluster: Cluster) -> None:
    """A client that does not hear the reset goes on; so does one whose datagrams nobody takes."""
    bed = cluster.bed
    cluster.put(everywhere("empty", "Cluster"))
    cluster.settle()
    deaf = "chain i { type filter hook input priority 0; tcp flags rst counter drop; icmp type 3 counter drop; }"
    with Counters(bed.pod1.namespace, deaf, "deaf"), watched(bed) as watch:
        with bed.pod1.namespace.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.settimeout(1.5)
            with pytest.raises(TimeoutError):
                sock.connect((VIPS[0], 80))
        with bed.pod1.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for _ in range(20):
                sock.sendto(b"?", (VIPS[0], 53))
        arrived = watch.read()
    assert arrived["4 TCP"] > 1 and arrived["4 UDP"] == 20
    check(cluster, "empty", {"TCP": arrived["4 TCP"], "UDP": 20, "SCTP": 0})


def test_nothing_else_is_counted(cluster: Cluster) -> None:
    bed = cluster.bed
    cluster.put(everywhere("far", "Local"))
    for family, pod in ((4, bed.pod3.ipv4), (6, bed.pod3.ipv6)):
        ports = [port(kind.lower(), 8080, kind) for kind in PORTS]
        cluster.put(endpoint_slice(f"far-{family}", "far", {pod: "node1"}, *ports))
    cluster.settle()
    for index, protocol in product(range(2), PORTS):
        target = OUTSIDE["externalIP"][index], PORTS[protocol]
        assert end(bed.client, *target, protocol) == "no answer"  # it has endpoints, but none here
        assert end(bed.pod1, VIPS[index], PORTS[protocol], protocol) == "no answer"
        assert end(bed.pod1, *target, protocol) == "answered"
        assert end(bed.pod1, VIPS[index], 4444, protocol) == "refused"  # a port that it does not have
    assert end(bed.pod1, "10.96.200.200", 80, "TCP") == "no answer"  # nobody's address
    assert {what: count for what, count in counted(bed).items() if count} == {}
    check(cluster, "far", {"SCTP": 0})


def test_the_count_goes_on_through_all_and_goes_with_the_service(cluster: Cluster) -> None:
    bed = cluster.bed
    slices = [
        endpoint_slice(f"empty-{family}", "empty", {bed.pod2.address(family): "node0"}, port("tcp", 8080))
        for family in FAMILIES
    ]

    def knock(expected: str = "refused") -> None:
        for source, address in product(SOURCES, VIPS):
            assert end(host(bed, source), address, 80, "TCP") == expected
        assert end(bed.client, OUTSIDE["externalIP"][0], 80, "TCP") == expected

    cluster.put(everywhere("empty", "Cluster"))
    cluster.settle()
    knock()
    check(cluster, "empty", {"TCP": 7, "UDP": 0, "SCTP": 0})
    cluster.put(service("other", ["10.96.7.9"], port("", 80)))  # a sync of something else
    check(cluster, "empty", {"TCP": 7, "UDP": 0, "SCTP": 0})
    cluster.put(*slices)
    cluster.settle()
    knock("answered")
    check(cluster, "empty", {"TCP": 7, "UDP": 0, "SCTP": 0})
    for number in (signal.SIGTERM, signal.SIGKILL):  # it has endpoints, and a history
        cluster.restart(number)
        check(cluster, "empty", {"TCP": 7, "UDP": 0, "SCTP": 0})
    for obj in slices:
        cluster.delete("EndpointSlice", obj["metadata"]["name"])
    cluster.settle()
    knock()
    check(cluster, "empty", {"TCP": 14, "UDP": 0, "SCTP": 0})
    cluster.agent.stop()
    knock()  # the rules do without the agent, and so do the counters
    cluster.start()
    check(cluster, "empty", {"TCP": 21, "UDP": 0, "SCTP": 0})
    cluster.put(service("empty", list(VIPS), port("tcp", 80)))  # fewer addresses and ports
    check(cluster, "empty", {"TCP": 21})
    cluster.delete("Service", "empty")
    check(cluster, "empty", {})
    cluster.put(everywhere("empty", "Cluster"))
    check(cluster, "empty", {"TCP": 0, "UDP": 0, "SCTP": 0})
