"""Whether this kernel has all that our tables are made of, found by trying each of it on its own.

Nothing is committed, and nothing depends on what the kernel says about itself: distributions bring features to kernels
older than those that first had them, and leave out modules of newer ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from msgspec import Struct

from rules import expressions as e
from rules.layout import LAYOUTS, Layout
from rules.objects import OUTPUT, POSTROUTING, PREROUTING, Chain, Family, Rule, Set, Statement, Table
from rules.rehearsal import Kernel, rehearse
from rules.service_ports import tickets_of
from rules.statements.marks import Mark, SetMark
from rules.statements.matches import FromInterface, FromThisNode, InSet, IsDestinationNatted
from rules.statements.nat import DnatByIndex, DnatBySource, Masquerade
from rules.statements.priority import ShowMapped, ShowsNumber
from rules.statements.tickets import DropTicket, HoldTicket
from rules.statements.verdicts import GoToMapped, Refuse, RefuseTcp
from rules.transaction import AddChain, AddElement, AddRule, AddSet, AddTable, Operation

OLDEST: Final = (5, 13)
NAME: Final = "kube-proxy-nft-probe"
CORE: Final = "CONFIG_NF_TABLES"


class Missing(Struct, frozen=True):
    """Something that this kernel does not have. what: for people. option: what brings it. errno: what the kernel
    said."""

    what: str
    family: Family
    option: str
    errno: int


class Only(Struct, frozen=True):
    """One expression as a statement, behind what fills every register that it may read."""

    expression: e.Expression

    def text(self, family: Family) -> str:
        return self.expression.NAME

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (*(e.Immediate(bytes(16), register) for register in (1, 2, 3, 4)), self.expression)


def is_too_old(release: str) -> bool:
    """release: as uname gives it. False if it cannot be read: then trying will tell."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) < OLDEST


def probe(kernel: Kernel, families: Collection[Family]) -> list[Missing]:
    """What the kernel lacks, each once. Raises TransactionError if it does not even look: no permission, no
    nf_tables."""
    tried = {family: list(features(LAYOUTS[family])) for family in families}
    error = rehearse(kernel, [operation for mine in tried.values() for operation, _, _ in mine])
    if error is None:
        return []
    if any(failure.operation is None for failure in error.failures):
        raise error
    refused = {id(failure.operation): failure.errno for failure in error.failures}
    missing: dict[Missing, None] = {}
    for family, mine in tried.items():
        kinds: set[type[Operation]] = set()
        for operation, what, option in mine:
            if id(operation) in refused and not _is_consequence(operation, kinds):
                kinds.add(type(operation))
                missing[Missing(what, family, option, refused[id(operation)])] = None
    return list(missing)


def _is_consequence(operation: Operation, refused: set[type[Operation]]) -> bool:
    """Whether it could not but be refused, because of what was refused before."""
    if AddTable in refused:
        return True
    needs_set = isinstance(operation, AddElement) or (
        isinstance(operation, AddRule)
        and any(isinstance(expression, e.Lookup | e.DynamicSet) for expression in operation.rule.expressions)
    )
    return needs_set and AddSet in refused


def features(layout: Layout) -> Iterator[tuple[Operation, str, str]]:
    """What is tried: (operation, name for people, kernel option)."""
    number = "4" if layout.family is Family.IPV4 else "6"
    table = Table(layout.family, NAME)
    yield AddTable(table), "tables", f"CONFIG_NF_TABLES_IPV{number}"
    chain = Chain(table, "plain")
    yield AddChain(chain), "chains", CORE
    for hook in (PREROUTING, OUTPUT, POSTROUTING):
        yield AddChain(Chain(table, hook.name, hook)), f"nat chains at {hook.name}", "CONFIG_NFT_NAT"
    for set_, what in sets(layout):
        option = e.Counter.KERNEL_OPTION if set_.counts else CORE
        yield AddSet(replace(set_, table=table)), what, option
    turns = replace(layout.addresses.turns(False), table=table)
    yield AddElement(turns, bytes(turns.key_size), chain.name.encode()), "elements that lead to a chain", CORE
    sources = replace(layout.allowed_sources, table=table)
    first, last = bytes(sources.key_size), bytes(sources.key_size - 1) + b"\1"
    yield AddElement(sources, first, end=last), "elements that are ranges", CORE
    for expression in expressions(layout):
        options = expression.KERNEL_OPTION.split(" and ")  # of some there is one for each family
        option = next(option for option in options if len(options) == 1 or option.endswith(number))
        what = f"expression '{expression.NAME}'"
        if isinstance(expression, e.Conntrack) and expression.key == e.Conntrack.MARK:
            what, option = f"{what} for marks", "CONFIG_NF_CONNTRACK_MARK"
        yield AddRule(Rule(chain, (Only(expression),))), what, option


def sets(layout: Layout) -> list[tuple[Set, str]]:
    """One of each kind that our tables have, with its name."""
    return [
        (layout.cluster_ips, "sets"),
        (layout.guarded, "sets of concatenations"),
        (layout.allowed_sources, "sets of ranges of concatenations"),
        (layout.addresses.no_endpoints, "sets whose elements count"),
        (layout.addresses.endpoints, "maps of concatenations"),
        (layout.addresses.turns(False), "maps of verdicts by concatenations"),
        (layout.addresses.by_number(False), "maps of verdicts"),
        (tickets_of(layout.table, False), "maps that packets change, with timeouts"),
    ]


def expressions(layout: Layout) -> list[e.Expression]:
    """One of each kind that our tables may have: see `kind`."""
    ports, tickets = layout.addresses, tickets_of(layout.table, False)
    statements: list[Statement] = [
        FromThisNode(),
        FromInterface("lo"),
        IsDestinationNatted(),
        SetMark(1),
        SetMark(1, Mark.CONNECTION),
        InSet(layout.allowed_sources),
        GoToMapped(ports.turns(False)),
        DnatByIndex(ports.endpoints, 2),
        DnatByIndex(ports.endpoints, 2, in_turn=True),
        DnatBySource(ports.endpoints, 2, 0, 1),
        ShowMapped(tickets),
        ShowsNumber(0),
        ShowsNumber(0, negate=True),
        HoldTicket(tickets, 2, 0, 60),
        DropTicket(tickets),
        RefuseTcp(),
        Refuse(),
        Masquerade(),
    ]
    found: dict[tuple[object, ...], e.Expression] = {}
    for statement in statements:
        for expression in statement.expressions(layout.family):
            found.setdefault(kind(expression), expression)
    return list(found.values())


def kind(expression: e.Expression) -> tuple[object, ...]:
    """The same for expressions that a kernel has all of, or none."""
    modes = [getattr(expression, name, None) for name in ("type", "result")]
    match expression:
        case e.Meta():
            modes = [expression.key, expression.source is None]
        case e.Conntrack():
            modes = [expression.key, expression.source is None]
        case e.DynamicSet():
            modes = [expression.op]
    return expression.NAME, *modes
