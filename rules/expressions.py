"""Kernel expressions: what an nftables rule is made of, with the numbers that netlink gives them.

One frozen class an expression; its ATTRIBUTES table says how each field travels (linux/netfilter/nf_tables.h), which
rules/wire_expressions.py does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Final

# Registers (enum nft_registers): 0 is the verdict; 1..4 are 16 bytes each; 8.. are the same memory in 4-byte words.
VERDICT: Final = 0
REGISTER: Final = 1
WORD: Final = 8


def register(word: int) -> int:
    """The register that begins at this 4-byte word, under the name that the kernel gives it when it lists."""
    return WORD + word if word % 4 else REGISTER + word // 4


class Verdict(IntEnum):
    """Verdict codes (enum nf_verdict and nft_verdicts)."""

    DROP = 0
    ACCEPT = 1
    JUMP = -3
    GOTO = -4
    RETURN = -5


class Wire(IntEnum):
    """How an attribute's value travels."""

    U32 = 1  # big endian
    U8 = 2
    TEXT = 3  # NUL-terminated
    VALUE = 4  # nested NFTA_DATA_VALUE
    DATA = 5  # nested: NFTA_DATA_VALUE of bytes, or NFTA_DATA_VERDICT of (Verdict, chain)
    U64 = 6


@dataclass(frozen=True, slots=True)
class Expression:
    """Base. NAME is the kernel's name, ATTRIBUTES maps field -> (attribute number, how it travels)."""

    NAME: ClassVar[str] = ""
    ATTRIBUTES: ClassVar[dict[str, tuple[int, Wire]]] = {}
    KERNEL_OPTION: ClassVar[str] = "CONFIG_NF_TABLES"


@dataclass(frozen=True, slots=True)
class Payload(Expression):
    """Load packet bytes. `base` 1: network header, 2: transport header."""

    base: int
    offset: int
    length: int
    register: int = REGISTER
    NAME: ClassVar = "payload"
    ATTRIBUTES: ClassVar = {
        "register": (1, Wire.U32),
        "base": (2, Wire.U32),
        "offset": (3, Wire.U32),
        "length": (4, Wire.U32),
    }


@dataclass(frozen=True, slots=True)
class Meta(Expression):
    """Load (`register`) or set (`source`) metadata."""

    PRIORITY: ClassVar = 2
    MARK: ClassVar = 3
    IIFNAME: ClassVar = 6
    L4PROTO: ClassVar = 16
    key: int
    register: int | None = None
    source: int | None = None
    NAME: ClassVar = "meta"
    ATTRIBUTES: ClassVar = {"register": (1, Wire.U32), "key": (2, Wire.U32), "source": (3, Wire.U32)}


@dataclass(frozen=True, slots=True)
class Conntrack(Expression):
    """Load conntrack data into `register`, or set it from `source`: key 2 status, 3 the connection's mark.

    DNAT: the bit of the status of a connection whose destination has been rewritten (IPS_DST_NAT)."""

    STATUS: ClassVar = 2
    MARK: ClassVar = 3
    DNAT: ClassVar = 0x20
    key: int
    register: int | None = None
    source: int | None = None
    NAME: ClassVar = "ct"
    ATTRIBUTES: ClassVar = {"register": (1, Wire.U32), "key": (2, Wire.U32), "source": (4, Wire.U32)}
    KERNEL_OPTION: ClassVar = "CONFIG_NFT_CT"


@dataclass(frozen=True, slots=True)
class Compare(Expression):
    """Go on if the register equals (`op` 0) or differs from (`op` 1) `value`."""

    EQUAL: ClassVar = 0
    UNEQUAL: ClassVar = 1
    op: int
    value: bytes
    register: int = REGISTER
    NAME: ClassVar = "cmp"
    ATTRIBUTES: ClassVar = {"register": (1, Wire.U32), "op": (2, Wire.U32), "value": (3, Wire.VALUE)}


@dataclass(frozen=True, slots=True)
class Bitwise(Expression):
    """register = (register & mask) ^ xor. The operation's number (0, mask and xor) is left to the kernel's default."""

    mask: bytes
    xor: bytes
    length: int
    source: int = REGISTER
    register: int = REGISTER
    NAME: ClassVar = "bitwise"
    ATTRIBUTES: ClassVar = {
        "source": (1, Wire.U32),
        "register": (2, Wire.U32),
        "length": (3, Wire.U32),
        "mask": (4, Wire.VALUE),
        "xor": (5, Wire.VALUE),
    }


@dataclass(frozen=True, slots=True)
class Lookup(Expression):
    """Go on if the key at `source` is in the set; a map's data goes to `register` (VERDICT: it is the verdict)."""

    set: str
    source: int = REGISTER
    register: int | None = None
    NAME: ClassVar = "lookup"
    ATTRIBUTES: ClassVar = {"set": (1, Wire.TEXT), "source": (2, Wire.U32), "register": (3, Wire.U32)}


@dataclass(frozen=True, slots=True)
class NumberGenerator(Expression):
    """register = a number below `modulus`: `type` 0 counting up, 1 random."""

    INCREMENTAL: ClassVar = 0
    RANDOM: ClassVar = 1
    modulus: int
    type: int
    register: int
    offset: int = 0
    NAME: ClassVar = "numgen"
    ATTRIBUTES: ClassVar = {
        "register": (1, Wire.U32),
        "modulus": (2, Wire.U32),
        "type": (3, Wire.U32),
        "offset": (4, Wire.U32),
    }
    KERNEL_OPTION: ClassVar = "CONFIG_NFT_NUMGEN"


