"""What is in the ipsets that IPVS mode makes: over netlink (linux/netfilter/ipset/ip_set.h), or from `ipset save`.

Reading needs CAP_NET_ADMIN.
"""

from __future__ import annotations

import errno
import ipaddress
import struct
from collections.abc import Callable
from typing import Final

from msgspec import Struct, field

from proxy.detect.ipsets import (
    ATTR_ADT,
    ATTR_PROTOCOL,
    ATTR_SETNAME,
    CMD_LIST,
    NAMES,
    PROTOCOL,
    SUBSYSTEM,
    read_names,
    request,
)
from proxy.detect.netlink import Netlink
from rules.elements import address_range, endpoint, service_key
from rules.netlink import NETLINK_NETFILTER, attribute, attributes
from rules.objects import PROTOCOLS

CMD_DESTROY: Final = 3
ERRORS: Final = {4100: errno.EBUSY}  # IPSET_ERR_BUSY
IP, IP_TO, CIDR, PORT, PORT_TO, PROTO, IP2, CIDR2 = 1, 2, 3, 4, 5, 7, 20, 21
NAME_SIZE: Final = 31
"""Longer names are cut: KUBE-6-LOAD-BALANCER-SOURCE-CID."""

KEYS: Final = (
    "CLUSTER-IP",
    "LOAD-BALANCER",
    "LOAD-BALANCER-LOCAL",
    "LOAD-BALANCER-FW",
    "EXTERNAL-IP",
    "EXTERNAL-IP-LOCAL",
    "NODE-PORT-SCTP-HASH",
    "NODE-PORT-LOCAL-SCTP-HASH",
)
RANGES: Final = ("LOAD-BALANCER-SOURCE-CIDR", "LOAD-BALANCER-SOURCE-IP")
PORTS: Final = ("NODE-PORT-TCP", "NODE-PORT-LOCAL-TCP", "NODE-PORT-UDP", "NODE-PORT-LOCAL-UDP")
ADDRESSES: Final = ("IPVS-IPS",)
LOOP_BACK, HEALTH_CHECKS = "LOOP-BACK", "HEALTH-CHECK-NODE-PORT"

Range = tuple[bytes, bytes]


class Members(Struct):
    """By what a set is called in either family, without KUBE- and KUBE-6-; IPv4 and IPv6 together, but for ports.

    keys: as rules.elements.service_key makes them. ports: (address size 4 or 16, protocol, port) -> names of sets.
    """

    names: list[str] = field(default_factory=list)
    keys: dict[str, set[bytes]] = field(default_factory=lambda: {name: set() for name in KEYS})
    ranges: dict[bytes, list[Range]] = field(default_factory=dict)
    """Service key -> who may use it."""
    ports: dict[str, set[tuple[int, int, int]]] = field(default_factory=lambda: {name: set() for name in PORTS})
    addresses: set[bytes] = field(default_factory=set)
    hairpins: set[bytes] = field(default_factory=set)
    """Endpoints that may connect to themselves: the protocol's number, and what rules.elements.endpoint makes."""
    health_checks: set[tuple[int, int]] = field(default_factory=set)
    """(address size, port) that load balancers' health checks may come to."""

    def has(self, name: str, key: bytes) -> bool:
        """Whether a service key is in the set of that name."""
        return key in self.keys[name]


_CANONICAL: Final = {
    f"KUBE-{six}{name}"[:NAME_SIZE]: (name, 16 if six else 4)
    for name in (*KEYS, *RANGES, *PORTS, *ADDRESSES, LOOP_BACK, HEALTH_CHECKS)
    for six in ("", "6-")
}


def read() -> Members:
    """All of this network namespace. Raises OSError, ValueError."""
    found = Members()
    with Netlink(NETLINK_NETFILTER) as netlink:
        found.names = [name for name in read_names(netlink) if NAMES.fullmatch(name)]
        for name in found.names:
            if name in _CANONICAL:
                kind, size = _CANONICAL[name]
                named = attribute(ATTR_SETNAME, name.encode() + b"\0")
                try:
                    netlink.dump(SUBSYSTEM << 8 | CMD_LIST, request(0, named), _reader(found, kind, size))
                except FileNotFoundError:  # it has just gone
                    pass
    return found


