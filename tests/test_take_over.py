"""The thread that removes kube-proxy's leftovers: when, in which order, how often. Nothing of it touches a kernel."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from proxy.detect.iptables_legacy import IPV4
from proxy.detect.ipvs_table import Server
from proxy.leftovers import own_source
from proxy.leftovers.found import Found, Rule, XTable
from proxy.leftovers.legacy_blob import Blob, Info, parse, table_of, without
from proxy.leftovers.plan import Plan
from proxy.leftovers.remove import Failed
from proxy.leftovers.running import Running
from proxy.leftovers.take_over import Edge, TakeOver


class World:
    """A node with leftovers, and what is done to them, in order."""

    def __init__(self, *, active: int = 0) -> None:
        self.done: list[str] = []
        self.active = active
        self.alive: list[Running] = []
        self.failures: list[list[Failed]] = []
        self.now = 0.0
        self.looks = 0

    def edge(self) -> Edge:
        return Edge(
            running=self._running,
            look=self._look,
            rules=self._step("rules"),
            ipvs=self._step("ipvs"),
            sets=self._step("sets"),
            change_source=self._source,
            in_use=lambda: 0,
            clock=self._clock,
        )

    def _running(self) -> list[Running]:
        alive, self.alive = self.alive, []
        return alive

    def _look(self) -> Found:
        self.looks += 1
        server = Server(6, bytes([10, 96, 0, 1]), 80, "rr", active=self.active)
        table = XTable(
            "nft", "ip", "nat", {"KUBE-SERVICES": [], "OUTPUT": [Rule(1, "KUBE-SERVICES")]}, {"OUTPUT": "accept"}
        )
        return Found(tables=[table], servers=[server], interface=1, sets=["KUBE-CLUSTER-IP"])

    def _step(self, name: str) -> Callable[[Plan], list[Failed]]:
        def step(_plan: Plan) -> list[Failed]:
            self.done.append(name)
            return self.failures.pop(0) if self.failures else []

        return step

    def _source(self) -> int:
        self.done.append("source")
        return 1

    def _clock(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    with capture_logs() as found:
        yield found


def events(logs: list[Any]) -> list[str]:
    return [line["event"] for line in logs]


def ran(world: World, drain_seconds: float = 900.0) -> TakeOver:
    made = TakeOver(world.edge(), drain_seconds)
    made(None)
    made(None)
    assert made._thread
    made._thread.join(20)
    assert not made._thread.is_alive()
    made.stop()
    return made


def test_the_order_and_once(logs: list[Any]) -> None:
    world = World()
    ran(world)
    assert world.done == ["source", "rules", "ipvs", "sets"]
    (told,) = logs
    assert (told["event"], told["chains"], told["rules"], told["virtual_servers"], told["ipsets"]) == (
        "took_over",
        1,
        1,
        1,
        1,
    )


def test_what_changed_meanwhile_is_looked_at_again() -> None:
    world = World()
    world.failures = [[Failed("nftables", "something jumps to it", has_changed=True)]]
    ran(world)
    assert world.done == ["source", "rules", "rules", "ipvs", "sets"]


def test_but_not_for_ever(logs: list[Any]) -> None:
    world = World()
    world.failures = [[Failed("nftables", "something jumps to it", has_changed=True)] for _ in range(50)]
    ran(world)
    assert world.done.count("rules") == 5
    assert "take_over_failed" in events(logs)
    assert logs[-1]["failed"] == 3


def test_connections_of_ipvs_that_do_not_end_are_cut_in_the_end(logs: list[Any]) -> None:
    world = World(active=3)
    ran(world, drain_seconds=0.5)
    assert world.done == ["source", "rules", "ipvs", "sets"]
    assert events(logs) == ["ipvs_connections_cut", "took_over"]
    assert logs[0]["connections"] == 3


def test_connections_of_ipvs_that_end(logs: list[Any]) -> None:
    world = World(active=3)
    made = TakeOver(world.edge())
    made(None)
    while "take_over_drains" not in events(logs):
        assert made._thread
        made._thread.join(0.01)
    assert world.done == ["source", "rules"]
    world.active = 0
    assert made._thread
    made._thread.join(20)
    assert world.done == ["source", "rules", "ipvs", "sets"]


def test_an_end_amid_the_wait(logs: list[Any]) -> None:
    world = World(active=3)
    made = TakeOver(world.edge())
    made(None)
    while "take_over_drains" not in events(logs):
        assert made._thread
        made._thread.join(0.01)
    made.stop()
    assert world.done == ["source", "rules"]
    assert events(logs)[-1] == "take_over_unfinished"


def test_it_waits_for_kube_proxy(logs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.leftovers.take_over.LOOK_SECONDS", 0.01)
    world = World()
    world.alive = [Running("process 999999999 (kube-proxy)", 999999999)]
    ran(world)
    assert events(logs) == ["take_over_waits", "took_over"]
    assert logs[0]["for_end_of"] == ["process 999999999 (kube-proxy)"]


def test_a_bug_here_is_no_reason_to_end(logs: list[Any]) -> None:
    world = World()
    edge = world.edge()

    def broken(_plan: Plan) -> list[Failed]:
        raise RuntimeError("a bug")

    made = TakeOver(Edge(running=list, look=edge.look, rules=broken, change_source=edge.change_source))
    made(None)
    assert made._thread
    made._thread.join(20)
    assert [(line["event"], line["error"]) for line in logs] == [("take_over_failed", "RuntimeError: a bug")]


def test_stop_without_a_start() -> None:
    TakeOver(World().edge()).stop()
    assert threading.active_count() >= 1


# ------------------------------------------------------ the node's own connections


def test_connections_whose_source_is_an_address_of_kube_ipvs0() -> None:
    text = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100600A:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100600A:A1B2 0100600A:01BB 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
   2: 0100600A:A1B3 0100600A:01BB 06 00000000:00000000 00:00000000 00000000     0        0 3 1 0 100 0 0 10 0
   3: 024DA8C0:A1B4 0100600A:01BB 01 00000000:00000000 00:00000000 00000000     0        0 4 1 0 100 0 0 10 0
"""
    assert own_source.count(text.splitlines(), {bytes([10, 96, 0, 1]), bytes(16)}) == 1


