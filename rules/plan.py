"""What a change is to do to a family's table: its operations, and what they make of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rules.elements import index
from rules.entry import Entry
from rules.groups import Group
from rules.numbering import Slots
from rules.objects import Set
from rules.past import Spare, Turn
from rules.transaction import AddChain, AddElement, AddRule, AddSet, DeleteElement, Operation


@dataclass(slots=True)
class Plan:
    """operations: what makes new groups, then deletes, then adds, so that a key may go and come back.

    The rest is what `accept` writes down: key -> what it will be.
    """

    operations: list[Operation] = field(default_factory=list)
    entries: dict[bytes, Entry | None] = field(default_factory=dict)
    counts: dict[tuple[str, bytes], int | None] = field(default_factory=dict)
    groups: set[Group] = field(default_factory=set)
    numbers: dict[tuple[int, bool], Slots | None] = field(default_factory=dict)
    turns: dict[Turn, int | None] = field(default_factory=dict)
    spare: dict[tuple[str, bool], Spare] = field(default_factory=dict)
    nodeport_ips: frozenset[bytes] | None = None
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Changes:
    """Operations gathered by set, so that those of one set travel in one message.

    groups: those that are needed, in the order of their first need. counts: how many more (or fewer) service ports an
    element stands for, by its set's name and its key."""

    groups: dict[Group, None] = field(default_factory=dict)
    chains: list[Operation] = field(default_factory=list)
    deletes: dict[str, list[Operation]] = field(default_factory=dict)
    adds: dict[str, list[Operation]] = field(default_factory=dict)
    counts: dict[tuple[str, bytes], int] = field(default_factory=dict)

    def add(self, set_: Set, key: bytes, data: bytes = b"", comment: str = "", end: bytes = b"") -> None:
        self.adds.setdefault(set_.name, []).append(AddElement(set_, key, data, comment, end))

    def delete(self, set_: Set, key: bytes, end: bytes = b"") -> None:
        self.deletes.setdefault(set_.name, []).append(DeleteElement(set_, key, end))

    def count(self, name: str, what: bytes, change: int) -> None:
        self.counts[name, what] = self.counts.get((name, what), 0) + change

    def renumber(self, store: Set, key: bytes, first: int, before: Slots, after: Slots) -> None:
        """The elements of one list: endpoints by number, from `first` on, under one service port's key."""
        if before == after:
            return
        if not before:  # a new service port, the bulk of a first load
            self.adds.setdefault(store.name, []).extend(
                [AddElement(store, key + index(first + i), e) for i, e in enumerate(after) if e is not None]
            )
            return
        for i, endpoint in enumerate(before):
            if endpoint is not None and (i >= len(after) or after[i] != endpoint):
                self.delete(store, key + index(first + i))
        for i, endpoint in enumerate(after):
            if endpoint is not None and (i >= len(before) or before[i] != endpoint):
                self.add(store, key + index(first + i), endpoint)

    def sizes(self) -> dict[str, int]:
        """By how many elements each set grows."""
        return {
            name: len(self.adds.get(name, ())) - len(self.deletes.get(name, ()))
            for name in {**self.adds, **self.deletes}
        }

    def operations(self, new: Iterable[Group]) -> list[Operation]:
        """In the order in which they are to be done. new: those of `groups` that are not there yet."""
        return [
            *(operation for group in new for operation in _make(group)),
            *self.chains,
            *(operation for operations in self.deletes.values() for operation in operations),
            *(operation for operations in self.adds.values() for operation in operations),
        ]


def _make(group: Group) -> Iterator[Operation]:
    """The group's set and chain, and the rule that leads to it."""
    yield AddSet(group.services)
    (chain, rules), (_, [entrance]) = group.rules()
    yield AddChain(chain)
    yield from map(AddRule, rules)
    yield AddRule(entrance)
