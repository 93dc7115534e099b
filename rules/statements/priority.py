"""A packet's priority as the place where a rule leaves a number for later ones.

It is the one field that nft 1.0.6 lets a rule use for that: what a look-up finds there, the next one has as a part of
its key. What the numbers mean: rules/endpoint_numbers.py. It is cleared before the packet leaves.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from rules import expressions as e
from rules.objects import Family, Field, Set
from rules.statements.numgen import numgen, numgen_text
from rules.statements.packet_key import key_text, load_key


@dataclass(frozen=True, slots=True)
class ShowMapped:
    """What the map holds for the key is the packet's priority now. Not there: the next rule's turn."""

    map: Set

    def text(self, family: Family) -> str:
        return f"meta priority set {key_text(self.map.key)} map @{self.map.name}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, _ = load_key(self.map.key, scratch=e.register(self.map.key_size // 4 + 4))
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
class ShowDraw:
    """A number drawn like an index is the packet's priority now: a ticket that nobody remembers."""

    modulus: int
    offset: int

    def text(self, family: Family) -> str:
        return f"meta priority set {numgen_text(self.modulus, self.offset)}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (numgen(self.modulus, self.offset, e.REGISTER), e.Meta(e.Meta.PRIORITY, source=e.REGISTER))


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
