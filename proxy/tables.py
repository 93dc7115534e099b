"""Our tables in the kernel: how they come about, change, and are mended. No clock, no loop: that is proxy.agent.

What a transaction is about to make is believed when the kernel has acknowledged it, never before.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import structlog
from msgspec import Struct

from rules.adopt import Adopted, adopt
from rules.audit import audit
from rules.changes import Touched, merge
from rules.contents import Contents, contents
from rules.diff import Programmed
from rules.dump import TableState
from rules.elements import ServicePort, family_of
from rules.errors import KernelUnreachable, TransactionError
from rules.judgement import Action, judge
from rules.layout import LAYOUTS, Network, Options
from rules.mend import mend
from rules.objects import PERSIST, Family, Table
from rules.plan import Plan
from rules.rehearsal import rehearse
from rules.restore import restore
from rules.table_reader import Reader
from rules.tables import change_local, change_service_cidrs, place, replace
from rules.transaction import Operation

LOG = structlog.get_logger()

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
    was not as it should be. others_ruled: whether others had changed a table so that anything may have come of it."""

    operations: int
    bytes: int
    differences: dict[str, int] = {}
    others_ruled: bool = False


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
        self._former: dict[Family, Programmed] = {}
        self._righted = (0, 0)

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
        self._former = self.programmed or self._former
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
        former = self.programmed or self._former
        is_new = former.keys() != programmed.keys() or rulebook != (self.options, self.service_cidrs)
        is_new = is_new or not all(one.is_like(former[family]) for family, one in programmed.items())
        self.programmed, self._former = programmed, {}
        self.options, self.service_cidrs = rulebook
        if self._standby and is_new:
            self._standby.renew(self._contents)
        differences = {family.nft: one.differences.total for family, one in made.items() if one.differences}
        return Outcome(len(operations), size, differences)

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
        size, others_ruled = self._commit(operations, operations)
        for family, plan in plans.items():
            self.programmed[family].accept(plan)
        self.options, self.service_cidrs = wanted.options, wanted.service_cidrs
        if self._standby:
            self._standby.follow(operations)
        return Outcome(len(operations), size, others_ruled=others_ruled)

    def mend(self, changes: Iterable[Touched]) -> Outcome:
        """Undo what others did."""
        operations: list[Operation] = []
        looked: list[Family] = []
        for touched in merge(changes):
            if touched.family in self.programmed and self.options is not None:
                found = mend(self.programmed[touched.family], touched, self.options, self.service_cidrs)
                if found is None:
                    looked.append(touched.family)
                operations += found or ()
        right, were_there = self._right(looked, self.read(families=looked)) if looked else ([], False)
        size, others_ruled = self._commit([*operations, *right], ())
        (done, bytes_), self._righted = self._righted, (0, 0)
        return Outcome(len(operations) + len(right) + done, size + bytes_, others_ruled=were_there or others_ruled)

    def _commit(self, operations: Sequence[Operation], afterwards: Sequence[Operation]) -> tuple[int, bool]:
        """Commit `operations`. Where others have been at the tables meanwhile: what puts these right and `afterwards`, in one
        transaction, so that nobody can come in between. What was put right counts as done by the `mend` that follows, which
        knows whose doing it was. Returns the bytes of `operations`, and Outcome.others_ruled."""
        size = self._try(operations)
        for is_patient in (True, False):  # somebody may be faster than a look at the tables: then they are made anew
            if isinstance(size, int) or judge(size)[0] is not Action.MEND:
                break
            right, were_there = self._right(self.programmed, self.read() if is_patient else {})
            if not right and afterwards:
                break  # it is not them
            size = self._try([*right, *afterwards])
            if isinstance(size, int):
                self._righted = self._righted[0] + len(right), self._righted[1] + (size if right else 0)
                return 0 if right else size, were_there
            del right  # it is large, as what comes next
        if isinstance(size, TransactionError):
            raise size
        return size, False

    def _try(self, operations: Sequence[Operation]) -> int | TransactionError:
        """What came of it, and nothing that would keep the operations in memory."""
        try:
            return self.kernel.commit(operations)
        except TransactionError as error:
            return error.with_traceback(None)

    def _right(self, families: Iterable[Family], found: Found) -> tuple[list[Operation], bool]:
        """What makes tables what they were: by differences, or anew where there is none or it is another one. And whether
        one that was there was others' work."""
        operations: list[Operation] = []
        were_there = False
        for programmed in map(self.programmed.__getitem__, families):
            there = found.get(programmed.layout.family)
            owner = self.kernel.port if self.owned else 0
            by_differences = restore(programmed, there, *self._rulebook(), owner) if there else None
            found_wrong = self._again(programmed) if by_differences is None else by_differences
            operations += found_wrong
            were_there |= bool(there and found_wrong)
        return operations, were_there

    @property
    def everything(self) -> dict[bytes, ServicePort | None]:
        """All that the tables hold."""
        return {key: entry.port for one in self.programmed.values() for key, entry in one.entries.items()}

    def _again(self, programmed: Programmed) -> list[Operation]:
        """A table as it was, in the place of whatever is there."""
        return [*place(programmed.layout, owned=self.owned), *self._content(programmed).all]

    def _contents(self) -> list[Contents]:
        """What the tables hold, or should."""
        return [self._content(programmed) for programmed in (self.programmed or self._former).values()]

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
