"""What real packets meet: forwarding, spread, refusal, masquerade and marks, changes under load, restarts, neighbours."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import pytest

from integration import namespaces, privileges
from integration.cluster import Cluster, Clusters, Object, endpoint_slice, port, service
from integration.servers import EchoServers
from integration.topology import Bed, Host
from integration.traffic import Commits, LongLived, Stream, ask, endpoint, failure, until
from tests import blast
from tests.blast import datagrams
from tests.packets import Capture, Counters, has_right_checksum, is_init, is_unreachable, send_sctp_init

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`"),
]

AT_ONCE: Final = 0.5
"""Seconds within which a refusal comes; and after which nothing is silence."""

# More endpoints on the other node than the bed has pods.
MANY: Final = {4: [f"10.244.1.{i}" for i in range(20, 40)], 6: [f"fd44:1::{i:x}" for i in range(20, 40)]}
SINK_PORT: Final = 7000
# Counts datagrams by endpoint, and keeps them from anybody who would answer.
SINK: Final = "chain input {{ type filter hook input priority 0; {rules} }}"
SINK_RULE: Final = '{ip} daddr {address} udp dport 7000 counter drop comment "{address}";'
# What chi-square exceeds once in a million times, by degrees of freedom.
CHI_SQUARE: Final = {2: 27.6, 4: 33.4, 9: 45.1, 16: 58.4}
# How many new connections leave the node with which priority.
PRIORITIES: Final = """chain leaving {{
    type filter hook postrouting priority 150;
    ct state new udp dport 7000 meta priority {priority} counter comment "wanted"
    ct state new udp dport 7000 counter comment "all"
}}"""

_numbers: Final = itertools.count(0x100)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    privileges.acquire()
    with Bed() as bed:
        bed.pod3.namespace.ip(f"addr add {address}/32 dev lo" for address in MANY[4])
        bed.pod3.namespace.ip(f"addr add {address}/128 dev lo nodad" for address in MANY[6])
        servers = EchoServers()
        servers.serve(bed.pod3.namespace, *MANY[4], *MANY[6])
        servers.start()
        try:
            yield Clusters(bed, tmp_path_factory.mktemp("clusters"))
        finally:
            servers.stop()


@pytest.fixture
def cluster(clusters: Clusters) -> Iterator[Cluster]:
    """The usual configuration, without objects."""
    it = clusters.get()
    yield it
    it.clear()


@pytest.fixture
def vips() -> Mapping[int, str]:
    """Addresses for a Service by family."""
    return fresh_addresses()


def fresh_addresses() -> Mapping[int, str]:
    """Never the same, so that no connection to an earlier Service is remembered."""
    number = next(_numbers)
    return {4: f"10.96.{number >> 8}.{number & 255}", 6: f"fd00:10:96::{number:x}"}


def put(cluster: Cluster, vips: Mapping[int, str], *pods: Host, ports: Mapping[str, tuple[int, int]]) -> None:
    """A Service of both families with these pods; ports: protocol -> its port, the pods' port."""
    outside = [port(protocol.lower(), numbers[0], protocol) for protocol, numbers in ports.items()]
    inside = [port(protocol.lower(), numbers[1], protocol) for protocol, numbers in ports.items()]
    slices = [endpoint_slice(f"s-{f}", "s", {p.address(f): where(p) for p in pods}, *inside) for f in (4, 6) if pods]
    cluster.put(service("s", list(vips.values()), *outside), *slices)
    cluster.settle()


def where(pod: Host) -> str:
    return "node0" if pod.name in ("pod-1", "pod-2") else "node1"


def host(bed: Bed, name: str) -> Host:
    return {"client": bed.client, "pod-1": bed.pod1, "pod-2": bed.pod2, "pod-3": bed.pod3, "node": bed.node}[name]


def assert_alive(lasting: Sequence[LongLived]) -> None:
    """Every connection carries another line to and fro, from now on."""
    wanted = [it.lines + 2 * it.endpoints.total() for it in lasting]
    assert until(lambda: all(it.lines >= n for it, n in zip(lasting, wanted, strict=True))), [
        it.broken for it in lasting
    ]


