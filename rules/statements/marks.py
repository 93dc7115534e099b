"""One bit in the mark of a packet or of its connection: asked for, set, flipped. The other bits are other programs'."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum

from rules import expressions as e
from rules.objects import Family


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
