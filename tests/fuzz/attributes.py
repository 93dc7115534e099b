"""Netlink messages, damaged as trees of attributes: all lengths are true again afterwards."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.fuzz.mutate import Mutation

_HEADER = struct.Struct("=HH")
_MESSAGE_HEADER: Final = 16
_ODD: Final = (
    b"",
    b"\0",
    bytes(3),
    bytes(4),
    b"\xff" * 4,
    b"\xff" * 16,
    bytes(300),
    b"x",
    b"name\0",
    b"\xfe\xff\0",
    b"a\0b\0",
)


@dataclass
class Node:
    """An attribute: its number with flags, and either what it holds or its bytes."""

    number: int
    data: bytes = b""
    inside: list[Node] = field(default_factory=list)

    def encode(self) -> bytes:
        data = b"".join(node.encode() for node in self.inside) if self.inside else self.data
        return _HEADER.pack(4 + len(data) & 0xFFFF, self.number) + data + bytes(-len(data) % 4)


def parse(data: bytes) -> list[Node]:
    """Attributes; [] when it does not look like that. Numbers above 40 are in none of ours."""
    found = []
    at = 0
    while at < len(data):
        if len(data) - at < 4:
            return []
        length, number = _HEADER.unpack_from(data, at)
        if not 4 <= length <= len(data) - at or not 0 < number & 0x3FFF <= 40:
            return []
        value = data[at + 4 : at + length]
        found.append(Node(number, value, parse(value)))
        at += (length + 3) & ~3
    return found


def messages(data: bytes) -> list[tuple[bytes, bytes]]:
    """(header, body) as far as the lengths are true; what is left is a body without a header."""
    found = []
    while len(data) >= _MESSAGE_HEADER:
        (size,) = struct.unpack_from("=I", data)
        if not _MESSAGE_HEADER <= size <= len(data):
            break
        found.append((data[:_MESSAGE_HEADER], data[_MESSAGE_HEADER:size]))
        data = data[(size + 3) & ~3 :]
    return [*found, (b"", data)] if data else found


def mutation(fixed: int, *, has_headers: bool = True) -> Mutation:
    """fixed: bytes before a body's attributes. has_headers: the data are whole messages, not the body of one."""

    def mutate(rand: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
        if not has_headers:
            return _body(rand, data, fixed)
        listed = messages(data)
        if not listed:
            return data
        at = rand.randrange(len(listed))
        header, body = listed[at]
        match rand.randrange(8):
            case 0:
                del listed[at]
            case 1:
                listed.insert(rand.randint(0, len(listed)), listed[at])
            case 2 if foreign := messages(rand.choice(corpus)):
                listed.insert(at, rand.choice(foreign))
            case 3 if header:
                kind = rand.choice((2, 3, rand.randrange(65536)))
                listed[at] = header[:4] + struct.pack("=H", kind) + header[6:], body
            case 4 if header:
                listed[at] = (
                    header[:6] + struct.pack("=H", rand.choice((0, 0x10, 0x100, 0x200, 0x300))) + header[8:],
                    body,
                )
            case _:
                listed[at] = header, _body(rand, body, fixed)
        return b"".join(_message(*one) for one in listed)

    return mutate


def _message(header: bytes, body: bytes) -> bytes:
    if not header:
        return body
    whole = struct.pack("=I", len(header) + len(body)) + header[4:] + body
    return whole + bytes(-len(whole) % 4)


def _body(rand: random.Random, body: bytes, fixed: int) -> bytes:
    nodes = parse(body[fixed:])
    if not nodes:
        return body
    lists = [nodes]
    for siblings in lists:  # grows meanwhile
        lists += [node.inside for node in siblings if node.inside]
    siblings = rand.choice(lists)
    at = rand.randrange(len(siblings))
    node = siblings[at]
    match rand.randrange(9):
        case 0:
            del siblings[at]
        case 1:
            siblings.insert(at, node)
        case 2:
            siblings[at] = Node(rand.choice((node.number ^ 0x8000, rand.randint(0, 15), 0)), node.data, node.inside)
        case 3:
            rand.shuffle(siblings)
        case 4:
            siblings[at] = Node(node.number, rand.choice(_ODD))
        case 5:
            siblings[at] = Node(node.number, node.data[: rand.randint(0, len(node.data))])
        case 6:
            siblings[at] = Node(node.number, node.data + rand.randbytes(rand.choice((1, 4, 16))))
        case 7:
            siblings[at] = Node(node.number, b"", [node])
        case _:
            changed = bytearray(node.data or b"\0")
            changed[rand.randrange(len(changed))] = rand.randrange(256)
            siblings[at] = Node(node.number, bytes(changed))
    return body[:fixed] + b"".join(node.encode() for node in nodes)
