"""UDP flows: real senders that never change their source port, and the kernel's table of flows."""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import pytest
from structlog.testing import capture_logs

from integration import privileges
from integration.cluster import SERVICE_CIDRS, endpoint_slice, node, port, service
from integration.namespaces import Namespace as Named
from integration.topology import Bed, Host
from integration.traffic import until
from proxy import conntrack
from proxy.agent import Agent
from proxy.conntrack import QUERIES_AT_MOST, Conntrack, Stale, merge
from proxy.conntrack_socket import UDP, Flow, FlowTable, dump_request
from proxy.events import Delete, Event, Inbox, Put, Replace
from proxy.model import ENDPOINT_SLICE, NODE, SERVICE, SERVICE_CIDR, convert
from proxy.state import State
from proxy.udp import UdpChange, UdpFlows
from rules.elements import endpoint, node_port_key, service_key
from rules.kernel import Kernel
from rules.netlink_socket import Replies
from rules.objects import Family
from tests.netns import Namespace

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs network namespaces: run as root")
SILENT, ANSWERING = 7000, 7001
PORTS: Final = {"one-way": SILENT, "two-way": ANSWERING}
VIP: Final = {4: "10.96.0.53", 6: "fd00:10:96::53"}
EXTERNAL: Final = {4: "198.51.100.53", 6: "2001:db8::53"}
OTHER_VIP: Final = {4: "10.96.0.54", 6: "fd00:10:96::54"}
NODE_PORT: Final = 30053
NODE_IPS: Final = {Family.IPV4: {socket.inet_aton("192.168.77.2")}, Family.IPV6: {socket.inet_pton(10, "fd77::2")}}
# No sender gets a port that another one had: its flows would live on, and what arrived from it would count.
SOURCE_PORTS: Final = itertools.count(20000)
Test = TypeVar("Test", bound=Callable[..., None])
NO_IPS: Final[Mapping[Family, frozenset[bytes]]] = {family: frozenset() for family in Family}


def root(test: Test) -> Test:
    marked: Test = pytest.mark.root(needs_root(test))
    return marked


class Receivers:
    """On every pod: a port that is silent, and one that sends each datagram back. Datagrams: sender's port and number."""

    def __init__(self, bed: Bed) -> None:
        self._selector = selectors.DefaultSelector()
        self._done = threading.Event()
        self.latest: dict[tuple[str, int], int] = {}  # (host, sender's port): the highest number that arrived
        for pod in bed.pods:
            for family in (4, 6):
                for number in PORTS.values():
                    sock = bound(pod, family, number)
                    self._selector.register(sock, selectors.EVENT_READ, (pod.name, number == ANSWERING))
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]

    def _loop(self) -> None:
        while not self._done.is_set():
            for key, _ in self._selector.select(0.05):
                sock, (name, answers) = key.fileobj, key.data
                assert isinstance(sock, socket.socket)
                with contextlib.suppress(OSError):
                    data, peer = sock.recvfrom(100)
                    sender, number = map(int, data.split())
                    self.latest[name, sender] = max(self.latest.get((name, sender), 0), number)
                    if answers:
                        sock.sendto(data, peer)


class Sender:
    """Sends 1, 2, 3, … from one source port for ever, whatever happens, every millisecond."""

    def __init__(self, source: Host, address: str, number: int) -> None:
        self.port = next(SOURCE_PORTS)
        self._socket = bound(source, 6 if ":" in address else 4, self.port)
        self.sent = 0
        self.answered = 0
        self._to = (address, number)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        self._socket.close()

    def _loop(self) -> None:
        while not self._done.wait(0.001):
            self.sent += 1
            with contextlib.suppress(OSError):
                self._socket.sendto(b"%d %d" % (self.port, self.sent), self._to)
            with contextlib.suppress(OSError):
                self.answered = int(self._socket.recv(100).split()[1])


