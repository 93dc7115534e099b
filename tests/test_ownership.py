"""Tables that belong to the agent's socket: nobody else can change them, they outlive it, and the next agent takes them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from integration import privileges
from integration.topology import Bed
from integration.traffic import Stream, ask, tally
from proxy.agent import Agent
from proxy.command_line import parse
from proxy.events import Inbox, TablesTouched
from proxy.state import State
from rules.changes import Touched
from rules.errors import TransactionError
from rules.fake import FakeKernel
from rules.kernel import Kernel
from rules.layout import LAYOUTS
from rules.objects import OWNED, OWNER, PERSIST, Chain, Family, Table
from rules.ownership import can_own
from rules.tables import remove
from rules.transaction import AddChain, AddTable, DeleteTable, Operation
from tests.histories import NODE_NAME, listing
from tests.netns import Namespace
from tests.objects import endpoint_slice, service
from tests.test_agent import WEB, Stubborn, World, put

V4 = LAYOUTS[Family.IPV4]
TABLE = Table(Family.IPV4, "test")


def with_flags(flags: int) -> Table:
    return Table(TABLE.family, TABLE.name, flags=flags)


class Sockets:
    """Sockets of one nftables, one after the other: the kernel's, or the fake's."""

    def __init__(self, namespace: Namespace | None) -> None:
        self._namespace = namespace
        self.now: Any = self._open() if namespace else FakeKernel()

    def next(self) -> None:
        """The one that there is ends, as with its process."""
        self.now.close()
        if self._namespace:
            self.now = self._open()

    def _open(self) -> Kernel:
        assert self._namespace
        return self._namespace.inside(Kernel)

    def refusals(self, *operations: Operation) -> list[int]:
        with pytest.raises(TransactionError) as caught:
            self.now.commit(operations)
        return [failure.errno for failure in caught.value.failures]


@pytest.fixture(params=[pytest.param("kernel", marks=pytest.mark.root), "fake"])
def sockets(request: pytest.FixtureRequest) -> Iterator[Sockets]:
    if request.param == "fake":
        yield Sockets(None)
        return
    namespace = Namespace()
    if not can_own(namespace.kernel, Family.IPV4):
        namespace.close()
        pytest.skip("this kernel has no tables that outlive their owner")
    made = Sockets(namespace)
    yield made
    made.now.close()
    namespace.close()


# What the kernel does, and the fake.


def test_a_table_outlives_its_owner_and_gets_another(sockets: Sockets) -> None:
    chain = Chain(TABLE, "chain")
    sockets.now.commit([AddTable(with_flags(OWNED)), AddChain(chain)])
    sockets.now.commit([AddTable(TABLE), AddTable(with_flags(OWNED))])
    found = sockets.now.dump(TABLE)
    assert (found.flags, found.owner) == (OWNED, sockets.now.port)
    sockets.next()
    found = sockets.now.dump(TABLE)
    assert (found.flags, found.owner, list(found.chains)) == (PERSIST, 0, ["chain"])
    sockets.now.commit([AddTable(with_flags(OWNED)), AddChain(Chain(TABLE, "other"))])
    found = sockets.now.dump(TABLE)
    assert (found.flags, found.owner, len(found.chains)) == (OWNED, sockets.now.port, 2)


def test_a_table_goes_with_its_owner_unless_it_persists(sockets: Sockets) -> None:
    sockets.now.commit([AddTable(with_flags(OWNER))])
    sockets.next()
    assert sockets.now.dump(TABLE) is None


def test_a_table_that_never_had_an_owner_gets_none(sockets: Sockets) -> None:
    sockets.now.commit([AddTable(TABLE)])
    assert sockets.refusals(AddTable(with_flags(OWNED))) == [errno.EOPNOTSUPP]
    assert sockets.now.dump(TABLE).flags == 0
    sockets.now.commit([AddTable(TABLE), DeleteTable(TABLE), AddTable(with_flags(OWNED))])
    assert sockets.now.dump(TABLE).flags == OWNED


def test_what_is_refused_gives_no_ownership(sockets: Sockets) -> None:
    sockets.now.commit([AddTable(with_flags(OWNED))])
    sockets.next()
    unknown = AddChain(Chain(Table(Family.IPV4, "unknown"), "chain"))
    assert sockets.refusals(AddTable(with_flags(OWNED)), unknown) == [errno.ENOENT]
    assert sockets.now.dump(TABLE).owner == 0


def test_whether_a_kernel_has_it_is_found_without_a_change(sockets: Sockets) -> None:
    assert can_own(sockets.now, Family.IPV4)
    assert sockets.now.dump(Table(Family.IPV4, "kube-proxy-nft-probe")) is None
    old = FakeKernel()
    old.can_own = False
    assert not can_own(old, Family.IPV4)


# The agent.


def world(kernel: Stubborn | None = None) -> World:
    return World(kernel, owned=True)


def owners(kernel: FakeKernel) -> list[tuple[int, bool]]:
    tables = [kernel.dump(layout.table) for layout in LAYOUTS.values()]
    return [(table.flags, table.owner == kernel.port) for table in tables if table]


def test_the_next_agent_takes_the_tables_with_what_they_hold() -> None:
    first = world().start(*WEB)
    assert owners(first.kernel) == [(OWNED, True)] * 2
    table = first.kernel.dump(V4.table)
    first.kernel.close()
    assert owners(first.kernel) == [(PERSIST, False)] * 2
    with capture_logs() as logs:
        second = world(first.kernel).start(*WEB)
    assert [(log["event"], log["operations"], log["ip_differences"]) for log in logs] == [("programmed", 2, 0)]
    assert second.kernel.dump(V4.table) is table
    assert owners(second.kernel) == [(OWNED, True)] * 2
    second.handle(*put(service("more", "10.96.0.9")))
    second.check()


def test_a_table_without_owner_is_replaced_once() -> None:
    kernel = Stubborn()
    World(kernel).start(*WEB)
    assert owners(kernel) == [(0, False)] * 2
    for expected in (["table_not_adopted", "table_not_adopted", "programmed"], ["programmed"]):
        kernel.close()
        with capture_logs() as logs:
            world(kernel).start(*WEB).check()
        assert [log["event"] for log in logs] == expected
        assert owners(kernel) == [(OWNED, True)] * 2
    assert kernel.transactions == 3


def test_an_agent_that_owns_nothing_takes_an_orphan_as_it_is() -> None:
    first = world().start(*WEB)
    first.kernel.close()
    transactions = first.kernel.transactions
    second = World(first.kernel).start(*WEB)
    assert owners(second.kernel) == [(PERSIST, False)] * 2
    assert second.kernel.transactions == transactions
    second.handle(*put(service("more", "10.96.0.9")))
    second.check()


def test_to_look_at_tables_that_are_owned_already_commits_nothing() -> None:
    one = world().start(*WEB)
    transactions = one.kernel.transactions
    one.handle(TablesTouched((Touched(Family.IPV4, is_rebuilt=True),)))
    assert one.kernel.transactions == transactions


def test_without_a_table_or_with_a_foreign_one_it_is_made_with_an_owner() -> None:
    one = world().start(*WEB)
    one.kernel.commit([DeleteTable(V4.table)])
    one.handle(TablesTouched((Touched(Family.IPV4, is_rebuilt=True),)))
    assert owners(one.kernel) == [(OWNED, True)] * 2
    one.check()
    one.kernel.close()
    one.kernel.commit([AddChain(Chain(V4.table, "foreign"))])
    world(one.kernel).start(*WEB).check()
    assert owners(one.kernel) == [(OWNED, True)] * 2


def test_tables_that_another_socket_owns_are_taken_when_it_is_gone() -> None:
    """The agent before may be gone, and its socket not yet."""
    kernel = Stubborn()
    world(kernel).start(*WEB)
    owner, kernel.port = kernel.port, 99
    second = world(kernel).start(*WEB)
    table = kernel.dump(V4.table)
    assert table and table.owner == owner
    kernel.port = owner
    kernel.close()
    kernel.port = 99
    second.clock.now += 0.1
    second.handle()
    assert owners(kernel) == [(OWNED, True)] * 2
    second.check()


def test_tables_are_removed_whoever_had_them(sockets: Sockets) -> None:
    for flags in (0, PERSIST, OWNED):
        sockets.now.commit([AddTable(Table(Family.IPV4, V4.table.name, flags=flags))])
        for _ in range(2):
            sockets.now.commit(remove(V4))
            assert sockets.now.dump(V4.table) is None


def test_the_option() -> None:
    assert parse(["run"]).table_ownership == "auto"
    for value in ("never", "standby"):
        assert parse(["run", f"--table-ownership={value}"]).table_ownership == value
    with pytest.raises(SystemExit):
        parse(["run", "--table-ownership=always"])


# With packets.

ADDRESS = ("10.96.9.1", 80)
FLUSHES = 50
ATTACKS: list[tuple[list[str], int]] = [
    (["flush ruleset"], 0),
    (["flush table ip kube-proxy-nft"], 1),
    (["delete table ip kube-proxy-nft"], 1),
    (["flush chain ip kube-proxy-nft services"], 1),
    (["add chain ip kube-proxy-nft output { policy drop; }"], 1),
    (["add element ip kube-proxy-nft cluster-ips { 192.0.2.1 }"], 1),
]


class Place:
    """A bed with an agent on its node, driven by hand: one after the other, each with its socket."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.kernel: Kernel | None = None

    def start(self, *, owned: bool = True) -> list[Any]:
        """The agent before has ended, as far as the kernel can tell. Returns what the new one logs."""
        if self.kernel:
            self.kernel.close()
        with self.bed.node.namespace.entered():
            self.kernel = Kernel()
        agent = Agent(State(NODE_NAME), self.kernel, Inbox(), owned=owned)
        pods = [self.bed.pod1.ipv4, self.bed.pod3.ipv4]
        objects = [service("web", ADDRESS[0]), endpoint_slice("web", *pods)]
        with capture_logs() as logs:
            agent.handle([*listing({}), *put(*objects)])
        return [log["event"] for log in logs]

    def nft(self, command: Sequence[str]) -> int:
        done = self.bed.node.namespace.popen(["nft", *command])
        return done.wait(20)


