"""An nftables in memory that behaves as the kernel's does, for tests without root and for thousands of histories.

Held to the kernel by the same tests (tests/test_nftables.py). A refused transaction changes nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeVar

from rules import expressions as e
from rules.dump import ChainState, SetState, TableState, hooked
from rules.errors import Failure, TransactionError
from rules.objects import OWNER, PERSIST, Chain, Family, Set, Table, comment_text
from rules.packet_counts import Counted
from rules.transaction import (
    AddChain,
    AddElement,
    AddRule,
    AddSet,
    AddTable,
    DeleteElement,
    DeleteTable,
    FlushChain,
    Operation,
)
from rules.wire import encode, group_of

K = TypeVar("K")
V = TypeVar("V")


class _Refused(Exception):
    def __init__(self, number: int) -> None:
        self.errno = number


class FakeReader:
    """As table_reader.TableReader. It says what it knew at the start of a read, `piece` things at a time."""

    def __init__(self, kernel: FakeKernel, piece: int = 7) -> None:
        self._kernel, self._piece = kernel, piece

    def close(self) -> None:
        pass

    def table(self, table: Table) -> TableState | None:
        found = self._kernel.dump(table)
        return TableState(flags=found.flags, owner=found.owner) if found else None

    def chains(self, table: Table) -> Iterator[dict[str, ChainState]]:
        chains = self._there(table).chains
        return map(dict, self._pieces((name, ChainState(chain.hook)) for name, chain in chains.items()))

    def rules(self, table: Table, chain: str) -> list[tuple[e.Expression, ...]]:
        found = self._there(table).chains.get(chain)
        return list(found.rules) if found else []

    def sets(self, table: Table) -> Iterator[dict[str, SetState]]:
        sets = self._there(table).sets
        return map(dict, self._pieces((name, state.empty) for name, state in sets.items()))

    def elements(self, set_: Set) -> Iterator[list[tuple[bytes, tuple[bytes, str]]]]:
        if set_.name not in self._there(set_.table).sets:
            raise FileNotFoundError
        return self._pieces(self._there(set_.table).sets[set_.name].elements.items())

    def element(self, set_: Set, key: bytes) -> tuple[bytes, str] | None:
        return self._there(set_.table).sets[set_.name].elements.get(key)

    def packets(self, set_: Set) -> dict[bytes, Counted]:
        seen = self._kernel.packets
        return {
            key: (seen.get((set_, key), 0), comment) for piece in self.elements(set_) for key, (_, comment) in piece
        }

    def _there(self, table: Table) -> TableState:
        if found := self._kernel.dump(table):
            return found
        raise FileNotFoundError

    def _pieces(self, values: Iterable[V]) -> Iterator[list[V]]:
        values = list(values)
        return (values[i : i + self._piece] for i in range(0, len(values), self._piece))


class FakeKernel:
    """The same methods as kernel.Kernel, and after `close` the next socket. Counts what it is asked to do:
    `transactions`, `operations`. can_own: whether it is one that has PERSIST."""

    can_own = True

    def __init__(self) -> None:
        self.port = 1
        self._tables: dict[tuple[Family, str], TableState] = {}
        self._undo: list[Callable[[], object]] = []
        self.transactions = 0
        self.operations = 0
        self.packets: dict[tuple[Set, bytes], int] = {}
        """What elements of sets that count have counted: for who plays the packets."""

    def commit(self, operations: Sequence[Operation]) -> int:
        """As Kernel.commit: all or nothing, TransactionError, the number of bytes it would have sent."""
        if not operations:
            return 0
        size = len(encode(operations).data)
        self._undo = []
        failures = list(self._apply(operations))
        if failures:
            for undo in reversed(self._undo):
                undo()
            raise TransactionError(tuple(failures))
        self.transactions += 1
        self.operations += len(operations)
        return size

    def dump(self, table: Table, *, settled: bool = False) -> TableState | None:
        """As Kernel.dump. The fake's own state: do not change it."""
        return self._tables.get((table.family, table.name))

    def close(self) -> None:
        """The socket is closed, and what it owned has no owner."""
        for name, table in list(self._tables.items()):
            if table.owner == self.port:
                if table.flags & PERSIST:
                    table.owner, table.flags = 0, table.flags & ~OWNER
                else:
                    del self._tables[name]
        self.port += 1

    def _apply(self, operations: Sequence[Operation]) -> Iterator[Failure]:
        """Like the kernel: go on after a failure, but not within one message."""
        for _, group in groupby(operations, group_of):
            for operation in group:
                try:
                    self._one(operation)
                except _Refused as refused:
                    yield Failure(operation, refused.errno)
                    if isinstance(operation, AddElement | DeleteElement):
                        break

    def _one(self, operation: Operation) -> None:
        match operation:
            case AddTable(table):
                self._add_table(table)
            case DeleteTable(table):
                self._table(table)
                self._pop(self._tables, (table.family, table.name))
                self._forget_packets([one for one in self.packets if one[0].table == table])
            case AddChain(chain):
                chains = self._table(chain.table).chains
                if chain.name not in chains:
                    self._put(chains, chain.name, ChainState(hooked(chain)))
            case FlushChain(chain):
                state = self._chain(chain)
                rules = state.rules
                self._undo.append(lambda: setattr(state, "rules", rules))
                state.rules = []
            case AddSet(set_):
                self._add_set(set_)
            case AddRule(rule):
                self._check(rule.chain, rule.expressions)
                rules = self._chain(rule.chain).rules
                rules.append(rule.expressions)
                self._undo.append(rules.pop)
            case AddElement():
                self._add_element(operation)
            case DeleteElement():
                elements = self._set(operation.set).elements
                if operation.key not in elements:
                    raise _Refused(errno.ENOENT)
                self._pop(elements, operation.key)
                self._forget_packets([(operation.set, operation.key)])

    def _add_table(self, table: Table) -> None:
        if table.flags & PERSIST and not self.can_own:
            raise _Refused(errno.EOPNOTSUPP)
        owner = self.port if table.flags & OWNER else 0
        if (table.family, table.name) not in self._tables:
            self._put(self._tables, (table.family, table.name), TableState(flags=table.flags, owner=owner))
            return
        there = self._table(table)
        flags = there.flags
        if table.flags in (0, flags):
            return
        if flags & OWNER or (flags ^ table.flags) & PERSIST or (owner and flags != PERSIST):
            raise _Refused(errno.EOPNOTSUPP)
        self._undo += [lambda: setattr(there, "flags", flags), lambda: setattr(there, "owner", 0)]
        there.flags, there.owner = table.flags, owner

    def _add_set(self, set_: Set) -> None:
        sets = self._table(set_.table).sets
        new = SetState.of(set_)
        old = sets.get(set_.name)
        if old is None:
            self._put(sets, set_.name, new)
        elif (old.type, old.data_type) != (new.type, new.data_type):
            raise _Refused(errno.EEXIST)

    def _add_element(self, operation: AddElement) -> None:
        elements = self._set(operation.set).elements
        if operation.set.verdict and operation.data.decode() not in self._table(operation.set.table).chains:
            raise _Refused(errno.ENOENT)
        old = elements.get(operation.key)
        data = operation.data or operation.end
        if old is None:
            self._put(elements, operation.key, (data, comment_text(operation.comment)))
        elif old[0] != data:
            raise _Refused(errno.EEXIST)

    def _check(self, chain: Chain, expressions: Sequence[e.Expression]) -> None:
        """What the kernel looks up when it takes a rule."""
        table = self._table(chain.table)
        for expression in expressions:
            match expression:
                case e.Lookup():
                    if expression.set not in table.sets:
                        raise _Refused(errno.ENOENT)
                case e.Immediate((_, target)) if target:
                    if target not in table.chains:
                        raise _Refused(errno.ENOENT)
                    if table.chains[target].hook:
                        raise _Refused(errno.EOPNOTSUPP)

    def _table(self, table: Table) -> TableState:
        try:
            found = self._tables[table.family, table.name]
        except KeyError:
            raise _Refused(errno.ENOENT) from None
        if found.owner not in (0, self.port):
            raise _Refused(errno.EPERM)
        return found

    def _chain(self, chain: Chain) -> ChainState:
        try:
            return self._table(chain.table).chains[chain.name]
        except KeyError:
            raise _Refused(errno.ENOENT) from None

    def _set(self, set_: Set) -> SetState:
        try:
            return self._table(set_.table).sets[set_.name]
        except KeyError:
            raise _Refused(errno.ENOENT) from None

    def _forget_packets(self, counted: Iterable[tuple[Set, bytes]]) -> None:
        for one in counted:
            if one in self.packets:
                self._pop(self.packets, one)

    def _put(self, where: dict[K, V], key: K, value: V) -> None:
        where[key] = value
        self._undo.append(lambda: where.pop(key))

    def _pop(self, where: dict[K, V], key: K) -> None:
        value = where.pop(key)
        self._undo.append(lambda: where.__setitem__(key, value))
