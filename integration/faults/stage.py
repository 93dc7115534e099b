"""A node with an agent, an API server's stand-in with any number of Services, and pods that answer behind two of them."""

from __future__ import annotations

import itertools
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Self

from integration.agent import Agent, AgentEnded
from integration.apiserver import FakeApi
from integration.cluster import SERVICE_CIDRS, endpoint_slice, node, port, service
from integration.faults.audit import differences
from integration.faults.commits import Commits
from integration.probe import Answers, Place
from integration.topology import CHECKOUT, Bed
from proxy.model import KINDS
from rules import standby
from rules.dump import TableState
from rules.errors import KernelUnreachable
from rules.kernel import Kernel
from rules.layout import LAYOUTS, TABLE_NAME
from rules.objects import OWNER, Family
from rules.ownership import can_own, can_own_for_life
from rules.tables import remove

Object = Mapping[str, Any]

NODE: Final = "node0"
PROBED: Final = "10.96.9.1"
"""Its Service has PODS behind it, TCP and UDP."""
LASTING: Final = "10.96.9.2"
"""Its Service leads to a pod that gives back what it gets, for as long as one likes."""
STICKY: Final = "10.96.9.4"
"""Its Service has the same pods behind it as PROBED, with session affinity."""
PORT, POD_PORT, ECHO_PORT = 80, 7000, 8080
PODS: Final = 3
NUMBERS: Final = "cluster-ip-ports"
"""The map that says how many pods the probed Service has."""
MANY: Final = 1000
PATIENCE: Final = 120.0
FIRST_SERVICE, FIRST_POD = 0x0A620000, 0x0B000000  # 10.98.0.0 and 11.0.0.0


class Wrong(AssertionError):
    """The tables are not what they should be, or an agent did what it must not."""


