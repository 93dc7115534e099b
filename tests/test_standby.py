"""The standby behind our tables holds what they hold, never keeps them waiting, and is made anew when it fails."""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from proxy.agent import Agent
from proxy.committed import Committed
from proxy.events import Event, TablesTouched
from proxy.ownership import NO_OWNER, Ownership, choose, remove_leftover
from proxy.standby import BACKOFF_SECONDS, CALM, PAUSE, Nftables, Standby
from proxy.state import State
from rules import neighbours, standby
from rules.changes import Touched
from rules.dump import TableState
from rules.errors import Failure, KernelUnreachable, TransactionError
from rules.fake import FakeKernel
from rules.interpret import _Run
from rules.kernel import Kernel
from rules.kernel_watch import KernelWatch
from rules.layout import LAYOUTS
from rules.lookout import Lookout
from rules.objects import OWNED, OWNER, Chain, Family, Hook, Set, Table
from rules.packet import Packet, PacketState
from rules.transaction import AddChain, AddElement, AddSet, AddTable, DeleteElement, DeleteTable, FlushChain, Operation
from tests.histories import BATCHES, NODE_NAME, listing
from tests.meddling import Meddling, add_chain, ever_worse, flush_ruleset, take_elements
from tests.netns import Namespace
from tests.objects import endpoint_slice, service
from tests.test_agent import WEB, Clock, Stubborn, World, put

EXAMPLES: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
FAMILIES = tuple(Family)
SOCKET = 77


class Socket:
    """Another socket of the same nftables as a fake's, which refuses all while `reason` is set."""

    def __init__(self, kernel: FakeKernel, port: int = SOCKET) -> None:
        self.kernel, self.port = kernel, port
        self.reason: Failure | None = None
        self.commits: list[list[Operation]] = []
        self.is_open = True

    def commit(self, operations: Sequence[Operation]) -> int:
        assert self.is_open
        if self.reason:
            raise TransactionError((self.reason,))
        self.commits.append(list(operations))
        done: int = self._as_itself(lambda: FakeKernel.commit(self.kernel, operations))
        return done

    def close(self) -> None:
        self.is_open = False
        self._as_itself(self.kernel.close)

    def _as_itself(self, action: Callable[[], Any]) -> Any:
        port, self.kernel.port = self.kernel.port, self.port
        try:
            return action()
        finally:
            self.kernel.port = port


class Watched(World):
    """With a standby that is as far as `step` was called."""

    def __init__(self, kernel: FakeKernel | None = None, **options: Any) -> None:
        self.sockets: list[Socket] = []
        kernel = kernel or Stubborn()
        clock = Clock()
        self.standby = Standby(lambda: self.open(kernel), clock)
        super().__init__(kernel, standby=self.standby, **options)
        self.clock = clock
        self.agent._clock = clock

    def start(self, *events: Event) -> Watched:
        super().start(*events)
        return self

    def open(self, kernel: FakeKernel) -> Nftables:
        self.sockets.append(Socket(kernel))
        return self.sockets[-1]

    def settle(self) -> None:
        """Until nothing is left to do just now."""
        for _ in range(100):
            if self.standby.next_at > self.clock.now:
                return
            self.standby.step()
        raise AssertionError("the standby never comes to rest")

    def compare(self) -> None:
        for family in FAMILIES:
            same(self.kernel.dump(LAYOUTS[family].table), self.kernel.dump(standby.table(family)))


