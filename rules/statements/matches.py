"""What is asked of a packet: the rule goes on if it is so."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network

from rules import expressions as e
from rules.objects import Family, Field, Set, destination_address, source_address
from rules.statements.packet_key import key_text, load_field, load_key


@dataclass(frozen=True, slots=True)
class InSet:
    """The key, loaded from the packet, is in the set."""

    set: Set

    def text(self, family: Family) -> str:
        return f"{key_text(self.set.key)} @{self.set.name}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, _ = load_key(self.set.key, self.set.interval)
        return (*loads, e.Lookup(self.set.name))


@dataclass(frozen=True, slots=True)
class MayReachItself:
    """The source x is in a set of pairs (source, destination) as (x, x)."""

    pairs: Set

    def text(self, family: Family) -> str:
        return f"{key_text(self._key)} @{self.pairs.name}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, _ = load_key(self._key)
        return (*loads, e.Lookup(self.pairs.name))

    @property
    def _key(self) -> tuple[Field, Field]:
        source, _ = self.pairs.key
        return source, source


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
        load = load_field(self.field, e.REGISTER)
        if isinstance(load, e.Payload) and bits % 8 == 0 and bits:  # whole bytes: load no more than those, as nft does
            return (replace(load, length=bits // 8), e.Compare(op, address[: bits // 8]))
        size = self.field.size
        return (load, e.Bitwise(self.network.netmask.packed, bytes(size), size), e.Compare(op, address))


def from_source(network: IPv4Network | IPv6Network, *, negate: bool = False) -> AddressMatch:
    return AddressMatch(source_address(Family.of_version(network.version)), network, negate)


def to_destination(network: IPv4Network | IPv6Network) -> AddressMatch:
    return AddressMatch(destination_address(Family.of_version(network.version)), network)


@dataclass(frozen=True, slots=True)
class FromInterface:
    """The packet came in through this interface, or, `prefix`, one whose name begins so (or, `negate`, not)."""

    name: str
    prefix: bool = False
    negate: bool = False

    def text(self, family: Family) -> str:
        return f'iifname {"!= " if self.negate else ""}"{self.name}{"*" if self.prefix else ""}"'

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        op = e.Compare.UNEQUAL if self.negate else e.Compare.EQUAL
        name = self.name.encode()
        return (
            e.Meta(e.Meta.IIFNAME, register=e.REGISTER),
            e.Compare(op, name if self.prefix else name.ljust(16, b"\0")),
        )


@dataclass(frozen=True, slots=True)
class FromThisNode:
    """The source is one of this node's own addresses."""

    def text(self, family: Family) -> str:
        return "fib saddr type local"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (e.Fib(), e.Compare(e.Compare.EQUAL, struct.pack("=I", e.Fib.LOCAL)))


@dataclass(frozen=True, slots=True)
class IsDestinationNatted:
    """The connection's destination has been rewritten."""

    def text(self, family: Family) -> str:
        return "ct status dnat"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (
            e.Conntrack(e.Conntrack.STATUS, register=e.REGISTER),
            e.Bitwise(struct.pack("=I", e.Conntrack.DNAT), bytes(4), 4),
            e.Compare(e.Compare.UNEQUAL, bytes(4)),
        )
