"""One service port that the kernel refuses does not keep the others from being programmed, and is not tried all the time."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from docs import generate_refusals
from proxy.events import Event
from proxy.refusals import report
from proxy.settings import Settings
from proxy.state import State
from rules.diff import Programmed, scratch
from rules.dump import ChainState, SetState, TableState
from rules.elements import ServicePort, endpoint, node_port_key, service_key
from rules.errors import Failure, TransactionError
from rules.fake import FakeKernel
from rules.judgement import Action, judge, service_key_of
from rules.kernel import Kernel
from rules.layout import LAYOUTS, Options
from rules.netlink import BATCH_BEGIN, BATCH_END, NEWTABLE, NLM_F_CREATE, batch_mark, message, text, u32
from rules.objects import Family
from rules.refusals import FIRST_WAIT, LONGEST_WAIT, TRIES, Refusals, Settled, settle, settle_as_one
from rules.rehearsal import rehearse
from rules.tables import create
from rules.transaction import AddElement, AddRule, AddSet, AddTable, DeleteElement, DeleteTable, Operation
from rules.wire import group_of
from tests.histories import BATCHES, NODE_NAME
from tests.netns import Namespace
from tests.test_histories import Content, as_settled, content, without_empty

V4, V6 = LAYOUTS[Family.IPV4], LAYOUTS[Family.IPV6]
Refuse = Callable[[Operation], int]
EXAMPLES: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def nothing(operation: Operation) -> int:
    return 0


class Choosy(FakeKernel):
    """Refuses the operations for which `refuses` gives an errno: the first one of each message, as the kernel does.

    names: it says which of the elements in a message it was (Linux 5.19 and newer).
    """

    def __init__(self, refuses: Refuse = nothing, *, names: bool = True) -> None:
        super().__init__()
        self.refuses, self.names = refuses, names
        self.tries = 0

    def commit(self, operations: Sequence[Operation]) -> int:
        self.tries += bool(operations)
        failures = []
        for _, group in groupby(operations, group_of):
            message = list(group)
            for operation in message:
                if number := self.refuses(operation):
                    if self.names or len(message) == 1 or not isinstance(operation, AddElement | DeleteElement):
                        failures.append(Failure(operation, number))
                    else:
                        detail = f"one of {len(message)} elements of {operation.set.name}"
                        failures.append(Failure(None, number, detail))
                    break
        if failures:
            raise TransactionError(tuple(failures))
        return super().commit(operations)


CREATE = [operation for layout in LAYOUTS.values() for operation in create(layout, Options(), ())]
MADE = FakeKernel()
MADE.commit(CREATE)


def empty_tables() -> dict[tuple[Family, str], TableState]:
    """What CREATE makes, without the time that it takes."""
    return {
        name: TableState(
            {n: SetState(s.type, s.data_type, s.flags, dict(s.elements)) for n, s in table.sets.items()},
            {n: ChainState(c.hook, list(c.rules)) for n, c in table.chains.items()},
        )
        for name, table in MADE._tables.items()
    }


class Node:
    """The two tables in a kernel, and what is left out of them: what the agent does, without the rest of it."""

    def __init__(self, kernel: Any, wanted: Mapping[bytes, ServicePort] | None = None) -> None:
        self.kernel, self.refusals, self.now = kernel, Refusals(), 0.0
        self.programmed = {family: Programmed(family) for family in Family}
        self.addresses: dict[Family, frozenset[bytes]] = {family: frozenset() for family in Family}
        if isinstance(kernel, FakeKernel):
            kernel._tables = empty_tables()
        else:
            kernel.commit(CREATE)
        self.said: list[str] = []
        if wanted:
            self.change(wanted)

    def attempt(self, ports: Mapping[bytes, ServicePort | None]) -> TransactionError | None:
        plans = {
            family: programmed.plan({k: p for k, p in ports.items() if family_of(k) is family}, self.addresses[family])
            for family, programmed in self.programmed.items()
        }
        try:
            self.kernel.commit([operation for plan in plans.values() for operation in plan.operations])
        except TransactionError as error:
            return error
        for family, plan in plans.items():
            self.programmed[family].accept(plan)
        return None

    def change(self, wanted: Mapping[bytes, ServicePort | None], **options: Any) -> Settled:
        first, again = self.refusals.divide(wanted, self.now)
        settled = settle(first, self.attempt, again, **options)
        news = self.refusals.note(settled, {**first, **again}, self.now)
        self.said += [f"- {aside.port.name if aside.port else 'gone'}" for aside in news.refused]
        self.said += [f"+ {aside.port.name if aside.port else 'gone'}" for aside in news.taken]
        return settled

    def check(self, wanted: Mapping[bytes, ServicePort | None]) -> None:
        """The kernel holds what was wanted, but for what is left out."""
        ports = [port for key, port in wanted.items() if port and key not in self.refusals.aside]
        for family, layout in LAYOUTS.items():
            expected = from_scratch(family, [p for p in ports if p.family is family], self.addresses[family])
            assert without_empty(content(self.kernel.dump(layout.table))) == without_empty(expected)


def family_of(key: bytes) -> Family:
    return ServicePort(key, "").family


def from_scratch(family: Family, ports: Sequence[ServicePort], addresses: frozenset[bytes]) -> Content:
    found: Content = {set_.name: {} for set_ in LAYOUTS[family].sets}
    chains: dict[str, ChainState] = {}
    for operation in scratch(family, ports, addresses).operations:
        if isinstance(operation, AddRule):
            chains.setdefault(operation.rule.chain.name, ChainState()).rules.append(operation.rule.expressions)
        if isinstance(operation, AddElement):
            value = (operation.data or operation.end, operation.comment)
            found.setdefault(operation.set.name, {})[operation.key] = value
    return as_settled(found, chains)


def port(number: int, *pods: int, **more: Any) -> ServicePort:
    """The service port 10.96.x.y:80 with these pods."""
    address = bytes([10, 96, number >> 8, number & 255])
    endpoints = tuple(endpoint(bytes([10, 244, 0, pod]), 8080) for pod in pods)
    return ServicePort(service_key(address, 6, 80), f"default/s{number}", endpoints, **more)


def ports(*many: ServicePort) -> dict[bytes, ServicePort]:
    return {one.key: one for one in many}


def of(*bad: int, number: int = errno.EINVAL) -> Refuse:
    """Refuses to add any element of these service ports."""
    keys = {port(n).key for n in bad}
    return lambda o: number if isinstance(o, AddElement) and service_key_of(o) in keys else 0


def numbers(settled: Settled) -> list[int]:
    return sorted(int.from_bytes(key[2:4]) for key in settled.refused)


# What a failure is about, and what is to be done.

KEY = port(1).key
ELEMENT = AddElement(V4.cluster_ip_ports, KEY)
RULE = AddRule(V4.addresses.turn_rules(False, 0, 2)[0])


@pytest.mark.parametrize(
    ("failures", "action", "if_fresh"),
    [
        ([Failure(ELEMENT, errno.EINVAL)], Action.LEAVE_OUT, Action.LEAVE_OUT),
        ([Failure(ELEMENT, errno.ENFILE)], Action.LEAVE_OUT, Action.LEAVE_OUT),
        ([Failure(ELEMENT, errno.ENOSPC)], Action.LEAVE_OUT, Action.LEAVE_OUT),
        ([Failure(ELEMENT, errno.EOPNOTSUPP)], Action.LEAVE_OUT, Action.LEAVE_OUT),
        ([Failure(None, errno.ENOSPC, "one of 9 elements of endpoints")], Action.LEAVE_OUT, Action.LEAVE_OUT),
        ([Failure(ELEMENT, errno.EEXIST)], Action.MEND, Action.LEAVE_OUT),
        ([Failure(ELEMENT, errno.EBUSY)], Action.MEND, Action.LEAVE_OUT),
        ([Failure(DeleteElement(ELEMENT.set, KEY), errno.ENOENT)], Action.MEND, Action.LEAVE_OUT),
        ([Failure(None, errno.ENOENT, "one of 9 elements of endpoints")], Action.MEND, Action.LEAVE_OUT),
        ([Failure(RULE, errno.ENOENT)], Action.MEND, Action.LEAVE_OUT),
        ([Failure(RULE, errno.ENOENT, "lookup")], Action.MEND, Action.LEAVE_OUT),
        ([Failure(RULE, errno.ENOENT, "numgen")], Action.LEAVE_OUT, Action.LEAVE_OUT),
        ([Failure(AddSet(ELEMENT.set), errno.EEXIST)], Action.MEND, Action.LEAVE_OUT),
        ([Failure(None, errno.ENOMEM)], Action.AGAIN, Action.AGAIN),
        ([Failure(ELEMENT, errno.ENOMEM)], Action.AGAIN, Action.AGAIN),
        ([Failure(None, errno.EAGAIN)], Action.AGAIN, Action.AGAIN),
        ([Failure(None, errno.EINTR)], Action.AGAIN, Action.AGAIN),
        ([Failure(None, errno.EBUSY)], Action.AGAIN, Action.AGAIN),
        ([Failure(None, errno.EOPNOTSUPP)], Action.AGAIN, Action.AGAIN),
        ([Failure(None, errno.EIO)], Action.AGAIN, Action.AGAIN),
        ([Failure(None, errno.ENOBUFS, "9 bytes do not fit")], Action.AGAIN, Action.AGAIN),
        ([Failure(None, errno.EMSGSIZE, "9 bytes do not fit")], Action.LEAVE_OUT, Action.AGAIN),
        ([Failure(None, errno.EPERM)], Action.DENIED, Action.DENIED),
        ([Failure(AddTable(V4.table), errno.EPERM)], Action.DENIED, Action.DENIED),
        # The first counts: the others may follow from it.
        ([Failure(AddSet(ELEMENT.set), errno.EINVAL), Failure(ELEMENT, errno.ENOENT)], Action.LEAVE_OUT, None),
        ([Failure(ELEMENT, errno.ENOENT), Failure(ELEMENT, errno.EINVAL)], Action.MEND, None),
        ([Failure(None, errno.ENOBUFS, "more errors"), Failure(ELEMENT, errno.EINVAL)], Action.LEAVE_OUT, None),
    ],
)
def test_what_is_done_about_a_refusal(failures: list[Failure], action: Action, if_fresh: Action | None) -> None:
    error = TransactionError(tuple(failures))
    assert judge(error)[0] is action
    assert judge(error, fresh=True)[0] is (if_fresh or judge(error, fresh=True)[0])


def test_an_owner_is_told_from_a_lack_of_permission() -> None:
    assert "CAP_NET_ADMIN" in judge(TransactionError((Failure(None, errno.EPERM),)))[1]
    assert "owner" in judge(TransactionError((Failure(ELEMENT, errno.EPERM),)))[1]


def test_an_element_tells_its_service_port() -> None:
    node_port = node_port_key(Family.IPV6, 17, 30080)
    wanted = [
        port(1, 1, 2, external=True, local_policy=True, local=(endpoint(bytes([10, 244, 0, 1]), 1),), timeout=60),
        port(2, 1, external=True, sources=((bytes(4), bytes(4)),), identity=7),
        ServicePort(node_port, "", (endpoint(bytes(16), 1),)),
    ]
    for one in wanted:
        found = {service_key_of(o) for o in scratch(one.family, [one]).operations if isinstance(o, AddElement)}
        assert found - {None} == {one.key}
    common = (V4.cluster_ips, V4.external_ips, V4.nodeport_ips, V4.hairpins)
    for set_ in common:
        assert service_key_of(AddElement(set_, bytes(set_.key_size))) is None
    assert service_key_of(RULE) is None and service_key_of(None) is None


# One round.


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("bad", [[], [3], [0], [19], [3, 4, 11], list(range(20))])
def test_the_others_are_programmed(names: bool, bad: list[int]) -> None:
    kernel = Choosy(of(*bad), names=names)
    node = Node(kernel)
    wanted = ports(*(port(n, n + 1, n + 2) for n in range(20)))
    settled = node.change(wanted, tries=100)
    assert numbers(settled) == bad
    assert settled.done == {key: None if key in settled.refused else wanted[key] for key in wanted}
    assert len(node.refusals) == node.refusals.total == len(bad)
    assert node.said == [f"- default/s{n}" for n in bad] or sorted(node.said) == sorted(f"- default/s{n}" for n in bad)
    node.check(wanted)


def test_what_was_there_before_is_taken_away() -> None:
    kernel = Choosy()
    node = Node(kernel, ports(port(1, 1), port(2, 2)))
    kernel.refuses = of(1)
    changed = ports(port(1, 1, 5), port(2, 2, 5))
    assert numbers(node.change(changed)) == [1]
    node.check(changed)
    state = kernel.dump(V4.table)
    assert state and {key[:4] for key in state.sets["endpoints"].elements} == {port(2).key[:4]}


def test_what_cannot_even_be_taken_away_is_left_alone_and_tried_again() -> None:
    kernel = Choosy()
    node = Node(kernel, ports(port(1, 1), port(2, 2)))
    kernel.refuses = lambda o: errno.EINVAL if service_key_of(o) == KEY else 0
    settled = node.change({**ports(port(2, 3)), KEY: None})
    assert numbers(settled) == [1] and KEY not in settled.done
    assert node.said == ["- gone"]
    state = kernel.dump(V4.table)
    assert state and [key[:4] for key in state.sets["cluster-ip-ports"].elements].count(KEY[:4]) == 1
    kernel.refuses = nothing
    node.now += FIRST_WAIT
    node.change({})
    node.check(ports(port(2, 3)))
    assert not node.refusals.aside and node.refusals.retry_at is None


def test_a_refusal_that_has_no_name_is_found_by_halves() -> None:
    """A hairpin belongs to whoever has the endpoint: the kernel names it, but not whose it is."""
    pod = bytes([10, 244, 0, 9])
    kernel = Choosy(lambda o: errno.EINVAL if isinstance(o, AddElement) and o.key == pod + pod else 0)
    node = Node(kernel)
    wanted = ports(*(port(n, n % 50 + 10, 9, hairpins=(pod,) if n % 50 == 7 else ()) for n in range(200)))
    assert numbers(node.change(wanted)) == [7, 57, 107, 157]
    node.check(wanted)
    assert kernel.tries < 70


def test_a_chain_or_set_that_some_service_ports_need_is_no_reason_to_leave_out_others() -> None:
    """The kernel has lost the module for hashes: who wants one is left out."""

    def refuses(operation: Operation) -> int:
        name = getattr(operation, "rule", None) and operation.rule.chain.name  # type: ignore[union-attr]
        return errno.ENOENT if name and "sticky" in name and isinstance(operation, AddRule) else 0

    class Lost(Choosy):
        def commit(self, operations: Sequence[Operation]) -> int:
            try:
                return super().commit(operations)
            except TransactionError as error:
                failures = [Failure(f.operation, f.errno, "dynset-of-the-future") for f in error.failures]
                raise TransactionError(tuple(failures)) from None

    node = Node(Lost())
    node.kernel.refuses = refuses
    wanted = ports(*(port(n, 1, 2, timeout=60 if n == 5 else 0, identity=n + 1) for n in range(9)))
    assert numbers(node.change(wanted)) == [5]
    node.check(wanted)


def test_what_belongs_to_no_service_port_blames_none() -> None:
    """A NodePort address is refused, and the kernel does not say so."""
    kernel = Choosy(lambda o: errno.EINVAL if isinstance(o, AddElement) and o.set.name == "nodeport-ips" else 0)
    for wanted in ({}, ports(port(1, 1)), ports(port(1, 1), port(2, 1))):
        node = Node(kernel)
        node.addresses[Family.IPV4] = frozenset([bytes([192, 0, 2, 1])])
        settled = node.change(wanted)
        assert settled.stopped and not settled.refused and settled.left == wanted.keys()
        assert not node.refusals.aside


@pytest.mark.parametrize(
    "failure",
    [
        Failure(None, errno.ENOMEM),
        Failure(None, errno.EPERM),
        Failure(ELEMENT, errno.EEXIST),
        Failure(DeleteElement(ELEMENT.set, KEY), errno.ENOENT),
    ],
)
def test_what_is_no_objects_fault_stops_at_once(failure: Failure) -> None:
    errors = [TransactionError((failure,))]
    settled = settle(ports(port(1, 1), port(2, 2)), lambda part: errors.pop(), ports(port(3, 3)))
    assert settled.stopped and not settled.refused and not settled.undecided and not settled.done
    assert settled.left == {port(n).key for n in (1, 2, 3)}
    refusals = Refusals()
    refusals.note(settled, {}, 0.0)
    assert refusals.errors == {errno.errorcode[failure.errno]: 1}
    assert refusals.retry_at is None


def test_memory_that_ends_in_the_midst_leaves_what_is_done_and_what_is_to_do() -> None:
    kernel = Choosy(of(7), names=False)
    node = Node(kernel)
    wanted = ports(*(port(n, 1) for n in range(8)))
    attempt, attempts = node.attempt, []

    def short(part: Mapping[bytes, ServicePort | None]) -> TransactionError | None:
        attempts.append(part)
        return TransactionError((Failure(None, errno.ENOMEM),)) if len(attempts) == 5 else attempt(part)

    settled = settle(wanted, short)
    assert settled.stopped and len(settled.done) == 4 and len(settled.left) == 4
    assert settled.done.keys() | settled.left == wanted.keys()
    node.check({key: wanted[key] for key in settled.done})


def test_parts_that_fit_the_send_buffer_are_committed_and_one_that_never_does_is_left_out() -> None:
    class Small(Choosy):
        def commit(self, operations: Sequence[Operation]) -> int:
            if len(operations) > 40 and not isinstance(operations[0], AddTable):
                raise TransactionError((Failure(None, errno.EMSGSIZE, "too many bytes"),))
            return super().commit(operations)

    node = Node(Small())
    wanted = ports(*(port(n, *range(1, 60 if n == 5 else 9)) for n in range(12)))
    assert numbers(node.change(wanted)) == [5]
    node.check(wanted)


def test_a_full_map_costs_a_bounded_number_of_tries_and_the_rest_is_tried_again() -> None:
    node = Node(Choosy())
    room = 300

    def refuses(operation: Operation) -> int:
        elements = node.kernel.dump(V4.table).sets["endpoints"].elements
        full = (
            isinstance(operation, AddElement) and operation.set.name == "endpoints" and len(elements) + added[0] >= room
        )
        if isinstance(operation, AddElement) and operation.set.name == "endpoints":
            added[0] += 1
        return errno.ENFILE if full else 0

    class Full(Choosy):
        def commit(self, operations: Sequence[Operation]) -> int:
            added[0] = 0
            return super().commit(operations)

    added = [0]
    node = Node(Full(refuses))
    wanted = ports(*(port(n, 1, 2) for n in range(1000)))
    settled = node.change(wanted)
    assert node.kernel.tries <= 2 * TRIES
    assert len(settled.done) > 100
    assert len(settled.refused) and len(settled.undecided) and len(settled.refused) + len(settled.undecided) < 1000
    node.check(wanted)
    for _ in range(100):
        assert node.refusals.retry_at is not None
        node.now = node.refusals.retry_at
        node.change({})
        node.check(wanted)
        if all(aside.failure for aside in node.refusals.aside.values()):
            break
    else:
        raise AssertionError("it never comes to an end")
    assert not [line for line in node.said if line[0] == "+"]
    assert len(node.refusals) == 1000 - room // 2
    room = 10_000
    node.now += 2 * LONGEST_WAIT + 1000
    for _ in range(3):
        node.change({})
        node.now += 1000
    assert not node.refusals.aside
    node.check(wanted)


def test_whole_tables_are_made_in_one_transaction_of_what_is_taken() -> None:
    for names in (True, False):
        kernel = Choosy(of(3, 8), names=names)
        wanted = ports(*(port(n, 1) for n in range(10)))
        tables = create(V4, Options(), ())

        def operations(part: Mapping[bytes, ServicePort | None], tables: list[Operation] = tables) -> list[Operation]:
            return [*tables, *scratch(Family.IPV4, [one for one in part.values() if one]).operations]

        settled = settle_as_one(wanted, lambda part, k=kernel, o=operations: rehearse(k, o(part)))  # type: ignore[misc]
        assert numbers(settled) == [3, 8] and not settled.stopped
        assert kernel.transactions == 0
        kernel.commit(operations(settled.done))


# Again and again.


def undecided() -> tuple[Node, dict[bytes, ServicePort]]:
    """One that is refused, and two of which nobody knows."""
    node = Node(Choosy(of(1)))
    wanted = ports(port(1, 1), port(2, 1), port(3, 1))
    node.change(ports(port(1, 1)))
    assert node.change(ports(port(2, 1), port(3, 1)), tries=0).undecided == {port(2).key, port(3).key}
    return node, wanted


def test_what_is_undecided_is_tried_soon_and_first_and_nobody_hears_of_it() -> None:
    node, wanted = undecided()
    assert len(node.refusals) == 1 and len(node.refusals.aside) == 3
    node.now = FIRST_WAIT
    assert list(node.refusals.divide({}, node.now)[1]) == [port(2).key, port(3).key, port(1).key]
    node.change({})
    assert node.said == ["- default/s1"]
    node.check(wanted)


def test_what_is_undecided_belongs_to_tables_that_are_made_anew() -> None:
    node, wanted = undecided()
    assert node.refusals.without(wanted) == ports(port(2, 1), port(3, 1))
    assert node.refusals.aside.keys() == {KEY}


def test_it_is_tried_again_and_taken_when_the_kernel_does_take_it() -> None:
    kernel = Choosy(of(1))
    node = Node(kernel)
    wanted = ports(port(1, 1), port(2, 1))
    node.change(wanted)
    assert node.refusals.retry_at == FIRST_WAIT
    kernel.refuses, node.now = nothing, FIRST_WAIT
    settled = node.change({})
    assert settled.done == {KEY: wanted[KEY]}
    assert node.said == ["- default/s1", "+ default/s1"]
    assert node.refusals.retry_at is None and not len(node.refusals) and node.refusals.total == 1
    node.check(wanted)


def test_before_its_time_only_the_others_are_touched() -> None:
    kernel = Choosy(of(1))
    node = Node(kernel)
    node.change(ports(port(1, 1)))
    tries = kernel.tries
    node.now = 0.5
    node.change(ports(port(2, 1)))
    assert kernel.tries == tries + 1
    node.change(ports(port(1, 2)))  # not so soon after the last try
    assert kernel.tries == tries + 1
    assert node.refusals.retry_at == FIRST_WAIT
    node.check(ports(port(1, 2), port(2, 1)))


def test_a_change_of_its_own_brings_its_next_try_forward() -> None:
    kernel = Choosy(of(1))
    node = Node(kernel)
    node.change(ports(port(1, 1)))
    for _ in range(6):
        assert node.refusals.retry_at is not None
        node.now = node.refusals.retry_at
        node.change({})
    assert node.refusals.retry_at and node.refusals.retry_at > node.now + 30
    node.now += 10
    kernel.refuses = nothing
    mended = ports(port(1, 7))
    node.change(mended)
    assert not node.refusals.aside
    node.check(mended)
    assert node.said == ["- default/s1", "+ default/s1"]


def test_one_that_nobody_wants_any_more_is_forgotten_in_silence() -> None:
    for is_all_made_anew in (False, True):
        node = Node(Choosy(of(1)))
        node.change(ports(port(1, 1), port(2, 1)))
        if is_all_made_anew:
            node.refusals.without(ports(port(2, 1)))
        else:
            node.change({KEY: None})
        assert node.refusals.retry_at is None
        assert node.said == ["- default/s1"]
        node.check(ports(port(2, 1)))


def test_tables_that_are_made_anew_do_without_those_left_out() -> None:
    node = Node(Choosy(of(1)))
    node.change(ports(port(1, 1), port(2, 1)))
    everything = ports(port(1, 9), port(2, 1), port(3, 1))
    assert node.refusals.without(everything) == ports(port(2, 1), port(3, 1))
    assert node.refusals.aside[KEY].port == port(1, 9)


def test_the_innocent_are_first() -> None:
    kernel = Choosy(of(1), names=False)
    node = Node(kernel)
    node.change(ports(port(1, 1)))
    order: list[list[bytes]] = []

    def attempt(part: Mapping[bytes, ServicePort | None]) -> TransactionError | None:
        order.append(list(part))
        return node.attempt(part)

    first, again = node.refusals.divide(ports(port(2, 1)), FIRST_WAIT)
    settle(first, attempt, again)
    assert order[:2] == [[port(2).key], [KEY]]


def an_hour(node: Node, change: Callable[[], Mapping[bytes, ServicePort | None]] = dict, every: float = 1e9) -> int:
    """Runs the agent's loop by its clock: how many transactions that took."""
    before, end, changed_at = node.kernel.tries, node.now + 3600, node.now
    while True:
        retry_at = node.refusals.retry_at
        at = min(changed_at + every, retry_at if retry_at is not None else 1e9)
        if at > end:
            return int(node.kernel.tries - before)
        assert at > node.now or at == changed_at + every, "a busy loop"
        node.now = at
        if at == changed_at + every:
            changed_at = at
            node.change(change())
        else:
            node.change({})


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize(("bad", "most"), [(1, 21), (5, 300), (100, 8000), (300, 5000)])
def test_an_hour_of_refusals_is_a_bounded_number_of_tries(names: bool, bad: int, most: int) -> None:
    kernel = Choosy(of(*range(bad)), names=names)
    node = Node(kernel)
    wanted = ports(*(port(n, 1) for n in range(bad + 10)))
    node.change(wanted)
    assert an_hour(node) <= most * (1 if names else 2)
    node.check(wanted)
    assert len(node.refusals) == bad