def bound(host: Host, family: int, number: int) -> socket.socket:
    sock = host.namespace.socket(socket.AF_INET6 if family == 6 else socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((host.address(family), number))
    sock.setblocking(False)
    return sock


class Proxy:
    """An agent on the bed's node, driven by hand, with the follower that is tested."""

    def __init__(self, bed: Bed, objects: Sequence[Event]) -> None:
        with bed.node.namespace.entered():
            self.kernel = Kernel()
            self.conntrack = Conntrack()
        self.agent = Agent(State("node0"), self.kernel, Inbox(), followers=[self.conntrack])
        self.handle(
            Replace(SERVICE, []),
            Replace(ENDPOINT_SLICE, []),
            Replace(NODE, [convert(NODE, dict(node({})))]),
            Replace(SERVICE_CIDR, [convert(SERVICE_CIDR, dict(SERVICE_CIDRS))]),
            *objects,
        )

    def handle(self, *events: Event) -> None:
        self.agent.handle(events)

    def close(self) -> None:
        """All that waits has been done then."""
        self.conntrack.stop()
        self.kernel.close()


class Scene:
    """A bed, its receivers, the senders and proxies of one test."""

    def __init__(self, bed: Bed, receivers: Receivers) -> None:
        self.bed, self.receivers = bed, receivers
        self._proxy: Proxy | None = None
        self._ends = contextlib.ExitStack()

    @property
    def proxy(self) -> Proxy:
        assert self._proxy
        return self._proxy

    def start(self, *objects: Event) -> None:
        """Start a proxy; the one before ends first, and its table stays, as at a restart."""
        if self._proxy:
            self._proxy.close()
        self._proxy = Proxy(self.bed, objects)

    def send(self, address: str, number: int, source: Host | None = None) -> Sender:
        sender = Sender(source or self.bed.client, address, number)
        self._ends.callback(sender.close)
        return sender

    def close(self) -> None:
        self._ends.close()
        if self._proxy:
            self._proxy.close()
        self.bed.node.namespace.run(["nft", "flush", "ruleset"])

    def flows(self, sender: Sender) -> list[Flow]:
        """What the node knows of this sender. (A table that changes meanwhile may list an entry twice.)"""
        source = sender.port.to_bytes(2)
        mine = [flow for flow in table_of(self.bed.node.namespace) if b"\6\0\2\0" + source in flow.tuple]
        return list({flow.tuple: flow for flow in mine}.values())

    def arrives(self, sender: Sender, *pods: Host) -> str:
        """Wait until one of the pods gets what is sent from now on, and say which."""
        mark = sender.sent
        found = ""

        def look() -> bool:
            nonlocal found
            for pod in pods:
                if self.receivers.latest.get((pod.name, sender.port), 0) > mark:
                    found = pod.name
            return bool(found)

        assert until(look), f"nothing arrives at {[p.name for p in pods]}; the node knows {self.flows(sender)}"
        return found

    def pods(self, *names: str) -> list[Host]:
        return [pod for pod in self.bed.pods if pod.name in names]


def table_of(namespace: Named) -> list[Flow]:
    with namespace.entered(), FlowTable() as table:
        return [flow for family in Family for flow in table.flows(family)]


def put(obj: Mapping[str, Any]) -> Event:
    return Put(convert(str(obj["kind"]), dict(obj)))


def dns(family: int, name: str = "dns", vip: Mapping[int, str] = VIP, **spec: Any) -> Event:
    """A Service with a port for one-way senders and one for two-way senders."""
    return put(service(name, [vip[family]], *(port(n, number, "UDP") for n, number in PORTS.items()), **spec))


def backends(family: int, *pods: Host, of: str = "dns", first: Mapping[str, bool] | None = None) -> Event:
    """Its slice; `first` are the conditions of the first pod."""
    obj = endpoint_slice(
        f"{of}-x",
        of,
        {pod.address(family): "node0" for pod in pods},
        *(port(n, number, "UDP") for n, number in PORTS.items()),
    )
    if first:
        obj["endpoints"][0]["conditions"] = first
    return put({**obj, "addressType": f"IPv{family}"})


@pytest.fixture(scope="module")
def ground() -> Iterator[tuple[Bed, Receivers]]:
    privileges.acquire()
    with Bed() as bed:
        receivers = Receivers(bed)
        yield bed, receivers
        receivers.close()


@pytest.fixture
def scene(ground: tuple[Bed, Receivers]) -> Iterator[Scene]:
    made = Scene(*ground)
    yield made
    made.close()


both_ways = pytest.mark.parametrize("way", list(PORTS))
both_families = pytest.mark.parametrize("family", [4, 6])


@root
@both_families
@both_ways
def test_the_flows_of_an_endpoint_that_goes_are_led_elsewhere_and_no_others(
    scene: Scene, family: int, way: str
) -> None:
    first, second = scene.bed.pod1, scene.bed.pod3
    scene.start(dns(family), backends(family, first, second))
    senders = [scene.send(VIP[family], PORTS[way]) for _ in range(12)]
    reached = {sender: scene.arrives(sender, first, second) for sender in senders}
    before = {sender: scene.flows(sender) for sender in senders}
    direct = scene.send(first.address(family), PORTS[way])  # to the endpoint, but not through the Service
    scene.arrives(direct, first)
    known = scene.flows(direct)
    scene.proxy.handle(backends(family, second))
    for sender, name in reached.items():
        scene.arrives(sender, second)
        (flow,) = scene.flows(sender)
        assert (flow in before[sender]) == (name == second.name)
    assert scene.flows(direct) == known
    if way == "two-way":
        marks = {sender: sender.sent for sender in senders}
        assert until(lambda: all(sender.answered > mark for sender, mark in marks.items()))


@root
@both_families
@both_ways
def test_the_flows_of_the_last_endpoint_end_and_begin_again(scene: Scene, family: int, way: str) -> None:
    first, second = scene.bed.pod1, scene.bed.pod3
    scene.start(dns(family), backends(family, first))
    sender = scene.send(VIP[family], PORTS[way])
    scene.arrives(sender, first)
    scene.proxy.handle(backends(family))
    assert until(lambda: not scene.flows(sender))
    mark = sender.sent + 1
    assert until(lambda: sender.sent > mark + 20)
    assert scene.receivers.latest[first.name, sender.port] <= mark
    scene.proxy.handle(backends(family, second))
    scene.arrives(sender, second)
    scene.proxy.handle(Delete(SERVICE, "default", "dns"))
    assert until(lambda: not scene.flows(sender))


@root
@both_families
@both_ways
def test_flows_that_were_let_through_are_led_when_there_are_endpoints(scene: Scene, family: int, way: str) -> None:
    """To an external address, of which nothing is known at first."""
    scene.start()
    sender = scene.send(EXTERNAL[family], PORTS[way])
    elsewhere = scene.send(EXTERNAL[family], 7777)
    assert until(lambda: bool(scene.flows(sender)) and bool(scene.flows(elsewhere)))
    known = scene.flows(elsewhere)
    assert not scene.flows(sender)[0].is_natted
    scene.proxy.handle(dns(family, externalIPs=[EXTERNAL[family]]))
    assert not scene.flows(sender)[0].is_natted
    scene.proxy.handle(backends(family, scene.bed.pod1))
    scene.arrives(sender, scene.bed.pod1)
    assert scene.flows(elsewhere) == known


@root
@both_families
def test_flows_to_a_node_port_are_led_when_there_are_endpoints(scene: Scene, family: int) -> None:
    bed = scene.bed
    scene.start()
    sender = scene.send(bed.node.address(family), NODE_PORT)
    through = scene.send(bed.pod3.address(family), NODE_PORT)  # past this node to the same port of another machine
    assert until(lambda: bool(scene.flows(sender)) and bool(scene.flows(through)))
    known = scene.flows(through)
    ports = [{**port(n, number, "UDP"), "nodePort": NODE_PORT + i} for i, (n, number) in enumerate(PORTS.items())]
    scene.proxy.handle(put(service("dns", [VIP[family]], *ports, type="NodePort")), backends(family, bed.pod1))
    scene.arrives(sender, bed.pod1)
    scene.proxy.handle(backends(family, bed.pod2))
    scene.arrives(sender, bed.pod2)
    scene.proxy.handle(backends(family))
    assert until(lambda: not scene.flows(sender))
    assert scene.flows(through) == known


@root
@both_families
@both_ways
def test_a_restart_forgets_what_went_stale_meanwhile_and_nothing_else(scene: Scene, family: int, way: str) -> None:
    bed = scene.bed
    objects = dns(family), backends(family, bed.pod1, bed.pod3), dns(family, "other", OTHER_VIP)
    scene.start(*objects, backends(family, bed.pod2, of="other"))
    senders = [scene.send(VIP[family], PORTS[way]) for _ in range(12)]
    reached = {sender: scene.arrives(sender, bed.pod1, bed.pod3) for sender in senders}
    other = scene.send(OTHER_VIP[family], PORTS[way])
    scene.arrives(other, bed.pod2)
    before = {sender: scene.flows(sender) for sender in (*senders, other)}
    scene.start(*objects, backends(family, bed.pod2, of="other"))
    scene.proxy.close()
    assert {sender: scene.flows(sender) for sender in before} == before

    scene.start(*objects[::2], backends(family, bed.pod3), backends(family, bed.pod2, of="other"))
    for sender, name in reached.items():
        scene.arrives(sender, bed.pod3)
        assert (scene.flows(sender) == before[sender]) == (name == bed.pod3.name)
    assert scene.flows(other) == before[other]


@root
@both_ways
def test_flows_stay_with_an_endpoint_that_serves_whatever_new_ones_do(scene: Scene, way: str) -> None:
    bed = scene.bed
    scene.start(dns(4), backends(4, bed.pod1))
    sender = scene.send(VIP[4], PORTS[way])
    scene.arrives(sender, bed.pod1)
    before = scene.flows(sender)
    going = {"ready": False, "serving": True, "terminating": True}
    for step in (
        [backends(4, bed.pod1, bed.pod2, first=going)],
        [dns(4, internalTrafficPolicy="Local")],
        [dns(4), put(node({"topology.kubernetes.io/zone": "z"}))],
    ):
        scene.proxy.handle(*step)
        new = scene.send(VIP[4], PORTS[way])
        scene.arrives(new, bed.pod2)
    scene.arrives(sender, bed.pod1)
    assert scene.flows(sender) == before
    scene.proxy.handle(backends(4, bed.pod1, bed.pod2, first={**going, "serving": False}))
    scene.arrives(sender, bed.pod2)


# The kernel's table, without packets.


def key_of(address: str, number: int = 53) -> bytes:
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    return service_key(packed, UDP, number)


def ep(address: str, number: int = 53) -> bytes:
    return endpoint(socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address), number)


