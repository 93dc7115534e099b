"""What kube-proxy's modes (v1.26 to v1.37) make of a service port, and which check explains where that is not ours. Pure.

iptables and nftables do what we do, but for the scheduler and for source ranges that cannot be read. IPVS has one server
for an address, whoever asks, so it cannot tell traffic from outside from other:

- Local policies: the server has this node's endpoints for everybody; if there are none here, all of them, if the Service
  has external addresses or the policy is externalTrafficPolicy, else none.
- Nothing is dropped: a server without destinations refuses.
- A NodePort is a server at each of the node's addresses.
- Its firewall lets a load balancer's address in as a source for itself, not for the Service's other ones.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from proxy.addresses import Network
from proxy.migrate.entries import Entry, ModeName, of_service_port
from proxy.migrate.ours import Ours
from proxy.services import Name, PortInfo, Scope, ServiceInfo
from rules.elements import (
    Scheduler,
    ServicePort,
    Sources,
    address_of,
    address_range,
    family_of,
    is_node_port,
)
from rules.objects import Family

POLICY: Final = "ipvs-traffic-policy"
SOURCES: Final = "source-ranges"
SCHEDULER: Final = "ipvs-scheduler"
ANNOTATION: Final = "scheduler-annotation"
CLAIMED: Final = "claimed-twice"

EVEN: Final = frozenset({"random", "rr"})
"""Schedulers that spread connections evenly, whoever sends them: nobody minds which."""

CHECKS: Final[dict[ModeName, Mapping[str, str]]] = {
    "iptables": {"sources": SOURCES, "scheduler": ANNOTATION},
    "nftables": {"sources": SOURCES, "scheduler": ANNOTATION},
    "ipvs": {
        "endpoints": POLICY,
        "outside-endpoints": POLICY,
        "refusal": POLICY,
        "sources": SOURCES,
        "scheduler": SCHEDULER,
    },
    "kube-proxy-nft": {},
}
"""Mode -> what differs from ours in it -> the check that explains it."""


class There(Struct, frozen=True):
    """The proxy that runs. scheduler: of IPVS. node_ports: families in which NodePorts answer at all."""

    mode: ModeName
    scheduler: str = "rr"
    node_ports: frozenset[Family] = frozenset(Family)


class Made(Struct, frozen=True):
    """here: what we make of a service port. there: what the other proxy does; None: nothing."""

    here: Entry
    there: Entry | None


def made(port: ServicePort, info: ServiceInfo | None, there: There, ours: Ours) -> Made:
    """info: the port's Service."""
    here = of_service_port(port)
    if there.mode == "kube-proxy-nft" or info is None:
        return Made(here, here)
    if there.mode == "ipvs":
        if is_node_port(port.key) and family_of(port.key) not in there.node_ports:
            return Made(here, None)
        return Made(here, _ipvs(port, info, there, ours, here))
    scheduler, sources = Scheduler.RANDOM.value, _sources(port, info, there.mode, ours)
    if scheduler == here.scheduler and sources == here.sources:
        return Made(here, here)
    return Made(here, replace(here, scheduler=scheduler, sources=sources))


def check_of(mode: ModeName, what: str, there: Entry, here: Entry) -> str:
    """The check that explains this difference between what the mode does and what we do."""
    if what == "scheduler" and there.scheduler in EVEN and here.scheduler == Scheduler.SH.value:
        return ANNOTATION
    return CHECKS[mode].get(what, "")


def _ipvs(port: ServicePort, info: ServiceInfo, there: There, ours: Ours, here: Entry) -> Entry:
    chosen: Collection[bytes] = port.endpoints
    if port.local_policy:
        chosen = port.local or port.endpoints
    elif not port.external and info.internal_local and not port.endpoints:
        chosen = _everywhere(port, info, ours)
    endpoints = frozenset(chosen)
    return replace(
        here,
        endpoints=endpoints,
        outside=endpoints,
        refusal="" if endpoints else "reject",
        outside_refusal="" if endpoints else "reject",
        sources=_sources(port, info, "ipvs", ours),
        scheduler=there.scheduler,
    )


def _everywhere(port: ServicePort, info: ServiceInfo, ours: Ours) -> Collection[bytes]:
    """The endpoints of the same port by externalTrafficPolicy: an external address of it tells them."""
    mine = next((p for p in info.ports if p.key == port.key), None)
    for other in info.ports:
        if mine and other.scope is not Scope.CLUSTER_IP and _is_same(mine, other):
            found = ours.ports.get(other.key)
            if found and found.name == port.name:
                return found.endpoints
    return ()


def _is_same(one: PortInfo, other: PortInfo) -> bool:
    same_port = (one.name, one.protocol) == (other.name, other.protocol)
    return same_port and family_of(one.key) is family_of(other.key)


def _sources(port: ServicePort, info: ServiceInfo, mode: ModeName, ours: Ours) -> Sources | None:
    """kube-proxy passes over ranges that it cannot read; if none is left, everybody may come."""
    if info.sources is None or port.sources is None:
        return port.sources
    virtual = [p.key for p in info.ports if p.scope is Scope.LOAD_BALANCER and family_of(p.key) is family_of(port.key)]
    addresses = {address_of(key) for key in virtual}
    if not info.unread_sources and (mode != "ipvs" or len(addresses) == 1):
        return port.sources
    version = 4 if len(address_of(port.key)) == 4 else 6
    networks: list[Network] = [n for n in info.sources if n.version == version]
    if not networks:
        return None
    if any(ipaddress.ip_address(own) in n for own in ours.addresses for n in networks):
        own_address = {address_of(port.key)} if mode == "ipvs" else addresses
        networks += [ipaddress.ip_network(address) for address in own_address]
    return tuple(address_range(n) for n in ipaddress.collapse_addresses(networks))  # type: ignore[type-var]


def name_of(port: ServicePort) -> Name:
    """The Service's."""
    namespace, _, name = port.name.partition(":")[0].partition("/")
    return namespace, name
