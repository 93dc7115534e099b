"""Our tables in the kernel: how they come about, change, and are mended. No clock, no loop: that is proxy.agent.

What a transaction is about to make is believed when the kernel has acknowledged it, never before.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import structlog
from msgspec import Struct

from rules.adopt import Adopted, adopt
from rules.changes import Touched, merge
from rules.diff import Plan, Programmed
from rules.dump import TableState
from rules.elements import ServicePort, family_of
from rules.errors import KernelUnreachable
from rules.layout import LAYOUTS, Network, Options
from rules.mend import mend
from rules.objects import Family, Table
from rules.tables import change_local, change_service_cidrs, replace
from rules.transaction import Operation

LOG = structlog.get_logger()

Ports = Mapping[bytes, ServicePort | None]
Addresses = Mapping[Family, frozenset[bytes]]


class Nftables(Protocol):
    """What is needed of a kernel: rules.kernel.Kernel, or rules.fake.FakeKernel."""

    def commit(self, operations: Sequence[Operation]) -> int: ...

    def dump(self, table: Table, *, settled: bool = False) -> TableState | None: ...


class Outcome(Struct, frozen=True):
    """What a transaction was: its operations and bytes. differences: of each table that was taken over, how much of it
    was not as it should be."""

    operations: int
    bytes: int
    differences: dict[str, int] = {}


class Wanted(Struct, frozen=True):
    """All that is to be in the tables. options: of the configuration. addresses: where NodePorts answer."""

    options: Options
    service_cidrs: tuple[Network, ...]
    ports: Ports
    addresses: Addresses


class Tables:
    """One table for each of `families`. All methods raise TransactionError when the kernel refuses, and change nothing
    then."""

    def __init__(self, kernel: Nftables, families: Collection[Family]) -> None:
        self.kernel, self.families = kernel, families
        self.programmed: dict[Family, Programmed] = {}
        self.options: Options | None = None
        self.service_cidrs: tuple[Network, ...] = ()
        self.is_taking_over = False
        """Whether the last `start` was, at least in part, about what was there already."""

    @property
    def are_programmed(self) -> bool:
        """False before `start`, and after `forget`."""
        return bool(self.programmed)

    def forget(self) -> None:
        """What the kernel holds is not what we thought."""
        self.programmed = {}

    def start(self, wanted: Wanted, *, may_adopt: bool, settled: bool = True) -> Outcome:
        """Everything, in one transaction: what is missing in the tables that are there, or tables in their place.

        settled: a table that has just grown may show less than it has. What is added again then does no harm, mostly;
        after a transaction that was refused, look more closely.
        """
        ports = _by_family(wanted.ports)
        made = {
            family: self._bring_about(family, wanted, ports[family], may_adopt, settled) for family in self.families
        }
        self.is_taking_over = any(one.differences is not None for one in made.values())
        operations = [operation for one in made.values() for operation in one.operations]
        size = self.kernel.commit(operations)
        self.programmed = {family: one.programmed for family, one in made.items()}
        self.options, self.service_cidrs = wanted.options, wanted.service_cidrs
        differences = {family.nft: one.differences.total for family, one in made.items() if one.differences}
        return Outcome(len(operations), size, differences)

    def change(self, wanted: Wanted) -> Outcome:
        """What changed, in one transaction; `ports`: those that may have changed. Nothing if nothing did."""
        ports = _by_family(wanted.ports)
        plans: dict[Family, Plan] = {}
        operations: list[Operation] = []
        for family in self.families:
            plans[family] = self.programmed[family].plan(ports[family], wanted.addresses[family])
            operations += plans[family].operations
        for family in self.families:
            if wanted.service_cidrs != self.service_cidrs:
                operations += change_service_cidrs(LAYOUTS[family], wanted.service_cidrs)
            if wanted.options != self.options:
                operations += change_local(LAYOUTS[family], wanted.options)
        size = self.kernel.commit(operations)
        for family, plan in plans.items():
            self.programmed[family].accept(plan)
        self.options, self.service_cidrs = wanted.options, wanted.service_cidrs
        return Outcome(len(operations), size)

    def mend(self, changes: Iterable[Touched], everything: Callable[[], Wanted]) -> Outcome:
        """Undo what others did. everything: asked for when their changes are more than elements and rules."""
        operations: list[Operation] = []
        for touched in merge(changes):
            if touched.family in self.programmed and self.options is not None:
                found = mend(self.programmed[touched.family], touched, self.options, self.service_cidrs)
                if found is None:
                    return self.start(everything(), may_adopt=True)
                operations += found
        return Outcome(len(operations), self.kernel.commit(operations))

    def _bring_about(self, family: Family, wanted: Wanted, ports: Ports, may_adopt: bool, settled: bool) -> Adopted:
        """All of one family's table: by differences, or in the place of what is there."""
        taken = self._adopt(family, wanted, ports, settled) if may_adopt else None
        if taken:
            return taken
        programmed = Programmed(family)
        plan = programmed.plan(ports, wanted.addresses[family])
        programmed.accept(plan)
        operations = replace(LAYOUTS[family], wanted.options, wanted.service_cidrs)
        return Adopted(programmed, [*operations, *plan.operations], None)

    def _adopt(self, family: Family, wanted: Wanted, ports: Ports, settled: bool) -> Adopted | None:
        """Take over the table of an earlier agent, or our own that others have changed; None: it has to be replaced."""
        try:
            table = self.kernel.dump(LAYOUTS[family].table, settled=settled)
        except KernelUnreachable as error:
            if error.errno == errno.EBUSY:  # it changes all the time; of the others the transaction will tell
                LOG.warning("table_not_adopted", family=family.nft, cause=str(error), then="replace it")
            return None
        if table is None:
            return None
        taken = adopt(family, table, wanted.options, wanted.service_cidrs, ports, wanted.addresses[family])
        if taken is None:
            cause = "it is not laid out as this release does it"
            LOG.info("table_not_adopted", family=family.nft, cause=cause, then="replace it")
        return taken


def _by_family(ports: Ports) -> dict[Family, dict[bytes, ServicePort | None]]:
    found: dict[Family, dict[bytes, ServicePort | None]] = {family: {} for family in Family}
    for key, port in ports.items():
        found[family_of(key)][key] = port
    return found
