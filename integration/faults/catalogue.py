"""All faults, and what came of each: a row of a table."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

from integration.faults import endings, others, scarcity
from integration.faults.scarcity import Unavailable
from integration.faults.stage import PROBED, STICKY, Stage, Wrong
from integration.faults.traffic import Seen, Traffic


@dataclass(frozen=True)
class Fault:
    """strike: does it once and gives the seconds until all was right. rounds: how often, for a median. in_traffic: while
    connections are made; else there is nothing yet that would answer them."""

    name: str
    strike: Callable[[Stage], float]
    rounds: int = 5
    in_traffic: bool = True
    address: str = PROBED


@dataclass(frozen=True)
class Row:
    """tables: see Stage.kind. connections, failed: new ones. broken: of those that lasted. seconds: of each round.
    impossible: why it could not be done."""

    fault: str
    tables: str
    connections: int = 0
    failed: int = 0
    broken: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    longest_ms: float = 0.0
    seconds: list[float] = field(default_factory=list)
    impossible: str = ""

    def json(self) -> dict[str, Any]:
        return asdict(self)


BY_OTHERS: Final = (
    Fault("flush ruleset", others.flush_ruleset),
    Fault("flush ruleset, session affinity", others.flush_ruleset, address=STICKY),
    Fault("both tables deleted", others.delete_tables),
    Fault("one element deleted", others.delete_element),
    Fault("one element changed", others.change_element),
    Fault("one chain flushed", others.flush_chain),
    Fault("flush ruleset every 30 ms under load", others.flush_again_and_again),
)


def own(restarts: int, stopped: float, rounds: int) -> tuple[Fault, ...]:
    """Those that have nothing to do with other programs. stopped: seconds."""
    return (
        Fault("kill -9 in the middle of a first load", endings.killed_in_the_first_load, rounds, in_traffic=False),
        Fault("kill -9 in the middle of a load over old rules", endings.killed_in_a_load, rounds),
        Fault("kill -9 in the middle of a transaction", endings.killed_in_a_transaction, rounds),
        Fault("flush ruleset while an agent takes over", endings.flushed_at_the_start, rounds),
        Fault(f"{restarts} restarts under load", partial(endings.restarts, count=restarts), 1),
        Fault("the log's device is full", scarcity.no_log, 1),
        Fault("the disk is full", scarcity.full_disk, 1),
        Fault("the clock jumps by years", scarcity.clock, 1),
        Fault("netlink's receive buffers at their minimum", scarcity.buffers, 1),
        Fault(f"memory limit of {scarcity.MEMORY >> 20} MB", scarcity.memory, 1),
        Fault(f"SIGSTOP for {stopped:g} s, SIGCONT", partial(endings.stopped, seconds=stopped), 1),
    )


def run(stage: Stage, fault: Fault) -> Row:
    """Strike so often. The stage has an agent before and after. Raises Wrong when all does not get right again."""
    tables = stage.kind()
    try:
        if not fault.in_traffic:
            return Row(fault.name, tables, seconds=[fault.strike(stage) for _ in range(fault.rounds)])
        seen, seconds = Seen(), []
        for _ in range(fault.rounds):
            with Traffic(stage, seen, fault.address):
                seconds.append(fault.strike(stage))
    except Unavailable as error:
        return Row(fault.name, tables, impossible=str(error))
    except (Wrong, RuntimeError, TimeoutError) as error:
        raise Wrong(f"{fault.name} ({tables}): {error}") from error
    return Row(
        fault.name, tables, seen.attempts, seen.failed, len(seen.broken), dict(seen.failures), seen.longest, seconds
    )


def run_all(stage: Stage, faults: Iterable[Fault]) -> Iterable[Row]:
    """One after the other; who waits for them sees on standard error how far it is."""
    for fault in faults:
        row = run(stage, fault)
        print(line(row), row.failures or "", file=sys.stderr, flush=True)
        yield row


def line(row: Row) -> str:
    """A row of `table`."""
    if row.impossible:
        return f"| {row.fault} | {row.tables} | {row.impossible} | |"
    lost = f"{row.failed:,} of {row.connections:,}" if row.connections else "nothing to connect to yet"
    if row.broken:
        lost += f", {row.broken} of those that lasted"
    right = seconds(statistics.median(row.seconds))
    if len(row.seconds) > 1:
        most = f"median of {len(row.seconds)}; at most {seconds(max(row.seconds))}"
        right += f" ({most})" if any(row.seconds) else f" (of {len(row.seconds)})"
    return f"| {row.fault} | {row.tables} | {lost} | {right} |"


def seconds(value: float) -> str:
    """For people: a time in the unit that fits it."""
    if not value:
        return "0: never wrong"
    return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.1f} s"


def table(rows: Sequence[Row]) -> str:
    """In Markdown."""
    head = ("| fault | tables | connections that failed | until all is right |", "| --- | --- | --- | --- |")
    return "\n".join([*head, *map(line, rows)])
