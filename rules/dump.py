"""What a table holds, as values that compare: read from the kernel, or kept by the fake.

`TableState` has no handles, no comments on chains and no order where the kernel promises none, so that two tables that
do the same are equal.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from rules import expressions as e
from rules import userdata, wire_expressions
from rules.netlink import (
    GETSETELEM,
    GETTABLE,
    NLM_F_ACK,
    NLM_F_DUMP,
    Message,
    attribute,
    attributes,
    message,
    nested,
    read_text,
    text,
)
from rules.objects import Chain, Family, Set, Table
from rules.wire import CHAIN_POLICY_ACCEPT, CHAIN_TYPE, NFTA_SET_EXPR, concatenated_type, data_type, set_flags

NFTA_SET_COUNT: Final = 20


@dataclass(slots=True)
class SetState:
    """type and data_type: nft's numbers (data_type 0: no map). flags: NFTA_SET_FLAGS. elements: key -> (data, comment).
    counts: whether each element counts packets. count: NFTA_SET_COUNT when it was read (6.18 tells, 6.1 does not): how
    many elements it has, with those whose time is over; None: not told.

    Of a range, the key is its first one, and the data its last one.
    """

    type: int
    data_type: int
    flags: int = 0
    elements: dict[bytes, tuple[bytes, str]] = field(default_factory=dict)
    counts: bool = False
    count: int | None = field(default=None, compare=False)

    @classmethod
    def of(cls, set_: Set) -> SetState:
        """The empty set."""
        return cls(concatenated_type(set_.key), data_type(set_), set_flags(set_), counts=set_.counts)

    @property
    def empty(self) -> SetState:
        """The same without elements."""
        return replace(self, elements={})

    def is_like(self, other: SetState) -> bool:
        """Whether the two are of one kind, whatever they hold."""
        return self.empty == other.empty


Hooked = tuple[int, int, int, str]


def hooked(chain: Chain) -> Hooked | None:
    """Where a base chain of ours stands, as ChainState.hook."""
    return (chain.hook.number, chain.hook.priority, CHAIN_POLICY_ACCEPT, CHAIN_TYPE) if chain.hook else None


@dataclass(slots=True)
class ChainState:
    """hook: of a base chain: (number, priority, policy, type). rules: the expressions of each, in order."""

    hook: Hooked | None = None
    rules: list[tuple[e.Expression, ...]] = field(default_factory=list)


@dataclass(slots=True)
class TableState:
    """flags: NFTA_TABLE_FLAGS. owner: the port id of the socket that owns it, 0: none."""

    sets: dict[str, SetState] = field(default_factory=dict)
    chains: dict[str, ChainState] = field(default_factory=dict)
    flags: int = 0
    owner: int = 0


def dump_request(kind: int, family: Family, sequence: int, table: str, set_name: str = "") -> bytes:
    """Ask for all objects of a kind (GETCHAIN, GETRULE, GETSET, GETSETELEM) of one table."""
    body = text(1, table) + (text(2, set_name) if set_name else b"")
    return message(kind, NLM_F_DUMP, sequence, family, body)


def table_request(table: Table, sequence: int) -> bytes:
    """Ask for one table; ENOENT if it is not there."""
    return message(GETTABLE, NLM_F_ACK, sequence, table.family, text(1, table.name))


def element_request(set_: Set, key: bytes, sequence: int) -> bytes:
    """Ask for one element of a set; ENOENT if it is not there."""
    table = set_.table
    listed = nested(3, nested(1, nested(1, attribute(1, key))))
    body = text(1, table.name) + text(2, set_.name) + listed
    return message(GETSETELEM, NLM_F_ACK, sequence, table.family, body)


def read_table(replies: Iterable[Message], table: str) -> TableState | None:
    """The table without what is in it, from the reply to GETTABLE; None: there was none."""
    return next((TableState(flags=_number(it, 2), owner=_number(it, 7)) for it in _of_table(replies, table)), None)


def read_chains(replies: Iterable[Message], table: str) -> Iterator[tuple[str, ChainState]]:
    """From the replies to GETCHAIN. (Old kernels send the chains of all tables.)"""
    for found in _of_table(replies, table):
        hook = None
        if 4 in found:
            parts = dict(attributes(found[4]))
            hook = (
                int.from_bytes(parts[1]),
                int.from_bytes(parts[2], signed=True),
                _number(found, 5),
                read_text(found.get(7, b"")),
            )
        yield read_text(found[3]), ChainState(hook)


def read_rules(replies: Iterable[Message], table: str) -> Iterator[tuple[str, tuple[e.Expression, ...]]]:
    """(chain, expressions) from the replies to GETRULE, in their chains' order."""
    for found in _of_table(replies, table):
        listed = attributes(found.get(4, b""))
        yield read_text(found[2]), tuple(wire_expressions.decode(expression) for _, expression in listed)


