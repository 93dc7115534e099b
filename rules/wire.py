"""Operations to netlink bytes. Pure: `kernel` owns the socket.

A transaction is one batch of messages in one buffer. Elements of one set travel together, up to MAX_ELEMENTS_BYTES a
message (an attribute's length has 16 bits).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from rules import expressions as e
from rules import userdata, wire_expressions
from rules.netlink import (
    BATCH_BEGIN,
    BATCH_END,
    DELRULE,
    DELSETELEM,
    DELTABLE,
    HEADER_SIZE,
    NESTED,
    NEWCHAIN,
    NEWRULE,
    NEWSET,
    NEWSETELEM,
    NEWTABLE,
    NLM_F_ACK,
    NLM_F_APPEND,
    NLM_F_CREATE,
    U32,
    attribute,
    attributes,
    batch_mark,
    message,
    nested,
    read_text,
    text,
    u32,
)
from rules.objects import Chain, Field, Rule, Set
from rules.transaction import (
    AddChain,
    AddElement,
    AddRule,
    AddSet,
    AddTable,
    DeleteElement,
    DeleteTable,
    FlushChain,
    Operation,
)

MAX_ELEMENTS_BYTES: Final = 65_000
NFT_SET_INTERVAL, NFT_SET_MAP, NFT_SET_TIMEOUT, NFT_SET_EVAL, NFT_SET_CONCAT = 0x4, 0x8, 0x10, 0x20, 0x80
NFT_DATA_VERDICT: Final = 0xFFFFFF00
NFTA_SET_EXPR: Final = 17
CHAIN_POLICY_ACCEPT: Final = 1
CHAIN_TYPE: Final = "nat"


@dataclass(slots=True)
class Batch:
    """One transaction in bytes. Sequence numbers: `first` is the begin mark's, then one a message.

    messages: (offset in data, number of its first operation, how many operations), in order.
    """

    operations: Sequence[Operation]
    first: int
    data: bytes = b""
    messages: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The sequence number of the message that is acknowledged."""
        return self.first + len(self.messages)

    def at(self, sequence: int, offset: int) -> tuple[Operation | None, str]:
        """The operation that an error speaks of, and what in it; `offset` into the message, 0 if unknown."""
        number = sequence - self.first - 1
        if not 0 <= number < len(self.messages):
            return None, ""
        start, first, count = self.messages[number]
        (size,) = U32.unpack_from(self.data, start)
        body = self.data[start + HEADER_SIZE : start + size]
        operation = self.operations[first]
        if isinstance(operation, AddElement | DeleteElement):
            position = _element_at(body, offset - HEADER_SIZE) if offset else None
            if position is None and count > 1:
                return None, f"one of {count} elements of {operation.set.name}"
            return self.operations[first + (position or 0)], ""
        if isinstance(operation, AddRule) and offset:
            return operation, _expression_at(body, offset - HEADER_SIZE)
        return operation, ""


def encode(operations: Sequence[Operation], first: int = 1) -> Batch:
    """The operations as one batch whose last message asks for an acknowledgement. Raises ValueError for none,
    and for a key of the wrong size."""
    if not operations:
        raise ValueError("a transaction needs an operation")
    batch = Batch(operations, first)
    parts = [batch_mark(BATCH_BEGIN, first)]
    offset = HEADER_SIZE
    done = 0
    for (kind, _), group in groupby(operations, group_of):
        same = list(group)
        for body, family, count in _BODIES[kind](same):
            number, flags = _MESSAGES[kind]
            sequence = first + len(batch.messages) + 1
            batch.messages.append((offset, done, count))
            done += count
            last = done == len(operations)
            parts.append(message(number, flags | (NLM_F_ACK if last else 0), sequence, family, body))
            offset += len(parts[-1])
    parts.append(batch_mark(BATCH_END, batch.last + 1))
    batch.data = b"".join(parts)
    return batch


def group_of(operation: Operation) -> tuple[type[Operation], int]:
    """Neighbours of one kind about one set travel in one message."""
    kind = type(operation)
    if kind is AddElement or kind is DeleteElement:
        return kind, id(operation.set)  # type: ignore[union-attr]
    return kind, 0


# Bodies: (body, family, number of operations in it).
Body = tuple[bytes, int, int]