def same(main: TableState | None, second: TableState | None) -> None:
    """But for owner and places, and for chains of round robin that are made and not used."""
    assert main and second
    assert (second.flags, bool(second.owner)) == (OWNER, True)
    assert {name: s.elements for name, s in main.sets.items() if not _grows(name)} == {
        name: s.elements for name, s in second.sets.items() if not _grows(name)
    }
    assert {n: (s.type, s.data_type, s.flags) for n, s in main.sets.items()} == {
        n: (s.type, s.data_type, s.flags) for n, s in second.sets.items()
    }
    used = {data.decode() for name, s in main.sets.items() if "robin" in name for data, _ in s.elements.values()}
    chains = {name for name in main.chains if not re.search(r"turn-\d+$", name) or name in used}
    assert chains == {name for name in second.chains if name in chains}
    for name in chains:
        ours, theirs = main.chains[name], second.chains[name]
        if ours.hook and name != "postrouting":
            number, priority, *rest = ours.hook
            first, last = second.chains[f"{name}-first"], second.chains[f"{name}-last"]
            assert (first.hook, last.hook) == ((number, priority - 1, *rest), (number, priority + 2, *rest))
            assert [first.rules[0], *first.rules[3:]] == ours.rules  # in between: who has session affinity
            assert len(last.rules) == 5
        if name.endswith("no-endpoints"):  # our table refuses, and counts
            assert len(ours.rules) == 2 and len(theirs.rules) == 1  # which clears the priority
        elif "special" in name:  # rules that came one after the other; each key is in the set of one of them at most
            assert sorted(map(repr, ours.rules)) == sorted(map(repr, theirs.rules)), name
        else:
            assert ours.rules == theirs.rules, name
        if ours.hook:
            number, priority, *rest = ours.hook
            assert theirs.hook == (number, priority + (-1 if name == "postrouting" else 1), *rest)
        else:
            assert theirs.hook is None


def _grows(name: str) -> bool:
    """Whether packets put something into it."""
    return name.endswith("tickets")


# What it holds.


@settings(max_examples=30, **EXAMPLES)
@given(BATCHES, st.lists(st.integers(0, 30), min_size=10, max_size=10))
def test_it_holds_what_the_tables_hold(batches: list[list[Event]], steps: list[int]) -> None:
    """However far it has come when the next change comes."""
    world = Watched().start(*WEB)
    for batch, count in zip(batches, steps, strict=False):
        world.handle(*batch)
        for _ in range(count):
            world.standby.step()
    world.settle()
    assert world.standby.is_ready and world.standby.next_at == math.inf
    world.compare()
    assert [len(socket.commits) > 1 for socket in world.sockets] == [True]


@settings(max_examples=15, **EXAMPLES)
@given(BATCHES, BATCHES, st.integers(0, 30))
def test_it_holds_it_after_the_tables_were_flushed_or_taken_over(
    before: list[list[Event]], after: list[list[Event]], steps: int
) -> None:
    world = Watched().start(*WEB)
    for batch in before:
        world.handle(*batch)
    world.settle()
    flush(world)
    world.compare()
    for batch in after:
        world.handle(*batch)
    world.settle()
    world.compare()
    assert len(world.sockets) == 1, "a flush of our tables is no reason to make the standby anew"
    next_ = Watched(world.kernel)
    next_.cluster = world.cluster
    world.standby.close()
    next_.start()
    for _ in range(steps):
        next_.standby.step()
    for batch in before:
        next_.handle(*batch)
    next_.settle()
    next_.compare()


def flush(world: World) -> None:
    """As `nft flush ruleset`."""
    world.kernel.commit([DeleteTable(LAYOUTS[family].table) for family in FAMILIES])
    world.handle(TablesTouched(tuple(Touched(family, is_rebuilt=True) for family in FAMILIES)))


@pytest.mark.root
def test_the_kernel_takes_it(namespace: Namespace) -> None:
    """With every kind of service port; the kernel's own words of both tables."""
    second = namespace.inside(Kernel)
    kept = Standby(lambda: second)
    agent = Agent(State(NODE_NAME), namespace.kernel, World().inbox, standby=kept)
    agent.handle(listing({}))
    watch = namespace.inside(lambda: KernelWatch(namespace.kernel.port))
    agent.handle(put(*many(1)))
    for turn in range(2, 6):
        agent.handle(put(*many(turn)))
        for _ in range(turn):
            kept.step()
    for _ in range(100):
        kept.step()
    assert kept.is_ready
    assert (watch.read(0.1), watch.take_neighbours()) == ([], []), "nobody else has done anything"
    watch.close()
    for family in FAMILIES:
        same(namespace.kernel.dump(LAYOUTS[family].table), namespace.kernel.dump(standby.table(family)))
    assert namespace.run("nft", "delete", "table", "ip", standby.NAME).returncode
    assert "Operation not permitted" in namespace.run("nft", "flush", "chain", "ip", standby.NAME, "services").stderr
    with namespace.inside(Lookout) as lookout:
        assert lookout.neighbours() == [], "our own standby is no neighbour of ours"
    assert standby.NAME in namespace.nft("list", "ruleset")
    namespace.nft("flush", "ruleset")
    assert [namespace.kernel.has(LAYOUTS[family].table) for family in FAMILIES] == [False, False]
    assert [namespace.kernel.has(standby.table(family)) for family in FAMILIES] == [True, True]
    kept.close()
    assert [namespace.kernel.has(standby.table(family)) for family in FAMILIES] == [False, False]


