"""What can go wrong between us and the kernel, classified once."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from rules.text import concatenation
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


def describe(operation: Operation) -> str:
    """The operation and the object that it is about, for people."""
    match operation:
        case AddTable(table) | DeleteTable(table):
            what = f"table {table.family.nft} {table.name}"
        case AddChain(chain) | FlushChain(chain):
            what = f"chain {chain.table.family.nft} {chain.table.name} {chain.name}"
        case AddSet(set_):
            what = (
                f"{'map' if set_.data or set_.verdict else 'set'} {set_.table.family.nft} {set_.table.name} {set_.name}"
            )
        case AddRule(rule):
            family = rule.chain.table.family
            text = " ".join(statement.text(family) for statement in rule.statements)
            what = f"rule '{text}' in chain {family.nft} {rule.chain.table.name} {rule.chain.name}"
        case AddElement() | DeleteElement():
            set_ = operation.set
            key = concatenation(set_.key, operation.key, operation.end)
            what = f"element {key} of {set_.table.family.nft} {set_.table.name} {set_.name}"
            if isinstance(operation, AddElement) and operation.comment:
                what += f" ({operation.comment})"
    verb = type(operation).__name__
    verb = "add" if verb.startswith("Add") else "delete" if verb.startswith("Delete") else "flush"
    return f"{verb} {what}"


@dataclass(frozen=True, slots=True)
class Failure:
    """One operation that the kernel refused. `operation` None: the transaction as a whole.

    detail: what the refusal is about if the kernel says it (the name of an expression that it does not have).
    """

    operation: Operation | None
    errno: int
    detail: str = ""

    def __str__(self) -> str:
        what = describe(self.operation) if self.operation else "the transaction"
        return f"{what}: {os.strerror(self.errno)}" + (f" ({self.detail})" if self.detail else "")


class TransactionError(Exception):
    """The kernel refused the transaction; nothing of it was applied. `failures` has at least one entry."""

    def __init__(self, failures: tuple[Failure, ...]) -> None:
        self.failures = failures
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        super().__init__(f"{failures[0]}{more}")

    @property
    def is_not_permitted(self) -> bool:
        """CAP_NET_ADMIN in the network namespace's user namespace is missing."""
        return any(f.errno in (errno.EPERM, errno.EACCES) for f in self.failures)

    @property
    def missing_expressions(self) -> tuple[str, ...]:
        """Names of expressions that this kernel does not have."""
        return tuple(dict.fromkeys(f.detail for f in self.failures if f.detail and f.errno == errno.ENOENT))


class KernelUnreachable(Exception):
    """There is no netlink socket to nftables: no permission, or no nf_tables in this kernel. `errno` says which."""

    def __init__(self, number: int, what: str) -> None:
        self.errno = number
        super().__init__(f"{what}: {os.strerror(number)}")
