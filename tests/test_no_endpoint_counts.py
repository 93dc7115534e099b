"""Which service ports are counted, for how long, and what is made of the kernel's counters."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.no_endpoint_packets import MOST_ZEROS, NoEndpointPackets
from rules.adopt import adopt
from rules.diff import SWEPT, Programmed, scratch
from rules.elements import ServicePort, element_key, endpoint, node_port_key, service_key
from rules.entry import ports_of
from rules.fake import FakeKernel, FakeReader
from rules.interpret import fates
from rules.layout import LAYOUTS, Options
from rules.objects import Family, Set
from rules.packet import Packet
from rules.packet_counts import Counted, read_packets
from rules.probe import Missing, probe
from rules.table_reader import TableReader
from rules.tables import create, replace
from rules.transaction import DeleteElement, DeleteTable
from tests.netns import Namespace

V4 = LAYOUTS[Family.IPV4]
POD = endpoint(bytes([10, 244, 0, 1]), 8080)
KEY = service_key(bytes([10, 96, 0, 1]), 6, 80)
EXTERNAL = service_key(bytes([192, 0, 2, 1]), 6, 80)
NODE_PORT = node_port_key(Family.IPV4, 6, 30080)
WEB = ("default", "web", "http", "TCP")


def port(key: bytes = KEY, *endpoints: bytes, name: str = "default/web:http", **more: Any) -> ServicePort:
    return ServicePort(key, name, endpoints, external=key != KEY, **more)


class World:
    """A table of the fake's, what is known of it, and who reads its counters."""

    def __init__(self) -> None:
        self.kernel = FakeKernel()
        self.kernel.commit(create(V4, Options(), ()))
        self.programmed = Programmed(Family.IPV4)
        self.packets = NoEndpointPackets(lambda: FakeReader(self.kernel))

    def put(self, *ports: ServicePort) -> int:
        """How many operations it took."""
        return self._plan({one.key: one for one in ports})

    def delete(self, *keys: bytes) -> int:
        return self._plan(dict.fromkeys(keys))

    def _plan(self, wanted: dict[bytes, ServicePort | None]) -> int:
        plan = self.programmed.plan(wanted)
        self.kernel.commit(plan.operations)
        self.programmed.accept(plan)
        return len(plan.operations)

    def restart(self, *wanted: ServicePort) -> int:
        found = self.kernel.dump(V4.table)
        assert found
        taken = adopt(Family.IPV4, found, Options(), (), {one.key: one for one in wanted}, frozenset())
        assert taken
        self.kernel.commit(taken.operations)
        self.programmed, self.packets = taken.programmed, NoEndpointPackets(lambda: FakeReader(self.kernel))
        return len(taken.operations)

    def refuse(self, key: bytes, packets: int = 1) -> None:
        """So many packets come."""
        where = ports_of(V4, key).no_endpoints, element_key(key)
        assert self.counts(key)
        self.kernel.packets[where] = self.kernel.packets.get(where, 0) + packets

    def counts(self, key: bytes) -> bool:
        table = self.kernel.dump(V4.table)
        assert table
        return element_key(key) in table.sets[ports_of(V4, key).no_endpoints.name].elements

    def read(self) -> dict[tuple[str, ...], int]:
        return self.packets.read({Family.IPV4: self.programmed})


@pytest.fixture
def world() -> World:
    return World()


# Who is counted.


def test_what_has_no_endpoints_is_counted_and_stays_so(world: World) -> None:
    world.put(port(KEY, POD), port(NODE_PORT, POD))
    assert not world.counts(KEY) and not world.counts(NODE_PORT)
    world.put(port(KEY), port(NODE_PORT))
    assert world.counts(KEY) and world.counts(NODE_PORT)
    assert world.put(port(KEY, POD)) == 2  # the endpoint, and how many there are
    assert world.counts(KEY)
    assert world.put(port(KEY, POD, timeout=60, identity=1))  # another way to choose is no other service port
    assert world.counts(KEY)
    world.delete(KEY, NODE_PORT)
    assert not world.counts(KEY) and not world.counts(NODE_PORT)


