"""Values of configuration fields: each function takes what the YAML parser gave and returns what the proxy uses.

All raise BadValue for a value of a wrong type or one that cannot be, saying what it must be.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, NamedTuple

from msgspec import Struct

from proxy.durations import parse_duration

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


class BadType(BadValue):
    """It is not even of the field's type, which no mode of the proxy makes up for."""


def kind_of(value: object) -> str:
    """What a user calls this type: "a number", "text"."""
    names = {bool: "true/false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a mapping"}
    return names.get(type(value), f"a {type(value).__name__}")


def show(value: object) -> str:
    """The value as a message shows it: short, with its type, which is often the fault."""
    if value is None:
        return "missing"
    if isinstance(value, dict | list):  # small texts may hold enormous ones
        return f"{kind_of(value)} of {len(value)}"
    shown = repr(value) if isinstance(value, str) else str(value)
    return f"{shown if len(shown) <= 60 else shown[:60] + '...'} ({kind_of(value)})"


def text(raw: object) -> str:
    if isinstance(raw, str):
        if not raw.isascii() and not _is_unicode(raw):
            raise BadType("must be UTF-8 text")
        return raw
    raise BadType("must be text" if isinstance(raw, dict | list) else "must be text, so put it in quotes")


def _is_unicode(value: str) -> bool:
    """Not so of what JSON's \\ud800 gives, or a command line that is not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def boolean(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    raise BadType(f"must be true or false{_unquoted(raw)}")


def list_(raw: object) -> list[Any]:
    if isinstance(raw, list):
        return raw
    raise BadType("must be a list")


def mapping(raw: object) -> dict[Any, Any]:
    if isinstance(raw, dict):
        return raw
    raise BadType("must be a mapping")


def _unquoted(raw: object) -> str:
    return ", without quotes" if isinstance(raw, str) else ""


def integer(low: int = 0, high: int = 2**31 - 1) -> Callable[[object], int]:
    def parse(raw: object) -> int:
        if type(raw) is int and low <= raw <= high:
            return raw
        raise BadValue(f"must be a whole number from {low} to {high}{_unquoted(raw)}")

    return parse


def number(raw: object) -> float:
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return raw
    raise BadType(f"must be a number{_unquoted(raw)}")


def choice(*allowed: str) -> Callable[[object], str]:
    def parse(raw: object) -> str:
        if raw == "" or raw in allowed:
            return str(raw)
        raise BadValue(f"must be one of {', '.join(allowed)}")

    return parse


def any_duration(raw: object) -> float:
    """A duration of either sign: what kube-proxy takes for a section of another mode than its own."""
    if not isinstance(raw, str):
        raise BadType('must be a duration as text, such as "30s", "15m" or "1h30m"')
    try:
        return parse_duration(raw)
    except ValueError:
        raise BadType('must be a duration such as "30s", "15m" or "1h30m"') from None


def duration(raw: object) -> float:
    if (seconds := any_duration(raw)) < 0:
        raise BadValue("must not be negative")
    return seconds


def text_or_number(raw: object) -> object:
    """A quantity, or a duration in its old form (nanoseconds as a number): used by fields that change nothing here."""
    if isinstance(raw, bool | dict | list):
        raise BadType("must be text or a number")
    return "" if raw in ("0", "0s") else raw


def port_range(raw: object) -> str:
    """ "LOW-HIGH", "LOW+SIZE" or one port."""
    value = text(raw)
    match = re.fullmatch(r"([0-9]{1,5})(?:([-+])([0-9]{1,5}))?", value.strip())
    if value.strip() and match:
        low, second = int(match[1]), int(match[3] or match[1])
        high = low + second if match[2] == "+" else second
        match = match if low <= high <= 65535 else None
    if value.strip() and not match:
        raise BadValue('must be a range of ports, such as "30000-32767"')
    return value.strip()


def _address(text: str) -> Address:
    """As kube-proxy reads it: leading zeros mean nothing, an IPv4-mapped IPv6 address is an IPv4 address."""
    if re.fullmatch(r"[0-9]+(\.[0-9]+){3}", text):
        text = ".".join(str(int(part)) for part in text.split("."))
    address = ip_address(text)
    if isinstance(address, IPv6Address):
        if address.scope_id:
            raise ValueError("zone")
        return address.ipv4_mapped or address
    return address


def addresses(raw: object) -> tuple[Address, ...]:
    value = text(raw)
    try:
        return (_address(value),) if value else ()
    except ValueError:
        raise BadValue("must be an IP address") from None


_HOST_PORT: Final = re.compile(r"(?:\[(?P<bracketed>[^][]+)\]|(?P<bare>[^][:]+)):(?P<port>[0-9]{1,5})")


def host_port(default_port: int) -> Callable[[object], HostPort | None]:
    """IP:port, or an IP alone, which gets the default port; "" is None."""

    def parse(raw: object) -> HostPort | None:
        value = text(raw)
        if not value:
            return None
        match = _HOST_PORT.fullmatch(value)
        host = (match["bracketed"] or match["bare"]) if match else value
        port = int(match["port"]) if match else default_port
        try:
            address = _address(host)
        except ValueError:
            address = None
        if address is None or not 1 <= port <= 65535:
            raise BadValue("must be an IP address and a port from 1 to 65535, such as 0.0.0.0:10256 or [::]:10256")
        return HostPort(str(address), port)

    return parse


def _network(text: str) -> Network:
    address, slash, length = text.partition("/")
    if not slash or not re.fullmatch(r"[0-9]{1,3}", length):
        raise ValueError("no prefix length")
    parsed = _address(address)
    if parsed.version == 4 and ":" in address:
        raise ValueError("an IPv4-mapped range belongs to no family")
    return ip_network((parsed, int(length)), strict=False)


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
            shown = repr(entry[:60]) if isinstance(entry, str) else show(entry)
            raise BadValue(f"must hold CIDRs, primary, localhost or all; {shown} is none of these") from None
    return NodePortAddresses("primary" in entries, tuple(cidrs)) if entries else None


def cidrs(raw: object) -> tuple[Network, ...]:
    """Of a list of CIDRs."""
    try:
        return tuple(_network(entry) for entry in list_(raw))
    except (ValueError, AttributeError):
        raise BadValue("must be a list of CIDRs") from None


def feature_gates(raw: object) -> dict[str, bool]:
    gates = mapping(raw)
    for name, value in gates.items():
        if not isinstance(name, str) or not _is_unicode(name) or not isinstance(value, bool):
            raise BadType(f"must give each feature true or false, without quotes; {name} has {value!r}")
    return gates


def vmodule(raw: object) -> list[Any]:
    """[{filePattern: FILE, verbosity: N}], as the flag --vmodule=FILE=N."""
    for entry in list_(raw):
        pattern = entry.get("filePattern") if isinstance(entry, dict) else None
        if not isinstance(pattern, str) or not re.fullmatch(r"[^=,]+", pattern):
            raise BadValue("must be a list of mappings with a filePattern, which has no '=' and no ','")
        integer()(entry.get("verbosity", 0))
    return list_(raw)


def is_interface(name: str) -> bool:
    """Linux: at most 15 bytes, no blanks, no '/'."""
    return 0 < len(name.encode(errors="replace")) <= 15 and not re.search(r"[\s/]", name)