def read_sets(replies: Iterable[Message], table: str) -> Iterator[tuple[str, SetState]]:
    """From the replies to GETSET, without elements."""
    for found in _of_table(replies, table):
        counts = read_text(dict(attributes(found.get(NFTA_SET_EXPR, b""))).get(1, b"")) == e.Counter.NAME
        count = _number(found, NFTA_SET_COUNT) if NFTA_SET_COUNT in found else None
        kind = _number(found, 4), _number(found, 6), _number(found, 3)
        yield read_text(found[2]), SetState(*kind, counts=counts, count=count)


def read_elements(replies: Iterable[Message], table: str) -> Iterator[tuple[bytes, tuple[bytes, str]]]:
    """(key, (data, comment)) from the replies to GETSETELEM."""
    for found in _of_table(replies, table):
        listed = found.get(3, b"")
        yield from _alike(listed) or map(_element, (element for _, element in attributes(listed)))


def _alike(listed: bytes) -> list[tuple[bytes, tuple[bytes, str]]] | None:
    """The same of elements that are nothing but a key, or a key and a value, as the kernel lays them out: all of one
    size, which is most of a table by far. None: they are not like that."""
    if len(listed) < 12:
        return None
    size, key_size = _SIZE.unpack_from(listed, 0)[0], _SIZE.unpack_from(listed, 8)[0] - 4
    data_size = size - 12 - key_size - 8
    if size < 12 or key_size < 0 or len(listed) % size or (data_size < 1 and size != 12 + key_size):
        return None
    head = _HEAD.pack(size, 1, key_size + 8, 1, key_size + 4, 1)
    if data_size < 1:
        keys = list(struct.iter_unpack(f"12s{key_size}s", listed))
        return None if any(row[0] != head for row in keys) else [(key, _NOTHING) for _, key in keys]
    middle = _MIDDLE.pack(data_size + 8, 2, data_size + 4, 1)
    rows = list(struct.iter_unpack(f"12s{key_size}s8s{data_size}s", listed))
    if any(row[0] != head or row[2] != middle for row in rows):
        return None
    return [(key, (data, "")) for _, key, _, data in rows]


_SIZE = struct.Struct("=H")
_HEAD = struct.Struct("=HHHHHH")
_MIDDLE = struct.Struct("=HHHH")
_NOTHING: Final = (b"", "")
_GOTO: Final = struct.pack(">i", e.Verdict.GOTO)


def _element(element: memoryview) -> tuple[bytes, tuple[bytes, str]]:
    parts = dict(attributes(element))
    # No key: a catch-all, which no set of ours has.
    key = bytes(dict(attributes(parts[1])).get(1, b"")) if 1 in parts else b""
    data = _data(parts[2]) if 2 in parts else b""
    if 10 in parts:
        data = bytes(dict(attributes(parts[10])).get(1, b""))
    comment = userdata.text_of(bytes(parts[6]), userdata.COMMENT) if 6 in parts else ""
    return key, (data, comment)


def _data(value: memoryview) -> bytes:
    """NFTA_SET_ELEM_DATA: a value, or the chain that a verdict goes to; another verdict is told from that."""
    parts = dict(attributes(value))
    if 2 in parts:
        verdict = dict(attributes(parts[2]))
        chain = bytes(verdict.get(2, b"")).rstrip(b"\0")
        return chain if bytes(verdict.get(1, b"")) == _GOTO else bytes(verdict.get(1, b"")) + chain
    return bytes(parts.get(1, b""))


def _of_table(replies: Iterable[Message], table: str) -> Iterator[dict[int, bytes]]:
    """The attributes behind nfgenmsg of each message that is about the table (attribute 1 names it)."""
    for reply in replies:
        found = {number: bytes(value) for number, value in attributes(reply.body[4:])}
        if read_text(found.get(1, b"")) == table:
            yield found


def _number(found: dict[int, bytes], which: int) -> int:
    return int.from_bytes(found.get(which, b""))