def many(turn: int) -> list[dict[str, Any]]:
    """Service ports of every kind, and other endpoints each turn."""
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("plain", {}),
        ("sticky", {"sessionAffinity": "ClientIP"}),
        ("local", {"externalIPs": ["192.0.2.7"], "externalTrafficPolicy": "Local"}),
        ("guarded", {"externalIPs": ["192.0.2.8"], "loadBalancerSourceRanges": ["10.0.0.0/8"]}),
    ]
    found = []
    for number, (name, spec) in enumerate(kinds, 1):
        made = service(name, f"10.96.0.{number}", f"fd00::{number}")
        made["spec"] |= spec
        found += [made, endpoint_slice(name, *(f"10.244.{turn}.{i}" for i in range(1, turn + number)))]
    turns = service("turns", "10.96.0.9")
    turns["metadata"]["annotations"] = {"kube-proxy-nft/scheduler": "rr" if turn % 2 else "sh"}
    return [*found, turns, endpoint_slice("turns", f"10.244.{turn}.1", f"10.244.{turn}.2")]


@pytest.mark.parametrize("hook", [Hook("first", 0, -101), Hook("behind", 0, -99)], ids=lambda hook: hook.name)
def test_a_packet_that_it_does_not_lead_goes_on_as_it_came(hook: Hook) -> None:
    world = Watched().start(*put(service("none", "10.96.0.9")))
    world.settle()
    table = world.kernel.dump(standby.table(Family.IPV4))
    assert table
    packet = Packet(Family.IPV4, bytes((10, 244, 0, 9)), bytes((10, 96, 0, 9)), 6, 80, "eth0")
    ends = _Run(table, packet).base(hook, {PacketState(): 1.0})
    assert {(what, state.priority): chance for (what, state), chance in ends.items()} == {("accept", bytes(4)): 1.0}


def test_what_is_about_a_whole_table_is_not_taken_for_a_change() -> None:
    for operation in (AddTable(LAYOUTS[Family.IPV4].table), DeleteTable(LAYOUTS[Family.IPV4].table)):
        with pytest.raises(TypeError):
            standby.Mirror().follow([operation])


def test_every_field_of_what_is_mirrored_is_kept() -> None:
    table = LAYOUTS[Family.IPV4].table
    for set_ in (*LAYOUTS[Family.IPV4].sets, *LAYOUTS[Family.IPV6].sets):
        [mirrored] = standby.Mirror().follow([AddSet(set_)])
        assert isinstance(mirrored, AddSet)
        kept = {name: getattr(mirrored.set, name) for name in set_.__dataclass_fields__ if name != "table"}
        assert kept == {name: getattr(set_, name) for name in set_.__dataclass_fields__ if name != "table"}
    some = Set(table, "x", ())
    element = AddElement(some, b"key", b"data", "comment", b"end")
    [same_one] = standby.Mirror().follow([element])
    assert isinstance(same_one, AddElement) and same_one.set.table.name == standby.NAME
    assert (same_one.key, same_one.data, same_one.comment, same_one.end) == (b"key", b"data", "comment", b"end")
    assert standby.Mirror().follow([FlushChain(Chain(table, "x"))]) == [
        FlushChain(Chain(standby.table(Family.IPV4), "x"))
    ]


# When it is made, and when not.


def test_who_follows_is_told_before_it_is_begun_and_after_it_has_changed() -> None:
    """A UDP flow that is forgotten must not come again, through a standby that does not know yet."""
    seen: list[tuple[int, int]] = []
    world = Watched()
    world.agent.followers = [lambda done: seen.append(_count(world))]
    world.start(*WEB)
    assert seen == [(0, 0)] and not world.standby.is_ready
    world.settle()
    before = _count(world)
    assert world.standby.is_ready and before[0] == 1
    for address in ("10.96.0.9", "10.96.0.10"):
        world.handle(*put(service("more", address)))
    assert seen[1:] == [(1, before[1] + 1), (1, before[1] + 2)]


