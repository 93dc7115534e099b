"""What is known of the cluster, and which service ports changed. Pure: events in, rules' service ports out.

Events come in any order: an EndpointSlice before its Service, a Delete of what never was. An event marks the keys
(address, protocol, port) that it can have changed; `wanted` compiles those and no others.
"""

from __future__ import annotations

import ipaddress
import zlib
from collections.abc import Iterable, Sequence
from typing import Final

from proxy.addresses import Network, parse_network
from proxy.claims import Claim, Claims
from proxy.events import Delete, Event, LocalAddresses, Put, Replace
from proxy.health_checks import HealthCheck, health_check
from proxy.model import (
    ENDPOINT_SLICE,
    KINDS,
    NODE,
    SERVICE,
    SERVICE_CIDR,
    Node,
    ServiceCIDR,
)
from proxy.nodes import ABSENT, NodeInfo, node_ips, read_node
from proxy.object_faults import ObjectFaults
from proxy.policy import Candidate, Place, choose_external, choose_internal, gather
from proxy.reading import Item, ServiceReading, SliceReading, name_of, read
from proxy.services import Name, PortInfo, Scope, ServiceInfo
from proxy.slices import Condition, SliceInfo
from proxy.udp import NO_FLOWS, UdpChange, UdpFlows, is_udp
from rules.elements import ServicePort, Sources, address_of, address_range, describe_key, endpoint, family_of
from rules.endpoint_numbers import MAX_ENDPOINTS
from rules.objects import Family

MAX_TRIGGERS: Final = 10_000
"""More are not remembered while the kernel does not take what we have for it."""