def test_another_service_at_the_address_is_counted_anew(world: World) -> None:
    world.put(port())
    world.refuse(KEY)
    world.put(port(KEY, POD, name="default/other"))
    assert not world.counts(KEY)
    world.put(port(name="default/other"))
    world.refuse(KEY, 7)
    assert world.read() == {("default", "other", "", "TCP"): 7}
    world.put(port(name="default/third"))
    assert world.read() == {("default", "third", "", "TCP"): 0}


def test_what_has_endpoints_elsewhere_is_not_counted(world: World) -> None:
    world.put(port(KEY, drop=True), port(EXTERNAL, POD, local_policy=True, drop=True))
    assert not world.counts(KEY) and not world.counts(EXTERNAL)


def test_a_restart_keeps_the_counters(world: World) -> None:
    with_endpoints = port(KEY, POD)
    world.put(port(), port(EXTERNAL), port(NODE_PORT))
    world.refuse(KEY, 3)
    world.put(with_endpoints)
    assert world.restart(with_endpoints, port(EXTERNAL), port(NODE_PORT)) == 0
    assert world.counts(KEY) and world.read() == {WEB: 3}
    assert world.restart(port(KEY, POD, name="default/other"), port(EXTERNAL), port(NODE_PORT)) > 0
    assert not world.counts(KEY)  # it was another one's


def test_a_set_that_does_not_count_is_no_set_of_ours(world: World) -> None:
    found = world.kernel.dump(V4.table)
    assert found and adopt(Family.IPV4, found, Options(), (), {}, frozenset())
    found.sets["no-endpoints"].counts = False
    assert adopt(Family.IPV4, found, Options(), (), {}, frozenset()) is None


# What is made of it.


def test_all_addresses_of_a_service_port_are_one(world: World) -> None:
    udp = service_key(bytes([10, 96, 0, 1]), 17, 80)
    world.put(port(), port(EXTERNAL), port(NODE_PORT), port(udp))
    world.refuse(KEY, 1)
    world.refuse(EXTERNAL, 20)
    world.refuse(NODE_PORT, 300)
    assert world.read() == {WEB: 321, (*WEB[:3], "UDP"): 0}


@pytest.mark.parametrize(
    ("name", "labels"),
    [("a/b", ("a", "b", "")), ("a/b:c", ("a", "b", "c")), (f"{'n' * 63}/{'s' * 63}:{'p' * 63}", ("n" * 63, "s" * 63, "p" * 63))],
    ids=["unnamed", "named", "longer than a comment"],
)  # fmt: skip
def test_names(world: World, name: str, labels: tuple[str, ...]) -> None:
    world.put(port(name=name))
    world.refuse(KEY)
    assert world.read() == {(*labels, "TCP"): 1}


def test_a_sum_only_grows(world: World) -> None:
    world.put(port(), port(EXTERNAL), port(NODE_PORT))
    for key in (KEY, EXTERNAL, NODE_PORT):
        world.refuse(key, 10)
    assert world.read() == {WEB: 30}
    world.delete(EXTERNAL)  # an address goes
    assert world.read() == {WEB: 30}
    world.kernel.packets.clear()  # somebody resets the counters
    world.refuse(KEY, 1)
    assert world.read() == {WEB: 31}
    world.put(port(EXTERNAL))
    world.refuse(EXTERNAL, 5)
    assert world.read() == {WEB: 36}
    world.delete(KEY, EXTERNAL, NODE_PORT)
    assert world.read() == {}
    world.put(port())
    assert world.read() == {WEB: 0}