def _count(world: Watched) -> tuple[int, int]:
    return len(world.sockets), sum(len(socket.commits) for socket in world.sockets)


def test_no_packet_sees_half_of_it() -> None:
    """The base chains come last, after what has changed meanwhile."""
    world = Watched().start(*WEB)
    while not world.standby.is_ready:
        table = world.kernel.dump(standby.table(Family.IPV4))
        assert table is None or not any(chain.hook for chain in table.chains.values())
        world.handle(*put(service(f"s{len(world.cluster)}", f"10.96.1.{len(world.cluster)}")))
        world.standby.step()
    same(world.kernel.dump(LAYOUTS[Family.IPV4].table), world.kernel.dump(standby.table(Family.IPV4)))


def test_the_loop_builds_it_between_events_and_then_rests() -> None:
    world = Watched()
    for event in [*listing({}), *WEB]:
        world.inbox.put(event)
    for turn in range(60):
        if turn < 5:
            world.inbox.put(*put(service("more", f"10.96.2.{turn + 1}")))
        elif world.agent._patience(False) != 0.0:
            break
        assert world.agent._turn(False)
    assert world.standby.is_ready and world.agent._patience(False) is None
    world.compare()


def test_rules_are_seen_to_while_it_is_built() -> None:
    """A retry that is due is not kept waiting by a build that goes on and on."""
    world = Watched().start(*WEB)
    world.kernel.reason = Failure(None, errno.ENOMEM)
    world.handle(*put(service("more", "10.96.0.9")))
    assert world.agent.sync_failures == 1
    world.kernel.reason = None
    world.clock.now += 1000.0
    assert not world.standby.is_ready and world.standby.next_at <= world.clock.now
    world.agent._turn(False)
    assert not world.agent._retries.failures
    world.settle()
    world.compare()


def test_what_is_outdated_goes_at_once_and_is_built_at_leisure() -> None:
    """A table of ours that is numbered anew. What ours let pass, an old standby would not."""
    world = Watched().start(*WEB)
    world.settle()
    for expected in (1, 2):
        world.handle(*put(endpoint_slice("web", *(f"10.244.0.{expected + i}" for i in (1, 2)))))  # one goes, one comes
        world.kernel.commit([AddChain(Chain(LAYOUTS[Family.IPV4].table, f"foreign{expected}"))])
        world.agent.tables.forget()
        world.handle()
        assert not world.standby.is_ready and world.kernel.dump(standby.table(Family.IPV4)) is None
        world.settle()
        assert not world.standby.is_ready
        assert world.standby.next_at - world.clock.now == PAUSE
        world.handle(*put(service("more", f"10.96.0.{expected + 6}")))
        world.clock.now += PAUSE
        world.settle()
        assert world.standby.is_ready and len(world.sockets) == 1 + expected
        world.compare()


def test_a_table_that_is_laid_out_otherwise_is_made_again_with_the_same_numbers() -> None:
    world = Watched().start(*WEB)
    world.settle()
    for turn in range(3):
        world.handle(*put(endpoint_slice("web", *(f"10.244.0.{turn + i}" for i in (1, 2)))))  # one goes, one comes
        world.kernel.commit([AddChain(Chain(LAYOUTS[Family.IPV4].table, "foreign"))])
        world.handle(TablesTouched((Touched(Family.IPV4, is_rebuilt=True),)))
        assert world.agent.repairs == turn + 1
        assert "foreign" not in world.kernel.dump(LAYOUTS[Family.IPV4].table).chains
        world.check()
        world.compare()
    assert len(world.sockets) == 1 and world.standby.is_ready


def test_a_flush_of_our_tables_is_undone_with_the_same_numbers() -> None:
    """So that the standby can stay as it is; it serves just now."""
    world = Watched().start(*WEB)
    world.handle(*put(endpoint_slice("web", "10.244.0.2", "10.244.0.3"), endpoint_slice("web", "10.244.0.9", name="b")))
    world.settle()
    before, commits = [world.kernel.dump(LAYOUTS[family].table) for family in FAMILIES], _count(world)
    flush(world)
    assert world.agent.repairs == 1 and world.standby.is_ready and _count(world) == commits
    after = [world.kernel.dump(LAYOUTS[family].table) for family in FAMILIES]
    assert all(one and one is not other and one.sets == other.sets for one, other in zip(after, before, strict=True))
    world.check()


