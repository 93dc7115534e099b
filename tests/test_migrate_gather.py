"""Gathering for a migration report: from an API server with and without permissions, from files, here and elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from proxy.detect.evidence import ConfiguredMode, Version
from proxy.errors import ConfigError, SourceError
from proxy.migrate import judge, ours
from proxy.migrate.facts import Facts
from proxy.migrate.gather import Wanted, gather
from proxy.migrate.report import Proof
from proxy.trouble import Trouble
from proxy.unread import Unread
from tests import cluster_api
from tests.cluster_api import Answer, ClusterApi
from tests.migrate_nodes import REPO, config, write_manifests
from tests.migrate_nodes import objects as recorded

Json = dict[str, Any]
PATHS = cluster_api.PATHS | {
    "Service": ("/api/v1", "services"),
    "EndpointSlice": ("/apis/discovery.k8s.io/v1", "endpointslices"),
    "ServiceCIDR": ("/apis/networking.k8s.io/v1", "servicecidrs"),
}
CIDR: Json = {"kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12"]}}
CONFIG = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
DAEMONSET: Json = {
    "kind": "DaemonSet",
    "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
    "spec": {
        "selector": {"matchLabels": {"k8s-app": "kube-proxy"}},
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "kube-proxy",
                        "image": "registry.k8s.io/kube-proxy:v1.36.2",
                        "command": ["/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf"],
                        "volumeMounts": [{"name": "kube-proxy", "mountPath": "/var/lib/kube-proxy"}],
                    }
                ],
                "volumes": [{"name": "kube-proxy", "configMap": {"name": "kube-proxy"}}],
            }
        },
    },
}


def config_map(text: str, name: str = "kube-proxy", key: str = "config.conf") -> Json:
    return {"kind": "ConfigMap", "metadata": {"name": name, "namespace": "kube-system"}, "data": {key: CONFIG + text}}


def pod(daemonset: Json = DAEMONSET, node: str = "node0") -> Json:
    return {
        "kind": "Pod",
        "metadata": {
            "name": f"kube-proxy-{node}",
            "namespace": "kube-system",
            "labels": {"k8s-app": "kube-proxy", "controller-revision-hash": "1"},
            "ownerReferences": [{"uid": daemonset["metadata"]["uid"], "kind": "DaemonSet", "name": "kube-proxy"}],
        },
        "spec": {"nodeName": node, "serviceAccountName": "kube-proxy", **daemonset["spec"]["template"]["spec"]},
        "status": {"phase": "Running"},
    }


class Cluster(ClusterApi):
    """Also of what a proxy reads."""

    def __init__(self, *more: Json) -> None:
        super().__init__([*recorded(), CIDR, *more])

    def __call__(self, kubeconfig: str) -> Cluster:
        return self


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_api, "PATHS", PATHS)
    monkeypatch.setattr("proxy.detect.api_reader.time.sleep", lambda _seconds: None)


@pytest.fixture
def kubeadm() -> Cluster:
    api = Cluster(
        json.loads(json.dumps(DAEMONSET)),
        config_map("mode: ipvs\nipvs: {scheduler: wlc}\nclusterCIDR: 10.244.0.0/16\n"),
    )
    api.put(pod(api._objects["DaemonSet"][0]))
    return api


def facts(api: Callable[[str], Any], *, environment: dict[str, str] | None = None, **wanted: Any) -> Facts:
    """From a workstation, unless `here`."""
    wanted = {"kubeconfig": "" if wanted.get("manifests") else "k", "root": "/nonexistent", "node": "node0"} | wanted
    return gather(Wanted(**wanted), connect=api, environment=environment or {})


def names(found: Facts) -> dict[str, int]:
    return {kind: len(items) for kind, items in found.objects.items()}


def unread(found: Facts, what: str) -> Unread:
    [one] = [one for one in found.unread if one.what == what]
    return one


def test_a_workstation(kubeadm: Cluster) -> None:
    found = facts(kubeadm)
    assert (
        names(found) == {"Service": 15, "EndpointSlice": 16, "Node": 1, "ServiceCIDR": 1} or names(found)["Node"] == 1
    )
    assert (found.node, found.cluster_version, found.source) == ("node0", "v1.36.2", "API server 192.0.2.1:6443")
    assert (found.present.mode, found.present.mode_is_set, found.present.version) == ("ipvs", True, "v1.36.2")
    assert found.present.document["ipvs"] == {"scheduler": "wlc"}
    assert found.present.source == "ConfigMap kube-system/kube-proxy, config.conf"
    assert not found.here.is_this_node and found.here.platform == "kubeadm" and not found.dataplanes
    [elsewhere] = found.unread
    assert "none of the addresses of node node0 is on an interface here" in elsewhere.cause
    assert "migrate collect" in elsewhere.remedy


def test_only_gets_and_lists(kubeadm: Cluster) -> None:
    """The transport knows no other."""
    facts(kubeadm)
    assert all(path.startswith(("/api", "/version")) for path in kubeadm.asked)
    assert not any("secrets" in path for path in kubeadm.asked)


def test_the_report_of_a_workstation(kubeadm: Cluster) -> None:
    found = facts(kubeadm)
    report = judge.report(found, Proof("not-tried", "no"), ours.read(found))
    assert not report.compared and report.counts.services > 10
    assert {"ipvs-scheduler"} <= {finding.check for finding in report.findings}


@pytest.mark.parametrize(
    ("plural", "what", "rule"),
    [
        ("services", "Services", 'verbs ["list"] on resource "services" in apiGroup ""'),
        (
            "endpointslices",
            "EndpointSlices",
            'verbs ["list"] on resource "endpointslices" in apiGroup "discovery.k8s.io"',
        ),
        ("servicecidrs", "ServiceCIDRs", 'verbs ["list"] on resource "servicecidrs" in apiGroup "networking.k8s.io"'),
        ("nodes", "Nodes", 'verbs ["get", "list"] on resource "nodes" in apiGroup ""'),
    ],
)
def test_each_resource_may_be_forbidden(kubeadm: Cluster, plural: str, what: str, rule: str) -> None:
    before = names(facts(kubeadm))
    kubeadm.forbidden.add(plural)
    found = facts(kubeadm)
    told = unread(found, what)
    assert "HTTP 403" in told.cause and "without" in told.cause
    assert told.remedy == f"grant this account, in a ClusterRole: {rule}"
    gone = {"services": "Service", "endpointslices": "EndpointSlice", "servicecidrs": "ServiceCIDR", "nodes": "Node"}[
        plural
    ]
    assert names(found) == before | {gone: 0}
    report = judge.report(found, Proof("not-tried", "no"), ours.read(found))
    assert any(gap.what == what for gap in report.gaps)


@pytest.mark.parametrize("plural", ["daemonsets", "pods", "configmaps"])
def test_kube_proxy_itself_may_be_hidden(kubeadm: Cluster, plural: str) -> None:
    kubeadm.forbidden.add(plural)
    found = facts(kubeadm)
    if plural == "configmaps":
        assert found.present.document == {}
        told = unread(found, "configuration of the present kube-proxy")
        assert "--config" in told.remedy
        assert any("configmaps" in one.remedy and "HTTP 403" in one.cause for one in found.unread)
    else:
        assert found.present.mode == "ipvs"  # its ConfigMap has its usual name


def documented() -> list[Json]:
    """The rules of the ClusterRole in docs/migrate.md."""
    text = (REPO / "docs/migrate.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    [role] = [d for block in blocks for d in yaml.safe_load_all(block) if d and d["kind"] == "ClusterRole"]
    rules: list[Json] = role["rules"]
    return rules


def test_the_documented_permissions_are_enough(kubeadm: Cluster) -> None:
    """And each of them is needed."""
    rules, used = documented(), set()

    def before(path: str) -> Answer | None:
        found = re.match(r"/(?:api|apis/([^/]+))/v1(?:/namespaces/[^/]+)?/([a-z]+)(/[^/?]+)?", path)
        if found:
            asked = (found[1] or "", found[2], "get" if found[3] else "list")
            used.add(asked)
            group, resource, verb = asked
            if not any(group in r["apiGroups"] and resource in r["resources"] and verb in r["verbs"] for r in rules):
                return Answer(403, json.dumps({"kind": "Status", "message": f"{asked} is forbidden"}).encode())
        return None

    kubeadm.before = before
    found = facts(kubeadm)
    facts(kubeadm, node="", environment={"NODE_NAME": "other"})  # which lists Nodes
    assert len(found.unread) == 1 and found.present.mode == "ipvs"  # it is not this node
    allowed = {(g, r, v) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}
    assert used <= allowed
    assert allowed - used <= {("apps", "daemonsets", "get")}  # where flags are in the DaemonSet


def test_credentials_that_are_not_taken_are_no_missing_permission(kubeadm: Cluster) -> None:
    def before(path: str) -> Answer | None:
        return Answer(401, b'{"kind": "Status", "message": "Unauthorized"}') if "servicecidrs" in path else None

    kubeadm.before = before
    told = unread(facts(kubeadm), "ServiceCIDRs")
    assert "401" in told.cause and "credentials" in told.remedy and "ClusterRole" not in told.remedy


def test_nothing_is_allowed(kubeadm: Cluster) -> None:
    kubeadm.forbidden |= {plural for _, plural in PATHS.values()}
    with pytest.raises(SourceError, match="nothing can be learned from it: Services: HTTP 403"):
        facts(kubeadm)


def test_a_server_that_is_away(kubeadm: Cluster) -> None:
    kubeadm.is_away = True
    with pytest.raises(SourceError, match=r"192\.0\.2\.1:6443: connection refused"):
        facts(kubeadm)
    assert len(kubeadm.asked) == 2  # it is not asked for everything


def test_a_server_that_goes_away_half_way(kubeadm: Cluster) -> None:
    def before(path: str) -> Answer | None:
        kubeadm.is_away = "endpointslices" in path
        if kubeadm.is_away:
            raise Trouble(0, "connection reset")
        return None

    kubeadm.before = before
    with pytest.raises(SourceError, match="EndpointSlices"):
        facts(kubeadm)


def test_a_server_that_is_busy(kubeadm: Cluster) -> None:
    busy = [Answer(429, b"{}", {"Retry-After": "1"}), Answer(503, b"overloaded")]
    kubeadm.before = lambda path: busy.pop() if busy and "services" in path else None
    assert names(facts(kubeadm)) == names(facts(kubeadm))
    assert not busy


def test_an_old_server_has_no_service_cidrs(kubeadm: Cluster) -> None:
    kubeadm.before = lambda path: (
        Answer(404, b'{"kind":"Status","message":"not found"}') if "servicecidrs" in path else None
    )
    found = facts(kubeadm)
    assert names(found)["ServiceCIDR"] == 0
    assert not any(one.what == "ServiceCIDRs" for one in found.unread)


def test_an_answer_that_is_nonsense(kubeadm: Cluster) -> None:
    kubeadm.before = lambda path: Answer(200, b"<html>") if "endpointslices" in path else None
    told = unread(facts(kubeadm), "EndpointSlices")
    assert "no list of the Kubernetes API" in told.cause


def test_broken_objects_are_named(kubeadm: Cluster) -> None:
    for number in range(30):
        kubeadm.put(
            {"kind": "Service", "metadata": {"name": f"bad{number}", "namespace": "x"}, "spec": {"ports": "80"}}
        )
    found = facts(kubeadm)
    assert "spec" in unread(found, "Service x/bad0").cause
    assert unread(found, "10 more Services")


def test_pages(kubeadm: Cluster) -> None:
    for number in range(1200):
        meta = {"name": f"s{number}", "namespace": "x"}
        kubeadm.put(
            {"kind": "Service", "metadata": meta, "spec": {"clusterIP": f"10.97.{number // 250}.{number % 250}"}}
        )
    seen: list[tuple[str, int]] = []
    found = gather(
        Wanted(kubeconfig="k", node="node0", root="/nonexistent"),
        connect=kubeadm,
        environment={},
        progress=lambda what, count: seen.append((what, count)),
    )
    assert names(found)["Service"] > 1200
    assert [count for what, count in seen if what == "Services"][:3] == [0, 500, 1000]


# -- Which node --------------------------------------------------------------------------------------------------------


def test_no_such_node(kubeadm: Cluster) -> None:
    found = facts(kubeadm, node="node7")
    assert found.node == "node7"
    assert "no Node of this name" in unread(found, "Node node7").cause


def test_the_only_node_is_meant(kubeadm: Cluster) -> None:
    assert facts(kubeadm, node="").node == "node0"


def test_of_several_nodes_none_is_guessed(kubeadm: Cluster) -> None:
    kubeadm.put({"kind": "Node", "metadata": {"name": "other"}, "status": {}})
    found = facts(kubeadm, node="", environment={"NODE_NAME": "nobody"})
    assert found.node == "nobody" and names(found)["Node"] == 0
    assert any("--node" in one.remedy for one in found.unread)


def test_the_pod_knows_its_node(kubeadm: Cluster) -> None:
    kubeadm.put({"kind": "Node", "metadata": {"name": "other"}, "status": {}})
    assert facts(kubeadm, node="", environment={"NODE_NAME": "node0"}).node == "node0"


# -- The present proxy's configuration ---------------------------------------------------------------------------------


def test_a_given_configuration_goes_before_the_cluster(kubeadm: Cluster) -> None:
    found = facts(kubeadm, config=str(config("nftables")))
    assert found.present.mode == "nftables" and found.present.source == str(config("nftables"))


def test_flags_of_a_daemonset() -> None:
    workload = json.loads(json.dumps(DAEMONSET))
    command = workload["spec"]["template"]["spec"]["containers"][0]
    command["command"] = [
        "kube-proxy",
        "--proxy-mode=ipvs",
        "--ipvs-scheduler",
        "rr",
        "--cluster-cidr=10.9.0.0/16",
        "--masquerade-all",
    ]
    api = Cluster(workload)
    api.put(pod(workload))
    found = facts(api)
    document = found.present.document
    assert document["mode"] == "ipvs" and document["ipvs"] == {"scheduler": "rr"}
    assert document["clusterCIDR"] == "10.9.0.0/16"
    assert document["nftables"] == document["iptables"] == {"masqueradeAll": True}
    assert found.here.platform == "daemonset"


def test_k3s() -> None:
    arguments = json.dumps(["agent", "--kube-proxy-arg", "proxy-mode=ipvs", "--kube-proxy-arg=ipvs-strict-arp"])
    api = Cluster()
    node = api._objects["Node"][0]
    node["metadata"]["annotations"] = {"k3s.io/node-args": arguments}
    node["status"]["nodeInfo"] = {"kubeletVersion": "v1.36.2+k3s1", "operatingSystem": "linux"}
    found = facts(api)
    assert found.present.mode == "ipvs" and found.present.document["ipvs"] == {"strictARP": True}
    assert found.present.document["clusterCIDR"] == "10.42.0.0/16"
    assert (found.here.platform, found.present.version) == ("k3s", "v1.36.2+k3s1")


def test_an_unset_mode_is_resolved(kubeadm: Cluster) -> None:
    kubeadm.clear("ConfigMap")
    kubeadm.put(config_map("clusterCIDR: 10.244.0.0/16\n"))
    found = facts(kubeadm)
    assert (found.present.mode, found.present.mode_is_set) == ("iptables", False)


BROKEN = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: ipvs
clusterCIDR: 10.244.0.0/16
bindAddress: eth0
nodePortAddresses: [primary, nonsense]
s3cr3t: s3cr3t-t0k3n
iptables: {masqueradeBit: "14"}
conntrack: 5
ipvs:
  syncPeriod: 30s
  minSyncPeriod: 60s
  tcpTimeout: 900s
"""


