"""healthCheckNodePort: which Service answers on which port, and what it says. Pure; proxy.health_server listens.

A load balancer asks each node there whether it has endpoints of the Service (LoadBalancer, externalTrafficPolicy Local).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from http import HTTPStatus

from msgspec import Struct

from proxy.http_message import Response
from proxy.policy import READY, Place, gather
from proxy.services import Name, Scope, ServiceInfo
from proxy.slices import SliceInfo
from rules.elements import family_of
from rules.objects import Family


class HealthCheck(Struct, frozen=True):
    """What a Service needs to be asked. endpoints: for each family that the Service has, how many of its ready
    endpoints are on this node. rank: who keeps a port that two have: the smaller."""

    port: int
    endpoints: dict[Family, int]
    rank: tuple[str, Name]


def health_check(service: ServiceInfo | None, slices: Collection[SliceInfo], place: Place) -> HealthCheck | None:
    """None: nobody may ask (any more). slices: all of the Service."""
    if service is None or not 0 < service.health_check_port < 65536:
        return None
    families = {family_of(port.key) for port in service.ports if port.scope is Scope.CLUSTER_IP}
    endpoints = {family: _count(slices, family.address_size, place) for family in sorted(families)}
    return HealthCheck(service.health_check_port, endpoints, service.rank)


def _count(slices: Collection[SliceInfo], size: int, place: Place) -> int:
    """Each address once, however many ports it has. Those that are going do not count, even where traffic still gets
    to them: the load balancer is to look for another node."""
    ports = {(name, protocol) for slice_ in slices if slice_.address_size == size for name, protocol, _ in slice_.ports}
    return len(
        {
            endpoint.address
            for name, protocol in ports
            for endpoint, _ in gather(slices, size, name, protocol)
            if endpoint.conditions & READY and endpoint.node == place.node
        }
    )


class Conflict(Struct, frozen=True):
    """Two Services have one port."""

    port: int
    holder: Name
    loser: Name


class HealthChecks:
    """All that are wanted, and who answers on each port: of two Services the older (see HealthCheck.rank)."""

    def __init__(self) -> None:
        self._checks: dict[Name, HealthCheck] = {}
        self._claims: dict[int, set[Name]] = {}

    def update(self, changes: Mapping[Name, HealthCheck | None]) -> tuple[bool, list[Conflict]]:
        """Take in what changed; None: gone. Returns whether `ports` may be others now, and the conflicts that are
        new."""
        claimed: list[HealthCheck] = []
        moved = False
        for name, new in changes.items():
            old = self._checks.pop(name, None)
            moved |= _claim(old) != _claim(new)
            if new:
                self._checks[name] = new
            if old and (new is None or new.port != old.port):
                self._claims[old.port].remove(name)
                if not self._claims[old.port]:
                    del self._claims[old.port]
            if new and (old is None or new.port != old.port):
                self._claims.setdefault(new.port, set()).add(name)
                claimed.append(new)
        conflicts = [self._conflict(check) for check in claimed]
        return moved, [conflict for conflict in conflicts if conflict]

    def holder(self, port: int) -> Name | None:
        """The Service that answers on this port."""
        return min(self._claims.get(port, ()), key=lambda name: self._checks[name].rank, default=None)

    def endpoints(self, port: int, family: Family) -> tuple[Name, int] | None:
        """Who answers on this port, and how many endpoints it has; None: nobody does."""
        name = self.holder(port)
        if name is None or family not in self._checks[name].endpoints:
            return None
        return name, self._checks[name].endpoints[family]

    def ports(self) -> Iterator[tuple[Family, int]]:
        """Each family and port on which somebody answers."""
        for port in self._claims:
            name = self.holder(port)
            if name:
                for family in self._checks[name].endpoints:
                    yield family, port

    def _conflict(self, claimed: HealthCheck) -> Conflict | None:
        mine = claimed.rank[1]
        others = [self._checks[name] for name in self._claims[claimed.port] if name != mine]
        if not others:
            return None
        other = min(others, key=lambda check: check.rank)
        holder, loser = sorted((claimed, other), key=lambda check: check.rank)
        return Conflict(claimed.port, holder.rank[1], loser.rank[1])


def _claim(check: HealthCheck | None) -> object:
    """All of it but the numbers."""
    return check and (check.port, check.rank, check.endpoints.keys())


def answer(name: Name, endpoints: int, healthy: bool) -> Response:
    """What to say to whatever is asked. healthy: this proxy does its work."""
    namespace, service = name
    status = HTTPStatus.OK if endpoints and healthy else HTTPStatus.SERVICE_UNAVAILABLE
    said = {
        "service": {"namespace": namespace, "name": service},
        "localEndpoints": endpoints,
        "serviceProxyHealthy": healthy,
    }
    headers = {
        "Content-Type": "application/json",
        "X-Content-Type-Options": "nosniff",
        "X-Load-Balancing-Endpoint-Weight": str(endpoints),
    }
    return Response(status, json.dumps(said, indent="\t").encode(), headers)
