"""Programmed service ports against wanted ones: the operations in between. Pure.

`Programmed` is what the kernel holds after the last acknowledged transaction. `plan` says what would bring it to new
service ports and changes nothing; `accept` takes the plan as done. Work and operations grow with what changed and with
the endpoints of the service ports that changed, never with what else there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from rules.elements import ServicePort, index
from rules.layout import LAYOUTS, Layout, band
from rules.objects import Family, Set
from rules.transaction import AddElement, DeleteElement, Operation

T = TypeVar("T")


@dataclass(slots=True)
class Plan:
    """operations: deletes first, then adds, so that a key may go and come back. `entries`: key -> what it will be."""

    operations: list[Operation] = field(default_factory=list)
    entries: dict[bytes, ServicePort | None] = field(default_factory=dict)
    addresses: dict[bytes, int] = field(default_factory=dict)
    hairpins: dict[bytes, int] = field(default_factory=dict)


class _Changes:
    """Operations gathered by set, so that those of one set travel in one message."""

    def __init__(self) -> None:
        self._deletes: dict[str, list[Operation]] = {}
        self._adds: dict[str, list[Operation]] = {}

    def adds(self, set_: Set) -> list[Operation]:
        return self._adds.setdefault(set_.name, [])

    def add(self, set_: Set, key: bytes, data: bytes = b"", comment: str = "") -> None:
        self._adds.setdefault(set_.name, []).append(AddElement(set_, key, data, comment))

    def delete(self, set_: Set, key: bytes) -> None:
        self._deletes.setdefault(set_.name, []).append(DeleteElement(set_, key))

    def operations(self) -> list[Operation]:
        return [o for by_set in (self._deletes, self._adds) for operations in by_set.values() for o in operations]


class Programmed:
    """What one family's table holds, apart from the chains."""

    def __init__(self, family: Family) -> None:
        self.layout: Layout = LAYOUTS[family]
        self.entries: dict[bytes, ServicePort] = {}
        self._addresses: dict[bytes, int] = {}
        self._hairpins: dict[bytes, int] = {}

    def plan(self, wanted: Mapping[bytes, ServicePort | None]) -> Plan:
        """What turns the entries of these keys into the wanted ones (None: gone), leaving all other entries alone."""
        plan = Plan()
        changes = _Changes()
        addresses: dict[bytes, int] = {}
        hairpins: dict[bytes, int] = {}
        for key, new in wanted.items():
            old = self.entries.get(key)
            if old is new or old == new:
                continue
            if old is None or new is None:
                address = key[:-8]
                addresses[address] = addresses.get(address, 0) + (1 if new else -1)
            before, after = old.endpoints if old else (), new.endpoints if new else ()
            if before != after:
                after = place(before, after)
                self._endpoints(key, before, after, changes)
                if new and after != new.endpoints:
                    new = ServicePort(key, new.name, after, new.hairpins, new.drop)
            self._membership(key, old, new, changes)
            if old:
                for address in old.hairpins:
                    hairpins[address] = hairpins.get(address, 0) - 1
            if new:
                for address in new.hairpins:
                    hairpins[address] = hairpins.get(address, 0) + 1
            plan.entries[key] = new
        layout = self.layout
        for address, change in addresses.items():
            _count(self._addresses, plan.addresses, address, change, changes, layout.cluster_ips, address)
        for address, change in hairpins.items():
            _count(self._hairpins, plan.hairpins, address, change, changes, layout.hairpins, address * 2)
        plan.operations = changes.operations()
        return plan

    def accept(self, plan: Plan) -> None:
        """The plan's operations are in the kernel."""
        _update(self.entries, plan.entries)
        _update(self._addresses, plan.addresses)
        _update(self._hairpins, plan.hairpins)

    def _endpoints(self, key: bytes, before: tuple[bytes, ...], after: tuple[bytes, ...], changes: _Changes) -> None:
        endpoints = self.layout.endpoints
        if not before:  # a new service port, the bulk of a first load
            changes.adds(endpoints).extend(
                [AddElement(endpoints, key + index(i), data) for i, data in enumerate(after)]
            )
            return
        for i, data in enumerate(before):
            if i >= len(after) or after[i] != data:
                changes.delete(endpoints, key + index(i))
        for i, data in enumerate(after):
            if i >= len(before) or before[i] != data:
                changes.add(endpoints, key + index(i), data)

    def _membership(self, key: bytes, old: ServicePort | None, new: ServicePort | None, changes: _Changes) -> None:
        """The service port's one element in `services-…` or `dropped`; it carries the name as comment."""
        was, shall = self._home(old), self._home(new)
        if was is shall and (not was or (old and new and old.name == new.name)):
            return
        if was:
            changes.delete(was, key)
        if shall and new:
            changes.add(shall, key, comment=new.name)

    def _home(self, port: ServicePort | None) -> Set | None:
        """The set that this service port is in; none: it is refused as a port that no Service has."""
        if port is None:
            return None
        if port.endpoints:
            return self.layout.services[band(len(port.endpoints))]
        return self.layout.dropped if port.drop else None


def place(before: tuple[bytes, ...], after: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The endpoints of `after`, numbered so that as few as possible of `before` change their number.

    New ones take the places of those that go; what is still a gap then is filled from the end. No gaps: 0..N-1.
    """
    if not before or not after:
        return after
    staying = set(after)
    known = set(before)
    placed: list[bytes | None] = [endpoint if endpoint in staying else None for endpoint in before]
    fresh = [endpoint for endpoint in after if endpoint not in known]
    fresh.reverse()
    for i, endpoint in enumerate(placed):
        if endpoint is None and fresh:
            placed[i] = fresh.pop()
    result: list[bytes] = []
    i = 0
    while i < len(placed):
        endpoint = placed[i]
        while endpoint is None and len(placed) > i + 1:
            endpoint = placed.pop()
        if endpoint is not None:
            result.append(endpoint)
        i += 1
    fresh.reverse()
    return (*result, *fresh)


def _count(
    current: Mapping[bytes, int],
    planned: dict[bytes, int],
    what: bytes,
    change: int,
    changes: _Changes,
    where: Set,
    key: bytes,
) -> None:
    """Some elements stand for many service ports: the first brings it, the last takes it away."""
    if not change:
        return
    before = current.get(what, 0)
    planned[what] = before + change
    if not before:
        changes.add(where, key)
    elif not before + change:
        changes.delete(where, key)


def _update(current: dict[bytes, T], planned: Mapping[bytes, T | None]) -> None:
    for key, value in planned.items():
        if value:
            current[key] = value
        else:
            current.pop(key, None)


def scratch(family: Family, ports: Iterable[ServicePort]) -> Plan:
    """What brings these service ports into an empty table."""
    return Programmed(family).plan({port.key: port for port in ports})
