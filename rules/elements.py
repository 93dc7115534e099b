"""Service ports and what they are packed of. Pure, and the hot path: all is packed once, as the kernel wants it.

All addresses, ports and keys are bytes in network order, each field padded to 4 bytes, so that an element is made by
putting bytes side by side.
"""

from __future__ import annotations

import ipaddress
import struct
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from msgspec import Struct

from rules.objects import PROTOCOL_NAMES, Family

_PORT = struct.Struct(">Hxx")
_NUMBER = struct.Struct("=I")

INDEXES: Final = [_NUMBER.pack(i) for i in range(1024)]
"""Packed endpoint numbers; `index` makes those that are not here."""

Sources = tuple[tuple[bytes, bytes], ...]
"""Ranges of packed addresses, first and last, none touching another."""


class Scheduler(Enum):
    """RR: in turn. SH: by a hash of the client's address, so that a client stays while the endpoints do."""

    RANDOM = "random"
    RR = "rr"
    SH = "sh"


class ServicePort(Struct, frozen=True, gc=False):
    """One address, protocol and port, or protocol and NodePort, and where it leads.

    key: what `service_key` or `node_port_key` gives.
    name: for people: "namespace/name:port".
    endpoints: each what `endpoint` gives: 8 bytes or 20; no duplicates, at most MAX_ENDPOINTS. None: refused, and
        counted.
    hairpins: packed addresses of those endpoints that may be the sender itself.
    drop: where there are no endpoints (with `local_policy`: no `local` ones), drop instead of refusing.
    external: an external address; all traffic is masqueraded. Always so for a NodePort.
    local_policy: of an external address or NodePort: from outside only `local` counts, and nothing is masqueraded.
    timeout: session affinity in seconds, 0: none.
    identity: with session affinity: a number that all keys of one service port share that lead to the same endpoints,
        so that a client stays with its endpoint whichever it uses.
    scheduler: how an endpoint is chosen where there is no affinity.
    sources: who may use it; None: everybody.
    """

    key: bytes
    name: str
    endpoints: tuple[bytes, ...] = ()
    hairpins: tuple[bytes, ...] = ()
    drop: bool = False
    external: bool = False
    local_policy: bool = False
    local: tuple[bytes, ...] = ()
    timeout: int = 0
    sources: Sources | None = None
    scheduler: Scheduler = Scheduler.RANDOM
    identity: int = 0

    @property
    def family(self) -> Family:
        return family_of(self.key)

    @property
    def is_refused(self) -> bool:
        """It has no endpoints anywhere."""
        return not (self.endpoints or self.local or self.drop)


def family_of(key: bytes) -> Family:
    """The family of a service key."""
    size = len(key)
    return Family(key[0]) if size == 9 else Family.IPV4 if size == 12 else Family.IPV6


def is_node_port(key: bytes) -> bool:
    return len(key) == 9


def address_of(key: bytes) -> bytes:
    """The packed address in a service key; b"" of a NodePort's."""
    return b"" if len(key) == 9 else key[:-8]


def element_key(key: bytes) -> bytes:
    """The key as it stands in the sets: a NodePort's without its family."""
    return key[1:] if len(key) == 9 else key


@lru_cache(maxsize=65536)
def pack_port(port: int) -> bytes:
    """A port as it stands in a key or in data. Raises struct.error out of 0..65535."""
    return _PORT.pack(port)


def service_key(address: bytes, protocol: int, port: int) -> bytes:
    """address: packed, 4 or 16 bytes; protocol: 6, 17, 132; port: 1..65535. 12 bytes, or 24."""
    return address + bytes((protocol, 0, 0, 0)) + pack_port(port)


def node_port_key(family: Family, protocol: int, port: int) -> bytes:
    """The key of a NodePort in one family. 9 bytes."""
    return bytes((family, protocol, 0, 0, 0)) + pack_port(port)


def endpoint(address: bytes, port: int) -> bytes:
    """address: packed, 4 or 16 bytes; port: 1..65535."""
    return address + pack_port(port)


def index(number: int) -> bytes:
    """A number as it stands in a key, and in the data of a map: in host order."""
    return INDEXES[number] if number < len(INDEXES) else _NUMBER.pack(number)


def address_range(network: IPv4Network | IPv6Network) -> tuple[bytes, bytes]:
    """First and last address, packed."""
    return network.network_address.packed, network.broadcast_address.packed


def describe_key(key: bytes) -> str:
    """A service key for people: "10.96.0.10:53/UDP", "NodePort 30080/TCP (IPv4)"."""
    protocol = PROTOCOL_NAMES.get(key[-8], str(key[-8]))
    port = int.from_bytes(key[-4:-2])
    if is_node_port(key):
        return f"NodePort {port}/{protocol} ({'IPv4' if family_of(key) is Family.IPV4 else 'IPv6'})"
    address = ipaddress.ip_address(key[:-8])
    return f"[{address}]:{port}/{protocol}" if address.version == 6 else f"{address}:{port}/{protocol}"
