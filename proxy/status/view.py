"""The running agent as a summary: what is asked of it, and what is made of the answers."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from proxy import config_report
from proxy.agent import Agent
from proxy.committed import Committed
from proxy.config import Config
from proxy.detect.findings import Finding
from proxy.healthz import Status
from proxy.measures import IP_FAMILIES, Histogram
from proxy.status import look
from proxy.status.history import Ring
from proxy.status.report import (
    Counts,
    Deprecation,
    FamilyShown,
    Health,
    History,
    Protection,
    Refused,
    Repairs,
    Summary,
    Verdict,
    Watch,
)
from proxy.status.text import many
from rules.elements import describe_key
from rules.refusals import Aside

HIDDEN: Final = ("clientConnection.kubeconfig",)
"""Fields of the configuration that are nobody's business who can reach the port."""
NAMED: Final = 20
"""Refused service ports that are written out."""
SILENT_SECONDS: Final = 600.0
"""A watch begins anew after 150 s of silence, and then waits for half a minute between two tries at most."""

Findings = Callable[[], Iterable[Finding]]


class View:
    """A proxy.committed.Follower, which fills the history. The rest is for any one other thread.

    source: where objects come from, in words; watchers: those of the API server. findings: what is deprecated here. clock:
    monotonic, that of the agent and of the watchers. now: seconds since 1970.
    """

    def __init__(
        self,
        agent: Agent,
        config: Config,
        version: str,
        commits: Histogram,
        source: str = "",
        watchers: Sequence[look.Watcher] = (),
        findings: Findings = tuple,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.agent = agent
        self.watchers = watchers
        self._version, self._source, self._findings = version, source, findings
        self._clock, self._now = clock, now
        self._started = now()
        self._ring = Ring(commits, now)
        self._repairs = 0
        shown = {name: _text(value) for name, value in config_report.fields(config).items() if name not in HIDDEN}
        default = {name: _text(value) for name, value in config_report.fields(Config()).items()}
        self._settings = shown
        self._changed = tuple(name for name, value in shown.items() if value != default[name])
        self._counts: tuple[tuple[int, int], Counts] = ((-1, -1), Counts())

    def __call__(self, done: Committed) -> None:
        repairs, self._repairs = self.agent.repairs - self._repairs, self.agent.repairs
        self._ring.add(changes=0 if done.everything else len(done.ports), full=done.everything, repairs=repairs)

    def summary(self) -> Summary:
        agent, now, clock = self.agent, self._now(), self._clock()
        history = self._ring.read()
        refused = look.refused(agent)
        rejected = look.rejected_count(agent.state, self.watchers)
        watches = tuple(_watch(watcher, clock) for watcher in self.watchers)
        repairs = _repairs(agent, history)
        deprecations = tuple(_deprecation(finding) for finding in self._findings())
        status = agent.health.status(clock)
        wrong = list(_wrong(agent, status))
        doubtful = list(_doubtful(agent, status, len(refused), rejected, repairs, watches, deprecations))
        verdict: Verdict = "unhealthy" if wrong else "attention" if doubtful else "healthy"
        return Summary(
            version=self._version,
            python=platform.python_version(),
            node=agent.state.place.node,
            now=now,
            started=self._started,
            health=Health(
                verdict=verdict,
                reasons=(*wrong, *doubtful),
                programmed=status.programmed,
                eligible=status.eligible,
                synced_ago=status.synced_ago,
                waiting=look.waiting(agent),
                failures=agent.sync_failures,
            ),
            families=tuple(_families(agent)),
            protection=_protection(agent),
            counts=self._count(),
            source=self._source,
            watches=watches,
            rejected=rejected,
            refused=len(refused),
            refused_ports=tuple(_refused(aside) for aside in refused[:NAMED]),
            repairs=repairs,
            deprecations=deprecations,
            settings=self._settings,
            changed=self._changed,
            history=history,
        )

    def _count(self) -> Counts:
        """Looks at all slices, but only when one has changed."""
        state = self.agent.state
        seen = (state.service_changes, state.slice_changes)
        if seen != self._counts[0]:
            sizes = [len(slice_.endpoints) for slice_ in look.slices(state)]
            counts = Counts(services=len(look.services(state)), slices=len(sizes), endpoints=sum(sizes))
            self._counts = (seen, counts)
        return self._counts[1]


def _wrong(agent: Agent, status: Status) -> Iterator[str]:
    """What keeps traffic from being served as it should."""
    if not status.programmed:
        yield "no rules are programmed yet" + ("" if agent.state.is_complete else _LISTS)
    if not status.works:
        yield "a change waits for longer than it may: the log says why (transaction_refused)"


_LISTS: Final = ": the first complete lists of Services and EndpointSlices have not come"


def _doubtful(
    agent: Agent,
    status: Status,
    refused: int,
    rejected: int,
    repairs: Repairs,
    watches: Iterable[Watch],
    deprecations: Iterable[Deprecation],
) -> Iterator[str]:
    if status.programmed and status.synced_ago is None:
        yield "the rules are an earlier agent's" + ("" if agent.state.is_complete else _LISTS)
    if not status.eligible:
        yield "this node gets no new connections from load balancers: it is about to go, or there is no such Node"
    if refused:
        yield f"{many(refused, 'service port')} left out: the kernel does not take {'it' if refused == 1 else 'them'}"
    if rejected:
        yield f"{many(rejected, 'object or claim of an address', 'objects or claims of addresses')} left out"
    if repairs.recent:
        yield "others changed our tables within the last hour; it was undone"
    for watch in watches:
        if watch.heard_ago is not None and watch.heard_ago > SILENT_SECONDS:
            yield f"nothing was heard of {watch.kind} objects for {watch.heard_ago:.0f} s: what is shown may be old"
    broken = sum(one.severity == "broken" for one in deprecations)
    if broken:
        yield f"{many(broken, 'finding')} about kube-proxy's modes on this node: broken"


def _families(agent: Agent) -> Iterator[FamilyShown]:
    for family in sorted(agent.tables.families):
        table = agent.tables.programmed.get(family)
        yield FamilyShown(
            family=IP_FAMILIES[family],
            programmed=table is not None,
            service_ports=len(table.entries) if table else 0,
            elements=sum(list(table.sizes.values())) if table else 0,
        )


def _protection(agent: Agent) -> Protection:
    if agent.standby:
        return "standby" if agent.standby.is_ready else "standby-missing"
    return "owned" if agent.tables.owned else "watched"


def _watch(watcher: look.Watcher, clock: float) -> Watch:
    return Watch(
        kind=watcher.kind,
        mode=watcher.mode,
        heard_ago=max(0.0, clock - watcher.heard_at) if watcher.heard_at else None,
        failures=watcher.failures,
        relists=watcher.relists,
        left_out=len(watcher.left_out),
    )


def _repairs(agent: Agent, history: History) -> Repairs:
    recent = tuple(slot.at for slot in history.slots if slot.repairs)
    return Repairs(count=agent.repairs, recent=recent, looks=agent.audits.done if agent.audits else None)


def _refused(aside: Aside) -> Refused:
    name = aside.port.name if aside.port else "one that is gone"
    return Refused(service_port=name, address=describe_key(aside.key), error=str(aside.failure))


def _deprecation(finding: Finding) -> Deprecation:
    return Deprecation(
        check=finding.check,
        severity=finding.severity,
        title=finding.title,
        remedy=finding.remedy,
        kep=finding.kep,
        breaks_in=finding.breaks_in,
    )


def _text(value: object) -> str:
    """As kube-proxy's configuration spells it."""
    match value:
        case bool():
            return str(value).lower()
        case list():
            return ", ".join(map(str, value))
        case dict():
            return ", ".join(f"{name}={_text(one)}" for name, one in value.items())
    return str(value)
