"""The part of an API server that keeps Events: refuses what the real one refuses, and can be told to misbehave.

`Told` puts it behind an Aggregator, without threads and with a clock of its own."""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from proxy.event_object import PATH, Occurrence, event_body, occurrence, series_patch
from proxy.event_series import Aggregator, Request
from proxy.trouble import UNREACHABLE, Trouble

NODE = "node0"
START = 10_000.0
BORN = 1_796_000_000 * 10**9 + 123_456_789
"""When the tests' clocks begin: monotonic seconds, nanoseconds since 1970."""
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class Reply(NamedTuple):
    status: int
    body: bytes
    retry_after: float


def faults(event: dict[str, Any]) -> list[str]:
    """What the validation of events.k8s.io/v1 finds (ValidateEventCreate)."""
    found = []
    name = event["metadata"]["name"]
    if len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        found.append(f"metadata.name: {name}")
    for field, limit in {"reason": 128, "action": 128, "reportingInstance": 128}.items():
        if not 0 < len(event[field].encode()) <= limit:
            found.append(f"{field}: {event[field]!r}")
    if len(event["note"].encode()) > 1024:
        found.append("note: too long")
    if event["metadata"]["namespace"] not in ("default", "kube-system"):
        found.append("metadata.namespace")
    if event["type"] not in ("Normal", "Warning"):
        found.append("type")
    if not _MICRO_TIME.fullmatch(event["eventTime"]):
        found.append(f"eventTime: {event['eventTime']}")
    return found + series_faults(event.get("series"))


def series_faults(series: dict[str, Any] | None) -> list[str]:
    if series is None or (series["count"] >= 2 and _MICRO_TIME.fullmatch(series["lastObservedTime"])):
        return []
    return [f"series: {series}"]


AWAY = 0
"""An answer: there is none, and nothing was done."""

LOST = -1
"""An answer: it was done, and the answer gets lost."""


class EventStore:
    """A transport for EventRecorder. `answers`: what the next requests get: an HTTP status, AWAY or LOST; then all is
    well. `requests`: method, name and status of each. `gate`: while it is not set, requests get no answer."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, int]] = []
        self.answers: deque[int] = deque()
        self.retry_after = 0.0
        self.gate = threading.Event()
        self.gate.set()
        self._waiting = 0
        self._happened = threading.Condition()

    def send(
        self, method: str, path: str, body: bytes, *, content_type: str = "application/json", read_timeout: float = 10.0
    ) -> Reply:
        self._count(1)
        opened = self.gate.wait(read_timeout)
        self._count(-1)
        answer = self.answers.popleft() if self.answers else None
        if not opened:
            raise Trouble(UNREACHABLE, "timed out")
        name = path.removeprefix(PATH).removeprefix("/")
        status = answer if answer and answer > 0 else AWAY
        if answer is None or answer == LOST:
            status = self._serve(method, name, json.loads(body), content_type)
        with self._happened:
            self.requests.append((method, name or json.loads(body)["metadata"]["name"], status))
            self._happened.notify_all()
        if answer in (AWAY, LOST):
            raise Trouble(UNREACHABLE, "no route to host")
        return Reply(status, b'{"kind":"Status","message":"said so"}', self.retry_after)

    def _serve(self, method: str, name: str, body: dict[str, Any], content_type: str) -> int:
        if method == "POST":
            assert content_type == "application/json" and not name
            if faults(body):
                return 422
            name = body["metadata"]["name"]
            if name in self.events:
                return 409
            self.events[name] = body
            return 201
        assert method == "PATCH" and content_type == "application/merge-patch+json"
        if name not in self.events:
            return 404
        assert set(body) == {"series"}, "all else is immutable"
        if series_faults(body["series"]):
            return 422
        self.events[name] |= body
        return 200

    @property
    def counts(self) -> dict[str, int]:
        """By note, how often it happened."""
        return {event["note"]: event.get("series", {"count": 1})["count"] for event in self.events.values()}

    def _count(self, change: int) -> None:
        with self._happened:
            self._waiting += change
            self._happened.notify_all()

    def wait_for_request(self) -> None:
        """Until one waits at the gate."""
        self.wait_until(lambda: self._waiting > 0)

    def wait_until(self, done: Callable[[], bool]) -> None:
        """`done` is asked whenever a request has come or was answered."""
        with self._happened:
            assert self._happened.wait_for(done, 10.0), (self.requests, self.events)


def what(reason: str = "Starting", note: str = "", key: str = "", time: int = BORN) -> Occurrence:
    return occurrence(reason, note, warning=False, action="StartKubeProxy", key=key, time=time)


class Told:
    """An aggregator with a server and a clock of its own."""

    def __init__(self) -> None:
        self.store = EventStore()
        self.now = START
        self.events = Aggregator(NODE, self.now)
        self.series: set[int] = set()
        self._alive: list[Any] = []  # so that ids are not used twice

    def happens(self, reason: str = "Starting", note: str = "", key: str = "", times: int = 1) -> None:
        for _ in range(times):
            self.events.record(what(reason, note, key, BORN + int(self.now * 1e9)), self.now)

    def ask(self, *, flush: bool = False) -> Request | None:
        """Make one request, if there is one."""
        request = self.events.next_request(self.now, flush=flush)
        if request is None:
            return None
        if id(request.series) not in self.series:
            self.series.add(id(request.series))
            self._alive.append(request.series)
        try:
            if request.create:
                body = event_body(request.series.what, NODE, "", request.name, request.count, request.last)
                reply = self.store.send("POST", PATH, body)
            else:
                body = series_patch(request.count, request.last)
                path = f"{PATH}/{request.name}"
                reply = self.store.send("PATCH", path, body, content_type="application/merge-patch+json")
            status, retry_after = reply.status, reply.retry_after
            trouble = None if status < 300 else Trouble(status, f"HTTP {status}", retry_after)
        except Trouble as error:
            trouble = error
        self.events.answered(request, trouble, self.now, 0.5)
        return request

    def ask_all(self, *, flush: bool = False) -> list[str]:
        """The methods of the requests that were made."""
        count = len(self.store.requests)
        while self.ask(flush=flush):
            assert len(self.store.requests) < count + 5000, "no end"
        return [method for method, _, _ in self.store.requests[count:]]

    def later(self, seconds: float) -> list[str]:
        self.now += seconds
        return self.ask_all()