class Table:
    """A network namespace with flows that are made by hand, with pyroute2."""

    def __init__(self) -> None:
        from pyroute2.netlink.nfnetlink.nfctsocket import NFCTAttrTuple, NFCTSocket

        self._tuple, self._socket = NFCTAttrTuple, NFCTSocket
        self.namespace = Namespace()

    def inside(self, action: Callable[[], Any]) -> Any:
        """In a thread of the namespace. Threads that it starts are there, too."""
        return self.namespace.inside(action)

    def add(
        self, source: int, to: str, leads_to: str = "", number: int = 53, protocol: int = UDP, zone: int = 0
    ) -> None:
        self.inside(lambda: self._add([(source, to, leads_to, number)], protocol, zone))

    def add_many(self, flows: Sequence[tuple[int, str, str, int]]) -> None:
        self.inside(lambda: self._add(flows, UDP, 0))

    def _add(self, flows: Sequence[tuple[int, str, str, int]], protocol: int, zone: int) -> None:
        for source, to, leads_to, number in flows:
            family = socket.AF_INET6 if ":" in to else socket.AF_INET
            client = "2001:db8::1" if ":" in to else "192.0.2.1"
            there = self._tuple(family, client, to, protocol, source, number)
            back = self._tuple(family, leads_to or to, client, protocol, number, source)
            more: dict[str, Any] = {"zone": zone} if zone else {}
            if protocol == socket.IPPROTO_TCP:
                more["protoinfo"] = {"attrs": [["CTA_PROTOINFO_TCP", {"attrs": [["CTA_PROTOINFO_TCP_STATE", 3]]}]]}
            made = self._socket(nfgen_family=family)
            made.entry("add", timeout=600, status=1 << 3, tuple_orig=there, tuple_reply=back, **more)
            made.close()

    def sources(self) -> set[int]:
        """The source ports of all entries: of all zones and protocols."""
        text = self.inside(self._dump)
        return set(text)

    def _dump(self) -> list[int]:
        found = []
        for family in (socket.AF_INET, socket.AF_INET6):
            made = self._socket(nfgen_family=family)
            for entry in made.dump():
                if entry["nfgen_family"] == family:
                    protocol = entry.get_attr("CTA_TUPLE_ORIG").get_attr("CTA_TUPLE_PROTO")
                    found.append(protocol.get_attr("CTA_PROTO_SRC_PORT"))
            made.close()
        return found

    def flows(self, family: Family = Family.IPV4, address: bytes = b"", number: bytes = b"") -> list[Flow]:
        def read() -> list[Flow]:
            with FlowTable() as table:
                return list(table.flows(family, address, number))

        found: list[Flow] = self.inside(read)
        return found

    def follower(self) -> Conntrack:
        made: Conntrack = self.inside(lambda: Conntrack())
        return made


