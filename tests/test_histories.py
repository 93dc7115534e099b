"""Whatever happened, the table is what it would be had the agent just started: against the fake and the kernel."""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.agent import Agent
from proxy.events import Delete, Event, Inbox, Put
from proxy.model import SERVICE
from proxy.settings import Settings
from proxy.state import State
from rules.diff import scratch
from rules.dump import ChainState, TableState
from rules.endpoint_numbers import LOCAL, TICKET
from rules.expressions import NumberGenerator
from rules.fake import FakeKernel
from rules.kernel import Kernel
from rules.layout import LAYOUTS
from rules.objects import Family
from rules.transaction import AddElement, AddRule
from tests.histories import BATCHES, NODE_NAME, Cluster, listing, remember
from tests.netns import Namespace

Content = dict[str, dict[bytes, Any]]


def start(kernel: Any) -> Agent:
    agent = Agent(State(NODE_NAME), kernel, Inbox())
    agent.handle(listing({}))
    return agent


Made = tuple[Any, Agent]
SPARE: dict[Callable[[], Any], list[Made]] = {}


@contextmanager
def empty(make: Callable[[], Any]) -> Iterator[Made]:
    """A kernel and its agent, with the tables and no objects: used again and again, because building takes long.

    What an example leaves must go with its objects; an agent that failed is not used again.
    """
    spare = SPARE.setdefault(make, [])
    kernel, agent = spare.pop() if spare else (made := make(), start(made))
    yield kernel, agent
    agent.handle(listing({}))
    for layout in LAYOUTS.values():
        assert not any(content(kernel.dump(layout.table)).values())
    spare.append((kernel, agent))


def new_kernel() -> Kernel:
    namespace = Namespace()
    os.close(namespace.descriptor)  # the socket keeps it
    return namespace.kernel


def content(state: TableState | None) -> Content:
    """The table's elements, without what depends on the history: which number an endpoint has, and with session
    affinity which numbers there are; which service ports once had no endpoints. What must hold of the numbers is
    checked; and that what never changes is there."""
    assert state is not None
    found = {name: dict(set_.elements) for name, set_ in state.sets.items()}
    for kind in ("pick", "pick-local", "nodeport-pick", "nodeport-pick-local"):
        numbers = (*range(1, 17), *(2**i for i in range(5, 17)))
        chains = {(n, here): f"{kind}-{n}{'-here' * here}".encode() for n in numbers for here in (False, True)}
        assert found[f"{kind}-by-number"] == {in_priority(*which): (chain, "") for which, chain in chains.items()}
        found[f"{kind}-by-number"] = {}
    return as_settled(found, state.chains)


def in_priority(number: int, here: bool) -> bytes:
    """How many endpoints, and whether some may connect to themselves, as it travels in a packet's priority."""
    return ((0x4B520000 if here else 0x4B500000) + number).to_bytes(4, sys.byteorder)


def as_settled(found: Content, chains: Mapping[str, ChainState]) -> Content:
    sticky = re.compile(r"(.*sticky)-(\d+)-(for-\d+s)")
    counts = {}
    uncounted = [name for name in found if name.endswith("endpoints") and not name.endswith("no-endpoints")]
    for name in uncounted:
        found[name] = _by_service_port({key: data for key, (data, _) in found[name].items()}, "sticky" in name, counts)
    for prefix in ("", "nodeport-"):
        found[f"{prefix}no-endpoints"] = {
            key: element
            for key, element in found[f"{prefix}no-endpoints"].items()
            if not (counts.keys() & {(key, False), (key, True)} or key in found[f"{prefix}dropped"])
        }
    for name in [name for name in found if sticky.match(name)]:
        base, bound, timeout = sticky.match(name).groups()  # type: ignore[union-attr]
        for key, element in found.pop(name).items():
            count = counts[key, "local" in name]
            assert int(bound) // 2 < count <= int(bound) or count == int(bound) == 1
            found.setdefault(f"{base}-{timeout}", {})[key] = element
    for name in [name for name in found if name.endswith("round-robin")]:
        taken = [chain for chain, _ in found[name].values()]
        assert len(set(taken)) == len(taken)
        for key, (chain, _) in found[name].items():
            [*_, generator, _, _] = chains[chain.decode()].rules[0]
            assert isinstance(generator, NumberGenerator)
            assert generator.modulus == counts[key, "local" in name]
            found[name][key] = "its own"
    return found


