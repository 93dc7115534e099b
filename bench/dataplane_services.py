"""The Services that the data plane is measured with, for those who write rules for them.

All Services have a clusterIP and a TCP port. TARGETS of them, spread evenly, are those that connections go to: they have
a UDP port, an external IP and NodePorts, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.cluster import FIRST_CLUSTER_IP, FIRST_POD_IP, address
from bench.dataplane_world import NODE, POD_PORT

TARGETS = 16
CLUSTER_PORT = 80
FIRST_NODE_PORT = 30000
FIRST_EXTERNAL_IP = 0xCB007101  # 203.0.113.1


@dataclass(frozen=True)
class Size:
    """So many Services with so many endpoints each. str(): "1000x10"."""

    services: int
    endpoints: int

    def __str__(self) -> str:
        return f"{self.services}x{self.endpoints}"

    @classmethod
    def of(cls, text: str) -> Size:
        """ValueError: not a size."""
        services, _, endpoints = text.partition("x")
        if not services.isdecimal() or not endpoints.isdecimal() or not int(services) * int(endpoints):
            raise ValueError(f"{text!r} is no size: SERVICESxENDPOINTS, as 1000x10")
        return cls(int(services), int(endpoints))

    def targets(self) -> list[int]:
        """Numbers of the Services that connections go to."""
        count = min(TARGETS, self.services)
        return [(2 * i + 1) * self.services // (2 * count) for i in range(count)]


@dataclass(frozen=True)
class Port:
    """A service port. external_ip "", node_port 0: none. affinity: seconds, 0: none."""

    name: str
    protocol: str
    address: str
    pods: tuple[str, ...]
    external_ip: str = ""
    node_port: int = 0
    affinity: int = 0


def pods(service: int, endpoints: int) -> tuple[str, ...]:
    first = FIRST_POD_IP + service * endpoints
    return tuple(address(first + i) for i in range(endpoints))


def ports(size: Size) -> Iterator[Port]:
    targets = {number: i for i, number in enumerate(size.targets())}
    for number in range(size.services):
        name, ip = f"default/service-{number}", address(FIRST_CLUSTER_IP + number)
        ends = pods(number, size.endpoints)
        if number not in targets:
            yield Port(f"{name}:http", "tcp", ip, ends)
            continue
        i = targets[number]
        yield Port(f"{name}:http", "tcp", ip, ends, address(FIRST_EXTERNAL_IP + i), FIRST_NODE_PORT + i)
        yield Port(f"{name}:dns", "udp", ip, ends, address(FIRST_EXTERNAL_IP + i), FIRST_NODE_PORT + i)


Places = list[tuple[str, int]]
"""Addresses and ports to connect to."""


def endpoints(size: Size) -> list[Places]:
    """All endpoints of each target: where its Service leads to."""
    return [[(pod, POD_PORT) for pod in pods(number, size.endpoints)] for number in size.targets()]


def roads(size: Size) -> dict[str, Places]:
    """Ways to the targets: "direct" to an endpoint of each, "clusterIP", "externalIP", "nodePort"."""
    targets = size.targets()
    return {
        "direct": [(pods(number, size.endpoints)[i % size.endpoints], POD_PORT) for i, number in enumerate(targets)],
        "clusterIP": [(address(FIRST_CLUSTER_IP + number), CLUSTER_PORT) for number in targets],
        "externalIP": [(address(FIRST_EXTERNAL_IP + i), CLUSTER_PORT) for i in range(len(targets))],
        "nodePort": [(NODE, FIRST_NODE_PORT + i) for i in range(len(targets))],
    }