def test_one_that_changes_all_the_time_is_tried_once_a_second() -> None:
    kernel = Choosy(of(1))
    node = Node(kernel)
    pods = iter(range(10**6))
    node.change(ports(port(1, 1)))
    assert 3000 < an_hour(node, lambda: ports(port(1, 1 + next(pods) % 200)), every=0.05) <= 3601


# Random histories.


BAD = st.sets(st.integers(0, 11), max_size=8)


def some(bad: set[int], names: bool, number: int) -> tuple[Refuse, Callable[[bytes], bool]]:
    """Refuses to add what belongs to every so-manyth service port."""

    def is_bad(key: bytes) -> bool:
        return sum(key) % 12 in bad

    def refuses(operation: Operation) -> int:
        key = service_key_of(operation)
        return number if isinstance(operation, AddElement) and key is not None and is_bad(key) else 0

    return refuses, is_bad


@settings(max_examples=200, **EXAMPLES)
@given(BATCHES, st.lists(BAD, min_size=10, max_size=10), st.booleans(), st.integers(0, 1000))
def test_the_tables_are_what_a_fresh_start_gives_without_those_left_out(
    batches: list[list[Event]], bad: list[set[int]], names: bool, seed: int
) -> None:
    rand = random.Random(seed)
    kernel = Choosy(names=names)
    node, state = Node(kernel), State(NODE_NAME)
    for batch, which in zip(batches, bad, strict=False):
        if rand.random() < 0.5:  # else the kernel refuses the same as before
            kernel.refuses, is_bad = some(which, names, rand.choice([errno.EINVAL, errno.ENOSPC, errno.EOPNOTSUPP]))
        node.now += rand.choice([0.0, 0.3, 1.0, 5.0, 1000.0])
        for event in batch:
            state.apply(event)
        node.addresses = Settings().nodeport_ips(state.node, ())
        changed = state.wanted()
        tries = rand.choice([8, 10_000])
        settled = node.change(changed, tries=tries)
        for _ in range(100):
            assert not settled.stopped
            if kernel.refuses is not nothing:
                assert all(is_bad(key) for key in settled.refused)
            if not settled.undecided:
                break
            node.now += FIRST_WAIT
            settled = node.change({}, tries=tries)
        assert not settled.undecided
        state.settle(changed)
        node.check(dict(state.everything()))
    kernel.refuses = nothing
    node.now += 1e6
    node.change({})
    assert not node.refusals.aside
    node.check(dict(state.everything()))


