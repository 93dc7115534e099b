"""The agent's loop against a fake kernel: when it commits, what it does when the kernel refuses or others interfere."""

from __future__ import annotations

import errno
import gc
import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.agent import ONCE_SECONDS, Agent
from proxy.errors import KernelTooOld, NoPermission, RulesRefused, SourceError, UserError
from proxy.events import Delete, Event, Failed, Inbox, Put, Replace, TablesTouched
from proxy.healthz import Health
from proxy.model import ENDPOINT_SLICE, KINDS, NODE, SERVICE, SERVICE_CIDR, KubeObject, convert
from proxy.node_reports import NodeReports
from proxy.object_faults import Problem
from proxy.patience import RETRY_SECONDS, TOUCHED_SECONDS
from proxy.refusals import explain
from proxy.settings import Settings
from proxy.state import State
from proxy.tables import Nftables
from rules.changes import Touched
from rules.errors import Failure, TransactionError
from rules.fake import FakeKernel
from rules.layout import LAYOUTS, Layout
from rules.objects import Family
from rules.transaction import AddElement, AddTable, DeleteElement, DeleteTable, FlushChain, Operation
from tests.histories import NODE_NAME, Cluster, listing, remember
from tests.objects import endpoint_slice, service
from tests.test_histories import content, from_scratch, in_priority

V4, V6 = LAYOUTS[Family.IPV4], LAYOUTS[Family.IPV6]


def obj(data: dict[str, Any]) -> KubeObject:
    return convert(data["kind"], data)


def put(*data: dict[str, Any]) -> list[Event]:
    return [Put(obj(one)) for one in data]


