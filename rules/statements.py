"""Statements: the words of a rule, each of which knows its nft text and its kernel expressions."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import Enum
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
        case Field.PRIORITY:
            return e.Meta(e.Meta.PRIORITY, register=register)
        case _:
            raise ValueError(f"{part.text!r} is computed, not loaded")


_IP_PROTOCOL = e.Payload(1, 9, 1, 1)
"""Of an IPv4 packet; read faster than metadata. In IPv6 there may be other headers in between."""


def _has_ipv4(parts: tuple[Field, ...]) -> bool:
    return Field.IP_SADDR in parts or Field.IP_DADDR in parts


_HASHED = {Field.IP6_SADDR_HASH: (Field.IP6_SADDR, 1)}
"""What is hashed, and with which seed."""


def _load_key(parts: tuple[Field, ...], interval: bool = False, scratch: int = 2) -> tuple[list[e.Expression], int]:
    """Load the parts side by side, and the number of 4-byte words that they fill.

    scratch: the 16-byte register for what is hashed.
    """
    loads: list[e.Expression] = []
    word = 0
    for part in parts:
        if part in _HASHED:
            whole, seed = _HASHED[part]
            loads += [
                _load(whole, scratch),
                e.Hash(scratch, e.register(word), whole.size, 2**32 - 1, seed),
            ]
        elif part is Field.L4PROTO and _has_ipv4(parts):
            loads.append(replace(_IP_PROTOCOL, register=e.register(word)))
        else:
            loads.append(_load(part, e.register(word)))
            if interval and part is Field.L4PROTO:
                loads.append(e.Byteorder(e.register(word), e.register(word)))
        word += part.size // 4
    return loads, word


def _key_text(parts: tuple[Field, ...]) -> str:
    protocol = "ip protocol" if _has_ipv4(parts) else Field.L4PROTO.text
    return " . ".join(protocol if part is Field.L4PROTO else part.text for part in parts)


@dataclass(frozen=True, slots=True)
class InSet:
    """The key, loaded from the packet, is in the set."""

    set: Set

    def text(self, family: Family) -> str:
        return f"{_key_text(self.set.key)} @{self.set.name}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, _ = _load_key(self.set.key, self.set.interval)
        return (*loads, e.Lookup(self.set.name))


@dataclass(frozen=True, slots=True)
class MayReachItself:
    """The source x is in a set of pairs (source, destination) as (x, x)."""

    pairs: Set

    def text(self, family: Family) -> str:
        return f"{_key_text(self._key)} @{self.pairs.name}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, _ = _load_key(self._key)
        return (*loads, e.Lookup(self.pairs.name))

    @property
    def _key(self) -> tuple[Field, Field]:
        source, _ = self.pairs.key
        return source, source


@dataclass(frozen=True, slots=True)
class GoToMapped:
    """Go where the map of verdicts says for the key, loaded from the packet. Not there: the next rule's turn."""

    map: Set

    def text(self, family: Family) -> str:
        return f"{_key_text(self.map.key)} vmap @{self.map.name}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, _ = _load_key(self.map.key)
        return (*loads, e.Lookup(self.map.name, register=e.VERDICT))


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
    return AddressMatch(source_address(Family.of_version(network.version)), network, negate)


def to_destination(network: IPv4Network | IPv6Network) -> AddressMatch:
    return AddressMatch(destination_address(Family.of_version(network.version)), network)


@dataclass(frozen=True, slots=True)
class IsDestinationNatted:
    """The connection's destination has been rewritten."""

    def text(self, family: Family) -> str:
        return "ct status dnat"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (
            e.Conntrack(e.Conntrack.STATUS, register=e.REGISTER),
            e.Bitwise(struct.pack("=I", CT_STATUS_DNAT), bytes(4), 4),
            e.Compare(e.Compare.UNEQUAL, bytes(4)),
        )


class Mark(Enum):
    """Which mark, as nft calls it."""

    PACKET = "meta mark"
    CONNECTION = "ct mark"

    def load(self) -> e.Expression:
        if self is Mark.PACKET:
            return e.Meta(e.Meta.MARK, register=e.REGISTER)
        return e.Conntrack(e.Conntrack.MARK, register=e.REGISTER)

    def store(self) -> e.Expression:
        if self is Mark.PACKET:
            return e.Meta(e.Meta.MARK, source=e.REGISTER)
        return e.Conntrack(e.Conntrack.MARK, source=e.REGISTER)

    def changed(self, mask: int, xor: int) -> tuple[e.Expression, ...]:
        return self.load(), e.Bitwise(struct.pack("=I", mask), struct.pack("=I", xor), 4), self.store()