@settings(max_examples=120, **EXAMPLES)
@given(BATCHES, st.integers(0, 1000))
def test_so_they_are_whatever_it_is_that_the_kernel_refuses(batches: list[list[Event]], seed: int) -> None:
    """Sets and chains, too, and elements that many service ports share, and never a word of which it was."""
    rand = random.Random(seed)
    kernel = Choosy(names=False)
    node, state = Node(kernel), State(NODE_NAME)
    for batch in batches:
        share = rand.choice([0.0, 0.1, 0.4])
        salt = rand.random()

        def refuses(operation: Operation, share: float = share, salt: float = salt) -> int:
            if isinstance(operation, AddTable | DeleteTable | DeleteElement):
                return 0
            if isinstance(operation, AddElement):
                name = f"{operation.set.name} {operation.key.hex()}"
                if operation.set.name == "nodeport-ips":
                    return 0
            else:
                name = type(operation).__name__ + getattr(getattr(operation, "set", None), "name", "")
            return errno.EINVAL if random.Random(f"{name} {salt}").random() < share else 0

        kernel.refuses = refuses
        node.now += rand.choice([0.0, 0.3, 1.0, 1000.0])
        for event in batch:
            state.apply(event)
        node.addresses = Settings().nodeport_ips(state.node, ())
        changed = state.wanted()
        settled = node.change(changed, tries=10_000)
        assert not settled.stopped and not settled.undecided
        state.settle(changed)
        node.check(dict(state.everything()))
    kernel.refuses = nothing
    node.now += 1e6
    node.change({})
    assert not node.refusals.aside
    node.check(dict(state.everything()))


