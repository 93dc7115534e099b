"""A Service as the data plane sees it: addresses, ports, policies, packed and checked once. Pure."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from proxy.addresses import parse_service_address
from proxy.model import LABEL_PROXY_NAME, Service
from rules.elements import service_key
from rules.objects import PROTOCOLS

Name = tuple[str, str]
"""(namespace, name)."""

UNDATED: Final = "~"
"""Sorts behind every RFC 3339 time: an object whose age nobody knows is the youngest."""


class PortInfo(Struct, frozen=True, gc=False):
    """A service port: one port of one Service in one IP family. key: what rules.elements.service_key gives."""

    key: bytes
    name: str
    protocol: str


class ServiceInfo(Struct, frozen=True):
    """ports: one for each clusterIP and port. local_only: internalTrafficPolicy Local."""

    name: Name
    created: str
    ports: tuple[PortInfo, ...]
    local_only: bool = False

    @property
    def rank(self) -> tuple[str, Name]:
        """Who keeps an address that two claim: the smaller."""
        return self.created, self.name


class Rejected(ValueError):
    """The object is left out; `str()` says why."""


def read_service(service: Service) -> ServiceInfo | None:
    """None if the Service is not for us (ExternalName, headless, another proxy's). Raises Rejected."""
    spec, meta = service.spec, service.metadata
    if spec.type == "ExternalName" or LABEL_PROXY_NAME in (meta.labels or ()):
        return None
    texts = spec.cluster_ips or [spec.cluster_ip]
    if texts[0] in ("", "None") or spec.cluster_ip == "None":
        return None
    addresses: dict[int, bytes] = {}
    for text in texts:
        try:
            packed = parse_service_address(text)
        except ValueError as error:
            raise Rejected(f"spec.clusterIPs: {error}") from None
        if len(packed) in addresses:
            raise Rejected(f"spec.clusterIPs: {texts[0]!r} and {text!r} are of one IP family")
        addresses[len(packed)] = packed
    ports: dict[tuple[str, str], int] = {}
    infos = []
    for i, port in enumerate(spec.ports or ()):
        if not 1 <= port.port <= 65535:
            raise Rejected(f"spec.ports[{i}].port: {port.port} is not in 1..65535")
        if port.protocol not in PROTOCOLS:
            raise Rejected(f"spec.ports[{i}].protocol: {port.protocol!r} is none of {', '.join(PROTOCOLS)}")
        if (port.name, port.protocol) in ports:
            raise Rejected(f"spec.ports[{i}].name: {port.name!r} is there twice")
        ports[port.name, port.protocol] = i
        infos += [
            PortInfo(service_key(address, PROTOCOLS[port.protocol], port.port), port.name, port.protocol)
            for address in addresses.values()
        ]
    keys = [info.key for info in infos]
    if len(set(keys)) < len(keys):
        raise Rejected("spec.ports: one port and protocol is there twice")
    return ServiceInfo(
        (meta.namespace, meta.name),
        meta.creation_timestamp or UNDATED,
        tuple(infos),
        spec.internal_traffic_policy == "Local",
    )
