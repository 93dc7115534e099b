"""Who may reach what: which endpoints a service port leads to from this node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from proxy.slices import Condition, EndpointInfo, SliceInfo

READY = int(Condition.READY)
TERMINATING = int(Condition.TERMINATING)
LAST_RESORT = int(Condition.SERVING | Condition.TERMINATING)

Candidate = tuple[EndpointInfo, int]
"""An endpoint and its target port."""


class Place(Struct, frozen=True):
    """Where we are: this node's name and its zone (label topology.kubernetes.io/zone, '' if it has none)."""

    node: str
    zone: str = ""


class Choice(Struct, frozen=True):
    """drop: nothing here, but elsewhere: a packet is dropped, where without endpoints anywhere it is refused."""

    endpoints: Sequence[Candidate]
    drop: bool = False


def gather(slices: Iterable[SliceInfo], size: int, name: str, protocol: str) -> list[Candidate]:
    """The endpoints that the slices of one Service give a service port, each once; `size` of addresses is the family.

    An address and port that is in two slices is one endpoint: the one that is not terminating counts, then the one
    that is ready (a pod network may give the address of a pod that is still going to a new one).
    """
    found: dict[tuple[bytes, int], EndpointInfo] = {}
    for slice_ in slices:
        if slice_.address_size != size:
            continue
        for port_name, port_protocol, number in slice_.ports:
            if port_name != name or port_protocol != protocol:
                continue
            for endpoint in slice_.endpoints:
                key = (endpoint.address, number)
                other = found.get(key)
                if other is None or _better(endpoint, other):
                    found[key] = endpoint
    return [(endpoint, number) for (_, number), endpoint in found.items()]


def _better(one: EndpointInfo, other: EndpointInfo) -> bool:
    return (one.conditions & TERMINATING, -(one.conditions & READY)) < (
        other.conditions & TERMINATING,
        -(other.conditions & READY),
    )


def choose(candidates: Sequence[Candidate], place: Place, local_only: bool) -> Choice:
    """By internalTrafficPolicy: Cluster, or with `local_only` Local."""
    if not local_only:
        return Choice(_narrow(_ready(candidates), place) or _last_resort(candidates))
    local = [c for c in candidates if c[0].node == place.node]
    here = _ready(local) or _last_resort(local)
    return Choice(here, drop=not here and bool(_ready(candidates) or _last_resort(candidates)))


def _ready(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    return [c for c in candidates if c[0].conditions & READY]


def _last_resort(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Where none is ready: those that still serve while they terminate (KEP-1669)."""
    return [c for c in candidates if c[0].conditions & LAST_RESORT == LAST_RESORT]


def _narrow(candidates: Sequence[Candidate], place: Place) -> Sequence[Candidate]:
    """By hints, if every endpoint has some and one is for us: by node, else by zone (KEP-2433, KEP-3015)."""
    if all(c[0].hints.nodes for c in candidates):
        near = [c for c in candidates if place.node in c[0].hints.nodes]
        if near:
            return near
    if place.zone and all(c[0].hints.zones for c in candidates):
        near = [c for c in candidates if place.zone in c[0].hints.zones]
        if near:
            return near
    return candidates
