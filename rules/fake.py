"""An nftables in memory that behaves as the kernel's does, for tests without root and for thousands of histories.

Held to the kernel by the same tests (tests/test_nftables.py). A refused transaction changes nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TypeVar

from rules import expressions as e
from rules.dump import ChainState, SetState, TableState, hooked
from rules.errors import Failure, TransactionError
from rules.objects import Chain, Family, Set, Table, comment_text
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


class FakeKernel:
    """The same two methods as kernel.Kernel. Counts what it is asked to do: `transactions`, `operations`."""

    def __init__(self) -> None:
        self._tables: dict[tuple[Family, str], TableState] = {}
        self._undo: list[Callable[[], object]] = []
        self.transactions = 0
        self.operations = 0

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
                if (table.family, table.name) not in self._tables:
                    self._put(self._tables, (table.family, table.name), TableState())
            case DeleteTable(table):
                self._table(table)
                self._pop(self._tables, (table.family, table.name))
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
            return self._tables[table.family, table.name]
        except KeyError:
            raise _Refused(errno.ENOENT) from None

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

    def _put(self, where: dict[K, V], key: K, value: V) -> None:
        where[key] = value
        self._undo.append(lambda: where.pop(key))

    def _pop(self, where: dict[K, V], key: K) -> None:
        value = where.pop(key)
        self._undo.append(lambda: where.__setitem__(key, value))