@pytest.fixture
def table() -> Iterator[Table]:
    made = Table()
    yield made
    made.namespace.close()


@root
def test_the_kernel_chooses_by_address_port_and_protocol(table: Table) -> None:
    table.add(1, "10.0.0.1", "10.1.0.1")
    table.add(2, "10.0.0.1", "10.1.0.1", 54)
    table.add(3, "10.0.0.2", "10.1.0.1")
    table.add(4, "10.0.0.1", "10.1.0.1", protocol=socket.IPPROTO_TCP)
    table.add(5, "fd00::1", "fd01::1")
    table.add(6, "10.0.0.1", zone=7)
    assert table.sources() == {1, 2, 3, 4, 5, 6}

    table.add(7, "fd00::2", "fd01::1")
    table.add(8, "fd00::1", "fd01::1", 54)

    def replies(family: Family, address: bytes, number: bytes) -> int:
        """How many the kernel sends."""
        with FlowTable() as made:
            return sum(map(len, Replies(made._socket, dump_request(1, family, address, number))))

    address, number = socket.inet_aton("10.0.0.1"), (53).to_bytes(2) + b"\0\0"
    address6 = socket.inet_pton(socket.AF_INET6, "fd00::1")
    asked = {
        (Family.IPV4, address, number): 2,  # the first, and that in a zone
        (Family.IPV4, b"", number): 3,
        (Family.IPV4, b"", b""): 4,
        (Family.IPV6, address6, number): 2,  # not by address
        (Family.IPV6, b"", b""): 3,
    }
    assert {query: table.inside(partial(replies, *query)) for query in asked} == asked
    (flow,) = table.flows(Family.IPV4, address, number)
    assert (flow.to, flow.leads_to) == (ep("10.0.0.1"), ep("10.1.0.1"))
    (flow,) = table.flows(Family.IPV6, address6, number)
    assert (flow.to, flow.leads_to, flow.is_natted) == (ep("fd00::1"), ep("fd01::1"), True)