def _table_bodies(operations: Sequence[AddTable | DeleteTable]) -> Iterator[Body]:
    for operation in operations:
        table = operation.table
        body = text(1, table.name)
        if isinstance(operation, AddTable):
            # Without the attribute, one that is there stays as it is; 0 would be refused where it has PERSIST.
            body += u32(2, table.flags) if table.flags else b""
            body += attribute(6, userdata.comment(userdata.COMMENT, table.comment))
        yield body, table.family, 1


def _chain_bodies(operations: Sequence[AddChain | FlushChain]) -> Iterator[Body]:
    for operation in operations:
        chain = operation.chain
        if isinstance(operation, FlushChain):  # a DELRULE that names no rule
            yield text(1, chain.table.name) + text(2, chain.name), chain.table.family, 1
        else:
            yield _chain_body(chain), chain.table.family, 1


def _chain_body(chain: Chain) -> bytes:
    body = text(1, chain.table.name) + text(3, chain.name)
    if hook := chain.hook:
        body += (
            nested(4, u32(1, hook.number), u32(2, hook.priority)) + u32(5, CHAIN_POLICY_ACCEPT) + text(7, CHAIN_TYPE)
        )
    if chain.comment:
        body += attribute(12, userdata.comment(userdata.COMMENT, chain.comment))
    return body


def _rule_bodies(operations: Sequence[AddRule]) -> Iterator[Body]:
    for operation in operations:
        yield _rule_body(operation.rule), operation.rule.chain.table.family, 1


def _rule_body(rule: Rule) -> bytes:
    body = text(1, rule.chain.table.name) + text(2, rule.chain.name)
    body += nested(4, *map(wire_expressions.encode, rule.expressions))
    if rule.comment:
        body += attribute(7, userdata.comment(userdata.COMMENT, rule.comment))
    return body


def _set_bodies(operations: Sequence[AddSet]) -> Iterator[Body]:
    # The set's number only has to be unique in the batch.
    for number, operation in enumerate(operations, 1):
        yield _set_body(operation.set, number), operation.set.table.family, 1


def _set_body(set_: Set, number: int) -> bytes:
    body = text(1, set_.table.name) + text(2, set_.name) + u32(3, set_flags(set_))
    body += u32(4, concatenated_type(set_.key)) + u32(5, set_.key_size)
    if set_.data or set_.verdict:
        body += u32(6, data_type(set_)) + u32(7, set_.data_size)
    body += u32(10, number)
    if size := set_.dynamic or set_.size:
        body += nested(9, u32(1, size))
    if set_.interval:
        body += nested(9, nested(2, *(nested(1, u32(1, part.exact_size)) for part in set_.key)))
    if set_.counts:
        body += wire_expressions.encode(e.Counter(), NFTA_SET_EXPR)
    return body + attribute(13, userdata.of_set(set_))


def set_flags(set_: Set) -> int:
    """NFTA_SET_FLAGS."""
    flags = NFT_SET_MAP if set_.data or set_.verdict else 0
    if set_.interval:
        flags |= NFT_SET_INTERVAL | NFT_SET_CONCAT
    if set_.dynamic:
        flags |= NFT_SET_TIMEOUT | NFT_SET_EVAL
    return flags


def data_type(set_: Set) -> int:
    """nft's number for what a map holds, 0 of a set."""
    return NFT_DATA_VERDICT if set_.verdict else concatenated_type(set_.data)


def concatenated_type(parts: Sequence[Field]) -> int:
    """nft's number for a concatenation of data types: 6 bits each."""
    number = 0
    for part in parts:
        number = number << 6 | part.type_number
    return number


# Elements: the hot path.


def _element_bodies(operations: Sequence[AddElement | DeleteElement]) -> Iterator[Body]:
    set_ = operations[0].set
    head = text(1, set_.table.name) + text(2, set_.name)
    family = set_.table.family
    parts: list[bytes] = []
    size = 0
    for encoded in _elements(set_, operations):
        if size + len(encoded) > MAX_ELEMENTS_BYTES:
            yield head + nested(3, *parts), family, len(parts)
            parts, size = [], 0
        parts.append(encoded)
        size += len(encoded)
    yield head + nested(3, *parts), family, len(parts)