WEB = put(
    service("web", "10.96.0.1", "fd00::1"),
    endpoint_slice("web", "10.244.0.1", "10.244.0.2"),
    endpoint_slice("web", "fd44::1", name="web-6"),
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Stubborn(FakeKernel):
    """Refuses all transactions while `reason` is set. `tries` counts those too."""

    reason: Failure | None = None
    tries = 0

    def commit(self, operations: Sequence[Operation]) -> int:
        self.tries += bool(operations)
        if operations and self.reason:
            raise TransactionError((self.reason,))
        return super().commit(operations)


NO_MEMORY = Failure(None, errno.ENOMEM)


class World:
    """An agent, its kernel and clock, and what the cluster is by now."""

    def __init__(self, kernel: Any = None, **options: Any) -> None:
        self.kernel: Any = kernel or Stubborn()
        self.clock = Clock()
        self.inbox = Inbox()
        self.agent = Agent(State(NODE_NAME), self.kernel, self.inbox, clock=self.clock, **options)
        self.cluster: Cluster = {}

    def handle(self, *events: Event) -> None:
        remember(self.cluster, *events)
        self.agent.handle(events)

    def start(self, *events: Event) -> World:
        remember(self.cluster, *events)
        self.agent.handle(listing(self.cluster))
        return self

    def check(self) -> None:
        """The kernel holds what the cluster is."""
        expected = from_scratch(self.cluster, 0)
        for family, layout in LAYOUTS.items():
            found = content(self.kernel.dump(layout.table))
            assert found == expected[family]
            assert found == by_definition(layout, self.agent.state)


def by_definition(layout: Layout, state: State) -> dict[str, dict[Any, Any]]:
    """The elements for clusterIPs as rules/layout.py defines them, made the plain way."""
    sets: dict[str, dict[Any, Any]] = {set_.name: {} for set_ in layout.sets}
    for key, port in state.everything().items():
        if not port or port.family is not layout.family:
            continue
        address = key[: layout.family.address_size]
        sets["cluster-ips"][address] = (b"", "")
        for hairpin in port.hairpins:
            sets["hairpins"][hairpin + hairpin] = (b"", "")
        if port.endpoints:
            count = len(port.endpoints)
            number = count if count <= 16 else next(2**i for i in range(17) if count <= 2**i)
            sets["cluster-ip-ports"][key] = (in_priority(number, bool(port.hairpins)), port.name)
            sets["endpoints"][key, False] = frozenset(port.endpoints)
        elif port.drop:
            sets["dropped"][key] = (b"", port.name)
        else:
            sets["no-endpoints"][key] = (b"", port.name)
    return sets


def meddle(kernel: Nftables, *operations: Operation) -> None:
    """Another process changes the ruleset."""
    kernel.commit(operations)


# When it commits.


def test_nothing_is_programmed_before_services_and_slices_are_listed() -> None:
    for last in (SERVICE, ENDPOINT_SLICE):
        world = World()
        world.handle(*(Replace(kind, []) for kind in KINDS if kind != last), *WEB)
        assert world.kernel.tries == 0
        world.handle(
            Replace(last, [event.obj for event in WEB if isinstance(event, Put)][: 1 if last == SERVICE else 0])
        )
        assert world.kernel.transactions == 1


def test_a_first_sync_is_one_transaction_in_the_place_of_what_was_there() -> None:
    kernel = Stubborn()
    World(kernel).start(*WEB)
    world = World(kernel)
    world.start(*put(service("other", "10.96.0.9")))
    assert kernel.transactions == 2
    world.check()


def test_a_batch_is_one_transaction_and_what_changes_nothing_none() -> None:
    world = World().start(*WEB)
    before = world.kernel.transactions
    world.handle(*put(service("a", "10.96.0.2"), service("b", "10.96.0.3"), endpoint_slice("a", "10.244.0.9")))
    assert world.kernel.transactions == before + 1
    world.handle(*WEB, *listing(world.cluster))
    world.handle(Delete(SERVICE, "default", "unknown"), *put(service("none", "None")))
    world.handle()
    assert world.kernel.tries == before + 1
    world.check()


def test_service_cidrs_are_followed() -> None:
    world = World().start(*WEB)
    data = {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16", "fd00::/112"]}}
    for event, rules in ((Put(convert(SERVICE_CIDR, data)), 1), (Delete(SERVICE_CIDR, "", "kubernetes"), 0)):
        world.handle(event)
        for layout in (V4, V6):
            state = world.kernel.dump(layout.table)
            assert state and len(state.chains["unallocated"].rules) == rules


def test_garbage_is_collected_whether_or_not_anything_is_programmed() -> None:
    world = World()
    world.handle(Replace(SERVICE, []))
    assert gc.isenabled()
    world.kernel.reason = NO_MEMORY
    with pytest.raises(RulesRefused):
        world.handle(Replace(ENDPOINT_SLICE, []))
    assert gc.isenabled()


# The loop.


class Script(Inbox):
    """An inbox whose events come at set times of the clock; it is closed at the end. `waits`: how long it was asked to."""

    def __init__(self, clock: Clock, *timed: tuple[float, list[Event]], end: float = 1e9) -> None:
        super().__init__()
        self.clock, self.timed, self.end = clock, list(timed), end
        self.waits: list[float | None] = []

    def take(self, timeout: float | None = None) -> list[Event]:
        self.waits.append(timeout)
        due = self.timed[0][0] if self.timed else self.end
        if timeout is not None and self.clock.now + timeout < due:
            self.clock.now += timeout
            return []
        self.clock.now = max(due, self.clock.now)
        if not self.timed:
            self.close()
            return []
        return self.timed.pop(0)[1]


def scripted(world: World, *timed: tuple[float, list[Event]], end: float = 1e9) -> Script:
    world.agent.inbox = inbox = Script(world.clock, *timed, end=end)
    for _, events in timed:
        remember(world.cluster, *events)
    return inbox


def test_it_waits_for_events_without_a_timer() -> None:
    world = World()
    inbox = scripted(world, (0.0, listing({})), (1.0, WEB))
    world.agent.run()
    assert inbox.waits == [None, None, None]
    assert world.kernel.transactions == 2
    world.check()


def test_it_ends_when_the_inbox_is_closed() -> None:
    world = World()
    thread = threading.Thread(target=world.agent.run)
    thread.start()
    world.inbox.close()
    thread.join(10)
    assert not thread.is_alive()


def test_the_first_sync_waits_a_little_for_the_node() -> None:
    for last in (NODE, SERVICE_CIDR):
        world = World(grace=2.0)
        world.handle(*(Replace(kind, []) for kind in KINDS if kind != last), *WEB)
        assert not world.kernel.tries
        world.handle(Replace(last, []))
        assert world.kernel.tries == 1


def test_the_first_sync_does_not_wait_for_ever_for_the_node() -> None:
    world = World(grace=2.0)
    script = scripted(world, (1.0, [Replace(SERVICE, []), Replace(ENDPOINT_SLICE, []), *WEB]), (60.0, []))
    world.agent.inbox = script
    world.agent.run()
    assert world.kernel.tries == 1
    assert script.waits[:3] == [None, 2.0, None]


def test_waiting_for_pod_cidrs_is_no_busy_loop() -> None:
    world = World(grace=2.0, settings=Settings(node_cidr=True))
    lists = [Replace(kind, []) for kind in KINDS]
    script = scripted(world, (1.0, lists), (60.0, put({"kind": "Node", "metadata": {"name": "other"}})), (90.0, []))
    world.agent.inbox = script
    with capture_logs() as logs:
        world.agent.run()
    assert not world.kernel.tries
    assert [log["event"] for log in logs] == ["waiting_for_pod_cidrs"]
    assert script.waits[1:] == [None] * len(script.waits[1:])


def test_a_node_of_one_family_has_one_table() -> None:
    for family, other in ((Family.IPV4, Family.IPV6), (Family.IPV6, Family.IPV4)):
        world = World(families=[family]).start(*WEB)
        world.handle(
            *put(service("new", "10.96.0.9", "fd00::9")),
            Replace(SERVICE_CIDR, [obj_cidr("10.96.0.0/12", "fd00::/108")]),
        )
        assert world.kernel.dump(LAYOUTS[other].table) is None
        expected = from_scratch(world.cluster, 0)
        assert content(world.kernel.dump(LAYOUTS[family].table)) == expected[family]


# What it tells others.


def test_health_follows_the_kernel() -> None:
    health = Health(60.0)
    world = World(health=health)
    world.handle(Replace(SERVICE, []))
    world.clock.now = 1000.0
    assert (
        health.status(1000.0).works and not health.status(1000.0).programmed
    )  # an API server that is away is no fault of ours
    world.start(*WEB)
    assert health.status(1000.0).programmed
    world.kernel.reason = NO_MEMORY
    world.handle(*put(service("new", "10.96.0.9")))
    assert health.status(1059.0).works and not health.status(1061.0).works
    world.kernel.reason = None
    world.clock.now = 1100.0
    world.handle()
    assert health.status(2000.0).works


class Told(NodeReports):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[str, Any]] = []

    def sync_failed(self, cause: str, now: float) -> None:
        self.said.append(("failed", now))

    def sync_works(self, now: float) -> None:
        self.said.append(("works", now))

    def conflicts(self, problems: Sequence[Problem]) -> None:
        self.said += [("conflict", problem.name) for problem in problems]


def test_reports_hear_of_failures_and_of_conflicts() -> None:
    told = Told()
    world = World(reports=told).start(*WEB)
    world.kernel.reason = NO_MEMORY
    world.clock.now = 5.0
    world.handle(*put(service("new", "10.96.0.9")))
    world.kernel.reason = None
    world.clock.now = 9.0
    world.handle(
        *put(
            service("zorro", "10.96.0.1"),
            {"kind": "Service", "metadata": {"name": "bad"}, "spec": {"clusterIP": "x", "ports": [{"port": 1}]}},
        )
    )
    assert told.said == [("works", 0.0), ("failed", 5.0), ("works", 9.0), ("conflict", "zorro")]


def test_once_ends_when_all_kinds_are_listed() -> None:
    world = World()
    first = [Replace(SERVICE, []), Replace(ENDPOINT_SLICE, []), *WEB]
    scripted(world, (0.0, list(first)), (1.0, [Replace(NODE, [])]), (2.0, [Replace(SERVICE_CIDR, [])]), (3.0, []))
    world.agent.run(once=True)
    assert world.clock.now == 2.0
    world.check()


def test_once_does_not_wait_for_ever_for_what_is_not_needed() -> None:
    world = World()
    scripted(world, (5.0, [Replace(SERVICE, []), Replace(ENDPOINT_SLICE, [])]))
    world.agent.run(once=True)
    assert world.clock.now == 5.0 + ONCE_SECONDS


def test_a_source_that_fails_ends_the_agent() -> None:
    error = SourceError("directory", "it burns")
    with pytest.raises(SourceError) as raised:
        World().handle(Failed(error))
    assert raised.value is error


# A kernel that refuses.


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure(AddTable(V4.table), errno.EPERM), NoPermission),
        (Failure(None, errno.EMSGSIZE, "too large"), NoPermission),
        (Failure(None, errno.EOPNOTSUPP), KernelTooOld),
        (Failure(AddTable(V4.table), errno.ENOENT, "numgen"), KernelTooOld),
        (Failure(AddTable(V4.table), errno.ENOENT, "unheard-of"), KernelTooOld),
        (Failure(None, errno.ENOBUFS, "more errors than the receive buffer holds"), RulesRefused),
        (NO_MEMORY, RulesRefused),
    ],
)
def test_the_first_sync_refused_ends_the_agent_with_a_reason(failure: Failure, kind: type[UserError]) -> None:
    world = World()
    world.kernel.reason = failure
    with pytest.raises(kind) as raised:
        world.start(*WEB)
    assert world.kernel.tries <= 3  # what is refused might have been a service port
    assert "\n" not in str(raised.value)
    assert type(explain(TransactionError((failure,)))) is kind


