"""The cost follows the change: among 10 Services and among 10,000, the same bytes are sent and the same objects seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import pytest

from bench import cluster
from proxy.agent import Agent
from proxy.events import Delete, Event, Inbox, Put, Replace
from proxy.model import ENDPOINT_SLICE, NODE, SERVICE, SERVICE_CIDR, Service, convert
from proxy.state import State
from rules.expressions import Lookup
from rules.fake import FakeKernel
from rules.layout import LAYOUTS, Layout, Options
from rules.transaction import Operation

ENDPOINTS = 10


class Metered(FakeKernel):
    """Remembers what the last transaction was."""

    def commit(self, operations: Sequence[Operation]) -> int:
        self.last = (len(operations), super().commit(operations))
        return self.last[1]


def loaded(services: int) -> Agent:
    agent = Agent(State("node-1"), Metered(), Inbox())
    agent.handle(
        [
            Replace(SERVICE, list(cluster.services(services))),
            Replace(ENDPOINT_SLICE, list(cluster.slices(services, ENDPOINTS))),
            Replace(NODE, []),
            Replace(SERVICE_CIDR, []),
        ]
    )
    return agent


@pytest.fixture(scope="module")
def small() -> Agent:
    return loaded(10)


@pytest.fixture(scope="module")
def big() -> Agent:
    return loaded(10_000)


def pods(count: int, first: int = 0) -> Event:
    """Service 3 has these pods."""
    return Put(cluster.endpoint_slice(3, list(range(first, first + count))))


def unready(number: int) -> Event:
    obj = cluster.endpoint_slice(3, list(range(ENDPOINTS)))
    assert obj.endpoints
    conditions = obj.endpoints[number].conditions
    assert conditions
    conditions.ready = False
    return Put(obj)


def renamed() -> Event:
    obj = cluster.service(5)
    assert isinstance(obj, Service)
    assert obj.spec.ports
    obj.spec.ports[0].name = "other"
    return Put(obj)


def node(zone: str) -> Event:
    return Put(convert(NODE, {"metadata": {"name": "node-1", "labels": {"topology.kubernetes.io/zone": zone}}}))


def cidrs(*networks: str) -> Event:
    return Put(convert(SERVICE_CIDR, {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": list(networks)}}))


def featured(policy: str, *, without: int = 0) -> list[Event]:
    """A Service with every field that costs something, and its endpoints, of which some are on this node."""
    name, number, first = "featured", 30_000, 20_000 * cluster.NODES
    obj = cluster.service(number)
    assert isinstance(obj, Service)
    plain = msgspec.to_builtins(obj)
    plain["metadata"]["name"] = name
    plain["spec"] |= {
        "type": "LoadBalancer",
        "externalIPs": ["192.0.2.1", "192.0.2.2"],
        "externalTrafficPolicy": policy,
        "sessionAffinity": "ClientIP",
        "loadBalancerSourceRanges": ["10.0.0.0/8", "192.168.0.0/16"],
    }
    plain["spec"]["ports"] = [
        {"name": "http", "port": 80, "nodePort": 30080},
        {"name": "dns", "port": 53, "nodePort": 30053, "protocol": "UDP"},
    ]
    plain["status"] = {"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}}
    pods = cluster.endpoint_slice(number, list(range(first, first + ENDPOINTS - without)))
    pods.metadata.labels = {"kubernetes.io/service-name": name}
    return [Put(pods), Put(convert(SERVICE, plain))]


CHANGES: dict[str, tuple[Callable[[], list[Event]], int | None]] = {
    # name: (events after which the change is made; the change is the last), operations expected
    "nothing changes": (lambda: [pods(10), pods(10)], 0),
    "an endpoint is replaced": (lambda: [pods(10), pods(10, first=1)], 2),
    "an endpoint joins": (lambda: [pods(10), pods(11)], 3),
    "an endpoint leaves": (lambda: [pods(10), pods(9)], 3),
    "an endpoint in the middle leaves": (lambda: [pods(10), unready(4)], 5),
    "the count passes a power of two": (lambda: [pods(16), pods(17)], 3),
    "the last endpoint leaves": (lambda: [pods(0), pods(1), pods(0)], 2),
    "the last endpoint leaves for the first time": (
        lambda: [
            Put(cluster.endpoint_slice(20_002, [1])),
            Put(cluster.service(20_002)),
            Put(cluster.endpoint_slice(20_002, [])),
        ],
        3,  # from now on, what is refused is counted
    ),
    "the first endpoint comes": (lambda: [pods(0), pods(1)], 2),
    "a Service comes": (
        lambda: [Put(cluster.endpoint_slice(20_000, [1, 2])), Put(cluster.service(20_000))],
        4,
    ),
    "a Service goes": (
        lambda: [
            Put(cluster.endpoint_slice(20_001, [1, 2])),
            Put(cluster.service(20_001)),
            Delete(SERVICE, "default", "service-20001"),
        ],
        4,
    ),
    "a slice goes": (lambda: [pods(0), pods(10), Delete(ENDPOINT_SLICE, "default", "service-3-abcde")], 11),
    "a port is renamed": (lambda: [Put(cluster.service(5)), renamed()], 12),  # and so has no endpoints
    "a ServiceCIDR comes": (lambda: [cidrs(), cidrs("10.96.0.0/12")], 3),
    "a Service with every feature comes": (lambda: featured("Cluster"), None),
    "an endpoint of a Service with every feature leaves": (
        lambda: [*featured("Cluster"), featured("Cluster", without=1)[0]],
        5,  # one at the clusterIP, at each of three external addresses, and at the NodePort
    ),
    "its policy becomes Local": (lambda: [*featured("Cluster"), featured("Local")[1]], None),
    "a label of this node changes": (lambda: [node("z1"), node("z2")], 0),
}


def cost(agent: Agent, events: list[Event]) -> tuple[int, int, int]:
    """(operations, bytes, objects looked at) of the last event."""
    *before, change = events
    for event in before:
        agent.handle([event])
    kernel = agent.tables.kernel
    assert isinstance(kernel, Metered)
    kernel.last = (0, 0)
    visited = agent.state.visited
    agent.handle([change])
    return *kernel.last, agent.state.visited - visited


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_costs_the_same_in_a_cluster_of_any_size(name: str, small: Agent, big: Agent) -> None:
    make, operations = CHANGES[name]
    costs = cost(small, make()), cost(big, make())
    assert costs[0] == costs[1]
    assert costs[0][2] <= 20 * ENDPOINTS
    if operations is not None:
        assert costs[0][0] == operations
    else:
        assert costs[0][0] > 0


def test_no_change_at_all_looks_at_nothing(big: Agent) -> None:
    visited = big.state.visited
    big.handle([])
    assert big.state.visited == visited


def test_the_costs_are_really_counted(small: Agent) -> None:
    """A change of a large Service costs more than one of a small Service."""
    assert cost(small, [pods(10), pods(500)])[0] > cost(small, [pods(10), pods(11)])[0]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=["ip", "ip6"])
def test_few_rules_ask_the_maps_of_endpoints(layout: Layout) -> None:
    """For each element that a map gets, the kernel looks at every rule that asks the map."""
    asking = Counter(
        expression.set
        for _, rules in layout.rules(Options(), ())
        for rule in rules
        for expression in rule.expressions
        if isinstance(expression, Lookup)
    )
    assert asking["endpoints"] == asking["nodeport-endpoints"]
    assert 0 < asking["endpoints"] <= 90
