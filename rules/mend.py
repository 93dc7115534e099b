"""The operations that undo what others did to one of our tables. Pure.

Only what they touched is looked at: the cost does not grow with the table.
"""

from __future__ import annotations

from collections.abc import Iterable

from rules.changes import Touched
from rules.compare import deletion, is_same_element
from rules.diff import Programmed
from rules.layout import Network, Options
from rules.objects import Chain, Rule
from rules.transaction import AddRule, FlushChain, Operation


def mend(
    programmed: Programmed, touched: Touched, options: Options, service_cidrs: Iterable[Network]
) -> list[Operation] | None:
    """None: sets or chains are others than ours, and the whole table has to be looked at."""
    if touched.is_rebuilt:
        return None
    operations: list[Operation] = []
    if touched.chains:
        chains = chains_of(programmed, options, service_cidrs) | turns_of(programmed)
        for name in sorted(touched.chains):
            if name not in chains:
                return None
            chain, rules = chains[name]
            operations += [FlushChain(chain), *map(AddRule, rules)]
    deleted: list[Operation] = []
    added: list[Operation] = []
    sets = {set_.name: set_ for set_ in programmed.sets()}
    for (name, key), there in touched.elements.items():
        if name not in sets or len(key) != sets[name].key_size:
            return None
        if sets[name].dynamic:
            continue
        wanted = programmed.element(name, key)
        if there and wanted and is_same_element(wanted, there):
            continue
        if there:
            deleted.append(deletion(sets[name], key, there))
        if wanted:
            added.append(wanted)
    return [*operations, *deleted, *added]


Rules = dict[str, tuple[Chain, list[Rule]]]


def chains_of(programmed: Programmed, options: Options, service_cidrs: Iterable[Network]) -> Rules:
    """All chains by name, with their rules, but for those of round robin."""
    found = {chain.name: (chain, list(rules)) for chain, rules in programmed.layout.rules(options, service_cidrs)}
    for rule in programmed.group_rules():
        found.setdefault(rule.chain.name, (rule.chain, []))[1].append(rule)
    return found


def turns_of(programmed: Programmed) -> Rules:
    """The chains of round robin."""
    rules = (programmed.turn_rules(turn) for turn in programmed.turns())
    return {mine[0].chain.name: (mine[0].chain, mine) for mine in rules}
