"""Somebody who is at our tables in the very moment between the agent's look and its transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

from rules.fake import FakeKernel
from rules.layout import LAYOUTS
from rules.objects import Chain, Family
from rules.transaction import AddChain, DeleteElement, DeleteTable, Operation

V4 = LAYOUTS[Family.IPV4]


@dataclass
class Meddling:
    """In the place of a fake's `commit`: `meddle` comes before each of the next `times` transactions."""

    kernel: FakeKernel
    meddle: Callable[[FakeKernel], None]
    times: int = 0

    def __call__(self, operations: Sequence[Operation]) -> int:
        if self.times and operations:
            self.times -= 1
            self.meddle(self.kernel)
        return FakeKernel.commit(self.kernel, operations)


def take_elements(kernel: FakeKernel) -> None:
    """Every third of those that say where endpoints are."""
    table, endpoints = kernel.dump(V4.table), V4.addresses.endpoints
    if table:
        gone = list(table.sets[endpoints.name].elements)[1::3]
        FakeKernel.commit(kernel, [DeleteElement(endpoints, key) for key in gone])


def add_chain(kernel: FakeKernel) -> None:
    take_elements(kernel)
    FakeKernel.commit(kernel, [AddChain(Chain(V4.table, "foreign"))])


def flush_ruleset(kernel: FakeKernel) -> None:
    there = [layout.table for layout in LAYOUTS.values() if kernel.dump(layout.table)]
    FakeKernel.commit(kernel, list(map(DeleteTable, there)))


def ever_worse() -> Callable[[FakeKernel], None]:
    """First elements, then the tables."""
    ways = cycle([take_elements, flush_ruleset])
    return lambda kernel: next(ways)(kernel)
