"""Programmed service ports against wanted ones: the operations in between. Pure.

`Programmed` is what the kernel holds after the last acknowledged transaction. `plan` says what would bring it to new
service ports and changes nothing; `accept` takes the plan as done. Work and operations grow with what changed and with
the endpoints of the service ports that changed, never with what else there is.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from msgspec import structs

from rules.elements import ServicePort, address_of, element_key, index, is_node_port
from rules.entry import Entry, element, elements, homes, identity, in_turn, lists, ports_of
from rules.groups import Group
from rules.layout import LAYOUTS, Layout
from rules.numbering import Slots, place, place_sticky
from rules.objects import Family, Rule, Set
from rules.past import Past, Spare, Turn
from rules.plan import Changes, Plan
from rules.service_ports import Ports
from rules.transaction import AddChain, AddElement, AddRule, FlushChain

K = TypeVar("K")
V = TypeVar("V")


SWEPT: Final = 32
"""More of the counters that nobody needs do not go with one change."""


class Programmed:
    """What one family's table holds, apart from the chains that are always there."""

    def __init__(self, family: Family, past: Past | None = None) -> None:
        """past: of the table that was found in the kernel; the first plan is to hold all that is in it."""
        past = past or Past()
        self.layout: Layout = LAYOUTS[family]
        self.entries: dict[bytes, Entry] = {}
        self._counts: dict[tuple[str, bytes], int] = {}
        self._groups = past.groups
        self._numbers = past.numbers
        self._turns = past.turns
        self._spare = past.spare
        self._nodeport_ips: frozenset[bytes] = frozenset()
        self._seeds = past.seeds
        self._was_counted = past.counted
        self.unused: dict[bytes, Entry] = {}
        """Entries with endpoints that are counted, and whose counters are known to say 0. Any thread may put other ones
        in their place; plans take some of them out of the table."""
        self.sizes: dict[str, int] = Counter(one.set.name for one in self.turn_elements())
        """How many elements each set has that `plan` fills."""

    def plan(self, wanted: Mapping[bytes, ServicePort | None], nodeport_ips: frozenset[bytes] | None = None) -> Plan:
        """What turns the entries of these keys into the wanted ones (None: gone), leaving all other entries alone.

        nodeport_ips: packed addresses of this node that NodePorts are to answer on; None: as they are.
        """
        plan, changes = Plan(), Changes()
        for key, new in wanted.items():
            old = self.entries.get(key)
            if (old.port if old else None) != new:
                plan.entries[key] = entry = self._change(key, old, new, plan, changes)
                self._take_turns(key, old, entry, plan, changes)
        if plan.entries:
            self._stop_counting(plan, changes)
        if nodeport_ips is not None and nodeport_ips != self._nodeport_ips:
            plan.nodeport_ips = nodeport_ips
            for address in self._nodeport_ips - nodeport_ips:
                changes.delete(self.layout.nodeport_ips, address)
            for address in nodeport_ips - self._nodeport_ips:
                changes.add(self.layout.nodeport_ips, address)
        self._settle_counts(plan, changes)
        plan.sizes = changes.sizes()
        plan.groups = {group for group in changes.groups if group not in self._groups}
        plan.operations = changes.operations(plan.groups)
        return plan

    def accept(self, plan: Plan) -> None:
        """The plan's operations are in the kernel."""
        self._seeds, self._was_counted = {}, set()
        _update(self.entries, plan.entries)
        _update(self._counts, plan.counts)
        for name, change in plan.sizes.items():
            self.sizes[name] = self.sizes.get(name, 0) + change
        self._groups |= plan.groups
        _update(self._numbers, plan.numbers)
        _update(self._turns, plan.turns)
        self._spare |= plan.spare
        if plan.nodeport_ips is not None:
            self._nodeport_ips = plan.nodeport_ips

    def is_like(self, other: Programmed) -> bool:
        """Whether both are the same table, down to numbers: what `plan` says for one of them does for both."""
        return (
            self.entries == other.entries
            and (self._turns, self._groups) == (other._turns, other._groups)
            and self._nodeport_ips == other._nodeport_ips
        )

    @property
    def chains(self) -> int:
        """How many it has besides those that are always there."""
        return len(self._groups) + len(self._turns)

    def element(self, name: str, key: bytes) -> AddElement | None:
        """The element of this key that the table holds in its set `name`; None: there is none."""
        layout = self.layout
        if fixed := layout.fixed.get((name, key)):
            return fixed
        for set_ in (layout.cluster_ips, layout.external_ips, layout.hairpins):
            if set_.name == name:
                return AddElement(set_, key) if self._counts.get((name, key)) else None
        if name == layout.nodeport_ips.name:
            return AddElement(layout.nodeport_ips, key) if key in self._nodeport_ips else None
        ports = layout.node_ports if name.startswith(layout.node_ports.prefix) else layout.addresses
        service_key = key[: sum(part.size for part in ports.key)]
        if ports is layout.node_ports:
            service_key = bytes((layout.family,)) + service_key
        entry = self.entries.get(service_key)
        if entry is None:
            return None
        for local in (False, True):
            if name == ports.turns(local).name:
                turn = (ports.prefix, local, key)
                return self._turn_element(*turn) if turn in self._turns else None
        return element(layout, entry, name, key)

    def elements(self) -> Iterator[AddElement]:
        """All that the table holds, each once. Plans may be accepted meanwhile: what is not yet given is as they made
        it, and service keys that they brought are missing."""
        for key in list(self.entries):
            yield from self.elements_of(key)
        yield from list(self.shared_elements())

    def elements_of(self, key: bytes) -> Iterator[AddElement]:
        """All that the table holds for this service key alone."""
        if entry := self.entries.get(key):
            yield from elements(self.layout, entry)
            ports = ports_of(self.layout, key)
            for local in (False, True):
                turn = (ports.prefix, local, element_key(key))
                if turn in self._turns:
                    yield self._turn_element(*turn)

    def shared_elements(self) -> Iterator[AddElement]:
        """All that the table holds for many service keys, or for none."""
        layout = self.layout
        sets = {set_.name: set_ for set_ in (layout.cluster_ips, layout.external_ips, layout.hairpins)}
        yield from (AddElement(sets[name], key) for name, key in self._counts if name)
        yield from (AddElement(layout.nodeport_ips, key) for key in self._nodeport_ips)
        yield from layout.fixed.values()

    def turn_elements(self) -> Iterator[AddElement]:
        """The elements that lead to the chains of round robin."""
        return (self._turn_element(*turn) for turn in self._turns)

    def _turn_element(self, prefix: str, local: bool, key: bytes) -> AddElement:
        ports = self.layout.node_ports if prefix else self.layout.addresses
        return AddElement(ports.turns(local), key, ports.turn(local, self._turns[prefix, local, key]).name.encode())

    def sets(self) -> Iterator[Set]:
        """All of the table's."""
        yield from self.layout.sets
        yield from (group.services for group in self._groups)

    def group_rules(self) -> Iterator[Rule]:
        """The rules that came with groups."""
        for group in self._groups:
            for _, rules in group.rules():
                yield from rules

    def turns(self) -> Collection[Turn]:
        """Who has a chain for round robin."""
        return self._turns.keys()

    def turn_rules(self, turn: Turn) -> list[Rule]:
        """What is in that chain; [] if it has none any more."""
        prefix, local, key = turn
        if turn not in self._turns:
            return []
        ports = self.layout.node_ports if prefix else self.layout.addresses
        service_key = bytes((self.layout.family,)) + key if prefix else key
        return ports.turn_rules(local, self._turns[turn], in_turn(self.entries[service_key], local))

    def _change(
        self, key: bytes, old: Entry | None, new: ServicePort | None, plan: Plan, changes: Changes
    ) -> Entry | None:
        """One service port: its endpoints, its places in the sets, the addresses it counts for."""
        ports = ports_of(self.layout, key)
        entry: Entry | None = None
        if new:
            stays = old if old and bool(old.port.timeout) == bool(new.timeout) else None
            entry = Entry(new, *self._number(new, stays, plan), self._is_counted(old, new))
        bare = element_key(key)
        was, shall = lists(ports, old), lists(ports, entry)
        for where in {**was, **shall}:
            store, first, before = was.get(where) or (shall[where][0], shall[where][1], ())
            after = shall[where][2] if where in shall else ()
            changes.renumber(store, bare, first, before, after)
        self._membership(bare, ports, old, entry, changes)
        for port, change in ((old.port if old else None, -1), (new, 1)):
            if port is not None:
                for what in self._counted(port):
                    changes.count(*what, change)
        return entry

    def _is_counted(self, old: Entry | None, new: ServicePort) -> bool:
        """For as long as it is the same service port, from its first moment without endpoints on: nothing is lost."""
        if new.is_refused:
            return True
        return old.is_counted and old.port.name == new.name if old else new.key in self._was_counted

    def _stop_counting(self, plan: Plan, changes: Changes) -> None:
        """A Service is mostly without endpoints when it is made: in the end all would be counted."""
        unused = self.unused
        for _ in range(min(len(unused), SWEPT)):
            key, entry = unused.popitem()
            if self.entries.get(key) is entry and key not in plan.entries:
                plan.entries[key] = structs.replace(entry, is_counted=False)
                changes.delete(ports_of(self.layout, key).no_endpoints, element_key(key))

    def _number(self, port: ServicePort, old: Entry | None, plan: Plan) -> tuple[Slots, Slots]:
        """Number the endpoints, all and local ones; those of one identity alike under all its keys."""
        if not port.timeout:
            slots, local = (old.slots, old.local) if old else self._seeds.get(port.key, ((), ()))
            return place(slots, port.endpoints), place(local, port.local)
        return (
            self._number_alike((port.identity, False), port.endpoints, plan),
            self._number_alike((port.identity, True), port.local, plan) if port.local_policy else (),
        )

    def _number_alike(self, which: tuple[int, bool], endpoints: tuple[bytes, ...], plan: Plan) -> Slots:
        planned = plan.numbers.get(which)
        before = self._numbers.get(which, ()) if planned is None else planned
        plan.numbers[which] = slots = place_sticky(before, endpoints)
        return slots

    def _membership(self, key: bytes, ports: Ports, old: Entry | None, new: Entry | None, changes: Changes) -> None:
        """The service port's places in sets; each carries its name."""
        was = {home: (set_, data) for home, set_, data in homes(self.layout, ports, old)} if old else {}
        shall = {home: (set_, data) for home, set_, data in homes(self.layout, ports, new)} if new else {}
        renamed = old is not None and new is not None and old.port.name != new.port.name
        for home in was:
            if home not in shall or renamed:
                changes.delete(was[home][0], key)
        for home, (set_, data) in shall.items():
            if isinstance(home, Group):
                changes.groups[home] = None
            if (home not in was or renamed) and new:
                changes.add(set_, key, data, comment=new.port.name)
        was_number = identity(old)
        if was_number != identity(new):
            if was_number:
                changes.delete(ports.affinity, key)
            if new and new.port.timeout:
                changes.add(ports.affinity, key, index(new.port.identity))
        before = (old.port.sources if old else None) or ()
        after = (new.port.sources if new else None) or ()
        for first, last in before:
            if (first, last) not in after:
                changes.delete(self.layout.allowed_sources, key + first, key + last)
        for first, last in after:
            if (first, last) not in before:
                changes.add(self.layout.allowed_sources, key + first, end=key + last)

    def _take_turns(self, key: bytes, old: Entry | None, new: Entry | None, plan: Plan, changes: Changes) -> None:
        """The chains of a service port with round robin."""
        ports = ports_of(self.layout, key)
        for local in (False, True):
            before, after = in_turn(old, local), in_turn(new, local)
            if before == after:
                continue
            turn, kind = (ports.prefix, local, element_key(key)), (ports.prefix, local)
            number = self._turns.get(turn)
            spare = plan.spare.get(kind) or self._spare.get(kind) or Spare()
            if not after and number is not None:
                changes.delete(ports.turns(local), turn[2])
                plan.turns[turn] = None
                plan.spare[kind] = Spare(spare.made, (*spare.free, number))
                continue
            if number is None:
                if spare.free:
                    number, plan.spare[kind] = spare.free[-1], Spare(spare.made, spare.free[:-1])
                else:
                    number, plan.spare[kind] = spare.made, Spare(spare.made + 1, ())
                plan.turns[turn] = number
                changes.add(ports.turns(local), turn[2], ports.turn(local, number).name.encode())
            changes.chains += [AddChain(ports.turn(local, number)), FlushChain(ports.turn(local, number))]
            changes.chains += map(AddRule, ports.turn_rules(local, number, after))

    def _counted(self, port: ServicePort) -> Iterator[tuple[str, bytes]]:
        """Elements that stand for many service ports: (set's name, key)."""
        if not is_node_port(port.key):
            where = self.layout.external_ips if port.external else self.layout.cluster_ips
            yield where.name, address_of(port.key)
        for address in port.hairpins:
            yield self.layout.hairpins.name, address * 2
        if port.timeout:
            yield "", index(port.identity)

    def _settle_counts(self, plan: Plan, changes: Changes) -> None:
        """The first service port brings the element, the last takes it away."""
        layout = self.layout
        sets = {set_.name: set_ for set_ in (layout.cluster_ips, layout.external_ips, layout.hairpins)}
        for (name, key), change in changes.counts.items():
            if not change:
                continue
            before = self._counts.get((name, key), 0)
            plan.counts[name, key] = before + change or None
            if not name:  # an identity: no element, but numbers that nobody needs when its last key goes
                if not before + change:
                    plan.numbers |= {(int.from_bytes(key, sys.byteorder), local): None for local in (False, True)}
            elif not before:
                changes.add(sets[name], key)
            elif not before + change:
                changes.delete(sets[name], key)


def scratch(family: Family, ports: Iterable[ServicePort], nodeport_ips: frozenset[bytes] = frozenset()) -> Plan:
    """What brings these service ports into an empty table."""
    return Programmed(family).plan({port.key: port for port in ports}, nodeport_ips)


def _update(current: dict[K, V], planned: Mapping[K, V | None]) -> None:
    """None: gone."""
    for key, value in planned.items():
        if value is None:
            current.pop(key, None)
        else:
            current[key] = value