def test_a_sum_stays_when_nothing_that_is_counted_is_left_of_a_service_port(world: World) -> None:
    """Its one address with packets goes, the others were never counted, or are not any more."""
    world.put(port(), port(EXTERNAL))
    world.refuse(EXTERNAL, 10)
    world.read()
    world.put(port(KEY, POD), port(EXTERNAL, POD))
    assert [world.read() for _ in range(2)] == [{WEB: 10}] * 2
    world.put(port(service_key(bytes([10, 96, 0, 2]), 6, 80), POD, name="default/other"))
    assert not world.counts(KEY) and world.counts(EXTERNAL)
    world.delete(EXTERNAL)
    assert [world.read() for _ in range(2)] == [{WEB: 10}] * 2
    world.put(port(NODE_PORT, POD))  # another type of Service
    world.delete(KEY)
    assert world.read() == {WEB: 10}
    world.put(port(NODE_PORT))
    world.refuse(NODE_PORT)
    assert world.read() == {WEB: 11}
    world.put(port(NODE_PORT, POD, name="default/other:http"))
    assert world.read() == {}
    world.put(port(NODE_PORT))
    assert world.read() == {WEB: 0}


def test_a_sum_stays_when_the_table_is_put_anew(world: World) -> None:
    """A table that others have damaged is replaced, and what has endpoints just then is not counted in the new one."""
    world.put(port())
    world.refuse(KEY, 7)
    world.put(port(KEY, POD))
    assert world.read() == {WEB: 7}
    world.kernel.commit(replace(V4, Options(), ()))
    world.kernel.packets.clear()
    world.programmed = Programmed(Family.IPV4)
    world.put(port(KEY, POD))
    assert not world.counts(KEY) and world.read() == {WEB: 7}
    assert world.packets.read({}) == {WEB: 7}  # while nobody knows what is there
    world.put(port())
    world.refuse(KEY)
    assert world.read() == {WEB: 8}


def test_names_that_are_cut_off_alike_are_not_taken_for_each_other(world: World) -> None:
    first, second = (f"{'n' * 63}/{'s' * 63}:{name}" for name in ("first", "second"))
    world.put(port(name=first))
    world.refuse(KEY, 5)
    assert {labels[2]: count for labels, count in world.read().items()} == {"first": 5}
    world.put(port(name=second))
    world.kernel.packets.clear()
    world.refuse(KEY, 9)
    assert {labels[2]: count for labels, count in world.read().items()} == {"second": 9}


def test_service_ports_without_packets_are_told_while_they_have_no_endpoints(world: World) -> None:
    """So that the first packet is an increase, and that those that work do not fill anybody's disks."""
    world.put(port())
    assert world.read() == {WEB: 0}
    world.put(port(KEY, POD))
    assert world.read() == {}
    world.put(port())
    world.refuse(KEY)
    world.put(port(KEY, POD))
    assert world.read() == {WEB: 1}


def test_many_without_packets_are_not_told(world: World) -> None:
    def some(count: int) -> list[ServicePort]:
        return [port(service_key(bytes([10, 96, i >> 8, i & 255]), 6, 80), name=f"a/s{i}") for i in range(count)]

    world.put(*some(MOST_ZEROS))
    assert len(world.read()) == MOST_ZEROS
    world.put(*some(MOST_ZEROS + 2))
    assert world.read() == {}
    world.refuse(KEY)
    assert world.read() == {("a", "s1", "", "TCP"): 1}


class Faulty(FakeReader):
    """Fails, or leaves out what the kernel leaves out while it makes room."""

    fails = forgets = False

    def packets(self, set_: Set) -> dict[bytes, Counted]:
        if self.fails:
            raise OSError(errno.ENOBUFS, "no buffers")
        return {} if self.forgets else super().packets(set_)


def test_what_the_kernel_leaves_out_stays_as_it_was(world: World) -> None:
    reader = Faulty(world.kernel)
    world.packets = NoEndpointPackets(lambda: reader)
    world.put(port(), port(NODE_PORT))
    world.refuse(KEY, 4)
    assert world.read() == {WEB: 4}
    reader.forgets = True
    assert world.read() == {WEB: 4}
    world.delete(KEY, NODE_PORT)
    assert world.read() == {}


