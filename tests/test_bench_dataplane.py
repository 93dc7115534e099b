"""The data plane's benchmark works, and its figures have sane shapes. Nothing here asks how long anything takes."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from bench import (
    affinity,
    dataplane,
    dataplane_connect,
    dataplane_flow,
    dataplane_report,
    packets_worker,
    records,
    report,
)
from bench.dataplane_connect import Road, difference, each, ratio, tcp, time_of, udp
from bench.dataplane_peers import iptables, nftables
from bench.dataplane_rules import CONNTRACK, HOOKS, IPTABLES_NFT, LOADERS, NFTABLES, ONE_RULE, OURS, available
from bench.dataplane_services import TARGETS, Port, Size, pods, ports, roads
from bench.dataplane_world import NODE, POD, World, clients, inside
from bench.plan import QUICK, sizes
from bench.run import parts_of
from tests.bench_documents import document

SIZE = Size(40, 3)


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.close()


def test_a_size_is_read_and_written() -> None:
    assert Size.of("1000x10") == Size(1000, 10)
    assert str(Size(1000, 10)) == "1000x10"
    for wrong in ("", "10", "0x3", "3x0", "axb"):
        with pytest.raises(ValueError, match="is no size"):
            Size.of(wrong)


def test_targets_are_spread_over_the_services() -> None:
    assert Size(1, 1).targets() == [0]
    found = Size(1000, 10).targets()
    assert len(found) == TARGETS
    assert statistics.mean(found) == pytest.approx(500, abs=1)


def test_only_targets_have_more_than_a_cluster_ip() -> None:
    found = list(ports(SIZE))
    assert len(found) == SIZE.services + TARGETS
    assert len([port for port in found if port.node_port and port.external_ip]) == 2 * TARGETS
    assert len([port for port in found if port.protocol == "udp"]) == TARGETS
    assert {len(port.pods) for port in found} == {SIZE.endpoints}


def test_a_difference_is_that_of_the_rounds() -> None:
    base, road = Road([]), Road([])
    base.rounds = [[1000, 2000, 90_000], [11_000, 12_000, 13_000], [2000, 2000, 2000]]
    road.rounds = [[2500, 3000, 3500], [13_000, 13_000, 13_000], [3000, 3000, 99_000]]
    assert difference(road, base) == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert time_of(road)["median"] == 3.5
    assert ratio([1.0, 3.0, 5.0], [2.0, 4.0, 10.0])["median"] == 0.5


def test_direct_connections_end_where_those_through_the_services_do(world: World) -> None:
    """Endpoints that are asked for seldom take longer, with any rules: so both roads ask for the same ones."""
    LOADERS[OURS](world.node, list(ports(SIZE)))
    trial = dataplane._Trial(SIZE, {OURS: world, CONNTRACK: world, ONE_RULE: world}, "pod", "tcp", ["clusterIP"])
    listener = world.listener()
    for together, count in zip(trial._roads[OURS], (30, 20 * TARGETS), strict=True):
        ends: dict[str, set[str]] = {}
        for way, road in together.items():
            for to in dataplane_connect._draw(road, count):
                [client] = clients(world.pod, 1)
                client.connect(to)
                server, _ = listener.accept()
                ends.setdefault(way, set()).add(server.getsockname()[0])
                server.close()
                client.close()
        assert ends["direct"] == ends["clusterIP"] and len(ends["direct"]) == SIZE.endpoints * len(road.places)
    listener.close()
    assert [len(road["direct"].places[0]) for road in trial._roads[ONE_RULE]] == [1, 1]


@pytest.mark.parametrize("variant", [OURS, ONE_RULE, NFTABLES, IPTABLES_NFT])
def test_every_layout_leads_to_the_endpoints(world: World, variant: str) -> None:
    """Where a connection ends is asked of the server; from where it came tells whether it was masqueraded."""
    if not available(variant):
        pytest.skip("not installed")
    LOADERS[variant](world.node, list(ports(SIZE)))
    places = roads(SIZE)
    target = SIZE.targets()[1]
    expected = set(pods(target, SIZE.endpoints))
    listener = world.listener()
    for origin, way, source in (
        ("pod", "direct", POD),
        ("pod", "clusterIP", POD),
        ("node", "clusterIP", None),
        ("outside", "nodePort", "172.31.0.1"),
        ("outside", "externalIP", "172.31.0.1"),
    ):
        [client] = clients(world.origin(origin), 1)
        client.connect(places[way][1])
        server, peer = listener.accept()
        assert server.getsockname()[0] in expected, (origin, way)
        assert source in (None, peer[0]), (origin, way)
        server.close()
        client.close()
    listener.close()
    receiver = world.receiver()
    road = Road(each(places["clusterIP"]))
    udp(world, "pod", receiver, [road], TARGETS)
    receiver.close()
    assert len(road.rounds[0]) == TARGETS


def test_what_shows_the_kernels_own_cost_does_what_it_says(world: World) -> None:
    """ "hooks" and "conntrack" track connections, and change none."""
    other = World()
    try:
        for name, its in ((CONNTRACK, world), (HOOKS, other)):
            LOADERS[name](its.node, [])
            listener = its.listener()
            tcp(its, "pod", listener, [Road(each(roads(SIZE)["direct"]))], 3)
            listener.close()
            with inside(its.node), open("/proc/sys/net/netfilter/nf_conntrack_count") as count:
                assert int(count.read()) > 0, name
    finally:
        other.close()


def test_a_connection_that_is_refused_fails(world: World) -> None:
    [client] = clients(world.pod, 1)
    with pytest.raises(ConnectionRefusedError):
        client.connect((NODE, 1))
    client.close()


def test_affinity_is_in_kube_proxys_layout() -> None:
    text = nftables([Port("default/a:p", "tcp", "10.96.0.1", pods(0, 3), affinity=60)])
    assert text.count("update @affinity-") == text.count("ip saddr @affinity-") == 3
    assert text.count("flags dynamic,timeout; timeout 60s;") == 3


def test_endpoints_have_even_chances_in_the_iptables_layout() -> None:
    text = iptables([Port("default/a:p", "udp", "10.96.0.1", pods(0, 4))])
    assert [line.split("--probability ")[1].split()[0] for line in text.splitlines() if "--probability" in line] == [
        "0.25000000000",
        "0.33333333333",
        "0.50000000000",
    ]


def test_a_tiny_run_measures_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataplane, "A_ROUND", 4)
    monkeypatch.setattr(dataplane_flow, "BURSTS", 1)
    monkeypatch.setattr(affinity, "COUNTS", (2, 5))
    monkeypatch.setattr(affinity, "KNOWN", 8)
    monkeypatch.setitem(dataplane.MOST_SERVICES, NFTABLES, 10)
    said: list[str] = []
    plan = dataplane.Plan(connect=3, flow=3, rate=2, rate_seconds=0.02, affinity=2)
    found = dataplane.measure([str(SIZE)], True, said.append, plan)
    assert json.loads(json.dumps(found)) == found
    assert any("established" in text for text in said)
    by_origin = found["connect"][str(SIZE)]
    assert {(o, p) for o, by_protocol in by_origin.items() for p in by_protocol} == {
        ("pod", "tcp"), ("pod", "udp"), ("node", "tcp"), ("node", "udp"), ("outside", "tcp"), ("outside", "udp"),
    }  # fmt: skip
    ours = by_origin["pod"]["tcp"][OURS]
    assert set(ours) == {"direct", "clusterIP", "direct in turn", "clusterIP in turn"}
    for kind in ("difference", "above no nat"):
        more = ours["clusterIP"][kind]
        assert more["low"] <= more["median"] <= more["high"]
    assert by_origin["pod"]["tcp"][CONNTRACK]["direct"]["above no nat"]["median"] == 0
    assert ours["direct in turn"]["difference"]["median"] == 0
    assert set(by_origin["outside"]["tcp"][HOOKS]) == {"direct", "direct in turn"}
    assert "Services" in found["left out"][str(SIZE)][NFTABLES]
    assert NFTABLES not in by_origin["pod"]["tcp"]
    for figures in found["flow"].values():
        assert figures[CONNTRACK]["ratio"]["median"] == 1.0
        assert 0.01 < figures[OURS]["ratio"]["median"] < 100
    assert 0.01 < found["rate"][OURS]["ratio"]["median"] < 100
    outside = f"{CONNTRACK}, outside"  # what begins there is held against what begins there
    for figures in (found["rate"], *found["flow"].values()):
        assert figures[outside]["ratio"]["median"] == 1.0 and f"{NFTABLES}, outside" not in figures
        assert 0.01 < figures[f"{OURS}, outside"]["ratio"]["median"] < 100
    assert set(found["affinity"][OURS]) == {"2", "5"}
    _shown_at_any_time(found)
    text = "\n".join(dataplane_report.lines(found))
    assert "ours, direct" in text and "(3 rounds of 4 connections on each way)" in text
    assert f"{NFTABLES} left out" in text


def _shown_at_any_time(found: dict[str, Any]) -> None:
    """Keys come in this order, the first ones at once: whoever interrupts it gets what was there."""
    made = document()
    keys = list(found)
    for count in range(keys.index("main size") + 1, len(keys) + 1):
        made["dataplane"] = {key: found[key] for key in keys[:count]}
        text = report.text(made)
        assert "The data plane" in text and "cannot be shown" not in text, keys[:count]


def test_what_was_measured_is_told_as_soon_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[records.Record] = []

    def measure(sizes: list[str], quick: bool, progress: dataplane.Progress, *, found: dict[str, Any]) -> None:
        found["connect"] = {}
        progress("loading")
        found["connect"]["1000x10"] = {}
        progress("established flows")
        raise KeyboardInterrupt

    monkeypatch.setattr(dataplane, "measure", measure)
    monkeypatch.setattr(records, "tell", told.append)
    with pytest.raises(KeyboardInterrupt):
        packets_worker.main({"sizes": ["1000x10"], "quick": True})
    assert [each.found for each in told if isinstance(each, records.DataPlane)] == [{"connect": {"1000x10": {}}}]
    assert [each.text for each in told if isinstance(each, records.Step) and each.done] == [
        "data plane: connect() at 1,000 × 10 measured"
    ]
    assert parts_of(QUICK, sizes(["1x1,2x2"]), 1, 4, ["dataplane"], quick=True) == 4
    assert parts_of(QUICK, sizes(["1x1,2x2"]), 1, 4, ["dataplane"], quick=False) == 5
