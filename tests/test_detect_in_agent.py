"""The agent's detector on a node, and together with the sender of Events."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from integration.apiserver import FakeApi
from proxy.apiserver import Connection
from proxy.config_values import HostPort
from proxy.detect.api_reader import ApiReader
from proxy.detect.cluster import server_version
from proxy.detect.evidence import (
    ConfiguredMode,
    Evidence,
    KubeTables,
    Place,
    ServedMode,
    Unreadable,
)
from proxy.detect.node import OWN_CONFIG, gather_for_agent, with_ours
from proxy.detect.proxy_ports import OURS_ANSWERS
from proxy.detect.watcher import (
    DeprecationWatcher,
    ServerVersion,
)
from proxy.metrics import pages, registry
from proxy.node_events import EventRecorder
from proxy.page_server import PageServer
from rules.objects import Family
from tests.cluster_api import config
from tests.dataplanes import inside, needs_root, run
from tests.netns import Namespace
from tests.test_detect_watcher import Bench, configured

# -- What there is to see on a node ------------------------------------------------------------------------------------


@needs_root
@pytest.mark.root
def test_our_own_tables_and_port_are_no_finding(namespace: Namespace, tmp_path: Path) -> None:
    """As the agent leaves them; its page server answers where kube-proxy would."""
    commands = [
        f"add table {family} kube-proxy-nft; add chain {family} kube-proxy-nft services" for family in ("ip", "ip6")
    ]
    namespace.nft("; ".join(commands))
    run(namespace, "ip", "link", "set", "lo", "up")
    own = tmp_path / "config.conf"
    own.write_text(config("nftables"))

    def look() -> tuple[list[Evidence], list[tuple[str, str]]]:
        pages_of = pages(registry("1"))
        server = PageServer("metrics", "metricsBindAddress", HostPort("127.0.0.1", 10249), [Family.IPV4], pages_of)
        server.start()
        try:
            deadline = time.monotonic() + 10
            while True:  # it listens from another thread
                evidence = gather_for_agent("n1", str(own))
                if any(e.place.kind == "port" for e in evidence) or time.monotonic() > deadline:
                    break
            bench = Bench(*evidence)
            return evidence, bench.look()
        finally:
            server.stop()

    evidence, told = inside(namespace, look)
    assert told == []
    assert [e.owner for e in evidence if isinstance(e, KubeTables)] == ["kube-proxy-nft"] * 2
    assert [e.harmless for e in evidence if isinstance(e, Unreadable) and e.place.kind == "port"] == [True]
    assert [(e.mode, e.note) for e in evidence if isinstance(e, ConfiguredMode)] == [("nftables", OWN_CONFIG)]


def test_the_agents_own_configuration(tmp_path: Path) -> None:
    """It is given to a kube-proxy, too, when one is started again: once more, and with its line."""
    own = tmp_path / "kube-proxy.conf"
    own.write_text(config("ipvs"))
    (item,) = [e for e in gather_for_agent("n1", str(own)) if e.place.name == str(own)]
    assert isinstance(item, ConfiguredMode) and (item.mode, item.note, item.place.line) == ("ipvs", OWN_CONFIG, 3)
    assert item.idle
    own.unlink()
    assert all(e.place.name != str(own) for e in gather_for_agent("n1", str(own)))


def test_what_runs_beside_ours_and_what_does_not() -> None:
    tables = KubeTables(place=Place("nftables", "ip kube-proxy-nft"), owner="kube-proxy-nft", chains=9)
    file = ConfiguredMode(place=Place("file", "/var/lib/kube-proxy/config.conf"), mode="ipvs")
    port = Unreadable(place=Place("port", "http://127.0.0.1:10249"), cause=OURS_ANSWERS, harmless=True)

    def flags(found: list[Evidence]) -> tuple[bool, bool]:
        (one,), (two,) = (
            [e for e in found if isinstance(e, KubeTables)],
            [e for e in found if isinstance(e, ConfiguredMode)],
        )
        return one.running, two.idle

    assert flags(with_ours([tables, file], is_ours_here=False, is_kube_proxy_here=False)) == (False, False)
    assert flags(with_ours([tables, file, port], is_ours_here=False, is_kube_proxy_here=False)) == (True, True)
    assert flags(with_ours([tables, file], is_ours_here=True, is_kube_proxy_here=False)) == (True, True)
    assert flags(with_ours([tables, file], is_ours_here=True, is_kube_proxy_here=True)) == (True, False)
    served = ServedMode(place=port.place, mode="ipvs")
    assert flags(with_ours([tables, file, served], is_ours_here=True, is_kube_proxy_here=False)) == (True, False)


# -- Together with the Events' sender ----------------------------------------------------------------------------------


def test_the_nodes_events_are_told_once_through_restarts(tmp_path: Path) -> None:
    """Two agents, one after the other, and one API server."""
    with FakeApi() as api:
        connection = Connection(api.kubeconfig(tmp_path / "kubeconfig"))
        assert server_version(ApiReader(connection)) == "v1.36.2"
        for _ in range(2):
            recorder = EventRecorder(connection, "n1")
            recorder.start()
            watcher = DeprecationWatcher(lambda: [configured("ipvs")], ServerVersion(connection), recorder)
            watcher.look()
            recorder.stop(10.0)
        assert len(api.posted) == 2
        (event,) = api.objects("Event")
        connection.close()
    assert (event["reason"], event["type"], event["regarding"]["name"]) == ("IPVSDeprecation", "Warning", "n1")
    assert "kube-proxy warns at its start" in event["note"]
