"""Compares what the kernel holds with what it was told to, a little at a time: changes may come between any two steps.

What looks wrong may be right by now, or may have changed while it was read: it is read once more, on its own, before it
is called wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rules.adopt import is_ours
from rules.changes import Touched
from rules.compare import are_same_rules, is_same_element
from rules.diff import Programmed
from rules.dump import ChainState, SetState, TableState
from rules.expressions import Expression
from rules.layout import Network, Options
from rules.mend import chains_of
from rules.objects import OWNED, Rule, Set
from rules.pieces import cut
from rules.table_reader import Reader

SLICE: Final = 250
"""Elements that are compared in one step: a millisecond or two."""
CHAINS: Final = 8
"""The same of chains."""
SUSPECTS: Final = 100
"""The same of elements that are read on their own."""
MANY: Final = 5_000
"""From so many suspects on, the whole table is looked at, which is faster then."""

Rulebook = Callable[[], tuple[Options, Sequence[Network]]]
"""The options and ServiceCIDRs that are programmed now."""


def audit(programmed: Programmed, reader: Reader, rulebook: Rulebook, owner: int = 0) -> Iterator[Touched | None]:
    """Each step gives what was found wrong in it, to be mended before the next one (rules.mend), or None.

    owner: the port id of the socket that owns the table, 0: nobody does. Raises what `reader` raises.
    """
    try:
        yield from _audit(programmed, reader, rulebook, owner)
    except FileNotFoundError:  # what was there a moment ago
        yield Touched(programmed.layout.family, is_rebuilt=True)


def _audit(programmed: Programmed, reader: Reader, rulebook: Rulebook, owner: int) -> Iterator[Touched | None]:
    table = programmed.layout.table
    found = reader.table(table)
    if found is None or found.owner != owner or found.flags & ~OWNED:
        raise FileNotFoundError
    yield None
    for is_patient in (True, False):  # in one go, if something was missing in pieces
        found.chains, found.sets = {}, {}
        for part in (reader.chains(table), reader.sets(table)):
            for piece in part:
                _note(found, piece)
                if is_patient:
                    yield None
        if _is_whole(programmed, found, rulebook):
            break
        if not is_patient:
            raise FileNotFoundError
    yield from _rules(programmed, reader, rulebook)
    yield from _elements(programmed, reader)


def _note(found: TableState, piece: dict[str, ChainState] | dict[str, SetState]) -> None:
    for name, one in piece.items():
        if isinstance(one, ChainState):
            found.chains[name] = one
        else:
            found.sets[name] = one


def _is_whole(programmed: Programmed, found: TableState, rulebook: Rulebook) -> bool:
    sets = {set_.name: set_ for set_ in programmed.sets()}
    chains = [chain for chain, _ in chains_of(programmed, *rulebook()).values()]
    return is_ours(programmed.layout, found, sets, chains)


def _rules(programmed: Programmed, reader: Reader, rulebook: Rulebook) -> Iterator[Touched | None]:
    layout = programmed.layout
    wanted = chains_of(programmed, *rulebook())
    for names in cut(wanted, CHAINS):
        wrong: set[str] = set()
        for name in names:
            found = reader.rules(layout.table, name)
            if not _are_same(wanted[name][1], found):
                now = chains_of(programmed, *rulebook())
                wrong |= set() if _are_same(now[name][1], found) else {name}
        yield Touched(layout.family, chains=wrong) if wrong else None
    for turns in cut(list(programmed.turns()), CHAINS):
        wrong = set()
        for rules in map(programmed.turn_rules, turns):
            if rules and not _are_same(rules, reader.rules(layout.table, rules[0].chain.name)):
                wrong.add(rules[0].chain.name)
        yield Touched(layout.family, chains=wrong) if wrong else None


def _are_same(wanted: Sequence[Rule], found: Sequence[tuple[Expression, ...]]) -> bool:
    return are_same_rules(wanted[0].chain.name if wanted else "", [rule.expressions for rule in wanted], found)


def _elements(programmed: Programmed, reader: Reader) -> Iterator[Touched | None]:
    family = programmed.layout.family
    seen: dict[str, set[bytes]] = {}
    suspects: dict[tuple[str, bytes], Set] = {}
    # What is there is wanted.
    for set_ in list(programmed.sets()):
        seen[set_.name] = mine = set()
        for piece in () if set_.dynamic else reader.elements(set_):
            yield None  # the kernel walks from the start of the set to the piece, which takes its time
            for part in cut(piece, SLICE):
                for key, there in part:
                    if len(key) != set_.key_size:  # a catch-all, which cannot be named
                        yield Touched(family, is_rebuilt=True)
                        return
                    wanted = programmed.element(set_.name, key)
                    if wanted and is_same_element(wanted, there):
                        mine.add(key)
                    else:
                        suspects[set_.name, key] = set_
                yield None
    # What is wanted is there.
    for some in cut(programmed.elements(), SLICE):
        for element in some:
            if element.key not in seen.get(element.set.name, ()):
                suspects[element.set.name, element.key] = element.set
        yield None
    seen.clear()
    if len(suspects) >= MANY:
        yield Touched(family, is_rebuilt=True)
        return
    for doubtful in cut(suspects.items(), SUSPECTS):
        touched = Touched(family)
        for (name, key), set_ in doubtful:
            found, wanted = reader.element(set_, key), programmed.element(name, key)
            if (found or wanted) and not (found and wanted and is_same_element(wanted, found)):
                touched.elements[name, key] = found
        yield touched if touched.elements else None