class Stage:
    """A context manager. services, endpoints: how many others there are besides, which nobody asks for.

    ownership: the agent's --table-ownership.
    """

    def __init__(self, directory: Path, services: int, endpoints: int, ownership: str = "auto") -> None:
        self.directory, self.ownership = directory, ownership
        self.services, self.endpoints = services, endpoints
        self.agent: Agent
        self._ends = ExitStack()
        self._marks = itertools.count(1)
        self._turn = 0
        self._right: tuple[int, dict[Family, TableState]] | None = None

    def __enter__(self) -> Self:
        with ExitStack() as ends:
            self.bed = ends.enter_context(Bed())
            addresses = [f"10.244.1.{100 + i}" for i in range(PODS)]
            self.bed.pod3.namespace.ip(f"addr add {address}/32 dev lo" for address in addresses)
            where = [Place(self.bed.pod3.namespace, kind, a, POD_PORT) for a in addresses for kind in ("TCP", "UDP")]
            ends.callback(Answers(*where).stop)
            self.api = FakeApi()
            self.api.put_all([dict(SERVICE_CIDRS), dict(node({})), *self._asked(addresses), *self._others()])
            self.api.compact()
            with self.bed.node.namespace.entered():
                ends.enter_context(self.api)
                self.kernel = Kernel()
            ends.callback(self.kernel.close)
            first = Family.IPV4
            wants = self.ownership == "standby" or (self.ownership == "auto" and not can_own(self.kernel, first))
            self.expects_standby = wants and can_own_for_life(self.kernel, first)
            self.kubeconfig = self.api.kubeconfig(self.directory / "kubeconfig")
            self.commits = Commits(self.bed.node.namespace)
            ends.callback(self.commits.close)
            ends.callback(self.stop)
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    @staticmethod
    def _asked(addresses: Sequence[str]) -> Iterator[dict[str, Any]]:
        both = [port(kind.lower(), PORT, kind) for kind in ("TCP", "UDP")]
        yield dict(service("probed", [PROBED], *both))
        to = [port(kind.lower(), POD_PORT, kind) for kind in ("TCP", "UDP")]
        yield dict(endpoint_slice("probed", "probed", dict.fromkeys(addresses, "node1"), *to))
        yield dict(service("sticky", [STICKY], *both, sessionAffinity="ClientIP"))
        yield dict(endpoint_slice("sticky", "sticky", dict.fromkeys(addresses, "node1"), *to))
        yield dict(service("lasting", [LASTING], port("tcp", PORT)))
        yield dict(endpoint_slice("lasting", "lasting", {"10.244.1.2": "node1"}, port("tcp", ECHO_PORT)))

    def _others(self) -> Iterator[dict[str, Any]]:
        yield dict(service("many", ["10.96.9.3"], port("tcp", PORT)))
        yield self.many_slice()
        for number in range(self.services):
            yield dict(service(f"other-{number}", [_address(FIRST_SERVICE + number)], port("http", 80)))
            yield self.other_slice(number)

    def other_slice(self, number: int, changed: int = 0) -> dict[str, Any]:
        """Of Service number `number`; changed: stands for one endpoint that no slice has had yet."""
        pods = [FIRST_POD + number * self.endpoints + i for i in range(self.endpoints)]
        if changed:
            pods[changed % self.endpoints] = FIRST_POD + (1 << 23) + changed
        name = f"other-{number}"
        return dict(endpoint_slice(name, name, {_address(pod): "node1" for pod in pods}, port("http", 8080)))

    def many_slice(self, turn: int = 0) -> dict[str, Any]:
        """As many endpoints as a slice may have, others each turn."""
        pods = {_address(FIRST_POD + (1 << 22) + (turn << 10) + i): "node1" for i in range(MANY)}
        return dict(endpoint_slice("many", "many", pods, port("tcp", 8080)))

    # The agent.

    def start(
        self, *, shims: Sequence[str] = (), options: Sequence[str] = (), wrap: Sequence[str] = (), wait: bool = True
    ) -> float:
        """A new agent. shims: see integration.faults.agent. wrap: a command that starts what follows it.

        Returns the time of the start. wait: until all is right, and the standby there; not longer than PATIENCE for each.
        """
        run = ["run", "--kubeconfig", self.kubeconfig, "--node", NODE, "--table-ownership", self.ownership, *options]
        program = [sys.executable, "-m", *(["integration.faults.agent", *shims, "--"] if shims else ["proxy"])]
        begun = time.monotonic()
        self.agent = Agent(self.bed.node.namespace, [*wrap, *program, *run], CHECKOUT)
        if wait:
            if not wrap:  # else its log may be somewhere else
                self._wait_for("programmed")
                if self.expects_standby:
                    self._wait_for("standby_ready")
            self.right_since(begun)
        return begun

    def _wait_for(self, event: str) -> None:
        """Rules that are right already, of an agent before, do not tell that this one has come so far."""
        try:
            self.agent.wait(event, timeout=PATIENCE)
        except AgentEnded as error:
            raise Wrong("\n".join([str(error), *error.lines])) from None

    def stop(self) -> None:
        """The agent, if there is one."""
        with suppress(AttributeError):
            self.agent.stop()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> float:
        """End the agent and wait for its end. Returns when the signal was sent."""
        sent = time.monotonic()
        self.agent.process.send_signal(number)
        self.agent.process.wait(30)
        self.agent.stop()
        return sent

    def need_agent(self) -> None:
        """Raises Wrong if it has ended."""
        try:
            self.agent.check()
        except AgentEnded as error:
            raise Wrong("\n".join([str(error), *error.lines])) from None

    # What others do.

    def nft(self, commands: str) -> float:
        """Run them in one transaction. Returns the time of its commit; of the attempt, if it changed nothing."""
        before = self.commits.generation()
        begun = time.monotonic()
        done = self.bed.node.namespace.run(["nft", "-f", "-"], text_in=commands, check=False)
        if done.returncode:
            if "Operation not permitted" not in done.stderr:
                raise Wrong(f"nft: {done.stderr}")
            return begun
        self.commits.heard(self.commits.generation())
        its = (c.moment for c in self.commits.all if c.generation > before and c.program == "nft")
        return next(its, begun)

    def forget(self) -> None:
        """Remove the tables, while no agent runs."""
        self.kernel.commit([operation for layout in LAYOUTS.values() for operation in remove(layout)])

    def change_many(self) -> None:
        """MANY endpoints go and as many come, in one slice: for the agent, one transaction."""
        self.api.put(self.many_slice(next(self._marks) & 1023))

    def change(self, count: int) -> float:
        """Another endpoint in each of so many slices, all at once. Returns the time before it."""
        slices = [self.other_slice(number, next(self._marks)) for number in self._next(count)]
        begun = time.monotonic()
        self.api.put_all(slices)
        return begun

    def _next(self, count: int) -> Iterator[int]:
        """Numbers of Services, in turn."""
        for _ in range(count):
            self._turn = (self._turn + 1) % self.services
            yield self._turn

    # What is right.

    def tables(self) -> dict[Family, TableState] | None:
        """What the kernel holds, without who owns it; None: it changed meanwhile."""
        before = self.commits.generation()
        try:
            found = {family: self.kernel.dump(layout.table) for family, layout in LAYOUTS.items()}
        except KernelUnreachable:
            return None
        if before != self.commits.generation():
            return None
        tables = {family: table for family, table in found.items() if table}
        for table in tables.values():
            table.flags, table.owner = 0, 0
        return tables

    def is_owned(self) -> bool:
        """Whether nobody else can change the tables."""
        table = self.kernel.dump(LAYOUTS[Family.IPV4].table)
        return bool(table and table.flags & OWNER)

    def has_standby(self) -> bool:
        """Whether there is a table that serves when ours do not."""
        return self.kernel.has(standby.table(Family.IPV4))

    def kind(self) -> str:
        """Of the tables: 'owned', 'standby' (watched, with one), or 'watched'."""
        return "owned" if self.is_owned() else "standby" if self.expects_standby else "watched"

    def wrong(self, tables: dict[Family, TableState]) -> list[str]:
        """What is not as the API server's objects want it; a line each."""
        version = self.api.version
        if self._right == (version, tables):
            return []
        objects = [obj for kind in KINDS for obj in self.api.objects(kind)]
        found = differences(tables, objects, NODE)
        if not found and version == self.api.version:
            self._right = version, tables
        return found

    def right_since(self, moment: float) -> float:
        """Wait until all is right, and return how long after `moment` the commit was that made it so; 0.0 if there was
        none. Raises Wrong after PATIENCE seconds, or when the agent has ended."""
        deadline = time.monotonic() + PATIENCE
        found = ["it changes all the time"]
        while time.monotonic() < deadline:
            seen = len(self.commits.all)
            generation = self.commits.generation()
            tables = self.tables()
            if tables is not None and not (found := self.wrong(tables)):
                self.commits.heard(generation)
                made = [c.moment for c in self.commits.all if c.moment > moment and c.generation <= generation]
                return max(0.0, made[-1] - moment) if made else 0.0
            self.need_agent()
            with suppress(TimeoutError):
                self.commits.wait(lambda seen=seen: len(self.commits.all) > seen, 0.5)  # type: ignore[misc]
        log = "\n".join(line.text for line in self.agent.log()[-20:])
        raise Wrong("\n    ".join([f"not right within {PATIENCE:g} s:", *found[:20]]) + "\n" + log)


def by_hand(commands: str) -> str:
    """nft's commands about our tables, by the short names T4 and T6."""
    return commands.replace("T4", f"ip {TABLE_NAME}").replace("T6", f"ip6 {TABLE_NAME}")


def _address(number: int) -> str:
    return ".".join(str(byte) for byte in number.to_bytes(4))
