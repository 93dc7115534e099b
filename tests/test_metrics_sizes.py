"""The sizes of sets that are told without looking are those that the table has; requests to API servers are counted."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from integration.apiserver.server import FakeApi
from proxy.agent import Agent
from proxy.apiserver import Connection
from proxy.events import Delete, Event, Inbox, Put, Replace
from proxy.model import ENDPOINT_SLICE, KINDS, SERVICE, EndpointSlice, KubeObject, Service, convert
from proxy.services import SCHEDULER_ANNOTATION
from proxy.state import State
from proxy.trouble import Trouble
from rules.fake import FakeKernel
from rules.layout import LAYOUTS
from tests.objects import Object, endpoint_slice, service

NAMES = ("a", "b", "c", "d")


def obj(data: Object) -> KubeObject:
    return convert(data["kind"], data)


def some_service(rand: random.Random, name: str) -> KubeObject:
    number = NAMES.index(name) + 1
    spec: dict[str, Any] = {
        "type": "LoadBalancer",
        "ports": [{"port": 80, "name": "http", "nodePort": 30000 + number if rand.random() < 0.5 else 0}],
        "sessionAffinity": rand.choice(["None", "ClientIP"]),
        "internalTrafficPolicy": rand.choice(["Cluster", "Local"]),
        "externalTrafficPolicy": rand.choice(["Cluster", "Local"]),
        "externalIPs": rand.choice([[], ["192.0.2.1"], ["192.0.2.2", "2001:db8::1"]]),
        "loadBalancerSourceRanges": rand.choice([[], ["198.51.100.0/24"], ["198.51.100.0/25", "203.0.113.0/24"]]),
    }
    data = service(name, f"10.96.0.{number}", f"fd00::{number}", **spec)
    data["status"] = {"loadBalancer": {"ingress": [{"ip": f"192.0.2.1{number}"}]}}
    data["metadata"]["annotations"] = {SCHEDULER_ANNOTATION: rand.choice(["random", "rr", "sh"])}
    return obj(data)


def some_slice(rand: random.Random, name: str) -> KubeObject:
    pods = rand.sample(range(1, 9), rand.randrange(8))
    data = endpoint_slice(name, *(f"10.244.0.{pod}" for pod in pods), name=name)
    for endpoint in data["endpoints"] or ():
        endpoint["nodeName"] = rand.choice(["node-1", "node-2"])
    return obj(data)


def some_event(rand: random.Random) -> Event:
    name = rand.choice(NAMES)
    choices: list[Callable[[], Event]] = [
        lambda: Put(some_service(rand, name)),
        lambda: Put(some_slice(rand, name)),
        lambda: Put(some_slice(rand, name)),
        lambda: Delete(SERVICE, "default", name),
        lambda: Delete(ENDPOINT_SLICE, "default", name),
    ]
    return rand.choice(choices)()


def check(agent: Agent, kernel: FakeKernel) -> None:
    for family, programmed in agent.tables.programmed.items():
        table = kernel.dump(LAYOUTS[family].table)
        assert table
        told = {name: size for name, size in programmed.sizes.items() if size}
        there = {name: len(state.elements) for name, state in table.sets.items() if state.elements}
        assert told == {name: size for name, size in there.items() if name in programmed.sizes}
        in_use = [name for name in told if name.endswith("endpoints") and not name.endswith("no-endpoints")]
        assert bool(in_use) == any(entry.port.endpoints or entry.port.local for entry in programmed.entries.values())


@pytest.mark.parametrize("seed", range(5))
def test_sizes_follow_every_change_and_a_restart(seed: int) -> None:
    rand, kernel = random.Random(seed), FakeKernel()
    agent = Agent(State("node-1"), kernel, Inbox())
    known: dict[str, dict[str, KubeObject]] = {kind: {} for kind in KINDS}
    agent.handle([Replace(kind, ()) for kind in KINDS])
    for _ in range(60):
        event = some_event(rand)
        if isinstance(event, Put) and isinstance(event.obj, Service | EndpointSlice):
            known[type(event.obj).__name__][event.obj.metadata.name] = event.obj
        elif isinstance(event, Delete):
            known[event.kind].pop(event.name, None)
        agent.handle([event])
        check(agent, kernel)
    chains = {f: p.chains for f, p in agent.tables.programmed.items()}
    again = Agent(State("node-1"), kernel, Inbox())
    again.handle([Replace(kind, list(objects.values())) for kind, objects in known.items()])
    check(again, kernel)
    assert again.syncs.adopted == agent.tables.sizes and set(again.syncs.differences.values()) == {0}
    assert all(again.tables.programmed[f].chains <= count for f, count in chains.items())
    again.handle([Replace(kind, ()) for kind in (SERVICE, ENDPOINT_SLICE)])
    check(again, kernel)
    assert {size for p in again.tables.programmed.values() for size in p.sizes.values()} <= {0}


def test_requests_are_counted(api: FakeApi) -> None:
    connection = Connection(server=api.url, environment={})
    host = api.url.removeprefix("http://")
    for path in ("/api/v1/services", "/nothing"):
        with connection.get(path, read_timeout=5) as answer:
            answer.read()
    connection.get("/api/v1/services?watch=1&timeoutSeconds=1", read_timeout=5).__enter__().close()
    api.stop()
    with contextlib.suppress(Trouble):
        connection.send("POST", "/api/v1/services", b"{}", read_timeout=1)
    found = connection.requests.counts.read()
    assert found[("200", host, "GET")] == 2 and found[("404", host, "GET")] == 1
    assert found[("<error>", host, "POST")] == 1
    seconds = {labels: one.read()[0][-1] for labels, one in connection.requests.seconds.read().items()}
    assert seconds == {(host, "GET"): 2, (host, "POST"): 1}
