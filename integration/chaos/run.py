"""A run: an agent, a server that misbehaves, objects that change, and the judge at every commit."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from integration import namespaces
from integration.agent import Agent
from integration.apiserver import FakeApi, Store
from integration.chaos.changes import NODE_NAME, Changes
from integration.chaos.faults import Faults
from integration.chaos.judge import Judge, Moment, Violation, compare
from integration.chaos.ledger import Ledger
from integration.chaos.replay import Replay, listen
from integration.chaos.view import Torn, read
from integration.namespaces import Namespace
from integration.topology import CHECKOUT
from rules.dump import TableState
from rules.errors import KernelUnreachable
from rules.kernel import Kernel
from rules.layout import LAYOUTS
from rules.netlink import messages
from rules.objects import Family

COMMAND: Final = (sys.executable, "-m", "integration.chaos.agent")
CHANGE_EVERY: Final = 0.02
FAULT_EVERY: Final = 0.3
RESTART_EVERY: Final = 15.0
BURST: Final = 0.02  # the share of changes that are many at once
HEALED: Final = 20.0
"""Seconds within which, once the server is as it should be, the kernel must hold what the objects say."""
TROUBLES: Final = ("unexpected_failure", "transaction_refused")


@dataclass
class Outcome:
    """What a run was like. unchanged: commits that changed nothing; settled: seconds from the end of all faults to the
    end of all differences."""

    seed: int
    seconds: float
    changes: int = 0
    commits: int = 0
    unchanged: int = 0
    restarts: int = 0
    settled: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.seconds:.0f} s, {self.changes} changes, {sum(self.faults.values())} faults, "
            f"{self.restarts} restarts of the agent; {self.commits} commits, {self.unchanged} of them without effect; "
            f"all settled {self.settled:.2f} s after the last fault\n"
            f"faults: {_counted(self.faults)}\nthe agent logged: {_counted(self.events)}"
        )


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def run(
    seconds: float,
    seed: int,
    command: Sequence[str] = COMMAND,
    faults: Collection[str] = (),
    every: float = FAULT_EVERY,
) -> Outcome:
    """Raises Violation, with the seed, for a state of the kernel that must not be; and for an agent that fails. With an
    odd seed there are two API servers of one cluster.

    command: the agent's, without `run` and its options. faults: see Faults; every: one in so many seconds, on average.
    """
    namespace = Namespace(f"{namespaces.PREFIX}{os.getpid()}-{next(_numbers)}-chaos")
    namespaces.create([namespace])
    try:
        with namespace.entered(), tempfile.TemporaryDirectory() as directory, ExitStack() as ends:
            chaos = Chaos(namespace, Path(directory), seed, command, faults, ends)
            try:
                return chaos.run(seconds, every)
            except Exception as error:
                what = "" if isinstance(error, Violation) else f"{type(error).__name__}: "
                raise Violation(f"seed {seed}: {what}{error}\n{chaos.said()}") from error
    finally:
        namespaces.delete([namespace.name])


_numbers = itertools.count(1)


class Chaos:
    """Everything that runs, inside the namespace of the calling thread; stopped by `ends`."""

    def __init__(
        self,
        namespace: Namespace,
        directory: Path,
        seed: int,
        command: Sequence[str],
        faults: Collection[str],
        ends: ExitStack,
    ) -> None:
        self._namespace, self._command = namespace, command
        self._rand = Random(seed)
        self.outcome = Outcome(seed, 0.0)
        store = Store()
        self._servers = [FakeApi(bookmark_seconds=1.0, store=store) for _ in range(1 + seed % 2)]
        self._ledger = Ledger(self._servers[0])
        self._changes = Changes(self._ledger, Random(seed + 1))
        self._faults = Faults(self._servers, Random(seed + 2), faults)
        self._judge = Judge(self._ledger, NODE_NAME)
        for api in self._servers:
            ends.enter_context(api)
        self._kubeconfig = self._servers[0].kubeconfig(directory / "kubeconfig")
        self._replay = Replay()
        self._lock = threading.Lock()  # on the replay and the judge
        self._failure: Exception | None = None
        self._done = threading.Event()
        self._socket = listen()
        self._listener = threading.Thread(target=self._listen, name="judge", daemon=True)
        self._listener.start()
        ends.callback(self._stop_listening)
        self._kernel = Kernel()
        ends.callback(self._kernel.close)
        self._agent = self._start()
        ends.callback(lambda: self._agent.stop())

    def run(self, seconds: float, every: float) -> Outcome:
        self._misbehave(seconds, every)
        self._faults.heal()
        healed = time.monotonic()
        self._settle(healed)
        self.outcome.seconds, self.outcome.settled = seconds, time.monotonic() - healed
        self._agent.process.send_signal(signal.SIGTERM)
        code = self._agent.process.wait(5)
        if code:
            raise Violation(f"the agent ended with {code}")
        self._note_log()
        self.outcome.changes, self.outcome.faults = self._ledger.count(), self._faults.count
        self.outcome.commits = self._judge.commits
        return self.outcome

    def said(self) -> str:
        """The end of the agent's log."""
        return "\n".join(line.text for line in self._agent.log()[-20:])

    # The time of chaos.

    def _misbehave(self, seconds: float, every: float) -> None:
        now = time.monotonic()
        end = now + seconds
        change = fault = now
        restart = now + self._rand.expovariate(1 / RESTART_EVERY)
        while now < end:
            self._check()
            self._faults.mend(now)
            if now >= change:
                self._change()
                change += self._rand.expovariate(1 / CHANGE_EVERY)
            if now >= fault:
                self._faults.strike(now)
                fault += self._rand.expovariate(1 / every)
            if now >= restart:
                self._restart()
                restart = time.monotonic() + self._rand.expovariate(1 / RESTART_EVERY)
            time.sleep(max(0.0, min(change, fault, now + 0.05) - time.monotonic()))
            now = time.monotonic()

    def _change(self) -> None:
        if self._rand.random() < BURST:
            with self._servers[0].held():
                for _ in range(50):
                    self._changes()
        else:
            self._changes()

    def _restart(self) -> None:
        """Of the agent. A new one has nothing that a server behind the others could be held to."""
        self._faults.catch_up()
        self._agent.process.send_signal(self._rand.choice([signal.SIGKILL, signal.SIGTERM]))
        self._agent.process.wait(5)
        self._agent.stop()
        self._note_log()
        self._agent = self._start()
        self.outcome.restarts += 1

    def _start(self) -> Agent:
        servers = ",".join(api.url for api in self._servers)
        argv = [*self._command, "run", "--kubeconfig", self._kubeconfig, "--master", servers]
        argv += ["--node", NODE_NAME, "--log-level", "debug"]
        return Agent(self._namespace, argv, CHECKOUT)

    # What must hold.

    def _listen(self) -> None:
        """At every commit."""
        try:
            while not self._done.is_set():
                with suppress(TimeoutError):
                    self._hear(self._socket.recv(1 << 18))
        except Exception as error:
            self._failure = error

    def _hear(self, data: bytes) -> None:
        with self._lock:
            for reply in messages(data):
                if process := self._replay.apply(reply):
                    before = self._judge.view
                    self._judge.look(self._replay.tables(), process)
                    self.outcome.unchanged += self._judge.view == before

    def _stop_listening(self) -> None:
        self._done.set()
        self._listener.join()
        self._socket.close()

    def _check(self) -> None:
        if self._failure:
            raise self._failure
        self._agent.check()

    def _settle(self, since: float) -> None:
        """The kernel comes to hold what the objects say, and that is what it said that it holds."""
        wanted = Moment(self._ledger, NODE_NAME)
        wanted.go_to({kind: len(changes) for kind, changes in self._ledger.changes.items()})
        while True:
            self._check()
            try:
                tables = self._dump()
                differences = compare(read(tables), wanted.view)
            except (KernelUnreachable, Torn) as error:  # it changes while it is read, set by set
                differences = [str(error)]
            if not differences:
                break
            if time.monotonic() > since + HEALED:
                shown = "\n    ".join(differences[:20])
                raise Violation(f"{HEALED:g} s after the end of all faults, the kernel still holds:\n    {shown}")
            time.sleep(0.02)
        while not self._told(tables):
            self._check()
            if time.monotonic() > since + HEALED:
                raise Violation("what the kernel told of its changes does not add up to what it holds")
            time.sleep(0.02)

    def _dump(self) -> dict[Family, TableState]:
        found = {family: self._kernel.dump(layout.table) for family, layout in LAYOUTS.items()}
        return {family: table for family, table in found.items() if table}

    def _told(self, tables: dict[Family, TableState]) -> bool:
        for table in tables.values():
            table.flags = table.owner = 0  # nobody tells that an owner has gone
        with self._lock:
            return self._replay.tables() == tables

    def _note_log(self) -> None:
        for line in self._agent.log():
            self.outcome.events[line.event or "no event"] += 1
            if not line.event or line.event in TROUBLES:
                raise Violation(f"the agent said: {line.text}")
