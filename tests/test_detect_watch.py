"""`kube-proxy-nft detect --watch`: what counts as a change, and how often it looks."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from structlog.testing import capture_logs

from proxy.detect import follow
from proxy.detect.evidence import (
    ConfiguredMode,
    Evidence,
    IpvsInterface,
    KubeChains,
    KubeSets,
    KubeTables,
    Place,
)
from proxy.detect.findings import Report
from proxy.detect.follow import Seldom, essence
from proxy.detect.judge import judge
from proxy.errors import ConfigError, UserError
from tests.test_detect_output import REPORTS


def chains(count: int, *, empty: bool = False) -> KubeChains:
    return KubeChains(place=Place("iptables", "nft", "ip"), mode="iptables", chains=count, services=count, empty=empty)


def table(chains: int, *, dormant: bool = False) -> KubeTables:
    return KubeTables(place=Place("nftables", "ip kube-proxy"), owner="kube-proxy", chains=chains, dormant=dormant)


class Watched:
    """Looks that give these, one after the other; what was shown, and how long the rests were."""

    def __init__(self, *looks: list[Evidence] | UserError, seconds: float = 0.0) -> None:
        self._looks, self._seconds = list(looks), seconds
        self._now = 0.0
        self.shown: list[Report] = []
        self.rests: list[float] = []

    def look(self) -> Report:
        self._now += self._seconds
        found = self._looks.pop(0)
        if isinstance(found, UserError):
            raise found
        return judge(found)

    def follow(self, show: Callable[[Report], bool] = lambda _report: True) -> Report:
        def rest(seconds: float) -> bool:
            self.rests.append(seconds)
            return bool(self._looks)

        def both(found: Report) -> bool:
            self.shown.append(found)
            return show(found)

        return follow.follow(self.look, both, rest, lambda: self._now, interval=2.0)


def configured(mode: str) -> ConfiguredMode:
    return ConfiguredMode(place=Place("file", "f"), mode=mode)


def test_what_changes_is_shown_again() -> None:
    watched = Watched([configured("ipvs")], [configured("ipvs")], [configured("nftables")], [configured("nftables")])
    last = watched.follow()
    assert [found.evidence for found in watched.shown] == [(configured("ipvs"),), (configured("nftables"),)]
    assert last.evidence == (configured("nftables"),) and watched.rests == [2.0] * 4


def test_counts_are_no_change_until_there_are_none() -> None:
    watched = Watched([chains(30)], [chains(31)], [chains(0)], [])
    watched.follow()
    assert [len(found.evidence) for found in watched.shown] == [1, 1, 0]


def test_that_nothing_is_led_any_more_is_a_change() -> None:
    watched = Watched(
        [chains(30), table(40)],
        [chains(31), table(41)],
        [chains(31, empty=True), table(41)],
        [chains(31, empty=True), table(41, dormant=True)],
    )
    watched.follow()
    assert len(watched.shown) == 3


def test_that_ipvs_mode_has_become_a_shell_is_a_change() -> None:
    def shell(addresses: int, entries: int) -> list[Evidence]:
        interface = IpvsInterface(place=Place("interface", "kube-ipvs0"), addresses=addresses)
        return [interface, KubeSets(place=Place("ipset", "KUBE-*"), sets=17, entries=entries)]

    watched = Watched(shell(9, 60), shell(10, 61), shell(0, 61), shell(0, 0))
    watched.follow()
    assert len(watched.shown) == 3


@pytest.mark.parametrize("found", REPORTS)
def test_the_essence_of_any_report(found: Report) -> None:
    assert essence(found) == essence(msgspec.json.decode(msgspec.json.encode(found), type=Report))


def test_looks_that_take_long_are_seldom() -> None:
    watched = Watched([], [], seconds=0.5)
    watched.follow()
    assert watched.rests == [10.0, 10.0]


def test_a_file_that_is_gone_for_a_moment_ends_nothing() -> None:
    gone = ConfigError("f", "No such file or directory")
    watched = Watched([configured("ipvs")], gone, gone, [configured("")])
    with capture_logs() as logs:
        watched.follow()
    assert [entry["event"] for entry in logs] == ["look_failed"]
    assert [found.evidence for found in watched.shown] == [(configured("ipvs"),), (configured(""),)]


def test_a_file_that_is_not_there_at_first_is_an_error() -> None:
    with pytest.raises(ConfigError):
        Watched(ConfigError("f", "No such file or directory")).follow()


def test_nobody_reads_any_more() -> None:
    watched = Watched([configured("ipvs")], [configured("")])
    watched.follow(lambda _report: False)
    assert len(watched.shown) == 1 and watched.rests == []


def test_what_costs_others_something_is_asked_for_seldom() -> None:
    now, made = [0.0], iter(range(9))
    seldom = Seldom(lambda: next(made), 60.0, lambda: now[0])
    assert [seldom(), seldom()] == [0, 0]
    now[0] = 60.0
    assert seldom() == 1