@dataclass(frozen=True, slots=True)
class Nat(Expression):
    """Destination NAT (`type` 1) to the address and port in registers; what ends the rule."""

    DESTINATION: ClassVar = 1
    family: int
    address: int
    port: int
    type: int = DESTINATION
    NAME: ClassVar = "nat"
    ATTRIBUTES: ClassVar = {
        "type": (1, Wire.U32),
        "family": (2, Wire.U32),
        "address": (3, Wire.U32),
        "port": (5, Wire.U32),
    }
    KERNEL_OPTION: ClassVar = "CONFIG_NFT_NAT"


@dataclass(frozen=True, slots=True)
class Masquerade(Expression):
    """Source NAT to the outgoing interface's address. Flag 0x10: source ports fully random."""

    FULLY_RANDOM: ClassVar = 0x10
    flags: int = FULLY_RANDOM
    NAME: ClassVar = "masq"
    ATTRIBUTES: ClassVar = {"flags": (1, Wire.U32)}
    KERNEL_OPTION: ClassVar = "CONFIG_NFT_MASQ"


@dataclass(frozen=True, slots=True)
class Reject(Expression):
    """Refuse the packet: `type` 0 ICMP unreachable with `code`, 1 TCP reset."""

    ICMP: ClassVar = 0
    TCP_RESET: ClassVar = 1
    type: int
    code: int = 0
    NAME: ClassVar = "reject"
    ATTRIBUTES: ClassVar = {"type": (1, Wire.U32), "code": (2, Wire.U8)}
    KERNEL_OPTION: ClassVar = "CONFIG_NFT_REJECT_IPV4 and CONFIG_NFT_REJECT_IPV6"


@dataclass(frozen=True, slots=True)
class Immediate(Expression):
    """A verdict, (Verdict, chain or ''); or bytes for another register."""

    data: tuple[Verdict, str] | bytes
    register: int = VERDICT
    NAME: ClassVar = "immediate"
    ATTRIBUTES: ClassVar = {"register": (1, Wire.U32), "data": (2, Wire.DATA)}


@dataclass(frozen=True, slots=True)
class Byteorder(Expression):
    """Turn `length` bytes of a register into network order, in units of `size`. (nft asks for it on the protocol in a
    key of intervals, where it changes nothing.)"""

    register: int
    source: int
    length: int = 1
    size: int = 2
    op: int = 1
    NAME: ClassVar = "byteorder"
    ATTRIBUTES: ClassVar = {
        "source": (1, Wire.U32),
        "register": (2, Wire.U32),
        "op": (3, Wire.U32),
        "length": (4, Wire.U32),
        "size": (5, Wire.U32),
    }


@dataclass(frozen=True, slots=True)
class Fib(Expression):
    """register = the type (`result` 3) of the source address (`flags` 1) in the routing tables: 2 is a local one."""

    LOCAL: ClassVar = 2
    register: int = REGISTER
    result: int = 3
    flags: int = 1
    NAME: ClassVar = "fib"
    ATTRIBUTES: ClassVar = {"register": (1, Wire.U32), "result": (2, Wire.U32), "flags": (3, Wire.U32)}
    KERNEL_OPTION: ClassVar = "CONFIG_NFT_FIB_IPV4 and CONFIG_NFT_FIB_IPV6"


@dataclass(frozen=True, slots=True)
class Hash(Expression):
    """register = Jenkins' hash (`type` 0) of `length` bytes at `source`, below `modulus`."""

    source: int
    register: int
    length: int
    modulus: int
    seed: int
    type: int = 0
    offset: int = 0
    NAME: ClassVar = "hash"
    ATTRIBUTES: ClassVar = {
        "source": (1, Wire.U32),
        "register": (2, Wire.U32),
        "length": (3, Wire.U32),
        "modulus": (4, Wire.U32),
        "seed": (5, Wire.U32),
        "offset": (6, Wire.U32),
        "type": (7, Wire.U32),
    }
    KERNEL_OPTION: ClassVar = "CONFIG_NFT_HASH"


@dataclass(frozen=True, slots=True)
class DynamicSet(Expression):
    """Change a set from a packet: the key and data in registers. `timeout`: milliseconds."""

    UPDATE: ClassVar = 1
    DELETE: ClassVar = 2
    set: str
    op: int
    key: int
    data: int
    timeout: int = 0
    NAME: ClassVar = "dynset"
    ATTRIBUTES: ClassVar = {
        "set": (1, Wire.TEXT),
        "op": (3, Wire.U32),
        "key": (4, Wire.U32),
        "data": (5, Wire.U32),
        "timeout": (6, Wire.U64),
    }


@dataclass(frozen=True, slots=True)
class Counter(Expression):
    """Counts packets. Stands in sets, where each element gets one of its own; in rules it is none of ours."""

    NAME: ClassVar = "counter"
    KERNEL_OPTION: ClassVar = "CONFIG_NFT_COUNTER"


@dataclass(frozen=True, slots=True)
class Unknown(Expression):
    """An expression that this program never writes; met in a table that somebody else changed."""

    name: str
    data: bytes


KNOWN: Final[dict[str, type[Expression]]] = {
    cls.NAME: cls
    for cls in (
        Payload,
        Meta,
        Conntrack,
        Compare,
        Bitwise,
        Lookup,
        NumberGenerator,
        Nat,
        Masquerade,
        Reject,
        Immediate,
        Byteorder,
        Fib,
        Hash,
        DynamicSet,
    )
}
