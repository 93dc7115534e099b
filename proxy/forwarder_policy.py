"""What a NodePort on this node's loopback addresses leads to (KEP-6032). Pure."""

from __future__ import annotations

import ipaddress
import random
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from rules.elements import ServicePort
from rules.objects import Family

HOSTS: Final = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
"""Where NodePorts answer on loopback; no other loopback address does."""

MAX_CLIENTS: Final = 4096
"""Of one NodePort with session affinity: this many client addresses are remembered. Nearly always there is one."""


def loopback_families(cidrs: Iterable[IPv4Network | IPv6Network]) -> frozenset[Family]:
    """Families whose loopback address is in a CIDR of nodePortAddresses that is all loopback: 0.0.0.0/0 is not."""
    hosts = {family: ipaddress.ip_address(host) for family, host in HOSTS.items()}
    return frozenset(family for cidr in cidrs if cidr.is_loopback for family in HOSTS if hosts[family] in cidr)


def led_to(port: ServicePort | None) -> tuple[bytes, ...]:
    """The endpoints for a connection to loopback. With externalTrafficPolicy Local those on this node, unlike for other
    traffic from this node: so KEP-6032 has it."""
    if port is None:
        return ()
    return port.local if port.local_policy else port.endpoints


class Picker:
    """Chooses endpoints of one service port; with session affinity, the same for a client for `timeout` seconds since
    it last came."""

    def __init__(self) -> None:
        self._endpoints: Sequence[bytes] = ()
        self._timeout = 0
        self._clients: OrderedDict[str, tuple[bytes, float]] = OrderedDict()  # endpoint and time; the latest comes last

    def update(self, endpoints: Sequence[bytes], timeout: int) -> None:
        """timeout: 0: no affinity."""
        self._endpoints, self._timeout = endpoints, timeout
        if not timeout:
            self._clients.clear()

    def pick(self, client: str, now: float, failed: Collection[bytes] = ()) -> bytes | None:
        """An endpoint that has not `failed`, None if there is none. now: of any clock that only goes forward."""
        endpoint = self._remembered(client, now)
        if endpoint is None or endpoint in failed:
            left = [e for e in self._endpoints if e not in failed] if failed else self._endpoints
            if not left:
                return None
            endpoint = random.choice(left)
        if self._timeout:
            self._clients[client] = (endpoint, now)
            self._clients.move_to_end(client)
            if len(self._clients) > MAX_CLIENTS:
                self._clients.popitem(last=False)
        return endpoint

    def _remembered(self, client: str, now: float) -> bytes | None:
        endpoint, since = self._clients.get(client, (b"", now))
        return endpoint if now - since < self._timeout and endpoint in self._endpoints else None
