"""Expressions to netlink bytes and back, by their ATTRIBUTES tables. Pure.

Reading back ignores attributes that are not in the table, so an expression read from the kernel equals the one that was
sent.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from rules.expressions import KNOWN, Expression, Unknown, Verdict, Wire
from rules.netlink import attribute, attributes, nested, read_text, text, u32

_OTHERWISE: Final[dict[str, dict[int, bytes | None]]] = {
    "lookup": {5: bytes(4)},  # NFTA_LOOKUP_FLAGS: "not in the set"
    "dynset": {9: bytes(4)},
    "bitwise": {6: bytes(4)},  # a shift
    "nat": {7: b"\0\0\0\3"},  # NF_NAT_RANGE_MAP_IPS and _PROTO_SPECIFIED
    "payload": {5: None},  # it writes
    "ct": {3: None},  # of one direction
}
"""Attributes that we never send, and that make another expression of it when they are not this (None: not there)."""


def encode(expression: Expression, number: int = 1) -> bytes:
    """NFTA_LIST_ELEM { NFTA_EXPR_NAME, NFTA_EXPR_DATA { ... } }; number: of another attribute that holds the same."""
    parts = []
    for field, (which, wire) in expression.ATTRIBUTES.items():
        value: Any = getattr(expression, field)
        if value is None:
            continue
        match wire:
            case Wire.U32:
                parts.append(u32(which, value))
            case Wire.U8:
                parts.append(attribute(which, bytes([value])))
            case Wire.TEXT:
                parts.append(text(which, value))
            case Wire.VALUE:
                parts.append(nested(which, attribute(1, value)))
            case Wire.DATA if isinstance(value, bytes):
                parts.append(nested(which, attribute(1, value)))
            case Wire.DATA:
                code, chain = value
                target = [text(2, chain)] if chain else []
                parts.append(nested(which, nested(2, u32(1, code), *target)))
            case Wire.U64:
                parts.append(attribute(which, struct.pack(">Q", value)))
    return nested(number, text(1, expression.NAME), nested(2, *parts))


def decode(data: bytes | memoryview) -> Expression:
    """The inverse, from the content of one NFTA_LIST_ELEM. Unknown for expressions or shapes that are not ours."""
    found = {number: bytes(value) for number, value in attributes(data)}
    name = read_text(found.get(1, b""))
    body = found.get(2, b"")
    cls = KNOWN.get(name)
    if cls is None:
        return Unknown(name, body)
    values = {number: bytes(value) for number, value in attributes(body)}
    if any(values.get(number, usual) != usual for number, usual in _OTHERWISE.get(name, {}).items()):
        return Unknown(name, body)
    try:
        return cls(
            **{
                field: _decode_value(values[number], wire)
                for field, (number, wire) in cls.ATTRIBUTES.items()
                if number in values
            }
        )
    except (TypeError, ValueError, LookupError, struct.error):
        return Unknown(name, body)


def _decode_value(data: bytes, wire: Wire) -> Any:
    match wire:
        case Wire.U32:
            return struct.unpack(">I", data)[0]
        case Wire.U8:
            return data[0]
        case Wire.TEXT:
            return data.rstrip(b"\0").decode()
        case Wire.VALUE:
            return bytes(dict(attributes(data))[1])
        case Wire.U64:
            return struct.unpack(">Q", data)[0]
        case Wire.DATA:
            parts = dict(attributes(data))
            if 1 in parts:
                return bytes(parts[1])
            verdict = dict(attributes(parts[2]))
            code = Verdict(struct.unpack(">i", verdict[1])[0])
            return code, bytes(verdict.get(2, b"")).rstrip(b"\0").decode()
