"""What the kernel says to our tables: all of them are loaded into a throw-away network namespace."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from proxy.migrate.report import Proof
from proxy.migrate.sandbox import NotAllowed, Sandbox
from proxy.unread import Unread
from rules.errors import TransactionError
from rules.objects import Family, Set
from rules.probe import probe
from rules.transaction import AddElement, AddSet, Operation

SHOWN: Final = 5
"""Refused objects that are named."""
_REMEDY: Final = "run it as root, or where user namespaces are allowed"


def prove(operations: Sequence[Operation], make: Callable[[], Sandbox] = Sandbox) -> Proof:
    """operations: our tables from nothing (rules.tables.create, rules.diff.scratch). Raises nothing."""
    kernel = os.uname().release
    if not operations:
        return Proof("not-tried", "there is nothing to load", kernel)
    try:
        with make() as sandbox:
            began = time.perf_counter()
            try:
                sandbox.commit(operations)
            except TransactionError as error:
                if all(failure.errno in (errno.EPERM, errno.EACCES) for failure in error.failures):
                    return Proof("not-tried", f"{_failures(error)} ({_REMEDY})", kernel)
                return Proof("refused", _failures(error), kernel, 0, sandbox.sent, _since(began))
            milliseconds = _since(began)
            elements = _count(sandbox, operations)
            detail = sandbox.how + (f", {sandbox.parts} transactions" if sandbox.parts > 1 else "")
            wanted = sum(isinstance(operation, AddElement) for operation in operations)
            if elements != wanted:
                what = f"of {wanted} elements {elements} are there"
                return Proof("refused", what, kernel, elements, sandbox.sent, milliseconds)
            return Proof("accepted", detail, kernel, elements, sandbox.sent, milliseconds)
    except NotAllowed as error:
        return Proof("not-tried", str(error), kernel)


def missing_features(make: Callable[[], Sandbox] = Sandbox) -> tuple[tuple[str, ...], tuple[Unread, ...]]:
    """Kernel options that our tables need and this kernel lacks; or why that is not known."""
    try:
        with make() as sandbox:
            found = probe(sandbox, list(Family))
    except NotAllowed as error:
        return (), (Unread("nftables features of the kernel", str(error), _REMEDY),)
    except TransactionError as error:
        return (), (Unread("nftables features of the kernel", str(error), _REMEDY),)
    return tuple(dict.fromkeys(one.option for one in found)), ()


def _count(sandbox: Sandbox, operations: Sequence[Operation]) -> int:
    sets: dict[tuple[int, str], Set] = {}
    expected: Counter[tuple[int, str]] = Counter()
    for operation in operations:
        match operation:
            case AddSet(set_):
                sets[set_.table.family, set_.name] = set_
            case AddElement():
                expected[operation.set.table.family, operation.set.name] += 1
    return sum(sandbox.count(sets[key], number) for key, number in expected.items() if key in sets)


def _failures(error: TransactionError) -> str:
    shown = [str(failure) for failure in error.failures[:SHOWN]]
    more = len(error.failures) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 1)
