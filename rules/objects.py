"""The nftables vocabulary: families, tables, chains, sets, maps, rules.

Small frozen values; making one does nothing. Kernel >= 5.13 and nft >= 1.0.6 understand all of it.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, Protocol

from rules import expressions as e

PROTOCOLS: Final = {"TCP": 6, "UDP": 17, "SCTP": 132}
PROTOCOL_NAMES: Final = {number: name for name, number in PROTOCOLS.items()}
_PROTOCOL_TEXT: Final = {number: name.lower() for name, number in PROTOCOLS.items()}


MAX_COMMENT: Final = 128


def comment_text(text: str) -> str:
    """A comment as nft can list it and read it back: printable, without double quotes (it knows no escapes), at most
    128 bytes."""
    if text.isascii() and text.isprintable() and '"' not in text and len(text) <= MAX_COMMENT:
        return text
    clean = "".join(c if c.isprintable() else " " for c in text).replace('"', "'")
    return clean.encode(errors="replace")[:MAX_COMMENT].decode(errors="ignore")


class Family(IntEnum):
    """NFPROTO_IPV4 and NFPROTO_IPV6: a table of each."""

    IPV4 = 2
    IPV6 = 10

    @classmethod
    def of(cls, address: bytes) -> Family:
        """Of a packed address."""
        return cls.IPV4 if len(address) == 4 else cls.IPV6

    @classmethod
    def of_version(cls, version: int) -> Family:
        """Of an IP version, 4 or 6, as ipaddress has it."""
        return cls.IPV4 if version == 4 else cls.IPV6

    @property
    def nft(self) -> str:
        """The family's name in nft: 'ip' or 'ip6'."""
        return "ip" if self is Family.IPV4 else "ip6"

    @property
    def address_size(self) -> int:
        """Bytes of an address."""
        return 4 if self is Family.IPV4 else 16


class Field(Enum):
    """One part of a key: what nft calls it, its nft data type with number, its size in the key (padded to 4 bytes).

    The last value is how `typeof` declares it in the set's user data, which only nft reads (libnftnl's udata TLVs).
    """

    IP_SADDR = ("ip saddr", "ipv4_addr", 7, 4, (7, 12, 11))
    IP_DADDR = ("ip daddr", "ipv4_addr", 7, 4, (7, 12, 12))
    IP6_SADDR = ("ip6 saddr", "ipv6_addr", 8, 16, (7, 13, 8))
    IP6_DADDR = ("ip6 daddr", "ipv6_addr", 8, 16, (7, 13, 9))
    L4PROTO = ("meta l4proto", "inet_proto", 12, 4, (9, 16))
    DPORT = ("th dport", "inet_service", 13, 4, (7, 11, 2))
    PRIORITY = ("meta priority", "classid", 23, 4, (9, 2))
    IP6_SADDR_HASH = ("jhash ip6 saddr mod 4294967295 seed 0x1", "integer", 4, 4, (23, 1, 65536, 0))
    INDEX = ("numgen random mod 65536", "integer", 4, 4, (23, 1, 65536, 0))

    def __init__(self, text: str, datatype: str, number: int, size: int, declaration: tuple[int, ...]) -> None:
        self.text, self.datatype, self.type_number, self.size = text, datatype, number, size
        self.declaration = declaration

    @property
    def declared(self) -> str:
        """In a `typeof`. nft cannot declare a hash; a random number is of the same type."""
        return Field.INDEX.text if self.datatype == "integer" else self.text

    @property
    def exact_size(self) -> int:
        """Bytes of the value itself, without padding."""
        return {Field.L4PROTO: 1, Field.DPORT: 2}.get(self, self.size)

    def value_text(self, data: bytes) -> str:
        """This part of an element as nft writes it."""
        match self:
            case Field.L4PROTO:
                return _PROTOCOL_TEXT.get(data[0], str(data[0]))
            case Field.DPORT:
                return str(struct.unpack_from(">H", data)[0])
            case Field.PRIORITY:
                number = struct.unpack("=I", data)[0]
                return f"{number >> 16:x}:{number & 0xFFFF:x}" if number else "none"
            case Field.INDEX | Field.IP6_SADDR_HASH:
                return str(struct.unpack("=I", data)[0])
            case _:
                return str(ipaddress.ip_address(data))


def source_address(family: Family) -> Field:
    return Field.IP_SADDR if family is Family.IPV4 else Field.IP6_SADDR


def destination_address(family: Family) -> Field:
    return Field.IP_DADDR if family is Family.IPV4 else Field.IP6_DADDR


OWNER: Final = 0x2
PERSIST: Final = 0x4
OWNED: Final = OWNER | PERSIST
"""NFT_TABLE_F_*. The socket that made a table with OWNER is the only one that may change it. When it is closed, a table
with PERSIST stays, without an owner; else it goes."""


@dataclass(frozen=True, slots=True)
class Table:
    """flags: NFTA_TABLE_FLAGS that it gets; 0: those that it has, a new one none. No part of its identity."""

    family: Family
    name: str
    comment: str = ""
    flags: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Hook:
    """Where a base chain stands: `number` as in enum nf_inet_hooks, its priority. Always type nat, policy accept."""

    name: str
    number: int
    priority: int

    @property
    def priority_text(self) -> str:
        """nft knows 'dstnat' in prerouting only, 'srcnat' in postrouting only."""
        return {("prerouting", -100): "dstnat", ("postrouting", 100): "srcnat"}.get(
            (self.name, self.priority), str(self.priority)
        )


PREROUTING: Final = Hook("prerouting", 0, -100)
OUTPUT: Final = Hook("output", 3, -100)
POSTROUTING: Final = Hook("postrouting", 4, 100)


@dataclass(frozen=True, slots=True)
class Chain:
    table: Table
    name: str
    hook: Hook | None = None
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Set:
    """A named set, or a map if `data` is given. Compared and hashed by table and name.

    `typeof` declares the parts by expression, not by data type: needed where a part is a plain integer.
    `verdict`: the data is a chain to go to. `interval`: keys are ranges. `dynamic`: packets change it, its elements
    have timeouts, and it holds so many at most.
    `counts`: each element counts the packets that were found in the set by it, from 0 on when it is added.
    `size`: it never holds more elements; the kernel looks them up faster then, if the key has 4 bytes
    (nft_hash_lookup_fast).
    """

    table: Table
    name: str
    key: tuple[Field, ...] = field(compare=False)
    data: tuple[Field, ...] = field(default=(), compare=False)
    comment: str = field(default="", compare=False)
    typeof: bool = field(default=False, compare=False)
    verdict: bool = field(default=False, compare=False)
    interval: bool = field(default=False, compare=False)
    dynamic: int = field(default=0, compare=False)
    counts: bool = field(default=False, compare=False)
    size: int = field(default=0, compare=False)

    @property
    def key_size(self) -> int:
        return sum(part.size for part in self.key)

    @property
    def data_size(self) -> int:
        return sum(part.size for part in self.data)


class Statement(Protocol):
    """A word of a rule: see rules/statements."""

    def text(self, family: Family) -> str:
        """As `nft list` writes it."""
        ...

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        """As the kernel runs it."""
        ...


Statements = tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """Statements, left to right, at the end of a chain."""

    chain: Chain
    statements: Statements
    comment: str = ""

    @property
    def expressions(self) -> tuple[e.Expression, ...]:
        """What the kernel runs."""
        family = self.chain.table.family
        return tuple(x for statement in self.statements for x in statement.expressions(family))
