"""What is counted, and when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.events import Delete, Event, Put, Replace
from proxy.measures import (
    NETWORK_BOUNDS,
    SYNC_BOUNDS,
    Counts,
    Histogram,
    Histograms,
    LocalPolicies,
    Reconciles,
    Requests,
    Syncs,
)
from proxy.model import ENDPOINT_SLICE, SERVICE, KubeObject, convert
from proxy.reading import TRIGGER_TIME, SliceReading, read
from proxy.state import MAX_TRIGGERS, State
from rules.elements import ServicePort, address_of, node_port_key, service_key
from rules.objects import Family
from tests.objects import Object, endpoint_slice, service

V4, V6 = Family.IPV4, Family.IPV6


def test_kube_proxys_bounds() -> None:
    assert len(SYNC_BOUNDS) == 15 and (SYNC_BOUNDS[0], SYNC_BOUNDS[-1]) == (0.001, 16.384)
    assert NETWORK_BOUNDS[:4] == (0.0, 0.25, 0.5, 1.0) and NETWORK_BOUNDS[-8:-5] == (115.0, 120.0, 150.0)
    assert NETWORK_BOUNDS[-1] == 300.0 and sorted(set(NETWORK_BOUNDS)) == list(NETWORK_BOUNDS)


@given(st.lists(st.floats(0, 20)))
def test_a_histogram(values: list[float]) -> None:
    histogram = Histogram((0.0, 1.0, 5.0))
    for value in values:
        histogram.observe(value)
    counts, total = histogram.read()
    assert counts == [sum(value <= bound for value in values) for bound in (0.0, 1.0, 5.0, 20.0)]
    assert total == pytest.approx(sum(values))


def test_by_labels() -> None:
    found = Histograms((1.0,))
    found.observe(("a",), 0.5)
    found.observe(("a",), 2.0)
    found.observe(("b",), 3.0)
    assert {labels: one.read() for labels, one in found.read().items()} == {
        ("a",): ([1, 2], 2.5),
        ("b",): ([0, 1], 3.0),
    }
    counts = Counts([("a",)])
    counts.add(("b",), 3)
    assert counts.read() == {("a",): 0, ("b",): 3}


def test_requests() -> None:
    requests = Requests()
    requests.made("api:6443", "GET", "200", 0.01, is_watch=True)
    requests.made("api:6443", "POST", "<error>", 0.01, is_watch=False)
    assert requests.counts.read() == {("200", "api:6443", "GET"): 1, ("<error>", "api:6443", "POST"): 1}
    assert set(requests.seconds.read()) == {("api:6443", "POST")}


def test_reconciles() -> None:
    reconciles = Reconciles()
    assert reconciles.deleted.read() == {("IPv4",): 0, ("IPv6",): 0}
    reconciles.done(0.1, {V4: 2, V6: 0})
    assert reconciles.deleted.read() == {("IPv4",): 2, ("IPv6",): 0}
    assert set(reconciles.seconds.read()) == {("IPv4",), ("IPv6",)}


# -- Syncs -------------------------------------------------------------------------------------------------------------


def test_network_programming_is_of_changes_that_this_process_has_seen_happen() -> None:
    now = [1000.0]
    syncs = Syncs(lambda: now[0])
    now[0] = 1010.0
    made = State("node-1")
    made.triggers = [(V4, 1009.7), (V6, 1000.0), (V4, 999.9), (V4, 1010.1)]
    syncs.synced(made, 0.1, full=False)
    assert made.triggers == []
    assert syncs.network[V4].read()[1] == pytest.approx(0.3)
    counts, total = syncs.network[V6].read()
    assert (counts[-1], total) == (1, 10.0)


def test_a_sync() -> None:
    syncs = Syncs(lambda: 5.0)
    assert (syncs.queued_at, syncs.synced_at) == (0, 0)
    syncs.queued()
    made = state(*first_lists())
    syncs.synced(made, 0.1, full=True)
    made.apply(Put(obj(service("api", "10.96.0.2"))))
    assert (syncs.programmed_services, syncs.programmed_slices) == (1, 1)
    syncs.synced(made, 0.2, full=False)
    assert (syncs.queued_at, syncs.synced_at) == (5.0, 5.0)
    assert [one.read()[1] for one in (syncs.all, syncs.full, syncs.partial)] == pytest.approx([0.3, 0.1, 0.2])
    assert (syncs.programmed_services, syncs.programmed_slices) == (2, 1)
    syncs.committed(0.1, 0, 0)  # nothing was to be done
    syncs.committed(0.1, 7, 700)
    assert (syncs.operations, syncs.bytes, syncs.commits.read()[0][-1]) == (7, 700, 1)


def test_what_was_taken_over() -> None:
    syncs = Syncs()
    syncs.took_over({"ip": 3, "ip6": 9}, {"ip": 10, "ip6": 2})
    assert syncs.adopted == {"ip": 7, "ip6": 0} and syncs.differences == {"ip": 3, "ip6": 9}


# -- Service ports without endpoints here ------------------------------------------------------------------------------


def port(key: bytes, name: str = "a/b:c", **fields: Any) -> ServicePort:
    return ServicePort(key, name, drop=True, **fields)


CLUSTER = service_key(bytes(4), 6, 80)
EXTERNAL = service_key(b"\1\2\3\4", 6, 80)
NODE_PORT = node_port_key(V4, 6, 30080)
CLUSTER6 = service_key(bytes(16), 6, 80)


def counted(policies: LocalPolicies) -> dict[tuple[str, ...], int]:
    return {labels: count for labels, count in policies.read(tuple(Family)).items() if count}


def test_a_service_port_counts_once_for_all_its_addresses() -> None:
    policies = LocalPolicies()
    ports = [port(CLUSTER), port(EXTERNAL, external=True), port(NODE_PORT, external=True), port(CLUSTER6)]
    policies.update({one.key: one for one in ports}, everything=True)
    everything = {("IPv4", "internal"): 1, ("IPv4", "external"): 1, ("IPv6", "internal"): 1}
    assert counted(policies) == everything
    policies.update({EXTERNAL: None}, everything=False)
    assert counted(policies) == everything
    policies.update({NODE_PORT: ServicePort(NODE_PORT, "a/b:c")}, everything=False)
    assert counted(policies) == {("IPv4", "internal"): 1, ("IPv6", "internal"): 1}
    policies.update({CLUSTER6: ports[3]}, everything=True)
    assert counted(policies) == {("IPv6", "internal"): 1}
    assert set(policies.read([V4])) == {("IPv4", "external"), ("IPv4", "internal")}


KEYS = (CLUSTER, EXTERNAL, NODE_PORT, CLUSTER6)
PORTS = st.builds(ServicePort, st.just(b""), st.sampled_from("ab"), drop=st.booleans())
UPDATES = st.lists(st.tuples(st.booleans(), st.dictionaries(st.sampled_from(KEYS), st.none() | PORTS)))


@given(UPDATES)
def test_what_is_counted_is_what_there_is(updates: list[tuple[bool, dict[bytes, ServicePort | None]]]) -> None:
    policies, known = LocalPolicies(), dict[bytes, ServicePort | None]()
    for everything, ports in updates:
        changed = {key: one and ServicePort(key, one.name, drop=one.drop) for key, one in ports.items()}
        known = changed if everything else known | changed
        policies.update(changed, everything=everything)
    dropping = {
        ("IPv4" if one.family is V4 else "IPv6", "external" if key == NODE_PORT else "internal", one.name)
        for key, one in known.items()
        if one and one.drop
    }
    assert sum(counted(policies).values()) == len(dropping)
    assert set(counted(policies)) == {name[:2] for name in dropping}


# -- What the state counts ---------------------------------------------------------------------------------------------


def obj(data: Object) -> KubeObject:
    return convert(data["kind"], data)


def triggered(name: str, address: str, at: str) -> KubeObject:
    data = endpoint_slice("web", address, name=name)
    data["metadata"].setdefault("annotations", {})[TRIGGER_TIME] = at
    return obj(data)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:01:40Z", 100.0),
        ("1970-01-01T00:01:40.250000123Z", 100.25),
        ("1970-01-01T01:01:40+01:00", 100.0),
        ("1970-01-01T00:01:40", 0.0),
        ("yesterday", 0.0),
        ("", 0.0),
    ],
)
def test_trigger_times(text: str, seconds: float) -> None:
    read_ = read(triggered("web", "10.0.0.1", text))
    assert isinstance(read_, SliceReading) and read_.triggered == pytest.approx(seconds)


def state(*events: Event) -> State:
    made = State("node-1")
    for event in events:
        made.apply(event)
    return made


def first_lists() -> tuple[Event, ...]:
    at = "1970-01-01T00:00:10Z"
    slices = [triggered("web-1", "10.0.0.1", at)]
    return Replace(SERVICE, [obj(service("web", "10.96.0.1"))]), Replace(ENDPOINT_SLICE, slices)


def test_triggers_are_of_slices_that_changed_after_the_first_list() -> None:
    made = state(*first_lists())
    assert made.triggers == []
    made.apply(Put(triggered("web-1", "10.0.0.1", "1970-01-01T00:00:20Z")))  # it is as it was
    made.apply(Put(triggered("web-1", "10.0.0.2", "1970-01-01T00:00:30Z")))
    made.apply(Put(triggered("web-6", "fd00::1", "1970-01-01T00:00:40Z")))
    made.apply(Put(obj(endpoint_slice("web", "10.0.0.3", name="web-1"))))  # without
    made.apply(Delete(ENDPOINT_SLICE, "default", "web-6"))
    assert made.triggers == [(V4, 30.0), (V6, 40.0)]


def test_triggers_are_bounded() -> None:
    made = state(*first_lists())
    made.triggers = [(V4, 1.0)] * MAX_TRIGGERS
    made.apply(Put(triggered("web-1", "10.0.0.2", "1970-01-01T00:00:30Z")))
    assert len(made.triggers) == MAX_TRIGGERS


def test_changes_that_matter_are_counted() -> None:
    made = state(*first_lists())
    assert (made.service_changes, made.slice_changes) == (1, 1)
    for event in first_lists():
        made.apply(event)
    assert (made.service_changes, made.slice_changes) == (1, 1)
    made.apply(Put(obj(service("api", "10.96.0.2"))))
    made.apply(Delete(SERVICE, "default", "web"))
    made.apply(Delete(SERVICE, "default", "never"))
    made.apply(Delete(ENDPOINT_SLICE, "default", "web-1"))
    assert (made.service_changes, made.slice_changes) == (3, 2)


def test_faulty_objects_and_conflicts() -> None:
    made = state(*first_lists())

    def faulty() -> Mapping[str, int]:
        return dict(made.faults.objects)

    made.apply(Put(obj(service("bad", "10.96.0.256"))))
    made.apply(Put(obj(service("bad", "10.96.0.257"))))
    made.apply(Put(triggered("web-2", "10.0.0.300", "")))
    made.apply(Put(obj(service("web-again", "10.96.0.1"))))
    assert faulty() == {SERVICE: 1, ENDPOINT_SLICE: 1} and len(made.faults.conflicts) == 1
    made.apply(Put(obj(service("bad", "10.96.0.3"))))
    made.apply(Delete(SERVICE, "default", "web-again"))
    assert faulty() == {ENDPOINT_SLICE: 1} and len(made.faults.conflicts) == 0
    made.apply(Delete(ENDPOINT_SLICE, "default", "web-2"))
    assert faulty() == {} and address_of(CLUSTER) == bytes(4)