def test_a_change_that_finds_the_table_changed_is_made_with_what_mends_that() -> None:
    world = World().start(*WEB)
    meddle(
        world.kernel, AddElement(V4.addresses.endpoints, V4_KEY_OF_NEW + bytes(4), bytes(8))
    )  # what the change wants to add
    with capture_logs() as logs:
        world.handle(*put(service("new", "10.96.0.2"), endpoint_slice("new", "10.244.0.9")))
    assert not [log for log in logs if log["log_level"] != "debug"] and not world.agent.sync_failures
    world.check()
    tries = world.kernel.tries
    world.handle(*put(service("newer", "10.96.0.3")))
    assert world.kernel.tries == tries + 1  # all is well again: a change, not a replacement
    world.check()


V4_KEY_OF_NEW = bytes([10, 96, 0, 2, 6, 0, 0, 0, 0, 80, 0, 0])


def test_a_kernel_that_goes_on_refusing_is_asked_ever_more_slowly_and_nothing_is_lost() -> None:
    world = World().start(*WEB)
    world.kernel.reason = NO_MEMORY
    world.kernel.tries = 0
    changes = put(service("new", "10.96.0.2"), endpoint_slice("new", "10.244.0.9"))
    inbox = scripted(world, (0.0, changes[:1]), (5.0, changes[1:]), end=60.0)
    with capture_logs() as logs:
        world.agent.run()
    assert [log["seconds"] for log in logs] == [*RETRY_SECONDS[1:], RETRY_SECONDS[-1]]
    assert world.kernel.tries == len(logs)
    # Not disturbed by what came at 5.0: the try at 2.6 stays followed by that at 12.6.
    assert [wait for wait in inbox.waits if wait] == pytest.approx([0.1, 0.5, 2.0, 10.0, 7.6, 30.0, 30.0])


