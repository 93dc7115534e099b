"""Packed addresses and masks, as people write them. Pure."""

from __future__ import annotations

import socket


def address_text(packed: bytes) -> str:
    """packed: 4 or 16 bytes, in network order."""
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def prefix_length(mask: bytes) -> int:
    """Of a mask, in network order; -1: it is none of a network."""
    number = int.from_bytes(mask)
    bits = number.bit_count()
    return bits if number == ((1 << bits) - 1) << (8 * len(mask) - bits) else -1
