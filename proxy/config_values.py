"""Values of configuration fields: each function takes what the YAML parser gave and returns what the proxy uses.

All raise BadValue for a value of a wrong type or one that cannot be, saying what it must be.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, NamedTuple

from msgspec import Struct

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class HostPort(NamedTuple):
    """Where a server listens. An IPv6 `host` has no brackets."""

    host: str
    port: int


class ClusterCIDR(Struct, frozen=True):
    """The pods' address range, at most one per family; host bits are masked."""

    v4: IPv4Network | None = None
    v6: IPv6Network | None = None


class NodePortAddresses(Struct, frozen=True):
    """`primary`: the Node's InternalIPs. `cidrs`: local addresses inside them; `all` and `localhost` are spelled out."""

    primary: bool = False
    cidrs: tuple[Network, ...] = ()


class BadValue(ValueError):
    """What a value must be and is not."""


def kind_of(value: object) -> str:
    """What a user calls this type: "a number", "text"."""
    names = {bool: "true/false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a mapping"}
    return names.get(type(value), f"a {type(value).__name__}")


def show(value: object) -> str:
    """The value as a message shows it: short, with its type, which is often the fault."""
    if value is None:
        return "missing"
    shown = repr(value) if isinstance(value, str) else str(value)
    return f"{shown if len(shown) <= 60 else shown[:60] + '...'} ({kind_of(value)})"


def text(raw: object) -> str:
    if isinstance(raw, str):
        return raw
    raise BadValue("must be text" if isinstance(raw, dict | list) else "must be text, so put it in quotes")