def test_a_half_broken_configuration(tmp_path: Path, kubeadm: Cluster) -> None:
    """What can be used of it is, and the rest is named."""
    (tmp_path / "config.conf").write_text(BROKEN + "  excludeCIDRs: [10.0.0.0/8\n")
    found = facts(kubeadm, config=str(tmp_path / "config.conf"))
    document = found.present.document
    assert found.present.mode == "ipvs" and document["clusterCIDR"] == "10.244.0.0/16"
    assert document["iptables"] == {"masqueradeBit": 14}
    assert "bindAddress" not in document and "nodePortAddresses" not in document
    causes = "\n".join(f"{one.what}: {one.cause}" for one in found.unread)
    for word in (
        "bindAddress",
        "nodePortAddresses",
        "conntrack",
        "not YAML",
        "minSyncPeriod",
    ):
        assert word in causes
    assert ("a field", "unknown field") in found.present.unknown and found.present.refused == "is not YAML"
    assert "t0k3n" not in msgspec.json.encode(found).decode()
    assert ours.read(found).config_error == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "it holds nothing of a kube-proxy"), (b"hello: world\n", "it holds nothing"), (b"\0\1\2", "it is no text")],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, kubeadm: Cluster, content: bytes, words: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        facts(kubeadm, config=str(tmp_path / "x"))
    with pytest.raises(ConfigError, match="No such file"):
        facts(kubeadm, config=str(tmp_path / "y"))


