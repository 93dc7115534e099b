"""Address translation: to an endpoint, or from this node's own address. It ends the packet's way through a table."""

from __future__ import annotations

from dataclasses import dataclass

from rules import expressions as e
from rules.objects import Family, Set, source_address
from rules.statements.numgen import numgen, numgen_text
from rules.statements.packet_key import key_text, load_field, load_key


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
        number = numgen_text(self.modulus, self.offset, self.in_turn)
        return f"dnat {family.nft} to {key_text(self.map.key[:-1])} . {number} map @{self.map.name}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, words = load_key(self.map.key[:-1])
        number = numgen(self.modulus, self.offset, e.register(words), self.in_turn)
        return (*loads, number, *_dnat(self.map, family))


@dataclass(frozen=True, slots=True)
class DnatBySource:
    """The same, but the number is a hash of the client's address: one client, one number, with each
    `seed` another one."""

    map: Set
    modulus: int
    offset: int
    seed: int

    def text(self, family: Family) -> str:
        offset = f" offset {self.offset}" if self.offset else ""
        number = f"jhash {source_address(family).text} mod {self.modulus} seed 0x{self.seed:x}{offset}"
        return f"dnat {family.nft} to {key_text(self.map.key[:-1])} . {number} map @{self.map.name}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, words = load_key(self.map.key[:-1])
        client = source_address(family)
        spare = e.register(words + 5)
        return (
            *loads,
            load_field(client, spare),
            e.Hash(spare, e.register(words), client.size, self.modulus, self.seed, offset=self.offset),
            *_dnat(self.map, family),
        )


@dataclass(frozen=True, slots=True)
class DnatByTicket:
    """DNAT to what the map holds for (the packet's key, its priority). Not there: the next rule's turn."""

    map: Set

    def text(self, family: Family) -> str:
        return f"dnat {family.nft} to {key_text(self.map.key)} map @{self.map.name}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, _ = load_key(self.map.key)
        return (*loads, *_dnat(self.map, family))


def _dnat(map_: Set, family: Family) -> tuple[e.Expression, ...]:
    port = e.register(family.address_size // 4)
    return (e.Lookup(map_.name, register=e.REGISTER), e.Nat(family, e.REGISTER, port))


@dataclass(frozen=True, slots=True)
class Masquerade:
    """The source is the address of the interface that the packet leaves through, and a port at random."""

    def text(self, family: Family) -> str:
        return "masquerade fully-random"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (e.Masquerade(),)
