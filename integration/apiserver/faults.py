"""What goes wrong on purpose: a table of faults, each for the next requests of its kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Place = str | int | float
"""Where in an answer: 'start' (before its first byte), 'headers' (in the middle of them), 'line' (in the middle of the
next line of a watch), so many bytes into the body (an int), or a share of the body of a list (a float below 1)."""

FOLLOWED = ("list", "watch")


@dataclass
class Fault:
    """Meets the next `times` requests for `kind` and `verb`. Kind '': any; verb '': list and watch, 'any': all."""

    kind: str
    verb: str
    times: float
    code: int = 0  # answer with this status, instead of what was asked for
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    how: str = ""  # 'reset', 'hang_up', 'stall', 'trickle': at `place`
    place: Place = "start"
    rate: float = 0.0  # bytes per second, of a trickle
    when: Callable[[str], bool] | None = None  # and only if this is true of the path with its query

    def meets(self, kind: str, verb: str, path: str) -> bool:
        if self.kind not in ("", kind) or (self.when and not self.when(path)):
            return False
        return self.verb == verb or self.verb == "any" or (not self.verb and verb in FOLLOWED)


class Faults:
    """In the order in which they were made. Guarded by the store's lock."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []

    def add(self, fault: Fault) -> None:
        self._waiting.append(fault)

    def clear(self) -> None:
        self._waiting.clear()

    def take(self, kind: str, verb: str, path: str) -> Fault | None:
        """The fault that meets this request: one of its times is used up."""
        for fault in self._waiting:
            if fault.meets(kind, verb, path):
                fault.times -= 1
                if fault.times <= 0:
                    self._waiting.remove(fault)
                return fault
        return None
