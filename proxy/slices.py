"""An EndpointSlice as the data plane sees it: addresses packed, conditions in a few bits. Pure."""

from __future__ import annotations

from enum import IntFlag
from sys import intern
from typing import Final

from msgspec import Struct

from proxy.addresses import parse_service_address
from proxy.model import (
    LABEL_HEADLESS,
    LABEL_PROXY_NAME,
    LABEL_SERVICE_NAME,
    Endpoint,
    EndpointConditions,
    EndpointHints,
    EndpointSlice,
)
from proxy.services import Name
from rules.objects import PROTOCOLS

_SIZE = {"IPv4": 4, "IPv6": 16}


class Condition(IntFlag):
    READY = 1
    SERVING = 2
    TERMINATING = 4


class Hints(Struct, frozen=True, gc=False):
    """hints.forZones and hints.forNodes; () where there are none."""

    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


NO_HINTS: Final = Hints()
USUAL: Final = int(Condition.READY | Condition.SERVING)
READY, SERVING, TERMINATING = map(
    int, Condition
)  # arithmetic with a Flag takes a microsecond; a large list has 100,000


class EndpointInfo(Struct, frozen=True, gc=False):
    """conditions: of Condition. node: nodeName, '' if not given. Only the first of an endpoint's addresses counts."""

    address: bytes
    conditions: int
    node: str
    hints: Hints = NO_HINTS


class SliceInfo(Struct, frozen=True):
    """ports: (name, protocol, number) of those that have a number. address_size: 4 or 16, the family."""

    service: Name
    address_size: int
    ports: tuple[tuple[str, str, int], ...]
    endpoints: tuple[EndpointInfo, ...]

    @property
    def has_hints(self) -> bool:
        return any(endpoint.hints is not NO_HINTS for endpoint in self.endpoints)


def read_slice(slice_: EndpointSlice) -> tuple[SliceInfo | None, list[str]]:
    """The slice, None if it is not for us; and what of it had to be left out, and why."""
    labels = slice_.metadata.labels or {}
    service = labels.get(LABEL_SERVICE_NAME)
    if not service or LABEL_HEADLESS in labels or LABEL_PROXY_NAME in labels or slice_.address_type == "FQDN":
        return None, []
    size = _SIZE.get(slice_.address_type)
    if size is None:
        return None, [f"addressType: {slice_.address_type!r} is none of IPv4, IPv6, FQDN"]
    faults: list[str] = []
    ports = []
    for i, port in enumerate(slice_.ports or ()):
        protocol = port.protocol or "TCP"
        if port.port is None:
            continue
        if not 1 <= port.port <= 65535:
            faults.append(f"ports[{i}].port: {port.port} is not in 1..65535")
        elif protocol not in PROTOCOLS:
            faults.append(f"ports[{i}].protocol: {protocol!r} is none of {', '.join(PROTOCOLS)}")
        else:
            ports.append((intern(port.name or ""), intern(protocol), port.port))
    endpoints = []
    for endpoint in slice_.endpoints or ():
        try:
            endpoints.append(_read_endpoint(endpoint, size))
        except ValueError as error:  # not by its place in the list, which changes when others come and go
            faults.append(f"endpoints.addresses: {error}")
    name = (slice_.metadata.namespace, service)
    return SliceInfo(name, size, tuple(ports), tuple(endpoints)), list(dict.fromkeys(faults))


def _read_endpoint(endpoint: Endpoint, size: int) -> EndpointInfo:
    if not endpoint.addresses:
        raise ValueError("there is none")
    packed = parse_service_address(endpoint.addresses[0])
    if len(packed) != size:
        raise ValueError(f"{endpoint.addresses[0]!r} is not of the slice's addressType")
    return EndpointInfo(
        packed,
        _conditions(endpoint.conditions) if endpoint.conditions else USUAL,
        intern(endpoint.node_name or ""),
        _hints(endpoint.hints) if endpoint.hints else NO_HINTS,
    )


def _conditions(found: EndpointConditions) -> int:
    """null and missing mean ready, serving, not terminating."""
    return (
        (READY if found.ready is not False else 0)
        | (SERVING if found.serving is not False else 0)
        | (TERMINATING if found.terminating is True else 0)
    )


def _hints(found: EndpointHints) -> Hints:
    zones = tuple(intern(hint.name) for hint in found.for_zones or ())
    nodes = tuple(intern(hint.name) for hint in found.for_nodes or ())
    return Hints(zones, nodes) if zones or nodes else NO_HINTS
