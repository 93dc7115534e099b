"""Whatever happened, the table is what it would be had the agent just started: against the fake and the kernel."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.agent import Agent
from proxy.events import Delete, Event, Inbox, Put
from proxy.model import SERVICE
from proxy.state import State
from rules.diff import scratch
from rules.dump import TableState
from rules.fake import FakeKernel
from rules.layout import LAYOUTS
from rules.objects import Family
from tests.histories import BATCHES, NODE_NAME, Cluster, listing, remember
from tests.netns import Namespace

Content = dict[str, dict[bytes, Any]]


def start(kernel: Any) -> Agent:
    agent = Agent(State(NODE_NAME), kernel, Inbox())
    agent.handle(listing({}))
    return agent


def content(state: TableState | None) -> Content:
    """The table's elements, but of `endpoints` only which belong to a service port: numbers depend on the history.

    They must be 0 to N-1, though.
    """
    assert state is not None
    found: Content = {name: dict(set_.elements) for name, set_ in state.sets.items()}
    found["endpoints"] = _by_service_port({key: data for key, (data, _) in found["endpoints"].items()})
    return found


def _by_service_port(elements: dict[bytes, bytes]) -> dict[bytes, Any]:
    groups: dict[bytes, dict[int, bytes]] = {}
    for key, data in elements.items():
        groups.setdefault(key[:-4], {})[int.from_bytes(key[-4:], "little")] = data
    for numbered in groups.values():
        assert sorted(numbered) == list(range(len(numbered)))
        assert len(set(numbered.values())) == len(numbered)
    return {key: frozenset(numbered.values()) for key, numbered in groups.items()}


def from_scratch(cluster: Cluster, seed: int) -> dict[Family, Content]:
    """What a new agent would program, told of the objects in any order."""
    events = listing(cluster)
    random.Random(seed).shuffle(events)
    state = State(NODE_NAME)
    for event in events:
        state.apply(event)
    ports = [port for port in state.everything().values() if port]
    contents = {}
    for family, layout in LAYOUTS.items():
        found: Content = {set_.name: {} for set_ in layout.sets}
        for operation in scratch(family, [port for port in ports if port.family is family]).operations:
            found[operation.set.name][operation.key] = (operation.data, operation.comment)  # type: ignore[union-attr]
        found["endpoints"] = _by_service_port({key: data for key, (data, _) in found["endpoints"].items()})
        contents[family] = found
    return contents


@settings(max_examples=2500, deadline=None, suppress_health_check=list(HealthCheck))
@given(BATCHES, st.integers(0, 1000))
def test_diffs_add_up_to_what_a_fresh_start_gives(batches: list[list[Event]], seed: int) -> None:
    kernel = FakeKernel()
    agent = start(kernel)
    cluster: Cluster = {}
    for batch in batches:
        for event in batch:
            remember(cluster, event)
        agent.handle(batch)
        expected = from_scratch(cluster, seed)
        for family, layout in LAYOUTS.items():
            assert content(kernel.dump(layout.table)) == expected[family]
    for family, layout in LAYOUTS.items():
        state = kernel.dump(layout.table)
        assert state is not None
        assert state.chains["unallocated"].rules == [
            rule.expressions for rule in layout.unallocated_rules(agent.state.service_cidrs)
        ], family


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(BATCHES)
def test_the_kernel_holds_what_the_fake_holds(batches: list[list[Event]]) -> None:
    namespace, fake = Namespace(), FakeKernel()
    try:
        agents = [start(namespace.kernel), start(fake)]
        for batch in batches:
            for agent in agents:
                agent.handle(batch)
        for layout in LAYOUTS.values():
            assert namespace.kernel.dump(layout.table) == fake.dump(layout.table)
    finally:
        namespace.close()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(BATCHES)
def test_a_list_of_what_is_known_commits_nothing(batches: list[list[Event]]) -> None:
    kernel = FakeKernel()
    agent = start(kernel)
    cluster: Cluster = {}
    for batch in batches:
        for event in batch:
            remember(cluster, event)
        agent.handle(batch)
    before = kernel.transactions
    agent.handle(listing(cluster))
    assert kernel.transactions == before


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(BATCHES)
def test_a_batch_is_what_its_events_are_one_by_one(batches: list[list[Event]]) -> None:
    one, many = FakeKernel(), FakeKernel()
    together, apart = start(one), start(many)
    for batch in batches:
        together.handle(batch)
        for event in batch:
            apart.handle([event])
    for layout in LAYOUTS.values():
        assert content(one.dump(layout.table)) == content(many.dump(layout.table))


def test_a_cluster_ip_may_go_to_another_service_in_the_batch_that_deletes_the_first() -> None:
    from bench.cluster import endpoint_slice, service

    kernel = FakeKernel()
    agent = start(kernel)
    first, second = service(1), service(2)
    second.spec.cluster_ip, second.spec.cluster_ips = first.spec.cluster_ip, first.spec.cluster_ips
    agent.handle([Put(first), Put(endpoint_slice(1, [1])), Put(endpoint_slice(2, [2, 3]))])
    agent.handle([Put(second), Delete(SERVICE, "default", "service-1")])
    state = kernel.dump(LAYOUTS[Family.IPV4].table)
    assert state is not None
    [(_, comment)] = state.sets["services-2"].elements.values()
    assert comment == "default/service-2:http"
    assert not state.sets["services-1"].elements
    assert len(state.sets["endpoints"].elements) == 2
