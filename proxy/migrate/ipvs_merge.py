"""Virtual servers and members of ipsets, put together to entries. Pure.

IPVS makes no difference between senders: from outside as from inside, a connection gets one of a server's destinations.
A server without any refuses (ICMP port unreachable). NodePorts are servers at each of the node's addresses.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from typing import Final

from msgspec.structs import replace

from proxy.detect.ipset_members import HEALTH_CHECKS, LOOP_BACK, Members, Range
from proxy.detect.ipvs_table import Server
from proxy.migrate.entries import Beside, Dataplane, Entry
from proxy.unread import Unread
from rules.elements import Sources, address_range, describe_key, node_port_key, service_key
from rules.objects import PROTOCOLS, Family

NODE_PORT_RANGE: Final = range(30000, 32768)
"""The API server's default. A server at an address of the node may be a load balancer's (keepalived); with such a port
it is not, whatever the ipsets say."""
_REMEDY: Final = "look at it with ipvsadm -Ln; restarting kube-proxy does not mend it: remove the server"
LET_IN: Final = ("CLUSTER-IP", "LOAD-BALANCER", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL")
_NAMES: Final = {number: name for name, number in PROTOCOLS.items()}


def of_kube_proxy(server: Server, virtual: Set[bytes], node: Set[bytes], members: Members | None) -> bool:
    """Whether kube-proxy made it. virtual: the addresses of kube-ipvs0. node: this node's other ones. members: of the
    ipsets, None where they could not be read."""
    if server.address in virtual:
        return True
    if server.address not in node or not server.translates:
        return False
    if members is None or not members.names or server.port in NODE_PORT_RANGE:
        return True
    return _in_node_ports(server, members, "NODE-PORT") or _in_node_ports(server, members, "NODE-PORT-LOCAL")


def dataplane(
    servers: Iterable[Server],
    members: Members | None,
    virtual: Set[bytes],
    source: str,
    unread: tuple[Unread, ...] = (),
    strays: Iterable[Server] = (),
) -> Dataplane:
    """servers: kube-proxy's. virtual: the addresses that are no NodePorts' (kube-ipvs0). strays: servers of which that is not
    known."""
    entries: list[Entry] = []
    node_ports: dict[bytes, list[tuple[bytes, Entry]]] = {}
    addresses: dict[bytes, None] = {}
    uneven: dict[bytes, None] = {}
    otherwise: dict[bytes, str] = {}
    for server in servers:
        if strange := _strange(server):
            otherwise[_key(server, server.address in virtual)] = strange
        if server.weighted:
            uneven[_key(server, server.address in virtual)] = None
        if server.address in virtual:
            entries.append(_entry(server, members))
            continue
        family = Family.IPV4 if len(server.address) == 4 else Family.IPV6
        key = node_port_key(family, server.protocol, server.port)
        node_ports.setdefault(key, []).append((server.address, _node_port(key, server, members)))
        addresses[server.address] = None
    for key, found in node_ports.items():
        size = 4 if key[0] == Family.IPV4 else 16
        entries += _merged(key, dict(found), [address for address in addresses if len(address) == size])
    beside = Beside(
        hairpins=frozenset(members.hairpins) if members and _has(members, LOOP_BACK) else None,
        health_checks=_health_checks(members) if members and _has(members, HEALTH_CHECKS) else None,
        strays=tuple([_key(server, True) for server in strays]),
        uneven=tuple(uneven),
    )
    remarks = [Unread(describe_key(key), cause, _REMEDY) for key, cause in otherwise.items()]
    found_entries = [replace(one, damaged=True) if one.key in otherwise else one for one in entries]
    return Dataplane(
        "ipvs",
        tuple(found_entries),
        tuple(sorted(addresses)),
        source=source,
        unread=unread,
        remarks=tuple(remarks),
        beside=beside,
    )


def _strange(server: Server) -> str:
    """What kube-proxy makes no server with; "": nothing."""
    if not server.translates:
        return "some of its endpoints are reached by another way than masquerading"
    if server.by_packets:
        return "each packet is led anew, as if it were a connection (one-packet scheduling)"
    return "session affinity is by networks of clients, and not by their addresses" if server.by_networks else ""


def is_stray(server: Server, virtual: Set[bytes], node: Set[bytes]) -> bool:
    """Whether it may be one that kube-proxy has left: at an address that this node does not have."""
    return bool(server.address) and server.translates and server.address not in virtual and server.address not in node


def _key(server: Server, is_virtual: bool) -> bytes:
    if is_virtual:
        return service_key(server.address, server.protocol, server.port)
    family = Family.IPV4 if len(server.address) == 4 else Family.IPV6
    return node_port_key(family, server.protocol, server.port)


def _has(members: Members, name: str) -> bool:
    return f"KUBE-{name}" in members.names


def _health_checks(members: Members) -> frozenset[bytes]:
    return frozenset(
        node_port_key(Family.IPV4 if size == 4 else Family.IPV6, PROTOCOLS["TCP"], port)
        for size, port in members.health_checks
    )


def _entry(server: Server, members: Members | None) -> Entry:
    key = service_key(server.address, server.protocol, server.port)
    keeps_source = None
    sources: Sources | None = None
    is_let_in = True
    if members and members.names:
        is_local = members.has("LOAD-BALANCER-LOCAL", key) or members.has("EXTERNAL-IP-LOCAL", key)
        is_external = is_local or members.has("LOAD-BALANCER", key) or members.has("EXTERNAL-IP", key)
        keeps_source = is_local if is_external else None
        # KUBE-IPVS-FILTER refuses what goes to an address of kube-ipvs0 and is in none of these.
        is_let_in = server.address not in members.addresses or any(members.has(name, key) for name in LET_IN)
        if members.has("LOAD-BALANCER-FW", key):
            sources = _sources(members.ranges.get(key, ()))
    return _made(key, server, keeps_source, sources, is_let_in=is_let_in)


def _node_port(key: bytes, server: Server, members: Members | None) -> Entry:
    """What is in neither set is not masqueraded, either."""
    keeps_source = None
    if members and members.names:
        keeps_source = not _in_node_ports(server, members, "NODE-PORT") or _in_node_ports(
            server, members, "NODE-PORT-LOCAL"
        )
    return _made(key, server, keeps_source, None)


def _made(
    key: bytes, server: Server, keeps_source: bool | None, sources: Sources | None, *, is_let_in: bool = True
) -> Entry:
    endpoints = frozenset(server.endpoints)
    outside = endpoints if is_let_in else frozenset()
    return Entry(
        key,
        "",
        endpoints,
        outside,
        "" if endpoints else "reject",
        "" if outside else "reject",
        keeps_source,
        max(server.persistence, 0),
        sources,
        server.scheduler,
        server.connections,
    )


def _merged(key: bytes, at: dict[bytes, Entry], addresses: Sequence[bytes]) -> list[Entry]:
    """One entry for a NodePort, as most of the node's addresses have it; where one has it otherwise, or lacks it, that
    is an entry of its own, with the address in its key.

    at: address -> what is there. addresses: all that have NodePorts.
    """
    what = {address: replace(entry, connections=0) for address, entry in at.items()}
    counts = Counter(what.values())
    # Of two addresses that differ, the one with more endpoints: it has the stale one, and is compared.
    most = max(counts, key=lambda entry: (counts[entry], len(entry.endpoints)))
    found = [replace(most, connections=sum(entry.connections for entry in at.values()))]
    protocol, port = key[1], int.from_bytes(key[-4:-2])
    for address in addresses:
        here = service_key(address, protocol, port)
        if address not in what:
            found.append(Entry(here, refusal="reject", outside_refusal="reject", scheduler=most.scheduler))
        elif what[address] != most:
            found.append(replace(what[address], key=here))
    return found


def _in_node_ports(server: Server, members: Members, name: str) -> bool:
    protocol = _NAMES.get(server.protocol, "")
    if protocol == "SCTP":
        return members.has(f"{name}-SCTP-HASH", service_key(server.address, server.protocol, server.port))
    ports = members.ports.get(f"{name}-{protocol}", set())
    return (len(server.address), server.protocol, server.port) in ports


def _sources(ranges: Iterable[Range]) -> Sources | None:
    """As proxy.state makes them; None: everybody."""
    networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
    for first, last in ranges:
        networks += ipaddress.summarize_address_range(ipaddress.ip_address(first), ipaddress.ip_address(last))
    found = tuple(address_range(network) for network in ipaddress.collapse_addresses(networks))  # type: ignore[type-var]
    is_everybody = len(found) == 1 and not any(found[0][0]) and found[0][1] == b"\xff" * len(found[0][1])
    return None if is_everybody else found