def end(source: Host, address: str, number: int, protocol: str) -> str:
    """How a question ends: 'answered', 'refused', 'no answer'. What the kernel says when sending does not count."""
    kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
    with source.namespace.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind) as sock:
        sock.settimeout(AT_ONCE)
        if not source.picks_source:
            sock.bind((source.address(6 if ":" in address else 4), 0))
        try:
            sock.connect((address, number))
            with suppress(PermissionError):  # a packet of this machine's own that is stopped, for whatever reason
                if protocol == "UDP":
                    sock.send(b"?")
            sock.recv(1)
        except OSError as error:
            return failure(error)
        return "answered"


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("source", ["client", "pod-1"])
def test_sctp_is_led_to_the_endpoint(cluster: Cluster, vips: Mapping[int, str], source: str, family: int) -> None:
    bed, tag = cluster.bed, random.getrandbits(32)
    put(cluster, vips, bed.pod2, ports={"TCP": (5000, 8080), "SCTP": (5000, 9999)})
    with Capture(bed.pod2.namespace) as capture:
        send_sctp_init(host(bed, source), vips[family], 5000, tag)
        packet = capture.find(lambda packet: is_init(packet, tag), timeout=5)
    assert packet is not None
    assert (packet.dst, packet.dport) == (bed.pod2.address(family), 9999)
    assert has_right_checksum(packet)
    own = host(bed, source).address(family)
    assert (packet.src == own) is (source == "pod-1")


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("source", ["client", "pod-1"])
def test_sctp_without_endpoints_is_refused(cluster: Cluster, vips: Mapping[int, str], source: str, family: int) -> None:
    tag = random.getrandbits(32)
    put(cluster, vips, ports={"SCTP": (5000, 9999)})
    with Capture(host(cluster.bed, source).namespace) as capture:
        send_sctp_init(host(cluster.bed, source), vips[family], 5000, tag)
        assert capture.find(lambda packet: is_unreachable(packet, tag), timeout=5) is not None


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("count", [3, 5, 10, 17])
@pytest.mark.parametrize(("source", "priority"), [("pod-1", 0), ("node", 0), ("node", 6)])
def test_new_connections_spread_evenly(
    cluster: Cluster, vips: Mapping[int, str], source: str, priority: int, count: int, family: int
) -> None:
    """And the priority that a program gave them stays, and none that it did not give."""
    connections, addresses = 8000, MANY[family][:count]
    client = host(cluster.bed, source)
    cluster.put(
        service("s", [vips[family]], port("", 53, "UDP")),
        endpoint_slice("s", "s", dict.fromkeys(addresses, "node1"), port("", SINK_PORT, "UDP")),
    )
    cluster.settle()
    leaving = PRIORITIES.format(priority=f"0:{priority}" if priority else "none")
    with sink(cluster.bed, family) as counters, Counters(cluster.bed.node.namespace, leaving) as left:
        with client.namespace.entered():
            datagrams(client.address(family), vips[family], 53, range(20000, 20000 + connections), priority)
        assert until(lambda: sum(counters.read().values()) >= connections), counters.read()
        got = {address: packets for address, packets in counters.read().items() if packets}
        assert left.read() == {"wanted": connections, "all": connections}
    assert set(got) == set(addresses)
    mean = connections / count
    assert all(0.75 * mean < packets < 1.25 * mean for packets in got.values()), got
    assert sum((packets - mean) ** 2 / mean for packets in got.values()) < CHI_SQUARE[count - 1], got


