"""What the demo shows, step by step: two Services, who answers, a refusal, and endpoints that change under load."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from integration import privileges
from integration.agent import Agent
from integration.manifests import CONFIG, Manifests
from integration.topology import Bed, Host
from integration.traffic import Answer, Attempt, Commits, LongLived, Stream, ask, endpoint, failure, tally, until

WEB4, WEB6, WEB_PORT, POD_PORT = "10.96.0.10", "fd00:10:96::10", 80, 8080
DNS4, DNS_PORT = "10.96.0.53", 53
NO_PORT: Final = 81  # of the Service `web`, which has none of this number
WEB_ENDPOINTS4: Final = "web-endpoints-ipv4.yaml"
ASKED: Final = 30  # connections a line of the table
BETWEEN_CHANGES: Final = 200  # connections of each stream
PICTURE: Final = """\
      client            node0 (the agent runs here)         node1
   192.168.77.1 ------ 192.168.77.2    192.168.78.2 ------ 192.168.78.3
                             cni0 10.244.0.1                 pod-3  10.244.1.2
                             pod-1  10.244.0.2               pod-4  10.244.1.3
                             pod-2  10.244.0.3               (IPv6 as well)"""
WIDTH_IN_A_PIPE: Final = 80


@dataclass(frozen=True)
class Change:
    """One change of the endpoints of `web`, and how it went. Times are `time.monotonic()`."""

    what: str
    pod: Host
    added: bool
    renamed: float
    committed: float
    agent_ms: float | None

    def effect(self, attempts: Sequence[Attempt]) -> float | None:
        """When connections noticed: the first answer of the new endpoint, or the last connection begun to the old one."""
        of_pod = [a for a in attempts if a.endpoint == endpoint(self.pod.ipv4, POD_PORT)]
        if self.added:
            return min((a.ended for a in of_pod if a.started > self.renamed), default=None)
        return max((a.started for a in of_pod if a.started < self.committed), default=None)


class Story:
    """Told on standard output, with colours on a terminal."""

    def __init__(self, bed: Bed, manifests: Manifests) -> None:
        self.bed, self.manifests = bed, manifests
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = WIDTH_IN_A_PIPE
        self._step = 0
        self._good = True

    def run(self, pause: bool) -> bool:
        """Tell the story. True if all went as it should."""
        self._title("A cluster of network namespaces", "Two nodes, four pods with echo servers, a client outside.")
        self._plain(PICTURE)
        sys.setswitchinterval(0.0005)  # whoever hears of a commit should not wait for the threads that make connections
        commits = Commits(self.bed.node.namespace)
        try:
            agent = self._start_agent(commits)
            self._who_answers()
            self._refusal()
            self._changes(agent, commits)
            self._look_deeper(agent)
            if pause:
                self._pause()
            agent.check()
        finally:
            commits.close()
        return self._good

    def _start_agent(self, commits: Commits) -> Agent:
        self._title("The agent starts on node0", "It reads manifests and programs nftables through netlink.")
        started = time.monotonic()
        agent = self.bed.agent(CONFIG, self.manifests.directory, "--log-level", "debug")
        agent.wait("programmed")
        self._plain(
            "   Services [bold]web[/] (TCP, IPv4 and IPv6) and [bold]dns[/] (UDP), from examples/manifests."
            f"\n   Rules in the kernel {_ms(commits.after(started) - started)} after the start.",
            markup=True,
        )
        return agent

    def _who_answers(self) -> None:
        self._title("Who answers?", "Every connection to a Service is led to one of its endpoints.")
        pod1, client = self.bed.pod1, self.bed.client
        table = _table("connection", "answered by", ">times", "source it saw")
        for source, service, address, port, protocol in (
            (pod1, "web", WEB4, WEB_PORT, "TCP"),
            (pod1, "web", WEB6, WEB_PORT, "TCP"),
            (pod1, "dns", DNS4, DNS_PORT, "UDP"),
            (client, "web", WEB4, WEB_PORT, "TCP"),
            (client, "web", WEB6, WEB_PORT, "TCP"),
        ):
            result = tally(source, address, port, protocol, count=ASKED)
            rows = [
                (self._pod(answer.endpoint), str(times), self._source(source, answer))
                for answer, times in sorted(result.answers.items(), key=lambda item: self._pod_name(item[0].endpoint))
            ]
            for failed, times in result.failures.items():
                self._good = False
                rows.append((f"[red]WRONG: {failed}[/]", str(times), ""))
            whence = [f"{source.name} to {service}", escape(endpoint(address, port))]
            for what, row in zip_longest(whence, rows, fillvalue=""):
                table.add_row(what, *row)
        self.console.print(Padding(table, (0, 0, 0, 3)))
        self._plain(
            "   Pods keep their own address. Clients outside get the node's, so that answers\n"
            "   come back through the node; so does a pod that is led to itself."
        )

    def _refusal(self) -> None:
        self._title("A port that no Service has", "It is refused at once, so that nobody waits for a time-out.")
        for address in (WEB4, WEB6):
            asked = time.monotonic()
            try:
                answer = ask(self.bed.pod1, address, NO_PORT)
                outcome, fine = f"answered by {answer.endpoint}", False
            except OSError as e:
                outcome, fine = failure(e), isinstance(e, ConnectionRefusedError)
            self._verdict(
                fine, f"pod-1 to {endpoint(address, NO_PORT)}: {outcome} after {_ms(time.monotonic() - asked)}"
            )

    def _changes(self, agent: Agent, commits: Commits) -> None:
        self._title("Endpoints come and go while connections run", f"{WEB_ENDPOINTS4} is replaced six times.")
        pod1, client = self.bed.pod1, self.bed.client
        streams = [Stream(pod1, WEB4, WEB_PORT), Stream(client, WEB4, WEB_PORT)]
        lasting = LongLived(pod1, WEB4, WEB_PORT, count=12)
        try:
            for stream in streams:
                stream.start()
            changes = self._change_endpoints(agent, commits, streams)
        finally:
            attempts = [attempt for stream in streams for attempt in stream.stop()]
            lasting.stop()
        table = _table("change", ">in the kernel", ">agent's time", "new connections notice")
        for change in changes:
            seen = change.effect(attempts)
            notice = "–" if seen is None else _notice(change.added, seen - change.renamed)
            inside = "–" if change.agent_ms is None else _ms(change.agent_ms / 1000)
            table.add_row(change.what, _ms(change.committed - change.renamed), inside, notice)
        self.console.print(Padding(table, (0, 0, 0, 3)))
        self._plain("   Times count from the renaming of the file; a connection is made every few ms.")
        failed = [a for a in attempts if a.failure]
        late = [a for a in attempts if to_a_gone_endpoint(a, changes)]
        self._verdict(
            not failed and not late,
            f"{len(attempts)} new connections: {len(failed)} failed, {len(late)} reached a removed endpoint",
        )
        self._verdict(
            not lasting.broken,
            f"{lasting.endpoints.total()} long-lived connections: {lasting.lines} lines echoed, {len(lasting.broken)} connections lost",
        )
        self._plain("   (Connections stay with a removed endpoint for as long as it answers.)")
        for line in (*sorted({a.failure for a in failed}), *lasting.broken):
            self._plain(f"     {line}")

    def _change_endpoints(self, agent: Agent, commits: Commits, streams: Sequence[Stream]) -> list[Change]:
        _, pod2, pod3, pod4 = self.bed.pods
        now = {pod.ipv4: self._node_of(pod) for pod in (self.bed.pod1, pod2, pod3)}
        changes = []
        self._let_connections_pass(streams)
        for pod in (pod2, pod4, pod3, pod2, pod4, pod3):
            added = pod.ipv4 not in now
            if added:
                now[pod.ipv4] = self._node_of(pod)
            else:
                del now[pod.ipv4]
            mark = agent.mark()
            renamed = self.manifests.set_endpoints(WEB_ENDPOINTS4, now)
            committed = commits.after(renamed)
            agent_ms = agent.wait("committed", since=mark).get("milliseconds")
            what = f"{'add' if added else 'remove'} {pod.name} ({self._node_of(pod)})"
            changes.append(Change(what, pod, added, renamed, committed, agent_ms))
            self._let_connections_pass(streams)
        return changes

    def _let_connections_pass(self, streams: Sequence[Stream]) -> None:
        """Wait until each stream has made its share of connections."""
        wanted = [len(stream.attempts) + BETWEEN_CHANGES for stream in streams]
        if not until(lambda: all(len(s.attempts) >= n for s, n in zip(streams, wanted, strict=True)), timeout=5):
            self._verdict(False, "connections do not get through, or very slowly")

    def _look_deeper(self, agent: Agent) -> None:
        self._title("Look deeper", "All of this is in two nftables tables, one for each IP family:")
        node = self.bed.node.namespace.name
        where = (
            f"nsenter --target {agent.process.pid} --user --net --preserve-credentials"
            if privileges.rootless()
            else f"ip netns exec {node}"
        )
        for family in ("ip", "ip6"):
            self.console.print(f"     {where} nft list table {family} kube-proxy-nft", style="cyan", soft_wrap=True)
        self._plain(
            "   They work while the namespaces exist: [bold]kube-proxy-nft demo --pause[/] waits here."
            "\n   Until then, edit the manifests the agent watches, and list again:"
            f"\n     [cyan]{escape(str(self.manifests.directory))}[/]",
            markup=True,
        )

    def _pause(self) -> None:
        self._plain("\n   [bold]Press Enter to clean up.[/]", markup=True)
        sys.stdin.readline()

    def _title(self, title: str, why: str) -> None:
        self._step += 1
        self.console.print(f"\n[bold]{self._step}. {title}[/]\n   [italic]{why}[/]")

    def _plain(self, text: str, markup: bool = False) -> None:
        self.console.print(text, markup=markup)

    def _verdict(self, good: bool, text: str) -> None:
        self._good = self._good and good
        self.console.print(Text.assemble("   ", ("ok   ", "bold green") if good else ("WRONG ", "bold red"), text))

    def _pod_name(self, reached: str) -> str:
        for pod in self.bed.pods:
            if any(reached.startswith(endpoint(address, "")) for address in (pod.ipv4, pod.ipv6)):
                return pod.name
        return "?"

    def _pod(self, reached: str) -> str:
        return escape(f"{self._pod_name(reached)} {reached}")

    def _source(self, source: Host, answer: Answer) -> str:
        if answer.seen == answer.own:
            return f"{answer.seen} [dim]own[/]"
        why = "itself" if self._pod_name(answer.endpoint) == source.name else "node's"
        return f"{answer.seen} [yellow]{why}[/]"

    def _node_of(self, pod: Host) -> str:
        return "node0" if pod in (self.bed.pod1, self.bed.pod2) else "node1"


def to_a_gone_endpoint(attempt: Attempt, changes: Sequence[Change]) -> bool:
    """A connection begun after the kernel had said that its endpoint is out, and answered before it was put back."""
    of_pod = [c for c in changes if endpoint(c.pod.ipv4, POD_PORT) == attempt.endpoint]
    before = [c for c in of_pod if c.committed < attempt.started]
    put_back = any(c.added and c.renamed < attempt.ended for c in of_pod[len(before) :])
    return bool(before) and not before[-1].added and not put_back


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left")
    return table


def _notice(added: bool, after: float) -> str:
    if added:
        return f"first answer at {_ms(after)}"
    return f"last begun at {_ms(after)}" if after >= 0 else f"last begun {_ms(-after)} before"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