@pytest.mark.parametrize("families", [FAMILIES, FAMILIES[:1]], ids=["both", "one"])
def test_a_change_that_finds_the_tables_gone_makes_them_again_first(families: Sequence[Family]) -> None:
    """The message of a flush may come after the next change. It is no reason to do without a standby."""
    world = Watched().start(*WEB)
    world.handle(*put(endpoint_slice("web", "10.244.0.2", "10.244.0.3")))  # numbers are others than in a new table
    world.settle()
    for turn in range(3):
        world.kernel.commit([DeleteTable(LAYOUTS[family].table) for family in families])
        world.handle(*put(endpoint_slice("web", "10.244.0.2", f"10.244.0.{turn + 4}")))
        assert world.agent.sync_failures == 0 and world.agent.repairs == turn, "whose doing that was, nobody knows yet"
        world.settle()
        world.check()
        world.compare()
        with capture_logs() as logs:
            world.handle(
                TablesTouched(tuple(Touched(family, is_rebuilt=True, who="nft (pid 7)") for family in families))
            )
        assert world.agent.repairs == turn + 1
        assert [(log["event"], log["by"]) for log in logs] == [("tables_mended", "nft (pid 7)")]
        world.check()
        world.compare()
    assert len(world.sockets) == 1 and world.standby.is_ready


def test_what_is_put_right_by_differences_leaves_it_alone() -> None:
    world = Watched().start(*WEB)
    world.settle()
    set_ = LAYOUTS[Family.IPV4].cluster_ip_ports
    key = next(iter(world.kernel.dump(set_.table).sets[set_.name].elements))
    world.kernel.commit([DeleteElement(set_, key)])
    world.handle(TablesTouched((Touched(Family.IPV4, is_rebuilt=True),)))
    assert world.agent.repairs == 1 and world.standby.is_ready and len(world.sockets) == 1
    world.check()
    world.compare()


def test_it_is_built_of_what_should_be_there_while_the_tables_are_put_right() -> None:
    world = Watched().start(*WEB)
    world.kernel.commit([FlushChain(LAYOUTS[Family.IPV4].chain("services"))])
    world.kernel.reason = Failure(None, errno.ENOMEM)
    world.agent.tables.forget()
    world.handle()
    world.settle()
    assert world.standby.is_ready and world.agent.sync_failures
    world.kernel.reason = None
    world.clock.now += 1000.0
    world.handle()
    world.settle()
    assert len(world.sockets) == 1 and not world.agent._retries.failures, "all is as it was"
    world.compare()


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("meddle", [take_elements, add_chain, flush_ruleset, ever_worse()])
def test_a_change_goes_through_whatever_others_do_at_that_moment(
    meddle: Callable[[FakeKernel], None], times: int
) -> None:
    """And the standby does the same change: it is what serves while our tables are somebody else's play."""
    world = Watched().start(*WEB)
    world.handle(*put(endpoint_slice("web", "10.244.0.2", "10.244.0.3")))  # numbers are others than in a new table
    world.settle()
    for turn in range(4):
        world.kernel.commit = Meddling(world.kernel, meddle, times)
        world.handle(*put(endpoint_slice("web", f"10.244.0.{turn + 4}", f"10.244.0.{turn + 5}")))
        del world.kernel.commit
        assert (world.agent.sync_failures, world.agent.repairs) == (0, turn)
        assert world.standby.is_ready and len(world.sockets) == 1
        world.handle(TablesTouched(tuple(Touched(family, is_rebuilt=True) for family in FAMILIES)))
        assert world.agent.repairs == turn + 1
        world.check()
        world.compare()


# When it fails.


