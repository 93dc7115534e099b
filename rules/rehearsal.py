"""What the kernel would say to a transaction, without doing it.

A batch with one message that is refused is undone as a whole (nfnetlink_rcv_batch, nf_tables_abort): nobody is told of
it, the ruleset's generation stays, and no packet sees any of it. Every other message has been checked as if it counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from rules.errors import TransactionError
from rules.objects import Family, Table
from rules.transaction import DeleteTable, Operation

IMPOSSIBLE: Final = DeleteTable(Table(Family.IPV4, "x" * 256))
"""Refused whatever there is: a table's name has 255 bytes at most."""


class Kernel(Protocol):
    """What is needed of rules.kernel.Kernel."""

    def commit(self, operations: Sequence[Operation]) -> int: ...


def rehearse(kernel: Kernel, operations: Sequence[Operation]) -> TransactionError | None:
    """What is wrong with the operations; None: the kernel would take them. Costs one RCU grace period, 5 to 30 ms of
    waiting, as every refused transaction does."""
    try:
        kernel.commit([*operations, IMPOSSIBLE])
    except TransactionError as error:
        others = tuple(failure for failure in error.failures if failure.operation != IMPOSSIBLE)
        return TransactionError(others) if others else None
    raise AssertionError("the kernel has deleted a table whose name is too long to exist")
