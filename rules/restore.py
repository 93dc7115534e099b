"""A table that others have changed against what it was: the operations that bring that back. Pure.

Numbers stay what they are, so that whatever holds the same as the table (rules.standby) goes on to do so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from rules.adopt import is_ours
from rules.changes import Touched
from rules.compare import are_same_rules, is_same_element
from rules.diff import Programmed
from rules.dump import TableState
from rules.layout import Network, Options
from rules.mend import chains_of, mend, turns_of
from rules.objects import PERSIST, Set
from rules.tables import own
from rules.transaction import Operation


def restore(
    programmed: Programmed, found: TableState, options: Options, service_cidrs: Iterable[Network], owner: int = 0
) -> list[Operation] | None:
    """[]: all is as it was. None: it has other sets or chains, and has to be made anew. owner: the port id of the
    socket that is to own the table, 0: none needs to."""
    service_cidrs = tuple(service_cidrs)
    layout, sets = programmed.layout, {set_.name: set_ for set_ in programmed.sets()}
    standing, turns = chains_of(programmed, options, service_cidrs), turns_of(programmed)
    if owner and not found.flags & PERSIST:
        return None
    if (
        not is_ours(layout, found, sets, [chain for chain, _ in standing.values()])
        or turns.keys() - found.chains.keys()
    ):
        return None
    touched = Touched(layout.family)
    for name, (_, rules) in (standing | turns).items():
        if not are_same_rules(name, [rule.expressions for rule in rules], found.chains[name].rules):
            touched.chains.add(name)
    touched.elements.update(_differences(programmed, found, sets))
    operations = mend(programmed, touched, options, service_cidrs)
    if operations is not None and owner and found.owner != owner:
        operations.insert(0, own(layout))
    return operations


def _differences(
    programmed: Programmed, found: TableState, sets: Mapping[str, Set]
) -> Iterator[tuple[tuple[str, bytes], tuple[bytes, str] | None]]:
    """As Touched.elements."""
    met: Counter[str] = Counter()
    for element in programmed.elements():
        name, key = element.set.name, element.key
        there = found.sets[name].elements.get(key)
        met[name] += there is not None
        if there is None or not is_same_element(element, there):
            yield (name, key), there
    for name, set_ in sets.items():
        there_too = found.sets[name].elements
        if not set_.dynamic and met[name] < len(there_too):
            for key, there in there_too.items():
                if len(key) != set_.key_size or programmed.element(name, key) is None:
                    yield (name, key), there
