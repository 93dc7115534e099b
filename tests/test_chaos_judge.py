"""The judge of integration.chaos, without a kernel: which states it allows, and what it says of the others."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from integration.chaos.changes import NODE_NAME, Changes
from integration.chaos.judge import PARTS, Judge, Violation
from integration.chaos.ledger import Ledger
from proxy.agent import Agent
from proxy.events import Delete, Event, Inbox, Put, Replace
from proxy.model import ENDPOINT_SLICE, KINDS, NODE, SERVICE, SERVICE_CIDR, convert
from proxy.state import State
from rules.dump import TableState
from rules.fake import FakeKernel
from rules.layout import LAYOUTS
from rules.objects import Family

PROCESS = 1


class Server:
    """Takes objects, and has no use for them."""

    def put(self, obj: Any) -> int:
        return 0

    def delete(self, kind: str, namespace: str, name: str) -> int:
        return 0


class World:
    """A ledger of many random changes, and what an agent programs that knows so many of each kind."""

    def __init__(self) -> None:
        self.ledger = Ledger(Server())
        self.changes = Changes(self.ledger, Random(5))
        self.judge = Judge(self.ledger, NODE_NAME)
        self.first = self.now()
        for _ in range(100):
            self.changes()

    def now(self) -> dict[str, int]:
        return {kind: len(self.ledger.changes[kind]) for kind in PARTS}

    def events(self, position: Mapping[str, int]) -> list[Event]:
        """What lists at that moment would say."""
        found: dict[str, dict[tuple[str, str, str], Any]] = {kind: {} for kind in KINDS}
        for kind, count in position.items():
            for change in self.ledger.changes[kind][:count]:
                if isinstance(change.event, Put):
                    found[kind][change.identity] = change.event.obj
                else:
                    found[kind].pop(change.identity, None)
        return [Replace(kind, list(objects.values())) for kind, objects in found.items()]

    def tables(self, position: Mapping[str, int], *more: Event) -> dict[Family, TableState]:
        kernel = FakeKernel()
        Agent(State(NODE_NAME), kernel, Inbox()).handle([*self.events(position), *more])
        found = {family: kernel.dump(layout.table) for family, layout in LAYOUTS.items()}
        return {family: table for family, table in found.items() if table}

    def look(self, position: Mapping[str, int], *more: Event, process: int = PROCESS) -> None:
        self.judge.look(self.tables(position, *more), process)


@pytest.fixture
def world() -> World:
    return World()


def test_each_kind_has_a_moment_of_its_own(world: World) -> None:
    position, last, rand = dict(world.first), world.now(), Random(1)
    while position != last:
        world.look(position)
        kind = rand.choice(list(position))
        position[kind] = min(last[kind], position[kind] + rand.randrange(30))
    world.look(last)


@pytest.mark.parametrize("kind", [SERVICE, ENDPOINT_SLICE, NODE, SERVICE_CIDR])
def test_nothing_goes_back_in_time(world: World, kind: str) -> None:
    world.changes._put_cidrs("more", ["10.80.0.0/16"])
    last = world.now()
    world.look(last)
    with pytest.raises(
        Violation, match=rf"^commit 2, \d.*: back in time: the {kind}s are what they were after change [01] "
    ):
        world.look({**last, kind: 1})


def test_what_was_there_before_the_agent_must_be_known(world: World) -> None:
    with pytest.raises(Violation, match="back in time: the Services are what they were after change 0 "):
        world.look({**world.first, SERVICE: 0})


def test_another_agent_may_begin_without_the_node_and_no_other_may(world: World) -> None:
    last = world.now()
    world.look(last)
    world.look({**last, NODE: 0, SERVICE_CIDR: 0}, process=2)
    world.look(last, process=2)
    with pytest.raises(Violation, match="back in time: the Nodes"):
        world.look({**last, NODE: 0}, process=2)


def test_half_a_list_is_no_moment(world: World) -> None:
    last = world.now()
    [services] = [event for event in world.events(last) if isinstance(event, Replace) and event.kind == SERVICE]
    with pytest.raises(Violation, match="no moment's Services allow this; nearest is change") as found:
        world.look(last, Replace(SERVICE, services.objects[::2]))
    assert "ip cluster-ips: none too many, " in str(found.value)


def test_a_change_that_was_missed_is_found_when_the_next_one_shows(world: World) -> None:
    last = world.now()
    world.look(last)
    world.changes._put_service(("default", "first"))
    world.changes._put_service(("default", "second"))
    with pytest.raises(Violation, match="no moment's Services allow this"):
        world.look(world.now(), Delete(SERVICE, "default", "first"))


def test_an_endpoint_too_many_is_no_moment(world: World) -> None:
    slices = [obj for identity, obj in world.ledger.objects.items() if identity[0] == ENDPOINT_SLICE]
    with pytest.raises(Violation, match="no moment's EndpointSlices allow this") as found:
        for slice_ in slices:  # not all are of a Service that shows them
            more = {**slice_, "endpoints": [*slice_["endpoints"], {"addresses": ["10.244.255.1"]}]}
            world.look(world.now(), Put(convert(ENDPOINT_SLICE, more)))
    assert "0af4ff01" in str(found.value)