# The kernel itself.


def overlapping(number: int) -> ServicePort:
    """One range inside another, which the kernel does not take."""
    ranges = ((bytes([10, 0, 0, 0]), bytes([10, 0, 0, 255])), (bytes([10, 0, 0, 128]), bytes([10, 0, 0, 255])))
    return port(number, 1, external=True, sources=ranges)


def test_the_kernel_refuses_what_contradicts_itself(namespace: Namespace) -> None:
    node = Node(namespace.kernel)
    wanted = ports(*(overlapping(n) if n == 7 else port(n, 1, 2) for n in range(20)))
    settled = node.change(wanted)
    if not settled.errors:
        pytest.skip("this kernel (6.1 is one) takes a range inside another")
    assert settled.stopped and judge(settled.stopped)[0] is Action.MEND  # so it looks at first
    settled = node.change(wanted, fresh=True)
    assert numbers(settled) == [7] and not settled.stopped
    node.check(wanted)
    mended = ports(port(7, 1))
    node.now += FIRST_WAIT
    node.change(mended)
    node.check({**wanted, **mended})


def test_a_map_of_the_kernel_that_is_full(namespace: Namespace) -> None:
    name = V4.table.name
    key, data = "ip daddr . meta l4proto . th dport . numgen random mod 65536", "ip daddr . th dport"
    namespace.nft("-f", "-", stdin=f"table ip {name} {{ map endpoints {{ typeof {key} : {data}; size 6; }}; }}")
    node = Node(namespace.kernel)
    wanted = ports(*(port(n, 1, 2) for n in range(5)))
    settled = node.change(wanted)
    assert not settled.stopped and len(settled.refused) == 2
    assert {failure.errno for failure in settled.refused.values()} == {errno.ENFILE}
    node.check(wanted)
    for n in range(5):  # others make room
        if port(n).key not in node.refusals.aside:
            node.change({port(n).key: None})
            wanted.pop(port(n).key)
    node.now += 10
    node.change({})
    assert not node.refusals.aside
    node.check(wanted)


