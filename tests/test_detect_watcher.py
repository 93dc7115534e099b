"""The detector in the running agent: what it tells, when, and how often."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.detect import judge as judging
from proxy.detect.evidence import (
    ConfiguredMode,
    Evidence,
    IpvsInterface,
    IpvsTable,
    KubeChains,
    KubeTables,
    OtherProxy,
    Place,
    ServedMode,
    Unreadable,
)
from proxy.detect.judge import judge
from proxy.detect.watcher import (
    INTERVAL,
    LABELS,
    OTHER,
    REASONS,
    VERSION_SECONDS,
    DeprecationWatcher,
    ServerVersion,
    Sign,
)
from proxy.event_object import NOTE_BYTES
from tests.cluster_api import Answer, ClusterApi

FILE = Place("file", "/var/lib/kube-proxy/config.conf", line=3, node="n1")
OURS = KubeTables(place=Place("nftables", "ip kube-proxy-nft", node="n1"), owner="kube-proxy-nft", chains=40)


def configured(mode: str) -> ConfiguredMode:
    return ConfiguredMode(place=FILE, mode=mode)


def table(services: int) -> IpvsTable:
    place = Place("ipvs", "netlink", node="n1")
    return IpvsTable(place=place, services=services, destinations=9, schedulers={"rr": services}, kube=services)


class Told:
    """A Recorder that remembers."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def record(self, reason: str, note: str, *, warning: bool = False, action: str = "", key: str = "") -> None:
        self.events.append({"reason": reason, "note": note, "warning": warning, "action": action, "key": key})

    @property
    def reasons(self) -> list[str]:
        return [event["reason"] for event in self.events]


class Bench:
    """A watcher whose evidence is `evidence`; look() returns the log events of one look."""

    def __init__(self, *evidence: Evidence, version: str = "v1.37.0") -> None:
        self.evidence: list[Evidence] = list(evidence)
        self.version = version
        self.told = Told()
        self.series: list[Mapping[str, str]] = []
        self.watcher = DeprecationWatcher(lambda: self.evidence, lambda: self.version, self.told, self.show)

    def show(self, series: Iterable[Mapping[str, str]]) -> None:
        self.series = list(series)

    def look(self) -> list[tuple[str, str]]:
        with capture_logs() as logs:
            self.watcher.look()
        return [(entry["event"], entry["check"]) for entry in logs]


# -- What is told ------------------------------------------------------------------------------------------------------


def test_ipvs_mode() -> None:
    bench = Bench(configured("ipvs"))
    with capture_logs() as logs:
        bench.watcher.look()
    (entry,) = logs
    assert (entry["event"], entry["log_level"], entry["check"]) == ("deprecation_found", "warning", "ipvs-mode")
    assert entry["kep"] == "KEP-5495" and entry["breaks_in"] == "1.40" and entry["remedy"]
    assert entry["found"] == ["file /var/lib/kube-proxy/config.conf, line 3: mode ipvs"]
    (event,) = bench.told.events
    assert event["reason"] == "IPVSDeprecation" and event["warning"] and event["action"] == "StartKubeProxy"
    assert "1.40" in event["note"] and "1.43" in event["note"] and "KEP-5495" in event["note"]
    assert len(event["note"].encode()) <= NOTE_BYTES
    (series,) = bench.series
    assert tuple(series) == LABELS
    assert series == {
        "kep": "KEP-5495",
        "mode": "ipvs",
        "source": "file",
        "check": "ipvs-mode",
        "severity": "deprecated",
        "breaks_in": "1.40",
    }


@pytest.mark.parametrize(
    ("evidence", "reasons"),
    [
        ([configured("")], ["ProxyModeUnset"]),
        ([configured("nftables")], []),
        ([configured("IPVS")], ["ProxyModeUnknown"]),
        ([OURS], []),
        ([OURS, configured("nftables")], []),
        ([OURS, Unreadable(place=FILE, cause="kube-proxy-nft answers here", harmless=True)], []),
        ([OURS, Unreadable(place=FILE, cause="no permission")], []),
        ([OURS, ServedMode(place=Place("port", "http://[::1]:10249", node="n1"), mode="iptables")], ["TwoProxies"]),
        ([OURS, OtherProxy(place=FILE, program="cilium", sure="possible")], []),
        ([configured("nftables"), table(3)], ["ProxyLeftovers"]),
    ],
)
def test_events(evidence: list[Evidence], reasons: list[str]) -> None:
    bench = Bench(*evidence)
    bench.look()
    assert bench.told.reasons == reasons


