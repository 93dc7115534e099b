"""A table that is there already against what is wanted of it: the operations in between. Pure.

An agent that starts again finds the table of its predecessor, and one whose table others have changed finds that: both
commit the differences and nothing else. What cannot be told in elements and rules (a set of another type, a chain that
is missing or that nobody knows: another release's table, or a damaged one) has to be replaced as a whole.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from rules.compare import are_same_rules, deletion, is_same_element
from rules.diff import Programmed
from rules.dump import ChainState, SetState, TableState, hooked
from rules.elements import Scheduler, ServicePort, element_key, index
from rules.endpoint_numbers import LOCAL, TICKET
from rules.entry import ports_of
from rules.groups import Group
from rules.layout import LAYOUTS, Layout, Network, Options
from rules.numbering import Slots
from rules.objects import OWNED, PERSIST, Chain, Family, Rule, Set
from rules.past import Past, Spare
from rules.plan import Plan
from rules.service_ports import Ports
from rules.tables import own
from rules.transaction import AddChain, AddElement, AddRule, AddSet, DeleteElement, FlushChain, Operation

Elements = dict[bytes, tuple[bytes, str]]


class Differences(Struct, frozen=True):
    """How much of the table was not as it should be. missing, stray, changed: elements. chains: those with other rules.
    new: sets and chains that are made."""

    missing: int = 0
    stray: int = 0
    changed: int = 0
    chains: int = 0
    new: int = 0

    @property
    def total(self) -> int:
        return self.missing + self.stray + self.changed + self.chains + self.new


@dataclass(frozen=True)
class Adopted:
    """`programmed` is what the kernel holds when `operations` are committed; none: it does already. differences: None,
    when the table was made anew."""

    programmed: Programmed
    operations: list[Operation]
    differences: Differences | None


def adopt(
    family: Family,
    found: TableState,
    options: Options,
    service_cidrs: Iterable[Network],
    wanted: Mapping[bytes, ServicePort | None],
    nodeport_ips: frozenset[bytes],
    owner: int = 0,
) -> Adopted | None:
    """What makes of the table that was found the one that is wanted; None: it has to be replaced.

    Endpoints keep the numbers that they have, so that clients with session affinity stay with them. owner: the port id
    of the socket that is to own the table (rules.tables.own), 0: none needs to.
    """
    if owner and not found.flags & PERSIST:
        return None
    layout = LAYOUTS[family]
    groups = list(_groups(layout, found.sets))
    chains = _chains(layout, options, service_cidrs, groups)
    sets = {set_.name: set_ for set_ in (*layout.sets, *(group.services for group in groups))}
    if not is_ours(layout, found, sets, chains.keys()):
        return None
    ports = [port for port in wanted.values() if port]
    programmed = Programmed(family, _past(layout, found, groups, ports))
    plan = programmed.plan({port.key: port for port in ports}, nodeport_ips)
    work = _Work()
    if owner and found.owner != owner:
        work.new.append(own(layout))
    turns = _take_over(plan, sets, work)
    for chain, rules in chains.items():
        work.chain(chain, rules, found.chains[chain.name])
    for chain, rules in turns.items():
        if chain.name in found.chains:
            work.chain(chain, rules, found.chains[chain.name])
        else:
            work.new += [AddChain(chain), *map(AddRule, rules)]
    programmed.accept(plan)
    for element in (*layout.fixed.values(), *programmed.turn_elements()):
        work.wanted[element.set.name][element.key] = element
    for name, set_ in sets.items():
        if not set_.dynamic:
            work.elements(set_, found.sets[name].elements)
    for name in work.wanted.keys() - sets.keys():
        work.added += work.wanted[name].values()
    if any(len(element.key) != element.set.key_size for element in work.deleted):
        return None  # a catch-all element, which we cannot name
    return Adopted(programmed, work.operations(), work.differences())


@dataclass
class _Work:
    """What is to be done, gathered so that a transaction may be made of it."""

    wanted: dict[str, dict[bytes, AddElement]] = field(default_factory=lambda: defaultdict(dict))
    new: list[Operation] = field(default_factory=list)
    mended: list[Operation] = field(default_factory=list)
    deleted: list[DeleteElement] = field(default_factory=list)
    added: list[AddElement] = field(default_factory=list)
    changed: int = 0
    chains: int = 0

    def chain(self, chain: Chain, rules: list[Rule], found: ChainState) -> None:
        """The rules of one chain."""
        if are_same_rules(chain.name, [rule.expressions for rule in rules], found.rules):
            return
        self.chains += 1
        self.mended += [FlushChain(chain), *map(AddRule, rules)]

    def elements(self, set_: Set, found: Elements) -> None:
        """The elements of one set."""
        wanted = self.wanted.get(set_.name, {})
        for key in found.keys() - wanted.keys():
            self.deleted.append(deletion(set_, key, found[key]))
        for key, element in wanted.items():
            there = found.get(key)
            if there is None:
                self.added.append(element)
            elif not is_same_element(element, there):
                self.changed += 1
                self.deleted.append(deletion(set_, key, there))
                self.added.append(element)

    def operations(self) -> list[Operation]:
        """New objects, then rules, then what goes, then what comes, so that a key may go and come back."""
        return [*self.new, *self.mended, *self.deleted, *self.added]

    def differences(self) -> Differences:
        new = sum(isinstance(operation, AddSet | AddChain) for operation in self.new)
        missing, stray = len(self.added) - self.changed, len(self.deleted) - self.changed
        return Differences(missing, stray, self.changed, self.chains, new)


def _groups(layout: Layout, names: Iterable[str]) -> Iterator[Group]:
    """The groups whose sets are there."""
    pattern = re.compile(r"(nodeport-)?(local-)?(?:sticky-(\d+)-for-(\d+)s|hashed-(\d+))")
    for name in names:
        if match := pattern.fullmatch(name):
            ports = layout.node_ports if match[1] else layout.addresses
            size = int(match[3] or match[5])
            group = Group(ports, bool(match[2]), size.bit_length() - 1, int(match[4] or 0))
            if size and group.name == name:
                yield group


def _chains(
    layout: Layout, options: Options, service_cidrs: Iterable[Network], groups: Iterable[Group]
) -> dict[Chain, list[Rule]]:
    """All chains that must be there, with their rules."""
    chains = {chain: list(rules) for chain, rules in layout.rules(options, service_cidrs)}
    for group in groups:
        for chain, rules in group.rules():
            chains.setdefault(chain, []).extend(rules)
    return chains


def is_ours(layout: Layout, found: TableState, sets: Mapping[str, Set], chains: Collection[Chain]) -> bool:
    """Whether the table is awake, and has just these sets and chains; besides, it may have chains for round robin."""
    if found.flags & ~OWNED or found.sets.keys() != sets.keys():
        return False
    if any(not found.sets[name].is_like(SetState.of(set_)) for name, set_ in sets.items()):
        return False
    for chain in chains:
        there = found.chains.get(chain.name)
        if there is None or there.hook != hooked(chain):
            return False
    names = {chain.name for chain in chains}
    return all(_turn_number(layout, name) is not None for name in found.chains.keys() - names)


def _turn_number(layout: Layout, name: str) -> tuple[Ports, bool, int] | None:
    """What a round robin's chain is named after."""
    match = re.fullmatch(r"(nodeport-)?(local-)?turn-(0|[1-9]\d*)", name)
    if not match:
        return None
    return layout.node_ports if match[1] else layout.addresses, bool(match[2]), int(match[3])


