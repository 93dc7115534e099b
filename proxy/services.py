"""A Service as the data plane sees it: addresses, ports, policies, packed and checked once. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from msgspec import Struct

from proxy.addresses import Network, parse_network, parse_service_address
from proxy.model import LABEL_PROXY_NAME, Service, ServicePortSpec
from rules.elements import Scheduler, node_port_key, service_key
from rules.objects import PROTOCOLS, Family

Name = tuple[str, str]
"""(namespace, name)."""

UNDATED: Final = "~"
"""Sorts behind every RFC 3339 time: an object whose age nobody knows is the youngest."""

SCHEDULER_ANNOTATION: Final = "kube-proxy-nft/scheduler"
IPVS_SCHEDULERS: Final = ("wrr", "lc", "wlc", "lblc", "lblcr", "sed", "nq", "dh", "mh", "fo", "ovf", "twos")
DEFAULT_TIMEOUT: Final = 10800
MAX_TIMEOUT: Final = 86400


class Scope(IntEnum):
    """What kind of address a service port is reached at."""

    CLUSTER_IP = 0
    EXTERNAL_IP = 1
    LOAD_BALANCER = 2
    NODE_PORT = 3


class PortInfo(Struct, frozen=True, gc=False):
    """A service port: one port of one Service at one address. key: see rules.elements.ServicePort."""

    key: bytes
    name: str
    protocol: str
    scope: Scope = Scope.CLUSTER_IP


class ServiceInfo(Struct, frozen=True):
    """ports: one for each address and port.

    sources: loadBalancerSourceRanges, None: everybody may come. unread_sources: some of them cannot be read, and may be
    of either family. health_check_port: 0: none.
    timeout: session affinity in seconds, 0: none. local: the two traffic policies, True for Local.
    """

    name: Name
    created: str
    ports: tuple[PortInfo, ...]
    internal_local: bool = False
    external_local: bool = False
    timeout: int = 0
    sources: tuple[Network, ...] | None = None
    health_check_port: int = 0
    scheduler: Scheduler = Scheduler.RANDOM
    unread_sources: bool = False

    @property
    def rank(self) -> tuple[str, Name]:
        """Who keeps an address that two claim: the smaller."""
        return self.created, self.name


class Rejected(ValueError):
    """The object is left out; `str()` says why."""


def read_service(service: Service) -> tuple[ServiceInfo | None, list[str]]:
    """The Service, None if it is not for us (ExternalName, headless, another proxy's); and what of it had to be left
    out, and why. Raises Rejected if nothing can be made of it."""
    spec, meta = service.spec, service.metadata
    if spec.type == "ExternalName" or LABEL_PROXY_NAME in (meta.labels or ()):
        return None, []
    texts = spec.cluster_ips or [spec.cluster_ip]
    if texts[0] in ("", "None") or spec.cluster_ip == "None":
        return None, []
    faults: list[str] = []
    cluster_ips = _cluster_ips(texts)
    addresses = [(address, Scope.CLUSTER_IP) for address in cluster_ips.values()]
    addresses += _external(service, cluster_ips, faults)
    ports: dict[bytes, PortInfo] = {}
    names: set[tuple[str, str]] = set()
    for i, port in enumerate(spec.ports or ()):
        _check_port(i, port)
        if (port.name, port.protocol) in names:
            raise Rejected(f"spec.ports[{i}].name: {port.name!r} is there twice")
        names.add((port.name, port.protocol))
        for made in _port_infos(port, addresses, cluster_ips):
            if made.key in ports:
                raise Rejected(f"spec.ports[{i}]: this port and protocol is there twice")
            ports[made.key] = made
    sources = _sources(service, faults)
    info = ServiceInfo(
        (meta.namespace, meta.name),
        meta.creation_timestamp or UNDATED,
        tuple(ports.values()),
        spec.internal_traffic_policy == "Local",
        spec.external_traffic_policy == "Local",
        _timeout(service),
        sources,
        spec.health_check_node_port if spec.type == "LoadBalancer" and spec.external_traffic_policy == "Local" else 0,
        _scheduler(service, faults),
        len(sources or ()) < len(spec.load_balancer_source_ranges or ()),
    )
    return info, faults


def _cluster_ips(texts: list[str]) -> dict[Family, bytes]:
    """One address a family."""
    found: dict[Family, bytes] = {}
    for text in texts:
        try:
            packed = parse_service_address(text)
        except ValueError as error:
            raise Rejected(f"spec.clusterIPs: {error}") from None
        if Family.of(packed) in found:
            raise Rejected(f"spec.clusterIPs: {texts[0]!r} and {text!r} are of one IP family")
        found[Family.of(packed)] = packed
    return found


def _external(service: Service, cluster_ips: dict[Family, bytes], faults: list[str]) -> Iterator[tuple[bytes, Scope]]:
    """externalIPs and load balancer addresses, of the Service's families, each once."""
    status = service.status.load_balancer if service.status else None
    wanted = [("spec.externalIPs", text, Scope.EXTERNAL_IP) for text in service.spec.external_ips or ()]
    wanted += [
        ("status.loadBalancer.ingress", ingress.ip, Scope.LOAD_BALANCER)
        for ingress in (status.ingress if status else None) or ()
        if ingress.ip and ingress.ip_mode != "Proxy"
    ]
    seen = set(cluster_ips.values())
    for field, text, scope in wanted:
        try:
            packed = parse_service_address(text)
        except ValueError as error:
            faults.append(f"{field}: {error}")
            continue
        if packed not in seen and Family.of(packed) in cluster_ips:
            seen.add(packed)
            yield packed, scope


def _check_port(i: int, port: ServicePortSpec) -> None:
    if not 1 <= port.port <= 65535:
        raise Rejected(f"spec.ports[{i}].port: {port.port} is not in 1..65535")
    if not 0 <= port.node_port <= 65535:
        raise Rejected(f"spec.ports[{i}].nodePort: {port.node_port} is not in 0..65535")
    if port.protocol not in PROTOCOLS:
        raise Rejected(f"spec.ports[{i}].protocol: {port.protocol!r} is none of {', '.join(PROTOCOLS)}")


def _port_infos(
    port: ServicePortSpec, addresses: list[tuple[bytes, Scope]], families: dict[Family, bytes]
) -> Iterator[PortInfo]:
    protocol = PROTOCOLS[port.protocol]
    for address, scope in addresses:
        yield PortInfo(service_key(address, protocol, port.port), port.name, port.protocol, scope)
    if port.node_port:
        for family in families:
            key = node_port_key(family, protocol, port.node_port)
            yield PortInfo(key, port.name, port.protocol, Scope.NODE_PORT)


def _timeout(service: Service) -> int:
    if service.spec.session_affinity != "ClientIP":
        return 0
    config = service.spec.session_affinity_config
    seconds = config.client_ip.timeout_seconds if config and config.client_ip else DEFAULT_TIMEOUT
    return seconds if 0 < seconds <= MAX_TIMEOUT else DEFAULT_TIMEOUT


def _scheduler(service: Service, faults: list[str]) -> Scheduler:
    """For those who come from IPVS, which has a scheduler for all Services; an annotation of ours."""
    wanted = (service.metadata.annotations or {}).get(SCHEDULER_ANNOTATION, Scheduler.RANDOM.value)
    try:
        return Scheduler(wanted)
    except ValueError:
        known = ", ".join(scheduler.value for scheduler in Scheduler)
        why = "has no counterpart in nftables" if wanted in IPVS_SCHEDULERS else "is not known"
        faults.append(f"annotation {SCHEDULER_ANNOTATION}: {wanted!r} {why}; random is used; there are {known}")
        return Scheduler.RANDOM


def _sources(service: Service, faults: list[str]) -> tuple[Network, ...] | None:
    """None: no restriction. Entries that cannot be read let nobody in."""
    texts = service.spec.load_balancer_source_ranges
    if not texts:
        return None
    networks = []
    for text in texts:
        try:
            networks.append(parse_network(text))
        except ValueError as error:
            faults.append(f"spec.loadBalancerSourceRanges: {error}")
    return tuple(networks)