class State:
    """node: this node's name, as in Endpoint.nodeName. bound: addresses that count as the node's (Settings.bound).

    `faults`: what is wrong with objects. `visited` counts the objects that were looked at (Services, slices, endpoints),
    so that tests can see that the cost follows the change. `service_changes` and `slice_changes` count those that were
    news. `triggers`: of slices that changed since the first list and since the caller last emptied it: what for, and when
    (SliceReading.triggered).
    """

    def __init__(self, node: str, bound: tuple[bytes, ...] = ()) -> None:
        self.place = Place(node)
        self.node: NodeInfo | None = None
        """None: not listed yet; proxy.nodes.ABSENT: there is none."""
        self.bound = bound
        self.local_addresses: frozenset[bytes] = frozenset()
        self.faults = ObjectFaults()
        self.visited = 0
        self.service_changes = self.slice_changes = 0
        self.triggers: list[tuple[Family, float]] = []
        self._services: dict[Name, ServiceInfo] = {}
        self._slices: dict[Name, dict[str, SliceInfo]] = {}
        self._service_of: dict[Name, Name] = {}
        self._cidrs: dict[str, tuple[Network, ...]] = {}
        self._claims = Claims()
        self._changed: set[bytes] = set()
        self._health: set[Name] = set()
        self._udp: dict[bytes, UdpFlows] = {}
        self._udp_next: dict[bytes, UdpFlows] = {}
        self._listed: set[str] = set()

    @property
    def is_complete(self) -> bool:
        """Services and EndpointSlices have been listed: what is wanted is all that is wanted."""
        return {SERVICE, ENDPOINT_SLICE} <= self._listed

    @property
    def is_listed(self) -> bool:
        """All kinds have been listed."""
        return set(KINDS) <= self._listed

    @property
    def service_cidrs(self) -> tuple[Network, ...]:
        """All ServiceCIDRs' ranges, sorted, each once."""
        return tuple(sorted({n for cidrs in self._cidrs.values() for n in cidrs}, key=lambda n: (n.version, n)))

    def apply(self, event: Event) -> None:
        """Take in one event."""
        match event:
            case Put(obj):
                self._put(obj)
            case Delete(kind, namespace, name):
                self._delete(kind, (namespace, name))
            case Replace(kind, objects):
                self._replace(kind, objects)
            case LocalAddresses(addresses):
                self.local_addresses = addresses

    def wanted(self) -> dict[bytes, ServicePort | None]:
        """The service ports that may have changed since `settle`; None: nobody has that key any more."""
        return {key: self._compile(key) for key in self._changed}

    def everything(self) -> dict[bytes, ServicePort | None]:
        """All service ports, as after an empty start."""
        self._udp_next = {}
        ports = (port for service in self._services.values() for port in service.ports)
        return {port.key: self._compile(port.key) for port in ports}

    def settle(self, keys: Iterable[bytes]) -> list[UdpChange]:
        """What was wanted of these keys is programmed. Returns what that means for UDP flows that are there."""
        changes = []
        for key in keys:
            self._changed.discard(key)
            if is_udp(key):
                old, new = self._udp.get(key, NO_FLOWS), self._udp_next.pop(key, NO_FLOWS)
                gone = old.serving - new.serving
                if gone or (new.usable and not old.usable):
                    changes.append(UdpChange(key, gone, new.usable and not old.usable))
                if new is NO_FLOWS:
                    self._udp.pop(key, None)
                else:
                    self._udp[key] = new
        return changes

    def settle_all(self) -> None:
        """Everything is programmed."""
        self._changed.clear()
        # In place: others look things up in it, from another thread, and have been given it once.
        for key in self._udp.keys() - self._udp_next.keys():
            del self._udp[key]
        self._udp |= self._udp_next
        self._udp_next = {}

    def claims_of(self, key: bytes) -> tuple[Claim, ...]:
        """Who claims this address, protocol and port: the one that has it first."""
        return self._claims.all_of(key)

    def candidates(self, claim: Claim) -> list[Candidate]:
        """All endpoints of a service port, in whatever condition they are."""
        slices = self._slices.get(claim.service.name, {})
        port = claim.port
        return gather(slices.values(), family_of(port.key).address_size, port.name, port.protocol)

    def service(self, name: Name) -> ServiceInfo | None:
        """None: there is none, or none for us."""
        return self._services.get(name)

    def addresses_here(self) -> set[bytes]:
        """Of all endpoints that name this node. Looks at everything."""
        slices = (slice_ for of_service in self._slices.values() for slice_ in of_service.values())
        return {e.address for slice_ in slices for e in slice_.endpoints if e.node == self.place.node}

    def take_health_checks(self) -> dict[Name, HealthCheck | None]:
        """Those that may have changed since the last call; None: there is none (any more)."""
        names, self._health = self._health, set()
        return {
            name: health_check(self._services.get(name), self._slices.get(name, {}).values(), self.place)
            for name in names
        }

    def udp_flows(self) -> dict[bytes, UdpFlows]:
        """What is programmed of UDP: for a comparison with all flows that are there. Do not change it."""
        return self._udp

    # Objects in.

    def _put(self, obj: Item) -> None:
        self.visited += 1
        match read(obj):
            case ServiceReading(name, info, faults):
                self.faults.found(SERVICE, name, *faults)
                self._set_service(name, info)
            case SliceReading(name, slice_info, faults, triggered):
                self.faults.found(ENDPOINT_SLICE, name, *faults)
                self._set_slice(name, slice_info, triggered)
            case ServiceCIDR() as cidr:
                self._put_service_cidr(cidr)
            case Node() as node if node.metadata.name == self.place.node:
                node_info, node_faults = read_node(node)
                self.faults.found(NODE, ("", self.place.node), *node_faults)
                self._set_node(node_info)

    def _delete(self, kind: str, name: Name) -> None:
        self.faults.found(kind, name)
        if kind == SERVICE:
            self._set_service(name, None)
        elif kind == ENDPOINT_SLICE:
            self._set_slice(name, None)
        elif kind == SERVICE_CIDR:
            self._cidrs.pop(name[1], None)
        elif kind == NODE and name[1] == self.place.node:
            self._set_node(ABSENT)

    def _replace(self, kind: str, objects: Sequence[Item]) -> None:
        known: Iterable[Name] = {
            SERVICE: list(self._services),
            ENDPOINT_SLICE: list(self._service_of),
            SERVICE_CIDR: [("", name) for name in self._cidrs],
            NODE: [("", self.place.node)],
        }[kind]
        listed = {name_of(obj) if kind in (SERVICE, ENDPOINT_SLICE) else ("", name_of(obj)[1]) for obj in objects}
        # What is gone goes first: an address may have passed to another Service.
        for name in set(known) - listed:
            self._delete(kind, name)
        for obj in objects:
            self._put(obj)
        self._listed.add(kind)

    def _set_service(self, name: Name, new: ServiceInfo | None) -> None:
        old = self._services.get(name)
        if old == new:
            return
        self.service_changes += 1
        if (old and old.health_check_port) or (new and new.health_check_port):
            self._health.add(name)
        if new is None:
            self._services.pop(name, None)
        else:
            self._services[name] = new
        mine = {port.key: port for port in new.ports} if new else {}
        for port in old.ports if old else ():
            self._changed.add(port.key)
            if port.key not in mine:
                self._claims.release(port.key, name)
                self.faults.no_conflict(port.key, name)
                self.faults.fits(port.key)
        if new is None:
            return
        for port in new.ports:
            self._changed.add(port.key)
            loser = self._claims.claim(Claim(new, port))
            if loser:
                self._report_conflict(loser)

    def _set_slice(self, name: Name, new: SliceInfo | None, triggered: float = 0.0) -> None:
        service = self._service_of.get(name)
        old = self._slices[service].get(name[1]) if service else None
        if old == new:
            return
        self.slice_changes += 1
        if new and triggered and ENDPOINT_SLICE in self._listed and len(self.triggers) < MAX_TRIGGERS:
            self.triggers.append((Family.IPV4 if new.address_size == 4 else Family.IPV6, triggered))
        if service and (new is None or new.service != service):
            slices = self._slices[service]
            del slices[name[1]], self._service_of[name]
            if not slices:
                del self._slices[service]
        if service:
            self._touch(service)
        if new is not None:
            self._slices.setdefault(new.service, {})[name[1]] = new
            self._service_of[name] = new.service
            self._touch(new.service)

    def _put_service_cidr(self, obj: ServiceCIDR) -> None:
        networks = []
        faults = []
        for text in (obj.spec.cidrs if obj.spec else None) or ():
            try:
                networks.append(parse_network(text))
            except ValueError as error:
                faults.append(f"spec.cidrs: {error}")
        self.faults.found(SERVICE_CIDR, ("", obj.metadata.name), *faults)
        self._cidrs[obj.metadata.name] = tuple(networks)

    def _set_node(self, new: NodeInfo) -> None:
        """What depends on this node's labels or addresses is another choice now. Rare; looks at everything.

        A Node is written every few minutes for reasons that do not concern us: then nothing is another object, either.
        """
        old = self.node
        if new == old:
            return
        self.node = new
        if new.zone != self.place.zone:
            self.place = Place(self.place.node, new.zone)
            for service, slices in self._slices.items():
                if any(slice_.has_hints for slice_ in slices.values()):
                    self._touch(service)
        if node_ips(old, self.bound) != node_ips(new, self.bound):
            for name, info in self._services.items():
                if info.sources:
                    self._touch(name)

    def _touch(self, service: Name) -> None:
        info = self._services.get(service)
        if info:
            self._changed.update(port.key for port in info.ports)
            if info.health_check_port:
                self._health.add(service)

    # Service ports out.

    def _compile(self, key: bytes) -> ServicePort | None:
        claim = self._claims.holder(key)
        if claim is None:
            return None
        service, port = claim.service, claim.port
        slices = self._slices.get(service.name, {})
        family = family_of(key)
        candidates = gather(slices.values(), family.address_size, port.name, port.protocol)
        self.visited += 1 + len(slices) + len(candidates)
        external = port.scope is not Scope.CLUSTER_IP
        if external:
            choice = choose_external(candidates, self.place, service.external_local)
        else:
            choice = choose_internal(candidates, self.place, service.internal_local)
        most = max(len(choice.endpoints), len(choice.local))
        if most > MAX_ENDPOINTS:
            reason = f"port {port.name!r} has {most} endpoints; only {MAX_ENDPOINTS} are used"
            self.faults.crowded(key, SERVICE, service.name, port.name, reason)
        else:
            self.faults.fits(key)
        if port.protocol == "UDP":
            serving = frozenset(endpoint(e.address, n) for e, n in candidates if e.conditions & Condition.SERVING)
            self._udp_next[key] = UdpFlows(serving, bool(choice.endpoints or choice.local))
        node = self.place.node
        # An endpoint that names no node may be on this one (the "kubernetes" Service has such).
        hairpins = {e.address for e, _ in (*choice.endpoints, *choice.local) if e.node == node or not e.node}
        return ServicePort(
            key,
            _full_name(service.name, port),
            _packed(choice.endpoints),
            tuple(hairpins),
            choice.drop,
            external,
            external and service.external_local,
            _packed(choice.local),
            service.timeout,
            self._sources(service, key) if port.scope is Scope.LOAD_BALANCER else None,
            service.scheduler,
            _identity(service, port, family) if service.timeout else 0,
        )

    def _sources(self, service: ServiceInfo, key: bytes) -> Sources | None:
        """Who may use a load balancer's address; None: everybody."""
        if service.sources is None:
            return None
        version = 4 if len(address_of(key)) == 4 else 6
        networks = [n for n in service.sources if n.version == version]
        is_of_other_family = bool(service.sources) and not service.unread_sources and not networks
        if is_of_other_family or any(not n.prefixlen for n in networks):
            return None
        own = [ipaddress.ip_address(a) for a in node_ips(self.node, self.bound)]
        if any(address in network for address in own for network in networks):
            # The node talks to the load balancer's address with that address as its source.
            networks += [
                ipaddress.ip_network(address_of(port.key))
                for port in service.ports
                if port.scope is Scope.LOAD_BALANCER and len(address_of(port.key)) == len(address_of(key))
            ]
        return tuple(address_range(n) for n in ipaddress.collapse_addresses(networks))  # type: ignore[type-var]

    def _report_conflict(self, loser: Claim) -> None:
        key, name = loser.port.key, loser.service.name
        holder = self._claims.holder(key)
        if holder:
            reason = f"{describe_key(key)} belongs to Service {'/'.join(holder.service.name)}, which is older: "
            reason += "give one of them another address or port"
            self.faults.conflict(key, SERVICE, name, holder.service.name, reason)


def _identity(service: ServiceInfo, port: PortInfo, family: Family) -> int:
    """The same for all addresses of a service port that lead to the same endpoints, and after a restart."""
    internal = port.scope is Scope.CLUSTER_IP and service.internal_local
    text = f"{_full_name(service.name, port)} {port.protocol} {family.nft} {'internal' if internal else ''}"
    return zlib.crc32(text.encode()) or 1


def _full_name(service: Name, port: PortInfo) -> str:
    """As kube-proxy names it: "namespace/name:port", without a colon for the unnamed port."""
    return f"{service[0]}/{service[1]}:{port.name}" if port.name else f"{service[0]}/{service[1]}"


def _packed(chosen: Sequence[Candidate]) -> tuple[bytes, ...]:
    return tuple([endpoint(e.address, number) for e, number in chosen[:MAX_ENDPOINTS]])