def sink(bed: Bed, family: int) -> Counters:
    ip = {4: "ip", 6: "ip6"}[family]
    rules = " ".join(SINK_RULE.format(ip=ip, address=address) for address in MANY[family])
    return Counters(bed.pod3.namespace, SINK.format(rules=rules))


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("source", ["client", "pod-1", "node"])
@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
def test_what_nobody_serves_is_refused_at_once(
    cluster: Cluster, vips: Mapping[int, str], protocol: str, source: str, family: int
) -> None:
    bed = cluster.bed
    put(cluster, vips, bed.pod2, bed.pod3, ports={"TCP": (80, 8080), "UDP": (80, 8080)})
    idle = fresh_addresses()[family]
    cluster.put(service("idle", [idle], port("", 80, protocol)))
    cluster.settle()
    assert end(host(bed, source), vips[family], 80, protocol) == "answered"
    assert end(host(bed, source), vips[family], 81, protocol) == "refused"
    assert end(host(bed, source), idle, 80, protocol) == "refused"
    assert end(host(bed, source), idle, 81, protocol) == "refused"


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("source", ["client", "pod-1", "node"])
def test_addresses_that_no_service_has_are_silent(cluster: Cluster, source: str, family: int) -> None:
    cluster.settle()
    address = {4: "10.100.9.9", 6: "fd00:10:96::9999"}[family]
    # The node's default route leads to the client: there one would see what is not dropped.
    with Capture(cluster.bed.client.namespace) as capture, ThreadPoolExecutor() as pool:
        ends = pool.map(lambda protocol: end(host(cluster.bed, source), address, 80, protocol), ["TCP", "UDP"])
        assert list(ends) == ["no answer", "no answer"]
        assert capture.find(lambda packet: str(packet.dst) == address, timeout=0.05) is None


def test_addresses_outside_of_service_cidrs_are_none_of_our_business(cluster: Cluster) -> None:
    """And what the test above looks for would be seen."""
    cluster.settle()
    with Capture(cluster.bed.client.namespace) as capture:
        assert end(cluster.bed.pod1, "10.112.0.1", 80, "UDP") == "no answer"
        assert capture.find(lambda packet: str(packet.dst) == "10.112.0.1", timeout=5) is not None


def test_established_connections_outlive_all_changes(cluster: Cluster, vips: Mapping[int, str]) -> None:
    bed, changes = cluster.bed, 300
    everything = {f: {p.address(f): where(p) for p in bed.pods} | dict.fromkeys(MANY[f], "node1") for f in (4, 6)}
    put(cluster, vips, *bed.pods, ports={"TCP": (80, 8080)})
    commits = Commits(bed.node.namespace)
    lasting = [LongLived(source, vips[f], 80, 8, 0.001) for f in (4, 6) for source in (bed.client, bed.pod1, bed.node)]
    try:
        for number in range(changes):
            begun = time.monotonic()
            for family, nodes in everything.items():
                some = dict(random.sample(list(nodes.items()), 1 + number % len(nodes)))
                cluster.put(endpoint_slice(f"s-{family}", "s", some, port("tcp", 8080)))
            other = f"other-{number // 2}"
            if number % 2:
                cluster.delete("Service", other)
            else:
                cluster.put(service(other, [f"10.97.0.{number % 250 + 1}"], port("", 80)))
            commits.after(begun)
        assert_alive(lasting)
    finally:
        for it in lasting:
            it.stop()
        commits.close()
    assert [it.broken for it in lasting] == [[]] * len(lasting)
    assert all(len(it.endpoints) > 1 for it in lasting)
    assert len(commits.times) >= changes