@pytest.fixture
def place() -> Iterator[Place]:
    if os.geteuid() != 0:
        pytest.skip("makes network namespaces: run as root")
    privileges.acquire()
    with Bed() as bed:
        made = Place(bed)
        with bed.node.namespace.entered():
            kernel = Kernel()
        if not can_own(kernel, Family.IPV4):
            pytest.skip("this kernel has no tables that outlive their owner")
        kernel.close()
        yield made
        if made.kernel:
            made.kernel.close()


@pytest.mark.root
def test_no_connection_fails_whatever_others_do(place: Place) -> None:
    place.start()
    stream = Stream(place.bed.client, *ADDRESS)
    stream.start()
    for _ in range(FLUSHES):
        assert place.nft(["flush ruleset"]) == 0
    for command, code in ATTACKS:
        assert place.nft(command) == code, command
    attempts = stream.stop()
    assert [attempt for attempt in attempts if attempt.failure] == []
    assert len(attempts) > 2 * FLUSHES


@pytest.mark.root
def test_no_connection_fails_while_agents_come_and_go(place: Place) -> None:
    place.start()
    stream = Stream(place.bed.client, *ADDRESS)
    stream.start()
    for _ in range(20):
        assert place.start() == ["programmed"]
        assert place.nft(["flush ruleset"]) == 0
    attempts = stream.stop()
    assert [attempt for attempt in attempts if attempt.failure] == []
    assert len(attempts) > 20


@pytest.mark.root
def test_an_orphan_can_be_flushed_and_comes_back_with_the_next_agent(place: Place) -> None:
    place.start()
    assert place.kernel
    place.kernel.close()
    assert ask(place.bed.client, *ADDRESS).endpoint
    assert place.nft(["flush ruleset"]) == 0
    assert tally(place.bed.client, *ADDRESS, count=1, timeout=0.2).failures
    place.start()
    assert ask(place.bed.client, *ADDRESS).endpoint


@pytest.mark.root
def test_a_table_of_an_earlier_release_is_replaced_without_a_failure(place: Place) -> None:
    place.start(owned=False)
    stream = Stream(place.bed.client, *ADDRESS)
    stream.start()
    assert "table_not_adopted" in place.start()
    assert place.start() == ["programmed"]
    attempts = stream.stop()
    assert attempts and [attempt for attempt in attempts if attempt.failure] == []
