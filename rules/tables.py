"""Operations about a whole table: build it, put it in the place of another, take it away. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rules.layout import Layout, Network, Options
from rules.objects import OWNED, Table
from rules.transaction import AddChain, AddRule, AddSet, AddTable, DeleteTable, FlushChain, Operation


def remove(layout: Layout) -> list[Operation]:
    """Make the family's table go, whether it is there or not."""
    return delete(layout.table)


def delete(table: Table) -> list[Operation]:
    """Make a table go, whether it is there or not."""
    return [AddTable(table), DeleteTable(table)]


def own(layout: Layout) -> AddTable:
    """Make the table, or one that has lost its owner, the property of the socket that commits this (Linux 6.9).

    A table that never had one cannot get one: EOPNOTSUPP."""
    return AddTable(dataclasses.replace(layout.table, flags=OWNED))


def place(layout: Layout, *, owned: bool = False) -> list[Operation]:
    """An empty table in the place of whatever is there under its name. owned: by the socket that commits this."""
    return [*remove(layout), own(layout) if owned else AddTable(layout.table)]


def replace(
    layout: Layout, options: Options, service_cidrs: Iterable[Network], *, owned: bool = False
) -> list[Operation]:
    """Put the family's table in the place of whatever is there under its name: all chains and rules, and the elements
    that are always there."""
    return [*remove(layout), *create(layout, options, service_cidrs, owned=owned)]


def create(
    layout: Layout, options: Options, service_cidrs: Iterable[Network], *, owned: bool = False
) -> list[Operation]:
    """The family's table with all its chains and rules, and the elements that are always there. owned: by the socket
    that commits this."""
    operations: list[Operation] = [own(layout) if owned else AddTable(layout.table), *map(AddSet, layout.sets)]
    chains = list(layout.rules(options, service_cidrs))
    operations += [AddChain(chain) for chain, _ in chains]
    operations += [AddRule(rule) for _, rules in chains for rule in rules]
    return [*operations, *layout.fixed.values()]


def change_service_cidrs(layout: Layout, service_cidrs: Iterable[Network]) -> list[Operation]:
    """Let the drops of unallocated addresses be these, and no others."""
    return [FlushChain(layout.unallocated), *map(AddRule, layout.unallocated_rules(service_cidrs))]


def change_local(layout: Layout, options: Options) -> list[Operation]:
    """Let local pods be known as these options say. (The other options cannot change.)"""
    operations: list[Operation] = []
    for chain, rules in layout.local_rules(options):
        operations += [FlushChain(chain), *map(AddRule, rules)]
    return operations
