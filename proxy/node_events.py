"""Tells the API server of what happens on this node: Events that `kubectl describe node` and `kubectl events` show.

A thread of its own sends them. Which ones, and when again, is decided in proxy.event_series.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from proxy.event_object import PATH, event_body, occurrence, series_patch
from proxy.event_series import Aggregator, Request
from proxy.trouble import UNREACHABLE, Trouble, refusal

READ_TIMEOUT: Final = 10.0
STOP_TIMEOUT: Final = 0.5
MERGE_PATCH: Final = "application/merge-patch+json"

LOG = structlog.get_logger()


class Reply(Protocol):
    """What is needed of proxy.apiserver.Reply."""

    @property
    def status(self) -> int: ...

    @property
    def body(self) -> bytes: ...

    @property
    def retry_after(self) -> float: ...


class Transport(Protocol):
    """What is needed of proxy.apiserver.Connection. `send` raises Trouble when there is no answer."""

    def send(
        self, method: str, path: str, body: bytes, *, content_type: str = "application/json", read_timeout: float = 10.0
    ) -> Reply: ...


class EventRecorder:
    """Sends Events about the Node `node`. `clock`: monotonic seconds; `wall`: nanoseconds since 1970."""

    def __init__(
        self,
        transport: Transport,
        node: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], int] = time.time_ns,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self.node_uid = ""
        """The Node's metadata.uid, as soon as it is known; may be set at any time."""
        self._transport, self._node = transport, node
        self._clock, self._wall, self._rand = clock, wall, rand
        self._events = Aggregator(node, clock())
        self._wake = threading.Condition()
        self._stop_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="node-events", daemon=True)

    def record(self, reason: str, note: str, *, warning: bool = False, action: str = "", key: str = "") -> None:
        """It happened now. reason: a CamelCase word for machines; note: words for people; action: what was being done.

        The same again within six minutes is counted, not told again. With a `key`, it is told once in the hour for
        which the server keeps Events, also when this process is started again in between. Never blocks on the network,
        never raises. May be called before `start`; after `stop` nothing is sent any more.
        """
        what = occurrence(reason, note, warning=warning, action=action, key=key, time=self._wall())
        with self._wake:
            self._events.record(what, self._clock())
            self._wake.notify()

    @property
    def dropped(self) -> int:
        """How many occurrences no Event tells of: too many, or the server did not take them."""
        return self._events.dropped

    def start(self) -> None:
        """Begin to send. Returns at once."""
        self._thread.start()

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Send what can be sent within `timeout` seconds, and end. May be called without `start`, and again."""
        with self._wake:
            if self._stop_at is None:
                self._stop_at = self._clock() + timeout
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:  # a bug: no reason to leave the node without its Services
            LOG.error("node_events_ended", cause=f"{type(error).__name__}: {error}", remedy="please report this")

    def _turn(self) -> bool:
        """Make the next request, or wait. False: it is time to end."""
        with self._wake:
            is_stopping = self._stop_at is not None
            request = self._events.next_request(self._clock(), flush=is_stopping)
            notices, self._events.notices = self._events.notices, []
            if request is None and not notices:
                if is_stopping:
                    return False
                at = self._events.wake_at()
                self._wake.wait(None if at is None else max(0.0, at - self._clock()))
                return True
        for notice in notices:
            details = {"remedy": notice.remedy} if notice.remedy else {}
            LOG.warning(
                notice.event, reason=notice.reason, note=notice.note, lost=notice.count, cause=notice.cause, **details
            )
        return request is None or self._send(request)

    def _send(self, request: Request) -> bool:
        """Make this request and take in the answer. False: there is no time left."""
        seconds = READ_TIMEOUT if self._stop_at is None else self._stop_at - self._clock()
        if seconds <= 0:
            return False
        try:
            trouble = self._ask(request, seconds)
        except Trouble as error:
            trouble = error
        except OSError as error:
            trouble = Trouble(UNREACHABLE, str(error))
        with self._wake:
            self._events.answered(request, trouble, self._clock(), self._rand())
        return True

    def _ask(self, request: Request, seconds: float) -> Trouble | None:
        """What is wrong with the answer, if anything. Raises Trouble and OSError when there is none."""
        count, last = request.count, request.last
        if request.create:
            body = event_body(request.series.what, self._node, self.node_uid, request.name, count, last)
            reply = self._transport.send("POST", PATH, body, read_timeout=seconds)
        else:
            path, body = f"{PATH}/{request.name}", series_patch(count, last)
            reply = self._transport.send("PATCH", path, body, content_type=MERGE_PATCH, read_timeout=seconds)
        if 200 <= reply.status < 300:
            return None
        trouble = refusal(reply.status, "", reply.body)
        trouble.retry_after = reply.retry_after
        return trouble