def test_a_table_of_the_kernel_that_was_deleted(namespace: Namespace) -> None:
    node = Node(namespace.kernel, ports(port(1, 1)))
    namespace.nft("delete", "table", "ip", V4.table.name)
    for changed in (ports(port(1, 2)), ports(port(1, 1, 2, timeout=60, identity=4)), {KEY: None}):
        settled = node.change(changed)
        assert settled.stopped and judge(settled.stopped)[0] is Action.MEND
        assert not settled.refused


def test_a_table_of_the_kernel_that_belongs_to_another(namespace: Namespace) -> None:
    owner = namespace.inside(Kernel)
    owned = text(1, V4.table.name) + u32(2, 1 << 1)  # NFT_TABLE_F_OWNER
    owner._socket.send(
        batch_mark(BATCH_BEGIN, 1) + message(NEWTABLE, NLM_F_CREATE, 2, Family.IPV4, owned) + batch_mark(BATCH_END, 3)
    )
    with pytest.raises(TransactionError) as caught:
        namespace.kernel.commit(create(V4, Options(), ()))
    owner.close()
    action, meaning = judge(caught.value)
    assert action is Action.DENIED and "owner" in meaning


# The document.


def test_the_tables_of_the_document_are_current() -> None:
    document = generate_refusals.FILE.read_text(encoding="utf-8")
    assert document == generate_refusals.current(document), "run: python -m docs.generate_refusals"
    with pytest.raises(ValueError, match="no place for the table judgements"):
        generate_refusals.current("nothing")


