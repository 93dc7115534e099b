"""The key of a set or map, loaded from a packet: its parts side by side in registers, where nft puts them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rules import expressions as e
from rules.objects import Field

_IP_PROTOCOL: Final = e.Payload(1, 9, 1, 1)
"""Of an IPv4 packet; read faster than metadata. In IPv6 there may be other headers in between."""
_HASHED: Final = {Field.IP6_SADDR_HASH: (Field.IP6_SADDR, 1)}
"""What is hashed, and with which seed."""


def _has_ipv4(parts: tuple[Field, ...]) -> bool:
    return Field.IP_SADDR in parts or Field.IP_DADDR in parts


def load_field(part: Field, register: int) -> e.Expression:
    """One part, as the packet has it. Raises ValueError for one that is not in the packet."""
    match part:
        case Field.IP_SADDR:
            return e.Payload(1, 12, 4, register)
        case Field.IP_DADDR:
            return e.Payload(1, 16, 4, register)
        case Field.IP6_SADDR:
            return e.Payload(1, 8, 16, register)
        case Field.IP6_DADDR:
            return e.Payload(1, 24, 16, register)
        case Field.L4PROTO:
            return e.Meta(e.Meta.L4PROTO, register=register)
        case Field.DPORT:
            return e.Payload(2, 2, 2, register)
        case Field.PRIORITY:
            return e.Meta(e.Meta.PRIORITY, register=register)
        case _:
            raise ValueError(f"{part.text!r} is computed, not loaded")


def load_key(parts: tuple[Field, ...], interval: bool = False, scratch: int = 2) -> tuple[list[e.Expression], int]:
    """What loads the parts side by side, and the number of 4-byte words that they fill.

    scratch: the 16-byte register for what is hashed.
    """
    loads: list[e.Expression] = []
    word = 0
    for part in parts:
        if part in _HASHED:
            whole, seed = _HASHED[part]
            loads += [
                load_field(whole, scratch),
                e.Hash(scratch, e.register(word), whole.size, 2**32 - 1, seed),
            ]
        elif part is Field.L4PROTO and _has_ipv4(parts):
            loads.append(replace(_IP_PROTOCOL, register=e.register(word)))
        else:
            loads.append(load_field(part, e.register(word)))
            if interval and part is Field.L4PROTO:
                loads.append(e.Byteorder(e.register(word), e.register(word)))
        word += part.size // 4
    return loads, word


def behind(words: int) -> int:
    """The first 16-byte register behind a key of so many words, where nft puts the data."""
    return e.register((words + 3) // 4 * 4)


def key_text(parts: tuple[Field, ...]) -> str:
    """What `load_key` does, as nft writes it."""
    protocol = "ip protocol" if _has_ipv4(parts) else Field.L4PROTO.text
    return " . ".join(protocol if part is Field.L4PROTO else part.text for part in parts)
