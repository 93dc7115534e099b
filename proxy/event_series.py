"""Which Events to tell the API server, and when: aggregated and rate-limited as Kubernetes does. Pure.

What happens once is an Event. What happens again within FINISH seconds is counted in that Event's series: the second
time is told at once, further ones every REFRESH seconds (the server forgets Events after an hour, so this also keeps
what lasts) and when it is over. These are the rules of client-go's recorder for events.k8s.io; the limits on how many
Events there may be are those of its older recorder.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct, structs

from proxy.event_object import NAMESPACE, NOTE_BYTES, Occurrence, cut, event_name, told_once
from proxy.trouble import UNREACHABLE, Trouble, backoff

FINISH: Final = 360.0
REFRESH: Final = 1800.0
# New Events: so many at once, and then one every so many seconds.
BURST: Final = 25
REFILL: Final = 300.0
# This many that differ in their note only; what comes then is counted in one more Event.
SIMILAR: Final = 10
COMBINED: Final = "(combined from similar events): "
# How long the API server keeps an Event, by default: so long a key is remembered.
TOLD: Final = 3600.0
# What is remembered at most. The limits above keep it below, unless very many things go on for very long.
LIMIT: Final = 64
# Requests for one Event; with the pauses of `backoff` this is some ten minutes.
TRIES: Final = 30
FORBIDDEN: Final = 600.0
RULE: Final = 'verbs ["create", "patch"] on resource "events" in apiGroup "events.k8s.io"'


class Step(Enum):
    DONE = "done"
    RENAME = "the name is taken, take another"
    CREATE = "the Event is gone, make it anew"
    RETRY = "try again, later"
    WAIT = "try again, much later"
    DROP = "give it up"


def what_next(trouble: Trouble, *, create: bool, keyed: bool, unsure: bool) -> Step:
    """What to do after `trouble`. create: of a POST, else of a PATCH. unsure: an earlier answer got lost."""
    status = trouble.status
    if status == 409 and create and trouble.reason != "Conflict":
        return Step.DONE if keyed or unsure else Step.RENAME
    if status == 404 and not create:
        return Step.CREATE
    if status == 403:
        return Step.WAIT
    # 401: the credentials are read anew after it.
    if status in (UNREACHABLE, 401, 408, 409, 429) or status >= 500:
        return Step.RETRY
    return Step.DROP


class Series(Struct):
    """One Event. count: occurrences, the last one at `last` (nanoseconds since 1970) and `seen` (monotonic seconds).
    told: how many of them the server knows, since `told_at`; 0: it does not have the Event."""

    what: Occurrence
    name: str
    last: int
    seen: float
    count: int = 1
    told: int = 0
    told_at: float = 0.0
    tries: int = 0
    unsure: bool = False

    def due(self) -> float | None:
        """When the server has to hear of it."""
        if not self.told or (self.told == 1 and self.count > 1):
            return 0.0
        return min(self.seen + FINISH, self.told_at + REFRESH) if self.count > self.told else None

    def is_over(self, now: float) -> bool:
        """Nothing more to tell, and long enough ago that the next time is a new story."""
        if self.what.key:
            return self.told > 0 and now >= self.told_at + TOLD
        return self.told == self.count and now >= self.seen + FINISH


class Request(Struct, frozen=True):
    """create: POST, else PATCH the Event `name`. count, last: as in Series, when it was asked."""

    series: Series
    create: bool
    name: str
    count: int
    last: int


class Notice(Struct, frozen=True):
    """Something for the log. event: its name there. count: occurrences that no Event will tell of."""

    event: str
    reason: str
    note: str
    count: int
    cause: str
    remedy: str = ""


_Kind = tuple[bool, str, str]


class Aggregator:
    """The Events about one node. Times called `now` are monotonic seconds.

    One request at a time: what `next_request` gives is to be made and its answer handed to `answered`.
    """

    def __init__(self, node: str, now: float) -> None:
        self.node = node
        self.dropped = 0
        """How many occurrences no Event tells of."""
        self.notices: list[Notice] = []
        """For the log; the caller empties it."""
        self._series: dict[tuple[_Kind, str], Series] = {}
        self._asked: Series | None = None
        self._tokens, self._tokens_at = float(BURST), now
        self._suffix = 0
        self._failures = 0
        self._quiet_until = now
        self._is_limited = False
        self._is_forbidden = False

    def __len__(self) -> int:
        return len(self._series)

    # -- What happens --------------------------------------------------------------------------------------------------

    def record(self, what: Occurrence, now: float) -> None:
        """It happened."""
        self._forget(now)
        kind = (what.warning, what.reason, what.action)
        key = (kind, what.key or what.note)
        if key not in self._series and sum(known == kind for known, _ in self._series) >= SIMILAR:
            key = (kind, COMBINED)
            what = structs.replace(what, note=cut(COMBINED + what.note, NOTE_BYTES), key="")
        same = self._series.get(key)
        if same is None:
            if self._may_begin(what, now):
                name = told_once(self.node, what.key) if what.key else self._new_name(what.time)
                self._series[key] = Series(what, name, what.time, now)
        elif not same.what.key:
            same.count += 1
            same.last, same.seen = what.time, now

    def _may_begin(self, what: Occurrence, now: float) -> bool:
        """Whether there may be another Event; another one may have to go for it."""
        self._tokens = min(float(BURST), self._tokens + (now - self._tokens_at) / REFILL)
        self._tokens_at = now
        if self._tokens < 1:
            self._limit(what, 1)
            return False
        self._tokens -= 1
        if len(self._series) < LIMIT:
            self._is_limited = False
            return True
        oldest = min((s for s in self._series.values() if s is not self._asked), key=lambda s: s.seen)
        self._limit(oldest.what, self._remove(oldest))
        return True

    def _limit(self, what: Occurrence, count: int) -> None:
        self.dropped += count
        if not self._is_limited:
            self._is_limited = True
            cause = "too many Events: only some of them are sent from now on"
            self.notices.append(Notice("node_events_limited", what.reason, what.note, count, cause))

    def _forget(self, now: float) -> None:
        for key in [key for key, series in self._series.items() if series.is_over(now)]:
            del self._series[key]

    def _remove(self, series: Series) -> int:
        """How many of its occurrences were not told."""
        self._series = {key: other for key, other in self._series.items() if other is not series}
        return series.count - series.told

    def _new_name(self, time: int) -> str:
        self._suffix = max(time, self._suffix + 1)
        return event_name(self.node, f"{self._suffix:x}")

    # -- What is told --------------------------------------------------------------------------------------------------

    def next_request(self, now: float, *, flush: bool = False) -> Request | None:
        """What to ask of the server now; None: nothing yet. `flush`: also what could wait."""
        if now < self._quiet_until:
            return None
        for series in self._series.values():
            due = series.due()
            if due is not None and (due <= now or flush):
                self._asked = series
                return Request(series, not series.told, series.name, series.count, series.last)
        return None

    def wake_at(self) -> float | None:
        """When there will be something to ask, if nothing happens; None: never."""
        times = [due for series in self._series.values() if (due := series.due()) is not None]
        return max(min(times), self._quiet_until) if times else None

    def answered(self, request: Request, trouble: Trouble | None, now: float, rand: float) -> None:
        """How the last request ended; `trouble` None: well. `rand`: from 0 to 1."""
        series, self._asked = request.series, None
        series.tries += 1
        create, keyed = request.create, bool(series.what.key)
        step = what_next(trouble, create=create, keyed=keyed, unsure=series.unsure) if trouble else Step.DONE
        self._failures = self._failures + 1 if step is Step.RETRY else 0
        if trouble is None or step is Step.DONE:
            # An Event that was there already is one that we made with the answer lost, or an earlier agent's.
            series.told = 1 if trouble else request.count
            series.told_at, series.tries, series.unsure = now, 0, False
            self._is_forbidden = False
            return
        if step is Step.DROP or series.tries >= TRIES:
            self._give_up(series, trouble.cause)
        elif step is Step.RENAME:
            series.name = self._new_name(self._suffix + 1 + int(rand * 10**9))
        elif step is Step.CREATE:
            series.told = 0
        else:
            # A server that did not answer, or not for itself, may have done it all the same.
            series.unsure |= trouble.status == UNREACHABLE or trouble.status >= 500
            self._to_the_end(series)
        if step is Step.RETRY:
            self._quiet_until = now + max(backoff(self._failures - 1, rand), trouble.retry_after)
        elif step is Step.WAIT:
            self._quiet_until = now + FORBIDDEN
            if not self._is_forbidden:
                self._is_forbidden = True
                remedy = f"grant this account, in a Role of namespace {NAMESPACE} or a ClusterRole: {RULE}"
                self.notices.append(
                    Notice("node_events_forbidden", series.what.reason, series.what.note, 0, trouble.cause, remedy)
                )

    def _give_up(self, series: Series, cause: str) -> None:
        count = self._remove(series)
        self.dropped += count
        self.notices.append(Notice("node_event_lost", series.what.reason, series.what.note, count, cause))

    def _to_the_end(self, series: Series) -> None:
        """Let the others be tried first."""
        for key, other in self._series.items():
            if other is series:
                self._series[key] = self._series.pop(key)
                return
