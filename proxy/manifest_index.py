"""Which file holds which object, which of several files counts, and what changed since last asked. Pure.

The cost of a change follows the objects of the files that changed, never the number of files.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from proxy import model
from proxy.events import Delete, Put
from proxy.manifest_parse import Key

Objects = Mapping[Key, model.KubeObject]
_NONE: Final[Objects] = {}


class Clash(Struct, frozen=True):
    """Two files hold one object: `used` counts, because it sorts first by name; `ignored` does not."""

    key: Key
    used: str
    ignored: str


class Changes(Struct, frozen=True):
    events: list[Put | Delete]
    clashes: list[Clash]
    """Only those that were not in an earlier Changes."""


class ManifestIndex:
    """Tell it what each file holds with `set`; `take` then gives the net effect of all that was set."""

    def __init__(self) -> None:
        self._files: dict[str, Objects] = {}
        self._holders: dict[Key, list[str]] = {}  # sorted: the first one counts
        self._before: dict[Key, model.KubeObject | None] = {}  # what counted at the last take(), if touched since
        self._told: dict[Key, set[str]] = {}  # files whose clash was given out

    def held_by(self, file: str) -> Objects:
        return self._files.get(file, _NONE)

    def set(self, file: str, objects: Objects) -> None:
        """`file` holds exactly `objects` from now on; none: the file is forgotten."""
        old = self.held_by(file)
        for key in {**old, **objects}:
            if old.get(key) == objects.get(key):
                continue
            if key not in self._before:
                self._before[key] = self._counting(key)
            if key not in old:
                insort(self._holders.setdefault(key, []), file)
            elif key not in objects:
                self._holders[key].remove(file)
                if not self._holders[key]:
                    del self._holders[key]
        # `_counting` looks into _files: swapped only after the loop, so that it saw the old state throughout.
        if objects:
            self._files[file] = objects
        else:
            self._files.pop(file, None)

    def take(self) -> Changes:
        """What changed since the last call."""
        events: list[Put | Delete] = []
        clashes: list[Clash] = []
        for key, before in self._before.items():
            now = self._counting(key)
            if now is None:
                if before is not None:
                    events.append(Delete(*key))
            elif now != before:
                events.append(Put(now))
            clashes += self._new_clashes(key)
        self._before = {}
        return Changes(events, clashes)

    def objects(self) -> dict[str, list[model.KubeObject]]:
        """All objects that count, by kind; every kind of model.KINDS is there."""
        by_kind: dict[str, list[model.KubeObject]] = {kind: [] for kind in model.KINDS}
        for key, holders in self._holders.items():
            by_kind[key[0]].append(self._files[holders[0]][key])
        return by_kind

    def _counting(self, key: Key) -> model.KubeObject | None:
        holders = self._holders.get(key)
        return self._files[holders[0]][key] if holders else None

    def _new_clashes(self, key: Key) -> list[Clash]:
        used, *ignored = self._holders.get(key) or [""]
        told = self._told.pop(key, set())
        if ignored:
            self._told[key] = set(ignored)
        return [Clash(key, used, file) for file in ignored if file not in told]
