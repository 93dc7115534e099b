"""What kube-proxy's rules must say, address by address, for objects as plain dicts: to hold against what is read of rules.

Built on tests/service_model.py, one question for each kind of source; it shares no code with the readers.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from proxy.migrate.entries import Dataplane, Entry
from tests.dataplanes import DATA
from tests.service_model import DROPPED, PRESERVED, Expected, Object, Source, World, counts, expected

PROTOCOLS = {6: "TCP", 17: "UDP", 132: "SCTP"}
Ends = frozenset[str]


@dataclass(frozen=True)
class Row:
    """inside, outside: "10.244.0.2:8080", "[fd44::2]:8080". refusals: "", "reject", "drop". sources: "first-last"."""

    name: str
    inside: Ends
    outside: Ends
    refusal: str = ""
    outside_refusal: str = ""
    keeps_source: bool | None = None
    affinity: int = 0
    sources: frozenset[str] | None = None


@dataclass(frozen=True)
class Place:
    """One address of a service port. kind: "clusterIP", "externalIP", "loadBalancer", "nodePort". version: 4 or 6."""

    service: Object
    port: Object
    kind: str
    version: int
    address: str
    number: int

    @property
    def protocol(self) -> str:
        return str(self.port.get("protocol", "TCP"))

    @property
    def key(self) -> str:
        """As `key_text` gives it."""
        if self.kind == "nodePort":
            return f"NodePort {self.number}/{self.protocol} IPv{self.version}"
        return f"{_joined(self.address, self.number)}/{self.protocol}"

    @property
    def name(self) -> str:
        meta = self.service["metadata"]
        port = self.port.get("name", "")
        return f"{meta['namespace']}/{meta['name']}{':' if port else ''}{port}"


def recorded_world() -> World:
    """The cluster of the recordings. (The API server gives no `kind` in a list.)"""
    items = json.loads((DATA / "objects.json").read_text())["items"]
    services = [item for item in items if "clusterIP" in item.get("spec", {})]
    slices = [item for item in items if "addressType" in item]
    node = next(item for item in items if item["metadata"]["name"] == "node0" and "addresses" in item.get("status", {}))
    return World(services, slices, node, {"clusterCIDR": "10.244.0.0/16,fd44::/48"})


def places(world: World) -> Iterator[Place]:
    for service in world.services:
        if not counts(service):
            continue
        spec = service["spec"]
        cluster_ips = spec.get("clusterIPs") or [spec["clusterIP"]]
        families = {_version(ip) for ip in cluster_ips}
        ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress", ())
        addresses = [("clusterIP", ip) for ip in cluster_ips]
        addresses += [("externalIP", ip) for ip in spec.get("externalIPs", ())]
        addresses += [("loadBalancer", i["ip"]) for i in ingress if i.get("ip") and i.get("ipMode") != "Proxy"]
        for port in spec.get("ports", ()):
            for kind, ip in addresses:
                if _version(ip) in families:
                    yield Place(service, port, kind, _version(ip), ip, port["port"])
            if port.get("nodePort"):
                for version in sorted(families):
                    yield Place(service, port, "nodePort", version, _node_ip(world, version), port["nodePort"])


def rows(world: World) -> dict[str, Row]:
    """Key -> what is there."""
    return {place.key: row(world, place) for place in places(world)}


def row(world: World, place: Place) -> Row:
    open_to_all = replace(world, services=[_without_ranges(s) for s in world.services], config=_primary(world))
    node_ip = _node_ip(world, place.version)
    outside_ip = "203.0.113.77" if place.version == 4 else "2001:db8::77"
    inside, outside = (
        _said(expected(open_to_all, source, place.address, place.number, place.protocol))
        for source in (Source(node_ip), Source(outside_ip, "eth0"))
    )
    spec = place.service["spec"]
    keeps: bool | None = None
    if place.kind != "clusterIP" and (inside.reach or outside.reach):
        keeps = set(outside.reach.values()) <= {PRESERVED}
    timeout = spec.get("sessionAffinityConfig", {}).get("clientIP", {}).get("timeoutSeconds", 10800)
    sticky = spec.get("sessionAffinity") == "ClientIP" and bool(inside.reach or outside.reach)
    return Row(
        place.name,
        _ends(inside),
        _ends(outside),
        _refusal(inside),
        _refusal(outside),
        keeps,
        timeout if sticky else 0,
        _sources(world, place) if place.kind == "loadBalancer" and inside.reach else None,
    )


def read_rows(dataplane: Dataplane) -> dict[str, Row]:
    """The same of what was read."""
    found = {key_text(entry.key): _row_of(entry) for entry in dataplane.entries}
    assert len(found) == len(dataplane.entries), "a key twice"
    return found


def key_text(key: bytes) -> str:
    protocol, number = PROTOCOLS[key[-8]], int.from_bytes(key[-4:-2])
    if len(key) == 9:
        return f"NodePort {number}/{protocol} IPv{4 if key[0] == 2 else 6}"
    return f"{_joined(str(ipaddress.ip_address(key[:-8])), number)}/{protocol}"


def _row_of(entry: Entry) -> Row:
    sources = None
    if entry.sources is not None:
        sources = frozenset(f"{ipaddress.ip_address(a)}-{ipaddress.ip_address(b)}" for a, b in entry.sources)
    return Row(
        entry.name,
        frozenset(map(_end, entry.endpoints)),
        frozenset(map(_end, entry.outside)),
        entry.refusal,
        entry.outside_refusal,
        entry.keeps_source,
        entry.affinity,
        sources,
    )


def _end(packed: bytes) -> str:
    assert packed[-2:] == b"\0\0"
    return _joined(str(ipaddress.ip_address(packed[:-4])), int.from_bytes(packed[-4:-2]))


def _joined(address: str, port: int) -> str:
    return f"[{ipaddress.ip_address(address)}]:{port}" if ":" in address else f"{address}:{port}"


def _ends(said: Expected) -> Ends:
    return frozenset(_joined(*end) for end in said.reach)


def _refusal(said: Expected) -> str:
    return "" if said.reach else "drop" if said.fails == DROPPED else "reject"


def _said(answer: Expected | None) -> Expected:
    assert answer is not None
    return answer


def _sources(world: World, place: Place) -> frozenset[str] | None:
    ranges = [r.strip() for r in place.service["spec"].get("loadBalancerSourceRanges", ())]
    networks: list[Any] = [ipaddress.ip_network(r, strict=False) for r in ranges if _version(r) == place.version]
    if not networks or any(not n.prefixlen for n in networks):
        return None
    if any(ipaddress.ip_address(_node_ip(world, place.version)) in n for n in networks):
        ingress = place.service["status"]["loadBalancer"]["ingress"]
        networks += [ipaddress.ip_network(i["ip"]) for i in ingress if _version(i["ip"]) == place.version]
    return frozenset(f"{first}-{last}" for first, last in _joined_up(networks))


def _joined_up(networks: list[Any]) -> list[tuple[Any, Any]]:
    """First and last address of each range; those that touch are one."""
    found: list[tuple[Any, Any]] = []
    for first, last in sorted((n.network_address, n.broadcast_address) for n in networks):
        if found and int(first) <= int(found[-1][1]) + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def _without_ranges(service: Object) -> Object:
    return {**service, "spec": {k: v for k, v in service["spec"].items() if k != "loadBalancerSourceRanges"}}


def _primary(world: World) -> Object:
    return {**world.config, "nodePortAddresses": ["primary"]}


def _node_ip(world: World, version: int) -> str:
    addresses = [a["address"] for a in world.node["status"]["addresses"] if a["type"] == "InternalIP"]
    return next(a for a in addresses if _version(a) == version)


def _version(text: str) -> int:
    return 6 if ":" in text else 4
