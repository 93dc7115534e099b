"""/healthz and /livez (KEP-3836): whether this proxy does its work, and whether this node is to get new traffic. Pure.

The words and the JSON are kube-proxy's. /livez is for whoever can restart the agent; /healthz is for load balancers,
which may ask any node for Services with externalTrafficPolicy: Cluster, and for the pod's readiness.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Final

from msgspec import Struct

from proxy.http_message import Request, Response, only_reads, text
from proxy.measures import Counts
from rules.objects import Family

HEALTHZ: Final = "/healthz"
LIVEZ: Final = "/livez"

NEVER: Final = "0001-01-01T00:00:00Z"
"""Go's zero time."""
_NAMES: Final = {Family.IPV4: "IPv4", Family.IPV6: "IPv6"}


class Status(Struct, frozen=True):
    """works: no change waits for longer than it may. programmed: the kernel holds rules, be they an earlier agent's.
    eligible: load balancers may send new connections to this node. synced_ago: seconds since the last sync; None: there
    was none.
    """

    works: bool
    programmed: bool
    eligible: bool
    synced_ago: float | None = None


class Health:
    """What `status` is made of. Cheap, and for any thread; `now` is a monotonic clock's, in seconds.

    A change that waits for the API server, or for the Node, is none: a restart of the agent would not help.
    timeout: how long a change may wait (kube-proxy: twice the sync period). programmed: there are rules already.
    """

    def __init__(self, timeout: float, *, programmed: bool = False) -> None:
        self._timeout = timeout
        self._programmed = programmed
        self._eligible = True
        self._waits_since: float | None = None
        self._synced_at: float | None = None
        self._lock = threading.Lock()

    def queued(self, now: float) -> None:
        """Something is to be programmed from now on. Those that follow before `synced` do not count."""
        with self._lock:
            if self._waits_since is None:
                self._waits_since = now

    def synced(self, now: float) -> None:
        """All that was queued is programmed."""
        with self._lock:
            self._waits_since, self._synced_at, self._programmed = None, now, True

    def node_eligible(self, eligible: bool) -> None:
        """The Node says so, or that it is about to go."""
        self._eligible = eligible

    def status(self, now: float) -> Status:
        with self._lock:
            works = self._waits_since is None or now - self._waits_since < self._timeout
            ago = None if self._synced_at is None else max(0.0, now - self._synced_at)
            return Status(works, self._programmed, self._eligible, ago)


def answer(request: Request, status: Status, families: Iterable[Family], now: datetime) -> Response:
    """families: those that are programmed. now: with a time zone.

    Before the first sync /livez is well, and /healthz only if an earlier agent left rules: without any, traffic that
    comes here is lost.
    """
    refused = only_reads(request)
    if request.path not in (HEALTHZ, LIVEZ) or refused:
        return refused or text(HTTPStatus.NOT_FOUND)
    healthy = status.works and (status.programmed or request.path == LIVEZ)
    synced = NEVER if status.synced_ago is None else _time(now - timedelta(seconds=status.synced_ago))
    fit = healthy and (status.eligible or request.path == LIVEZ)
    said: dict[str, object] = {
        # Of one that is well "just now", whether or not there was anything to do: as kube-proxy, which has its reasons.
        "lastUpdated": _time(now) if fit else synced,
        "currentTime": _time(now),
    }
    if request.path == HEALTHZ:
        said["nodeEligible"] = status.eligible
    said["healthy"] = healthy
    if status.synced_ago is not None:
        said["status"] = {_NAMES[f]: {"lastUpdated": synced, "healthy": healthy} for f in sorted(families)}
    headers = {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"}
    body = json.dumps(said, separators=(",", ":")).encode()
    return Response(HTTPStatus.OK if fit else HTTPStatus.SERVICE_UNAVAILABLE, body, headers)


def pages(
    health: Health,
    families: Iterable[Family],
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    probes: Counts | None = None,
) -> Callable[[Request], Response]:
    """The same as one function of the request, for a server. clock: that of `health`. probes: is told of each answer that
    says something of our health: (path, code)."""
    programmed = tuple(families)

    def page(request: Request) -> Response:
        said = answer(request, health.status(clock()), programmed, now())
        if probes and said.status in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE):
            probes.add((request.path, str(said.status.value)))
        return said

    return page


def _time(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
