"""The servers of proxy.health_checks: on each port and address where a load balancer may ask."""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from proxy.health_checks import HealthCheck, HealthChecks, answer
from proxy.http_connections import Spot
from proxy.http_message import Request, Response
from proxy.http_server import HttpServer, Listeners, Site
from proxy.services import Name
from rules.objects import Family

LOG = structlog.get_logger()

MAX_ADDRESSES: Final = 64
"""Where more than so many addresses of a family are wanted, one socket listens on all that the node has."""

Addresses = Mapping[Family, frozenset[bytes]]

_REMEDIES: Final = {
    errno.EADDRINUSE: "stop it, or give the Service another port",
    errno.EADDRNOTAVAIL: "check nodePortAddresses",
    errno.EACCES: "give CAP_NET_BIND_SERVICE, or the Service a port above 1023",
}


class HealthServer:
    """Answers health checks from a thread, which is there from the first one on until `stop`.

    healthy: whether this proxy does its work; it is called in that thread, and must not block.
    Sockets are of the network namespace of the thread that makes the first `update` with a check.
    """

    def __init__(self, healthy: Callable[[], bool]) -> None:
        self._healthy = healthy
        self._addresses: Addresses = {}
        self._checks = HealthChecks()  # the server's thread's, as long as there is one
        self._server = HttpServer(Site("health_check", self._answer, _REMEDIES, self._details))
        self._listeners: Listeners | None = None

    def update(self, changes: Mapping[Name, HealthCheck | None], addresses: Addresses) -> None:
        """changes: of the Services whose check may have changed since the last call, None where there is none.
        addresses: all on which to answer. Returns at once."""
        if self._listeners is None:
            if not any(changes.values()):
                return
            self._listeners = self._server.start()
            self._checks = HealthChecks()
        elif not changes and addresses == self._addresses:
            return
        moved = addresses != self._addresses
        self._addresses = addresses
        self._server.call(self._settle, self._listeners, dict(changes), addresses, moved)

    def stop(self) -> None:
        """Close all ports and connections, end the thread and wait for it. Does nothing if there is none."""
        self._server.stop()
        self._listeners = None

    def _settle(
        self, listeners: Listeners, changes: dict[Name, HealthCheck | None], addresses: Addresses, moved: bool
    ) -> None:
        """Take in the changes, listen where it is wanted now and nowhere else."""
        moved_ports, conflicts = self._checks.update(changes)
        for conflict in conflicts:
            LOG.warning(
                "health_check_port_taken",
                port=conflict.port,
                service="/".join(conflict.loser),
                cause=f"Service {'/'.join(conflict.holder)}, which is older, has the same healthCheckNodePort",
                remedy="give one of them another port",
            )
        if moved or moved_ports:
            hosts = {family: _hosts(family, addresses.get(family, frozenset())) for family in Family}
            listeners.listen({(host, port) for family, port in self._checks.ports() for host in hosts[family]})

    def _answer(self, _request: Request, spot: Spot) -> Response | None:
        found = self._checks.endpoints(spot[1], Family.of(spot[0]))
        return answer(*found, self._healthy()) if found else None

    def _details(self, port: int) -> dict[str, str]:
        return {"service": "/".join(self._checks.holder(port) or ())}


def _hosts(family: Family, addresses: frozenset[bytes]) -> frozenset[bytes]:
    """The addresses to listen on for these."""
    if len(addresses) > MAX_ADDRESSES:
        return frozenset([bytes(family.address_size)])
    # A link-local IPv6 address means nothing without its link, and nobody asks a node there.
    return frozenset(a for a in addresses if len(a) == 4 or not ipaddress.IPv6Address(a).is_link_local)
