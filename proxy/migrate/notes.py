"""What a reader of rules could not make sense of, and what it found wrong: each thing once, not ten thousand of them. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from proxy.unread import Unread

NAMED: Final = 100
"""Of each cause so many are named; the rest is counted."""

Found = dict[str, dict[str, None]]
"""Cause -> what."""


class Seen(NamedTuple):
    """How often something was noted: who remembers it knows later whether there was something since then."""

    doubts: int = 0
    faults: int = 0


class Notes:
    """remedy: what to do about all of them."""

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._unread: Found = {}
        self._remarks: Found = {}
        self.seen = Seen()

    def add(self, what: str, cause: str) -> None:
        """Not understood: there may be more than was read."""
        self._unread.setdefault(cause, {})[what] = None
        self.seen = Seen(self.seen.doubts + 1, self.seen.faults)

    def remark(self, what: str, cause: str) -> None:
        """Understood, and wrong."""
        self._remarks.setdefault(cause, {})[what] = None
        self.seen = Seen(self.seen.doubts, self.seen.faults + 1)

    def unread(self) -> tuple[Unread, ...]:
        """In the order in which they were met."""
        return self._all(self._unread)

    def remarks(self) -> tuple[Unread, ...]:
        return self._all(self._remarks)

    def _all(self, found: Found) -> tuple[Unread, ...]:
        told: list[Unread] = []
        for cause, things in found.items():
            told += [Unread(what, cause, self._remedy) for what in list(things)[:NAMED]]
            if len(things) > NAMED:
                told.append(Unread(f"{len(things) - NAMED} more", cause, self._remedy))
        return tuple(told)
