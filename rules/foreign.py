"""Tables that another program made, read over netlink as they are: sets, chains, rules. Only requests that list.

linux/netfilter/nf_tables.h. Needs CAP_NET_ADMIN; in the network namespace of the thread that opens the socket.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import ClassVar, Final, Self

from msgspec import Struct

from rules import expressions as e
from rules import wire_expressions
from rules.dump import dump_request, read_elements, table_request
from rules.netlink import (
    GETCHAIN,
    GETRULE,
    GETSET,
    GETSETELEM,
    NLM_F_DUMP,
    Message,
    attributes,
    message,
    read_text,
    text,
)
from rules.netlink_socket import Replies, open_socket
from rules.objects import Table

RECEIVE_BUFFER: Final = 1 << 20
PATIENCE: Final = 10.0
REMEMBERED: Final = 4096
"""Expressions that are kept decoded: most of a big table's are the same few."""
TABLE_DORMANT: Final = 1
INTERVAL: Final = 4  # NFT_SET_INTERVAL
INTERVAL_END: Final = 1  # NFT_SET_ELEM_INTERVAL_END

_HEADER = struct.Struct("=HH")
_OTHERS: Final = (b"match", b"target", b"counter")


class Changed(Exception):
    """The table changed while it was read: read it again."""


class ForeignSet(Struct, frozen=True):
    """flags: NFTA_SET_FLAGS. key_size: bytes. timeout: of its elements, in milliseconds; 0: none."""

    name: str
    flags: int = 0
    key_size: int = 0
    timeout: int = 0


class ForeignChain(Struct, frozen=True):
    """hook, priority, type: of a base chain; hook -1: of another. policy: 1 accept, 0 drop."""

    name: str
    hook: int = -1
    priority: int = 0
    type: str = ""
    policy: int = 1


class NotIn(Struct, frozen=True):
    """Lookup with NFT_LOOKUP_F_INV: go on if the key is not in the set."""

    set: str
    source: int
    NAME: ClassVar = "lookup"


class Remember(Struct, frozen=True):
    """A dynset without data: add the key to a set, or restart its timeout (op 0 and 1)."""

    set: str
    op: int
    key: int
    NAME: ClassVar = "dynset"


class InRange(Struct, frozen=True):
    """Go on if the register is from `first` to `last` (op 0), or is not (op 1)."""

    op: int
    first: bytes
    last: bytes
    register: int
    NAME: ClassVar = "range"


ForeignExpression = e.Expression | NotIn | Remember | InRange


class Reader:
    """A context manager, for one thread. Everything raises OSError for what the kernel refuses, ValueError for replies
    that cannot be, and Changed."""

    def __init__(self) -> None:
        self._socket = open_socket(timeout=PATIENCE)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        self._sequence = 0
        self._remembered: dict[bytes, ForeignExpression] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def flags(self, table: Table) -> int | None:
        """A table's flags; None: there is no such table."""
        self._sequence += 1
        try:
            found = [dict(attributes(reply.body[4:])) for reply in self._ask(table_request(table, self._sequence))]
        except FileNotFoundError:
            return None
        return _number(found[0], 2) if found else None

    def sets(self, table: Table) -> list[ForeignSet]:
        """Without their elements. Anonymous ones are called __set0, __map1."""
        return [
            ForeignSet(_name(found, 2), _number(found, 3), _number(found, 5), _number(found, 11))
            for found in self._of_table(GETSET, table)
        ]

    def chains(self, table: Table) -> list[ForeignChain]:
        chains = []
        for found in self._of_table(GETCHAIN, table):
            if 4 not in found:
                chains.append(ForeignChain(_name(found, 3)))
                continue
            hook = dict(attributes(found[4]))
            priority = int.from_bytes(hook[2], signed=True)
            chains.append(
                ForeignChain(_name(found, 3), int.from_bytes(hook[1]), priority, _name(found, 7), _number(found, 5))
            )
        return chains

    def rules(self, table: Table, chain: str) -> list[bytes]:
        """A chain's rules, in their order, for `expressions`. (To list a table's rules, the kernel counts again from
        the first one for each reply: a hundred thousand chains are faster one by one.)"""
        self._sequence += 1
        body = text(1, table.name) + text(2, chain)
        request = message(GETRULE, NLM_F_DUMP, self._sequence, table.family, body)
        return [_attribute(reply.body, 4, 4) for reply in self._ask(request)]

    def expressions(self, rule: bytes) -> list[ForeignExpression]:
        """What a rule consists of."""
        remembered = self._remembered
        listed: list[ForeignExpression] = []
        at = 0
        while at + 4 <= len(rule):
            size, _ = _HEADER.unpack_from(rule, at)
            if size < 4:
                raise ValueError("an expression without a size")
            raw = rule[at + 4 : at + size]
            expression = remembered.get(raw)
            if expression is None:
                expression = decode(raw)
                if len(remembered) < REMEMBERED:
                    remembered[raw] = expression
            listed.append(expression)
            at += (size + 3) & ~3
        return listed

    def elements(self, table: Table, set_name: str) -> dict[bytes, tuple[bytes, str]]:
        """Key -> (data, comment), as rules.dump.read_elements gives them; not for sets of intervals."""
        return dict(read_elements(self._list(GETSETELEM, table, set_name), table.name))

    def intervals(self, table: Table, of: ForeignSet) -> list[tuple[bytes, bytes]]:
        """First and last key of each interval, in order."""
        edges: list[tuple[bytes, int]] = []
        found: list[tuple[bytes, bytes]] = []
        for reply in self._list(GETSETELEM, table, of.name):
            parts = dict(attributes(reply.body[4:]))
            for _, element in attributes(parts.get(3, memoryview(b""))):
                values = dict(attributes(element))
                key = bytes(dict(attributes(values[1])).get(1, b"")) if 1 in values else b""
                if 10 in values:
                    found.append((key, bytes(dict(attributes(values[10]))[1])))
                else:
                    edges.append((key, _number(values, 3) & INTERVAL_END))
        return sorted(found + _pair(edges, of.key_size))

    def _of_table(self, kind: int, table: Table) -> Iterator[dict[int, memoryview]]:
        wanted = table.name.encode() + b"\0"
        for reply in self._list(kind, table):
            found = dict(attributes(reply.body[4:]))
            if 1 in found and bytes(found[1]) == wanted:
                yield found

    def _list(self, kind: int, table: Table, set_name: str = "") -> Iterator[Message]:
        self._sequence += 1
        return self._ask(dump_request(kind, table.family, self._sequence, table.name, set_name))

    def _ask(self, request: bytes) -> Iterator[Message]:
        replies = Replies(self._socket, request)
        for piece in replies:
            yield from piece
        if replies.disturbed:
            raise Changed


