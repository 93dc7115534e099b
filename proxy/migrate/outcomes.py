"""What a way through somebody's chains does with a connection, by where it comes from. Pure data."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from msgspec import Struct

from proxy.migrate.entries import Refusal
from rules.elements import Sources


class Source(Enum):
    POD = "pods"
    NODE = "this node"
    OUTSIDE = "outside"


class Outcome(Struct, frozen=True, gc=False):
    """What becomes of a connection. affinity: seconds. sources: who may come this way; None: everybody."""

    endpoints: frozenset[bytes] = frozenset()
    masquerade: bool = False
    affinity: int = 0
    refusal: Refusal = ""
    sources: Sources | None = None

    @property
    def ends(self) -> bool:
        return bool(self.endpoints) or self.refusal != "" or self.sources is not None


def merged(ranges: Iterable[tuple[bytes, bytes]]) -> Sources:
    """In order, those that touch made one."""
    found: list[tuple[bytes, bytes]] = []
    for first, last in sorted(ranges):
        if found and int.from_bytes(first) <= int.from_bytes(found[-1][1]) + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)
