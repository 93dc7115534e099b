"""Who asks for what: `explain FROM TO`, read into packets. Pure.

FROM   outside | node | 10.244.1.7 | pod/web-0 | pod/shop/web-0
TO     10.96.0.10:53/udp | [fd00::a]:443 | svc/dns | svc/kube-system/dns:53/udp | node:30080
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from proxy.addresses import parse_address, with_port
from proxy.errors import UsageError
from proxy.explain.pods import Pods
from proxy.explain.world import World
from proxy.nodes import node_ips
from proxy.services import PortInfo, Scope
from rules.elements import address_of
from rules.objects import PROTOCOLS, Family
from rules.packet import Packet

OUTSIDE: Final = {
    Family.IPV4: ipaddress.ip_address("203.0.113.1").packed,
    Family.IPV6: ipaddress.ip_address("2001:db8::1").packed,
}
"""Addresses for documentation: somebody who is nobody."""
_ELSEWHERE: Final = "elsewhere"  # an interface that no configuration names
_TARGET: Final = re.compile(r"(?P<where>.*?)(?::(?P<port>[^:/\]]+))?(?:/(?P<protocol>tcp|udp|sctp))?", re.IGNORECASE)


class Target(Struct, frozen=True):
    """where: a packed address. text: as it was asked for, or what a name of it came to."""

    where: bytes
    port: int
    protocol: str
    text: str


class Question(Struct, frozen=True):
    """kind: what the source is taken for."""

    packet: Packet
    source: str
    kind: str
    target: Target


def questions(world: World, source: str, target: str, pods: Pods) -> list[Question]:
    """One for each address and port that the target names. Raises UsageError."""
    found = []
    for one in targets(world, target):
        packet, kind = _packet(world, source, one, pods)
        if packet:
            found.append(Question(packet, source, kind, one))
    if not found:
        raise UsageError(source, f"it is of another IP family than {target}", "name a source of the same family")
    return found


# To whom.


def targets(world: World, text: str) -> list[Target]:
    """Raises UsageError."""
    if text.startswith(("svc/", "service/")):
        return list(_of_service(world, text))
    match = _TARGET.fullmatch(text)
    where, port = (match["where"], match["port"]) if match else ("", None)
    if not match or not port or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(text, "it names no port", "write ADDRESS:PORT/PROTOCOL, svc/NAME:PORT or node:PORT")
    protocol = (match["protocol"] or "tcp").upper()
    if where == "node":
        addresses = sorted(node_ips(world.state.node, world.state.bound)) or sorted(
            {*world.node_ports[Family.IPV4], *world.node_ports[Family.IPV6]}
        )
        if not addresses:
            raise UsageError(text, "no address of this node is known", "give its Node object, or the address itself")
        return [Target(a, int(port), protocol, f"{with_port(a, port)}/{protocol}") for a in addresses]
    try:
        address = parse_address(where.removeprefix("[").removesuffix("]"))
    except ValueError as error:
        raise UsageError(text, str(error), "write ADDRESS:PORT/PROTOCOL, svc/NAME:PORT or node:PORT") from None
    return [Target(address, int(port), protocol, f"{with_port(address, port)}/{protocol}")]


def _of_service(world: World, text: str) -> Iterator[Target]:
    rest = text.partition("/")[2]
    match = re.fullmatch(r"(?:([^/:]+)/)?([^/:]+)(?::([^/]+))?(?:/(tcp|udp|sctp))?", rest, re.IGNORECASE)
    if not match:
        raise UsageError(text, "it is no Service's name", "write svc/NAME, svc/NAMESPACE/NAME, either with :PORT")
    namespace, name, wanted, protocol = match[1] or "default", match[2], match[3], (match[4] or "").upper()
    service = world.state.service((namespace, name))
    if service is None:
        remedy = "see its name and namespace; ExternalName and headless Services are none of a proxy's"
        raise UsageError(text, f"there is no Service {namespace}/{name} that a proxy serves", remedy)
    ports = [port for port in service.ports if port.scope is Scope.CLUSTER_IP]
    chosen = [port for port in ports if _is_wanted(port, wanted, protocol)]
    if not chosen:
        known = ", ".join(sorted({f"{_number(port)}/{port.protocol} {port.name}".strip() for port in ports}))
        raise UsageError(text, f"Service {namespace}/{name} has no such port", f"there are {known or 'none'}")
    for port in chosen:
        shown = f"{with_port(address_of(port.key), _number(port))}/{port.protocol}"
        yield Target(address_of(port.key), _number(port), port.protocol, shown)


def _is_wanted(port: PortInfo, wanted: str | None, protocol: str) -> bool:
    return (not wanted or wanted in (port.name, str(_number(port)))) and protocol in ("", port.protocol)


def _number(port: PortInfo) -> int:
    return int.from_bytes(port.key[-4:-2])


# From whom.


def _packet(world: World, source: str, target: Target, pods: Pods) -> tuple[Packet | None, str]:
    """None where the two are of different families."""
    family = Family.of(target.where)
    protocol = PROTOCOLS[target.protocol]
    if source == "outside":
        return Packet(family, OUTSIDE[family], target.where, protocol, target.port, _ELSEWHERE), "somebody outside"
    if source == "node":
        is_loopback = ipaddress.ip_address(target.where).is_loopback
        own = target.where if is_loopback else world.node_address(family) or OUTSIDE[family]
        return Packet(family, own, target.where, protocol, target.port, "", True), "this node"
    if source.startswith("pod/"):
        name = source.removeprefix("pod/")
        name = name if "/" in name else f"default/{name}"
        if not pods.get(name):
            raise UsageError(source, "no such pod is known", "see its name and namespace, or give its address")
        address = next((address for address in pods[name] if Family.of(address) is family), pods[name][0])
    else:
        try:
            address = parse_address(source)
        except ValueError as error:
            raise UsageError(source, str(error), "write outside, node, pod/NAME or an address") from None
    if Family.of(address) is not family:
        return None, ""
    if address in {*node_ips(world.state.node, world.state.bound), *world.addresses}:
        return Packet(family, address, target.where, protocol, target.port, "", True), "this node"
    is_pod_here = _is_pod_here(world, address)
    interface = (world.options.local_interface or world.options.local_interface_prefix) if is_pod_here else ""
    kind = "a pod on this node" if is_pod_here else "a pod elsewhere" if _is_pod(world, address) else "somebody outside"
    return Packet(family, address, target.where, protocol, target.port, interface or _ELSEWHERE), kind


def _is_pod_here(world: World, address: bytes) -> bool:
    node = world.state.node
    ip = ipaddress.ip_address(address)
    if node and node.pod_cidrs:
        return any(ip in cidr for cidr in node.pod_cidrs)
    return address in world.state.addresses_here()


def _is_pod(world: World, address: bytes) -> bool:
    ip = ipaddress.ip_address(address)
    return any(ip.version == n.version and ip in n for n in world.options.local_networks)