def decode(data: bytes) -> ForeignExpression:
    """From the content of one NFTA_LIST_ELEM. rules.expressions.Unknown for what is not known here either."""
    size, _ = _HEADER.unpack_from(data)
    if (name := data[4 : size - 1]) in _OTHERS:  # most of what iptables-nft writes: the quick way
        return e.Unknown(name.decode(), data[((size + 3) & ~3) + 4 :])
    found = wire_expressions.decode(data)
    if isinstance(found, e.Payload | e.Conntrack | e.Nat | e.Masquerade):
        body = dict(attributes(data))[2]
        if _is_otherwise(found, {number: bytes(value) for number, value in attributes(body)}):
            return e.Unknown(found.NAME, bytes(body))
    if not isinstance(found, e.Unknown):
        return found
    values = {number: bytes(value) for number, value in attributes(found.data)}
    try:
        match found.name:
            case "lookup" if _int(values, 5) == 1 and 3 not in values:
                return NotIn(read_text(values[1]), _int(values, 2))
            case "dynset" if 5 not in values and _int(values, 3) in (0, 1) and not _int(values, 9) & 1:
                return Remember(read_text(values[1]), _int(values, 3), _int(values, 4))
            case "range":
                first, last = (bytes(dict(attributes(values[number]))[1]) for number in (3, 4))
                return InRange(_int(values, 2), first, last, _int(values, 1))
    except LookupError:
        pass
    return found


def _is_otherwise(found: e.Expression, values: dict[int, bytes]) -> bool:
    """Whether there is more to it than rules.expressions knows."""
    match found:
        case e.Payload() | e.Conntrack():  # without a register to load, they set something
            return 1 not in values
        case e.Nat():  # to a range: its end is in other registers than its beginning
            return any(values.get(last, values.get(first)) != values.get(first) for first, last in ((3, 4), (5, 6)))
        case e.Masquerade():  # to ports
            return 2 in values
    return False


def _pair(edges: list[tuple[bytes, int]], size: int) -> list[tuple[bytes, bytes]]:
    """The kernel's tree has an element where an interval begins, and one with a flag behind its end, unless another one
    begins there."""
    found: list[tuple[bytes, bytes]] = []
    first: bytes | None = None
    for key, is_end in sorted(edges, key=lambda edge: (edge[0], not edge[1])):
        if first is not None:
            found.append((first, (int.from_bytes(key) - 1).to_bytes(len(key))))
        first = None if is_end else key
    if first is not None:
        found.append((first, b"\xff" * (size or len(first))))
    return found


def _attribute(body: memoryview, at: int, wanted: int) -> bytes:
    """One attribute of several, from an offset on; b"" if it is not there. Raises ValueError where a size cannot be."""
    end = len(body)
    while at + 4 <= end:
        size, number = _HEADER.unpack_from(body, at)
        if size < 4 or at + size > end:
            raise ValueError(f"an attribute at {at} claims {size} of {end} bytes")
        if number & 0x3FFF == wanted:
            return bytes(body[at + 4 : at + size])
        at += (size + 3) & ~3
    return b""


def _number(found: dict[int, memoryview], which: int) -> int:
    return int.from_bytes(found.get(which, b""))


def _int(found: dict[int, bytes], which: int) -> int:
    return int.from_bytes(found.get(which, b""))


def _name(found: dict[int, memoryview], which: int) -> str:
    return read_text(found.get(which, b""))