def boolean(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    raise BadValue("must be true or false, without quotes")


def list_(raw: object) -> list[Any]:
    if isinstance(raw, list):
        return raw
    raise BadValue("must be a list")


def mapping(raw: object) -> dict[Any, Any]:
    if isinstance(raw, dict):
        return raw
    raise BadValue("must be a mapping")


def integer(low: int = 0, high: int = 2**31 - 1) -> Callable[[object], int]:
    def parse(raw: object) -> int:
        if type(raw) is int and low <= raw <= high:
            return raw
        raise BadValue(f"must be a whole number from {low} to {high}, without quotes")

    return parse


def number(raw: object) -> float:
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return raw
    raise BadValue("must be a number, without quotes")


def choice(*allowed: str) -> Callable[[object], str]:
    def parse(raw: object) -> str:
        if raw == "" or raw in allowed:
            return str(raw)
        raise BadValue(f"must be one of {', '.join(allowed)}")

    return parse


# Both signs of "micro" (U+00B5 and U+03BC), as in Go's time.ParseDuration.
_UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_DURATION: Final = re.compile(r"(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+")
_DURATION_PART: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?([a-zµμ]+)")


def parse_duration(text: str) -> float:
    """Seconds of a Go duration, such as "1h0m0s", "1.5h", "300ms", "-2s" or "0". Raises ValueError."""
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if digits == "0":
        return 0.0
    if not _DURATION.fullmatch(digits):
        raise ValueError(f"not a duration: {text!r}")
    nanoseconds = 0
    for whole, fraction, unit in _DURATION_PART.findall(digits):
        nanoseconds += int(whole or 0) * _UNITS[unit] + int(fraction or 0) * _UNITS[unit] // 10 ** len(fraction)
    if nanoseconds >= 2**63:
        raise ValueError(f"longer than 292 years: {text!r}")
    return sign * nanoseconds / 10**9


def duration(raw: object) -> float:
    if not isinstance(raw, str):
        raise BadValue('must be a duration as text, such as "30s", "15m" or "1h30m"')
    try:
        seconds = parse_duration(raw)
    except ValueError:
        raise BadValue('must be a duration such as "30s", "15m" or "1h30m"') from None
    if seconds < 0:
        raise BadValue("must not be negative")
    return seconds


def text_or_number(raw: object) -> object:
    """A quantity, or a duration in its old form (nanoseconds as a number): used by fields that change nothing here."""
    if isinstance(raw, bool | dict | list):
        raise BadValue("must be text or a number")
    return "" if raw in ("0", "0s") else raw


def interface(raw: object) -> str:
    name = text(raw)
    if len(name.encode(errors="replace")) > 15 or re.search(r"[\s/]", name):
        raise BadValue("must be an interface name: at most 15 bytes, no blanks, no '/'")
    return name


def _address(text: str) -> Address:
    address = ip_address(text)
    if isinstance(address, IPv6Address) and (address.scope_id or address.ipv4_mapped):
        raise ValueError("zone or IPv4-mapped address")
    return address


def addresses(raw: object) -> tuple[Address, ...]:
    parts = text(raw).split(",") if raw != "" else []
    try:
        found = tuple(_address(part.strip()) for part in parts)
    except ValueError:
        raise BadValue("must be an IP address, or an IPv4 and an IPv6 address with a comma between") from None
    if len(found) > 2 or len({a.version for a in found}) != len(found):
        raise BadValue("must have at most one address per IP family")
    return found


_HOST_PORT: Final = re.compile(r"(?:\[(?P<v6>[^][]+)\]|(?P<v4>[^][:]+)):(?P<port>[0-9]{1,5})")


def host_port(default_port: int) -> Callable[[object], HostPort | None]:
    """IP:port, or an IP alone, which gets the default port; "" is None."""

    def parse(raw: object) -> HostPort | None:
        value = text(raw)
        if not value:
            return None
        match = _HOST_PORT.fullmatch(value)
        host = (match["v6"] or match["v4"]) if match else value
        port = int(match["port"]) if match else default_port
        try:
            address = _address(host)
        except ValueError:
            address = None
        if address is None or not 1 <= port <= 65535 or (match and bool(match["v6"]) != (address.version == 6)):
            raise BadValue("must be an IP address and a port from 1 to 65535, such as 0.0.0.0:10256 or [::]:10256")
        return HostPort(str(address), port)

    return parse


def _network(text: str) -> Network:
    address, slash, length = text.partition("/")
    if not slash or not re.fullmatch(r"[0-9]{1,3}", length):
        raise ValueError("no prefix length")
    return ip_network((_address(address), int(length)), strict=False)


def cluster_cidr(raw: object) -> ClusterCIDR | None:
    value = text(raw)
    if not value:
        return None
    example = 'such as "10.244.0.0/16" or "10.244.0.0/16,fd00:10:244::/48"'
    try:
        networks = [_network(part.strip()) for part in value.split(",")]
    except ValueError:
        raise BadValue(f"must be a CIDR, or two with a comma between, {example}") from None
    v4 = [n for n in networks if isinstance(n, IPv4Network)]
    v6 = [n for n in networks if isinstance(n, IPv6Network)]
    if len(v4) > 1 or len(v6) > 1:
        raise BadValue(f"must have at most one CIDR per IP family, {example}")
    return ClusterCIDR(v4[0] if v4 else None, v6[0] if v6 else None)


_KEYWORDS: Final[dict[str, tuple[Network, ...]]] = {
    "all": (IPv4Network("0.0.0.0/0"), IPv6Network("::/0")),
    "localhost": (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128")),
}


def node_port_addresses(raw: object) -> NodePortAddresses | None:
    cidrs: dict[Network, None] = {}
    entries = list_(raw)
    for entry in entries:
        try:
            if entry != "primary":
                cidrs |= dict.fromkeys(_KEYWORDS.get(entry) or (_network(entry),))
        except (ValueError, TypeError, AttributeError):
            raise BadValue(f"must hold CIDRs, primary, localhost or all; {entry!r} is none of these") from None
    return NodePortAddresses("primary" in entries, tuple(cidrs)) if entries else None


def feature_gates(raw: object) -> dict[str, bool]:
    gates = mapping(raw)
    for name, value in gates.items():
        if not isinstance(name, str) or not isinstance(value, bool):
            raise BadValue(f"must give each feature true or false, without quotes; {name} has {value!r}")
    return gates