# What is said of it.


def test_each_is_told_of_once_and_a_crowd_in_a_few_words() -> None:
    node = Node(Choosy(of(*range(30))))
    wanted = ports(*(port(n, 1) for n in range(31)))
    settled = settle(wanted, node.attempt, tries=1000)
    with capture_logs() as logs:
        note = report(node.refusals.note(settled, wanted, 0.0))
        assert report(node.refusals.note(settled, wanted, 1.0)) == ""
    assert [log["event"] for log in logs] == ["service_port_refused"] * 20 + ["service_ports_refused"]
    assert logs[0]["service_port"] == "default/s0" and logs[0]["address"] == "10.96.0.0:80/TCP"
    assert "Invalid argument" in logs[0]["error"] and logs[-1]["more"] == 10
    assert note.startswith("default/s0 at 10.96.0.0:80/TCP is left out: add element ") and note.count("; ") == 3
    assert note.endswith("and 27 more (see the log)")
    node.kernel.refuses = nothing
    first, again = node.refusals.divide({}, 1e6)
    with capture_logs() as logs:
        assert report(node.refusals.note(settle(first, node.attempt, again), again, 1e6)) == ""
    assert [log["event"] for log in logs] == ["service_port_taken"] * 20 + ["service_ports_taken"]


def test_one_that_cannot_be_taken_away_has_no_name_but_a_key() -> None:
    settled = Settled(refused={KEY: Failure(DeleteElement(ELEMENT.set, KEY), errno.EINVAL)})
    with capture_logs() as logs:
        assert "10.96.0.1:80/TCP" in report(Refusals().note(settled, {KEY: None}, 0.0))
    assert logs[0]["then"] == "not taken away"