def _elements(set_: Set, operations: Sequence[AddElement | DeleteElement]) -> Iterator[bytes]:
    """NFTA_LIST_ELEM { KEY { VALUE }, DATA { VALUE }, USERDATA } of each, fixed parts packed once."""
    key_size, data_size = set_.key_size, set_.data_size
    key_head = _header(1 | NESTED, 4 + key_size) + _header(1, key_size)
    data_head = _header(2 | NESTED, 4 + data_size) + _header(1, data_size)
    bare = 8 + key_size
    full = bare + 8 + data_size
    head_bare = _header(1 | NESTED, bare) + key_head
    head_full = _header(1 | NESTED, full) + key_head
    for operation in operations:
        if len(operation.key) != key_size:
            raise ValueError(f"a key of {set_.name} has {key_size} bytes, not {len(operation.key)}")
        if operation.end:
            yield _range(operation)
        elif isinstance(operation, DeleteElement):
            yield head_bare + operation.key
        elif set_.verdict:
            goto = nested(2, nested(2, u32(1, e.Verdict.GOTO), attribute(2, operation.data + b"\0")))
            yield nested(1, nested(1, attribute(1, operation.key)), goto)
        elif operation.comment:
            comment = attribute(6, userdata.comment(userdata.COMMENT, operation.comment))
            data = data_head + operation.data if data_size else b""
            yield _header(1 | NESTED, bare + len(data) + len(comment)) + key_head + operation.key + data + comment
        elif data_size:
            yield head_full + operation.key + data_head + operation.data
        else:
            yield head_bare + operation.key


def _range(operation: AddElement | DeleteElement) -> bytes:
    """An element that is a range, NFTA_SET_ELEM_KEY to NFTA_SET_ELEM_KEY_END."""
    return nested(1, nested(1, attribute(1, operation.key)), nested(10, attribute(1, operation.end)))


def _header(number: int, size: int) -> bytes:
    """An attribute's header, for `size` bytes of value."""
    return struct.pack("=HH", 4 + size, number)


def _nested_attribute(body: bytes, wanted: int) -> tuple[int, bytes] | None:
    """Offset and content of the first attribute of that number."""
    offset = 0
    for number, value in attributes(body):
        if number == wanted:
            return offset + 4, bytes(value)
        offset += 4 + (len(value) + 3 & ~3)
    return None


def _position(content: bytes, offset: int) -> tuple[int, bytes] | None:
    """Which attribute of a list stands at `offset`, and what it holds."""
    at = 0
    for position, (_, value) in enumerate(attributes(content)):
        size = 4 + (len(value) + 3 & ~3)
        if at <= offset < at + size:
            return position, bytes(value)
        at += size
    return None


def _element_at(body: bytes, offset: int) -> int | None:
    """Which element of a NEWSETELEM or DELSETELEM body the offset lies in."""
    elements = _nested_attribute(body, 3)
    found = _position(elements[1], offset - elements[0]) if elements else None
    return found[0] if found else None


def _expression_at(body: bytes, offset: int) -> str:
    """The name of the expression of a NEWRULE body that the offset lies in."""
    listed = _nested_attribute(body, 4)
    found = _position(listed[1], offset - listed[0]) if listed else None
    if not found:
        return ""
    return read_text(dict(attributes(found[1])).get(1, b""))


_BODIES: Final[dict[type[Operation], Callable[..., Iterator[Body]]]] = {
    AddTable: _table_bodies,
    DeleteTable: _table_bodies,
    AddChain: _chain_bodies,
    FlushChain: _chain_bodies,
    AddSet: _set_bodies,
    AddRule: _rule_bodies,
    AddElement: _element_bodies,
    DeleteElement: _element_bodies,
}
_MESSAGES: Final[dict[type[Operation], tuple[int, int]]] = {
    AddTable: (NEWTABLE, NLM_F_CREATE),
    DeleteTable: (DELTABLE, 0),
    AddChain: (NEWCHAIN, NLM_F_CREATE),
    FlushChain: (DELRULE, 0),
    AddSet: (NEWSET, NLM_F_CREATE),
    AddRule: (NEWRULE, NLM_F_CREATE | NLM_F_APPEND),
    AddElement: (NEWSETELEM, NLM_F_CREATE),
    DeleteElement: (DELSETELEM, 0),
}
