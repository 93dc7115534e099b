"""The agent's loop: take everything that is waiting, compile what changed, one transaction, again.

No timer stands between an event and its commit: what arrives during a commit is merged into the next one.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import structlog

from proxy import refusals
from proxy.audits import Audits
from proxy.committed import Committed, Follower
from proxy.events import Event, Failed, Inbox, TablesTouched
from proxy.healthz import Health
from proxy.measures import Syncs
from proxy.node_reports import NodeReports
from proxy.nodes import NodeInfo
from proxy.patience import OthersWork, Retries
from proxy.problems import report
from proxy.settings import Settings
from proxy.standby import Standby
from proxy.state import State
from proxy.tables import Nftables, Outcome, Tables, Wanted
from proxy.udp import UdpChange, is_udp
from rules.changes import Touched
from rules.elements import ServicePort
from rules.errors import TransactionError
from rules.judgement import Action, judge
from rules.layout import TABLE_NAME, Options
from rules.objects import Family
from rules.refusals import News, Refusals, Settled, settle, settle_as_one
from rules.table_reader import Reader

LOG = structlog.get_logger()
ONCE_SECONDS = 10.0
"""How long `run --once` waits for the kinds of object that are not needed for a first sync."""


class Agent:
    """Programs one node. `run` is the loop; `handle` is one turn of it, without waiting.

    families: those that this node has; there is no table of the others. health: is told what waits and what is done.
    reports: is told what is worth an Event. syncs: counts for metrics.
    owned: whether the tables belong to the kernel's socket (see rules.ownership). standby: None: there is none.
    open_reader: for a look at the tables now and then (proxy.audits); None: there is none.
    grace: how long the first sync waits for the kinds of object that it can do without (seconds): a NodePort that loses
    its addresses for the moment until the Node is listed would not survive a restart.
    """

    def __init__(
        self,
        state: State,
        kernel: Nftables,
        inbox: Inbox,
        settings: Settings | None = None,
        followers: Sequence[Follower] = (),
        clock: Callable[[], float] = time.monotonic,
        families: Collection[Family] = tuple(Family),
        health: Health | None = None,
        reports: NodeReports | None = None,
        grace: float = 0.0,
        owned: bool = False,
        standby: Standby | None = None,
        open_reader: Callable[[], Reader] | None = None,
        syncs: Syncs | None = None,
    ) -> None:
        self.state, self.inbox = state, inbox
        self.settings = settings or Settings()
        self.tables = Tables(kernel, families, owned=owned, standby=standby)
        self.standby = standby
        self.health = health or Health(math.inf)
        self.reports = reports or NodeReports()
        self.followers = followers
        self.syncs = syncs or Syncs()
        self.repairs = 0
        """How often others' changes to our tables were undone."""
        self.sync_failures = 0
        """How often the kernel refused a transaction that no single service port was to blame for."""
        self.refused = 0
        """How many service ports are left out, because the kernel does not take them: see `refusals`."""
        self.refusals = Refusals()
        """For this thread alone."""
        self.audits = Audits(self.tables, open_reader) if open_reader else None
        self._clock = clock
        self._retries = Retries()
        self._others = OthersWork()
        self._grace = grace
        self._start_by: float | None = None
        self._is_waiting = False
        self._addresses: dict[Family, frozenset[bytes]] = {}
        self._addresses_from: tuple[NodeInfo | None, frozenset[bytes]] | None = None

    def run(self, once: bool = False) -> None:
        """Until the inbox is closed; with `once` until everything is programmed. Raises UserError."""
        while self._turn(once):  # nothing here holds events while it waits for others: a list may be large
            pass

    def _turn(self, once: bool) -> bool:
        """Whether to go on."""
        events = self.inbox.take(self._patience(once))
        if self.inbox.is_closed:
            return False
        now = self._clock()
        audit_is_due, standby_is_due = self._audit_at() <= now, self._standby_at() <= now
        if events or self._sync_at() <= now or not (audit_is_due or standby_is_due):
            self.handle(events)
        if audit_is_due:
            self._audit()
        if self.standby:
            self.standby.step()
        return not (once and self.tables.are_programmed and (self.state.is_listed or not events))

    def _patience(self, once: bool) -> float | None:
        """How long to wait for events; None: for ever, because nothing else is to be done."""
        next_at = min(self._sync_at(), self._audit_at(), self._standby_at())
        if next_at < math.inf:
            return max(0.0, next_at - self._clock())
        return ONCE_SECONDS if once and self.tables.are_programmed else None

    def _sync_at(self) -> float:
        """When something is to be done about the rules, also if no events come."""
        if self._retries.failures:
            return self._retries.next_at
        if self._start_by is not None and not self.tables.are_programmed and not self._is_waiting:
            return self._start_by
        return min(self._others.next_at, math.inf if self.refusals.retry_at is None else self.refusals.retry_at)

    def _standby_at(self) -> float:
        return self.standby.next_at if self.standby else math.inf

    def handle(self, events: Sequence[Event]) -> None:
        """Take in events and bring the kernel to what they make of the state; not yet if it refused that just now."""
        started = time.perf_counter()
        if events:
            self.syncs.queued()
        loading = not self.tables.are_programmed
        if loading:
            gc.disable()  # a first load makes a million objects, and next to no garbage cycles
        try:
            for event in events:
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, TablesTouched):
                    self._others.note(event)
                    self._retries.hasten(self._clock())
                else:
                    self.state.apply(event)
            if events and self.tables.are_programmed:
                self.health.queued(self._clock())
            if self._may_sync():
                self._sync(started)
        finally:
            if loading:
                gc.enable()
        problems = self.state.faults.news
        if problems:
            report(problems)
            self.reports.conflicts([problem for problem in problems if problem.is_conflict])
            problems.clear()

    def _may_sync(self) -> bool:
        now = self._clock()
        if self._retries.failures:
            return now >= self._retries.next_at
        if self.tables.are_programmed or not self.state.is_complete:
            return self.state.is_complete
        if self._start_by is None:
            self._start_by = now + self._grace
        return self.state.is_listed or now >= self._start_by

    def _sync(self, started: float) -> None:
        # What the Node says of local pods may come late, and change; before it does, nothing is right.
        options = self.settings.options_on(self.state.node) or self.tables.options
        if options is None:
            if not self._is_waiting:
                self._is_waiting = True
                LOG.warning(
                    "waiting_for_pod_cidrs",
                    node=self.state.place.node,
                    cause="detectLocalMode is NodeCIDR, and this Node is not there or has no podCIDRs",
                    remedy="see that the controller manager allocates them, or set another detectLocalMode",
                )
            return
        self._is_waiting = False
        self.health.queued(self._clock())
        first = not self.tables.are_programmed
        try:
            if first:
                self._start(started, options)
            else:
                self._change(started, options)
                self._mend(started, options)
        except TransactionError as error:
            self.sync_failures += 1
            if first and not self._retries.failures and not self.tables.is_taking_over:
                raise refusals.explain(error) from error
            self._put_back(error, started, first and not self.tables.is_taking_over)
        else:
            if self._retries.failures > 1:
                LOG.info("transactions_work_again", refused=self._retries.failures)
            self._retries.worked()
            self.refused = len(self.refusals)
            now = self._clock()
            self.health.synced(now)
            self.syncs.synced(self.state, time.perf_counter() - started, full=first)
            self.reports.sync_works(now)

    def _put_back(self, error: TransactionError, started: float, is_fresh: bool) -> None:
        """Try again, ever more slowly. Where others have been at the tables, look at these first; at once, to begin with."""
        action, meaning = judge(error, fresh=is_fresh)
        is_clash = action in (Action.MEND, Action.LEAVE_OUT)
        if is_clash:
            self.tables.forget()
        now = self._clock()
        wait = self._retries.failed(now, is_clash=is_clash)
        self.reports.sync_failed(str(error), now)
        log = LOG.error if self._retries.is_news(meaning) else LOG.debug
        log(
            "transaction_refused",
            error=str(error),
            cause=meaning,
            then=action.value,
            seconds=wait,
            tries=self._retries.failures,
        )
        if not wait:
            self._sync(started)

    def _start(self, started: float, options: Options) -> None:
        wanted = self.refusals.without(self.state.everything())
        self._others.clear()  # what is read now is what they left
        # What clashed although the tables had just been read will not go by differences.
        found = self.tables.read(settled=not self._retries.failures) if self._retries.clashes <= 1 else {}
        try:
            outcome = self.tables.start(self._wanted(options, wanted), found)
        except TransactionError as error:
            if judge(error, fresh=not any(found.values()))[0] is not Action.LEAVE_OUT:
                raise
            settled = settle_as_one(wanted, lambda ports: self.tables.rehearse(self._wanted(options, ports), found))
            if settled.stopped:
                raise settled.stopped from error
            self._note(settled, wanted)
            wanted = settled.done
            outcome = self.tables.start(self._wanted(options, wanted), found)
        found.clear()  # it may be large
        self.state.settle_all()
        differences = {f"{family}_differences": count for family, count in outcome.differences.items()}
        self._log("programmed", started, len(wanted), outcome, **differences)
        self.syncs.took_over(outcome.differences, self.tables.sizes)
        self._tell(True, wanted, ())
        if self.audits:
            self.audits.postpone(self._clock())
        # What is here now stays: no need for the garbage collector to look at it ever again.
        gc.collect()
        gc.freeze()

    def _change(self, started: float, options: Options) -> None:
        wanted = self.state.wanted()
        first, again = self.refusals.divide(wanted, self._clock())
        outcomes: list[Outcome] = []

        def attempt(ports: Mapping[bytes, ServicePort | None]) -> TransactionError | None:
            try:
                outcomes.append(self.tables.change(self._wanted(options, ports)))
            except TransactionError as error:
                return error
            return None

        settled = settle(first, attempt, again)
        news = self._note(settled, {**first, **again})
        flows = self.state.settle([key for key in wanted if key not in settled.left])
        flows += [UdpChange(aside.key, frozenset(), True) for aside in news.taken if is_udp(aside.key)]
        outcome = Outcome(sum(one.operations for one in outcomes), sum(one.bytes for one in outcomes))
        if outcome.operations:
            self._log("committed", started, len(wanted), outcome)
        if any(one.others_ruled for one in outcomes):
            self._tell(True, self.tables.everything, ())
        elif settled.done or not settled.stopped:
            self._tell(False, settled.done, flows)
        if settled.stopped:
            raise settled.stopped

    def _note(self, settled: Settled, changes: Mapping[bytes, ServicePort | None]) -> News:
        """Write down and tell what is left out from now on, and what is not any more."""
        news = self.refusals.note(settled, changes, self._clock())
        if news.refused or news.taken:
            self.reports.refused(refusals.report(news))
        return news

    def _mend(self, started: float, options: Options) -> None:
        """Undo what others did to our tables."""
        now = self._clock()
        if now < self._others.next_at:
            return
        self._others.begin(now)
        changes, why = self._others.changes, self._others.why
        if why and self.audits:
            self.audits.at_once(now, why)
        elif why:  # nobody knows what was done to which table
            changes += [Touched(family, is_rebuilt=True) for family in self.tables.families]
        self._undo(started, changes, why or "another program changed them")
        self._others.clear()

    def _undo(self, started: float, changes: Sequence[Touched], cause: str) -> None:
        """Raises TransactionError."""
        outcome = self.tables.mend(changes)
        if outcome.operations:
            self.repairs += 1
            self.syncs.committed(time.perf_counter() - started, outcome.operations, outcome.bytes)
            if outcome.others_ruled:
                self._tell(True, self.tables.everything, ())
            else:
                self._tell(False, {}, self._let_through())
            LOG.warning(
                "tables_mended",
                by=", ".join(dict.fromkeys(change.who for change in changes if change.who)) or "unknown",
                cause=cause,
                operations=outcome.operations,
                bytes=outcome.bytes,
                milliseconds=_milliseconds(started),
                remedy=f"see why that program touches the tables {TABLE_NAME}",
            )

    def _let_through(self) -> list[UdpChange]:
        """What the absence of rules for a while means for UDP flows: any may have been let through as it was."""
        return [UdpChange(key, frozenset(), True) for key, flows in self.state.udp_flows().items() if flows.usable]

    def _audit_at(self) -> float:
        """When the tables are to be looked at; not while they are not as they should be anyway."""
        is_well = self.tables.are_programmed and not self._retries.failures
        return self.audits.next_at if self.audits and is_well else math.inf

    def _audit(self) -> None:
        """A step of it, and what has to be done about what it finds."""
        if self._audit_at() > self._clock() or self.tables.options is None or self.audits is None:
            return
        started = time.perf_counter()
        touched = self.audits.step(self._clock())
        if touched:
            try:
                self._undo(started, [touched], self.audits.cause)
            except TransactionError as error:
                self.sync_failures += 1
                self._put_back(error, started, False)

    def _wanted(self, options: Options, ports: Mapping[bytes, ServicePort | None]) -> Wanted:
        return Wanted(options, self.state.service_cidrs, ports, self._nodeport_ips())

    def _tell(self, everything: bool, wanted: Mapping[bytes, ServicePort | None], udp: Sequence[UdpChange]) -> None:
        checks = self.state.take_health_checks()
        done = Committed(everything, wanted, udp, self.state.udp_flows(), checks, self._nodeport_ips(), self.state.node)
        for follower in self.followers:
            follower(done)

    def _nodeport_ips(self) -> dict[Family, frozenset[bytes]]:
        """Looks at the node's addresses only when they, or the Node, are others than last time."""
        sources = (self.state.node, self.state.local_addresses)
        if self._addresses_from is None or any(a is not b for a, b in zip(sources, self._addresses_from, strict=True)):
            found = self.settings.nodeport_ips(*sources)
            self._addresses = {
                family: found[family] if family in self.tables.families else frozenset() for family in Family
            }
            self._addresses_from = sources
        return self._addresses

    def _log(self, event: str, started: float, ports: int, outcome: Outcome, **more: object) -> None:
        log = LOG.info if event == "programmed" else LOG.debug
        size, operations = outcome.bytes, outcome.operations
        self.syncs.committed(time.perf_counter() - started, operations, size)
        log(event, service_ports=ports, operations=operations, bytes=size, milliseconds=_milliseconds(started), **more)


def _milliseconds(started: float) -> float:
    return round((time.perf_counter() - started) * 1e3, 3)
