"""IP addresses and networks as Kubernetes objects spell them, packed as the data plane wants them.

Old objects do not always pass today's validation. As upstream's proxies do (k8s.io/utils/net, ParseIPSloppy): leading
zeros are decimal, an IPv4-mapped IPv6 address is the IPv4 address, host bits of a CIDR are masked.
"""

from __future__ import annotations

import ipaddress
import socket

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_MAPPED = bytes(10) + b"\xff\xff"
_UNSPECIFIED = bytes(4)


def parse_address(text: str) -> bytes:
    """4 or 16 bytes. Raises ValueError that says what is wrong."""
    # inet_pton is strict (four decimal numbers, no leading zeros) and ten times faster than ipaddress.
    try:
        if ":" in text:
            packed = socket.inet_pton(socket.AF_INET6, text)
            return packed[12:] if packed.startswith(_MAPPED) else packed
        return socket.inet_pton(socket.AF_INET, text)
    except (OSError, ValueError):  # ValueError: a NUL or a surrogate
        pass
    try:
        return socket.inet_pton(socket.AF_INET, _decimal(text))
    except (OSError, ValueError):
        raise ValueError(f"{text!r} is not an IP address") from None


def parse_service_address(text: str) -> bytes:
    """The same for an address that traffic may go to. Raises ValueError also for one that none can."""
    packed = parse_address(text)
    fault = unusable(packed)
    if fault:
        raise ValueError(f"{text!r} is {fault} address")
    return packed


def unusable(packed: bytes) -> str:
    """Why no Service and no endpoint may have this address, '' if it may (core validation, ValidateEndpointIP)."""
    first = packed[0]
    if len(packed) == 4:
        if packed == _UNSPECIFIED:
            return "the unspecified"
        if first == 127:
            return "a loopback"
        if first == 169 and packed[1] == 254:
            return "a link-local"
        return "a multicast" if 224 <= first < 240 else ""
    if not any(packed):
        return "the unspecified"
    if packed == bytes(15) + b"\1":
        return "the loopback"
    if first == 0xFE and packed[1] & 0xC0 == 0x80:
        return "a link-local"
    return "a multicast" if first == 0xFF else ""


def with_port(address: bytes, port: int | str) -> str:
    """For people: "10.244.1.7:8080", "[fd00::7]:8080". address: packed."""
    ip = ipaddress.ip_address(address)
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


def parse_network(text: str) -> Network:
    """Raises ValueError that says what is wrong."""
    address, slash, length = text.strip().partition("/")
    if not slash:
        raise ValueError(f"{text!r} is not a CIDR (address/length)")
    try:
        packed, bits = parse_address(address), int(length)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a CIDR: {error}") from None
    if not 0 <= bits <= 8 * len(packed):
        raise ValueError(f"{text!r} is not a CIDR: its length is not in 0..{8 * len(packed)}")
    return ipaddress.ip_network((packed, bits), strict=False)


def _decimal(text: str) -> str:
    """An IPv4 address without leading zeros."""
    return ".".join(part.lstrip("0") or "0" if part.isdigit() else part for part in text.split("."))
