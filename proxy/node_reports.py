"""What the agent says about this node in Events: their reasons and words. Says nothing twice that is no news."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final, Protocol

from proxy.object_faults import Problem

# Reasons, the API's machine-readable words. `Starting`, and the action with it, are kube-proxy's.
STARTING: Final = "Starting"
FAILED_TO_START: Final = "FailedToStart"
FAILED_TO_SYNC: Final = "FailedToSyncRules"
SYNC_RECOVERED: Final = "SyncRulesRecovered"
REFUSED: Final = "ServicePortRefused"
CONFLICT: Final = "AddressConflict"

START: Final = "StartKubeProxy"
SYNC: Final = "SyncRules"

PATIENCE: Final = 30.0
"""Seconds for which a sync may fail before it is worth an Event: the agent mends most failures within these."""

NAMED: Final = 3
"""How many conflicts are written out in one Event."""


class Recorder(Protocol):
    """What is needed of proxy.node_events.EventRecorder."""

    def record(self, reason: str, note: str, *, warning: bool = False, action: str = "", key: str = "") -> None: ...


class Nobody:
    """The Recorder of an agent that has no API server to tell."""

    def record(self, reason: str, note: str, *, warning: bool = False, action: str = "", key: str = "") -> None:
        pass


class NodeReports:
    """For the agent's thread: nothing here waits. `now`: monotonic seconds."""

    def __init__(self, recorder: Recorder = Nobody()) -> None:  # noqa: B008  # it has no state
        self._recorder = recorder
        self._failing_since: float | None = None
        self._has_told = False

    def started(self, version: str) -> None:
        """The agent programs this node now."""
        self._recorder.record(STARTING, f"kube-proxy-nft {version}", action=START)

    def start_failed(self, cause: str) -> None:
        """The agent has to end before it has programmed anything."""
        self._recorder.record(FAILED_TO_START, cause, warning=True, action=START, key=f"{FAILED_TO_START} {cause}")

    def configured(self, reason: str, note: str) -> None:
        """Something in the configuration is deprecated or has no effect. Told once in an hour, not at every start."""
        self._recorder.record(reason, note, warning=True, action=START, key=f"{reason} {note}")

    def sync_failed(self, cause: str, now: float) -> None:
        """The rules could not be programmed, again. To be called at each try: it is told when it lasts."""
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= PATIENCE:
            self._has_told = True
            note = f"The rules in the kernel are not up to date, for more than {PATIENCE:.0f} s: {cause}"
            self._recorder.record(FAILED_TO_SYNC, note, warning=True, action=SYNC)

    def sync_works(self, now: float) -> None:
        """The rules are as they should be."""
        if self._failing_since is None:
            return
        if self._has_told:
            note = f"The rules in the kernel are up to date again, after {now - self._failing_since:.0f} s"
            self._recorder.record(SYNC_RECOVERED, note, action=SYNC)
        self._failing_since, self._has_told = None, False

    def refused(self, note: str) -> None:
        """Service ports that the kernel does not take. note: as proxy.refusals.report gives it; "": none."""
        if note:
            self._recorder.record(REFUSED, note, warning=True, action=SYNC, key=f"{REFUSED} {note}")

    def conflicts(self, problems: Sequence[Problem]) -> None:
        """Services that claim what belongs to others, as far as it is news. All of them in one Event."""
        if not problems:
            return
        # In the order of names: after a restart the same conflicts are the same words, and not told again.
        first = heapq.nsmallest(NAMED, problems, key=lambda p: (p.namespace, p.name, p.reason))
        note = "; ".join(f"Service {p.namespace}/{p.name}: {p.reason}" for p in first)
        if len(problems) > len(first):
            note = f"{len(problems)} claims of addresses that other Services have; the log names all. The first: {note}"
        self._recorder.record(CONFLICT, note, warning=True, action=SYNC, key=f"{CONFLICT} {note}")
