"""An agent on a node survives what is done to it, while packets go through its rules (see integration.faults)."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from integration import privileges
from integration.cluster import SERVICE_CIDRS, endpoint_slice, node, port, service
from integration.faults import catalogue
from integration.faults.audit import differences
from integration.faults.catalogue import Fault, Row
from integration.faults.stage import NODE, PORT, PROBED, Stage, by_hand
from integration.faults.traffic import Seen, Traffic
from integration.traffic import tally, until
from proxy.agent import Agent
from proxy.events import Inbox, Replace
from proxy.model import KINDS, decode
from proxy.state import State
from rules.dump import TableState
from rules.fake import FakeKernel
from rules.layout import LAYOUTS
from rules.objects import Family
from rules.ownership import can_own

root = pytest.mark.root
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`")
SERVICES, ENDPOINTS, ROUNDS = 100, 5, 1
RESTARTS, STOPPED = 6, 2.0


@pytest.fixture(scope="module")
def owned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """With an agent whose tables nobody else can change, where the kernel can do that."""
    yield from _stage(tmp_path_factory.mktemp("owned"), "auto")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """With one that undoes what others do, as on kernels that can do no better."""
    yield from _stage(tmp_path_factory.mktemp("watched"), "never")


@pytest.fixture(scope="module")
def standby(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """With one that does, too, while a second table serves that others cannot change."""
    yield from _stage(tmp_path_factory.mktemp("standby"), "standby")


def _stage(directory: Path, ownership: str) -> Iterator[Stage]:
    privileges.acquire()
    with Stage(directory, SERVICES, ENDPOINTS, ownership) as stage:
        stage.start()
        yield stage


def run(stage: Stage, fault: Fault) -> Row:
    try:
        row = catalogue.run(stage, fault)
    finally:
        if stage.agent.process.poll() is not None:  # the next test needs one
            stage.stop()
            stage.start()
    if row.impossible:
        pytest.skip(row.impossible)
    assert not fault.in_traffic or row.connections > 10
    return row


# What other programs do.


@root
@as_root
@pytest.mark.parametrize("fault", catalogue.BY_OTHERS, ids=lambda fault: fault.name)
def test_nobody_else_can_change_tables_that_are_owned(owned: Stage, fault: Fault) -> None:
    if not can_own(owned.kernel, Family.IPV4):
        pytest.skip("this kernel has no tables that outlive their owner (Linux 6.9)")
    assert owned.is_owned()
    row = run(owned, replace(fault, rounds=ROUNDS))
    assert (row.failed, row.broken, row.seconds) == (0, 0, [0.0] * ROUNDS), row


@root
@as_root
@pytest.mark.parametrize("fault", catalogue.BY_OTHERS, ids=lambda fault: fault.name)
def test_what_others_do_to_tables_without_an_owner_is_undone(watched: Stage, fault: Fault) -> None:
    assert not watched.is_owned()
    mark = watched.agent.mark()
    row = run(watched, replace(fault, rounds=ROUNDS))
    assert all(row.seconds), row
    assert watched.agent.wait("tables_mended", since=mark)["by"].startswith("nft (pid ")


@root
@as_root
@pytest.mark.parametrize("fault", catalogue.BY_OTHERS, ids=lambda fault: fault.name)
def test_what_others_do_costs_no_connection_while_a_standby_serves(standby: Stage, fault: Fault) -> None:
    assert standby.kind() == "standby" and standby.has_standby()
    mark = standby.agent.mark()
    row = run(standby, replace(fault, rounds=ROUNDS))
    assert all(row.seconds), row
    assert standby.agent.wait("tables_mended", since=mark)["by"].startswith("nft (pid ")
    assert row.broken == 0, row
    if "affinity" in fault.name:  # our tables are asked, for a moment as empty ones
        assert row.failures.keys() <= {"ECONNREFUSED"} and row.failed < 0.1 * row.connections, row
    elif "element" not in fault.name:  # what our own tables say of a connection is not asked twice
        assert row.failed == 0, row
    assert not [line for line in standby.agent.log() if "standby" in line.text and "warning" in line.text]


@root
@as_root
@pytest.mark.parametrize("commands", ["delete table T4; delete table T6", "flush table T4; flush table T6"])
def test_a_standby_serves_for_as_long_as_our_tables_do_not(standby: Stage, commands: str) -> None:
    """An agent that stands still mends nothing."""
    seen = Seen()
    with Traffic(standby, seen):
        standby.agent.process.send_signal(signal.SIGSTOP)
        try:
            standby.nft(by_hand(commands))
            asked = [tally(standby.bed.client, PROBED, PORT, kind, count=50) for kind in ("TCP", "UDP")]
            asked.append(tally(standby.bed.node, PROBED, PORT, count=50))
        finally:
            standby.agent.process.send_signal(signal.SIGCONT)
        standby.right_since(0.0)
    assert [(one.answers.total(), one.failures) for one in asked] == [(50, {})] * 3
    assert (seen.failed, seen.broken) == (0, []), seen


@root
@as_root
def test_a_standby_goes_with_its_agent_and_comes_with_the_next(standby: Stage) -> None:
    seen = Seen()
    with Traffic(standby, seen):
        standby.kill()
        assert not standby.has_standby()
        before = standby.tables()
        assert before and not standby.wrong(before)
        standby.start()
        assert standby.has_standby()
        standby.nft("flush ruleset")
        standby.right_since(0.0)
    assert seen.attempts > 10 and (seen.failed, seen.broken) == (0, []), seen


# What happens to the agent itself.


@root
@as_root
@pytest.mark.parametrize("fault", catalogue.own(RESTARTS, STOPPED, 1), ids=lambda fault: fault.name)
def test_all_is_right_again_and_nobody_notices(owned: Stage, fault: Fault) -> None:
    """Each strike looks at the tables itself, and raises Wrong."""
    row = run(owned, fault)
    if "takes over" in fault.name:
        return  # nobody owned the tables when they were flushed
    if owned.is_owned() or "kill" in fault.name or "restarts" in fault.name or "SIG" in fault.name:
        assert (row.failed, row.broken) == (0, 0), row


@root
@as_root
def test_lost_messages_about_the_tables(watched: Stage) -> None:
    """Where the watch is all there is, and its buffer holds nothing."""
    buffers = next(fault for fault in catalogue.own(RESTARTS, STOPPED, 1) if "buffers" in fault.name)
    run(watched, buffers)


# The measure itself.


@pytest.fixture(scope="module")
def objects() -> list[dict[str, object]]:
    nodeport = service("a", ["10.96.0.1"], {**port("web", 80), "nodePort": 30080}, type="NodePort")
    sticky = service("b", ["10.96.0.2", "fd00::2"], port("web", 80), sessionAffinity="ClientIP")
    slices = [endpoint_slice(f"{name}-1", name, {"10.244.1.1": "node1"}, port("web", 80)) for name in "ab"]
    return [dict(obj) for obj in (SERVICE_CIDRS, node({}), nodeport, sticky, *slices)]


def programmed(objects: list[dict[str, object]]) -> dict[Family, TableState]:
    kernel = FakeKernel()
    agent = Agent(State(NODE), kernel, Inbox())
    agent.handle([Replace(k, [decode(k, json.dumps(o).encode()) for o in objects if o["kind"] == k]) for k in KINDS])
    return {family: table for family, layout in LAYOUTS.items() if (table := kernel.dump(layout.table))}


def test_the_audit_finds_nothing_where_nothing_is(objects: list[dict[str, object]]) -> None:
    assert differences(programmed(objects), objects, NODE) == []


def _drop_table(tables: dict[Family, TableState]) -> None:
    del tables[Family.IPV6]


def _drop_rule(tables: dict[Family, TableState]) -> None:
    tables[Family.IPV4].chains["services"].rules.pop()


def _drop_chain(tables: dict[Family, TableState]) -> None:
    del tables[Family.IPV6].chains["cluster-ip"]


def _drop_endpoint(tables: dict[Family, TableState]) -> None:
    tables[Family.IPV4].sets["endpoints"].elements.popitem()


def _add_element(tables: dict[Family, TableState]) -> None:
    tables[Family.IPV4].sets["cluster-ips"].elements[bytes((10, 96, 0, 9))] = (b"", "")


@pytest.mark.parametrize("damage", [_drop_table, _drop_rule, _drop_chain, _drop_endpoint, _add_element])
def test_the_audit_finds_damage(
    objects: list[dict[str, object]], damage: Callable[[dict[Family, TableState]], None]
) -> None:
    tables = programmed(objects)
    damage(tables)
    assert differences(tables, objects, NODE)


def test_the_table_of_faults() -> None:
    rows = [
        Row("flush ruleset", "owned", 1000, 0, seconds=[0.0, 0.0, 0.0]),
        Row("flush ruleset", "watched", 1234, 5, 1, seconds=[0.0123, 0.2, 3.0]),
        Row("first load", "owned", seconds=[1.5]),
        Row("memory limit", "owned", impossible="no control groups"),
    ]
    assert catalogue.table(rows).splitlines()[2:] == [
        "| flush ruleset | owned | 0 of 1,000 | 0: never wrong (of 3) |",
        "| flush ruleset | watched | 5 of 1,234, 1 of those that lasted | 200 ms (median of 3; at most 3.0 s) |",
        "| first load | owned | nothing to connect to yet | 1.5 s |",
        "| memory limit | owned | no control groups | |",
    ]


@root
@as_root
@pytest.mark.parametrize("commands", ["flush ruleset", "flush chain T4 services"])
def test_a_udp_client_that_began_in_the_gap_is_answered_after_it(watched: Stage, commands: str) -> None:
    """What conntrack has seen of it while there were no rules would lead it astray for as long as it goes on."""
    client = watched.bed.client
    with client.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((client.ipv4, 0))
        sock.connect((PROBED, PORT))
        sock.setblocking(False)
        watched.agent.process.send_signal(signal.SIGSTOP)
        try:
            watched.nft(by_hand(commands))
            sock.send(b"?")
        finally:
            watched.agent.process.send_signal(signal.SIGCONT)
        watched.right_since(0.0)

        def is_answered() -> bool:
            try:
                sock.send(b"?")
                return bool(sock.recv(100))
            except OSError:
                return False

        assert until(is_answered, 10.0)
