"""Agents that end in the wrong moment, or stand still. Each does it once and returns the seconds until all was right
again: of one that was killed, from its end, when the next one is started.

Tables are looked at before the next agent starts: what a transaction was to make is there as a whole, or not at all.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from integration.faults.agent import BEGUN
from integration.faults.load import Load
from integration.faults.stage import MANY, PATIENCE, Stage, Wrong, by_hand
from integration.traffic import until

TRIES = 10
MISSED = 2000
WITHIN_MANY = 0.001
"""Seconds after which the kernel is in the middle of taking in 2 * MANY changes of elements."""


def killed_in_a_load(stage: Stage) -> float:
    """An agent that has to replace all of what it finds, in one transaction, is killed in the middle of that."""

    def prepare() -> None:
        stage.kill(signal.SIGTERM)
        stage.nft(by_hand("add chain T4 foreign; add chain T6 foreign"))
        stage.start(shims=[f"die=1000:{_within(stage)}"], wait=False)

    return _killed(stage, prepare)


def killed_in_the_first_load(stage: Stage) -> float:
    """The same where no agent has ever been."""

    def prepare() -> None:
        stage.kill(signal.SIGTERM)
        stage.forget()
        stage.start(shims=[f"die=1000:{_within(stage)}"], wait=False)

    return _killed(stage, prepare)


def killed_in_a_transaction(stage: Stage) -> float:
    """While many endpoints change at once."""

    def prepare() -> None:
        stage.kill(signal.SIGTERM)
        stage.start(shims=[f"die={MANY}:{WITHIN_MANY}"])
        stage.change_many()

    return _killed(stage, prepare)


def _killed(stage: Stage, prepare: Callable[[], None]) -> float:
    """prepare: starts an agent that kills itself in a transaction."""
    for _ in range(TRIES):
        prepare()
        _wait_for_stop(stage)
        before, generation = stage.tables(), stage.commits.generation()
        stage.agent.process.send_signal(signal.SIGCONT)
        stage.agent.process.wait(PATIENCE)
        ended = time.monotonic()
        stage.agent.stop()
        in_time = stage.commits.generation() == generation
        if in_time and stage.tables() != before:
            raise Wrong("the agent was killed in a transaction, and the tables are others than before")
        was_right = bool(before) and not stage.wrong(before or {})
        stage.start()
        if in_time:
            return 0.0 if was_right else stage.right_since(ended)
    raise Wrong(f"{TRIES} times the transaction was done before the end came")


def flushed_at_the_start(stage: Stage) -> float:
    """By somebody else, when the next agent has read the tables and has not committed yet. It has nothing to change."""
    stage.kill()
    stage.start(shims=["hold"], wait=False)
    _wait_for_stop(stage)
    flushed = stage.nft("flush ruleset")
    stage.agent.process.send_signal(signal.SIGCONT)
    return stage.right_since(flushed)


def _wait_for_stop(stage: Stage) -> None:
    stage.agent.wait(BEGUN, timeout=PATIENCE)
    if not until(lambda: _state(stage) == "T", PATIENCE):
        raise Wrong("the agent does not stop before its transaction")


def _state(stage: Stage) -> str:
    """Of the agent's process, as proc(5) has it."""
    return Path(f"/proc/{stage.agent.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def restarts(stage: Stage, count: int) -> float:
    """One agent after the other, ended by SIGTERM and SIGKILL in turn, while endpoints change all the time."""
    with Load(stage) as load:
        for number in range(count):
            stage.kill(signal.SIGKILL if number % 2 else signal.SIGTERM)
            stage.start(wait=False)
            stage.agent.wait("programmed", timeout=PATIENCE)
    return stage.right_since(load.last)


def stopped(stage: Stage, seconds: float) -> float:
    """SIGSTOP, MISSED changes meanwhile, SIGCONT: from there on."""
    stage.agent.process.send_signal(signal.SIGSTOP)
    for _ in range(MISSED // 100):
        stage.change(min(100, stage.services))
    time.sleep(seconds)
    goes_on = time.monotonic()
    stage.agent.process.send_signal(signal.SIGCONT)
    return stage.right_since(goes_on)


def _within(stage: Stage) -> float:
    """Seconds after which the kernel is in the middle of taking in all: some 5 µs an element, 30 ms for the rules."""
    return 0.01 + stage.services * stage.endpoints * 1e-6