def test_who_stood_in_the_way_may_have_gone_when_others_have_been_at_the_tables() -> None:
    world = World().start(*WEB)
    world.kernel.reason = NO_MEMORY
    changes = put(service("new", "10.96.0.2"))
    inbox = scripted(world, (0.0, changes), (5.0, [TablesTouched((Touched(Family.IPV4, is_rebuilt=True),))]), end=10.0)
    world.agent.run()
    assert [wait for wait in inbox.waits if wait][:5] == pytest.approx([0.1, 0.5, 2.0, 10.0, TOUCHED_SECONDS])


def test_a_refused_table_comes_back_with_all_that_happened_meanwhile() -> None:
    world = World().start(*WEB)
    world.kernel.reason = NO_MEMORY
    world.handle(*put(service("new", "10.96.0.2")))
    world.handle(*put(endpoint_slice("new", "10.244.0.9")))
    world.handle(Delete(SERVICE, "default", "web"))
    world.handle(Replace(SERVICE_CIDR, [obj_cidr("10.96.0.0/12")]))
    world.kernel.reason = None
    world.clock.now += RETRY_SECONDS[-1]
    world.handle()
    world.check()
    state = world.kernel.dump(V4.table)
    assert state and len(state.chains["unallocated"].rules) == 1
    world.handle(*WEB)
    world.check()


