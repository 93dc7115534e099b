"""The operations that undo what others did to one of our tables. Pure.

Only what they touched is looked at: the cost does not grow with the table.
"""

from __future__ import annotations

from collections.abc import Iterable

from rules.changes import Touched
from rules.diff import Programmed
from rules.layout import Network, Options
from rules.objects import Chain, Rule, comment_text
from rules.transaction import AddElement, AddRule, DeleteElement, FlushChain, Operation


def mend(
    programmed: Programmed, touched: Touched, options: Options, service_cidrs: Iterable[Network]
) -> list[Operation] | None:
    """None: sets or chains are others than ours, and the whole table has to be looked at."""
    if touched.is_rebuilt:
        return None
    operations: list[Operation] = []
    if touched.chains:
        chains = _rules(programmed, options, service_cidrs)
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
        if there and wanted and _is_same(wanted, there):
            continue
        if there:
            deleted.append(DeleteElement(sets[name], key, there[0] if sets[name].interval else b""))
        if wanted:
            added.append(wanted)
    return [*operations, *deleted, *added]


def _is_same(wanted: AddElement, there: tuple[bytes, str]) -> bool:
    return there == (wanted.data or wanted.end, comment_text(wanted.comment))


def _rules(
    programmed: Programmed, options: Options, service_cidrs: Iterable[Network]
) -> dict[str, tuple[Chain, list[Rule]]]:
    """All chains by name, with their rules."""
    found = {chain.name: (chain, list(rules)) for chain, rules in programmed.layout.rules(options, service_cidrs)}
    for rule in programmed.own_rules():
        found.setdefault(rule.chain.name, (rule.chain, []))[1].append(rule)
    return found
