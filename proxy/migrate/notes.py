"""What a reader of rules could not make sense of, collected: each thing once, and not ten thousand of them. Pure."""

from __future__ import annotations

from typing import Final

from proxy.migrate.entries import Unread

NAMED: Final = 100
"""Of each cause so many are named; the rest is counted."""


class Notes:
    """remedy: what to do about all of them."""

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._found: dict[str, dict[str, None]] = {}

    def add(self, what: str, cause: str) -> None:
        self._found.setdefault(cause, {})[what] = None

    def unread(self) -> tuple[Unread, ...]:
        """In the order in which they were met."""
        return tuple(self._all())

    def _all(self) -> list[Unread]:
        told = []
        for cause, found in self._found.items():
            told += [Unread(what, cause, self._remedy) for what in list(found)[:NAMED]]
            if len(found) > NAMED:
                told.append(Unread(f"{len(found) - NAMED} more", cause, self._remedy))
        return told
