"""A table that is there already is taken over with the differences only: after any history, and after any damage."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.events import Delete, Event, Put, Replace
from proxy.model import SERVICE
from proxy.settings import Settings
from proxy.state import State
from rules.adopt import Adopted, adopt
from rules.diff import Programmed
from rules.dump import TableState
from rules.elements import family_of
from rules.fake import FakeKernel
from rules.kernel import Kernel
from rules.layout import LAYOUTS, Options
from rules.objects import Family, Field, Set
from rules.tables import create, replace
from rules.transaction import AddChain, AddElement, AddSet, DeleteElement, DeleteTable, FlushChain
from tests.histories import BATCHES, NODE_NAME, Cluster, listing, remember
from tests.objects import endpoint_slice, service
from tests.test_agent import put
from tests.test_histories import content, empty, from_scratch, new_kernel, without_empty

V4 = LAYOUTS[Family.IPV4]
EXAMPLES = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def known(cluster: Cluster, seed: int = 0) -> State:
    """What an agent that has just started knows."""
    events = listing(cluster)
    random.Random(seed).shuffle(events)
    state = State(NODE_NAME)
    for event in events:
        state.apply(event)
    return state


def adopted(kernel: FakeKernel | Kernel, state: State) -> dict[Family, Adopted]:
    wanted = state.everything()
    addresses = Settings().nodeport_ips(state.node, ())
    found = {}
    for family, layout in LAYOUTS.items():
        table = kernel.dump(layout.table)
        assert table is not None
        mine = {key: port for key, port in wanted.items() if port and port.family is family}
        taken = adopt(family, table, Options(), state.service_cidrs, mine, addresses[family])
        assert taken is not None
        found[family] = taken
    return found


def check(kernel: FakeKernel | Kernel, cluster: Cluster) -> None:
    expected = from_scratch(cluster, 0)
    for family, layout in LAYOUTS.items():
        assert without_empty(content(kernel.dump(layout.table))) == without_empty(expected[family])


def go_on(
    kernel: FakeKernel | Kernel, state: State, programmed: Mapping[Family, Programmed], batch: list[Event]
) -> None:
    """A further batch, by who has taken over."""
    for event in batch:
        state.apply(event)
    wanted = state.wanted()
    addresses = Settings().nodeport_ips(state.node, ())
    for family in Family:
        mine = {key: port for key, port in wanted.items() if family_of(key) is family}
        plan = programmed[family].plan(mine, addresses[family])
        kernel.commit(plan.operations)
        programmed[family].accept(plan)
    state.settle(wanted)


@settings(max_examples=200, **EXAMPLES)
@given(BATCHES, BATCHES, st.integers(0, 1000))
def test_a_restart_commits_nothing_and_goes_on(before: list[list[Event]], after: list[list[Event]], seed: int) -> None:
    with empty(FakeKernel) as (kernel, agent):
        cluster: Cluster = {}
        for batch in before:
            remember(cluster, *batch)
            agent.handle(batch)
        agent.handle(listing(cluster))
        state = known(cluster, seed)
        taken = adopted(kernel, state)
        cidrs = agent.state.service_cidrs
        for family in Family:
            assert not taken[family].operations
            assert taken[family].differences.total == 0  # type: ignore[union-attr]
            assert not taken[family].programmed._seeds  # of use for the first plan only, and large
        state.settle_all()
        assert state.service_cidrs == cidrs
        for batch in after[:3]:
            batch = [e for e in batch if not isinstance(e, Put | Delete | Replace) or "CIDR" not in repr(e)]
            remember(cluster, *batch)
            go_on(kernel, state, {family: taken[family].programmed for family in Family}, batch)
            check(kernel, cluster)
        agent.state, agent.tables.programmed = state, {family: taken[family].programmed for family in Family}
        agent.handle(listing(cluster))


@settings(max_examples=150, **EXAMPLES)
@given(BATCHES, BATCHES)
def test_what_was_missed_is_all_that_is_committed(before: list[list[Event]], missed: list[list[Event]]) -> None:
    with empty(FakeKernel) as (kernel, agent):
        cluster: Cluster = {}
        for batch in before:
            remember(cluster, *batch)
            agent.handle(batch)
        for batch in missed[:2]:
            remember(cluster, *batch)
        state = known(cluster)
        taken = adopted(kernel, state)
        for family in Family:
            kernel.commit(taken[family].operations)
        check(kernel, cluster)
        again = adopted(kernel, state)
        assert not any(again[family].operations for family in Family)
        agent.state, agent.tables.programmed = state, {family: taken[family].programmed for family in Family}
        agent.tables.service_cidrs = state.service_cidrs
        state.settle_all()


def damaged(kernel: FakeKernel | Kernel, rand: random.Random, count: int) -> int:
    """Somebody changes elements and rules by hand. Returns how many things."""
    done = 0
    for _ in range(count):
        layout = LAYOUTS[rand.choice(list(Family))]
        table = kernel.dump(layout.table)
        assert table is not None
        sets = {s.name: s for s in layout.sets if not s.dynamic and not s.interval and not s.verdict}
        filled = [name for name in sets if table.sets[name].elements]
        what = rand.randrange(4)
        if what == 0 and filled:
            name = rand.choice(filled)
            key = rand.choice(sorted(table.sets[name].elements))
            kernel.commit([DeleteElement(sets[name], key)])
        elif what == 1:
            set_ = sets[rand.choice(sorted(sets))]
            key = rand.randbytes(set_.key_size)
            if key not in table.sets[set_.name].elements:
                kernel.commit([AddElement(set_, key, rand.randbytes(set_.data_size), "by hand")])
        elif what == 2 and filled:
            name = rand.choice(filled)
            key, (data, comment) = rand.choice(sorted(table.sets[name].elements.items()))
            kernel.commit([DeleteElement(sets[name], key)])
            kernel.commit([AddElement(sets[name], key, bytes(len(data)) if len(data) else b"", comment + "x")])
        else:
            chains = [name for name, state in table.chains.items() if state.rules]
            if chains:
                kernel.commit([FlushChain(layout.chain(rand.choice(sorted(chains))))])
        done += 1
    return done


@settings(max_examples=40, **EXAMPLES)
@given(BATCHES, st.integers(0, 2**32), st.integers(1, 6))
def test_damage_is_mended_by_differences(batches: list[list[Event]], seed: int, count: int) -> None:
    kernel = FakeKernel()
    cluster: Cluster = {}
    state = known({})
    for layout in LAYOUTS.values():
        kernel.commit(replace(layout, Options(), ()))
    programmed = {family: Programmed(family) for family in Family}
    for batch in batches:
        batch = [e for e in batch if "CIDR" not in repr(e)]
        remember(cluster, *batch)
        go_on(kernel, state, programmed, batch)
    healthy = {family: repr_of(kernel.dump(LAYOUTS[family].table)) for family in Family}
    damaged(kernel, random.Random(seed), count)
    taken = adopted(kernel, state)
    for family in Family:
        is_same = repr_of(kernel.dump(LAYOUTS[family].table)) == healthy[family]
        assert bool(taken[family].operations) == bool(taken[family].differences.total) == (not is_same)
        kernel.commit(taken[family].operations)
    check(kernel, cluster)
    assert not any(one.operations for one in adopted(kernel, state).values())
    for layout in LAYOUTS.values():
        fresh = FakeKernel()
        fresh.commit(create(layout, Options(), state.service_cidrs))
        made = fresh.dump(layout.table)
        found = kernel.dump(layout.table)
        assert made is not None and found is not None
        for name, chain in made.chains.items():
            if not name.endswith("-special"):
                assert found.chains[name].rules == chain.rules


def repr_of(table: TableState | None) -> Any:
    assert table is not None
    sets = {name: sorted(set_.elements.items()) for name, set_ in table.sets.items()}
    return sets, {name: list(chain.rules) for name, chain in table.chains.items()}


WEB = put(service("web", "10.96.0.1"), endpoint_slice("web", "10.244.0.1", "10.244.0.2", "10.244.0.3"))


@pytest.fixture(params=[FakeKernel, new_kernel])
def world(request: pytest.FixtureRequest) -> tuple[Any, State]:
    """A table with a Service in it, and what is known."""
    make: Callable[[], Any] = request.param
    kernel = make()
    cluster: Cluster = {}
    remember(cluster, *WEB)
    state = known(cluster)
    for family, layout in LAYOUTS.items():
        plan = Programmed(family).plan(
            {k: p for k, p in state.everything().items() if family_of(k) is family}, frozenset()
        )
        kernel.commit([*replace(layout, Options(), ()), *plan.operations])
    return kernel, state


def test_a_whole_table_of_the_kernel_is_taken_over(world: tuple[Any, State]) -> None:
    kernel, state = world
    assert not any(one.operations for one in adopted(kernel, state).values())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param([AddSet(Set(V4.table, "theirs", (Field.DPORT,)))], id="a set that nobody knows"),
        pytest.param([AddChain(V4.chain("theirs"))], id="a chain that nobody knows"),
        pytest.param([AddChain(V4.chain("turn-01"))], id="nearly a chain of ours"),
        pytest.param([AddSet(Set(V4.table, "sticky-3-for-10s", V4.addresses.key))], id="nearly a group of ours"),
    ],
)
def test_what_is_no_table_of_this_release_has_to_be_replaced(world: tuple[Any, State], change: list[Any]) -> None:
    kernel, state = world
    kernel.commit(change)
    table = kernel.dump(V4.table)
    assert adopt(Family.IPV4, table, Options(), (), state.everything(), frozenset()) is None


def test_a_table_of_an_earlier_release_has_to_be_replaced(world: tuple[Any, State]) -> None:
    kernel, _ = world
    for missing in ("endpoints", "hairpins", "no-endpoints"):
        found = kernel.dump(V4.table)
        sets = {name: set_ for name, set_ in found.sets.items() if name != missing}
        assert adopt(Family.IPV4, TableState(sets, found.chains), Options(), (), {}, frozenset()) is None
    chains = {name: chain for name, chain in found.chains.items() if name != "refuse"}
    assert adopt(Family.IPV4, TableState(found.sets, chains), Options(), (), {}, frozenset()) is None


@pytest.mark.parametrize("field", ["type", "data_type", "flags"])
def test_a_set_of_another_kind_has_to_be_replaced(world: tuple[Any, State], field: str) -> None:
    kernel, _ = world
    found = kernel.dump(V4.table)
    setattr(found.sets["endpoints"], field, getattr(found.sets["endpoints"], field) ^ 4)
    assert adopt(Family.IPV4, found, Options(), (), {}, frozenset()) is None


def test_other_options_and_service_cidrs_are_rules_that_change(world: tuple[Any, State]) -> None:
    import ipaddress

    kernel, state = world
    options = Options(local_networks=(ipaddress.ip_network("10.244.0.0/16"),))
    cidrs = (ipaddress.ip_network("10.96.0.0/12"),)
    taken = adopt(Family.IPV4, kernel.dump(V4.table), options, cidrs, state.everything(), frozenset())
    assert taken is not None and taken.differences is not None
    assert taken.differences.chains == 5 and not taken.differences.missing
    kernel.commit(taken.operations)
    expected = FakeKernel()
    expected.commit(create(V4, options, cidrs))
    made, found = expected.dump(V4.table), kernel.dump(V4.table)
    assert made is not None
    assert {name: chain.rules for name, chain in found.chains.items()} == {n: c.rules for n, c in made.chains.items()}


def test_endpoints_keep_their_numbers(world: tuple[Any, State]) -> None:
    kernel, state = world
    state.apply(put(endpoint_slice("web", "10.244.0.9", "10.244.0.3", "10.244.0.1"))[0])
    taken = adopted(kernel, state)[Family.IPV4]
    endpoints = [type(o).__name__ for o in taken.operations if o.set.name == "endpoints"]  # type: ignore[union-attr]
    assert endpoints == ["DeleteElement", "AddElement"]  # .2 gives its number to .9


def test_a_table_that_goes_meanwhile_is_an_error_of_the_transaction(world: tuple[Any, State]) -> None:
    from rules.errors import TransactionError

    kernel, state = world
    state.apply(Delete(SERVICE, "default", "web"))
    taken = adopted(kernel, state)[Family.IPV4]
    kernel.commit([DeleteTable(V4.table)])
    with pytest.raises(TransactionError):
        kernel.commit(taken.operations)
