"""The agent and service ports that the kernel refuses: the others are programmed, at its start and later."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.events import Delete, TablesTouched
from proxy.model import SERVICE
from proxy.node_reports import NodeReports
from proxy.patience import RETRY_SECONDS
from rules.changes import Touched
from rules.errors import Failure, TransactionError
from rules.fake import FakeKernel
from rules.judgement import service_key_of
from rules.layout import LAYOUTS
from rules.objects import Family
from rules.transaction import AddElement, DeleteTable, FlushChain, Operation
from tests.meddling import Meddling, add_chain, ever_worse, flush_ruleset, take_elements
from tests.objects import endpoint_slice, service
from tests.test_agent import WEB, World, put, scripted
from tests.test_histories import content, from_scratch
from tests.test_refusals import Choosy

V4 = LAYOUTS[Family.IPV4]
BAD_ADDRESS = bytes([10, 96, 0, 66])
BAD = put(service("bad", "10.96.0.66"), endpoint_slice("bad", "10.244.0.66"))
GOOD = put(service("good", "10.96.0.7"), endpoint_slice("good", "10.244.0.7"))


def refuse_bad(operation: Operation) -> int:
    key = service_key_of(operation)
    return errno.EINVAL if isinstance(operation, AddElement) and key and key[:4] == BAD_ADDRESS else 0


class Told(NodeReports):
    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def refused(self, note: str) -> None:
        self.notes += [note] if note else []


class Here(World):
    """Knows what it told its followers. `check` leaves out what the agent leaves out."""

    def __init__(self, kernel: Choosy) -> None:
        self.told = Told()
        super().__init__(kernel, reports=self.told)
        self.ports: dict[bytes, Any] = {}
        self.agent.followers = [lambda done: self.ports.update(done.ports)]

    def check(self) -> None:
        bad = any(key[:4] == BAD_ADDRESS for key in self.agent.refusals.aside)
        cluster = {identity: one for identity, one in self.cluster.items() if not (bad and identity[2] == "bad")}
        expected = from_scratch(cluster, 0)
        for family, layout in LAYOUTS.items():
            assert content(self.kernel.dump(layout.table)) == expected[family]


def is_left_out(world: Here) -> bool:
    world.check()
    return bool(world.agent.refusals.aside)


@pytest.fixture(params=[True, False], ids=["named", "unnamed"])
def world(request: pytest.FixtureRequest) -> Here:
    return Here(Choosy(refuse_bad, names=request.param))


def test_a_start_does_without_it_and_takes_it_later(world: Here) -> None:
    with capture_logs() as logs:
        world.start(*WEB, *BAD, *GOOD)
    assert is_left_out(world) and world.agent.refused == 1
    assert [log["service_port"] for log in logs if log["event"] == "service_port_refused"] == ["default/bad:http"]
    assert len(world.told.notes) == 1 and "default/bad:http at 10.96.0.66:80/TCP" in world.told.notes[0]
    assert world.kernel.transactions == 1
    world.kernel.refuses = lambda operation: 0
    world.clock.now = 1.0
    world.handle()
    assert not is_left_out(world) and world.agent.refused == 0


def test_there_is_one_event_for_it() -> None:
    said: list[tuple[str, str, bool]] = []

    class Recorder:
        def record(self, reason: str, note: str, *, warning: bool = False, action: str = "", key: str = "") -> None:
            said.append((reason, note, warning))

    world = World(Choosy(refuse_bad), reports=NodeReports(Recorder()))
    world.start(*WEB, *BAD, *GOOD)
    world.handle(*put(endpoint_slice("good", "10.244.0.8")))
    [(reason, note, warning)] = said
    assert reason == "ServicePortRefused" and "default/bad:http" in note and warning


def test_a_change_does_without_it(world: Here) -> None:
    world.start(*WEB)
    world.handle(*BAD, *GOOD)
    assert is_left_out(world)
    assert [key[:4] for key, port in world.ports.items() if port is None] == [BAD_ADDRESS]
    world.handle(*put(endpoint_slice("good", "10.244.0.8")))
    assert is_left_out(world)
    world.handle(Delete(SERVICE, "default", "bad"))
    assert not is_left_out(world)


def test_tables_that_were_deleted_come_back_without_it(world: Here) -> None:
    world.start(*WEB, *BAD, *GOOD)
    world.kernel.refuses = lambda operation: 0
    world.kernel.commit([DeleteTable(V4.table)])
    world.kernel.refuses = refuse_bad
    world.handle(*put(endpoint_slice("good", "10.244.0.8")))
    assert is_left_out(world)


def test_an_hour_goes_by_without_a_busy_loop(world: Here) -> None:
    world.start(*WEB, *BAD, *GOOD)
    world.kernel.tries = 0
    inbox = scripted(world, end=3600.0)
    world.agent.run()
    assert world.kernel.tries <= 2 * 21
    assert len(inbox.waits) <= 25
    assert is_left_out(world)


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EPERM, errno.EAGAIN, errno.EBUSY])
def test_what_is_nobodys_fault_is_tried_again_ever_more_slowly(number: int) -> None:
    world = World(Choosy())
    world.start(*WEB)
    failing = [True]

    def commit(operations: Any, good: Any = world.kernel.commit) -> int:
        world.kernel.tries += 1
        if failing[0]:
            raise TransactionError((Failure(None, number),))
        return int(good(operations))

    world.kernel.commit = commit
    world.kernel.tries = 0
    scripted(world, (0.0, list(GOOD)), end=3600.0)
    world.agent.run()
    assert world.kernel.tries <= 3600 / RETRY_SECONDS[-1] + len(RETRY_SECONDS)
    failing[0] = False
    world.clock.now += RETRY_SECONDS[-1]
    world.handle()
    world.check()


def test_what_others_did_is_not_forgotten_when_there_is_no_memory_to_undo_it() -> None:
    world = World()
    world.start(*WEB)
    world.kernel.commit([FlushChain(V4.chain("services"))])
    world.kernel.reason = Failure(None, errno.ENOMEM)
    world.handle(TablesTouched((Touched(Family.IPV4, chains={"services"}),)))
    assert world.agent.repairs == 0 and world.agent.sync_failures == 1
    world.kernel.reason = None
    world.clock.now += RETRY_SECONDS[-1]
    world.handle()
    assert world.agent.repairs == 1
    table = world.kernel.dump(V4.table)
    assert table and table.chains["services"].rules


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("meddle", [take_elements, add_chain, flush_ruleset, ever_worse()])
def test_what_others_do_while_tables_are_taken_over_is_no_fault_of_service_ports(
    meddle: Callable[[FakeKernel], None], times: int
) -> None:
    names = [f"s{number}" for number in range(1, 20)]
    services = put(*(service(name, f"10.96.1.{number}") for number, name in enumerate(names)))
    kernel = (
        World()
        .start(*WEB, *services, *put(*(endpoint_slice(name, "10.244.1.1", "10.244.1.2") for name in names)))
        .kernel
    )
    world = World(kernel)
    kernel.commit = Meddling(kernel, meddle, times)
    with capture_logs() as logs:
        world.start(*WEB, *services, *put(*(endpoint_slice(name, "10.244.1.1", "10.244.1.3") for name in names)))
        while world.agent._retries.failures:
            world.clock.now += 0.1
            world.handle()
        del kernel.commit
        world.handle(TablesTouched(tuple(Touched(family, is_rebuilt=True) for family in Family)))
    assert not world.agent.refusals.total and not [log for log in logs if log["event"] == "service_port_refused"]
    world.check()


def test_a_table_that_others_put_in_the_way_is_read_once_more() -> None:
    """EEXIST of a change is others' doing; the service port is not to blame."""
    world = World()
    world.start(*WEB)
    world.kernel.commit([AddElement(V4.cluster_ip_ports, bytes([10, 96, 0, 7, 6, 0, 0, 0, 0, 80, 0, 0]))])
    world.kernel.commit(
        [AddElement(V4.addresses.endpoints, bytes([10, 96, 0, 7, 6, 0, 0, 0, 0, 80]) + bytes(6), bytes(8))]
    )
    world.handle(*GOOD)
    world.check()
    assert not world.agent.refusals.aside and world.agent.sync_failures == 0
