"""The dry run touches nothing: the whole state of a node, and what the API server is asked, before and after."""

from __future__ import annotations

import gzip
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.apiserver import FakeApi
from tests import migrate_nodes as nodes
from tests.dataplanes import inside, needs
from tests.netns import Namespace

pytestmark = [
    pytest.mark.root,
    needs("nft", "iptables-nft-save", "iptables-legacy-restore", "ipset", "setpriv", "ip"),
]

TRAFFIC = """
table ip mine {
  chain out {
    type nat hook output priority 0;
    ip daddr 192.168.77.2 udp dport 7777 redirect to :9 comment "mine"
  }
}
"""


@pytest.fixture(params=nodes.MODES)
def node(request: pytest.FixtureRequest) -> Iterator[tuple[str, Namespace]]:
    """With rules of somebody else's, and flows in the connection tracking."""
    namespace = nodes.make(request.param)
    namespace.nft("-f", "-", stdin=TRAFFIC)
    namespace.run("sysctl", "-w", "net.netfilter.nf_conntrack_udp_timeout=600")
    inside(namespace, _flow)
    yield request.param, namespace
    namespace.close()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory where nobody may read, too: pytest's own are root's alone."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path


@pytest.fixture
def manifests(shared: Path) -> Path:
    return nodes.write_manifests(shared / "cluster")


def _flow() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"hello", ("192.168.77.2", 7777))


def options(mode: str, manifests: Path) -> list[str]:
    return [f"--manifests={manifests}", f"--config={nodes.config(mode)}"]


@pytest.mark.parametrize("user", ["", "nobody"])
def test_nothing_on_the_node_changes(node: tuple[str, Namespace], manifests: Path, user: str) -> None:
    """And every Service of a recorded dataplane is found the same."""
    mode, namespace = node
    before = nodes.state(namespace)
    report = nodes.report_of(nodes.migrate(namespace, "--dry-run", "-o", "json", *options(mode, manifests), user=user))
    after = nodes.state(namespace)
    for what in before:
        assert after[what] == before[what], what
    assert "mine" in before["nft list ruleset"]  # the state shows something
    assert report["proof"]["status"] == "accepted" and report["present"]["mode"] == mode.partition("-")[0]
    bad = {row["service"]: row["result"] for row in report["services"] if row["result"] not in ("same", "behaviour")}
    if user:
        assert any("CAP_NET_ADMIN" in gap["remedy"] for gap in report["gaps"])
    elif mode != "ipvs":  # this kernel may have none
        assert report["compared"] and not bad and report["gaps"] == []
        assert report["counts"]["results"]["same"] == len(report["services"]) > 10


def test_the_state_shows_what_a_command_changes() -> None:
    """The test above can fail."""
    namespace = nodes.make("iptables")
    before = nodes.state(namespace)
    namespace.nft("add", "table", "ip", "x")
    namespace.run("sysctl", "-w", "net.ipv4.conf.all.route_localnet=1")
    namespace.run("ip", "addr", "add", "10.9.9.9/32", "dev", "eth0")
    after = nodes.state(namespace)
    changed = {what.split()[0] for what in before if after[what] != before[what]}
    assert {"nft", "sh", "ip"} <= changed
    namespace.close()


def test_a_flow_is_in_the_state() -> None:
    namespace = nodes.make("iptables")
    inside(namespace, _flow)
    shown = nodes.state(namespace)
    namespace.close()
    assert "dport=7777" in "".join(shown.values())


def test_the_api_server_is_only_asked(tmp_path: Path) -> None:
    """Gets, lists and watches, nothing else; run on the node, root and all."""
    namespace = nodes.make("iptables")
    api = inside(namespace, lambda: FakeApi().start())
    try:
        for item in nodes.objects():
            api.put(item)
        kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
        sources = [f"--kubeconfig={kubeconfig}", f"--config={nodes.config('iptables')}", "--node=node0"]
        report = nodes.report_of(nodes.migrate(namespace, "--dry-run", "-o", "json", *sources))
        assert api.requests and {request.verb for request in api.requests} <= {"get", "list", "watch"}
        assert not api.posted and not api.patched
        assert report["counts"]["results"]["same"] == report["counts"]["services"] > 10
        assert report["proof"]["status"] == "accepted"
    finally:
        api.stop()
        namespace.close()


@pytest.mark.parametrize("mode", ["iptables", "ipvs"])
def test_a_bundle_gives_the_same_report(mode: str, manifests: Path, shared: Path) -> None:
    """Elsewhere: in another namespace, as another user. Nor does collecting one change anything."""
    namespace = nodes.make(mode)
    bundle = shared / "node0.json.gz"
    before = nodes.state(namespace)
    done = nodes.migrate(namespace, "collect", *options(mode, manifests), str(bundle))
    assert done.returncode == 0, done.stderr
    assert nodes.state(namespace) == before
    here = nodes.report_of(nodes.migrate(namespace, "--dry-run", "-o", "json", *options(mode, manifests)))
    namespace.close()
    assert os.stat(bundle).st_mode & 0o077 == 0
    bundle.chmod(0o644)
    there = nodes.report_of(nodes.migrate(None, "--dry-run", "-o", "json", f"--bundle={bundle}", user="nobody"))
    for report in (here, there):
        report["made"] = report["proof"]["milliseconds"] = ""
    assert there == here
    assert json.loads(gzip.decompress(bundle.read_bytes()))["node"] == "node0"
