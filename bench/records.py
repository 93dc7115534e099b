"""What was measured, one line of JSON each, as processes tell it to the one that started them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Measurement:
    """part: "control" or "layouts". size: as "1000x10". subject: whose it is. figure: a key of `figures`, in its unit.

    round: from 0. samples: all single values. limit: it took longer than that (`samples` is empty then).
    """

    part: str
    size: str
    subject: str
    figure: str
    round: int
    samples: list[float] = field(default_factory=list)
    limit: float | None = None


@dataclass(frozen=True)
class Failure:
    """during: what was being measured. log: the last lines of what the program said."""

    part: str
    size: str
    subject: str
    during: str
    cause: str
    log: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """Something has begun; done: so many parts of the whole are."""

    text: str
    done: int = 0


@dataclass(frozen=True)
class DataPlane:
    """What bench.dataplane.measure gives."""

    found: dict[str, Any]


Record = Measurement | Failure | Step | DataPlane
_KINDS: dict[str, type[Record]] = {kind.__name__: kind for kind in (Measurement, Failure, Step, DataPlane)}


def line(record: Record) -> str:
    return json.dumps({type(record).__name__: asdict(record)}, separators=(",", ":"))


def parse(text: str) -> Record:
    [(name, fields)] = json.loads(text).items()
    return _KINDS[name](**fields)


def tell(record: Record) -> None:
    """To the process that has started this one."""
    sys.stdout.write(f"{line(record)}\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Teller:
    """Tells of one subject in one round."""

    part: str
    size: str
    subject: str
    round: int
    tell: Callable[[Record], None]

    def measured(self, figure: str, *samples: float) -> None:
        self.tell(Measurement(self.part, self.size, self.subject, figure, self.round, list(samples)))

    def too_slow(self, figure: str, limit: float) -> None:
        self.tell(Measurement(self.part, self.size, self.subject, figure, self.round, [], limit))

    def failed(self, during: str, cause: str, log: Sequence[str] = ()) -> None:
        self.tell(Failure(self.part, self.size, self.subject, during, cause, list(log)))

    def begins(self, what: str) -> None:
        self.tell(Step(f"{self.size} {self.subject}, round {self.round + 1}: {what}"))
