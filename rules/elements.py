"""Service ports and what they are packed of. Pure, and the hot path: all is packed once, as the kernel wants it.

All addresses, ports and keys are bytes in network order, each field padded to 4 bytes, so that an element is made by
putting bytes side by side.
"""

from __future__ import annotations

import ipaddress
import struct
from functools import lru_cache
from typing import Final

from msgspec import Struct

from rules.objects import Family

_PORT = struct.Struct(">Hxx")
_NUMBER = struct.Struct("=I")

INDEXES: Final = [_NUMBER.pack(i) for i in range(1024)]
"""Packed endpoint numbers; `index` makes those that are not here."""


class ServicePort(Struct, frozen=True, gc=False):
    """One address, protocol and port, and where it leads.

    key: what `service_key` gives: 12 bytes (IPv4) or 24 (IPv6).
    name: for people: "namespace/name:port".
    endpoints: each what `endpoint` gives: 8 bytes or 20; no duplicates, at most MAX_ENDPOINTS. None: refused (which
        costs no element), or with `drop` dropped.
    hairpins: packed addresses of those endpoints that may be the sender itself; a subset.
    """

    key: bytes
    name: str
    endpoints: tuple[bytes, ...] = ()
    hairpins: tuple[bytes, ...] = ()
    drop: bool = False

    @property
    def family(self) -> Family:
        return family_of(self.key)

    @property
    def address(self) -> bytes:
        """The packed clusterIP."""
        return self.key[:-8]


def family_of(key: bytes) -> Family:
    """The family of a service key."""
    return Family.IPV4 if len(key) == 12 else Family.IPV6


@lru_cache(maxsize=65536)
def pack_port(port: int) -> bytes:
    """A port as it stands in a key or in data. Raises struct.error out of 0..65535."""
    return _PORT.pack(port)


def service_key(address: bytes, protocol: int, port: int) -> bytes:
    """address: packed, 4 or 16 bytes; protocol: 6, 17, 132; port: 1..65535."""
    return address + bytes((protocol, 0, 0, 0)) + pack_port(port)


def endpoint(address: bytes, port: int) -> bytes:
    """address: packed, 4 or 16 bytes; port: 1..65535."""
    return address + pack_port(port)


def index(number: int) -> bytes:
    """An endpoint's number as it stands in the key of the map."""
    return INDEXES[number] if number < len(INDEXES) else _NUMBER.pack(number)


def describe_key(key: bytes) -> str:
    """A service key for people: "10.96.0.10:53/UDP"."""
    address = ipaddress.ip_address(key[:-8])
    protocol = {6: "TCP", 17: "UDP", 132: "SCTP"}.get(key[-8], str(key[-8]))
    port = int.from_bytes(key[-4:-2])
    return f"[{address}]:{port}/{protocol}" if address.version == 6 else f"{address}:{port}/{protocol}"