def test_new_connections_never_fail_while_an_endpoint_stays(cluster: Cluster, vips: Mapping[int, str]) -> None:
    """The Service shrinks and grows as fast as the agent follows. No packet may fall between two of its sizes."""
    bed, changes = cluster.bed, 2000
    # Far up and far down, so that the Service passes by all the sets that it may be in.
    sizes = [
        random.choice([1, 1, 1, 2, 3]) if number % 2 else random.choice([9, 17, 20, 20]) for number in range(changes)
    ]
    ports = [port("tcp", 8080), port("udp", SINK_PORT, "UDP")]

    def resize(size: int) -> None:
        cluster.put(endpoint_slice("s", "s", dict.fromkeys(MANY[4][-size:], "node1"), *ports))

    resize(1)
    cluster.put(service("s", [vips[4]], port("tcp", 80), port("udp", 53, "UDP")))
    cluster.settle()
    commits = Commits(bed.node.namespace)
    streams = [Stream(bed.client, vips[4], 80, pause=0.02), Stream(bed.pod1, vips[4], 80, pause=0.02)]
    with sink(bed, 4) as arrived, Flood(bed, vips[4]) as sent:
        try:
            for stream in streams:
                stream.start()
            for size in sizes:
                begun = time.monotonic()
                resize(size)
                commits.after(begun)
        finally:
            attempts = [attempt for stream in streams for attempt in stream.stop()]
            commits.close()
        packets, counted = sent.ended(arrived)
    assert packets["refused"] == 0, packets
    assert sum(counted.values()) == packets["sent"] > changes
    assert all(counted.values())
    assert [a for a in attempts if a.failure] == []
    assert len({a.endpoint for a in attempts}) > 3


def test_new_connections_never_fail_while_session_affinity_comes_and_goes(
    cluster: Cluster, vips: Mapping[int, str]
) -> None:
    """A packet that has passed the old way's first half finds the other half gone."""
    bed, changes = cluster.bed, 400
    pods = dict.fromkeys(MANY[4][:3], "node1")
    cluster.put(endpoint_slice("s", "s", pods, port("udp", SINK_PORT, "UDP")))

    def put_service(affinity: str) -> None:
        cluster.put(service("s", [vips[4]], port("udp", 53, "UDP"), sessionAffinity=affinity))

    put_service("None")
    cluster.settle()
    commits = Commits(bed.node.namespace)
    with sink(bed, 4) as arrived, Flood(bed, vips[4]) as sent:
        try:
            for number in range(changes):
                begun = time.monotonic()
                put_service("None" if number % 2 else "ClientIP")
                commits.after(begun)
        finally:
            commits.close()
        packets, counted = sent.ended(arrived)
    assert packets["refused"] == 0, packets
    assert sum(counted.values()) == packets["sent"] > changes


