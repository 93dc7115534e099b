"""Statements: the words of a rule, each of which knows its nft text and its kernel expressions."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network
from typing import Protocol

from rules import expressions as e
from rules.objects import Family, Field, Set, destination_address, source_address

ICMP_PORT_UNREACHABLE = {Family.IPV4: 3, Family.IPV6: 4}
CT_STATUS_DNAT = 0x20


class Statement(Protocol):
    """What every statement can say of itself."""

    def text(self, family: Family) -> str:
        """As `nft list` writes it."""
        ...

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        """As the kernel runs it."""
        ...


def _load(part: Field, register: int) -> e.Expression:
    match part:
        case Field.IP_SADDR:
            return e.Payload(1, 12, 4, register)
        case Field.IP_DADDR:
            return e.Payload(1, 16, 4, register)
        case Field.IP6_SADDR:
            return e.Payload(1, 8, 16, register)
        case Field.IP6_DADDR:
            return e.Payload(1, 24, 16, register)
        case Field.L4PROTO:
            return e.Meta(e.Meta.L4PROTO, register=register)
        case Field.DPORT:
            return e.Payload(2, 2, 2, register)
        case Field.INDEX:
            raise ValueError("an index is generated, not loaded")


def _load_key(parts: tuple[Field, ...]) -> tuple[list[e.Expression], int]:
    """Load the parts side by side, and the register behind them."""
    loads: list[e.Expression] = []
    word = 0
    for part in parts:
        loads.append(_load(part, e.register(word)))
        word += part.size // 4
    return loads, e.register(word)


def _key_text(parts: tuple[Field, ...]) -> str:
    return " . ".join(part.text for part in parts)


@dataclass(frozen=True, slots=True)
class InSet:
    """The key, loaded from the packet, is in the set."""

    set: Set

    def text(self, family: Family) -> str:
        return f"{_key_text(self.set.key)} @{self.set.name}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, _ = _load_key(self.set.key)
        return (*loads, e.Lookup(self.set.name))


@dataclass(frozen=True, slots=True)
class AddressMatch:
    """The source or destination address is inside (or, `negate`, outside) a network."""

    field: Field
    network: IPv4Network | IPv6Network
    negate: bool = False

    def text(self, family: Family) -> str:
        whole = self.network.prefixlen == self.network.max_prefixlen
        value = str(self.network.network_address if whole else self.network)
        return f"{self.field.text} {'!= ' if self.negate else ''}{value}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        op = e.Compare.UNEQUAL if self.negate else e.Compare.EQUAL
        address, bits = self.network.network_address.packed, self.network.prefixlen
        load = _load(self.field, e.REGISTER)
        if isinstance(load, e.Payload) and bits % 8 == 0 and bits:  # whole bytes: load no more than those, as nft does
            return (replace(load, length=bits // 8), e.Compare(op, address[: bits // 8]))
        size = self.field.size
        return (load, e.Bitwise(self.network.netmask.packed, bytes(size), size), e.Compare(op, address))


def from_source(network: IPv4Network | IPv6Network, *, negate: bool = False) -> AddressMatch:
    return AddressMatch(source_address(_family(network)), network, negate)


def to_destination(network: IPv4Network | IPv6Network) -> AddressMatch:
    return AddressMatch(destination_address(_family(network)), network)


def _family(network: IPv4Network | IPv6Network) -> Family:
    return Family.IPV4 if network.version == 4 else Family.IPV6


@dataclass(frozen=True, slots=True)
class IsDestinationNatted:
    """The connection's destination has been rewritten."""

    def text(self, family: Family) -> str:
        return "ct status dnat"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (
            e.Conntrack(e.Conntrack.STATUS),
            e.Bitwise(struct.pack("=I", CT_STATUS_DNAT), bytes(4), 4),
            e.Compare(e.Compare.UNEQUAL, bytes(4)),
        )


