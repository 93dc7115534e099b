"""`sessionAffinity: ClientIP` by real packets: who sticks to what, for how long, and who moves when endpoints change."""

from __future__ import annotations

import ipaddress
import itertools
import os
import random
import re
import selectors
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pytest

from integration import namespaces, privileges
from integration.cluster import Cluster, Clusters, Object, endpoint_slice, port, service
from integration.namespaces import Namespace
from integration.servers import EchoServers
from integration.topology import Bed
from integration.traffic import Commits, until
from rules.diff import scratch
from rules.elements import ServicePort, endpoint, service_key
from rules.kernel import Kernel
from rules.layout import TABLE_NAME, Layout, Options
from rules.objects import PROTOCOLS, Family
from rules.tables import remove, replace
from tests import blast
from tests.packets import Counters
from tests.test_packets import CHI_SQUARE

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`"),
]

ALL: Final = [(family, protocol) for family in (4, 6) for protocol in ("TCP", "UDP")]
LONG: Final = 300
"""Seconds of affinity, where a test is not to see their end."""

FEW: Final = 40
"""Clients; that all of them draw the same of several endpoints twice does not happen."""

IP_FREEBIND, IPV6_FREEBIND = 15, 78  # linux/in.h, linux/in6.h
IN_FLIGHT: Final = 64  # questions at a time: fewer than a server's receive buffer holds

_numbers: Final = itertools.count(1)
_source_ports: Final = itertools.count(10000)  # never one twice, so that no question is part of an earlier connection


@dataclass(frozen=True)
class Clients:
    """All addresses of a network in each family, all of them of one namespace."""

    namespace: Namespace
    networks: Mapping[int, str]

    def some(self, family: int, count: int) -> list[str]:
        """Addresses that no other call gives, for as long as there are."""
        first = ipaddress.ip_network(self.networks[family]).network_address
        start = next(_numbers) * FEW
        return [str(first + start + i) for i in range(count)]

    def ask(self, family: int, protocol: str, sources: Sequence[str], to: tuple[str, int]) -> dict[str, str]:
        """The endpoint (its address) that answers each source's new connection."""
        answers: dict[str, str] = {}
        with self.namespace.entered():
            for i in range(0, len(sources), IN_FLIGHT):
                answers |= _ask_all(family, protocol, sources[i : i + IN_FLIGHT], to)
        return answers


def _ask_all(family: int, protocol: str, sources: Sequence[str], to: tuple[str, int]) -> dict[str, str]:
    source_port = next(_source_ports)
    answers: dict[str, str] = {}
    with selectors.DefaultSelector() as waiting:
        try:
            for source in sources:
                sock = _socket(family, socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM)
                waiting.register(sock, selectors.EVENT_READ, source)
                sock.bind((source, source_port))
                sock.connect_ex(to)
                if protocol == "UDP":
                    sock.send(b"?")
            deadline = time.monotonic() + 5
            while len(answers) < len(sources):
                assert time.monotonic() < deadline, f"no answer from {to} {protocol} to {set(sources) - set(answers)}"
                for key, _ in waiting.select(0.1):
                    assert isinstance(key.fileobj, socket.socket)
                    if key.data not in answers:
                        answers[key.data] = key.fileobj.recv(200).decode().split()[0]
        finally:
            for key in list(waiting.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()
    return answers


def _socket(family: int, kind: int) -> socket.socket:
    """It does not block, may have any source address, and closes with a reset."""
    sock = socket.socket(socket.AF_INET6 if family == 6 else socket.AF_INET, kind)
    sock.setblocking(False)
    if family == 6:
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
    if kind == socket.SOCK_STREAM:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return sock


def remote(family: int, number: int) -> str:
    """An endpoint on the other node."""
    return f"10.244.1.{20 + number}" if family == 4 else f"fd44:1::{20 + number:x}"


def here(family: int, number: int) -> str:
    """An endpoint on this node."""
    return f"10.244.0.{20 + number}" if family == 4 else f"fd44::{20 + number:x}"


ENDPOINTS: Final = 12  # of each kind


@dataclass(frozen=True)
class World:
    clusters: Clusters
    outside: Clients
    pods: Clients
    node: Clients

    def clients(self, name: str) -> Clients:
        return {"outside": self.outside, "pod": self.pods, "node": self.node}[name]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    privileges.acquire()
    with Bed() as bed:
        client, node, node1, pod1, pod2 = (h.namespace for h in (bed.client, bed.node, bed.pod3, bed.pod1, bed.pod2))
        client.ip(["route add local 10.77.0.0/16 dev lo", "route add local fd77:a::/64 dev lo"])
        node.ip(["route add local 10.79.0.0/16 dev lo", "route add local fd79:a::/64 dev lo"])
        pod1.ip(["route add local 10.244.128.0/17 dev lo", "route add local fd44::a:0:0:0/80 dev lo"])
        node.ip(["route add 10.244.128.0/17 via 10.244.0.2", "route add fd44::a:0:0:0/80 via fd44::2"])
        numbers = range(ENDPOINTS)
        node1.ip(f"addr add {remote(4, i)}/32 dev lo" for i in numbers)
        node1.ip(f"addr add {remote(6, i)}/128 dev lo nodad" for i in numbers)
        pod2.ip(f"addr add {here(4, i)}/32 dev lo" for i in numbers)
        pod2.ip(f"addr add {here(6, i)}/128 dev e0 nodad" for i in numbers)
        servers = EchoServers()
        servers.serve(node1, *(remote(f, i) for f in (4, 6) for i in numbers))
        servers.serve(pod2, *(here(f, i) for f in (4, 6) for i in numbers))
        servers.start()
        try:
            yield World(
                Clusters(bed, tmp_path_factory.mktemp("clusters"), ["--table-ownership=never"]),  # we change them, too
                Clients(client, {4: "10.77.0.0/16", 6: "fd77:a::/64"}),
                Clients(pod1, {4: "10.244.128.0/17", 6: "fd44::a:0:0:0/80"}),
                Clients(node, {4: "10.79.0.0/16", 6: "fd79:a::/64"}),
            )
        finally:
            servers.stop()


@pytest.fixture
def cluster(world: World) -> Iterator[Cluster]:
    it = world.clusters.get()
    yield it
    it.clear()
    # Tens of thousands of tickets would make those of the next test slow to read.
    it.bed.node.namespace.run(["nft", "; ".join(f"flush map {ip} {TABLE_NAME} tickets" for ip in ("ip", "ip6"))])


class Sticky:
    """A Service of both families, TCP and UDP, with a NodePort and a load balancer's address, all its own.

    policy: its externalTrafficPolicy; with Local, endpoint numbers are those of endpoints on this node.
    """

    def __init__(self, cluster: Cluster, timeout: int = LONG, policy: str = "Cluster") -> None:
        self._cluster, self._policy, self._number = cluster, policy, next(_numbers)
        self.name = f"sticky-{self._number}"
        self.cluster_ip = {4: f"10.96.{self._number >> 8}.{self._number & 255}", 6: f"fd00:10:96::{self._number:x}"}
        self.balancer = {4: f"203.0.{self._number >> 8}.{self._number & 255}", 6: f"2001:db8::{self._number:x}"}
        self.configure(timeout)

    def configure(self, timeout: int) -> None:
        """With this affinity from now on (0: without). Not settled."""
        ports = [{**port(p.lower(), 80, p), "nodePort": 30000 + self._number} for p in ("TCP", "UDP")]
        affinity: Object = {}
        if timeout:
            config = {"clientIP": {"timeoutSeconds": timeout}}
            affinity = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": config}
        made = service(
            self.name,
            list(self.cluster_ip.values()),
            *ports,
            type="LoadBalancer",
            externalTrafficPolicy=self._policy,
            **affinity,
        )
        ingress = [{"ip": ip, "ipMode": "VIP"} for ip in self.balancer.values()]
        self._cluster.put({**made, "status": {"loadBalancer": {"ingress": ingress}}})

    def lead_to(self, numbers: Iterable[int], families: Sequence[int] = (4, 6)) -> None:
        """Its endpoints from now on. Not settled."""
        ports = [port("tcp", 8080), port("udp", 8080, "UDP")]
        place, node = (here, "node0") if self._policy == "Local" else (remote, "node1")
        chosen = list(numbers)
        for family in families:
            nodes = {place(family, i): node for i in chosen}
            self._cluster.put(endpoint_slice(f"{self.name}-{family}", self.name, nodes, *ports))

    def door(self, way: str, family: int) -> tuple[str, int]:
        """Address and port."""
        address = {"clusterIP": self.cluster_ip, "load balancer": self.balancer}.get(way)
        if address is None:
            return {4: "192.168.77.2", 6: "fd77::2"}[family], 30000 + self._number
        return address[family], 80


Answers = Mapping[str, str]
"""Client: endpoint, both as addresses."""


def held(before: Answers, after: Answers, endpoints: Iterable[str]) -> None:
    """Who was with an endpoint that is still there is with it, the others with any that is."""
    alive = set(endpoints)
    assert before.keys() == after.keys()
    assert {c: e for c, e in after.items() if before[c] in alive} == {c: e for c, e in before.items() if e in alive}
    assert set(after.values()) <= alive


WAYS: Final = [
    ("outside", "clusterIP", "Cluster"),
    ("pod", "clusterIP", "Cluster"),
    ("node", "clusterIP", "Cluster"),
    ("outside", "NodePort", "Cluster"),
    ("node", "NodePort", "Cluster"),
    ("outside", "load balancer", "Cluster"),
    ("outside", "NodePort", "Local"),
    ("outside", "load balancer", "Local"),
    ("pod", "load balancer", "Local"),
]


@pytest.mark.parametrize(("source", "way", "policy"), WAYS)
def test_only_clients_of_endpoints_that_go_move(
    world: World, cluster: Cluster, source: str, way: str, policy: str
) -> None:
    clients, it = world.clients(source), Sticky(cluster, policy=policy)
    place = here if policy == "Local" else remote
    sources = {family: clients.some(family, FEW) for family in (4, 6)}

    def ask() -> dict[tuple[int, str], Answers]:
        return {(f, p): clients.ask(f, p, sources[f], it.door(way, f)) for f, p in ALL}

    it.lead_to(range(4))
    cluster.settle()
    answers = ask()
    assert all(len(set(now.values())) > 1 for now in answers.values())

    def turn_to(numbers: Iterable[int]) -> None:
        """Other endpoints: who has to move moves, and then stays."""
        nonlocal answers
        chosen = list(numbers)
        it.lead_to(chosen)
        cluster.settle()
        after = ask()
        for (family, protocol), now in after.items():
            held(answers[family, protocol], now, [place(family, i) for i in chosen])
        answers = ask()
        assert answers == after

    turn_to(range(4))
    turn_to(range(5))
    turn_to(range(10))
    someone = {i for i in range(4) if place(4, i) == answers[4, "TCP"][sources[4][0]]}
    turn_to(set(range(10)) - someone)
    turn_to(random.sample(range(10), 3))
    turn_to(range(12))
    turn_to([11])
    turn_to(range(12))
    assert all(set(now.values()) == {place(family, 11)} for (family, _), now in answers.items())


def test_a_ticket_is_of_one_service_port_and_client_whichever_way_he_comes(world: World, cluster: Cluster) -> None:
    services = [Sticky(cluster), Sticky(cluster), Sticky(cluster, policy="Local")]
    for it in services:
        it.lead_to(range(10))
    cluster.settle()
    for family in (4, 6):
        sources = world.outside.some(family, FEW)
        drawn = []
        for it, protocol in itertools.product(services, ("TCP", "UDP")):
            ways = (
                ["clusterIP", "NodePort", "load balancer"] if it is not services[2] else ["NodePort", "load balancer"]
            )
            answers = [world.outside.ask(family, protocol, sources, it.door(way, family)) for way in ways]
            assert all(each == answers[0] for each in answers), ways
            drawn.append([int(ipaddress.ip_address(endpoint)) % 16 for endpoint in answers[0].values()])
        assert all(len(set(each)) > 2 for each in drawn)
        assert all(one != other for one, other in itertools.combinations(drawn, 2))


def test_clients_of_other_addresses_of_a_service_with_local_policy(world: World, cluster: Cluster) -> None:
    """A pod's ticket is one for all endpoints, an outsider's one for those here, also at the same address."""
    it = Sticky(cluster, policy="Local")
    it.lead_to([0, 1])
    elsewhere = {remote(4, i): "node1" for i in range(6)}
    cluster.put(endpoint_slice("more", it.name, elsewhere, port("tcp", 8080), port("udp", 8080, "UDP")))
    cluster.settle()
    door = it.door("load balancer", 4)
    pods, outside = world.pods.some(4, FEW), world.outside.some(4, FEW)
    from_pods, from_outside = world.pods.ask(4, "TCP", pods, door), world.outside.ask(4, "TCP", outside, door)
    assert set(from_outside.values()) == {here(4, 0), here(4, 1)}
    assert set(from_pods.values()) & set(elsewhere)
    assert world.pods.ask(4, "TCP", pods, door) == from_pods
    assert world.outside.ask(4, "TCP", outside, door) == from_outside


# The spread of new clients.


class Led(Counters):
    """Which endpoints the node leads UDP datagrams to, forwarded ones; they go no further than that."""

    def __init__(self, namespace: Namespace, family: int) -> None:
        ip = {4: "ip", 6: "ip6"}[family]
        super().__init__(
            namespace,
            f"set led {{ typeof {ip} saddr . {ip} daddr; size 200000; flags dynamic; }}\n"
            "chain led { type filter hook forward priority 0;"
            f" meta nfproto ipv{family} meta l4proto udp update @led {{ {ip} saddr . {ip} daddr }} drop; }}",
            "led",
        )
        self._where = namespace

    def pairs(self) -> list[tuple[str, str]]:
        """(client, endpoint), each once."""
        text = self._where.run(["nft", "list", "set", "inet", "led", "led"]).stdout
        return re.findall(r"([0-9a-f.:]+) \. ([0-9a-f.:]+)", text.partition("elements")[2])


IP_PKTINFO: Final = 8
IPV6_PKTINFO: Final = 50


def datagrams(clients: Clients, family: int, sources: Iterable[str], to: tuple[str, int]) -> None:
    """One from each source, from a port that none has used yet."""
    with clients.namespace.entered(), _socket(family, socket.SOCK_DGRAM) as sock:
        sock.setblocking(True)
        sock.bind(("", next(_source_ports)))
        for source in sources:
            if family == 4:
                info = (socket.IPPROTO_IP, IP_PKTINFO, struct.pack("i4s4x", 0, socket.inet_aton(source)))
            else:
                info = (socket.IPPROTO_IPV6, IPV6_PKTINFO, socket.inet_pton(socket.AF_INET6, source) + bytes(4))
            sock.sendmsg([b"?"], [info], 0, to)


def ask_many(world: World, family: int, sources: Sequence[str], to: tuple[str, int]) -> dict[str, str]:
    """Like Clients.ask with UDP, for clients outside, without answers. Nobody may be led to two endpoints."""
    with Led(world.clusters.bed.node.namespace, family) as led:
        missing = set(sources)
        for _ in range(5):  # a queue on the way may have been too short for so many
            datagrams(world.outside, family, [s for s in sources if s in missing], to)
            pairs = led.pairs()
            missing = set(sources) - {client for client, _ in pairs}
            if not missing:
                break
    assert not missing, f"{len(missing)} of {len(sources)}"
    answers = dict(pairs)
    assert len(answers) == len(pairs)
    return answers


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("count", [3, 5, 10])
def test_new_clients_spread_evenly(world: World, cluster: Cluster, count: int, family: int) -> None:
    clients, it = 1000, Sticky(cluster)
    it.lead_to(range(count))
    cluster.settle()
    for way in ("clusterIP", "NodePort"):
        sources = world.outside.some(family, FEW)
        first = ipaddress.ip_address("10.77.128.0" if family == 4 else "fd77:a::1:0:0")
        sources = [str(first + i) for i in range(clients)]
        got = Counter(ask_many(world, family, sources, it.door(way, family)).values())
        assert set(got) == {remote(family, i) for i in range(count)}
        mean = clients / count
        assert sum((n - mean) ** 2 / mean for n in got.values()) < CHI_SQUARE[count - 1], got


def test_after_many_changes_nobody_has_much_more_than_twice_the_average(world: World, cluster: Cluster) -> None:
    clients, it = 1000, Sticky(cluster)
    chosen = list(range(6))
    for _ in range(40):
        chosen.remove(random.choice(chosen))
        chosen.append(random.choice([i for i in range(ENDPOINTS) if i not in chosen]))
        it.lead_to(chosen if random.random() < 0.7 else chosen[:3])
        cluster.settle()
    it.lead_to(chosen)
    cluster.settle()
    sources = [str(ipaddress.ip_address("10.77.160.0") + i) for i in range(clients)]
    got = Counter(ask_many(world, 4, sources, it.door("clusterIP", 4)).values())
    assert set(got) == {remote(4, i) for i in chosen}
    mean = clients / len(chosen)
    assert max(got.values()) < 2 * mean + 5 * mean**0.5, got
    assert min(got.values()) > mean / 4, got


@pytest.mark.parametrize("family", [4, 6])
def test_fifty_thousand_clients_at_once(world: World, cluster: Cluster, family: int) -> None:
    count, it = 50_000, Sticky(cluster)
    it.lead_to(range(10))
    cluster.settle()
    first = ipaddress.ip_address("10.77.0.1" if family == 4 else "fd77:a::2:0:0")
    sources, door = [str(first + i) for i in range(count)], it.door("clusterIP", family)
    answers = ask_many(world, family, sources, door)
    # IPv6 addresses are remembered by hashes of 32 bits, of which a few may be equal. While the kernel still spreads a
    # table that has grown, a listing of it misses some.
    least = count if family == 4 else count - 10
    found: list[int] = []
    for _ in range(10):
        found = tickets(cluster, it, "udp", family)
        if len(found) >= least:
            break
    assert least <= len(found) <= count
    sample = sources[::20]
    answers = {source: answers[source] for source in sample}
    assert ask_many(world, family, sample, door) == answers
    it.lead_to(range(1, 12))
    cluster.settle()
    held(answers, ask_many(world, family, sample, door), [remote(family, i) for i in range(1, 12)])


def test_who_finds_no_room_for_a_ticket_is_served_without(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else anybody could shut everybody out, with packets from made-up addresses."""
    monkeypatch.setattr("rules.service_ports.MAX_TICKETS", FEW // 2)
    layout = Layout(Family.IPV4)  # LAYOUTS remembers sets of the usual size
    vips = {count: f"10.96.255.{count}" for count in (1, 2, 10)}
    ports = [
        ServicePort(
            service_key(socket.inet_aton(vip), PROTOCOLS["TCP"], 80),
            "default/s",
            tuple(endpoint(bytes([11, 0, 0, i]), 7000) for i in range(count)),
            timeout=LONG,
            identity=count,
        )
        for count, vip in vips.items()
    ]
    failures = Counter[str]()
    # No agent: the rules of a node, in a pod, which is its own client and all the endpoints.
    world.pods.namespace.ip(["route add local 11.0.0.0/8 dev lo"])
    with world.pods.namespace.entered(), socket.create_server(("", 7000), backlog=1024):
        kernel = Kernel()
        kernel.commit([*replace(layout, Options(), ()), *scratch(Family.IPV4, ports).operations])
        try:
            for source in world.pods.some(4, FEW):
                for count, vip in vips.items():
                    with _socket(4, socket.SOCK_STREAM) as sock:
                        sock.settimeout(5)
                        sock.bind((source, 0))
                        try:
                            sock.connect((vip, 80))
                        except OSError as error:
                            failures[f"{count} endpoints: {error}"] += 1
        finally:
            kernel.commit(remove(layout))
            kernel.close()
    assert not failures


# Time.


def tickets(cluster: Cluster, it: Sticky, protocol: str, family: int = 4) -> list[int]:
    """The seconds that those of a service port are still good for that are."""

    def listed(name: str) -> str:
        table = f"{'ip' if family == 4 else 'ip6'} {TABLE_NAME}"
        return cluster.bed.node.namespace.run(["nft", f"list map {table} {name}"]).stdout

    number = re.search(rf"{re.escape(it.cluster_ip[family])} \. {protocol} \. 80 : (\S+?)[,\s]", listed("affinity"))
    assert number
    return [_seconds(left) for left in re.findall(rf"\. {number[1]} [^,]*?expires (\w+)", listed("tickets"))]


def _seconds(text: str) -> int:
    """As nft writes it: 4m59s950ms."""
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * units.get(unit, 0) for number, unit in re.findall(r"(\d+)(h|ms|m|s)", text))


def test_affinity_ends_and_begins_again_with_every_connection(world: World, cluster: Cluster) -> None:
    timeout = 2
    it = Sticky(cluster, timeout)
    it.lead_to(range(10))
    cluster.settle()
    sources, door = world.outside.some(4, FEW), it.door("clusterIP", 4)
    begun = asked = time.monotonic()
    answers = world.outside.ask(4, "TCP", sources, door)
    gaps = []
    while time.monotonic() < begun + 1.5 * timeout:
        time.sleep(timeout / 4)
        again = world.outside.ask(4, "TCP", sources, door)
        gaps.append(time.monotonic() - asked)
        if gaps[-1] < timeout:  # or this machine was busy elsewhere
            assert again == answers
        asked, answers = time.monotonic(), again
    assert until(lambda: not tickets(cluster, it, "tcp"), timeout=timeout + 5)
    after = world.outside.ask(4, "TCP", sources, door)
    assert sum(after[s] != answers[s] for s in sources) > FEW / 4


def test_services_have_timeouts_of_their_own_which_may_change(world: World, cluster: Cluster) -> None:
    short, long, changing = Sticky(cluster, 1), Sticky(cluster, LONG), Sticky(cluster, LONG)
    for it in (short, long, changing):
        it.lead_to(range(10))
    cluster.settle()
    sources = world.outside.some(4, FEW)

    def ask(it: Sticky) -> dict[str, str]:
        return world.outside.ask(4, "UDP", sources, it.door("clusterIP", 4))

    answers = {it: ask(it) for it in (long, changing)}
    first = ask(short)
    assert until(lambda: not tickets(cluster, short, "udp"))
    assert ask(short) != first
    assert {it: ask(it) for it in (long, changing)} == answers

    for timeout in (LONG // 2, 2 * LONG, 3):
        changing.configure(timeout)
        cluster.settle()
        assert ask(changing) == answers[changing]  # a change moves nobody
        left = tickets(cluster, changing, "udp")
        assert len(left) == FEW
        assert max(left) <= timeout < max(left) + LONG / 3  # from the next connection on
    assert until(lambda: not tickets(cluster, changing, "udp"), timeout=10)
    assert ask(changing) != answers[changing]
    assert len(tickets(cluster, long, "udp")) == FEW
    assert ask(long) == answers[long]


def test_affinity_switched_on_and_off(world: World, cluster: Cluster) -> None:
    it = Sticky(cluster, timeout=0)
    it.lead_to(range(10))
    sources = {family: world.outside.some(family, FEW) for family in (4, 6)}
    for timeout in (0, LONG, 0, LONG):
        it.configure(timeout)
        cluster.settle()
        for family, protocol in ALL:
            for way in ("clusterIP", "NodePort"):
                door = it.door(way, family)
                rounds = [world.outside.ask(family, protocol, sources[family], door) for _ in range(3)]
                sticks = rounds[0] == rounds[1] == rounds[2]
                assert sticks is bool(timeout), (timeout, family, protocol, way)
                assert all(len(set(each.values())) > 2 for each in rounds)


# Changes while packets come.


@pytest.mark.parametrize("family", [4, 6])
def test_a_packet_between_two_sets_is_led_by_its_ticket(world: World, cluster: Cluster, family: int) -> None:
    """A packet that asks one set before a commit and another after it may find its Service in none. So here: always."""
    it, clients = Sticky(cluster), world.outside
    it.lead_to(range(6))
    cluster.settle()
    sources = clients.some(family, FEW)
    address, number = it.door("clusterIP", family)
    answers = clients.ask(family, "TCP", sources, (address, number))
    where = f"{'ip' if family == 4 else 'ip6'} {TABLE_NAME} sticky-8-for-{LONG}s"
    node = cluster.bed.node.namespace
    node.run(["nft", f"delete element {where} {{ {address} . tcp . {number} }}"])
    try:
        assert clients.ask(family, "TCP", sources, (address, number)) == answers
    finally:
        node.run(["nft", f'add element {where} {{ {address} . tcp . {number} comment "default/{it.name}:tcp" }}'])


def test_nobody_moves_from_an_endpoint_that_stays_while_others_come_and_go(world: World, cluster: Cluster) -> None:
    """However fast that is: no packet may meet the Service between two of its sizes and be led elsewhere."""
    staying, changes = range(5), 300
    it = Sticky(cluster)
    it.lead_to(staying)
    cluster.settle()
    # Other timeouts have sets of their own, which packets pass between those that this Service will be in.
    for i in range(20):
        Sticky(cluster, 1000 + i).lead_to([0])
    cluster.settle()
    answers = ask_many(world, 4, world.outside.some(4, FEW), it.door("clusterIP", 4))
    # Who is with number 0 would be there by chance, too.
    sources = [source for source, endpoint in answers.items() if endpoint != remote(4, 0)]
    commits = Commits(cluster.bed.node.namespace)
    with Led(cluster.bed.node.namespace, 4) as led:
        argv = [sys.executable, "-S", blast.__file__, it.cluster_ip[4], "80", *sources * 100]
        flood = world.outside.namespace.popen(argv)
        try:
            assert until(lambda: bool(led.pairs()))
            for number in range(changes):
                begun = time.monotonic()
                more = range(5, 5 + random.choice([1, 4, 7])) if number % 2 == 0 else ()
                it.lead_to([*staying, *more], [4])
                commits.after(begun)
        finally:
            namespaces.stop(flood)
            commits.close()
        pairs = led.pairs()
    assert pairs
    moved = [(client, endpoint) for client, endpoint in pairs if answers[client] != endpoint]
    assert not moved, f"{len(moved)}, such as {moved[:3]}"


# The packets' priority, in which a ticket travels between two rules.

PRIORITY: Final = """
chain before {{
    type filter hook postrouting priority 90;
    {ours} meta priority & 0xfffc0000 == 0x4b500000 counter comment "tickets"
}}
chain after {{
    type filter hook postrouting priority 150;
    {ours} meta priority != 0 counter comment "left"
    {ours} meta priority {wanted} counter comment "wanted"
    {ours} counter comment "all"
}}
"""


@pytest.mark.parametrize("source", ["outside", "pod", "node"])
def test_a_ticket_is_not_left_in_the_priority(world: World, cluster: Cluster, source: str) -> None:
    clients, it, local = world.clients(source), Sticky(cluster), Sticky(cluster, policy="Local")
    for each in (it, local):
        each.lead_to(range(10))
    cluster.settle()
    ours = "ct state new ct status dnat th dport 8080"
    with Counters(cluster.bed.node.namespace, PRIORITY.format(ours=ours, wanted="0")) as counters:
        asked = 0
        for each, way in ((it, "clusterIP"), (it, "NodePort"), (local, "NodePort"), (local, "load balancer")):
            for family, protocol in ALL:
                for _ in range(2):
                    asked += len(clients.ask(family, protocol, clients.some(family, 10), each.door(way, family)))
        packets = counters.read()
    assert packets["all"] == asked
    assert packets["left"] == 0
    # Of most forwarded IPv4 packets the kernel sets it anew on the way, by their type of service.
    assert packets["tickets"] >= (asked if source == "node" else asked / 2)


@pytest.mark.parametrize("priority", [6, 0x10003])
def test_a_priority_of_a_program_stays(world: World, cluster: Cluster, priority: int) -> None:
    """On what is not sticky: Services without affinity, and what goes to no Service."""
    it, sticky = Sticky(cluster, timeout=0), Sticky(cluster)
    for each in (it, sticky):
        each.lead_to(range(3))
    cluster.settle()
    wanted = f"{priority >> 16:x}:{priority & 0xFFFF:x}"
    ours = "ct state new th dport 8080"
    with Counters(cluster.bed.node.namespace, PRIORITY.format(ours=ours, wanted=wanted)) as counters:
        targets = [
            (f, to) for f in (4, 6) for to in (it.door("clusterIP", f), it.door("NodePort", f), (remote(f, 0), 8080))
        ]
        for family, to in targets:
            with world.node.namespace.entered(), _socket(family, socket.SOCK_DGRAM) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, priority)
                sock.bind((world.node.some(family, 1)[0], next(_source_ports)))
                sock.connect(to)
                sock.send(b"?")
        packets = counters.read()
    assert packets == {"tickets": 0, "left": len(targets), "wanted": len(targets), "all": len(targets)}