@pytest.mark.parametrize("when", ["opened", "built", "changed"])
def test_the_agent_goes_on_without_it_and_it_is_built_anew(when: str) -> None:
    world = Watched().start(*WEB)
    refuses = True

    def open_one(kernel: FakeKernel) -> Nftables:
        if when == "opened" and refuses:
            raise KernelUnreachable(errno.EMFILE, "cannot open a netlink socket to netfilter")
        socket = Socket(kernel)
        socket.reason = Failure(None, errno.ENOMEM) if when == "built" and refuses else None
        world.sockets.append(socket)
        return socket

    world.open = open_one  # type: ignore[method-assign]
    told: list[Committed] = []
    world.agent.followers = [told.append]
    with capture_logs() as logs:
        if when == "changed":
            world.settle()
            assert world.standby.is_ready
            world.sockets[-1].reason = Failure(None, errno.ENOSPC)
        for number, wait in enumerate([*BACKOFF_SECONDS, BACKOFF_SECONDS[-1]], 1):
            world.handle(*put(service("more", f"10.96.1.{number}")))
            assert len(told) == number
            world.settle()
            assert not world.standby.is_ready
            assert world.standby.next_at - world.clock.now == wait
            assert all(not socket.is_open for socket in world.sockets)
            assert world.kernel.dump(standby.table(Family.IPV4)) is None
            world.clock.now += wait
            if when == "changed":
                world.settle()
                assert world.standby.is_ready
                world.sockets[-1].reason = Failure(None, errno.ENOSPC)
    assert [log["event"] for log in logs if log["log_level"] == "warning"] == ["standby_failed"]
    world.check()
    refuses = False
    if when == "changed":
        world.sockets[-1].reason = None
    world.settle()
    world.handle(*put(service("more", "10.96.2.1")))
    world.settle()
    assert world.standby.is_ready
    world.compare()


def test_waits_begin_anew_after_a_calm_time() -> None:
    world = Watched().start(*WEB)
    for _ in range(2):
        world.settle()
        world.sockets[-1].reason = Failure(None, errno.ENOSPC)
        with capture_logs() as logs:
            world.handle(*put(service("more", f"10.96.1.{len(world.sockets)}")))
        assert [log["seconds"] for log in logs if log["event"] == "standby_failed"] == [BACKOFF_SECONDS[0]]
        world.clock.now += CALM + 1


def test_it_goes_with_the_agent_and_the_tables_stay() -> None:
    world = Watched().start(*WEB)
    world.settle()
    world.standby.close()
    assert [world.kernel.dump(standby.table(family)) for family in FAMILIES] == [None, None]
    world.check()


# Whether there is one.


@pytest.mark.parametrize(
    ("wanted", "once", "can", "chosen", "cause"),
    [
        ("auto", False, OWNED, Ownership.OWNED, None),
        ("auto", False, OWNER, Ownership.STANDBY, NO_OWNER),
        ("auto", False, 0, Ownership.NEVER, "this kernel has no tables with an owner (Linux 5.12)"),
        ("standby", False, OWNED, Ownership.STANDBY, "--table-ownership is standby"),
        ("standby", False, 0, Ownership.NEVER, "this kernel has no tables with an owner (Linux 5.12)"),
        ("never", False, OWNED, Ownership.NEVER, "--table-ownership is never"),
        ("auto", True, OWNED, Ownership.NEVER, None),
        ("standby", True, OWNED, Ownership.NEVER, None),
    ],
)
def test_who_is_to_own_what(wanted: str, once: bool, can: int, chosen: Ownership, cause: str | None) -> None:
    class Old(FakeKernel):
        def _add_table(self, table: Table) -> None:
            if table.flags & ~can:
                raise TransactionError((Failure(AddTable(table), errno.EOPNOTSUPP),))
            super()._add_table(table)

    kernel: Any = Old()
    with capture_logs() as logs:
        assert choose(Ownership(wanted), kernel, Family.IPV4, once=once) is chosen
    assert [log["cause"] for log in logs] == ([cause] if cause else [])
    assert kernel.transactions == 0


@pytest.mark.root
def test_one_that_a_listing_brought_back_is_removed(namespace: Namespace) -> None:
    with capture_logs() as logs:
        remove_leftover(namespace.kernel)
    assert logs == []
    namespace.nft("add", "table", "ip6", standby.NAME)
    with capture_logs() as logs:
        remove_leftover(namespace.kernel)
    assert [(log["event"], log["family"]) for log in logs] == [("standby_removed", "ip6")]
    assert not namespace.kernel.has(standby.table(Family.IPV6))


def test_its_chains_stand_where_no_neighbour_is_looked_for() -> None:
    world = Watched().start(*WEB)
    world.settle()
    for family in FAMILIES:
        table = world.kernel.dump(standby.table(family))
        places = [chain.hook[:2] for chain in table.chains.values() if chain.hook]
        assert len(set(places)) == len(places) == 7 and not set(places) & set(neighbours._PLACES)
