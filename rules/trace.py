"""nftables' packet traces: which packets are to be traced, and what the kernel tells of them. Pure.

linux/netfilter/nf_tables.h: NFT_MSG_TRACE, enum nft_trace_attributes. The table that asks for a trace is owned by the
socket that made it, without being persistent: it is gone when its program is, however that ends (Linux 5.12).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, Literal

from msgspec import Struct

from rules import expressions as e
from rules import wire_expressions
from rules.netlink import (
    BATCH_BEGIN,
    BATCH_END,
    NEWCHAIN,
    NEWRULE,
    NEWTABLE,
    NLM_F_ACK,
    NLM_F_CREATE,
    SUBSYSTEM,
    Message,
    attributes,
    batch_mark,
    message,
    nested,
    read_text,
    text,
    u32,
)
from rules.objects import OWNER, Family

PREFIX: Final = "kube-proxy-nft-trace-"
"""How the name of a table that asks for a trace begins; the number of its process follows."""

TRACE: Final = 17  # NFT_MSG_TRACE
NFNLGRP_NFTRACE: Final = 9
PRIORITY: Final = -150
"""Behind conntrack (-200), which knows whether a packet is a connection's first, and before every DNAT (-100)."""

_HOOKS: Final = {"prerouting": 0, "output": 3}
_ARRIVAL: Final = ("input", 1)
"""A hook without a rule: where a packet is led to this machine itself, only its header there says what address it has
then."""
_STATE, _NEW = 0, struct.pack("=I", 8)  # NFT_CT_STATE, NF_CT_STATE_BIT(IP_CT_NEW)
_NFTRACE: Final = 12  # NFT_META_NFTRACE
_KINDS: Final[dict[int, Literal["policy", "return", "rule"]]] = {1: "policy", 2: "return", 3: "rule"}
_VERDICTS: Final = {
    -1: "continue",
    -3: "jump",
    -4: "goto",
    -5: "return",
    0: "drop",
    1: "accept",
    2: "stolen",
    3: "queue",
}


class Wanted(Struct, frozen=True):
    """Connections whose first packets are traced. Addresses are packed; source b"": whoever."""

    family: Family
    destination: bytes
    protocol: int
    port: int
    source: bytes = b""


class Header(Struct, frozen=True):
    """What a packet says of itself. Ports are 0 where it has none. Interfaces: indexes, 0 for none."""

    source: bytes
    source_port: int
    destination: bytes
    port: int
    protocol: int
    came_in: int = 0
    goes_out: int = 0


class Event(Struct, frozen=True):
    """number: of the packet, the same for all that happens to it. kind: a rule that came to a verdict, the end of a
    chain, or the policy of a base chain. handle: the rule's. chain: where a jump or goto leads. header: where a hook
    begins."""

    number: int
    family: int
    table: str
    chain: str
    kind: Literal["policy", "return", "rule"]
    verdict: str
    handle: int = 0
    target: str = ""
    header: Header | None = None


def batch(table: str, wanted: Wanted, sequence: int) -> bytes:
    """A transaction that makes the table with its rules; `sequence`: of its last message, which is acknowledged."""
    name = text(1, table)
    parts = [message(NEWTABLE, NLM_F_CREATE, 0, wanted.family, name + u32(2, OWNER))]
    for hook, number in (_ARRIVAL, *_HOOKS.items()):
        place = nested(4, u32(1, number), u32(2, PRIORITY))
        body = name + text(3, hook) + place + u32(5, 1) + text(7, "filter")
        parts.append(message(NEWCHAIN, NLM_F_CREATE, 0, wanted.family, body))
    for hook in _HOOKS:
        rule = nested(4, *map(wire_expressions.encode, _expressions(wanted)))
        parts.append(message(NEWRULE, NLM_F_CREATE | NLM_F_ACK, sequence, wanted.family, name + text(2, hook) + rule))
    return b"".join([batch_mark(BATCH_BEGIN, 0), *parts, batch_mark(BATCH_END, 0)])


def _expressions(wanted: Wanted) -> Iterator[e.Expression]:
    is_4 = wanted.family is Family.IPV4
    yield e.Conntrack(_STATE, register=e.REGISTER)
    yield e.Bitwise(_NEW, bytes(4), 4)
    yield e.Compare(e.Compare.UNEQUAL, bytes(4))
    for address, offset in ((wanted.source, 12 if is_4 else 8), (wanted.destination, 16 if is_4 else 24)):
        if address:
            yield e.Payload(1, offset, len(address))
            yield e.Compare(e.Compare.EQUAL, address)
    yield e.Meta(e.Meta.L4PROTO, register=e.REGISTER)
    yield e.Compare(e.Compare.EQUAL, bytes((wanted.protocol,)))
    yield e.Payload(2, 2, 2)
    yield e.Compare(e.Compare.EQUAL, struct.pack(">H", wanted.port))
    yield e.Immediate(b"\1", e.REGISTER)
    yield e.Meta(_NFTRACE, source=e.REGISTER)


def read(reply: Message) -> Event | None:
    """None: it is no trace. Raises ValueError, LookupError, struct.error where it cannot be."""
    if reply.kind != SUBSYSTEM << 8 | TRACE:
        return None
    found = dict(attributes(reply.body[4:]))
    verdict, target = "", ""
    if 5 in found:
        parts = dict(attributes(found[5]))
        code = int.from_bytes(parts[1], signed=True)
        verdict, target = _VERDICTS.get(code, str(code)), read_text(parts.get(2, b""))
    kind = _KINDS[_number(found[4])]
    if kind == "policy":
        verdict = _VERDICTS.get(_number(found[16]), "") if 16 in found else "accept"
    return Event(
        _number(found[6]),
        reply.body[0],
        read_text(found.get(1, b"")),
        read_text(found.get(2, b"")),
        kind,
        verdict,
        _number(found[3]) if 3 in found else 0,
        target,
        _header(found),
    )


def _header(found: dict[int, memoryview]) -> Header | None:
    if 8 not in found:
        return None
    network, transport = bytes(found[8]), bytes(found.get(9, b""))
    interfaces = (_number(found[10]) if 10 in found else 0, _number(found[12]) if 12 in found else 0)
    ports = struct.unpack_from(">HH", transport) if len(transport) >= 4 else (0, 0)
    if network[0] >> 4 == 4:
        return Header(network[12:16], ports[0], network[16:20], ports[1], network[9], *interfaces)
    return Header(network[8:24], ports[0], network[24:40], ports[1], network[6], *interfaces)


def _number(value: memoryview) -> int:
    return int.from_bytes(value)
