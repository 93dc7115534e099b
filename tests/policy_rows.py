"""Every row of the policy table, generated: a Service with its EndpointSlices for each traffic policy and each state
that endpoints can be in, and the addresses at which all of its kinds of destination are reached.

Local endpoints listen on other ports than remote ones, so a target port that comes from the wrong slice shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

Object = Mapping[str, Any]

PORT: Final = 80
"""Of all Services, for TCP and for UDP."""

KINDS: Final = ("clusterIP", "externalIP", "loadBalancer", "nodePort")
STRAY: Final = ("clusterIP, another port", "clusterIP of nobody")
NETWORKS: Final = ("10.96.0.0/12", "198.18.0.0/15", "fd00:10:96::/112", "2001:db8::/32")
"""All addresses of these kinds, but for the NodePorts'."""

ZONE: Final = "z1"
LOCAL, REMOTE, OTHER = "10.244.0.2 fd44::2", "10.244.1.2 fd44:1::2", "10.244.1.3 fd44:1::3"
LOCAL_2: Final = "10.244.0.3 fd44::3"

READY: Final[Object] = {"ready": True, "serving": True, "terminating": False}
DRAINING: Final[Object] = {"ready": False, "serving": True, "terminating": True}
DEAD: Final[Object] = {"ready": False, "serving": False, "terminating": False}
DYING: Final[Object] = {"ready": False, "serving": False, "terminating": True}
STARTING: Final[Object] = {"ready": False, "serving": True, "terminating": False}

State = tuple[tuple[str, Object, Object], ...]
"""Endpoints: their addresses of both families, their conditions, and what else they have."""

_NONE: Final[Object] = {}


def _hints(zone: str = "", node: str = "") -> Object:
    zones = {"forZones": [{"name": zone}]} if zone else {}
    return {"hints": {**zones, **({"forNodes": [{"name": node}]} if node else {})}}


STATES: Final[Mapping[str, State]] = {
    "local ready": ((LOCAL, READY, _NONE),),
    "remote ready": ((REMOTE, READY, _NONE), (OTHER, READY, _NONE)),
    "local and remote ready": ((LOCAL, READY, _NONE), (REMOTE, READY, _NONE), (OTHER, READY, _NONE)),
    "none": (),
    "local draining": ((LOCAL, DRAINING, _NONE),),
    "remote draining": ((REMOTE, DRAINING, _NONE), (OTHER, DRAINING, _NONE)),
    "local draining, remote ready": ((LOCAL, DRAINING, _NONE), (REMOTE, READY, _NONE), (OTHER, READY, _NONE)),
    "none ready, none serving": ((LOCAL, DEAD, _NONE), (REMOTE, DYING, _NONE)),
}

MORE_STATES: Final[Mapping[str, State]] = {
    "conditions missing": ((LOCAL, _NONE, _NONE), (REMOTE, _NONE, _NONE)),
    "draining, serving missing": ((LOCAL, {"ready": False, "terminating": True}, _NONE),),
    "local dead, remote ready": ((LOCAL, DEAD, _NONE), (REMOTE, READY, _NONE)),
    "local ready, remote draining": ((LOCAL, READY, _NONE), (REMOTE, DRAINING, _NONE)),
    "local starting, remote draining": ((LOCAL, STARTING, _NONE), (REMOTE, DRAINING, _NONE)),
    "all draining": ((LOCAL, DRAINING, _NONE), (LOCAL_2, DYING, _NONE), (REMOTE, DRAINING, _NONE)),
    "two local, one draining": ((LOCAL, READY, _NONE), (LOCAL_2, DRAINING, _NONE), (REMOTE, READY, _NONE)),
    "two of each": tuple((where, READY, _NONE) for where in (LOCAL, LOCAL_2, REMOTE, OTHER)),
    "zone hints": (
        (LOCAL, READY, _hints("z2")),
        (REMOTE, READY, _hints(ZONE)),
        (OTHER, READY, _hints(ZONE)),
    ),
    "zone hints, one without": ((LOCAL, READY, _hints("z2")), (REMOTE, READY, _hints(ZONE)), (OTHER, READY, _NONE)),
    "zone hints, none for us": ((LOCAL, READY, _hints("z2")), (REMOTE, READY, _hints("z3"))),
    "zone hints, draining without": (
        (LOCAL, DRAINING, _NONE),
        (REMOTE, READY, _hints(ZONE)),
        (OTHER, READY, _hints("z2")),
    ),
    "zone hints, all draining": ((LOCAL, DRAINING, _hints("z2")), (REMOTE, DRAINING, _hints(ZONE))),
    "zone hints, two local": (
        (LOCAL, READY, _hints("z2")),
        (LOCAL_2, READY, _hints(ZONE)),
        (REMOTE, READY, _hints("z2")),
    ),
    "node hints before zone hints": (
        (LOCAL, READY, _hints("z2", "node1")),
        (REMOTE, READY, _hints("z2", "node0")),
        (OTHER, READY, _hints(ZONE, "node1")),
    ),
    "node hints for others, zone hints": (
        (LOCAL, READY, _hints("z2", "node1")),
        (REMOTE, READY, _hints(ZONE, "node1")),
    ),
}

