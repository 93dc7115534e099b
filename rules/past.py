"""What of a table that was found decides what is made of it now."""

from __future__ import annotations

from msgspec import Struct, field

from rules.groups import Group
from rules.numbering import Slots

Turn = tuple[str, bool, bytes]
"""Which list of which service port has a chain of its own for round robin: (Ports.prefix, local, key)."""


class Spare(Struct, frozen=True):
    """Numbers of such chains that nobody has: below `made` they are there, and those in `free` are unused."""

    made: int = 0
    free: tuple[int, ...] = ()


class Past(Struct, frozen=True):
    """Nothing: of a table that is made anew.

    groups: whose sets are there. numbers: of endpoints, with session affinity by (identity, local), without it
    (`seeds`) by service key, all and local ones. turns and spare: of the chains of round robin. counted: keys of
    service ports that the table counts refused packets of.
    """

    groups: set[Group] = field(default_factory=set)
    numbers: dict[tuple[int, bool], Slots] = field(default_factory=dict)
    seeds: dict[bytes, tuple[Slots, Slots]] = field(default_factory=dict)
    turns: dict[Turn, int] = field(default_factory=dict)
    spare: dict[tuple[str, bool], Spare] = field(default_factory=dict)
    counted: set[bytes] = field(default_factory=set)
