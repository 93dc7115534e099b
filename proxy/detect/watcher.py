"""Looks in the running agent for what is deprecated on its node, and tells of it: in the log, in Events, as a metric.

Begins when the agent has programmed the node for the first time, so that it delays nothing, and looks again every few
minutes: at what cost, see INTERVAL. A finding is told when it is found, when the cluster has another version, and when it is
gone.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import structlog

from proxy.detect import versions
from proxy.detect.api_reader import ApiReader, Transport
from proxy.detect.cluster import server_version
from proxy.detect.evidence import Evidence
from proxy.detect.findings import Finding
from proxy.detect.judge import judge
from proxy.detect.report import describe
from proxy.node_reports import START, Nobody, Recorder
from proxy.trouble import Trouble

LOG = structlog.get_logger()

INTERVAL: Final = 300.0
"""Seconds between two looks. One takes 15 ms of a CPU on a node without rules of kube-proxy, 70 ms with those of 5,000
Services."""
VERSION_SECONDS: Final = 6 * 3600.0
"""For so long the API server's version is taken for the same: all nodes ask for it."""
STOP_TIMEOUT: Final = 0.2

METRIC: Final = "kube_proxy_nft_deprecation"
ABOUT: Final = "What is deprecated or broken about kube-proxy's modes on this node, or will be; 1 for each finding."
LABELS: Final = ("kep", "mode", "source", "check", "severity", "breaks_in")

REASONS: Final = {
    "ipvs-mode": "IPVSDeprecation",  # kube-proxy's own
    "ipvs-gate": "IPVSFeatureGate",
    "kernel-without-ipvs": "IPVSMissing",
    "mode-unset": "ProxyModeUnset",
    "mode-unknown": "ProxyModeUnknown",
    "config-refused": "ProxyConfigRefused",
    "ipvs-leftover": "ProxyLeftovers",
    "iptables-leftover": "ProxyLeftovers",
    "nftables-leftover": "ProxyLeftovers",
    "two-dataplanes": "TwoDataPlanes",
    "two-proxies": "TwoProxies",
    "kernel-too-old": "KernelTooOld",
}
"""Reasons of Events, by check. Notices are no Events."""
OTHER: Final = "ProxyDeprecation"


class Sign(NamedTuple):
    """The labels of a finding. Together with the name of its place it is the same one as before, whatever the counts and
    process identifiers in its words."""

    kep: str
    mode: str
    source: str
    check: str
    severity: str
    breaks_in: str

    @classmethod
    def of(cls, finding: Finding) -> Sign:
        """source: the kind of place that shows it most surely."""
        source = finding.evidence[0].place.kind if finding.evidence else ""
        return cls(finding.kep, finding.mode, source, finding.check, finding.severity, finding.breaks_in)


class DeprecationWatcher:
    """A thread, from `start` to `stop`; it waits until the watcher is called for the first time, as a follower of the agent.

    gather: this node's evidence. version: the cluster's, '' when it is not known. show: gets the labels of all findings.
    clock, rand, rest: monotonic seconds; from 0 to 1; waits for seconds and returns whether it is to end.
    """

    def __init__(
        self,
        gather: Callable[[], Iterable[Evidence]],
        version: Callable[[], str] = lambda: "",
        recorder: Recorder = Nobody(),  # noqa: B008  # it has no state
        show: Callable[[Iterable[Mapping[str, str]]], None] = lambda _series: None,
        *,
        rand: Callable[[], float] = random.random,
        rest: Callable[[float], bool] | None = None,
    ) -> None:
        self._gather, self._version, self._recorder, self._show = gather, version, recorder, show
        self._rand = rand
        self._begin, self._end = threading.Event(), threading.Event()
        self._rest = rest or self._end.wait
        self._known: dict[tuple[Sign, str], Finding] = {}
        self._judged_by: versions.Version | None = None
        self._thread = threading.Thread(target=self._run, name="deprecations", daemon=True)

    def __call__(self, _done: object) -> None:
        """The agent has programmed something."""
        self._begin.set()

    def start(self) -> None:
        """Returns at once. Sockets are of the network namespace of the calling thread."""
        self._thread.start()

    def stop(self) -> None:
        """May be called without `start`. A look that goes on is not waited for long."""
        self._end.set()
        self._begin.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_TIMEOUT)

    @property
    def findings(self) -> list[Finding]:
        """Of the last look; for any thread."""
        return list(self._known.values())

    def look(self) -> None:
        """Look once, and tell what is new."""
        report = judge(self._gather(), self._version())
        judged_by = versions.parse(report.kubernetes)
        is_upgraded, self._judged_by = judged_by != self._judged_by, judged_by
        found = {(Sign.of(finding), _where(finding)): finding for finding in reversed(report.findings)}
        for key in self._known.keys() - found.keys():
            LOG.info("deprecation_gone", **_shown(key[0]), was=self._known[key].title)
        for key, finding in reversed(found.items()):
            if key not in self._known or is_upgraded:
                self._tell(*key, finding)
        self._known = found
        self._show([sign._asdict() for sign in dict.fromkeys(sign for sign, _ in found)])

    def _tell(self, sign: Sign, where: str, finding: Finding) -> None:
        log = LOG.info if finding.severity == "notice" else LOG.warning
        log(
            "deprecation_found",
            **_shown(sign),
            what=finding.title,
            explanation=finding.explanation,
            remedy=finding.remedy,
            found=[describe(item) for item in finding.evidence],
        )
        if finding.severity == "notice":
            return
        # After an upgrade of the cluster it is told anew; after a restart of the agent it is not.
        key = "/".join([*sign, where, versions.show(self._judged_by) if self._judged_by else ""])
        note = ". ".join(_sentences(finding))
        self._recorder.record(REASONS.get(finding.check, OTHER), note, warning=True, action=START, key=key)

    def _run(self) -> None:
        self._begin.wait()
        while not self._end.is_set():
            try:
                self.look()
            except Exception as error:  # a bug: no reason to leave the node without its Services
                LOG.error(
                    "deprecation_watch_failed", cause=f"{type(error).__name__}: {error}", remedy="report this bug"
                )
            # Not all nodes at once, after a rollout.
            if self._rest(INTERVAL * (0.9 + 0.2 * self._rand())):
                return


class ServerVersion:
    """The version of the API server, asked for seldom; '' while it cannot be had, and the last one when it is away."""

    def __init__(self, transport: Transport, clock: Callable[[], float] = time.monotonic) -> None:
        self._transport, self._clock = transport, clock
        self._version, self._ask_at = "", clock()

    def __call__(self) -> str:
        now = self._clock()
        if now >= self._ask_at:
            try:
                self._version = server_version(ApiReader(self._transport, read_timeout=10.0))
                self._ask_at = now + VERSION_SECONDS
            except Trouble as trouble:
                LOG.debug("server_version_unknown", cause=trouble.cause)
        return self._version


def _where(finding: Finding) -> str:
    """The place that shows it most surely, without what is another one after a restart."""
    if not finding.evidence:
        return ""
    place = finding.evidence[0].place
    return re.sub(r"^\d+ ", "", place.name) if place.kind == "process" else place.name


def _shown(sign: Sign) -> dict[str, str]:
    return {name: value for name, value in sign._asdict().items() if value}


def _sentences(finding: Finding) -> Iterator[str]:
    """For an Event: what is said in few words comes first, because what is long is cut."""
    yield finding.title
    yield finding.explanation
    yield finding.remedy
    if url := versions.URLS.get(finding.kep):
        yield f"{finding.kep}: {url}"
