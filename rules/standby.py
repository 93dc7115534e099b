"""A second table beside ours, with the same content, for kernels whose tables do not outlive their owner. Pure.

It has an owner (Linux 5.12): nobody else can change it, and it goes with the owner's socket. A nat chain sees the first
packet of a connection that no chain before it has translated. So the standby is asked

- before our table, for all that needs no memory: what others do to our table is not even noticed;
- after it, for the rest. Clients with session affinity hold tickets, and packets that are refused are counted, in the
  table that outlives an agent, so these go on to it; they come back here when somebody has flushed or deleted it.

After it alone would not do: while the kernel takes a table away, its chains go on for a millisecond or two after its
maps are empty, and refuse (nf_tables_commit: a deleted base chain keeps its rules until its hook is unregistered).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from rules.contents import Contents
from rules.endpoint_numbers import TICKET, TICKET_MASK
from rules.layout import LAYOUTS, TABLE_NAME, Layout
from rules.objects import OUTPUT, OWNER, POSTROUTING, PREROUTING, Chain, Family, Hook, Rule, Set, Statements, Table
from rules.statements.matches import InSet
from rules.statements.priority import ShowMapped, ShowNumber, ShowsTicket
from rules.statements.verdicts import go_back, goto, jump
from rules.tables import delete
from rules.transaction import (
    AddChain,
    AddElement,
    AddRule,
    AddSet,
    AddTable,
    DeleteElement,
    FlushChain,
    Operation,
)

NAME: Final = f"{TABLE_NAME}-standby"
COMMENT: Final = f"the same as {TABLE_NAME}, for when that is gone; do not edit"
FIRST, BEHIND, LAST = -1, 1, 2
"""How much later than ours its base chains are: those that come before ours, behind it, and at the end."""


def table(family: Family) -> Table:
    """The standby."""
    return Table(family, NAME, COMMENT)


def remove(family: Family) -> list[Operation]:
    """Make one go that nobody owns, or that the socket owns that commits this; whether there is one or not."""
    return delete(table(family))


def create(family: Family) -> list[Operation]:
    """An empty one, which belongs to the socket that commits this, in the place of one that nobody owns."""
    return [*remove(family), AddTable(replace(table(family), flags=OWNER))]


class Mirror:
    """What operations about our tables are when they are to do the same to the standby. One object may be used for
    ever: what it remembers is as much as there are sets and chains."""

    def __init__(self) -> None:
        self._sets: dict[Set, Set] = {}
        self._chains: dict[Chain, Chain] = {}

    def follow(self, operations: Iterable[Operation]) -> list[Operation]:
        """Of a change to our tables. Raises TypeError for what makes or deletes a whole table: see `create`."""
        done: list[Operation] = []
        last: Set | None = None  # elements of one set come one after the other: not a look-up for each
        its: Set | None = None
        for operation in operations:
            if isinstance(operation, AddElement | DeleteElement):
                if its is None or operation.set is not last:
                    last, its = operation.set, self._set(operation.set)
                if isinstance(operation, AddElement):
                    done.append(AddElement(its, operation.key, operation.data, operation.comment, operation.end))
                else:
                    done.append(DeleteElement(its, operation.key, operation.end))
            else:
                done.append(self._standing(operation))
        return done

    def contents(self, there: Contents) -> Contents:
        """The same for the standby. To be committed after `create`."""
        layout = LAYOUTS[there.family]
        silent = {ports.refuse.name for ports in (layout.addresses, layout.node_ports)}
        pieces = (
            self.follow(op for op in piece if not (isinstance(op, AddRule) and op.rule.chain.name in silent))
            for piece in there.pieces
        )
        return Contents(there.family, pieces, [*self.follow(there.entrance), *_more(layout)])

    def _standing(self, operation: Operation) -> Operation:
        match operation:
            case AddChain(chain):
                return AddChain(self._chain(chain))
            case FlushChain(chain):
                return FlushChain(self._chain(chain))
            case AddSet(set_):
                return AddSet(self._set(set_))
            case AddRule(rule):  # what its statements say of sets is their names
                return AddRule(Rule(self._chain(rule.chain), rule.statements, rule.comment))
        raise TypeError(f"{operation} is about a whole table")

    def _set(self, set_: Set) -> Set:
        if (found := self._sets.get(set_)) is None:
            found = self._sets[set_] = replace(set_, table=table(set_.table.family))
        return found

    def _chain(self, chain: Chain) -> Chain:
        if (found := self._chains.get(chain)) is None:
            hook = chain.hook and _moved(chain.hook, FIRST if chain.hook == POSTROUTING else BEHIND)
            found = self._chains[chain] = replace(chain, table=table(chain.table.family), hook=hook)
        return found


def _more(layout: Layout) -> Iterator[Operation]:
    """What it does not refuse goes on as it came. And the base chains that have no counterpart in our table: what comes
    before it, but for what needs a memory; and what refuses in its place, for all who were led nowhere."""
    for ports in (layout.addresses, layout.node_ports):
        refuse = replace(ports.refuse, table=table(layout.family))
        yield AddRule(Rule(refuse, (ShowsTicket(TICKET_MASK, TICKET), ShowNumber(0))))
    addresses, node_ports, here = layout.addresses, layout.node_ports, InSet(layout.nodeport_ips)
    first: list[Statements] = [
        layout.short_way,
        (ShowMapped(addresses.affinity), go_back()),
        (here, ShowMapped(node_ports.affinity), go_back()),
        (jump("services"),),
    ]
    last: list[Statements] = [(InSet(layout.cluster_ips), goto("refuse"))]
    last += [(InSet(gate), goto("refuse")) for gate in (addresses.external, addresses.external_local)]
    last += [(here, InSet(gate), goto("refuse")) for gate in (node_ports.external, node_ports.external_local)]
    for hook in (PREROUTING, OUTPUT):
        for name, by, rules in (("first", FIRST, first), ("last", LAST, last)):
            chain = Chain(table(layout.family), f"{hook.name}-{name}", _moved(hook, by))
            yield AddChain(chain)
            yield from (AddRule(Rule(chain, statements)) for statements in rules)


def _moved(hook: Hook, by: int) -> Hook:
    return replace(hook, priority=hook.priority + by)
