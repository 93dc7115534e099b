"""User data: what nft keeps beside tables, chains, sets, rules and elements. The kernel stores it and never looks.

TLVs of one byte of type, one of length, and the value (libnftnl/udata.h).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rules.netlink import U32
from rules.objects import Field, Set, comment_text

COMMENT: Final = 0
SET_COMMENT: Final = 7


def _user(kind: int, value: bytes) -> bytes:
    return bytes((kind, len(value))) + value


def _user_number(kind: int, value: int) -> bytes:
    return _user(kind, U32.pack(value))


def comment(kind: int, value: str) -> bytes:
    """A comment, as nft can read it back."""
    return _user(kind, comment_text(value).encode() + b"\0")


def _user_nest(kind: int, *values: bytes) -> bytes:
    return _user(kind, b"".join(values))


def _user_typeof(part: Field, place: int) -> bytes:
    """One part of a `typeof`: which expression, and its parameters."""
    expression, *parameters = part.declaration
    return _user_nest(
        place,
        _user_number(0, expression),
        _user_nest(1, *(_user_number(i, value) for i, value in enumerate(parameters))),
    )


def _user_declaration(kind: int, parts: Sequence[Field], typeof: bool) -> bytes:
    if len(parts) == 1:
        return _user_typeof(parts[0], kind)
    concatenation = 13
    inner = b"".join(_user_typeof(part, place) for place, part in enumerate(parts)) if typeof else b""
    return _user_nest(kind, _user_number(0, concatenation), _user(1, inner))


def of_set(set_: Set) -> bytes:
    """What nft needs to list a set or map as it was declared."""
    big_endian, host_endian, mixed = 2, 1, 0
    single = len(set_.key) == 1
    of_key = host_endian if set_.key == (Field.PRIORITY,) else big_endian
    data = _user_number(0, of_key if single else mixed)
    if set_.data or set_.verdict:
        data += _user_number(1, host_endian if len(set_.data) == 1 else mixed)
    if not single:
        data += _user_declaration(3, set_.key, set_.typeof)
    if set_.data:
        if set_.typeof:
            data += _user_declaration(4, set_.data, typeof=True)
        data += _user_number(6, 0)
    if set_.comment:
        data += comment(SET_COMMENT, set_.comment)
    return data


def text_of(data: bytes, kind: int) -> str:
    """The text of one type in user data, '' if there is none."""
    at = 0
    while at + 2 <= len(data):
        found, size = data[at], data[at + 1]
        if found == kind:
            return data[at + 2 : at + 2 + size].rstrip(b"\0").decode(errors="replace")
        at += 2 + size
    return ""
