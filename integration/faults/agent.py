"""The agent as it is, on a machine that is not: python -m integration.faults.agent [SHIM …] -- run …

clock=FILE            the wall clock is off by as many seconds as FILE says at each moment
buffers=small         netlink's receive buffers are as small as the kernel allows
hold                  it says BEGUN and stops when it has read what is there, before its first transaction; SIGCONT lets it go on
die=OPERATIONS:SECONDS  before the first transaction of that size it says BEGUN and stops; when it is let go on (SIGCONT), it
                      is killed (SIGKILL) so many seconds after the kernel began with the transaction
"""

from __future__ import annotations

import ctypes
import datetime
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

BEGUN, DONE = "transaction_about_to_begin", "transaction_done_too_soon"


def shift_clock(file: str) -> None:
    """Before anything of the agent is imported: default arguments keep the clock that they have seen."""
    true_time, true_now = time.time, datetime.datetime.now

    def offset() -> float:
        return float(Path(file).read_text() or 0)

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Shifted:
            return cls.fromtimestamp(true_now(tz).timestamp() + offset(), tz)

    time.time = lambda: true_time() + offset()
    time.time_ns = lambda: int(time.time() * 1e9)
    datetime.datetime = Shifted  # type: ignore[misc]


def shrink_buffers(_: str) -> None:
    from rules import kernel, kernel_watch

    kernel.RECEIVE_BUFFER = 1  # type: ignore[misc]
    kernel_watch.KernelWatch.__init__.__defaults__ = (1,)


def hold_before_start(_: str) -> None:
    from proxy.tables import Found, Outcome, Tables, Wanted

    start = Tables.start

    def held(tables: Tables, wanted: Wanted, found: Found) -> Outcome:
        Tables.start = start  # type: ignore[method-assign]
        say(BEGUN)
        os.kill(os.getpid(), signal.SIGSTOP)
        return start(tables, wanted, found)

    Tables.start = held  # type: ignore[method-assign, assignment]


def die_in_commit(value: str) -> None:
    from rules import wire
    from rules.kernel import Kernel
    from rules.transaction import Operation

    operations, _, seconds = value.partition(":")
    commit = Kernel.commit

    def deadly(kernel: Kernel, wanted: Sequence[Operation]) -> int:
        if len(wanted) < int(operations):
            return commit(kernel, wanted)
        # What is sent is ready before the time begins to run: the end is to come while the kernel works.
        batch = wire.encode(wanted, 1)
        wire.encode = lambda *_: batch
        say(BEGUN)
        os.kill(os.getpid(), signal.SIGSTOP)
        kill_me_in(float(seconds))
        done = commit(kernel, wanted)
        say(DONE)
        return done

    Kernel.commit = deadly  # type: ignore[method-assign, assignment]


def kill_me_in(seconds: float) -> None:
    """SIGKILL from a timer of the kernel's (timer_create(2)), which waits for no thread of a busy machine."""
    libc = ctypes.CDLL(None, use_errno=True)
    timer = ctypes.c_void_p()
    event = struct.pack("@Pii", 0, signal.SIGKILL, 0).ljust(64, b"\0")  # SIGEV_SIGNAL
    whole, rest = divmod(int(seconds * 1e9), 10**9)
    if libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer)) or libc.timer_settime(
        timer, 0, struct.pack("@qqqq", 0, 0, whole, rest), None
    ):
        raise OSError(ctypes.get_errno(), "no timer")


def say(text: str) -> None:
    os.write(2, f'{{"event": "{text}", "level": "info"}}\n'.encode())


SHIMS: dict[str, Callable[[str], None]] = {
    "clock": shift_clock,
    "buffers": shrink_buffers,
    "hold": hold_before_start,
    "die": die_in_commit,
}


def main() -> int:
    at = sys.argv.index("--")
    for shim in sys.argv[1:at]:
        name, _, value = shim.partition("=")
        SHIMS[name](value)
    sys.argv[1:] = sys.argv[at + 1 :]
    from proxy.__main__ import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
