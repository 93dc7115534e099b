"""Much of something, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def cut(values: Iterable[T], size: int) -> Iterator[list[T]]:
    """Pieces of `size` values, the last one of what is left. A value is asked for when its piece is."""
    it = iter(values)
    return iter(lambda: list(islice(it, size)), [])
