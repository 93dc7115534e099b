"""A slow look at the tables finds what no message told of, and nothing else, whatever happens meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from proxy.audits import JITTER, PAUSE, PERIOD, SHARE, Audits
from proxy.events import Event, TablesTouched
from rules.audit import MANY
from rules.changes import Touched
from rules.fake import FakeKernel, FakeReader
from rules.layout import LAYOUTS
from rules.objects import Chain, Family, Set, Table
from rules.table_reader import TableReader
from rules.transaction import AddChain, AddElement, DeleteElement, DeleteTable, FlushChain, Operation
from tests.histories import BATCHES, Cluster, listing, remember
from tests.netns import Namespace
from tests.objects import endpoint_slice, service
from tests.test_adopt import check, damaged
from tests.test_agent import WEB, World, put, scripted
from tests.test_histories import content, empty

V4 = LAYOUTS[Family.IPV4]
EXAMPLES: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}


class Forgetful(FakeReader):
    """Leaves out elements of a dump, or tells of them twice, as the kernel does while there are changes."""

    def __init__(self, kernel: FakeKernel, rand: random.Random) -> None:
        super().__init__(kernel, piece=rand.randint(1, 9))
        self._rand = rand

    def elements(self, set_: Set) -> Iterator[list[Any]]:
        for piece in super().elements(set_):
            yield [one for one in piece for _ in range(self._rand.choice([0, 1, 1, 2]))]


def findings(world: Any, reader: Any, between: Callable[[], None] = lambda: None) -> list[Touched]:
    """All that an audit finds; `between` its steps, things happen."""
    found = []
    for touched in world.tables.audit(reader):
        if touched:
            found.append(touched)
        between()
    return found


@settings(max_examples=30, **EXAMPLES)
@given(BATCHES, BATCHES, st.integers(0, 2**32))
def test_nothing_is_found_where_nothing_is_wrong(
    before: list[list[Event]], during: list[list[Event]], seed: int
) -> None:
    """Though the reader forgets, and all changes while it is compared."""
    rand = random.Random(seed)
    with empty(FakeKernel) as (kernel, agent):
        for batch in before:
            agent.handle(batch)
        waiting = [batch for batch in during for _ in range(3)]

        def change() -> None:
            if waiting and rand.random() < 0.2:
                agent.handle(waiting.pop())

        assert findings(agent, FakeReader(kernel)) == []
        assert findings(agent, Forgetful(kernel, rand)) == []
        assert findings(agent, Forgetful(kernel, rand), change) == []


@settings(max_examples=30, **EXAMPLES)
@given(BATCHES, st.integers(0, 2**32), st.integers(1, 6))
def test_what_is_wrong_is_found_and_mended(batches: list[list[Event]], seed: int, count: int) -> None:
    rand = random.Random(seed)
    cluster: Cluster = {}
    with empty(FakeKernel) as (kernel, agent):
        for batch in batches:
            remember(cluster, *batch)
            agent.handle(batch)
        damaged(kernel, rand, count)
        for touched in agent.tables.audit(FakeReader(kernel, rand.randint(1, 9))):
            if touched:
                assert not touched.is_rebuilt
                agent.tables.mend([touched])
        check(kernel, cluster)
        assert findings(agent, FakeReader(kernel)) == []


STICKY = put(
    service("sticky", "10.96.0.2", sessionAffinity="ClientIP"),
    endpoint_slice("sticky", "10.244.0.3", "10.244.0.4", name="sticky-1"),
)
ROUND_ROBIN = [
    *put(
        service("turns", "10.96.0.3")
        | {
            "metadata": {
                "name": "turns",
                "namespace": "default",
                "annotations": {"kube-proxy-nft/scheduler": "rr"},
            }
        }
    ),
    *put(endpoint_slice("turns", "10.244.0.5", "10.244.0.6", name="turns-1")),
]
ALL = [*WEB, *STICKY, *ROUND_ROBIN]
KEY = bytes([10, 96, 0, 1])
TURN = Chain(V4.table, "turn-0")
HARM: dict[str, list[Operation]] = {
    "an element is gone": [DeleteElement(V4.cluster_ips, KEY)],
    "one is too many": [AddElement(V4.cluster_ips, bytes([192, 0, 2, 1]))],
    "a chain is empty": [FlushChain(V4.chain("services"))],
    "a chain of round robin is empty": [FlushChain(TURN)],
    "a chain of affinity is empty": [FlushChain(V4.chain("sticky-2-for-10800s"))],
    "there is another chain": [AddChain(Chain(V4.table, "theirs"))],
    "the table is gone": [DeleteTable(V4.table)],
}


@pytest.mark.parametrize("harm", HARM)
def test_the_agent_mends_what_an_audit_finds(harm: str) -> None:
    world = World()
    world.agent.audits = Audits(world.agent.tables, lambda: FakeReader(world.kernel), chance=lambda: 0.5)
    world.start(*ALL)
    assert V4.table and TURN.name in world.kernel.dump(V4.table).chains
    before = {name: list(chain.rules) for name, chain in world.kernel.dump(V4.table).chains.items()}
    world.kernel.commit(HARM[harm])
    scripted(world, end=2 * PERIOD)
    with capture_logs() as logs:
        world.agent.run()
    [mended] = [log for log in logs if log["event"] == "tables_mended"]
    assert (mended["cause"], mended["by"]) == ("audit", "unknown")
    assert world.agent.repairs == 1
    after = world.kernel.dump(V4.table)
    assert after and {name: chain.rules for name, chain in after.chains.items()} == before
    assert content(after)["cluster-ips"].keys() == {bytes([10, 96, 0, n]) for n in (1, 2, 3)}


def audited(world: World, **options: Any) -> Audits:
    made = Audits(world.agent.tables, lambda: FakeReader(world.kernel), chance=lambda: 0.5, **options)
    world.agent.audits = made
    return made


def test_it_looks_every_few_minutes_and_never_in_between() -> None:
    world = World()
    audits = audited(world)
    inbox = scripted(world, (0.0, [*listing({}), *ALL]), end=3.5 * PERIOD)
    world.agent.run()
    assert audits.done == 3
    assert [wait for wait in inbox.waits if wait and wait > 1] == pytest.approx([PERIOD] * 4)
    assert {round(wait, 6) for wait in inbox.waits if wait and wait < 1} == {PAUSE}
    assert world.kernel.transactions == 1


def test_nodes_do_not_look_at_the_same_time() -> None:
    world = World().start(*ALL)
    audits = audited(world)
    times = set()
    for chance in (0.0, 0.25, 1.0):
        audits._chance = lambda chance=chance: chance  # type: ignore[misc]
        audits.postpone(1000.0)
        times.add(audits.next_at - 1000.0)
    assert times == {PERIOD * (1 - JITTER), PERIOD * (1 - JITTER / 2), PERIOD * (1 + JITTER)}


def test_what_takes_long_is_done_less_often() -> None:
    world = World().start(*ALL)
    spent = iter(range(10**6))
    audits = audited(world, spent=lambda: float(next(spent)))  # one second a step
    audits.at_once(0.0, "test")
    steps = 0
    while not audits.done:
        assert audits.step(0.0) is None
        steps += 1
    assert audits.next_at == pytest.approx((steps - 1) / SHARE)
    assert audits.next_at > PERIOD


def test_events_are_not_held_up_by_it_and_do_not_hold_it_up() -> None:
    world = World()
    audits = audited(world)
    changes = [put(endpoint_slice("web", f"10.244.0.{number % 200 + 1}")) for number in range(3000)]
    events = [(PERIOD + number * PAUSE / 3, change) for number, change in enumerate(changes)]
    scripted(world, (0.0, [*listing({}), *ALL]), *events, end=PERIOD + 20.0)
    world.agent.run()
    assert audits.done == 1
    assert world.agent.repairs == 0


def test_lost_messages_begin_one_at_once_without_pauses() -> None:
    world = World()
    audits = audited(world)
    world.start(*ALL)
    world.kernel.commit([FlushChain(V4.chain("services"))])
    inbox = scripted(world, (1.0, [TablesTouched((), "messages about changes were lost")]), end=2.0)
    with capture_logs() as logs:
        world.agent.run()
    [mended] = [log for log in logs if log["event"] == "tables_mended"]
    assert mended["cause"] == "messages about changes were lost"
    assert audits.done == 1 and set(inbox.waits[1:-1]) == {0.0}
    assert audits.next_at == 1.0 + PERIOD
    assert audits.cause == "audit"


@pytest.mark.parametrize("harm", [DeleteTable, lambda table: AddChain(Chain(table, "theirs"))], ids=["gone", "others'"])
def test_what_is_mended_in_one_table_does_not_keep_the_other_from_being_looked_at(
    harm: Callable[[Table], Operation],
) -> None:
    """A flush of which nobody was told: both are gone."""
    world = World()
    audits = audited(world)
    world.start(*ALL)
    world.kernel.commit([harm(layout.table) for layout in LAYOUTS.values()])
    scripted(world, (1.0, [TablesTouched((), "messages about changes were lost")]), end=2.0)
    world.agent.run()
    assert audits.done == 1
    for layout in LAYOUTS.values():
        table = world.kernel.dump(layout.table)
        assert table and "theirs" not in table.chains and table.chains["services"].rules


def test_messages_that_are_lost_all_the_time_do_not_keep_one_from_its_end() -> None:
    world = World()
    audits = audited(world)
    world.start(*ALL)
    audits.at_once(0.0, "lost")
    for _ in range(1000):
        audits.at_once(0.0, "lost again")
        audits.step(0.0)
    assert audits.done
    done = audits.done
    while audits.next_at == 0.0:
        audits.step(0.0)
    assert audits.done == done + 2


def test_tables_that_are_made_anew_end_an_audit() -> None:
    world = World()
    audits = audited(world)
    world.start(*ALL)
    audits.at_once(0.0, "test")
    audits.step(0.0)
    audits.step(0.0)
    world.agent.tables.forget()
    assert audits.step(5.0) is None
    assert audits.next_at == 5.0 + PERIOD and not audits.done


def test_a_reader_that_fails_ends_an_audit_and_nothing_else() -> None:
    world = World()
    audits = audited(world)
    world.start(*ALL)

    def refuse() -> Any:
        raise OSError(24, "Too many open files")

    for fault in (refuse, lambda: Broken(world.kernel)):
        audits._open_reader = fault
        audits.at_once(0.0, "test")
        with capture_logs() as logs:
            while audits.next_at == 0.0:
                assert audits.step(0.0) is None
        assert [log["event"] for log in logs] == ["audit_failed"]
        assert audits.next_at == PERIOD


class Broken(FakeReader):
    def elements(self, set_: Set) -> Iterator[list[Any]]:
        raise ValueError("attribute 1 at 0 claims 9 of 4 bytes")


def test_a_set_that_was_flushed_is_put_right_in_one_go() -> None:
    world = World()
    audited(world)
    slices = [
        endpoint_slice(f"s{n}", *(f"10.244.{n}.{i}" for i in range(1, 101)), name=f"s{n}-1") for n in range(MANY // 90)
    ]
    services = [service(f"s{n}", f"10.97.0.{n + 1}") for n in range(len(slices))]
    world.start(*put(*services, *slices))
    table = world.kernel.dump(V4.table)
    assert table
    world.kernel.commit([DeleteElement(V4.addresses.endpoints, key) for key in table.sets["endpoints"].elements])
    transactions = world.kernel.transactions
    scripted(world, end=2 * PERIOD)
    world.agent.run()
    assert world.kernel.transactions == transactions + 1
    assert len(world.kernel.dump(V4.table).sets["endpoints"].elements) == 100 * len(slices)


# The kernel's own words.


@pytest.fixture
def here(namespace: Namespace) -> tuple[Namespace, TableReader]:
    return namespace, namespace.inside(TableReader)


def of_the_kernel(namespace: Namespace) -> World:
    world = World(namespace.kernel)
    world.start(
        *ALL,
        *put(
            service(
                "guarded",
                "10.96.0.9",
                type="LoadBalancer",
                loadBalancerSourceRanges=["192.0.2.0/24", "198.51.100.0/24"],
            )
            | {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}}},
            endpoint_slice("guarded", "10.244.0.9", name="guarded-1"),
        ),
    )
    return world


RENAMED = """delete element ip kube-proxy-nft cluster-ip-ports { 10.96.0.1 . tcp . 80 }
add element ip kube-proxy-nft cluster-ip-ports { 10.96.0.1 . tcp . 80 comment "mine" : 4b50:2 }"""


@pytest.mark.root
@pytest.mark.parametrize(
    ("command", "elements", "chains", "is_rebuilt"),
    [
        ("list tables", set(), set(), False),
        ("delete element ip kube-proxy-nft cluster-ips { 10.96.0.1 }", {"cluster-ips"}, set(), False),
        ("add element ip kube-proxy-nft cluster-ips { 192.0.2.1 }", {"cluster-ips"}, set(), False),
        ("flush map ip kube-proxy-nft round-robin", {"round-robin"}, set(), False),
        ("flush set ip kube-proxy-nft allowed-sources", {"allowed-sources"}, set(), False),
        (
            RENAMED,
            {"cluster-ip-ports"},
            set(),
            False,
        ),
        ("flush map ip kube-proxy-nft endpoints", {"endpoints"}, set(), False),
        ("insert rule ip kube-proxy-nft services drop", set(), {"services"}, False),
        ("flush chain ip kube-proxy-nft turn-0", set(), {"turn-0"}, False),
        ("add rule ip kube-proxy-nft pick-special drop", set(), {"pick-special"}, False),
        ("add set ip kube-proxy-nft theirs { type ipv4_addr; }", set(), set(), True),
        ("add chain ip kube-proxy-nft output { policy drop; }", set(), set(), True),
        ("add table ip kube-proxy-nft { flags dormant; }", set(), set(), True),
        ("add element ip kube-proxy-nft cluster-ips { * }", set(), set(), True),
        ("flush ruleset", set(), set(), True),
    ],
)
def test_the_kernel_is_compared(
    here: tuple[Namespace, TableReader], command: str, elements: set[str], chains: set[str], is_rebuilt: bool
) -> None:
    namespace, reader = here
    world = of_the_kernel(namespace)
    namespace.nft("-f", "-", stdin=command)
    found = [touched for touched in findings(world.agent, reader) if touched.family is Family.IPV4]
    assert {name for touched in found for name, _ in touched.elements} == elements
    assert {name for touched in found for name in touched.chains} == chains
    assert any(touched.is_rebuilt for touched in found) == is_rebuilt
    world.agent.tables.mend(found)
    reader.close()


@pytest.mark.root
def test_changes_meanwhile_are_no_differences(here: tuple[Namespace, TableReader]) -> None:
    namespace, reader = here
    world = of_the_kernel(namespace)
    rand = random.Random(1)
    many = [service(f"s{n}", f"10.97.{n >> 8}.{n & 255}") for n in range(400)]
    world.handle(*put(*many))

    def pods(number: int) -> dict[str, Any]:
        return endpoint_slice(
            f"s{number}", *(f"10.244.{rand.randrange(200)}.{i}" for i in range(rand.randrange(1, 20)))
        )

    world.handle(*put(*(pods(n) for n in range(400))))
    for _ in range(3):
        assert findings(world.agent, reader, lambda: world.handle(*put(pods(rand.randrange(400))))) == []
    assert findings(world.agent, reader) == []
    reader.close()


@pytest.mark.root
def test_one_element_is_read_on_its_own(here: tuple[Namespace, TableReader]) -> None:
    namespace, reader = here
    of_the_kernel(namespace)
    table = namespace.kernel.dump(V4.table)
    assert table
    for set_ in V4.sets:
        for key, there in table.sets[set_.name].elements.items():
            assert reader.element(set_, key) == there
        assert reader.element(set_, b"\1" * set_.key_size) is None
    assert reader.table(V4.table) is not None
    assert set(reader.rules(V4.table, "services")) == set(table.chains["services"].rules)
    namespace.nft("flush ruleset")
    assert reader.table(V4.table) is None
    reader.close()