def _reader(found: Members, kind: str, size: int) -> Callable[[memoryview], None]:
    def read_members(body: memoryview) -> None:
        parts = dict(attributes(body[4:]))
        for _, member in attributes(parts.get(ATTR_ADT, b"")):
            fields = dict(attributes(member))
            address = _address(fields[IP]) if IP in fields else b""
            port = int.from_bytes(fields.get(PORT, b""))
            _add(found, kind, size, address, fields.get(PROTO, b"\0")[0], port, _second(fields))

    return read_members


def _second(fields: dict[int, memoryview]) -> Range | None:
    if IP2 not in fields:
        return None
    address = _address(fields[IP2])
    length = fields[CIDR2][0] if CIDR2 in fields else len(address) * 8
    return address_range(ipaddress.ip_network((address, length), strict=False))


def _address(value: memoryview) -> bytes:
    """IPSET_ATTR_IPADDR_IPV4 or IPSET_ATTR_IPADDR_IPV6."""
    ((_, address),) = attributes(value)
    return bytes(address)


def _add(found: Members, kind: str, size: int, address: bytes, protocol: int, port: int, second: Range | None) -> None:
    if kind in KEYS:
        found.keys[kind].add(service_key(address, protocol, port))
    elif kind in PORTS:
        found.ports[kind].add((size, PROTOCOLS[kind.rpartition("-")[2]], port))
    elif kind in ADDRESSES:
        found.addresses.add(address)
    elif kind == HEALTH_CHECKS:
        found.health_checks.add((size, port))
    elif kind == LOOP_BACK:
        if second and second[0] == second[1] == address:
            found.hairpins.add(bytes((protocol,)) + endpoint(address, port))
    elif second:
        found.ranges.setdefault(service_key(address, protocol, port), []).append(second)


def parse_saved(text: str) -> Members:
    """Of `ipset save`. Raises ValueError where a line of a set of interest cannot be understood."""
    found = Members()
    for line in text.splitlines():
        match line.split():
            case ["create", name, *_] if NAMES.fullmatch(name):
                found.names.append(name)
            case ["add", name, member, *_] if name in _CANONICAL:
                kind, size = _CANONICAL[name]
                try:
                    _add(found, kind, size, *_member(member))
                except (ValueError, KeyError, struct.error) as error:
                    raise ValueError(f"what ipset save has written has a line {line.strip()[:60]!r}") from error
    return found


def _member(text: str) -> tuple[bytes, int, int, Range | None]:
    """10.96.30.9,tcp:80 or 198.51.100.31,tcp:443,203.0.113.0/24 or 30101 or 10.96.30.3."""
    first, *rest = text.split(",")
    if not rest and first.isdecimal():
        return b"", 0, int(first), None
    address = ipaddress.ip_address(first).packed
    if not rest:
        return address, 0, 0, None
    protocol, _, port = rest[0].partition(":")
    second = address_range(ipaddress.ip_network(rest[1], strict=False)) if rest[1:] else None
    return address, PROTOCOLS[protocol.upper()], int(port), second


def remove(names: list[str]) -> list[tuple[str, OSError]]:
    """Those that could not be removed (EBUSY: a rule uses it), and why. One that is not there is no failure.

    Raises OSError, ValueError.
    """
    failed: list[tuple[str, OSError]] = []
    with Netlink(NETLINK_NETFILTER, ERRORS) as netlink:
        for name in names:
            body = bytes(4) + attribute(ATTR_PROTOCOL, PROTOCOL) + attribute(ATTR_SETNAME, name.encode() + b"\0")
            try:
                netlink.do(SUBSYSTEM << 8 | CMD_DESTROY, body)
            except FileNotFoundError:
                pass
            except OSError as error:
                failed.append((name, error))
    return failed
