"""What one API server knows of one kind: its watch cache. It may lag behind the store, and be without a list."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import attrgetter

from integration.apiserver.store import Change, Key, Store, Stored, since_version, trim


class Cache:
    """Guarded by the store's lock. `tell` gets each change when the cache has it.

    `version`: that of the last change of this kind, or what a bookmark of the store brought. `oldest`: a watch from an
    older version is refused.
    """

    def __init__(self, store: Store, kind: str, tell: Callable[[Change], None]) -> None:
        self._store, self._kind, self._tell = store, kind, tell
        self._pending: deque[Change] = deque()
        self._lags = False
        self._ordered: list[Stored] | None = None
        self.synced = True
        self.objects: dict[Key, Stored] = {}
        self.history: list[Change] = []
        self.version = self.oldest = 0
        self.restart()

    def feed(self, change: Change) -> None:
        if self._lags:
            self._pending.append(change)
        else:
            self._apply(change)

    def _apply(self, change: Change) -> None:
        if change.after:
            self.objects[change.after.key] = change.after
        elif change.before:
            del self.objects[change.before.key]
        self._ordered = None
        self.version = change.version
        self.history.append(change)
        self.oldest = trim(self.history) or self.oldest
        self._tell(change)

    def ordered(self) -> list[Stored]:
        """As lists have them. Not to be changed."""
        if self._ordered is None:
            self._ordered = in_order(self.objects.values())
        return self._ordered

    def since(self, version: int) -> list[Change]:
        return since_version(self.history, version)

    def progress(self) -> None:
        """Learn the store's version, as from etcd's progress notifications."""
        if not self._lags:
            self.version = self._store.version

    def lag(self) -> None:
        """Take no further changes, until catch_up()."""
        self._lags = True

    def catch_up(self, changes: int | None = None) -> None:
        """Take so many of the changes that wait, or all and lag no more."""
        for _ in range(len(self._pending) if changes is None else min(changes, len(self._pending))):
            self._apply(self._pending.popleft())
        if changes is None:
            self._lags = False

    def forget(self) -> None:
        """A watch from before now is refused."""
        self.history.clear()
        self.oldest = self.version

    def restart(self) -> None:
        """List anew from the store."""
        self._pending.clear()
        self.objects = dict(self._store.objects[self._kind])
        self._ordered = None
        self.version = self._store.version
        self.forget()


def in_order(objects: object) -> list[Stored]:
    return sorted(objects, key=attrgetter("key"))  # type: ignore[call-overload, no-any-return]