def _by_service_port(
    elements: dict[bytes, bytes], sticky: bool, counts: dict[tuple[bytes, bool], int]
) -> dict[tuple[bytes, bool], frozenset[bytes]]:
    """(key, local) -> endpoints. counts: how many numbers from 0 on there are."""
    groups: dict[tuple[bytes, bool], dict[int, bytes]] = {}
    for key, data in elements.items():
        number = int.from_bytes(key[-4:], sys.byteorder)
        if sticky:
            number -= TICKET
        groups.setdefault((key[:-4], number >= LOCAL), {})[number % LOCAL] = data
    for group, numbered in groups.items():
        dense = next(i for i in range(len(numbered) + 1) if i not in numbered)
        counts.setdefault(group, dense)
        if sticky:
            assert {numbered[i] for i in range(dense)} == set(numbered.values())
        else:
            assert dense == len(numbered) == len(set(numbered.values()))
    return {group: frozenset(numbered.values()) for group, numbered in groups.items()}


def from_scratch(cluster: Cluster, seed: int) -> dict[Family, Content]:
    """What a new agent would program, told of the objects in any order."""
    events = listing(cluster)
    random.Random(seed).shuffle(events)
    state = State(NODE_NAME)
    for event in events:
        state.apply(event)
    ports = [port for port in state.everything().values() if port]
    addresses = Settings().nodeport_ips(state.node, ())
    contents = {}
    for family, layout in LAYOUTS.items():
        found: Content = {set_.name: {} for set_ in layout.sets}
        mine = [port for port in ports if port.family is family]
        chains: dict[str, ChainState] = {}
        for operation in scratch(family, mine, addresses[family]).operations:
            if isinstance(operation, AddRule):
                chain = chains.setdefault(operation.rule.chain.name, ChainState())
                chain.rules.append(operation.rule.expressions)
            if isinstance(operation, AddElement):
                data = operation.data or operation.end
                found.setdefault(operation.set.name, {})[operation.key] = (data, operation.comment)
        contents[family] = as_settled(found, chains)
    return contents


def without_groups(state: TableState | None) -> dict[str, Any]:
    """The table, but for groups of sticky service ports that have none: they stay from earlier examples."""
    assert state is not None
    made = re.compile("sticky-|hashed-|turn-|special|round-robin")
    used = {name for name, set_ in state.sets.items() if set_.elements or not made.search(name)}
    chains = {name: chain for name, chain in state.chains.items() if not made.search(name) or name in used}
    turns = {name: set(state.sets[name].elements) for name in used if name.endswith("round-robin")}
    return {**{name: state.sets[name] for name in used}, **turns, **chains}


def without_empty(found: Content) -> Content:
    """A group of sticky service ports stays when its last one goes."""
    return {name: elements for name, elements in found.items() if elements}


@settings(max_examples=2500, deadline=None, suppress_health_check=list(HealthCheck))
@given(BATCHES, st.integers(0, 1000))
def test_diffs_add_up_to_what_a_fresh_start_gives(batches: list[list[Event]], seed: int) -> None:
    with empty(FakeKernel) as (kernel, agent):
        cluster: Cluster = {}
        for batch in batches:
            remember(cluster, *batch)
            agent.handle(batch)
            expected = from_scratch(cluster, seed)
            for family, layout in LAYOUTS.items():
                assert without_empty(content(kernel.dump(layout.table))) == without_empty(expected[family])
        for family, layout in LAYOUTS.items():
            state = kernel.dump(layout.table)
            assert state.chains["unallocated"].rules == [
                rule.expressions for rule in layout.unallocated_rules(agent.state.service_cidrs)
            ], family


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(BATCHES)
def test_the_kernel_holds_what_the_fake_holds(batches: list[list[Event]]) -> None:
    with empty(new_kernel) as (kernel, real), empty(FakeKernel) as (fake, imagined):
        for batch in batches:
            real.handle(batch)
            imagined.handle(batch)
        for layout in LAYOUTS.values():
            assert without_groups(kernel.dump(layout.table)) == without_groups(fake.dump(layout.table))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(BATCHES)
def test_a_list_of_what_is_known_commits_nothing(batches: list[list[Event]]) -> None:
    with empty(FakeKernel) as (kernel, agent):
        cluster: Cluster = {}
        for batch in batches:
            remember(cluster, *batch)
            agent.handle(batch)
        before = kernel.transactions
        agent.handle(listing(cluster))
        assert kernel.transactions == before


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(BATCHES)
def test_a_batch_is_what_its_events_are_one_by_one(batches: list[list[Event]]) -> None:
    with empty(FakeKernel) as (one, together), empty(FakeKernel) as (many, apart):
        for batch in batches:
            together.handle(batch)
            for event in batch:
                apart.handle([event])
        for layout in LAYOUTS.values():
            assert without_empty(content(one.dump(layout.table))) == without_empty(content(many.dump(layout.table)))


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
    [(_, comment)] = state.sets["cluster-ip-ports"].elements.values()
    assert comment == "default/service-2:http"
    assert len(state.sets["endpoints"].elements) == 2
