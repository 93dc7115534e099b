"""What one input may cost: processor time and memory. Linux; for the main thread."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
from collections.abc import Iterator
from typing import Any, Final

CPU_SECONDS: Final = 10.0
"""Of this process, so that a busy machine makes no difference. The largest good input takes a tenth of it."""
MEMORY: Final = 64 << 20
MEMORY_PER_BYTE: Final = 2048
"""Of input: PyYAML's nodes, the hungriest honest structure, have about a kilobyte for each two bytes."""
ADDRESS_SPACE: Final = 1 << 30
"""More than there is already: what ends an input before it ends the machine."""

_PEAK: Final = re.compile(rb"VmHWM:\s+(\d+) kB")


class OverLimit(Exception):
    """An input took more time or memory than any may."""


class _TimeIsUp(BaseException):
    """No Exception: `except Exception` in what is tried does not hold it up."""


@contextlib.contextmanager
def limits(size: int, seconds: float = CPU_SECONDS) -> Iterator[None]:
    """Raises OverLimit when what happens inside takes more than an input of `size` bytes may."""

    def ring(*_: Any) -> None:
        raise _TimeIsUp

    before = signal.signal(signal.SIGPROF, ring)
    started = _begin_to_measure()
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    try:
        yield
    except _TimeIsUp as end:
        raise OverLimit(f"more than {seconds:g} s of processor time for {size} bytes") from end
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    allowed = MEMORY + MEMORY_PER_BYTE * size
    taken = _peak() - started
    if taken > allowed:
        raise OverLimit(f"{taken >> 20} MiB for {size} bytes, allowed: {allowed >> 20} MiB")


def bound_address_space() -> None:
    """Let this process have no more than ADDRESS_SPACE besides what it has. Past that, there are MemoryErrors."""
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + ADDRESS_SPACE, resource.RLIM_INFINITY))


def _begin_to_measure() -> int:
    """Forget the peak of resident memory so far. Returns how much there is now, in bytes."""
    try:
        with open("/proc/self/clear_refs", "wb", buffering=0) as file:
            file.write(b"5")
    except OSError:  # a container may not show it: then only growth beyond the process's own peak is seen
        pass
    return _peak()


def _peak() -> int:
    descriptor = os.open("/proc/self/status", os.O_RDONLY)
    try:
        found = _PEAK.search(os.read(descriptor, 4096))
    finally:
        os.close(descriptor)
    return int(found[1]) * 1024 if found else 0