@pytest.mark.parametrize(
    "content",
    [
        "--proxy-mode=ipvs\n",
        json.dumps(config_map("mode: ipvs")),
        "[Service]\nExecStart=/usr/bin/kube-proxy --proxy-mode ipvs\n",
    ],
)
def test_other_files_with_a_configuration(tmp_path: Path, kubeadm: Cluster, content: str) -> None:
    (tmp_path / "x").write_text(content)
    assert facts(kubeadm, config=str(tmp_path / "x")).present.mode == "ipvs"


# -- Manifests ---------------------------------------------------------------------------------------------------------


def nobody(_kubeconfig: str) -> Any:
    raise AssertionError("no API server is asked")


def test_manifests(tmp_path: Path) -> None:
    directory = write_manifests(tmp_path / "m")
    found = facts(nobody, manifests=str(directory), config=str(config("ipvs")))
    assert found.node == "node0" and names(found)["Service"] > 10 and names(found)["Node"] == 1
    assert found.source == f"manifests {directory}" and found.cluster_version == ""
    assert not found.here.is_this_node


def test_a_configuration_that_names_a_node_does_not_make_this_machine_one(tmp_path: Path) -> None:
    """Given on a workstation, with manifests that have no Node."""
    directory = write_manifests(tmp_path / "m", [item for item in recorded() if item["kind"] != "Node"])
    found = facts(nobody, manifests=str(directory), config=str(config("ipvs")), node="")
    assert found.node == "node0" and not found.here.is_this_node