SOURCE_RANGES: Final[Mapping[str, list[str]]] = {
    "client in": ["203.0.113.0/24", "192.168.77.1/32", "fd77::1/128"],
    "pods in, with blanks": [" 10.244.0.0/24", "fd44::/64 "],
    "client in, with host bits": ["192.168.77.1/29", "fd77::1/125"],
    "nobody in": ["203.0.113.0/24", "2001:db8:ffff::/48"],
    "only IPv4": ["192.168.77.1/32"],
    "only IPv6": ["fd77::1/128"],
    "all": ["203.0.113.0/24", "0.0.0.0/0", "2001:db8:ffff::/48", "::/0"],
    "all of IPv6, few of IPv4": ["203.0.113.0/24", "::/0"],
    "the node in": ["192.168.77.2/32", "fd77::2/128"],
}


@dataclass(frozen=True)
class Row:
    """addresses: kind of destination -> one address a family.

    on_node: the load balancer's addresses are the node's own, too: to them it speaks as the one it speaks to.
    """

    label: str
    service: Object
    slices: list[Object]
    addresses: Mapping[str, tuple[str, str]]
    on_node: bool = False

    def destination(self, kind: str, version: int) -> tuple[str, int]:
        if kind == "clusterIP of nobody":
            return ("10.100.9.9", "fd00:10:96::fff0")[version == 6], PORT
        if kind == "clusterIP, another port":
            return self.addresses["clusterIP"][version == 6], PORT + 1
        port = self.service["spec"]["ports"][0]["nodePort"] if kind == "nodePort" else PORT
        return self.addresses[kind][version == 6], port


class Rows:
    """Makes rows whose addresses and ports nobody else has, not even with another `block` (0 to 10)."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._numbers = itertools.count(1)

    def policies(self, states: Mapping[str, State], label: str = "", **spec: Any) -> Iterator[Row]:
        """Every state with every pair of traffic policies."""
        for policies in itertools.product(("Cluster", "Local"), repeat=2):
            for name, state in states.items():
                internal, external = policies
                traffic = {"internalTrafficPolicy": internal, "externalTrafficPolicy": external}
                yield self.row(f"{label}internal {internal}, external {external}, {name}", state, {**traffic, **spec})

    def source_ranges(self) -> Iterator[Row]:
        for (name, ranges), policy, state in itertools.product(
            SOURCE_RANGES.items(), ("Cluster", "Local"), ("local and remote ready", "remote ready", "none")
        ):
            spec = {"externalTrafficPolicy": policy, "loadBalancerSourceRanges": ranges}
            yield self.row(f"source ranges: {name}, external {policy}, {state}", STATES[state], spec)
            if name in ("the node in", "nobody in"):
                label = f"source ranges: {name}, address on node, external {policy}, {state}"
                yield self.row(label, STATES[state], spec, on_node=True)

    def row(self, label: str, state: State, spec: Object, *, on_node: bool = False) -> Row:
        block, number = self._block, next(self._numbers)
        assert number < 250 and block <= 10
        name = f"s{block}-{number}"
        node_port = 30000 + 250 * block + number  # to 32767, as by default in a cluster
        addresses = {
            "clusterIP": (f"10.96.{16 + block}.{number}", f"fd00:10:96::{16 + block:x}{number:02x}"),
            "externalIP": (f"198.18.{block}.{number}", f"2001:db8:e::{block}:{number:x}"),
            "loadBalancer": (f"198.19.{block}.{number}", f"2001:db8:b::{block}:{number:x}"),
            "nodePort": ("192.168.77.2", "fd77::2"),
        }
        ports = [
            {"name": p.lower(), "protocol": p, "port": PORT, "targetPort": 8080, "nodePort": node_port}
            for p in ("TCP", "UDP")
        ]
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "type": "LoadBalancer",
                "clusterIP": addresses["clusterIP"][0],
                "clusterIPs": list(addresses["clusterIP"]),
                "ipFamilies": ["IPv4", "IPv6"],
                "externalIPs": list(addresses["externalIP"]),
                "ports": ports,
                "internalTrafficPolicy": "Cluster",
                "externalTrafficPolicy": "Cluster",
                **spec,
            },
            "status": {"loadBalancer": {"ingress": [{"ip": ip} for ip in addresses["loadBalancer"]]}},
        }
        slices = [
            _slice(name, version, local, [e for e in state if (e[0] in (LOCAL, LOCAL_2)) is local])
            for version in (4, 6)
            for local in (True, False)
        ]
        return Row(label, service, slices, addresses, on_node)


def _slice(service: str, version: int, local: bool, endpoints: list[tuple[str, Object, Object]]) -> Object:
    tcp, udp = (8080, 5353) if local else (8081, 9090)
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{service}-{'local' if local else 'remote'}-{version}",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": f"IPv{version}",
        "ports": [{"name": "tcp", "protocol": "TCP", "port": tcp}, {"name": "udp", "protocol": "UDP", "port": udp}],
        "endpoints": [
            {
                "addresses": [addresses.split()[version == 6]],
                "nodeName": "node0" if local else "node1",
                "conditions": conditions,
                **more,
            }
            for addresses, conditions, more in endpoints
        ],
    }
