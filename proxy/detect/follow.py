"""Looking again and again, and what counts as a change. No clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import structlog

from proxy.detect.evidence import Evidence, IpvsInterface, IpvsTable, KubeChains, KubeSets, KubeTables
from proxy.detect.findings import Report
from proxy.errors import UserError

LOG = structlog.get_logger()

SHARE: Final = 20
"""A look that takes a second is followed by so many seconds of rest, at least: a twentieth of one core is the most."""

T = TypeVar("T")


def follow(
    look: Callable[[], Report],
    show: Callable[[Report], bool],
    rest: Callable[[float], bool],
    clock: Callable[[], float],
    *,
    interval: float,
) -> Report:
    """Show what there is, and again whenever it changed, until `show` or `rest` return False. The last report.

    rest: waits so many seconds. clock: monotonic seconds. When a later look raises UserError, that is logged, once, and
    what was there before stays.
    """
    began = clock()
    shown = report = look()
    trouble = ""
    goes_on = show(report)
    while goes_on and rest(max(interval, SHARE * (clock() - began))):
        began = clock()
        try:
            report, trouble = look(), ""
        except UserError as error:
            if str(error) != trouble:
                trouble = str(error)
                LOG.warning("look_failed", cause=trouble, then="it is tried again")
            continue
        if essence(report) != essence(shown):
            shown = report
            goes_on = show(report)
    return report


def essence(report: Report) -> object:
    """What is there, without how much of it: Services and their endpoints come and go all the time."""
    return report.kubernetes, [without_counts(item) for item in report.evidence]


def without_counts(evidence: Evidence) -> object:
    match evidence:
        case IpvsTable():
            return evidence.place, evidence.kube > 0, sorted(evidence.schedulers)
        case IpvsInterface():
            return evidence.place, evidence.addresses > 0
        case KubeSets():
            return evidence.place, evidence.entries > 0
        case KubeChains():
            return evidence.place, evidence.mode, evidence.services > 0, evidence.empty
        case KubeTables():
            return evidence.place, evidence.owner, evidence.dormant
        case _:
            return evidence


class Seldom(Generic[T]):
    """What `make` gave, for so many seconds: for what costs others something."""

    def __init__(self, make: Callable[[], T], seconds: float, clock: Callable[[], float]) -> None:
        self._make, self._seconds, self._clock = make, seconds, clock
        self._made: tuple[float, T] | None = None

    def __call__(self) -> T:
        now = self._clock()
        if self._made is None or now - self._made[0] >= self._seconds:
            self._made = now, self._make()
        return self._made[1]