def test_a_node_that_two_places_name_is_this_machine(kubeadm: Cluster) -> None:
    """--node and the configuration's hostnameOverride, where the Node, whose addresses would tell, may not be read."""
    kubeadm.forbidden.add("nodes")
    assert not facts(kubeadm).here.is_this_node
    found = facts(kubeadm, config=str(config("ipvs")))
    assert found.node == "node0" and found.here.is_this_node
    assert not facts(kubeadm, config=str(config("ipvs")), node="node1").here.is_this_node


def test_problems_of_files_are_told(tmp_path: Path) -> None:
    directory = write_manifests(tmp_path / "m")
    (directory / "broken.yaml").write_text("a: [1\n")
    (directory / "bad.yaml").write_text("apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {ports: 80}\n")
    found = facts(nobody, manifests=str(directory))
    told = {one.what: one for one in found.unread}
    assert "Service default/bad" in told and any("broken.yaml" in what for what in told)


def test_no_manifests(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such directory"):
        facts(nobody, manifests=str(tmp_path / "x"))


def test_no_way_to_an_api_server() -> None:
    with pytest.raises(SourceError, match="nothing says where it is"):
        gather(Wanted(root="/nonexistent"), connect=nobody, environment={})


def test_evidence_is_the_cluster_s(kubeadm: Cluster) -> None:
    found = facts(kubeadm)
    kinds = {type(item) for item in found.evidence}
    assert {ConfiguredMode, Version} <= kinds
