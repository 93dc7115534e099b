"""The objects, and every change of them since the last compaction: what etcd is to API servers. Several may share it.

One version counts for all kinds, as in etcd. An object is encoded once, when it is put.
"""

from __future__ import annotations

import threading
import uuid
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter

import msgspec

from integration.apiserver.kinds import ALL
from integration.apiserver.status import Object, encode

Key = tuple[str, str]  # namespace, name
FIRST = ("name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp")
"""The order in which the API server writes metadata."""
KEPT = 20_000
"""So many changes are remembered at least; older ones go as by a compaction."""
_decode = msgspec.json.Decoder().decode


class Stored:
    """One state of one object. `text` is its JSON as lists have it, without kind and apiVersion, and without the
    brace that opens it."""

    __slots__ = ("born", "key", "kind", "labels", "meta", "rest", "uid", "version")

    def __init__(self, kind: str, meta: Object, rest: bytes) -> None:
        self.kind, self.rest = kind, rest
        self.key: Key = (meta.get("namespace", ""), meta["name"])
        self.labels: dict[str, str] = meta.get("labels") or {}
        self.uid: str = meta["uid"]
        self.born: str = meta["creationTimestamp"]
        self.version = int(meta["resourceVersion"])
        self.meta: bytes = encode(meta)

    @property
    def text(self) -> bytes:
        return b'"metadata":' + self.meta + self.rest

    @property
    def item(self) -> bytes:
        return b"{" + self.text

    @property
    def whole(self) -> bytes:
        """As the answer to a request for this object alone."""
        kind = ALL[self.kind]
        return f'{{"kind":"{kind.name}","apiVersion":"{kind.api_version}",'.encode() + self.text

    def read(self) -> Object:
        """The object as a dict of the caller's own."""
        found: Object = _decode(self.whole)
        return found

    def at(self, version: int) -> Stored:
        meta = _decode(self.meta) | {"resourceVersion": str(version)}
        return Stored(self.kind, meta, self.rest)

    def line(self, event: str) -> bytes:
        """The event of a watch that shows it."""
        kind = ALL[self.kind]
        head = f'{{"type":"{event}","object":{{"kind":"{kind.name}","apiVersion":"{kind.api_version}",'
        return head.encode() + self.text + b"}\n"


@dataclass(frozen=True, slots=True)
class Change:
    """What happened at one version: created (nothing before), changed, deleted (nothing after)."""

    kind: str
    version: int
    before: Stored | None
    after: Stored | None

    def line(self, matches: Callable[[Stored], bool]) -> bytes | None:
        """What a watcher with this selector sees of it: to leave the selector is to be deleted."""
        before = self.before if self.before and matches(self.before) else None
        after = self.after if self.after and matches(self.after) else None
        if after:
            return after.line("MODIFIED" if before else "ADDED")
        return before.at(self.version).line("DELETED") if before else None


class Store:
    """All state is guarded by `lock`. `followers` are told of each change, with the lock held."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.version = 1
        self.compacted = 0
        self.objects: dict[str, dict[Key, Stored]] = {kind: {} for kind in ALL}
        self.history: list[Change] = []
        self.followers: list[Callable[[Change], None]] = []

    def put(self, obj: Object) -> Stored:
        """Create or change an object; its kind is in it. What every stored object has is added."""
        kind = obj["kind"]
        with self.lock:
            version = self.version + 1
            meta = dict(obj["metadata"])
            if ALL[kind].namespaced:
                meta.setdefault("namespace", "default")
            old = self.objects[kind].get((meta.get("namespace", ""), meta["name"]))
            meta.setdefault("uid", old.uid if old else str(uuid.UUID(int=version)))
            meta.setdefault("creationTimestamp", old.born if old else now())
            meta["resourceVersion"] = str(version)
            meta = {name: meta[name] for name in FIRST if name in meta} | meta
            rest = encode({key: obj[key] for key in obj if key not in ("kind", "apiVersion", "metadata")})
            new = Stored(kind, meta, b"}" if rest == b"{}" else b"," + rest[1:])
            self.version = version
            self.objects[kind][new.key] = new
            self._changed(Change(kind, version, old, new))
            return new

    def delete(self, kind: str, key: Key) -> int:
        """KeyError when there is none."""
        with self.lock:
            old = self.objects[kind].pop(key)
            self.version += 1
            self._changed(Change(kind, self.version, old, None))
            return self.version

    def _changed(self, change: Change) -> None:
        self.history.append(change)
        self.compacted = trim(self.history) or self.compacted
        for follower in self.followers:
            follower(change)

    def compact(self) -> None:
        """Forget the history."""
        with self.lock:
            self.compacted = self.version
            self.history.clear()

    def at(self, kind: str, version: int) -> list[Stored]:
        """The objects as they were at a version that is not compacted, in no order."""
        with self.lock:
            objects = self.objects[kind]
            since = since_version(self.history, version)
            if since:
                objects = dict(objects)
            for change in reversed(since):
                if change.kind != kind:
                    continue
                key = (change.before or change.after).key  # type: ignore[union-attr]  # a change has one of them
                if change.before:
                    objects[key] = change.before
                else:
                    del objects[key]
            return list(objects.values())


def since_version(history: list[Change], version: int) -> list[Change]:
    """The changes after `version`; the history is in the order of versions."""
    return history[bisect_right(history, version, key=attrgetter("version")) :]


def trim(history: list[Change]) -> int:
    """Drop the oldest when there are too many. Returns the version of the last that was dropped, 0 if none was."""
    if len(history) < 2 * KEPT:
        return 0
    last = history[KEPT - 1].version
    del history[:KEPT]
    return last


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
