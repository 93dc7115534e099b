"""What is measured, and how samples become the numbers that are shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal


@dataclass(frozen=True)
class Figure:
    """title: in tables, with the unit. group: the table it is in. how: "spread": a sample a round, or few; "latency": many,
    of which percentiles are shown. digits: after the point."""

    key: str
    part: Literal["control", "layouts"]
    group: str
    title: str
    unit: str
    how: Literal["spread", "latency"] = "spread"
    digits: int = 2


START, CHANGE, GANG, COST, LAYOUT = "start", "change", "gang", "cost", "layout"
GROUPS: Final = {
    START: "Process start to all rules, from the API; restart over the rules that are there",
    CHANGE: "One change: from the API server's event on the wire to the kernel's commit, ms",
    GANG: "A gang of 512 pods, in 6 EndpointSlices at once: last event on the wire to the last commit",
    COST: "What it costs",
    LAYOUT: "Peers' layouts, generated, against ours at the same size (programs and lower bounds: docs/benchmarks.md)",
}
FIGURES: Final = tuple(
    Figure(*row)
    for row in (
        ("start_s", "control", START, "start, s", "s"),
        ("start_commits", "control", START, "commits", "", "spread", 0),
        ("restart_s", "control", START, "restart, s", "s"),
        ("restart_commits", "control", START, "idle: commits", "", "spread", 0),
        ("restart_things", "control", START, "things in it", "", "spread", 0),
        ("restart_failed", "control", START, "lost conn.", "", "spread", 0),
        ("endpoint_ms", "control", CHANGE, "one endpoint", "ms", "latency"),
        ("service_ms", "control", CHANGE, "a new Service", "ms", "latency"),
        ("deleted_ms", "control", CHANGE, "a deleted Service", "ms", "latency"),
        ("ready_ms", "control", GANG, "ready, ms", "ms", "spread", 1),
        ("ready_commits", "control", GANG, "commits", "", "spread", 0),
        ("gone_ms", "control", GANG, "preempted, ms", "ms", "spread", 1),
        ("gone_commits", "control", GANG, "commits", "", "spread", 0),
        ("memory_mb", "control", COST, "memory, MB", "MB", "spread", 0),
        ("memory_peak_mb", "control", COST, "peak, MB", "MB", "spread", 0),
        ("memory_end_mb", "control", COST, "after changes, MB", "MB", "spread", 0),
        ("cpu_rest_percent", "control", COST, "CPU at rest, %", "%", "spread", 2),
        ("cpu_1000_s", "control", COST, "CPU s / 1,000 changes", "s", "spread", 2),
        ("endpoint_bytes", "control", COST, "bytes / change", "B", "spread", 0),
        ("load_s", "layouts", LAYOUT, "all rules, s", "s"),
        ("change_ms", "layouts", LAYOUT, "one endpoint, ms", "ms"),
    )
)  # fmt: skip
BY_KEY: Final = {figure.key: figure for figure in FIGURES}


MANY: Final = 20
"""Of more samples than that, the spread is from the first to the third quartile."""


def quantile(samples: Sequence[float], share: float) -> float:
    """By linear interpolation between the two nearest; at the ends the extreme ones. Raises ValueError for none."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True)
class Value:
    """A number with its spread: the middle, and from where to where the others are. limit: it took longer than that, and there is no
    number."""

    middle: float = 0.0
    low: float = 0.0
    high: float = 0.0
    count: int = 0
    limit: float | None = None

    def text(self, digits: int, *, spread: bool = True) -> str:
        if self.limit is not None:
            return f"> {self.limit:g} s"
        middle, low, high = (_three(number, digits) for number in (self.middle, self.low, self.high))
        return f"{middle} ({low}–{high})" if spread and not low == middle == high else middle


def _three(number: float, digits: int) -> str:
    """So many digits after the point, but no more than three before and after it together, where it has one."""
    return f"{number:,.{min(digits, 2 if number < 10 else 1 if number < 100 else 0)}f}"


class Results:
    """Of a benchmark's JSON (`document`): its measurements by part, size, subject and figure."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self._rounds: dict[tuple[str, str, str], list[list[float]]] = {}
        self._limits: dict[tuple[str, str, str], float] = {}
        for each in document["measurements"]:
            key = (each["size"], each["subject"], each["figure"])
            if each["limit"] is not None:
                self._limits[key] = each["limit"]
            else:
                self._rounds.setdefault(key, []).append(each["samples"])

    def sizes(self, part: str) -> list[str]:
        return _unique(each["size"] for each in self.document["measurements"] if each["part"] == part)

    def subjects(self, part: str) -> list[str]:
        """Ours first."""
        known = [each["name"] for each in self.document["subjects"]]
        found = _unique(each["subject"] for each in self.document["measurements"] if each["part"] == part)
        return [name for name in known if name in found] + [name for name in found if name not in known]

    def value(self, size: str, subject: str, figure: str, share: float = 0.5) -> Value | None:
        """The quantile `share` of all samples together. Its spread: for latencies that of the rounds' own quantiles, else that
        of the samples."""
        key = (size, subject, figure)
        rounds = [samples for samples in self._rounds.get(key, ()) if samples]
        if not rounds:
            return Value(limit=self._limits[key]) if key in self._limits else None
        together = [sample for samples in rounds for sample in samples]
        latency = BY_KEY[figure].how == "latency"
        each = [quantile(samples, share) for samples in rounds] if latency else together
        middle = quantile(together, share)
        low, high = min(*each, middle), max(*each, middle)
        if not latency and len(each) > MANY:
            low, high = quantile(each, 0.25), quantile(each, 0.75)
        if key in self._limits:  # one round was given up
            high = max(high, self._limits[key] * per_second(figure))
        return Value(middle, low, high, len(together))

    def ratio(self, size: str, subject: str, figure: str, to: str, share: float = 0.5) -> float | None:
        """How many times `to`'s number `subject`'s is; at least that if it has a limit instead. None: nothing to compare."""
        mine, other = self.value(size, subject, figure, share), self.value(size, to, figure, share)
        if not mine or not other or other.limit is not None or other.middle <= 0:
            return None
        if mine.limit is not None:
            return mine.limit * per_second(figure) / other.middle
        return mine.middle / other.middle


def ratio_text(ratio: float | None, *, at_least: bool = False) -> str:
    if ratio is None:
        return ""
    return f"{'> ' if at_least else ''}{ratio:,.0f}×" if ratio >= 100 else f"{'> ' if at_least else ''}{ratio:.2g}×"


def per_second(figure: str) -> float:
    """A second in the figure's unit."""
    return 1000 if BY_KEY[figure].unit == "ms" else 1


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def of_group(group: str) -> Iterator[Figure]:
    return (figure for figure in FIGURES if figure.group == group)
