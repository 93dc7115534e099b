"""Service ports in one family, for those who write rules as kube-proxy lays them out."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.dataplane_model import Place, Row, places, row
from tests.service_model import World


def short_hash(length: int, *parts: str) -> str:
    return base64.b32encode(hashlib.sha256("".join(parts).encode()).digest()).decode()[:length]


@dataclass
class Port:
    """A service port in one family. everywhere, here: endpoints by Cluster and Local policy."""

    first: Place
    places: list[tuple[Place, Row]] = field(default_factory=list)
    everywhere: list[str] = field(default_factory=list)
    here: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.first.name

    @property
    def protocol(self) -> str:
        return self.first.protocol.lower()

    @property
    def affinity(self) -> int:
        return max(row.affinity for _, row in self.places)

    def local(self, place: Place) -> bool:
        policy = "internalTrafficPolicy" if place.kind == "clusterIP" else "externalTrafficPolicy"
        return str(self.first.service["spec"].get(policy)) == "Local"

    @property
    def external(self) -> list[tuple[Place, Row]]:
        return [(place, row) for place, row in self.places if place.kind != "clusterIP"]

    def ends(self) -> list[str]:
        """All endpoints that some chain leads to."""
        return sorted({end for _, row in self.places for end in row.inside | row.outside})


def ports(world: World, version: int) -> Iterator[Port]:
    found: dict[tuple[str, str], Port] = {}
    for place in places(world):
        if place.version != version:
            continue
        port = found.setdefault((place.name, place.protocol), Port(place))
        said = row(world, place)
        port.places.append((place, said))
        if place.kind == "clusterIP":
            ends = port.here if port.local(place) else port.everywhere
            ends[:] = sorted(said.inside)
        else:
            port.everywhere = sorted(said.inside)
            if port.local(place):
                port.here = sorted(said.outside)
    yield from found.values()


def cidrs(sources: frozenset[str]) -> list[str]:
    found = []
    for text in sorted(sources):
        first, last = (ipaddress.ip_address(part) for part in text.split("-"))
        found += [str(network) for network in ipaddress.summarize_address_range(first, last)]  # type: ignore[type-var]
    return found