def obj_cidr(*cidrs: str) -> KubeObject:
    return convert(SERVICE_CIDR, {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": list(cidrs)}})


def test_a_flood_of_events_is_no_flood_of_replacements() -> None:
    world = World().start(*WEB)
    world.kernel.reason = NO_MEMORY
    world.kernel.tries = 0
    for number in range(1000):
        world.handle(*put(service(f"s{number}", f"10.97.{number >> 8}.{number & 255}")))
    assert world.kernel.tries == 1
    world.kernel.reason = None
    world.clock.now += RETRY_SECONDS[1]
    world.handle()
    assert world.kernel.tries == 2
    world.check()


def test_patience_starts_anew_after_a_success() -> None:
    world = World().start(*WEB)
    for name in ("a", "b"):
        world.kernel.reason = NO_MEMORY
        world.handle(*put(service(name, f"10.96.1.{ord(name)}")))
        world.clock.now += RETRY_SECONDS[1]
        world.kernel.reason = None
        world.handle()
        world.check()


# Others change the ruleset.


@pytest.mark.parametrize(
    ("gone", "change"),
    [
        ([V4, V6], "10.96.0.2"),
        ([V4, V6], "fd00::2"),
        ([V4], "10.96.0.2"),
        ([V6], "fd00::2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(layout.family.nft for layout in value),
)
def test_a_table_that_was_deleted_comes_back_with_the_next_change(gone: list[Any], change: str) -> None:
    world = World().start(*WEB)
    meddle(world.kernel, *(DeleteTable(layout.table) for layout in gone))
    world.handle(*put(service("new", change)))
    world.check()


def test_a_table_that_was_deleted_comes_back_with_new_service_cidrs() -> None:
    world = World().start(*WEB)
    meddle(world.kernel, DeleteTable(V4.table), DeleteTable(V6.table))
    world.handle(Put(obj_cidr("10.96.0.0/12")))
    world.check()


def test_an_element_that_was_deleted_comes_back_when_its_service_changes() -> None:
    world = World().start(*WEB)
    key = bytes([10, 96, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0])
    meddle(world.kernel, DeleteElement(V4.cluster_ip_ports, key))
    world.handle(*put(endpoint_slice("web", "10.244.0.1")))
    world.check()
    meddle(
        world.kernel,
        DeleteElement(V4.addresses.endpoints, key + bytes(4)),
        DeleteElement(V4.cluster_ip_ports, key),
    )
    world.handle(Delete(SERVICE, "default", "web"))
    world.check()


def test_an_element_that_was_changed_is_set_right_when_its_service_goes() -> None:
    world = World().start(*WEB)
    key = bytes([10, 96, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0]) + bytes(4)
    meddle(world.kernel, DeleteElement(V4.addresses.endpoints, key), AddElement(V4.addresses.endpoints, key, bytes(8)))
    world.handle(Delete(SERVICE, "default", "web"))
    world.check()


def test_a_chain_that_was_flushed_does_not_disturb() -> None:
    world = World().start(*WEB)
    meddle(world.kernel, FlushChain(V4.unallocated))
    world.handle(*put(service("new", "10.96.0.2")))
    world.check()


# What is logged.


def left_out(logs: Sequence[Any]) -> list[str]:
    return [log["object"].partition("/")[2] for log in logs if log["event"] == "object_left_out"]


def test_a_problem_is_logged_once_and_again_when_it_is_another() -> None:
    bad = put(service("bad", "10.96.0.256"), endpoint_slice("web", "10.244.0.300", name="bad-slice"))
    world = World().start(*WEB)
    with capture_logs() as logs:
        world.handle(*bad)
        assert left_out(logs) == ["bad", "bad-slice"]
        world.handle(*bad, *listing(world.cluster))
        world.handle(*listing(world.cluster))
        assert left_out(logs) == ["bad", "bad-slice"]
        world.handle(*put(service("bad", "10.96.0.257")))
        assert left_out(logs) == ["bad", "bad-slice", "bad"]
        world.handle(*put(service("bad", "10.96.0.7")), *bad[:1])  # mended, and broken again
        assert left_out(logs)[3:] == ["bad"]
        world.handle(Delete(SERVICE, "default", "bad"), *bad[:1])
        assert left_out(logs)[4:] == ["bad"]
    world.check()


def test_a_problem_is_logged_once_also_when_the_kernel_refuses() -> None:
    world = World().start(*WEB)
    world.kernel.reason = NO_MEMORY
    with capture_logs() as logs:
        world.handle(*put(service("bad", "10.96.0.256")))
        world.clock.now += 60
        world.kernel.reason = None
        world.handle()
    assert left_out(logs) == ["bad"]


def test_a_conflict_is_logged_once() -> None:
    world = World()
    with capture_logs() as logs:
        world.start(*WEB, *put(service("xerox", "10.96.0.1")))
        world.handle(*listing(world.cluster))
    assert left_out(logs) == ["xerox"]


def test_a_conflict_is_logged_once_also_when_one_of_the_two_changes() -> None:
    world = World()
    with capture_logs() as logs:
        world.start(*WEB, *put(service("xerox", "10.96.0.1")))
        world.handle(*put(service("xerox", "10.96.0.1", internalTrafficPolicy="Local")))
        world.handle(*put(service("web", "10.96.0.1", "fd00::1", internalTrafficPolicy="Local")))
    assert left_out(logs) == ["xerox"]


def test_an_address_that_passes_to_another_service_between_two_lists_is_no_conflict() -> None:
    world = World().start(*WEB)
    heir = obj(service("heir", "10.96.0.1", "fd00::1"))
    with capture_logs() as logs:
        world.handle(Replace(SERVICE, [heir]))
    assert left_out(logs) == []
    world.check()


def test_too_many_endpoints_are_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.state.MAX_ENDPOINTS", 2)
    world = World()
    with capture_logs() as logs:
        world.start(*WEB, *put(endpoint_slice("web", "10.244.0.3", name="web-2")))
        world.handle(*put(endpoint_slice("web", "10.244.0.4", name="web-2")))
    assert left_out(logs) == ["web"]


# Many changes.


def test_random_changes_leave_what_the_layout_defines() -> None:
    world = World().start()
    rand = random.Random(11)

    def pod() -> dict[str, Any]:
        return {"addresses": [f"10.244.0.{rand.randrange(1, 9)}"], "nodeName": rand.choice([NODE_NAME, "node1"])}

    for _ in range(400):
        number = rand.randrange(5)
        name = f"s{number}"
        ports = rand.choice([None, [{"name": "http", "port": 80}, {"name": "more", "port": 81}]])
        policy = rand.choice(["Cluster", "Local"])
        one = service(name, f"10.96.0.{number // 2 + 1}", ports=ports, internalTrafficPolicy=policy)
        other = endpoint_slice(name, *(pod() for _ in range(rand.randrange(6))), name=f"{name}-{rand.randrange(2)}")
        gone = Delete(*rand.choice([(SERVICE, "default", name), (ENDPOINT_SLICE, "default", f"{name}-0")]))
        world.handle(rand.choice([*put(one, one, other, other, other), gone]))
        world.check()


def test_endpoints_that_come_and_go_leave_what_a_fresh_start_gives() -> None:
    world = World().start(*WEB)
    rand = random.Random(7)
    for _ in range(200):
        pods = rand.sample(range(1, 13), rand.randrange(13))
        world.handle(*put(endpoint_slice("web", *(f"10.244.0.{pod}" for pod in pods))))
        world.check()


def test_what_stays_keeps_its_number() -> None:
    pods = [{"addresses": [f"10.244.0.{pod}"], "nodeName": "node1"} for pod in range(1, 11)]
    *pods, other, third = pods
    world = World().start(WEB[0], *put(endpoint_slice("web", *pods)))

    def changed(*now: dict[str, Any]) -> int:
        before = world.kernel.operations
        world.handle(*put(endpoint_slice("web", *now)))
        world.check()
        return world.kernel.operations - before

    assert changed(*reversed(pods)) == 0
    assert changed(*pods[1:], other) == 2  # in the place of the one that went
    assert changed(*pods[2:], other) == 5  # the last one fills the gap, and there is one less
    assert changed(third, *pods[2:], other) == 3
