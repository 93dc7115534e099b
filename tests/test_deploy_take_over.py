"""--take-over in the DaemonSet's life, as docs/cleanup.md says how: the pod removes what kube-proxy has left, with the two
capabilities that it has, and without seeing any process of the node's."""

from __future__ import annotations

import copy
import http.server
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import container, kustomize
from tests.container import NODE, Mount
from tests.dataplanes import needs, restore_addresses, restore_ipsets, restore_iptables, restore_nftables
from tests.deployed import ADDRESS, running
from tests.kustomize import Object
from tests.netns import Namespace
from tests.objects import endpoint_slice, list_of, service

pytestmark = [pytest.mark.root, needs("iptables-nft-restore", "ipset", "nft")]
GUIDE = (container.REPO / "docs" / "cleanup.md").read_text()
CLUSTER = "--manifests=/cluster"
METRICS = ("127.0.0.1", 10249)


@pytest.fixture
def daemonset() -> Object:
    """deploy/, patched by the command in the guide."""
    objects = kustomize.render(container.REPO / "deploy" / "kubeadm-node-by-node")
    [patch] = re.findall(r"patch daemonset kube-proxy-nft --type json \\\n\s+--patch '(\[.*take-over.*\])'", GUIDE)
    found: Object = kustomize.json_patch(
        copy.deepcopy(objects["DaemonSet", "kube-system", "kube-proxy-nft"]), json.loads(patch)
    )
    return found


@pytest.fixture
def mounts(tmp_path: Path, daemonset: Object) -> list[Mount]:
    """What the DaemonSet mounts, and a cluster."""
    config = tmp_path / "kube-proxy"
    config.mkdir()
    text = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "iptables"}
    (config / "config.conf").write_text(json.dumps(text | {"clusterCIDR": "10.244.0.0/16"}))
    cluster = tmp_path / "cluster"
    cluster.mkdir()
    status = {"addresses": [{"type": "InternalIP", "address": ADDRESS}]}
    node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": NODE}, "status": status}
    (cluster / "all.json").write_text(list_of(node, service("web", "10.96.0.1"), endpoint_slice("web", "10.244.0.1")))
    return [*container.mounts(daemonset, tmp_path), Mount(cluster, Path("/cluster"))]


def left(namespace: Namespace) -> list[str]:
    """Of kube-proxy."""
    commands = (["nft", "list", "ruleset"], ["iptables-legacy-save"], ["ipset", "list", "-n"], ["ip", "-o", "link"])
    lines = [line for command in commands for line in namespace.run(*command).stdout.splitlines()]
    return [line for line in lines if re.search(r"KUBE-|table ip6? kube-proxy \{|kube-ipvs0", line)]


def of_ipvs(namespace: Namespace) -> None:
    """All but its virtual servers, which need a kernel that has IPVS (tests/vm); and a bridge is no dummy."""
    restore_ipsets(namespace)
    restore_addresses(namespace, ["kube-ipvs0"])
    restore_iptables(namespace, "ipvs", "nft")


LEFTOVERS: dict[str, tuple[Callable[[Namespace], None], dict[str, int]]] = {
    "iptables, nft": (lambda n: restore_iptables(n, "iptables", "nft"), {"chains": 90, "rules": 28}),
    "iptables, legacy": (lambda n: restore_iptables(n, "iptables", "legacy"), {"chains": 90, "rules": 28}),
    "nftables": (restore_nftables, {"tables": 2}),
    "ipvs": (of_ipvs, {}),
}


@pytest.mark.parametrize("mode", LEFTOVERS)
def test_the_pod_removes_what_is_left(mode: str, namespace: Namespace, daemonset: Object, mounts: list[Mount]) -> None:
    restore, counts = LEFTOVERS[mode]
    restore(namespace)
    assert left(namespace)
    with running(namespace, daemonset, mounts, CLUSTER) as agent:
        told = agent.wait_for("took_over")
        assert told["failed"] == 0 and counts.items() <= told.items()
        assert agent.of("take_over_waits", "take_over_failed", "take_over_unread") == []
        assert left(namespace) == []
        assert agent.terminate() == 0
    # The pod of the next update finds nothing, and says so; our rules are there all the time.
    assert "default/web:http" in namespace.nft("list", "table", "ip", "kube-proxy-nft")
    with running(namespace, daemonset, mounts, CLUSTER) as agent:
        again = agent.wait_for("took_over")
        assert {number for number in again.values() if isinstance(number, int)} == {0}


class _KubeProxy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"iptables")

    def log_message(self, *_: object) -> None:
        pass


def test_while_kube_proxys_pod_is_there_it_waits(namespace: Namespace, daemonset: Object, mounts: list[Mount]) -> None:
    """It answers at its port; its process is not to be seen from the pod."""
    restore_iptables(namespace, "iptables", "nft")
    assert namespace.run("ip", "link", "set", "lo", "up").returncode == 0
    server = namespace.inside(lambda: http.server.ThreadingHTTPServer(METRICS, _KubeProxy))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with running(namespace, daemonset, mounts, CLUSTER) as agent:
            waits = agent.wait_for("take_over_waits")
            assert "10249" in waits["for_end_of"][0] and agent.of("programmed")
            assert left(namespace)
            server.shutdown()
            server.server_close()
            assert agent.wait_for("took_over")["failed"] == 0
            assert left(namespace) == []
    finally:
        server.server_close()