@dataclass(frozen=True, slots=True)
class HasMark:
    """The bit is set in the mark."""

    bit: int
    mark: Mark = Mark.PACKET

    def text(self, family: Family) -> str:
        return f"{self.mark.value} & 0x{self.bit:08x} != 0x00000000"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (
            self.mark.load(),
            e.Bitwise(struct.pack("=I", self.bit), bytes(4), 4),
            e.Compare(e.Compare.UNEQUAL, bytes(4)),
        )


@dataclass(frozen=True, slots=True)
class SetMark:
    """Set the bit in the mark, leaving the others."""

    bit: int
    mark: Mark = Mark.PACKET

    def text(self, family: Family) -> str:
        return f"{self.mark.value} set {self.mark.value} | 0x{self.bit:08x}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return self.mark.changed(mask=~self.bit & 0xFFFFFFFF, xor=self.bit)


@dataclass(frozen=True, slots=True)
class FlipMark:
    """Flip the bit in the mark, leaving the others. (After HasMark: clear it.)"""

    bit: int
    mark: Mark = Mark.PACKET

    def text(self, family: Family) -> str:
        return f"{self.mark.value} set {self.mark.value} ^ 0x{self.bit:08x}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return self.mark.changed(mask=0xFFFFFFFF, xor=self.bit)


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


def _number_text(modulus: int, offset: int, in_turn: bool = False) -> str:
    number = f"numgen {'inc' if in_turn or modulus == 1 else 'random'} mod {modulus}"
    return number + (f" offset {offset}" if offset else "")


def _number(modulus: int, offset: int, register: int, in_turn: bool = False) -> e.NumberGenerator:
    kind = e.NumberGenerator.INCREMENTAL if in_turn or modulus == 1 else e.NumberGenerator.RANDOM
    return e.NumberGenerator(modulus, kind, register, offset)


