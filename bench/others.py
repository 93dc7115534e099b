"""What else the processors do while something is measured: a load average of a minute ago does not tell.

Source: /proc/stat, "cpu" (proc_stat(5)), in hundredths of a second; what a process and those that it has waited for have
used, getrusage(2) knows. What remains is other programs', and threads' of the kernel.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final, NamedTuple

MUCH: Final = 10.0
"""Per cent of all processors."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Clocks(NamedTuple):
    """Seconds of all processors since the start of the machine: all that there were, those that somebody used, those that
    another virtual machine had; and those that this process and its children used."""

    all: float
    used: float
    stolen: float
    own: float


def clocks() -> Clocks:
    own = sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    return parse(Path("/proc/stat").read_text(), own)


def parse(stat: str, own: float) -> Clocks:
    user, nice, system, idle, iowait, irq, softirq, stolen = (int(field) / _TICKS for field in stat.split()[1:9])
    used = user + nice + system + irq + softirq
    return Clocks(used + idle + iowait + stolen, used, stolen, own)


def between(before: Clocks, after: Clocks) -> dict[str, float]:
    """Per cent of all processors, for JSON."""
    spent = Clocks(*(late - early for early, late in zip(before, after, strict=True)))
    whole = spent.all or 1.0
    return {
        "cpu_percent": round(max(0.0, spent.used - spent.own) / whole * 100, 1),
        "stolen_percent": round(max(0.0, spent.stolen) / whole * 100, 1),
    }


def warning(found: dict[str, float]) -> str:
    """'' if there was little."""
    others, stolen = found["cpu_percent"], found["stolen_percent"]
    if others + stolen <= MUCH:
        return ""
    return (
        f"while this ran, other programs used {others:.0f} % of the processors, and other virtual machines {stolen:.0f} %: "
        "the figures are worse than they should be"
    )
