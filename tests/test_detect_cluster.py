"""A whole cluster through its API server: which kube-proxy each node runs, what may not be read, what it costs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml

from proxy.apiserver import Connection
from proxy.detect import cluster
from proxy.detect.api_reader import PAGE, ApiReader
from proxy.detect.cluster_objects import config_maps, selector
from proxy.detect.evidence import ConfiguredMode, Evidence, Kernel, Unreadable, Version
from proxy.detect.findings import Report
from proxy.detect.judge import judge
from proxy.detect.node_table import as_table, lines
from proxy.detect.objects import read_objects
from tests.cluster_api import (
    ClusterApi,
    Json,
    config,
    config_map,
    daemonset,
    node,
    other_pod,
    pod_of,
    pod_spec,
    static_pod,
)


def reader(api: ClusterApi) -> ApiReader:
    return ApiReader(api, sleep=lambda _seconds: None, rand=lambda: 0.5)


def gathered(api: ClusterApi, name: str = "") -> list[Evidence]:
    return cluster.gather(reader(api), read_objects, name)


def report(api: ClusterApi) -> Report:
    return judge(gathered(api))


def rows(found: Report) -> dict[str, tuple[str, ...]]:
    """node -> mode, from, findings"""
    return {line.cells[0]: line.cells[3:] for line in lines(found)}


def kubeadm(mode: str | None, nodes: Sequence[str] = ("a", "b")) -> list[Json]:
    owner = daemonset()
    pods = [pod_of(owner, name) for name in nodes]
    return [owner, config_map(config(mode)), *pods, *map(node, nodes)]


def unreadable(evidence: Sequence[Evidence]) -> list[Unreadable]:
    return [item for item in evidence if isinstance(item, Unreadable)]


# -- What runs where ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "shown", "checks"),
    [("ipvs", "ipvs", "ipvs-mode"), ("nftables", "nftables", "-"), (None, "iptables (unset)", "mode-unset")],
)
def test_kubeadm(mode: str | None, shown: str, checks: str) -> None:
    found = report(ClusterApi(kubeadm(mode)))
    assert rows(found) == dict.fromkeys("ab", (shown, "configmap kube-system/kube-proxy", checks))
    assert found.kubernetes == "v1.36.2"


def test_flags_and_versions() -> None:
    owner = daemonset(pod_spec("kube-proxy", "v1.34.1", "--proxy-mode=ipvs"))
    evidence = gathered(ClusterApi([owner, pod_of(owner, "a"), node("a", kubelet="v1.35.0")]))
    assert {(e.of, e.version, e.place.node) for e in evidence if isinstance(e, Version)} == {
        ("cluster", "v1.36.2", ""),
        ("kubelet", "v1.35.0", "a"),
        ("kube-proxy", "v1.34.1", "a"),
    }
    assert rows(judge(evidence)) == {"a": ("ipvs", "daemonset kube-system/kube-proxy", "ipvs-mode")}


def test_several_daemonsets_each_with_its_nodes() -> None:
    ipvs, nft = daemonset(pod_spec("old"), "old"), daemonset(pod_spec("new"), "new", "proxies")
    objects = [ipvs, nft, config_map(config("ipvs"), "old"), config_map(config("nftables"), "new", "proxies")]
    objects += [pod_of(ipvs, "a"), pod_of(nft, "b"), node("a"), node("b"), node("c")]
    assert rows(report(ClusterApi(objects))) == {
        "a": ("ipvs", "configmap kube-system/old", "ipvs-mode"),
        "b": ("nftables", "configmap proxies/new", "-"),
        "c": ("-", "no kube-proxy found", "-"),
    }


def test_a_rollout_is_told_node_by_node() -> None:
    """What a node runs is what its pod says, whatever the DaemonSet has become since."""
    owner = daemonset(pod_spec("kube-proxy-v2"))
    objects = [owner, config_map(config("ipvs"), "kube-proxy-v1"), config_map(config("nftables"), "kube-proxy-v2")]
    objects += [
        pod_of(owner, "a", "r1", pod_spec("kube-proxy-v1")),
        pod_of(owner, "b", "r2"),
        pod_of(owner, "c", "r1", pod_spec("kube-proxy-v1"), born="2026-11-30T08:00:00Z"),  # goes
        pod_of(owner, "c", "r2", born="2026-11-30T09:00:00Z"),
        pod_of(owner, "d", "r1", pod_spec("kube-proxy-v1"), phase="Failed"),
        pod_of(owner, "e", "r2", born="2026-11-30T09:00:00Z"),
        pod_of(owner, "e", "r1", pod_spec("kube-proxy-v1"), born="2026-11-30T08:00:00Z"),  # the other way round
        *map(node, "abcde"),
    ]
    modes = {name: cells[0] for name, cells in rows(report(ClusterApi(objects))).items()}
    assert modes == {"a": "ipvs", "b": "nftables", "c": "nftables", "d": "-", "e": "nftables"}


def test_a_daemonset_without_pods_does_not_count() -> None:
    """As after an installation of Cilium: a selector that no node has keeps kube-proxy away."""
    found = report(ClusterApi([daemonset(), config_map(config("ipvs")), node("a")]))
    assert rows(found) == {"a": ("-", "no kube-proxy found", "-")}
    assert [(e.overridden, e.note) for e in found.evidence if isinstance(e, ConfiguredMode)] == [
        (True, "no pod of it runs")
    ]


def test_nodes_that_are_ours_already() -> None:
    owner = daemonset()
    ours = daemonset(name="kube-proxy-nft")
    container = ours["spec"]["template"]["spec"]["containers"][0]
    container |= {"image": "registry.example/kube-proxy-nft:0.1.0@sha256:12", "args": ["run"]}
    del container["command"]
    objects = [owner, ours, config_map(config("ipvs")), pod_of(owner, "a"), pod_of(ours, "b"), node("a"), node("b")]
    found = report(ClusterApi(objects))
    assert rows(found)["b"] == ("kube-proxy-nft", "daemonset kube-system/kube-proxy-nft", "-")
    assert "1 ipvs, 1 kube-proxy-nft" in as_table(found)


def test_static_pods() -> None:
    objects = [
        static_pod("a", "--proxy-mode=ipvs"),
        static_pod("b", "--proxy-mode=nftables", labels={"k8s-app": "kube-proxy"}),
        static_pod("a", "--allocate-node-cidrs", name="kube-controller-manager"),
        other_pod("web", "a"),
        *map(node, "ab"),
    ]
    api = ClusterApi(objects)
    assert rows(report(api)) == {
        "a": ("ipvs", "pod kube-system/kube-proxy-a", "ipvs-mode"),
        "b": ("nftables", "pod kube-system/kube-proxy-b", "-"),
    }
    assert not any("default" in path for path in api.asked)


def test_pods_without_an_account_that_are_not_static() -> None:
    """Where the API server is told not to give them one."""
    owner = daemonset()
    pod = pod_of(owner, "a")
    del pod["spec"]["serviceAccountName"]
    evidence = gathered(ClusterApi([owner, config_map(config("ipvs")), pod, node("a")]))
    assert [e.place.kind for e in evidence if isinstance(e, ConfiguredMode)] == ["configmap"]
    assert not unreadable(evidence)


def test_k3s_says_it_in_its_nodes() -> None:
    server = node("a")
    server["metadata"]["annotations"] = {"k3s.io/node-args": '["server","--kube-proxy-arg","proxy-mode=ipvs"]'}
    found = rows(report(ClusterApi([server])))
    assert found["a"][0] == "ipvs" and found["a"][2] == "ipvs-mode"


def test_windows_nodes() -> None:
    """kernelspace is all they have: an unset mode is nothing there, and their kernel is not Linux."""
    owner = daemonset()
    windows = node("win", "10.0.20348.2340", system="windows")
    objects = [owner, config_map(config(None)), pod_of(owner, "win"), windows, pod_of(owner, "a"), node("a")]
    objects += [node("alone", "10.0.17763", system="windows")]
    found = report(ClusterApi(objects))
    by_node = rows(found)
    assert by_node["win"] == ("kernelspace", "configmap kube-system/kube-proxy", "-")
    assert by_node["alone"] == ("kernelspace", "node alone", "-")
    assert by_node["a"][2] == "mode-unset"
    assert [line.cells[1] for line in lines(found)] == ["6.1.0-40-amd64", "Windows", "Windows"]


def test_old_kernels() -> None:
    objects = [*kubeadm("nftables"), node("c", "5.10.0-28-amd64"), pod_of(daemonset(), "c")]
    assert rows(report(ClusterApi(objects)))["c"][2] == "kernel-too-old"


def test_one_node_of_a_cluster() -> None:
    objects = [*kubeadm("ipvs"), static_pod("a", "--proxy-mode=ipvs"), static_pod("b", "--proxy-mode=ipvs")]
    api = ClusterApi(objects)
    evidence = gathered(api, "a")
    assert {item.place.node for item in evidence} == {"", "a"}
    assert sum(isinstance(item, Kernel) for item in evidence) == 1
    assert api.sent <= 6


def test_one_node_that_does_not_run_the_daemonsets_pod() -> None:
    evidence = gathered(ClusterApi([*kubeadm("ipvs"), node("c")]), "c")
    assert [e.note for e in evidence if isinstance(e, ConfiguredMode)] == ["none of its pods is on this node"]
    assert judge(evidence).findings == ()


def test_a_node_that_the_cluster_does_not_have() -> None:
    (item,) = unreadable(gathered(ClusterApi(kubeadm("nftables")), "laptop"))
    assert item.cause == "the cluster has no Node of this name" and "--node" in item.remedy


# -- What it costs -----------------------------------------------------------------------------------------------------


def test_a_cluster_of_5000_nodes() -> None:
    """Of 20,000 pods those that run kube-proxy are sent, in pages; each revision and each ConfigMap is read once."""
    owner, names = daemonset(), [f"worker-{i:04}" for i in range(5000)]
    objects = [owner, config_map(config("ipvs")), *map(node, names)]
    objects += [pod_of(owner, name, f"r{i % 2}") for i, name in enumerate(names)]
    objects += [other_pod(f"web-{i}", names[i % 5000]) for i in range(15000)]
    api, calls = ClusterApi(objects), list[int]()

    def counting(items: Sequence[Json]) -> list[Evidence]:
        calls.append(len(items))
        return read_objects(items)

    found = judge(cluster.gather(reader(api), counting))
    assert len(found.nodes) == 5000
    assert api.sent == 10002 and len(api.asked) == 24
    assert sorted(calls) == [1, 2, 2, 5000]  # the DaemonSet, each revision with the ConfigMap, the Nodes
    text = as_table(found)
    assert sum(line.startswith("worker-") for line in text.splitlines()) == 5000
    assert text.count("DEPRECATED") == 1 and "all 5000 nodes" in text
    assert len(text[text.index("DEPRECATED") :].splitlines()) < 20


def test_only_reading_is_done() -> None:
    api = ClusterApi(kubeadm("ipvs"))
    gathered(api)
    counts = Counter(urlsplit(path).path for path in api.asked)
    assert max(counts.values()) == 1 or counts["/api/v1/namespaces/kube-system/pods"] == 2
    for path in api.asked:
        query = dict(parse_qsl(urlsplit(path).query))
        assert "watch" not in query and query.get("limit", str(PAGE)) == str(PAGE)


# -- The table ---------------------------------------------------------------------------------------------------------


def test_the_table() -> None:
    objects = [*kubeadm("ipvs", ["a", "b"]), node("win", system="windows"), node("old", "4.18.0-553.el8")]
    text = as_table(report(ClusterApi(objects)))
    head, table, *rest = text.split("\n\n")
    assert head == "Kubernetes v1.36.2; nodes: a, b, old, win"
    assert table.splitlines() == [
        "NODE  KERNEL          KUBELET  MODE         FROM                              FINDINGS",
        "a     6.1.0-40-amd64  v1.36.2  ipvs         configmap kube-system/kube-proxy  ipvs-mode",
        "b     6.1.0-40-amd64  v1.36.2  ipvs         configmap kube-system/kube-proxy  ipvs-mode",
        "old   4.18.0-553.el8  v1.36.2  -            no kube-proxy found               kernel-too-old",
        "win   Windows         v1.36.2  kernelspace  node win                          -",
    ]
    assert "on:    2 of 4 nodes: a, b" in rest[0] and "1.43" in rest[0] and "KEP-5495" in rest[0]
    assert rest[-1] == "4 nodes by mode: 2 ipvs, 1 kernelspace, 1 none seen; 2 with something deprecated or worse\n"


def test_colours_are_asked_for() -> None:
    found = report(ClusterApi(kubeadm("ipvs")))
    assert "\033" not in as_table(found) and "\033[1;33mipvs-mode\033[0m" in as_table(found, colours=True)


def test_a_cluster_of_which_nothing_is_known() -> None:
    assert "no nodes were seen" in as_table(judge([]))


def test_names_cannot_command_a_terminal() -> None:
    owner = daemonset()
    evil = config(None, 'mode: "\\e[2Jipvs"')
    assert "\033" not in as_table(report(ClusterApi([owner, config_map(evil), pod_of(owner, "a"), node("a")])))


# -- Pieces ------------------------------------------------------------------------------------------------------------


def test_selectors() -> None:
    rules = [
        {"key": "tier", "operator": "In", "values": ["a", "b"]},
        {"key": "env", "operator": "NotIn", "values": ["test"]},
        {"key": "up", "operator": "Exists"},
        {"key": "down", "operator": "DoesNotExist"},
    ]
    wanted = {"spec": {"selector": {"matchLabels": {"k8s-app": "kube-proxy"}, "matchExpressions": rules}}}
    assert selector(wanted) == "k8s-app=kube-proxy,tier in (a,b),env notin (test),up,!down"


def test_which_config_maps() -> None:
    spec: Json = {
        "volumes": [
            {"configMap": {"name": "one"}},
            {"projected": {"sources": [{"configMap": {"name": "two"}}, {"serviceAccountToken": {}}]}},
            {"projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}},
            {"hostPath": {"path": "/x"}},
        ],
        "containers": [
            {
                "envFrom": [{"configMapRef": {"name": "three"}}, {"secretRef": {"name": "no"}}],
                "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "one", "key": "a"}}}, {"name": "B"}],
            }
        ],
    }
    assert config_maps(spec) == ["one", "two", "three"]


# -- Over the network --------------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[ClusterApi, str]]:
    """The same server over HTTP, and a kubeconfig for it."""
    api = ClusterApi(kubeadm("ipvs"))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with api.get(self.path, read_timeout=1.0) as answer:
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    path = tmp_path / "kubeconfig"
    clusters = [{"name": "c", "cluster": {"server": url}}]
    contexts = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
    users = [{"name": "u", "user": {"token": "t"}}]
    path.write_text(
        yaml.safe_dump({"clusters": clusters, "contexts": contexts, "users": users, "current-context": "c"})
    )
    yield api, str(path)
    server.shutdown()
    server.server_close()


def test_over_http(served: tuple[ClusterApi, str]) -> None:
    api, kubeconfig = served
    api.forbidden.add("configmaps")
    found = judge(cluster.gather(ApiReader(Connection(kubeconfig)), read_objects))
    assert found.nodes == ("a", "b") and found.kubernetes == "v1.36.2"
    assert any("configmaps" in item.remedy for item in unreadable(found.evidence))