@root
def test_only_the_very_entry_is_removed_and_one_that_vanished_is_no_error(table: Table) -> None:
    table.add_many([(source, "10.0.0.1", "10.1.0.1", 53) for source in range(1, 151)])
    flows = table.flows()

    def forget(flows: Sequence[Flow]) -> int:
        with FlowTable() as made:
            return made.forget(flows)

    assert table.inside(lambda: forget(flows[:100])) == 100
    assert table.inside(lambda: forget(flows[50:150])) == 50
    assert table.sources() == set()
    (old,) = (flow for flow in flows if b"\6\0\2\0\0\x01" in flow.tuple)
    table.add(1, "10.0.0.1", "10.1.0.2")
    assert table.inside(lambda: forget([old])) == 0  # the same ends, but another entry
    assert table.sources() == {1}


@root
def test_changes_forget_what_they_made_stale_and_nothing_else(table: Table) -> None:
    table.add(1, "10.0.0.1", "10.1.0.1")
    table.add(2, "10.0.0.1", "10.1.0.2")  # an endpoint that serves
    table.add(3, "10.0.0.1", "10.9.9.9")  # somebody else's NAT
    table.add(4, "10.0.0.1")  # not usable before and after
    table.add(5, "10.0.0.2")
    table.add(6, "10.0.0.2", "10.1.0.1")
    table.add(7, "10.0.0.1", zone=7)
    table.add(8, "10.0.0.1", "10.1.0.1", zone=7)
    table.add(9, "10.0.0.1", "10.1.0.1", protocol=socket.IPPROTO_TCP)
    table.add(10, "192.168.77.2", "10.1.0.1", NODE_PORT)
    table.add(11, "192.168.77.2", "10.1.0.2", NODE_PORT)
    table.add(12, "fd00::1", "fd01::1")
    table.add(13, "10.0.0.3", "10.1.0.1", NODE_PORT)  # an external address with the NodePort's number
    serving = frozenset({ep("10.1.0.2"), ep("10.1.0.2", NODE_PORT)})
    programmed = {
        key_of("10.0.0.1"): UdpFlows(serving),
        key_of("10.0.0.2"): UdpFlows(serving | {ep("10.1.0.1")}, True),
        key_of("10.0.0.3", NODE_PORT): UdpFlows(frozenset({ep("10.1.0.1", NODE_PORT)}), True),
        node_port_key(Family.IPV4, UDP, NODE_PORT): UdpFlows(serving, True),
    }
    follower = table.follower()
    follower._programmed = programmed  # as after a comparison
    gone = frozenset({ep("10.1.0.1"), ep("10.1.0.1", NODE_PORT)})
    changes = [UdpChange(key, gone, False) for key in programmed]
    follower.committed(
        [
            *changes,
            UdpChange(key_of("10.0.0.2"), gone, True),
            UdpChange(key_of("fd00::1"), frozenset({ep("fd01::1")}), False),
        ],
        NO_IPS,
    )
    follower.stop()
    assert table.sources() == {2, 3, 4, 6, 7, 8, 9, 11, 13}


