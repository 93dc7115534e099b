"""All that a table holds, as operations: for a table that is gone, and for one that is to hold the same. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rules.diff import Programmed
from rules.entry import elements
from rules.layout import Network, Options
from rules.mend import chains_of
from rules.objects import Family
from rules.pieces import cut
from rules.transaction import AddChain, AddElement, AddRule, AddSet, Operation

PIECE: Final = 1000
"""So many elements the kernel takes in within some five milliseconds, so many rules within 30."""


@dataclass(frozen=True)
class Contents:
    """pieces: everything but the base chains, in an order in which the kernel takes it. entrance: these, with their
    rules: before it, no packet sees any of the rest."""

    family: Family
    pieces: Iterator[list[Operation]]
    entrance: list[Operation]

    @property
    def all(self) -> list[Operation]:
        """For one transaction. Takes the pieces out."""
        return [*(operation for piece in self.pieces for operation in piece), *self.entrance]


def contents(
    programmed: Programmed, options: Options, service_cidrs: Iterable[Network], piece: int = PIECE
) -> Contents:
    """What the table holds now, whatever `programmed` is told meanwhile. With the numbers that endpoints and chains
    have there, so that what changes it next changes another table that holds this alike. Elements are made when they
    are asked for."""
    rules = list(chains_of(programmed, options, service_cidrs).values())
    rules += [(mine[0].chain, mine) for turn in programmed.turns() if (mine := programmed.turn_rules(turn))]
    inner = [(chain, mine) for chain, mine in rules if not chain.hook]
    outer = [(chain, mine) for chain, mine in rules if chain.hook]
    standing: list[Operation] = [
        *map(AddSet, programmed.sets()),
        *(AddChain(chain) for chain, _ in inner),
        *(AddRule(rule) for _, mine in inner for rule in mine),
    ]
    entrance: list[Operation] = [
        *(AddChain(chain) for chain, _ in outer),
        *(AddRule(rule) for _, mine in outer for rule in mine),
    ]
    shared = [*programmed.shared_elements(), *programmed.turn_elements()]
    entries, layout = list(programmed.entries.values()), programmed.layout

    def pieces() -> Iterator[list[Operation]]:
        yield from cut(standing, piece)
        yield from map(_by_set, cut(shared, piece))
        yield from map(_by_set, cut((element for entry in entries for element in elements(layout, entry)), piece))

    return Contents(programmed.layout.family, pieces(), entrance)


def _by_set(found: list[AddElement]) -> list[Operation]:
    """Those of one set side by side: they travel in one message."""
    by_set: dict[str, list[Operation]] = {}
    for element in found:
        by_set.setdefault(element.set.name, []).append(element)
    return [element for mine in by_set.values() for element in mine]
