"""How many packets were found in a set by each of its elements, from a dump of it. Pure.

Read whenever somebody scrapes, maybe for ten thousand elements: so what they look like is known, not found out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from rules import userdata
from rules.expressions import Counter
from rules.netlink import Message, attribute, attributes, read_text, text
from rules.objects import Set

Counted = tuple[int, str]
"""Packets, and the element's comment."""

LIST, USERDATA, EXPRESSION = 3, 6, 7
"""NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_USERDATA, NFTA_SET_ELEM_EXPR."""
BYTES, PACKETS = 1, 2
"""NFTA_COUNTER_*."""

_SIZE = struct.Struct("=H")
_NUMBER = struct.Struct(">Q")


def _expression(bytes_: int, packets: int) -> bytes:
    numbers = attribute(BYTES, _NUMBER.pack(bytes_)) + attribute(PACKETS, _NUMBER.pack(packets))
    return attribute(EXPRESSION, text(1, Counter.NAME) + attribute(2, numbers))


_EXPRESSION: Final = _expression(0, 0)
_HEAD: Final = _EXPRESSION[: len(_EXPRESSION) - 20]
"""Up to the number of bytes; the number of packets ends the expression."""


def read_packets(replies: Iterable[Message], set_: Set) -> Iterator[tuple[bytes, Counted]]:
    """By key, from the replies to GETSETELEM. An element without a counter has seen none. Raises ValueError for what
    cannot be."""
    for reply in replies:
        found = dict(attributes(reply.body[4:]))
        if read_text(found.get(1, b"")) == set_.table.name:
            yield from _elements(bytes(found.get(LIST, b"")), set_.key_size)


def _elements(listed: bytes, key_size: int) -> Iterator[tuple[bytes, Counted]]:
    """The kernel writes the key, the counter and the comment, in this order."""
    counter = 12 + key_size
    number, end = counter + len(_EXPRESSION) - 8, counter + len(_EXPRESSION)
    at = 0
    while at + 4 <= len(listed):
        (size,) = _SIZE.unpack_from(listed, at)
        if size < 4 or at + size > len(listed):
            raise ValueError(f"an element at {at} claims {size} of {len(listed)} bytes")
        if listed.startswith(_HEAD, at + counter) and size >= end:
            key = listed[at + 12 : at + counter]
            yield key, (_NUMBER.unpack_from(listed, at + number)[0], _comment(listed[at + end : at + size]))
        else:
            yield _slowly(listed[at + 4 : at + size])
        at += size + 3 & ~3


def _slowly(element: bytes) -> tuple[bytes, Counted]:
    """One that looks otherwise."""
    parts = dict(attributes(element))
    key = bytes(dict(attributes(parts.get(1, b""))).get(1, b""))
    expression = dict(attributes(parts.get(EXPRESSION, b"")))
    numbers = dict(attributes(expression.get(2, b"")))
    comment = userdata.text_of(bytes(parts.get(USERDATA, b"")), userdata.COMMENT)
    return key, (int.from_bytes(numbers.get(PACKETS, b"")), comment)


@lru_cache(maxsize=1 << 16)
def _comment(rest: bytes) -> str:
    """What follows the counter."""
    data = bytes(dict(attributes(rest)).get(USERDATA, b""))
    return userdata.text_of(data, userdata.COMMENT)
