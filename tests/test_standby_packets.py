"""What connections meet where a standby is kept: it answers alone when our tables are gone, and else leaves to them what has a
memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from integration import privileges
from integration.topology import Bed
from integration.traffic import ask, tally
from proxy.agent import Agent
from proxy.events import Inbox
from proxy.standby import Standby
from proxy.state import State
from rules import standby
from rules.kernel import Kernel
from rules.layout import LAYOUTS
from rules.objects import Family
from tests.histories import NODE_NAME, listing
from tests.objects import endpoint_slice, service
from tests.test_agent import put

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`"),
]
PLAIN, STICKY, EMPTY, TURNS = "10.96.9.1", "10.96.9.2", "10.96.9.3", "10.96.9.4"
OURS = LAYOUTS[Family.IPV4].table
BOTH = (OURS, standby.table(Family.IPV4))


class Node:
    """A bed with an agent that is driven by hand: it mends nothing."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.kernel: Kernel | None = None
        self.standby: Standby | None = None

    def start(self) -> None:
        """The next agent."""
        self.stop()
        with self.bed.node.namespace.entered():
            self.kernel, self.standby = Kernel(), Standby(self._open)
        agent = Agent(State(NODE_NAME), self.kernel, Inbox(), standby=self.standby)
        agent.handle([*listing({}), *put(*self._objects())])
        while not self.standby.is_ready:
            self.standby.step()

    def stop(self) -> None:
        for each in (self.standby, self.kernel):
            if each:
                each.close()

    def nft(self, *arguments: str) -> str:
        return self.bed.node.namespace.run(["nft", *arguments]).stdout

    def _open(self) -> Kernel:
        with self.bed.node.namespace.entered():
            return Kernel()

    def _objects(self) -> Iterator[dict[str, Any]]:
        pods = [self.bed.pod1.ipv4, self.bed.pod3.ipv4]
        for name, address in (("plain", PLAIN), ("sticky", STICKY), ("empty", EMPTY), ("turns", TURNS)):
            made = service(name, address)
            if name == "sticky":
                made["spec"]["sessionAffinity"] = "ClientIP"
            if name == "turns":
                made["metadata"]["annotations"] = {"kube-proxy-nft/scheduler": "rr"}
            yield made
            if name != "empty":
                yield endpoint_slice(name, *pods)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    privileges.acquire()
    with Bed() as bed:
        made = Node(bed)
        yield made
        made.stop()


def held(node: Node, table: Any, name: str) -> int:
    assert node.kernel
    found = node.kernel.dump(table)
    return len(found.sets[name].elements) if found else -1


def test_clients_with_session_affinity_stay_where_they_are_from_agent_to_agent(node: Node) -> None:
    """Their tickets are in the table that stays."""
    node.start()
    first = ask(node.bed.client, STICKY, 80).endpoint
    assert [held(node, table, "tickets") for table in BOTH] == [1, 0]
    for _ in range(4):  # by chance, all would lead there once in 32 times
        node.start()
        assert [held(node, table, "tickets") for table in BOTH] == [1, 0]
        assert ask(node.bed.client, STICKY, 80).endpoint == first
        assert node.bed.node and ask(node.bed.client, PLAIN, 80).endpoint


def test_packets_that_are_refused_are_counted_in_the_table_that_stays(node: Node) -> None:
    node.start()
    assert tally(node.bed.client, EMPTY, 80, count=3).failures == {"refused": 3}
    listed = node.nft("list", "set", "ip", OURS.name, "no-endpoints")
    assert f"{EMPTY} . tcp . 80 counter packets 3 " in listed, listed


@pytest.mark.parametrize("commands", ["flush ruleset", f"flush table ip {OURS.name}", f"delete table ip {OURS.name}"])
def test_it_answers_alone_for_what_it_leaves_to_our_tables_else(node: Node, commands: str) -> None:
    node.start()
    node.nft(*commands.split())
    for address in (PLAIN, STICKY, TURNS):
        for source in (node.bed.client, node.bed.pod2, node.bed.node):
            seen = tally(source, address, 80, count=4)
            assert not seen.failures and seen.answers.total() == 4, (address, seen)
            if address == STICKY:
                assert len({answer.endpoint for answer in seen.answers}) == 1, "it gives tickets, too"
    assert tally(node.bed.client, EMPTY, 80, count=3).failures == {"refused": 3}
    node.start()
    assert not tally(node.bed.client, PLAIN, 80, count=4).failures


def test_what_others_do_to_our_elements_is_not_even_noticed(node: Node) -> None:
    node.start()
    for name in ("endpoints", "cluster-ip-ports", "cluster-ips"):
        node.nft("flush", "set" if name == "cluster-ips" else "map", "ip", OURS.name, name)
        for address in (PLAIN, TURNS):
            assert not tally(node.bed.client, address, 80, count=4).failures, name
