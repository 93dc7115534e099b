"""Netlink's envelope and its attributes. Pure.

linux/netlink.h, linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h, asm-generic/socket.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

NLM_F_REQUEST, NLM_F_MULTI, NLM_F_ACK = 0x1, 0x2, 0x4
NLM_F_DUMP_INTR, NLM_F_DUMP = 0x10, 0x300
NLM_F_CREATE, NLM_F_APPEND = 0x400, 0x800
NLMSG_ERROR, NLMSG_DONE = 2, 3
BATCH_BEGIN, BATCH_END = 0x10, 0x11
SUBSYSTEM: Final = 10  # NFNL_SUBSYS_NFTABLES
NEWTABLE, GETTABLE, DELTABLE = 0, 1, 2
NEWCHAIN, GETCHAIN, DELCHAIN = 3, 4, 5
NEWRULE, GETRULE, DELRULE = 6, 7, 8
NEWSET, GETSET, DELSET = 9, 10, 11
NEWSETELEM, GETSETELEM, DELSETELEM = 12, 13, 14
NEWGEN, GETGEN = 15, 16
NETLINK_NETFILTER: Final = 12
NFNLGRP_NFTABLES: Final = 7
SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, NETLINK_CAP_ACK, NETLINK_EXT_ACK = 270, 1, 10, 11
SO_ATTACH_FILTER, SO_SNDBUFFORCE, SO_RCVBUFFORCE = 26, 32, 33
NESTED: Final = 0x8000

_HEADER = struct.Struct("=HH")
_MESSAGE = struct.Struct("=IHHIIBBH")
U32: Final = struct.Struct("=I")
HEADER_SIZE: Final = _MESSAGE.size


def attribute(number: int, value: bytes) -> bytes:
    """One netlink attribute, padded to 4 bytes."""
    return _HEADER.pack(4 + len(value), number) + value + bytes(-len(value) % 4)


def nested(number: int, *attributes: bytes) -> bytes:
    """An attribute that holds attributes."""
    return attribute(number | NESTED, b"".join(attributes))


def text(number: int, value: str) -> bytes:
    return attribute(number, value.encode() + b"\0")


def read_text(value: bytes | memoryview) -> str:
    """What an attribute holds that is a string. The zero byte at its end need not be there."""
    return bytes(value).rstrip(b"\0").decode(errors="replace")


def u32(number: int, value: int) -> bytes:
    return attribute(number, struct.pack(">I", value & 0xFFFFFFFF))


def attributes(data: bytes | memoryview) -> Iterator[tuple[int, memoryview]]:
    """The (number, value) pairs in `data`. Raises ValueError where a length cannot be true."""
    view = memoryview(data)
    offset = 0
    while offset + 4 <= len(view):
        length, number = _HEADER.unpack_from(view, offset)
        if length < 4 or offset + length > len(view):
            raise ValueError(f"attribute {number & 0x3FFF} at {offset} claims {length} of {len(view)} bytes")
        yield number & 0x3FFF, view[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def message(kind: int, flags: int, sequence: int, family: int, body: bytes) -> bytes:
    """nlmsghdr, nfgenmsg and body. `kind` without the subsystem."""
    size = HEADER_SIZE + len(body)
    return _MESSAGE.pack(size, SUBSYSTEM << 8 | kind, flags | NLM_F_REQUEST, sequence, 0, family, 0, 0) + body


def batch_mark(kind: int, sequence: int) -> bytes:
    """BATCH_BEGIN or BATCH_END. The resource is big endian: the subsystem that the batch is for."""
    return _MESSAGE.pack(HEADER_SIZE, kind, NLM_F_REQUEST, sequence, 0, 0, 0, SUBSYSTEM << 8)


@dataclass(frozen=True, slots=True)
class Message:
    kind: int
    flags: int
    sequence: int
    body: memoryview
    """What follows nlmsghdr."""
    port: int = 0
    """Of a notification: the port id of the socket whose doing it tells of."""


def messages(data: bytes | memoryview) -> Iterator[Message]:
    """The messages in one datagram. Raises ValueError where a length cannot be true."""
    view = memoryview(data)
    offset = 0
    while offset + 16 <= len(view):
        size, kind, flags, sequence, port = struct.unpack_from("=IHHII", view, offset)
        if size < 16 or offset + size > len(view):
            raise ValueError(f"netlink message at {offset} claims {size} of {len(view)} bytes")
        yield Message(kind, flags, sequence, view[offset + 16 : offset + size], port)
        offset += (size + 3) & ~3


def errno_of(reply: Message) -> int:
    """Of an NLMSG_ERROR, or of the NLMSG_DONE that ends a dump: 0 if all went well."""
    (code,) = struct.unpack_from("=i", reply.body)
    if not -4095 <= code <= 0:  # MAX_ERRNO
        raise ValueError(f"{code} is no error")
    return -int(code)


def error_of(reply: Message) -> tuple[int, int]:
    """Of an NLMSG_ERROR: (errno, 0 for an acknowledgement; offset in the request that it is about, 0 if unknown)."""
    code = errno_of(reply)
    ext_ack, capped = 0x200, 0x100
    if not code or not reply.flags & ext_ack:
        return code, 0
    (size,) = U32.unpack_from(reply.body, 4)
    start = 4 + (16 if reply.flags & capped else (size + 3) & ~3)
    found = dict(attributes(reply.body[start:]))
    return code, U32.unpack(found[2])[0] if 2 in found else 0