def test_notices_are_logged_and_counted_and_no_events() -> None:
    bench = Bench(configured(""), version="v1.36.2")
    with capture_logs() as logs:
        bench.watcher.look()
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("deprecation_found", "info")]
    assert bench.told.events == [] and bench.series[0]["severity"] == "notice"


def test_every_check_has_a_reason() -> None:
    """Those that can be worse than a notice."""
    source = "".join(path.read_text() for path in Path(judging.__file__).parent.glob("*_checks.py"))
    checks = {one or two for one, two in re.findall(r'check="([a-z-]+)"|by_row\(\s*scope, "([a-z-]+)"', source)}
    checks |= {"ipvs-leftover", "iptables-leftover", "nftables-leftover"}
    assert REASONS.keys() == checks - {"ipvs-options", "ipvs-servers", "modes-differ", "restart-pending", "unreadable"}
    assert OTHER not in REASONS.values()


# -- When --------------------------------------------------------------------------------------------------------------


def test_what_stays_is_not_told_again() -> None:
    bench = Bench(configured("ipvs"), table(30))
    assert bench.look() == [("deprecation_found", "ipvs-mode")]
    bench.evidence = [configured("ipvs"), table(31), IpvsInterface(place=FILE, addresses=4)]
    assert bench.look() == [] and len(bench.told.events) == 1


def test_what_goes_and_what_comes() -> None:
    bench = Bench(configured("ipvs"))
    bench.look()
    bench.evidence = [configured("")]
    assert bench.look() == [("deprecation_gone", "ipvs-mode"), ("deprecation_found", "mode-unset")]
    assert bench.told.reasons == ["IPVSDeprecation", "ProxyModeUnset"]
    assert [one["check"] for one in bench.series] == ["mode-unset"]
    bench.evidence = [configured("nftables")]
    assert bench.look() == [("deprecation_gone", "mode-unset")]
    assert bench.series == [] and len(bench.told.events) == 2


def test_an_upgrade_that_makes_it_worse_is_told() -> None:
    bench = Bench(configured("ipvs"))
    bench.look()
    bench.version = "v1.40.0"
    assert bench.look() == [("deprecation_gone", "ipvs-mode"), ("deprecation_found", "ipvs-mode")]
    assert len({event["key"] for event in bench.told.events}) == 2


def test_an_upgrade_tells_anew_what_is_as_bad_as_before() -> None:
    """It says something else: the default is another one now."""
    bench = Bench(configured(""))
    bench.look()
    bench.version = "v1.37.4"
    assert bench.look() == []
    bench.version = "v1.40.0"
    assert bench.look() == [("deprecation_found", "mode-unset")]
    first, second = bench.told.events
    assert first["key"] != second["key"] and first["note"] != second["note"]


def test_a_restart_tells_the_same_events() -> None:
    """Counts and process identifiers are others then; the key, by which the API server knows the Event, is not."""
    keys = []
    for pid, chains in ((7, 30), (4711, 31)):
        place = Place("process", f"{pid} (kube-proxy)", node="n1")
        left = KubeChains(
            place=Place("iptables", "nft", "ip", node="n1"), mode="iptables", chains=chains, services=chains
        )
        bench = Bench(ConfiguredMode(place=place, mode="ipvs"), left)
        bench.look()
        keys.append(sorted(event["key"] for event in bench.told.events))
    assert keys[0] == keys[1] and len(keys[0]) == 2


def test_two_findings_that_differ_in_their_place_only_are_two() -> None:
    items = [ConfiguredMode(place=Place("file", name, node="n1"), mode="IPVS") for name in ("a", "b")]
    bench = Bench(*items)
    assert bench.look() == [("deprecation_found", "mode-unknown")] * 2
    assert len({event["key"] for event in bench.told.events}) == 2
    assert len(bench.series) == 1  # the place is no label
    bench.evidence = items[:1]
    assert bench.look() == [("deprecation_gone", "mode-unknown")] and len(bench.series) == 1


