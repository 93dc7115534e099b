"""proxy.reading: what is kept of an object says the same to the state as the object itself."""

from __future__ import annotations

import pytest

from integration.apiserver.server import FakeApi
from proxy.apiserver import ApiSource, Connection
from proxy.events import Inbox, Put, Replace
from proxy.model import ENDPOINT_SLICE, NODE, SERVICE, SERVICE_CIDR, KubeObject, convert
from proxy.reading import ServiceReading, SliceReading, name_of, read
from proxy.state import State
from tests.objects import endpoint_slice, service

WEB = convert(SERVICE, service("web", "10.96.0.1", "fd00::1"))
SLICE = convert(ENDPOINT_SLICE, endpoint_slice("web", "10.244.0.1", "10.244.0.2"))
BAD = convert(SERVICE, service("bad", "10.96.0.2", ports=[{"port": 0}]))
ODD = convert(ENDPOINT_SLICE, endpoint_slice("web", "10.244.0.3", "nonsense", name="odd"))
OBJECTS = [WEB, SLICE, BAD, ODD]


def test_services_and_slices_are_reduced_and_no_others() -> None:
    assert [type(read(obj)) for obj in OBJECTS] == [ServiceReading, SliceReading, ServiceReading, SliceReading]
    for obj in (
        convert(NODE, {"metadata": {"name": "n"}}),
        convert(SERVICE_CIDR, {"metadata": {"name": "kubernetes"}}),
        read(WEB),
    ):
        assert read(obj) is obj


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda obj: obj.metadata.name)
def test_the_name_stays(obj: KubeObject) -> None:
    assert name_of(read(obj)) == name_of(obj) == (obj.metadata.namespace, obj.metadata.name)


@pytest.mark.parametrize("at_once", [False, True])
def test_the_state_makes_the_same_of_both(at_once: bool) -> None:
    states = []
    for reduce in (False, True):
        state = State("n")
        items = [read(obj) if reduce else obj for obj in OBJECTS]
        if at_once:
            state.apply(Replace(SERVICE, [items[0], items[2]]))
            state.apply(Replace(ENDPOINT_SLICE, [items[1], items[3]]))
        else:
            for item in items:
                state.apply(Put(item))
        states.append((state.wanted(), state.faults.news))
    assert states[0] == states[1]
    assert len(states[0][1]) == 2


def test_a_relist_of_reduced_objects_changes_nothing() -> None:
    state = State("n")
    state.apply(Replace(SERVICE, [WEB]))
    state.apply(Replace(ENDPOINT_SLICE, [SLICE]))
    state.settle_all()
    state.apply(Replace(SERVICE, [read(WEB)]))
    state.apply(Replace(ENDPOINT_SLICE, [read(SLICE)]))
    assert state.wanted() == {}


def test_the_source_reduces() -> None:
    with FakeApi() as api:
        api.put(service("web", "10.96.0.1"))
        inbox = Inbox()
        source = ApiSource(Connection(server=api.url), inbox, "n")
        source.start()
        found: list[object] = []
        while not found:
            found = [item for e in inbox.take(10) if isinstance(e, Replace) and e.kind == SERVICE for item in e.objects]
        source.stop()
    assert [type(item) for item in found] == [ServiceReading]
