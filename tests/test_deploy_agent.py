"""The agent in the container that deploy/ describes: what it is allowed is enough, and each part of it is needed."""

from __future__ import annotations

import copy
import errno
import json
import sys
from pathlib import Path

import pytest

from proxy import sysctls
from tests import container, kustomize
from tests.container import NODE, Mount
from tests.deployed import ADDRESS, WAIT, get, probe, running, wait_until
from tests.kustomize import Object
from tests.netns import Namespace
from tests.objects import endpoint_slice, list_of, service

pytestmark = pytest.mark.root

DEPLOY = container.REPO / "deploy"
LOW_PORT = 81
ESTABLISHED = "nf_conntrack_tcp_timeout_established"
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
CLUSTER = "--manifests=/cluster"


@pytest.fixture(scope="module")
def objects() -> dict[kustomize.Key, Object]:
    return kustomize.render(DEPLOY / "base")


@pytest.fixture
def daemonset(objects: dict[kustomize.Key, Object]) -> Object:
    return copy.deepcopy(objects["DaemonSet", "kube-system", "kube-proxy-nft"])


@pytest.fixture
def mounts(tmp_path: Path, objects: dict[kustomize.Key, Object], daemonset: Object) -> list[Mount]:
    """What the DaemonSet mounts, and a cluster that has a Service with a healthCheckNodePort below 1024."""
    for kind, _, name in objects:
        if kind == "ConfigMap":
            (tmp_path / name).mkdir()
            for file, text in objects[kind, "kube-system", name]["data"].items():
                (tmp_path / name / file).write_text(text.replace('clusterCIDR: ""', "clusterCIDR: 10.244.0.0/16"))
    cluster = tmp_path / "cluster"
    cluster.mkdir()
    node = {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": NODE},
        "status": {"addresses": [{"type": "InternalIP", "address": ADDRESS}]},
    }
    web = service("web", "10.96.0.1", type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=LOW_PORT)
    (cluster / "all.json").write_text(list_of(node, web, endpoint_slice("web", "10.244.0.1")))
    return [*container.mounts(daemonset, tmp_path), Mount(cluster, Path("/cluster"))]


def test_what_it_is_allowed_is_enough(namespace: Namespace, daemonset: Object, mounts: list[Mount]) -> None:
    with running(namespace, daemonset, mounts, CLUSTER) as agent:
        agent.wait_for("programmed")
        wait_until(lambda: len(agent.of("sysctl_set")) == 2, agent.events)
        wait_until(lambda: get(namespace, LOW_PORT) == 503, "no endpoint is on this node")
        for name in PROBES:
            wait_until(lambda name=name: probe(namespace, daemonset, name) == 200, name)  # type: ignore[misc]
        assert agent.terminate() == 0
    # The limits of conntrack belong to the node: in this namespace of ours nobody may set them. And no kubelet has
    # given the container its oom_score_adj.
    assert [
        e for e in agent.complaints if e.get("name") not in sysctls.RAISED and e["event"] != "oom_score_not_set"
    ] == []
    assert {e["name"].rpartition(".")[2] for e in agent.of("sysctl_set")} == {
        ESTABLISHED,
        "nf_conntrack_tcp_timeout_close_wait",
    }
    assert namespace.run("cat", f"/proc/sys/net/netfilter/{ESTABLISHED}").stdout == "86400\n"
    assert "default/web:http" in namespace.nft("list", "table", "ip", "kube-proxy-nft")


def test_without_net_admin_it_ends(namespace: Namespace, daemonset: Object, mounts: list[Mount]) -> None:
    container.container(daemonset)["securityContext"]["capabilities"]["add"].remove("NET_ADMIN")
    with running(namespace, daemonset, mounts, CLUSTER) as agent:
        assert agent.end() == 5, agent.events


def test_without_net_bind_service_low_ports_are_closed(
    namespace: Namespace, daemonset: Object, mounts: list[Mount]
) -> None:
    container.container(daemonset)["securityContext"]["capabilities"]["add"].remove("NET_BIND_SERVICE")
    with running(namespace, daemonset, mounts, CLUSTER) as agent:
        assert agent.wait_for("health_check_not_listening")["port"] == LOW_PORT


def test_without_the_mount_sysctls_are_left(namespace: Namespace, daemonset: Object, mounts: list[Mount]) -> None:
    mounts = [mount for mount in mounts if mount.source != Path("/proc/sys/net/netfilter")]
    with running(namespace, daemonset, mounts, CLUSTER) as agent:
        warning = agent.wait_for("sysctl_not_set")
        assert (warning["cause"], sysctls.ROOT_VARIABLE in warning["remedy"]) == ("No such file or directory", True)
    without_variable = [e for e in container.container(daemonset)["env"] if e["name"] != sysctls.ROOT_VARIABLE]
    container.container(daemonset)["env"] = without_variable
    with running(namespace, daemonset, mounts, CLUSTER) as agent:
        wait_until(lambda: len(agent.of("sysctl_not_set")) >= 2, agent.events)
        causes = {e["name"]: e["cause"] for e in agent.of("sysctl_not_set") if e["name"] not in sysctls.RAISED}
        assert set(causes.values()) == {"Read-only file system"}


INSPECT = f"""
import json, os
def write(path):
    try:
        with open(path, "w"):
            return 0
    except OSError as error:
        return error.errno
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
paths = ["/x", "/usr/x", "{Path(__file__)}", "/var/lib/kube-proxy/config.conf", "/proc/sys/net/netfilter/{ESTABLISHED}"]
print(json.dumps({{
    "sets": {{name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}},
    "no_new_privileges": int(status["NoNewPrivs"]),
    "pid": os.getpid(),
    "writes": [write(path) for path in paths],
}}))
"""


def test_the_container_is_as_strict_as_it_says(namespace: Namespace, daemonset: Object, mounts: list[Mount]) -> None:
    engine = container.start(namespace, daemonset, mounts, [sys.executable, "-c", INSPECT])
    out, err = engine.communicate(timeout=WAIT)
    assert engine.returncode == 0, err
    given = 1 << 12 | 1 << 10  # CAP_NET_ADMIN, CAP_NET_BIND_SERVICE in capabilities(7)
    assert container.capabilities(daemonset) == {"NET_ADMIN", "NET_BIND_SERVICE"}
    assert json.loads(out) == {
        "sets": {"CapInh": 0, "CapPrm": given, "CapEff": given, "CapBnd": given, "CapAmb": 0},
        "no_new_privileges": 1,
        "pid": 1,
        "writes": [errno.EROFS] * 5,
    }
