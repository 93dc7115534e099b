"""IPVS's virtual servers as the detector counts them, and /proc/net/ip_vs, which lists them as text. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set

from msgspec import Struct

from proxy.detect.evidence import IpvsTable, Place


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
    """Of /proc/net/ip_vs. Its numbers are hexadecimal:

        TCP  0A601E02:0050 rr
          -> 0AF40002:1F90      Masq    1      0          0
        TCP  [fd00:0010:0096:0000:0000:0000:0000:0030]:0050 rr
        FWM  00000001 wlc

    Raises ValueError where a line is none of these.
    """
    servers: list[VirtualServer] = []
    for line in lines:
        match line.split():
            case ["->", remote, *_]:
                if servers and remote != "RemoteAddress:Port":
                    servers[-1].destinations += 1
            case ["TCP" | "UDP" | "SCTP", local, scheduler, *_]:
                servers.append(VirtualServer(_address(local), scheduler))
            case ["FWM", _, scheduler, *_]:
                servers.append(VirtualServer(b"", scheduler))
            case [] | ["IP", "Virtual", *_] | ["Prot", *_]:
                pass
            case _:
                raise ValueError(f"/proc/net/ip_vs has a line {line.strip()[:60]!r}")
    return servers


def _address(local: str) -> bytes:
    return bytes.fromhex("".join(local.rpartition(":")[0].strip("[]").split(":")))
