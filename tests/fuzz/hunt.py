"""The hunt: damaged input after damaged input, each with limits, in a process of its own; what fails is made small.

Input number N of a target is the same for the same seed and the same data, whatever came before it.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import select
import signal
import sys
import time
import traceback
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.fuzz.limits import CPU_SECONDS, OverLimit, bound_address_space, limits
from tests.fuzz.mutate import LARGEST, Mutation, mutation

SILENCE: Final = 60.0
"""Seconds after which an input is given up that does not even notice its own limit: a loop inside a C library."""
SHRINK_SECONDS: Final = 10.0
KINDS_AT_MOST: Final = 20
SLOW_AT_MOST: Final = 5
"""Inputs over their limits, after which a hunt ends: it would find little else."""
_ROOT: Final = Path(__file__).parents[2]
_SIZE: Final = 16


@dataclass(frozen=True)
class Target:
    """check: raises when the code under test breaks a rule; what a docstring announces is none.

    corpus: real inputs, taken when the hunt begins. tokens, mutations: see mutate.mutation. inputs: how many of them a
    short hunt tries.
    """

    name: str
    corpus: Callable[[], Sequence[bytes]]
    check: Callable[[bytes], object]
    tokens: tuple[bytes, ...] = ()
    mutations: tuple[Mutation, ...] = ()
    inputs: int = 1000


@dataclass(frozen=True)
class Failure:
    """where: what tells this failure from others: the exception and the line of ours that it came from."""

    where: str
    trace: str
    data: bytes
    number: int


@dataclass
class Found:
    """What a hunt brought."""

    target: str
    seed: int
    inputs: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)


def inputs(target: Target, seed: int) -> Iterator[bytes]:
    """The real ones as they are, then damaged ones without end."""
    corpus = sorted(target.corpus())
    yield from corpus
    mutate = mutation(target.tokens, target.mutations)
    number = len(corpus)
    while True:
        rand = random.Random(f"{seed} {target.name} {number}")
        yield mutate(rand, rand.choice(corpus), corpus)
        number += 1


def attempt(target: Target, data: bytes) -> tuple[str, str] | None:
    """Try one input. (where, trace) if a rule was broken."""
    try:
        with limits(len(data), CPU_SECONDS):
            target.check(data)
    except OverLimit as error:
        # Where it was then is chance: the file says enough.
        file, _, _ = _place(error.__cause__ or error).partition(":")
        return f"OverLimit in {file}", traceback.format_exc(limit=-30)
    except Exception as error:
        return f"{type(error).__name__} at {_place(error)}", traceback.format_exc(limit=-30)
    return None


def hunt(target: Target, seed: int, *, count: int | None = None, seconds: float | None = None) -> Found:
    """Until so many inputs were tried (besides the real ones) or so much time has passed, or there are KINDS_AT_MOST
    failures, in a process of its own."""
    shared = mmap.mmap(-1, _SIZE + (LARGEST << 4))
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(receiving)
            sys.unraisablehook = lambda _: None  # what a generator says that is thrown away in the middle
            bound_address_space()
            _work(target, seed, count, seconds, shared, sending)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(sending)
    found = Found(target.name, seed)
    started = time.monotonic()
    killed = not _listen(receiving, shared, found)
    os.close(receiving)
    if killed:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if status:
        number, data = _current(shared)
        where = f"a hang for {SILENCE:g} s" if killed else _ending(status)
        found.failures.append(Failure(where, "there is no trace: the process was gone", data, number))
    found.seconds = time.monotonic() - started
    return found


def _listen(receiving: int, shared: mmap.mmap, found: Found) -> bool:
    """Take what the child says until it ends. False: it hangs."""
    text = b""
    before, since = -1, time.monotonic()
    while True:
        ready, _, _ = select.select([receiving], [], [], 1.0)
        if ready:
            piece = os.read(receiving, 1 << 16)
            if not piece:
                return True
            *lines, text = (text + piece).split(b"\n")
            for line in lines:
                _hear(json.loads(line), found)
        number = _current(shared)[0]
        if ready or number != before:
            before, since = number, time.monotonic()
        elif time.monotonic() - since > SILENCE:
            found.inputs = number
            return False


def _hear(said: dict[str, Any], found: Found) -> None:
    found.inputs = said["inputs"]
    if "where" in said:
        found.failures.append(Failure(said["where"], said["trace"], b64decode(said["data"]), said["number"]))


def _work(target: Target, seed: int, count: int | None, seconds: float | None, shared: mmap.mmap, sending: int) -> None:
    """In the child."""
    known: set[str] = set()
    slow = 0
    end = time.monotonic() + seconds if seconds is not None else None
    total = count + len(target.corpus()) if count is not None else None
    for number, data in enumerate(inputs(target, seed)):
        if number == total or (end and time.monotonic() > end) or len(known) == KINDS_AT_MOST or slow == SLOW_AT_MOST:
            break
        _publish(shared, number, data)
        failed = attempt(target, data)
        slow += bool(failed and failed[0].startswith("OverLimit"))
        if failed and failed[0] not in known:
            known.add(failed[0])
            small = shrink(target, data, failed[0], lambda part, n=number: _publish(shared, n, part))  # type: ignore[misc]
            _publish(shared, number, small)
            where, trace = attempt(target, small) or failed
            told = {"where": where, "trace": trace, "data": b64encode(small).decode(), "number": number}
            _tell(sending, {"inputs": number + 1, **told})
    _tell(sending, {"inputs": number})


def _tell(sending: int, what: dict[str, Any]) -> None:
    data = json.dumps(what).encode() + b"\n"
    while data:
        data = data[os.write(sending, data) :]


def _publish(shared: mmap.mmap, number: int, data: bytes) -> None:
    """Where the parent finds it if this process does not live to tell."""
    data = data[: len(shared) - _SIZE]
    shared[:_SIZE] = number.to_bytes(8) + len(data).to_bytes(8)
    shared[_SIZE : _SIZE + len(data)] = data


def _current(shared: mmap.mmap) -> tuple[int, bytes]:
    size = int.from_bytes(shared[8:16])
    return int.from_bytes(shared[:8]), shared[_SIZE : _SIZE + size]


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with exit code {os.waitstatus_to_exitcode(status)}"


def _place(error: BaseException) -> str:
    """The innermost line of ours that an exception went through, a check's only if there is no other."""
    places = []
    frame = error.__traceback__
    while frame:
        path = Path(frame.tb_frame.f_code.co_filename)
        if path.is_relative_to(_ROOT) and path.name not in ("hunt.py", "limits.py"):
            places.append(f"{path.relative_to(_ROOT)}:{frame.tb_lineno}")
        frame = frame.tb_next
    ours = [place for place in places if place.startswith(("proxy/", "rules/"))]
    return (ours or places or ["nowhere"])[-1]


def shrink(target: Target, data: bytes, where: str, notice: Callable[[bytes], object] = lambda part: None) -> bytes:
    """A smaller input that fails in the same place: parts are left out, ever smaller ones, for a while."""
    end = time.monotonic() + SHRINK_SECONDS
    size = len(data) // 2
    while size and time.monotonic() < end:
        at, smaller = 0, False
        while at < len(data) and time.monotonic() < end:
            part = data[:at] + data[at + size :]
            notice(part)
            failed = attempt(target, part)
            if failed and failed[0] == where:
                data, smaller = part, True
            else:
                at += size
        if not smaller or size > len(data) // 2:
            size //= 2
    return data