def test_what_cannot_be_read_stays_as_it_was_and_is_said_once(world: World) -> None:
    opened: list[Faulty] = []

    def opening() -> Faulty:
        opened.append(Faulty(world.kernel))
        return opened[-1]

    world.packets = NoEndpointPackets(opening)
    world.put(port())
    world.refuse(KEY, 4)
    assert world.read() == {WEB: 4}
    Faulty.fails = True
    try:
        with capture_logs() as logs:
            assert [world.read() for _ in range(3)] == [{WEB: 4}] * 3
    finally:
        Faulty.fails = False
    assert [(log["event"], log["cause"]) for log in logs] == [
        ("no_endpoint_packets_unreadable", "[Errno 105] no buffers")
    ]
    world.refuse(KEY)
    assert world.read() == {WEB: 5}


def test_it_is_said_once_although_the_other_family_can_be_read(world: World) -> None:
    class Half(FakeReader):
        def packets(self, set_: Set) -> dict[bytes, Counted]:
            if set_.table.family is Family.IPV4:
                raise OSError(errno.ENOBUFS, "no buffers")
            return super().packets(set_)

    world.kernel.commit(create(LAYOUTS[Family.IPV6], Options(), ()))
    packets = NoEndpointPackets(lambda: Half(world.kernel))
    with capture_logs() as logs:
        for _ in range(3):
            packets.read({Family.IPV4: world.programmed, Family.IPV6: Programmed(Family.IPV6)})
    assert [log["event"] for log in logs] == ["no_endpoint_packets_unreadable"]


def test_a_table_that_is_gone_for_a_moment_is_nothing_to_say(world: World) -> None:
    """The agent puts it back, and says so."""
    world.put(port())
    world.refuse(KEY, 4)
    assert world.read() == {WEB: 4}
    world.kernel.commit([DeleteTable(V4.table)])
    with capture_logs() as logs:
        assert world.read() == {WEB: 4}
    assert logs == []


# Counters that nobody needs.


def made_in_the_usual_order(world: World, count: int) -> list[bytes]:
    """A Service comes before its endpoints."""
    keys = [service_key(bytes([10, 97, i >> 8, i & 255]), 6, 80) for i in range(count)]
    for key in keys:
        world.put(port(key))
        world.put(port(key, POD))
    return keys


def test_counters_that_were_never_needed_go_with_later_changes(world: World) -> None:
    keys = made_in_the_usual_order(world, 2 * SWEPT + 1)
    world.read()
    world.put(port())
    assert all(map(world.counts, keys))  # it may be that only the second look sees a packet
    world.read()
    assert world.put(port(KEY, POD)) == 2 + SWEPT  # no more at once
    world.put(port())
    assert world.put() == 0  # and never for their own sake
    world.put(port(KEY, POD))
    assert not any(map(world.counts, keys)) and world.counts(KEY)
    assert world.programmed.sizes["no-endpoints"] == 1


def test_counters_that_are_needed_stay(world: World) -> None:
    used, again, gone, late = made_in_the_usual_order(world, 4)
    world.refuse(used)
    world.read()
    world.put(port(again), port(late))
    world.refuse(late)
    world.put(port(again, POD), port(late, POD))
    world.read()
    world.delete(gone)
    world.put(port())
    assert all(map(world.counts, (used, again, late))) and not world.counts(gone)
    world.read()
    world.put(port(again))  # it is to go, and loses its endpoints in this moment
    assert world.counts(again)


def test_a_counter_that_came_to_be_needed_before_its_turn_stays(world: World) -> None:
    first, *others = made_in_the_usual_order(world, 2 * SWEPT)
    world.read()
    world.read()
    world.put(port(first))
    world.put(port())
    assert world.counts(first) and not any(map(world.counts, others))


