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
    """endpoints: what a packet may reach. local: with a Local policy, what it may reach if it comes from outside.

    drop: there are endpoints, but none that the Local policy allows: dropped, not refused.
    """

    endpoints: Sequence[Candidate]
    local: Sequence[Candidate] = ()
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


def choose_internal(candidates: Sequence[Candidate], place: Place, local_only: bool) -> Choice:
    """For a clusterIP, by internalTrafficPolicy: Cluster, or with `local_only` Local."""
    if not local_only:
        return Choice(_anywhere(candidates, place))
    here = _here(candidates, place)
    return Choice(here, drop=not here and _exist(candidates))


def choose_external(candidates: Sequence[Candidate], place: Place, local_only: bool) -> Choice:
    """For an external address or NodePort, by externalTrafficPolicy. With Local, pods and the node itself still reach
    all endpoints."""
    everywhere = _anywhere(candidates, place)
    if not local_only:
        return Choice(everywhere)
    here = _here(candidates, place)
    return Choice(everywhere, here, drop=not here and _exist(candidates))


def _anywhere(candidates: Sequence[Candidate], place: Place) -> Sequence[Candidate]:
    return _narrow(_ready(candidates), place) or _last_resort(candidates)


def _here(candidates: Sequence[Candidate], place: Place) -> Sequence[Candidate]:
    local = [c for c in candidates if c[0].node == place.node]
    return _ready(local) or _last_resort(local)


def _exist(candidates: Sequence[Candidate]) -> bool:
    return bool(_ready(candidates) or _last_resort(candidates))


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