def test_the_source_is_the_surest() -> None:
    served = ServedMode(place=Place("port", "http://127.0.0.1:10249/proxyMode", node="n1"), mode="ipvs")
    guess = ConfiguredMode(place=FILE, mode="ipvs", sure="possible")
    (finding,) = judge([guess, served], "1.37").findings
    assert Sign.of(finding).source == "port"


# -- The thread --------------------------------------------------------------------------------------------------------


class Life:
    """A watcher that runs, with rests that the test ends."""

    def __init__(self, gather: Callable[[], Sequence[Evidence]] = list) -> None:
        self.looked, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.rests: list[float] = []
        self._gather, self._ends = gather, False
        self.watcher = DeprecationWatcher(self.look, rand=lambda: 0.5, rest=self.rest)

    def look(self) -> Sequence[Evidence]:
        self.looked.release()
        return self._gather()

    def rest(self, seconds: float) -> bool:
        self.rests.append(seconds)
        assert self.go_on.acquire(timeout=10)
        return self._ends

    def end(self) -> None:
        self._ends = True
        self.go_on.release()
        self.watcher.stop()


def test_nothing_is_looked_at_before_the_agent_has_programmed_the_node() -> None:
    life = Life()
    life.watcher.start()
    assert not life.looked.acquire(timeout=0.1)
    life.watcher(object())
    assert life.looked.acquire(timeout=10)
    life.go_on.release()
    assert life.looked.acquire(timeout=10)
    life.end()
    assert life.rests and set(life.rests) == {INTERVAL}


def test_nodes_do_not_look_all_at_once() -> None:
    rests: list[float] = []
    for rand in (0.0, 0.99):
        done = threading.Event()

        def rest(seconds: float, done: threading.Event = done) -> bool:
            rests.append(seconds)
            done.set()
            return True

        watcher = DeprecationWatcher(list, rand=lambda rand=rand: rand, rest=rest)  # type: ignore[misc]
        watcher.start()
        watcher(object())
        assert done.wait(10)
        watcher.stop()
    assert rests[1] - rests[0] > INTERVAL / 10


def test_a_bug_does_not_end_it() -> None:
    def gather() -> list[Evidence]:
        raise ZeroDivisionError("a bug")

    with capture_logs() as logs:
        life = Life(gather)
        life.watcher.start()
        life.watcher(object())
        assert life.looked.acquire(timeout=10)
        life.go_on.release()
        assert life.looked.acquire(timeout=10)
        life.end()
    assert [entry["event"] for entry in logs][:1] == ["deprecation_watch_failed"]
    assert "a bug" in logs[0]["cause"]


def test_it_can_be_stopped_at_any_time() -> None:
    DeprecationWatcher(list).stop()
    waiting = DeprecationWatcher(list)
    waiting.start()
    waiting.stop()
    resting = DeprecationWatcher(list)
    resting.start()
    resting(object())
    resting.stop()
    for watcher in (waiting, resting):
        watcher._thread.join(10)
        assert not watcher._thread.is_alive()


# -- The cluster's version ---------------------------------------------------------------------------------------------


def test_the_version_is_asked_for_seldom() -> None:
    api, now = ClusterApi(version="v1.36.2"), [1000.0]
    version = ServerVersion(api, lambda: now[0])
    assert [version(), version()] == ["v1.36.2"] * 2 and api.asked == ["/version"]
    api.version = "v1.37.0"
    now[0] += VERSION_SECONDS - 1
    assert version() == "v1.36.2"
    now[0] += 2
    assert version() == "v1.37.0"


def test_a_server_that_is_away() -> None:
    api, now = ClusterApi(version="v1.36.2"), [1000.0]
    version = ServerVersion(api, lambda: now[0])
    api.before = lambda _path: Answer(403, b"no")
    assert version() == ""
    api.before = lambda _path: None
    assert version() == "v1.36.2"
    now[0] += VERSION_SECONDS + 1
    api.before = lambda _path: Answer(404, b"no")
    assert version() == "v1.36.2"