class Flood(Counters):
    """UDP datagrams from pod-1 to a Service's port 53, as fast as they go, from `with` until `stop`."""

    def __init__(self, bed: Bed, vip: str) -> None:
        super().__init__(
            bed.pod1.namespace,
            'chain o { type filter hook output priority 0; udp dport 53 counter comment "sent"; }\n'
            'chain i { type filter hook input priority 0; icmp type destination-unreachable counter comment "refused"; }',
        )
        self._bed, self._vip = bed, vip

    def __enter__(self) -> Flood:
        super().__enter__()
        self._bed.node.namespace.sysctl(netfilter__nf_conntrack_udp_timeout=1)  # millions would fill the table
        # Each datagram is to be a new connection, and one address has not ports enough.
        self._bed.pod1.namespace.ip(["route add local 10.244.0.128/25 dev lo"])
        sources = [f"10.244.0.{i}" for i in range(128, 192)]
        argv = [sys.executable, "-S", blast.__file__, self._vip, "53", *sources]
        self._process = self._bed.pod1.namespace.popen(argv)
        assert until(lambda: self.read()["sent"] > 0)
        return self

    def stop(self) -> None:
        namespaces.stop(self._process)

    def ended(self, arrived: Counters) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """What was sent and refused, and what arrived, when that is all of it."""
        self.stop()
        packets = self.read()
        until(lambda: sum(arrived.read().values()) + packets["refused"] >= packets["sent"])
        return packets, arrived.read()

    def __exit__(self, *of_error: object) -> None:
        self.stop()
        self._bed.pod1.namespace.ip(["route del local 10.244.0.128/25 dev lo"])
        super().__exit__(None, None, None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_restart_loses_no_connection(cluster: Cluster, vips: Mapping[int, str], number: signal.Signals) -> None:
    bed = cluster.bed
    put(cluster, vips, bed.pod1, bed.pod3, ports={"TCP": (80, 8080)})
    lasting = [LongLived(source, vips[family], 80, 4) for source in (bed.client, bed.pod2) for family in (4, 6)]
    streams = [Stream(source, vips[family], 80) for source in (bed.client, bed.pod2) for family in (4, 6)]
    try:
        for stream in streams:
            stream.start()
        assert until(lambda: all(len(stream.attempts) > 20 for stream in streams))
        cluster.restart(number)
        restarted = time.monotonic()
        put(cluster, vips, bed.pod2, ports={"TCP": (80, 8080)})  # the new one follows what changes
        moved = time.monotonic()
        assert until(lambda: all(stream.attempts[-1].started > moved for stream in streams))
        assert_alive(lasting)
    finally:
        attempts = [attempt for stream in streams for attempt in stream.stop()]
        for it in lasting:
            it.stop()
    assert [a for a in attempts if a.failure] == []
    assert [it.broken for it in lasting] == [[]] * len(lasting)
    to_pod2 = {endpoint(bed.pod2.address(family), 8080) for family in (4, 6)}
    assert not to_pod2 & {a.endpoint for a in attempts if a.ended < restarted}
    assert {a.endpoint for a in attempts if a.started > moved} == to_pod2


FIREWALL: Final = """
chain forward {
    type filter hook forward priority 0; policy drop;
    ct state established,related counter accept comment "established"
    meta l4proto { tcp, udp } th dport 8080 counter accept comment "new"
}
"""


@pytest.mark.parametrize("family", [4, 6])
def test_a_cluster_ip_that_is_another_services_external_ip(
    cluster: Cluster, vips: Mapping[int, str], family: int
) -> None:
    """Each port is led as its own Service says."""
    bed, shared = cluster.bed, vips[family]
    external = {"externalIPs": [shared], "type": "NodePort", "externalTrafficPolicy": "Local"}
    cluster.put(
        service("a", [shared], port("", 80)),
        endpoint_slice("a", "a", {bed.pod3.address(family): "node1"}, port("", 8080)),
        service("b", [fresh_addresses()[family]], port("", 81), **external),
        endpoint_slice("b", "b", {p.address(family): where(p) for p in (bed.pod2, bed.pod3)}, port("", 8080)),
    )
    cluster.settle()
    for _ in range(10):
        assert ask(bed.client, shared, 80).endpoint == endpoint(bed.pod3.address(family), 8080)
        answer = ask(bed.client, shared, 81)
        assert (answer.endpoint, answer.seen) == (endpoint(bed.pod2.address(family), 8080), answer.own)
    assert end(bed.client, shared, 82, "TCP") == "refused"


@pytest.mark.parametrize("family", [4, 6])
def test_a_firewall_beside_us_keeps_working(cluster: Cluster, vips: Mapping[int, str], family: int) -> None:
    bed = cluster.bed
    put(cluster, vips, bed.pod2, bed.pod3, ports={"TCP": (80, 8080), "UDP": (53, 8080)})
    with Counters(bed.node.namespace, FIREWALL, "firewall") as firewall:
        before = firewall.text()
        for _ in range(2):
            for source in (bed.client, bed.pod1):
                assert end(source, vips[family], 80, "TCP") == "answered"
                assert end(source, vips[family], 53, "UDP") == "answered"
                assert end(source, bed.pod3.address(family), 8081, "TCP") == "no answer"
            cluster.restart(signal.SIGTERM)
            put(cluster, vips, bed.pod3, ports={"TCP": (80, 8080), "UDP": (53, 8080)})
        assert firewall.text() == before
        packets = firewall.read()
        assert packets["new"] == 8
        assert packets["established"] > 8


# By configuration: from whom endpoints see connections, the sender's own address or the node's.
OWN, NODE = "own", "node's"
MASQUERADE: Final[Mapping[str, tuple[Object, Mapping[str, str]]]] = {
    "clusterCIDR": ({}, {"client": NODE, "pod-1": OWN, "pod-2": OWN, "node": NODE}),
    "no clusterCIDR": ({"clusterCIDR": None}, {"client": OWN, "pod-1": OWN, "pod-2": OWN, "node": OWN}),
    "masqueradeAll": (
        {"nftables": {"masqueradeAll": True}},
        {"client": NODE, "pod-1": NODE, "pod-2": NODE, "node": NODE},
    ),
}


@pytest.mark.parametrize("configuration", MASQUERADE)
def test_whom_endpoints_see(clusters: Clusters, vips: Mapping[int, str], configuration: str) -> None:
    config, expected = MASQUERADE[configuration]
    cluster, bed = clusters.get(config), clusters.bed
    put(cluster, vips, bed.pod3, ports={"TCP": (80, 8080), "UDP": (80, 8080)})
    facing_pod3 = {4: "192.168.78.2", 6: "fd78::2"}
    seen = {
        (source, family, protocol): ask(host(bed, source), vips[family], 80, protocol).seen
        for source in expected
        for family in (4, 6)
        for protocol in ("TCP", "UDP")
    }
    assert seen == {
        (source, family, protocol): host(bed, source).address(family) if whose == OWN else facing_pod3[family]
        for source, whose in expected.items()
        for family in (4, 6)
        for protocol in ("TCP", "UDP")
    }
    cluster.clear()


@pytest.mark.parametrize("configuration", MASQUERADE)
@pytest.mark.parametrize("family", [4, 6])
def test_an_endpoint_that_is_led_to_itself_sees_the_node(
    clusters: Clusters, vips: Mapping[int, str], configuration: str, family: int
) -> None:
    cluster, bed = clusters.get(MASQUERADE[configuration][0]), clusters.bed
    put(cluster, vips, bed.pod1, ports={"TCP": (80, 8080), "UDP": (80, 8080)})
    for protocol in ("TCP", "UDP"):
        answer = ask(bed.pod1, vips[family], 80, protocol)
        assert answer.endpoint == endpoint(bed.pod1.address(family), 8080)
        assert answer.seen == {4: "10.244.0.1", 6: "fd44::1"}[family]
    cluster.clear()


MARKS: Final = """
chain prerouting {{ type filter hook prerouting priority -150; {to} meta mark set 0x2a; }}
chain output {{ type filter hook output priority -150; {to} meta mark set 0x2a; }}
chain after {{
    type filter hook postrouting priority 90;
    ct state new meta mark {bit:#x} counter comment "ours alone"
    ct state new meta mark & {bit:#x} != 0 meta mark & 0xff == 0x2a counter comment "to be masqueraded"
}}
chain last {{
    type filter hook postrouting priority 150;
    ct state new meta mark == 0x2a counter comment "kept"
    ct state new meta mark != 0x2a meta mark != 0 counter comment "otherwise"
}}
"""


@pytest.mark.parametrize(
    ("config", "bit"), [({}, 1 << 14), ({"nftables": {"masqueradeBit": 20}}, 1 << 20)], ids=["14", "20"]
)
@pytest.mark.parametrize(("source", "masqueraded"), [("client", True), ("pod-1", False), ("node", True)])
@pytest.mark.parametrize("family", [4, 6])
def test_other_bits_of_a_mark_stay_and_ours_goes(
    clusters: Clusters,
    vips: Mapping[int, str],
    config: Object,
    bit: int,
    source: str,
    masqueraded: bool,
    family: int,
) -> None:
    cluster, bed, count = clusters.get(config), clusters.bed, 5
    put(cluster, vips, bed.pod3, ports={"TCP": (80, 8080)})
    to = f"{'ip' if family == 4 else 'ip6'} daddr {vips[family]}"
    with Counters(bed.node.namespace, MARKS.format(to=to, bit=bit), "marks") as counters:
        answers = [ask(host(bed, source), vips[family], 80) for _ in range(count)]
        packets = counters.read()
    assert {answer.seen == answer.own for answer in answers} == {not masqueraded}
    assert packets == {
        "ours alone": 0,
        "to be masqueraded": count if masqueraded else 0,
        "kept": count,
        "otherwise": 0,
    }
    cluster.clear()