# ------------------------------------------------------ tables of iptables-legacy


def rule(*, to: int | None = None, label: str = "", counted: int = 0) -> bytes:
    """An entry of IPv4: a standard target that jumps (`to`: an offset or a verdict), or one that names a chain."""
    target = struct.pack("=H30s", 40, b"") + struct.pack("=ixxxx", to if to is not None else -2)
    if label:
        target = struct.pack("=H30s", 64, b"ERROR") + label.encode().ljust(32, b"\0")
    head = bytes(88) + struct.pack("=HHI", 112, 112 + len(target), 0) + struct.pack("=QQ", counted, 0)
    return head + target


def nat_table() -> tuple[Info, bytes]:
    """OUTPUT (number 3): to KUBE-SERVICES, go on, policy; MINE: jumps to KUBE-SERVICES, returns; KUBE-SERVICES: one rule."""
    size, named = len(rule()), len(rule(label="X"))
    mine = 3 * size
    kube = mine + named + 2 * size
    entries = [
        rule(to=kube + named),
        rule(to=2 * size),  # goes on with the next one
        rule(),
        rule(label="MINE"),
        rule(to=kube + named),
        rule(to=-5),
        rule(label="KUBE-SERVICES"),
        rule(to=-5),
        rule(to=-5),
        rule(label="ERROR"),
    ]
    data = b"".join(entries)
    return Info(b"nat".ljust(32, b"\0"), 1 << 3, (0, 0, 0, 0, 0), (0, 0, 0, 2 * size, 0), len(entries), len(data)), data


def taken_apart() -> Blob:
    info, data = nat_table()
    return parse(info, memoryview(data), IPV4)


def test_a_legacy_table_taken_apart() -> None:
    table = table_of(taken_apart(), "nat")
    assert table.policies == {"OUTPUT": "accept"}
    assert table.chains == {
        "OUTPUT": [Rule(0, "KUBE-SERVICES"), Rule(1), Rule(2)],
        "MINE": [Rule(4, "KUBE-SERVICES"), Rule(5)],
        "KUBE-SERVICES": [],  # not looked into
    }


def test_a_legacy_table_without_some_rules() -> None:
    blob = taken_apart()
    new = without(blob, set(), {"KUBE-SERVICES"}, {0})
    again = parse(
        Info(blob.info.name, new.valid_hooks, new.hooks, new.underflows, len(new.kept), len(new.entries)),
        memoryview(new.entries),
        IPV4,
    )
    assert table_of(again, "nat").chains == {
        "OUTPUT": [Rule(0), Rule(1)],
        "MINE": [Rule(3, "KUBE-SERVICES"), Rule(4)],
        "KUBE-SERVICES": [],
    }
    assert new.kept == (1, 2, 3, 4, 5, 6, 8, 9)
    assert new.old_count == 10


def test_a_legacy_table_whose_rules_jump_to_what_is_to_go() -> None:
    with pytest.raises(ValueError, match="jumps to a chain that is to go"):
        without(taken_apart(), {"KUBE-SERVICES"}, set(), {0})
    assert without(taken_apart(), {"KUBE-SERVICES"}, set(), {0, 4}).kept == (1, 2, 3, 5, 9)


@given(st.integers(0, 1200), st.binary(min_size=1, max_size=8))
def test_whatever_a_legacy_table_is(at: int, put: bytes) -> None:
    info, data = nat_table()
    damaged = data[:at] + put + data[at + len(put) :]
    try:
        table_of(parse(info, memoryview(damaged), IPV4), "nat")
    except ValueError:
        pass
