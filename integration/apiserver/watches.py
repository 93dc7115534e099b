"""Watches: what one begins with, and the queue between the changes and its connection."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from integration.apiserver.cache import Cache
from integration.apiserver.kinds import Kind
from integration.apiserver.selectors import Matches
from integration.apiserver.status import bad_options, error_line
from integration.apiserver.store import Change

STREAMING = ("on", "off", "refused", "ignored")
"""What a server makes of sendInitialEvents. off: etcd cannot do it, and the stream says so (error 500); refused: a server
whose feature gate is off (422); ignored: a server that does not know the parameter."""


class Watch:
    """One running watch. Guarded by the store's lock; `wake` is on that lock."""

    def __init__(
        self, lock: threading.RLock, kind: Kind, matches: Matches, query: dict[str, str], streaming: str
    ) -> None:
        self.kind, self.matches = kind, matches
        self.wake = threading.Condition(lock)
        self.lines: deque[bytes] = deque()
        self.bookmarks = query.get("allowWatchBookmarks") in ("1", "true")
        self.initial = _wants_initial_events(query) and streaming in ("on", "off")
        self.version = 0  # changes after this one are sent
        self.ending = ""  # '', 'end' (as the server does), 'cut' and 'reset' (the connection breaks)
        self.frozen = False  # nothing is sent, and the connection stays

    def begin(self, cache: Cache, version: int, streaming: str) -> None:
        """Queue what comes before the first change. `version`: where the client wants to start."""
        self.version = version
        for line in self._first(cache, version, streaming):
            self.lines.append(line)

    def _first(self, cache: Cache, version: int, streaming: str) -> Iterator[bytes]:
        if self.initial and self.bookmarks and streaming == "off":
            why = "a watch stream was requested by the client but the required storage feature RequestWatchProgress is "
            yield error_line(500, "InternalError", why + "disabled")
            self.ending = "end"
        elif self.initial or version == 0:
            for stored in cache.ordered():
                if self.matches(stored):
                    yield stored.line("ADDED")
            self.version = cache.version
            if self.initial and self.bookmarks:
                yield bookmark(self.kind, cache.version, ',"annotations":{"k8s.io/initial-events-end":"true"}')
        elif version < cache.oldest:
            yield error_line(410, "Expired", f"too old resource version: {version} ({cache.oldest})")
            self.ending = "end"
        else:
            for change in cache.since(version):
                if line := change.line(self.matches):
                    yield line

    def offer(self, change: Change) -> None:
        if change.version > self.version and (line := change.line(self.matches)):
            self.send(line)

    def send(self, line: bytes) -> None:
        if not self.ending:  # what happens from now on is for the client's next watch
            self.lines.append(line)
            self.wake.notify_all()

    def finish(self, how: str) -> None:
        self.ending = how
        self.wake.notify_all()

    def freeze(self, frozen: bool) -> None:
        self.frozen = frozen
        self.wake.notify_all()

    @property
    def busy(self) -> bool:
        return bool(self.lines or self.ending) and not self.frozen


def bookmark(kind: Kind, version: int, annotations: str = "") -> bytes:
    return (
        f'{{"type":"BOOKMARK","object":{{"kind":"{kind.name}","apiVersion":"{kind.api_version}",'
        f'"metadata":{{"resourceVersion":"{version}"{annotations}}}{kind.empty}}}}}\n'
    ).encode()


def _wants_initial_events(query: dict[str, str]) -> bool:
    """Asked for, or without a version to start from and nothing else said: the API server sets it then."""
    if "sendInitialEvents" in query:
        return query["sendInitialEvents"] == "true"
    return "resourceVersionMatch" not in query and query.get("resourceVersion", "") in ("", "0")


def check(query: dict[str, str], streaming: str) -> None:
    """Raise Refused for parameters of a watch that forbid each other."""
    if streaming == "ignored":
        return
    match, name, causes = query.get("resourceVersionMatch", ""), "resourceVersionMatch", []
    if "sendInitialEvents" in query:
        if match != "NotOlderThan":
            causes.append((name, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
        if streaming == "refused":
            why = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
            causes.append(("sendInitialEvents", why))
    elif match:
        causes.append((name, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"))
    if match and match != "NotOlderThan":
        causes.append((name, f'Unsupported value: "{match}": supported values: "NotOlderThan"'))
    if match and query.get("continue"):
        causes.append((name, "resourceVersionMatch is forbidden when continue is provided"))
    if causes:
        raise bad_options(causes)
