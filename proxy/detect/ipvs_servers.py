"""IPVS's virtual servers as the detector counts them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set

from msgspec import Struct

from proxy.detect.evidence import IpvsTable, Place
from proxy.detect.ipvs_table import parse_proc


class VirtualServer(Struct):
    """address: packed; b"" where a firewall mark names it. destinations: how many it has."""

    address: bytes
    scheduler: str
    destinations: int = 0


def summary(servers: Iterable[VirtualServer], place: Place, kube: Set[bytes]) -> IpvsTable:
    """kube: the addresses of kube-proxy's virtual servers."""
    servers = list(servers)
    return IpvsTable(
        place=place,
        services=len(servers),
        destinations=sum(server.destinations for server in servers),
        schedulers=dict(Counter(server.scheduler for server in servers).most_common()),
        kube=sum(server.address in kube for server in servers),
    )


def parse(lines: Iterable[str]) -> list[VirtualServer]:
    """Of /proc/net/ip_vs. Raises ValueError where a line cannot be understood."""
    return [VirtualServer(found.address, found.scheduler, found.destinations) for found in parse_proc(lines)]
