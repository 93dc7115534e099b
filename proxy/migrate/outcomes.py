"""What a way through somebody's chains does with a connection, by where it comes from. Pure data."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from proxy.migrate.entries import Refusal
from proxy.migrate.notes import Seen
from rules.elements import Sources


class Source(Enum):
    POD = "pods"
    NODE = "this node"
    OUTSIDE = "outside"


class Outcome(Struct, frozen=True, gc=False):
    """What becomes of a connection. affinity: seconds. sources: who may come this way; None: everybody. protocols: numbers
    of those that are translated, where that is told. doubtful, damaged: as in Entry."""

    endpoints: frozenset[bytes] = frozenset()
    masquerade: bool = False
    affinity: int = 0
    refusal: Refusal = ""
    sources: Sources | None = None
    protocols: frozenset[int] = frozenset()
    doubtful: bool = False
    damaged: bool = False

    @property
    def ends(self) -> bool:
        return bool(self.endpoints) or self.refusal != "" or self.sources is not None


def flagged(found: Outcome, before: Seen, now: Seen) -> Outcome:
    """With what was noted between the two."""
    if now == before:
        return found
    doubtful, damaged = now.doubts > before.doubts, now.faults > before.faults
    return replace(found, doubtful=found.doubtful or doubtful, damaged=found.damaged or damaged)


def merged(ranges: Iterable[tuple[bytes, bytes]]) -> Sources:
    """In order, those that touch made one."""
    found: list[tuple[bytes, bytes]] = []
    for first, last in sorted(ranges):
        if found and int.from_bytes(first) <= int.from_bytes(found[-1][1]) + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)