@root
def test_many_changes_are_few_dumps(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 1000
    vips = [f"10.0.{i // 250}.{i % 250 + 1}" for i in range(count)]
    table.add_many([(i + 1, vip, "10.1.0.1", 53) for i, vip in enumerate(vips[:100])])
    table.add(2000, vips[0], "10.1.0.2")
    dumps = []
    flows = FlowTable.flows

    def counted(self: FlowTable, *arguments: Any) -> Iterator[Flow]:
        dumps.append(arguments)
        return flows(self, *arguments)

    monkeypatch.setattr(FlowTable, "flows", counted)
    follower = table.follower()
    gone = frozenset({ep("10.1.0.1")})
    follower.committed([UdpChange(key_of(vip), gone, False) for vip in vips], NO_IPS)
    follower.stop()
    assert len(dumps) <= len(Family)
    assert table.sources() == {2000}
    dumps.clear()
    follower = table.follower()
    follower.committed([UdpChange(key_of(vip), gone, False) for vip in vips[:QUERIES_AT_MOST]], NO_IPS)
    follower.stop()
    assert {address for _, address, _ in dumps} == {socket.inet_aton(vip) for vip in vips[:QUERIES_AT_MOST]}


@root
def test_a_new_node_address_makes_flows_to_its_node_ports_stale(table: Table) -> None:
    key = node_port_key(Family.IPV4, UDP, NODE_PORT)
    table.add(1, "192.168.77.2", number=NODE_PORT)
    table.add(2, "192.168.77.3", number=NODE_PORT)
    ips: Mapping[Family, frozenset[bytes]] = NO_IPS
    follower: Conntrack = table.inside(lambda: Conntrack())
    with capture_logs() as logs:
        follower.programmed({key: UdpFlows(frozenset({ep("10.1.0.1")}), True)}, NO_IPS)
        assert until(lambda: "udp_flows_compared" in [line["event"] for line in logs])
    assert table.sources() == {1, 2}
    ips = {**NO_IPS, Family.IPV4: frozenset({socket.inet_aton("192.168.77.2")})}
    follower.committed([], ips)
    follower.stop()
    assert table.sources() == {2}


def test_failures_are_told_once_with_a_remedy_and_the_work_is_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[Exception] = [PermissionError(1, "no"), PermissionError(1, "no"), ValueError("damaged")]
    looked = threading.Event()

    class Flaky:
        def __enter__(self) -> Flaky:
            if failures:
                raise failures.pop(0)
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def flows(self, *arguments: object) -> Iterator[Flow]:
            looked.set()
            return iter(())

        def forget(self, flows: Sequence[Flow]) -> int:
            return 0

    monkeypatch.setattr(conntrack, "FlowTable", Flaky)
    monkeypatch.setattr(conntrack, "RETRY_SECONDS", 0.001)
    with capture_logs() as logs:
        follower = Conntrack()
        follower.committed([UdpChange(key_of("10.0.0.1"), frozenset(), False)], NO_IPS)
        assert looked.wait(5)
        follower.stop()
    told = [line for line in logs if line["log_level"] == "error"]
    assert [line["error"] for line in told] == ["PermissionError: [Errno 1] no", "ValueError: damaged"]
    assert "CAP_NET_ADMIN" in told[0]["remedy"]


# Pure.


def flow(to: bytes, leads_to: bytes) -> Flow:
    return Flow(Family.IPV4, to, leads_to, b"", b"")


def test_an_endpoint_that_is_back_keeps_its_flows() -> None:
    key, one = key_of("10.0.0.1"), ep("10.1.0.1")
    changes = {key: UdpChange(key, frozenset({one}), True)}
    assert flow(ep("10.0.0.1"), one) in Stale(changes, False, {key: UdpFlows()}, NO_IPS)
    assert flow(ep("10.0.0.1"), one) not in Stale(changes, False, {key: UdpFlows(frozenset({one}), True)}, NO_IPS)


def test_an_endpoint_with_the_services_own_address_is_one_like_others() -> None:
    key, one = key_of("10.0.0.1"), ep("10.0.0.1")
    direct = flow(one, one)
    assert not direct.is_natted
    assert direct not in Stale({}, True, {key: UdpFlows(frozenset({one}), True)}, NO_IPS)
    assert direct in Stale({key: UdpChange(key, frozenset({one}), False)}, False, {}, NO_IPS)


@pytest.mark.parametrize("usable", [False, True])
def test_a_comparison_with_everything(usable: bool) -> None:
    key, nodeport = key_of("10.0.0.1"), node_port_key(Family.IPV4, UDP, NODE_PORT)
    programmed = {key: UdpFlows(frozenset({ep("10.1.0.1")}), usable), nodeport: UdpFlows(frozenset(), usable)}
    stale = Stale({}, True, programmed, NODE_IPS)
    assert flow(ep("10.0.0.1"), ep("10.1.0.1")) not in stale
    assert flow(ep("10.0.0.1"), ep("10.1.0.2")) in stale
    assert (flow(ep("10.0.0.1"), ep("10.0.0.1")) in stale) == usable
    assert flow(ep("10.0.0.1", 54), ep("10.1.0.2")) not in stale
    assert flow(ep("10.0.0.2"), ep("10.1.0.2")) not in stale
    own, other = ep("192.168.77.2", NODE_PORT), ep("192.168.77.3", NODE_PORT)
    assert flow(own, ep("10.1.0.2")) in stale
    assert (flow(own, own) in stale) == usable
    assert flow(other, other) not in stale and flow(other, ep("10.1.0.2")) not in stale


def test_changes_that_wait_become_one_for_each_key() -> None:
    waiting: dict[bytes, UdpChange] = {}
    merge(waiting, [UdpChange(b"k", frozenset({b"1"}), False), UdpChange(b"o", frozenset(), True)])
    merge(waiting, [UdpChange(b"k", frozenset({b"2"}), True)])
    assert waiting == {
        b"k": UdpChange(b"k", frozenset({b"1", b"2"}), True),
        b"o": UdpChange(b"o", frozenset(), True),
    }