def _past(layout: Layout, found: TableState, groups: Iterable[Group], ports: Iterable[ServicePort]) -> Past:
    """What of the past decides what is made now."""
    past = Past(set(groups))
    sticky = {kind: _sticky_slots(found.sets[kind.sticky_endpoints.name].elements) for kind in _kinds(layout)}
    used: dict[tuple[str, bool], set[int]] = defaultdict(set)
    for port in ports:
        kind, key = ports_of(layout, port.key), element_key(port.key)
        counts = found.sets[kind.no_endpoints.name].elements.get(key)
        if counts and is_same_element(AddElement(kind.no_endpoints, key, comment=port.name), counts):
            past.counted.add(port.key)
        if port.timeout:
            for local in (False, True):
                if slots := sticky[kind].get((key, local)):
                    past.numbers.setdefault((port.identity, local), slots)
            continue
        endpoints = found.sets[kind.endpoints.name].elements
        slots, local_slots = _slots(endpoints, key, 0), _slots(endpoints, key, LOCAL) if port.local else ()
        if slots or local_slots:
            past.seeds[port.key] = (slots, local_slots)
        if port.scheduler is Scheduler.RR:
            for local, there in ((False, port.endpoints), (True, port.local)):
                goes = found.sets[kind.turns(local).name].elements.get(key)
                known = _turn_number(layout, goes[0].decode(errors="replace")) if goes else None
                if there and known and known[:2] == (kind, local) and known[2] not in used[kind.prefix, local]:
                    past.turns[kind.prefix, local, key] = known[2]
                    used[kind.prefix, local].add(known[2])
    for name in found.chains:
        if known := _turn_number(layout, name):
            kind, local, number = known
            spare = past.spare.get((kind.prefix, local), Spare())
            free = () if number in used[kind.prefix, local] else (number,)
            past.spare[kind.prefix, local] = Spare(max(spare.made, number + 1), (*spare.free, *free))
    return past


def _kinds(layout: Layout) -> tuple[Ports, Ports]:
    return layout.addresses, layout.node_ports


def _slots(elements: Elements, key: bytes, first: int) -> Slots:
    """The endpoints of a service port as they are numbered, up to the first gap; one that is there again is none."""
    slots: dict[bytes | int, None] = {}
    while there := elements.get(key + index(first + len(slots))):
        slots[there[0] if there[0] not in slots else len(slots)] = None
    return tuple(slot if isinstance(slot, bytes) else None for slot in slots)


def _sticky_slots(elements: Elements) -> dict[tuple[bytes, bool], Slots]:
    """The same where there may be gaps, of all service ports: (key, local) -> endpoints."""
    numbers: dict[tuple[bytes, bool], dict[int, bytes]] = defaultdict(dict)
    for key, (endpoint, _) in elements.items():
        number = int.from_bytes(key[-4:], sys.byteorder) - TICKET
        if 0 <= number < 2 * LOCAL:
            numbers[key[:-4], number >= LOCAL][number % LOCAL] = endpoint
    return {which: tuple(by.get(i) for i in range(max(by) + 1)) for which, by in numbers.items()}


def _take_over(plan: Plan, sets: Mapping[str, Set], work: _Work) -> dict[Chain, list[Rule]]:
    """Sort what a plan from scratch would do. Returns the chains of round robin with their rules."""
    turns: dict[Chain, list[Rule]] = {}
    new = {group.name for group in plan.groups}
    for operation in plan.operations:
        match operation:
            case AddElement(set=set_, key=key):
                work.wanted[set_.name][key] = operation
            case AddSet():
                work.new.append(operation)
            case AddChain(chain) if chain.name in new:
                work.new.append(operation)
            case AddChain(chain):
                turns[chain] = []
            case AddRule(rule) if rule.chain in turns:
                turns[rule.chain].append(rule)
            case AddRule():
                work.new.append(operation)
            case _:
                pass
    return turns
