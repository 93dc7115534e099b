"""Our tables in the kernel: how they come about, change, and are mended. No clock, no loop: that is proxy.agent.

What a transaction is about to make is believed when the kernel has acknowledged it, never before.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import structlog
from msgspec import Struct, structs

from rules.adopt import Adopted, adopt
from rules.audit import audit
from rules.changes import Touched, merge
from rules.contents import Contents, contents
from rules.diff import Plan, Programmed
from rules.dump import TableState
from rules.elements import ServicePort, family_of
from rules.errors import KernelUnreachable, TransactionError
from rules.layout import LAYOUTS, Network, Options
from rules.mend import mend
from rules.objects import PERSIST, Family, Table
from rules.rehearsal import rehearse
from rules.table_reader import Reader
from rules.tables import change_local, change_service_cidrs, place, replace
from rules.transaction import Operation

LOG = structlog.get_logger()

T = TypeVar("T")

REVIVALS: Final = 3
"""So many times tables that are gone are made again during one change: who goes on taking them away has won for now."""

Ports = Mapping[bytes, ServicePort | None]
Addresses = Mapping[Family, frozenset[bytes]]
Found = dict[Family, TableState | None]
"""The tables that are there. None, or no entry: there is none, or it is to be replaced."""


class Nftables(Protocol):
    """What is needed of a kernel: rules.kernel.Kernel, or rules.fake.FakeKernel."""

    @property
    def port(self) -> int: ...

    def commit(self, operations: Sequence[Operation]) -> int: ...

    def dump(self, table: Table, *, settled: bool = False) -> TableState | None: ...


class Outcome(Struct, frozen=True):
    """What a transaction was: its operations and bytes. differences: of each table that was taken over, how much of it
    was not as it should be. everything: what the tables hold now, if it was all looked at."""

    operations: int
    bytes: int
    differences: dict[str, int] = {}
    everything: Ports | None = None


class Wanted(Struct, frozen=True):
    """All that is to be in the tables. options: of the configuration. addresses: where NodePorts answer."""

    options: Options
    service_cidrs: tuple[Network, ...]
    ports: Ports
    addresses: Addresses


class Follower(Protocol):
    """What holds the same as the tables: proxy.standby.Standby. Must not raise."""

    def renew(self, contents: Callable[[], Sequence[Contents]]) -> None: ...

    def follow(self, operations: Sequence[Operation]) -> None: ...


class Tables:
    """One table for each of `families`. All methods raise TransactionError when the kernel refuses, and change nothing
    then. owned: by the kernel's socket, so that nobody else can change them (see rules.ownership). standby: is told what
    the kernel has taken, but for what only undoes what others did."""

    def __init__(
        self, kernel: Nftables, families: Collection[Family], *, owned: bool = False, standby: Follower | None = None
    ) -> None:
        self.kernel, self.families, self.owned = kernel, families, owned
        self._standby = standby
        self.programmed: dict[Family, Programmed] = {}
        self.options: Options | None = None
        self.service_cidrs: tuple[Network, ...] = ()
        self.is_taking_over = False
        """Whether the last `start` was, at least in part, about what was there already."""
        self._revived = (0, 0)

    @property
    def are_programmed(self) -> bool:
        """False before `start`, and after `forget`."""
        return bool(self.programmed)

    @property
    def sizes(self) -> dict[str, int]:
        """How many elements each table has, by its family's name in nft."""
        return {family.nft: sum(programmed.sizes.values()) for family, programmed in self.programmed.items()}

    def forget(self) -> None:
        """What the kernel holds is not what we thought."""
        self.programmed = {}

    def read(self, *, settled: bool = True, families: Collection[Family] = ()) -> Found:
        """The tables that are there, for `start`. families: only those.

        settled: a table that has just grown may show less than it has. What is added again then does no harm, mostly;
        after a transaction that was refused, look more closely.
        """
        found: Found = {}
        for family in families or self.families:
            try:
                found[family] = self.kernel.dump(LAYOUTS[family].table, settled=settled)
            except KernelUnreachable as error:
                if error.errno == errno.EBUSY:  # it changes all the time; of the others the transaction will tell
                    LOG.warning("table_not_adopted", family=family.nft, cause=str(error), then="replace it")
        return found

    def start(self, wanted: Wanted, found: Found) -> Outcome:
        """Everything, in one transaction: what is missing in the tables that were found, or tables in their place."""
        made = self._made(wanted, found)
        self.is_taking_over = any(one.differences is not None for one in made.values())
        for family, one in made.items():
            if one.differences is None and (table := found.get(family)):
                cannot_own = self.owned and not table.flags & PERSIST
                cause = "it can get no owner" if cannot_own else "it is not laid out as this release does it"
                LOG.info("table_not_adopted", family=family.nft, cause=cause, then="replace it")
        operations = [operation for one in made.values() for operation in one.operations]
        size = self.kernel.commit(operations)
        programmed = {family: one.programmed for family, one in made.items()}
        rulebook = wanted.options, wanted.service_cidrs
        # They may have been put right by differences, and be what they were.
        is_new = self.programmed.keys() != programmed.keys() or rulebook != (self.options, self.service_cidrs)
        is_new = is_new or not all(one.is_like(self.programmed[family]) for family, one in programmed.items())
        self.programmed, (self.options, self.service_cidrs) = programmed, rulebook
        if self._standby and is_new:
            self._standby.renew(self._contents)
        differences = {family.nft: one.differences.total for family, one in made.items() if one.differences}
        return Outcome(len(operations), size, differences, wanted.ports)

    def rehearse(self, wanted: Wanted, found: Found) -> TransactionError | None:
        """What the kernel has against `start` with these; nothing is done."""
        made = self._made(wanted, found)
        return rehearse(self.kernel, [operation for one in made.values() for operation in one.operations])

    def _made(self, wanted: Wanted, found: Found) -> dict[Family, Adopted]:
        ports = _by_family(wanted.ports)
        return {family: self._bring_about(family, wanted, ports[family], found.get(family)) for family in self.families}

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
        size = self._reviving(lambda: self.kernel.commit(operations))
        for family, plan in plans.items():
            self.programmed[family].accept(plan)
        self.options, self.service_cidrs = wanted.options, wanted.service_cidrs
        if self._standby:
            self._standby.follow(operations)
        return Outcome(len(operations), size)

    def mend(self, changes: Iterable[Touched], everything: Callable[[], Wanted]) -> Outcome:
        """Undo what others did. everything: asked for when a table is there that is not laid out as ours."""
        merged = list(merge(changes))
        done = self._reviving(lambda: self._mend(merged, everything))
        (operations, size), self._revived = self._revived, (0, 0)
        return structs.replace(done, operations=done.operations + operations, bytes=done.bytes + size)

    def _mend(self, changes: Iterable[Touched], everything: Callable[[], Wanted]) -> Outcome:
        operations: list[Operation] = []
        gone = False
        for touched in changes:
            if touched.family in self.programmed and self.options is not None:
                programmed = self.programmed[touched.family]
                found = mend(programmed, touched, self.options, self.service_cidrs)
                if found is None:
                    there = self.read(families=[touched.family])
                    if there.get(touched.family):
                        others = [family for family in self.families if family is not touched.family]
                        return self.start(everything(), there | (self.read(families=others) if others else {}))
                    gone = True
                    found = self._again(programmed)
                operations += found
        size = self.kernel.commit(operations)
        if gone:
            self.programmed = dict(self.programmed)  # whoever is reading the tables has to begin anew
        return Outcome(len(operations), size)

    def _reviving(self, action: Callable[[], T]) -> T:
        """Again when it was refused because tables were gone, and they have been made again."""
        for _ in range(REVIVALS):
            try:
                return action()
            except TransactionError as error:
                if not self._revive(error):
                    raise
        return action()

    def _revive(self, error: TransactionError) -> bool:
        """Make tables that are gone again, as they were. Who took them away is told later: what is done here counts as
        done by the `mend` that follows."""
        if all(failure.errno != errno.ENOENT for failure in error.failures):
            return False
        found = self.read(settled=False)
        gone = [programmed for family, programmed in self.programmed.items() if found.get(family, True) is None]
        operations = [operation for programmed in gone for operation in self._again(programmed)]
        size = self.kernel.commit(operations)
        self._revived = self._revived[0] + len(operations), self._revived[1] + size
        self.programmed = dict(self.programmed)  # as in `mend`
        return bool(gone)

    def _again(self, programmed: Programmed) -> list[Operation]:
        """A table that is gone, as it was."""
        return [*place(programmed.layout, owned=self.owned), *self._content(programmed).all]

    def _contents(self) -> list[Contents]:
        """What the tables hold; [] while nobody knows."""
        return [self._content(programmed) for programmed in self.programmed.values()]

    def _content(self, programmed: Programmed) -> Contents:
        return contents(programmed, *self._rulebook())

    def audit(self, reader: Reader) -> Iterator[Touched | None]:
        """Compare what is there with what should be: see rules.audit. No good any more when tables are made anew."""
        owner = self.kernel.port if self.owned else 0
        for programmed in self.programmed.values():
            yield from audit(programmed, reader, self._rulebook, owner)

    def _rulebook(self) -> tuple[Options, tuple[Network, ...]]:
        assert self.options is not None  # it is known since `start`
        return self.options, self.service_cidrs

    def _bring_about(self, family: Family, wanted: Wanted, ports: Ports, found: TableState | None) -> Adopted:
        """All of one family's table: by differences, or in the place of what is there."""
        addresses = wanted.addresses[family]
        if found:
            owner = self.kernel.port if self.owned else 0
            taken = adopt(family, found, wanted.options, wanted.service_cidrs, ports, addresses, owner)
            if taken:
                return taken
        programmed = Programmed(family)
        plan = programmed.plan(ports, addresses)
        programmed.accept(plan)
        operations = replace(LAYOUTS[family], wanted.options, wanted.service_cidrs, owned=self.owned)
        return Adopted(programmed, [*operations, *plan.operations], None)


def _by_family(ports: Ports) -> dict[Family, dict[bytes, ServicePort | None]]:
    found: dict[Family, dict[bytes, ServicePort | None]] = {family: {} for family in Family}
    for key, port in ports.items():
        found[family_of(key)][key] = port
    return found