@dataclass(frozen=True, slots=True)
class HasMark:
    """The bit is set in the packet's mark."""

    bit: int

    def text(self, family: Family) -> str:
        return f"meta mark & 0x{self.bit:08x} != 0x00000000"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (
            e.Meta(e.Meta.MARK, register=e.REGISTER),
            e.Bitwise(struct.pack("=I", self.bit), bytes(4), 4),
            e.Compare(e.Compare.UNEQUAL, bytes(4)),
        )


@dataclass(frozen=True, slots=True)
class SetMark:
    """Set the bit in the packet's mark, leaving the others."""

    bit: int

    def text(self, family: Family) -> str:
        return f"meta mark set meta mark | 0x{self.bit:08x}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return _change_mark(mask=~self.bit & 0xFFFFFFFF, xor=self.bit)


@dataclass(frozen=True, slots=True)
class FlipMark:
    """Flip the bit in the packet's mark, leaving the others. (After HasMark: clear it.)"""

    bit: int

    def text(self, family: Family) -> str:
        return f"meta mark set meta mark ^ 0x{self.bit:08x}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return _change_mark(mask=0xFFFFFFFF, xor=self.bit)


def _change_mark(mask: int, xor: int) -> tuple[e.Expression, ...]:
    return (
        e.Meta(e.Meta.MARK, register=e.REGISTER),
        e.Bitwise(struct.pack("=I", mask), struct.pack("=I", xor), 4),
        e.Meta(e.Meta.MARK, source=e.REGISTER),
    )


@dataclass(frozen=True, slots=True)
class DnatByIndex:
    """DNAT to what the map holds for (the packet's key, a number below `modulus`). Not there: the next rule's turn.

    The map's key is the packet's fields and then Field.INDEX, its data an address and a port.
    """

    map: Set
    modulus: int

    def text(self, family: Family) -> str:
        return f"dnat {family.nft} to {_key_text(self.map.key[:-1])} . {self._number} map @{self.map.name}"

    @property
    def _number(self) -> str:
        return f"numgen random mod {self.modulus}" if self.modulus > 1 else "numgen inc mod 1"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, index = _load_key(self.map.key[:-1])
        kind = e.NumberGenerator.RANDOM if self.modulus > 1 else e.NumberGenerator.INCREMENTAL
        port = e.register(family.address_size // 4)
        return (
            *loads,
            e.NumberGenerator(self.modulus, kind, index),
            e.Lookup(self.map.name, register=e.REGISTER),
            e.Nat(family, e.REGISTER, port),
        )


@dataclass(frozen=True, slots=True)
class Masquerade:
    def text(self, family: Family) -> str:
        return "masquerade fully-random"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (e.Masquerade(),)


@dataclass(frozen=True, slots=True)
class RefuseTcp:
    """A TCP reset for TCP. (An IPv6 TCP client ignores ICMP here and hangs until it times out.)"""

    def text(self, family: Family) -> str:
        return "meta l4proto tcp reject with tcp reset"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (
            e.Meta(e.Meta.L4PROTO, register=e.REGISTER),
            e.Compare(e.Compare.EQUAL, b"\x06"),
            e.Reject(e.Reject.TCP_RESET),
        )


@dataclass(frozen=True, slots=True)
class Refuse:
    """ICMP port unreachable."""

    def text(self, family: Family) -> str:
        return "reject"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (e.Reject(e.Reject.ICMP, ICMP_PORT_UNREACHABLE[family]),)


@dataclass(frozen=True, slots=True)
class Go:
    """A verdict; JUMP and GOTO name the chain."""

    verdict: e.Verdict
    chain: str = ""

    def text(self, family: Family) -> str:
        return f"{self.verdict.name.lower()} {self.chain}".rstrip()

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (e.Immediate((self.verdict, self.chain)),)


def jump(chain: str) -> Go:
    return Go(e.Verdict.JUMP, chain)


def goto(chain: str) -> Go:
    return Go(e.Verdict.GOTO, chain)


def drop() -> Go:
    return Go(e.Verdict.DROP)