def _dnat(map_: Set, family: Family) -> tuple[e.Expression, ...]:
    port = e.register(family.address_size // 4)
    return (e.Lookup(map_.name, register=e.REGISTER), e.Nat(family, e.REGISTER, port))


@dataclass(frozen=True, slots=True)
class DnatByIndex:
    """DNAT to what the map holds for (the packet's key, a number from `offset` on below `offset + modulus`). Not
    there: the next rule's turn.

    The map's key is the packet's fields and then Field.INDEX, its data an address and a port.
    """

    map: Set
    modulus: int
    offset: int = 0
    in_turn: bool = False
    """Counting up instead of drawing."""

    def text(self, family: Family) -> str:
        number = _number_text(self.modulus, self.offset, self.in_turn)
        return f"dnat {family.nft} to {_key_text(self.map.key[:-1])} . {number} map @{self.map.name}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, words = _load_key(self.map.key[:-1])
        number = _number(self.modulus, self.offset, e.register(words), self.in_turn)
        return (*loads, number, *_dnat(self.map, family))


@dataclass(frozen=True, slots=True)
class DnatBySource:
    """The same, but the number is a hash of the client's address: one client, one number. `seed`: another one."""

    map: Set
    modulus: int
    offset: int
    seed: int

    def text(self, family: Family) -> str:
        offset = f" offset {self.offset}" if self.offset else ""
        number = f"jhash {source_address(family).text} mod {self.modulus} seed 0x{self.seed:x}{offset}"
        return f"dnat {family.nft} to {_key_text(self.map.key[:-1])} . {number} map @{self.map.name}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, words = _load_key(self.map.key[:-1])
        client = source_address(family)
        spare = e.register(words + 5)
        return (
            *loads,
            _load(client, spare),
            e.Hash(spare, e.register(words), client.size, self.modulus, self.seed, offset=self.offset),
            *_dnat(self.map, family),
        )


# Session affinity. A ticket is what a client holds of a service port: the number of an endpoint. Three look-ups (address
# -> service port, client and service port -> ticket, address and ticket -> endpoint) hand on what they find in the
# packet's priority, the one field that nft 1.0.6 lets a rule use for that; it is cleared before the packet leaves.


@dataclass(frozen=True, slots=True)
class HoldTicket:
    """Give the client a ticket if it has none, drawn like an index; in any case it is good for `timeout` seconds from
    now on."""

    map: Set
    modulus: int
    offset: int
    timeout: int

    def text(self, family: Family) -> str:
        number = _number_text(self.modulus, self.offset)
        return f"update @{self.map.name} {{ {_key_text(self.map.key)} timeout {duration(self.timeout)} : {number} }}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, words = _load_key(self.map.key)
        data = _behind(words)
        change = e.DynamicSet(self.map.name, e.DynamicSet.UPDATE, e.REGISTER, data, self.timeout * 1000)
        return (*loads, _number(self.modulus, self.offset, data), change)


@dataclass(frozen=True, slots=True)
class ShowMapped:
    """What the map holds for the key is the packet's priority now. Not there: the next rule's turn."""

    map: Set

    def text(self, family: Family) -> str:
        return f"meta priority set {_key_text(self.map.key)} map @{self.map.name}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, _ = _load_key(self.map.key, scratch=e.register(self.map.key_size // 4 + 4))
        return (
            *loads,
            e.Lookup(self.map.name, register=e.REGISTER),
            e.Meta(e.Meta.PRIORITY, source=e.REGISTER),
        )


@dataclass(frozen=True, slots=True)
class ShowNumber:
    """This number is the packet's priority now."""

    number: int

    def text(self, family: Family) -> str:
        return f"meta priority set {Field.PRIORITY.value_text(struct.pack('=I', self.number))}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (e.Immediate(struct.pack("=I", self.number), e.REGISTER), e.Meta(e.Meta.PRIORITY, source=e.REGISTER))


@dataclass(frozen=True, slots=True)
class ShowsNumber:
    """The packet's priority is this number (or, `negate`, another one)."""

    number: int
    negate: bool = False

    def text(self, family: Family) -> str:
        number = Field.PRIORITY.value_text(struct.pack("=I", self.number))
        return f"meta priority {'!= ' if self.negate else ''}{number}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        op = e.Compare.UNEQUAL if self.negate else e.Compare.EQUAL
        return (e.Meta(e.Meta.PRIORITY, register=e.REGISTER), e.Compare(op, struct.pack("=I", self.number)))


@dataclass(frozen=True, slots=True)
class ShowDraw:
    """A number drawn like an index is the packet's priority now: a ticket that nobody remembers."""

    modulus: int
    offset: int

    def text(self, family: Family) -> str:
        return f"meta priority set {_number_text(self.modulus, self.offset)}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (_number(self.modulus, self.offset, e.REGISTER), e.Meta(e.Meta.PRIORITY, source=e.REGISTER))


@dataclass(frozen=True, slots=True)
class DropTicket:
    """The client has no ticket any more."""

    map: Set

    def text(self, family: Family) -> str:
        return f"delete @{self.map.name} {{ {_key_text(self.map.key)} : none }}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, words = _load_key(self.map.key)
        data = _behind(words)
        # The kernel wants data for a map, and does not look at it.
        change = e.DynamicSet(self.map.name, e.DynamicSet.DELETE, e.REGISTER, data)
        return (*loads, e.Immediate(bytes(4), data), change)


@dataclass(frozen=True, slots=True)
class DnatByTicket:
    """DNAT to what the map holds for (the packet's key, its priority). Not there: the next rule's turn."""

    map: Set

    def text(self, family: Family) -> str:
        return f"dnat {family.nft} to {_key_text(self.map.key)} map @{self.map.name}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, _ = _load_key(self.map.key)
        return (*loads, *_dnat(self.map, family))


@dataclass(frozen=True, slots=True)
class ShowsTicket:
    """The packet's priority is a ticket: its bits under `mask` are `value`."""

    mask: int
    value: int

    def text(self, family: Family) -> str:
        mask, value = (Field.PRIORITY.value_text(struct.pack("=I", n)) for n in (self.mask, self.value))
        return f"meta priority & {mask} == {value}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (
            e.Meta(e.Meta.PRIORITY, register=e.REGISTER),
            e.Bitwise(struct.pack("=I", self.mask), bytes(4), 4),
            e.Compare(e.Compare.EQUAL, struct.pack("=I", self.value)),
        )


def _behind(words: int) -> int:
    """The first 16-byte register behind a key of so many words, where nft puts the data."""
    return e.register((words + 3) // 4 * 4)


def duration(seconds: int) -> str:
    """As nft writes it: "3h", "1h30m", "1d2s"."""
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


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


def go_back() -> Go:
    """Back to the chain that jumped here."""
    return Go(e.Verdict.RETURN)
