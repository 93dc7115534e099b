"""The dry run in a pod: few capabilities, a read-only root, no iptables, the node's file system at /host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import container, migrate_nodes
from tests.container import Mount
from tests.netns import Namespace

pytestmark = pytest.mark.root

CONFIG = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.244.0.0/16,fd44::/48
mode: {mode}
"""


def daemonset(*capabilities: str) -> dict[str, Any]:
    security = {"capabilities": {"drop": ["ALL"], "add": list(capabilities)}}
    one = {"name": "migrate", "securityContext": security, "env": [], "args": [], "volumeMounts": []}
    return {"spec": {"template": {"spec": {"containers": [one], "volumes": []}}}}


def run(namespace: Namespace, tmp_path: Path, mode: str, *capabilities: str) -> dict[str, Any]:
    host, empty = tmp_path / "host", tmp_path / "empty"
    config = host / "var/lib/kubelet/pods/1/volumes/kubernetes.io~configmap/kube-proxy/config.conf"
    config.parent.mkdir(parents=True)
    config.write_text(CONFIG.format(mode=mode))
    empty.mkdir()
    cluster = migrate_nodes.write_manifests(tmp_path / "cluster")
    mounts = [Mount(cluster, Path("/cluster")), Mount(host, Path("/host")), Mount(empty, Path("/usr/sbin"))]
    command = [*container.PROGRAM, "migrate", "--dry-run", "--manifests=/cluster", "--root=/host", "-o", "json"]
    engine = container.start(namespace, daemonset(*capabilities), mounts, command)
    output, errors = engine.communicate(timeout=120)
    assert engine.returncode in (0, 10, 11), errors
    assert errors == ""
    report: dict[str, Any] = json.loads(output)
    return report


def test_with_net_admin(tmp_path: Path) -> None:
    """nftables mode is read over netlink; the namespace for the proof is not to be had, which is said."""
    namespace = migrate_nodes.make("nftables")
    report = run(namespace, tmp_path, "nftables", "NET_ADMIN")
    namespace.close()
    assert report["compared"] and report["counts"]["results"]["same"] == len(report["services"]) > 10
    assert report["proof"]["status"] == "not-tried" and "CAP_SYS_ADMIN" in report["proof"]["detail"]
    whats = [gap["what"] for gap in report["gaps"]]
    assert any("is in use" in what for what in whats)  # the pod does not see kube-proxy's process
    assert "nftables features of the kernel" in whats


def test_without_iptables(tmp_path: Path) -> None:
    """Its rules are read over netlink then."""
    namespace = migrate_nodes.make("iptables")
    report = run(namespace, tmp_path, "iptables", "NET_ADMIN")
    namespace.close()
    assert report["compared"] and report["counts"]["results"]["same"] == len(report["services"]) > 10
    assert not [gap for gap in report["gaps"] if "iptables" in gap["what"]]


def test_without_any_capability(tmp_path: Path) -> None:
    namespace = migrate_nodes.make("iptables")
    report = run(namespace, tmp_path, "iptables")
    namespace.close()
    assert any("CAP_NET_ADMIN" in gap["remedy"] for gap in report["gaps"])
    assert report["counts"]["services"] > 10