# The kernel's.


@pytest.fixture
def table(namespace: Namespace) -> Iterator[tuple[Namespace, TableReader]]:
    ports = [
        port(),
        port(NODE_PORT),
        *(port(service_key(bytes([10, 98, 0, i]), 17, i), name="d/n") for i in range(1, 99)),
    ]
    namespace.kernel.commit([*create(V4, Options(), ()), *scratch(Family.IPV4, ports).operations])
    reader = namespace.inside(TableReader)
    yield namespace, reader
    reader.close()


def test_counters_are_read_from_the_kernel_and_survive_a_listing(table: tuple[Namespace, TableReader]) -> None:
    namespace, reader = table
    first = reader.packets(V4.addresses.no_endpoints)
    assert (
        len(first) == 99 and first[KEY] == (0, "default/web:http") and set(first.values()) == {first[KEY], (0, "d/n")}
    )
    assert reader.packets(V4.node_ports.no_endpoints) == {NODE_PORT[1:]: (0, "default/web:http")}
    listing = namespace.nft("list", "table", "ip", V4.table.name)
    changed = listing.replace("counter packets 0 bytes 0", "counter packets 70000000000 bytes 9", 1)
    namespace.nft("delete", "table", "ip", V4.table.name)
    namespace.nft("-f", "-", stdin=changed)
    assert namespace.nft("list", "table", "ip", V4.table.name) == changed
    sets = (V4.addresses.no_endpoints, V4.node_ports.no_endpoints)
    assert sum(packets for set_ in sets for packets, _ in reader.packets(set_).values()) == 70000000000


def test_an_element_that_looks_otherwise_is_read_all_the_same(table: tuple[Namespace, TableReader]) -> None:
    namespace, reader = table
    name = f"ip {V4.table.name} no-endpoints".split()
    other = service_key(bytes([10, 99, 0, 1]), 6, 443)
    namespace.nft("add", "element", *name, "{ 10.99.0.1 . tcp . 443 counter packets 5 bytes 6 }")
    namespace.kernel.commit([DeleteElement(V4.addresses.no_endpoints, KEY)])
    found = reader.packets(V4.addresses.no_endpoints)
    assert found[other] == (5, "") and len(found) == 99


def test_elements_that_cannot_be_are_refused() -> None:
    from rules.netlink import Message, attribute, text

    body = bytes(4) + text(1, V4.table.name) + attribute(3, b"\xff\x00\x01\x00" + bytes(40))
    with pytest.raises(ValueError, match="claims"):
        list(read_packets([Message(0, 0, 0, memoryview(body))], V4.addresses.no_endpoints))
    plain = attribute(1, attribute(1, attribute(1, KEY)))
    body = bytes(4) + text(1, V4.table.name) + attribute(3, plain)
    assert list(read_packets([Message(0, 0, 0, memoryview(body))], V4.addresses.no_endpoints)) == [(KEY, (0, ""))]


def test_a_kernel_that_cannot_count_is_told_by_its_option(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rules.expressions import Counter

    assert probe(namespace.kernel, [Family.IPV4]) == []
    monkeypatch.setattr(Counter, "NAME", "no-counter")
    [missing] = probe(namespace.kernel, [Family.IPV4])
    assert missing == Missing("sets whose elements count", Family.IPV4, "CONFIG_NFT_COUNTER", errno.ENOENT)


def test_the_way_of_a_refused_packet_names_the_set(world: World) -> None:
    world.put(port())
    table = world.kernel.dump(V4.table)
    assert table
    for number, step in ((80, "no-endpoints @no-endpoints"), (81, "no-endpoints")):
        packet = Packet(Family.IPV4, bytes([10, 244, 0, 9]), bytes([10, 96, 0, 1]), 6, number, "cni0")
        [fate] = fates(table, packet)
        assert fate.what == "refused" and fate.path[-2:] == (step, "refuse")
