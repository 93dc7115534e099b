"""Packed addresses, endpoints, ranges and keys as a report writes them. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from rules.elements import Sources, address_of, describe_key, is_node_port
from rules.objects import PROTOCOL_NAMES, Family
from rules.packed import address_text

SHOWN = 8
"""Endpoints, ranges and names that a sentence names before it says how many more there are."""

NAMES = {Family.IPV4: "IPv4", Family.IPV6: "IPv6"}


def endpoint_text(endpoint: bytes) -> str:
    """ "10.244.1.7:8080", "[fd44::2]:8080"; endpoint: as rules.elements.endpoint packs it."""
    address, port = address_text(endpoint[:-4]), int.from_bytes(endpoint[-4:-2])
    return f"{address}:{port}" if len(endpoint) == 8 else f"[{address}]:{port}"


def key_text(key: bytes) -> str:
    """As rules.elements.describe_key, several times faster."""
    if is_node_port(key):
        return describe_key(key)
    address, protocol = address_text(address_of(key)), PROTOCOL_NAMES.get(key[-8], str(key[-8]))
    port = int.from_bytes(key[-4:-2])
    return f"{address}:{port}/{protocol}" if len(key) == 12 else f"[{address}]:{port}/{protocol}"


def endpoints_text(one: frozenset[bytes], other: frozenset[bytes]) -> str:
    """Those that the other side has not, and how many both have."""
    only = some([endpoint_text(endpoint) for endpoint in sorted(one - other)])
    shared = len(one & other)
    return " and ".join(filter(None, [only, f"{shared} that both have" if shared else ""])) or "none"


def sources_text(sources: Sources | None) -> str:
    if sources is None:
        return "everybody"
    return some([range_text(first, last) for first, last in sources]) or "nobody"


def range_text(first: bytes, last: bytes) -> str:
    """A CIDR where it is one, else "first-last"."""
    low, high = ipaddress.ip_address(first), ipaddress.ip_address(last)
    networks = list(ipaddress.summarize_address_range(low, high))
    return str(networks[0]) if len(networks) == 1 else f"{low}-{high}"


def some(texts: Sequence[str], most: int = SHOWN) -> str:
    """The first of them, with commas, and how many more there are."""
    shown = ", ".join(texts[:most])
    return f"{shown} and {len(texts) - most} more" if len(texts) > most else shown


def label(name: str, key: bytes) -> str:
    """ "namespace/name:port at ADDRESS"; the address alone, where nothing tells a name."""
    return f"{name} at {key_text(key)}" if name else key_text(key)


def service_of(name: str) -> str:
    """ "namespace/name" of "namespace/name:port"."""
    return name.partition(":")[0]


def service_at(key: bytes, name: str) -> str:
    """ "Service shop/web, 10.96.0.10:80/TCP". name: of a service port, "shop/web:http"; '': it is not known."""
    service = service_of(name)
    return f"Service {service}, {describe_key(key)}" if service else describe_key(key)


def services(names: Iterable[str]) -> tuple[str, ...]:
    """As a finding's objects: each once, sorted."""
    return tuple(f"Service {name}" for name in sorted(set(names)))


def is_are(number: int) -> str:
    return "is" if number == 1 else "are"


def many(number: int, thing: str) -> str:
    """ "1 Service", "3,000 Services"."""
    plural = f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}es" if thing.endswith("s") else f"{thing}s"
    return f"{number:,} {thing if number == 1 else plural}"
