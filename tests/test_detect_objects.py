"""What Kubernetes objects from an API server say of kube-proxy."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.detect.evidence import ConfiguredMode, Evidence, FeatureGate, Kernel, Place, Unreadable, Version
from proxy.detect.judge import judge
from proxy.detect.objects import read_objects

Json = dict[str, Any]
DATA: Final = Path(__file__).parent / "data" / "detect"
HEAD: Final = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


def config_map(text: str, name: str = "kube-proxy", key: str = "config.conf") -> Json:
    return {"kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": name}, "data": {key: text}}


def pod_spec(*arguments: str, map_name: str = "kube-proxy", **more: Any) -> Json:
    container = {
        "name": "kube-proxy",
        "image": "registry.k8s.io/kube-proxy:v1.36.2",
        "command": ["/usr/local/bin/kube-proxy", *(arguments or ("--config=/var/lib/kube-proxy/config.conf",))],
        "volumeMounts": [{"name": "kube-proxy", "mountPath": "/var/lib/kube-proxy"}],
    }
    return {"containers": [container], "volumes": [{"name": "kube-proxy", "configMap": {"name": map_name}}], **more}


def daemonset(spec: Json, name: str = "kube-proxy") -> Json:
    meta = {"namespace": "kube-system", "name": name}
    return {"kind": "DaemonSet", "apiVersion": "apps/v1", "metadata": meta, "spec": {"template": {"spec": spec}}}


def pod(spec: Json, node: str, owner: str = "kube-proxy", **meta: Any) -> Json:
    owners = {"ownerReferences": [{"kind": "DaemonSet", "name": owner}]} if owner else {}
    meta = {"namespace": "kube-system", "name": f"kube-proxy-{node}", **owners, **meta}
    return {"kind": "Pod", "metadata": meta, "spec": spec | {"nodeName": node}, "status": {"phase": "Running"}}


def modes(evidence: list[Evidence]) -> list[tuple[str, str, str]]:
    """Those that decide: mode, where, node."""
    return [
        (e.mode, f"{e.place.kind} {e.place.name} {e.place.part}".strip(), e.place.node)
        for e in evidence
        if isinstance(e, ConfiguredMode) and not e.overridden
    ]


def aside(evidence: list[Evidence]) -> list[tuple[str, str]]:
    return [(e.mode, e.note) for e in evidence if isinstance(e, ConfiguredMode) and e.overridden]


def test_kubeadm() -> None:
    text = yaml.safe_load((DATA / "kubeadm/configmap-ipvs.yaml").read_text())["data"]["config.conf"]
    found = read_objects([config_map(text), daemonset(pod_spec()), pod(pod_spec(), "n1"), pod(pod_spec(), "n2")])
    assert modes(found) == [("ipvs", "configmap kube-system/kube-proxy config.conf", "")]
    [mode] = [e for e in found if isinstance(e, ConfiguredMode)]
    assert text.splitlines()[mode.place.line - 1] == "mode: ipvs"
    assert [(e.version, e.of) for e in found if isinstance(e, Version)] == [("v1.36.2", "kube-proxy")]


def test_pods_of_an_older_revision_are_of_their_nodes() -> None:
    objects = [
        config_map(HEAD + "mode: nftables\n"),
        daemonset(pod_spec()),
        pod(pod_spec(), "n1"),
        pod(pod_spec("--proxy-mode=ipvs"), "n2"),
    ]
    found = read_objects(objects)
    assert modes(found) == [
        ("nftables", "configmap kube-system/kube-proxy config.conf", ""),
        ("ipvs", "pod kube-system/kube-proxy-n2 --proxy-mode", "n2"),
    ]


def test_several_daemonsets() -> None:
    """Each of a group of nodes: their pods say which."""
    edge = pod_spec(map_name="kube-proxy-edge")
    objects = [
        config_map(HEAD + "mode: ipvs\nfeatureGates: {KubeProxyIPVS: true}\n"),
        config_map(HEAD + "mode: nftables\n", "kube-proxy-edge"),
        daemonset(pod_spec()),
        daemonset(edge, "kube-proxy-edge"),
        pod(pod_spec(), "n1"),
        pod(edge, "n2", "kube-proxy-edge"),
    ]
    found = read_objects(objects)
    assert {(mode, node) for mode, _, node in modes(found)} == {
        ("ipvs", ""), ("nftables", ""), ("ipvs", "n1"), ("nftables", "n2")
    }  # fmt: skip
    assert {e.place.node for e in found if isinstance(e, FeatureGate)} == {"", "n1"}
    same = [config_map(HEAD + "mode: ipvs\n"), daemonset(pod_spec()), daemonset(pod_spec(), "b"), pod(pod_spec(), "n1")]
    assert [node for _, _, node in modes(read_objects(same))] == [""]


def test_static_pods_are_of_their_nodes() -> None:
    mirror = {"annotations": {"kubernetes.io/config.mirror": "0123"}}
    spec = {
        "containers": [
            {
                "name": "p",
                "image": "r/hardened-kubernetes:v1.36.2-rke2r1",
                "command": ["kube-proxy"],
                "args": ["--proxy-mode=ipvs"],
            }
        ]
    }
    found = read_objects([pod(spec, "n1", owner="", **mirror)])
    assert modes(found) == [("ipvs", "pod kube-system/kube-proxy-n1 (static) --proxy-mode", "n1")]
    assert [(e.version, e.place.node) for e in found if isinstance(e, Version)] == [("v1.36.2-rke2r1", "n1")]
    over = pod(spec, "n1", owner="", **mirror) | {"status": {"phase": "Failed"}}
    assert read_objects([over]) == []


@pytest.mark.parametrize(
    ("mount", "volume", "path", "mode"),
    [
        ({"mountPath": "/c/"}, {"configMap": {"name": "m"}}, "/c/k", "ipvs"),
        ({"mountPath": "/c/f", "subPath": "k"}, {"configMap": {"name": "m"}}, "/c/f", "ipvs"),
        ({"mountPath": "/c"}, {"configMap": {"name": "m", "items": [{"key": "k", "path": "a/f"}]}}, "/c/a/f", "ipvs"),
        ({"mountPath": "/c", "subPath": "a"}, {"configMap": {"name": "m", "items": [{"key": "k", "path": "a/f"}]}}, "/c/f", "ipvs"),
        ({"mountPath": "/c"}, {"projected": {"sources": [{"secret": {}}, {"configMap": {"name": "m", "items": [{"key": "k", "path": "f"}]}}]}}, "/c/f", "ipvs"),
        ({"mountPath": "/c"}, {"configMap": {"name": "m"}}, "/c/../c/./k", "ipvs"),
        ({"mountPath": "C:\\c"}, {"configMap": {"name": "m"}}, "C:/c/k", "ipvs"),
        ({"mountPath": "/c"}, {"configMap": {"name": "m"}}, "/c/other", "ConfigMap kube-system/m has no key other"),
        ({"mountPath": "/c"}, {"configMap": {"name": "m", "items": []}}, "/c/k", "ipvs"),
        ({"mountPath": "/c"}, {"configMap": {"name": "m", "items": [{"key": "z", "path": "f"}]}}, "/c/k", "ConfigMap kube-system/m has no key for"),
        ({"mountPath": "/c"}, {"configMap": {"name": "n"}}, "/c/k", "ConfigMap kube-system/n, which --config names, is not here"),
        ({"mountPath": "/c"}, {"hostPath": {"path": "/etc/c"}}, "/c/k", "it is the file /etc/c/k of the node"),
        ({"mountPath": "/c"}, {"emptyDir": {}}, "/c/k", "where /c/k comes from is not in the pod"),
        ({"mountPath": "/cc"}, {"configMap": {"name": "m"}}, "/c/k", "where /c/k comes from is not in the pod"),
    ],
)  # fmt: skip
def test_where_the_configuration_comes_from(mount: Json, volume: Json, path: str, mode: str) -> None:
    spec: Json = pod_spec(f"--config={path}")
    spec["containers"][0]["volumeMounts"] = [{"name": "other", "mountPath": "/"}, {"name": "v", **mount}]
    spec["volumes"] = [{"name": "v", **volume}, {"name": "other", "emptyDir": {}}]
    found = read_objects([daemonset(spec), config_map(HEAD + "mode: ipvs\n", "m", "k")])
    if mode == "ipvs":
        assert modes(found) == [("ipvs", "configmap kube-system/m k", "")]
    else:
        [unread] = [e for e in found if isinstance(e, Unreadable)]
        assert unread.cause.startswith(mode) and modes(found) == []


def test_the_configuration_is_the_first_document() -> None:
    text = HEAD + "mode: ipvs\n---\n" + HEAD + "mode: nftables\n"
    found = read_objects([daemonset(pod_spec()), config_map(text)])
    assert [mode for mode, _, _ in modes(found)] == ["ipvs"]
    assert aside(found) == [("nftables", "kube-proxy reads the first document of its file only")]
    found = read_objects([daemonset(pod_spec()), config_map("kind: Config\n---\n" + text)])
    assert modes(found) == [] and len(aside(found)) == 2
    assert [e.cause for e in found if isinstance(e, Unreadable)] == ["it does not begin with a KubeProxyConfiguration"]


def test_a_configmap_that_nobody_uses() -> None:
    unused = config_map(HEAD + "mode: ipvs\nfeatureGates: {KubeProxyIPVS: true}\n")
    assert [mode for mode, _, _ in modes(read_objects([unused]))] == ["ipvs"]
    for other in (daemonset(pod_spec("--proxy-mode=nftables")), daemonset({"containers": [{"name": "cilium-agent"}]})):
        found = read_objects([unused, other])
        assert "ipvs" not in [mode for mode, _, _ in modes(found)] and [mode for mode, _ in aside(found)] == ["ipvs"]
        assert not any(isinstance(e, FeatureGate) for e in found)


def test_other_objects_say_nothing() -> None:
    secret = {"kind": "Secret", "metadata": {"name": "kube-proxy"}, "data": {"config.conf": HEAD + "mode: ipvs"}}
    named = config_map('{"title": "kube-proxy"}')
    agent = daemonset(
        {"containers": [{"name": "kube-proxy", "image": "r/kube-proxy-nft:1", "command": ["kube-proxy-nft", "run"]}]}
    )
    exporter = daemonset({"containers": [{"name": "x", "image": "r/x:1", "args": ["--scrape=kube-proxy"]}]})
    only_first = pod_spec()
    only_first["initContainers"], only_first["containers"] = only_first["containers"], []
    assert (
        read_objects(
            [secret, agent, exporter, daemonset(only_first), {}, {"kind": "Pod"}, {"kind": "DaemonSet", "spec": None}]
        )
        == []
    )
    assert [type(e).__name__ for e in read_objects([named])] == []


def test_lists() -> None:
    """The API's lists of one kind do not say it again for each item."""
    item = config_map(HEAD + "mode: ipvs\n")
    del item["kind"]
    maps = {"kind": "ConfigMapList", "apiVersion": "v1", "items": [item]}
    sets = {"kind": "DaemonSetList", "apiVersion": "apps/v1", "items": [daemonset(pod_spec())]}
    found = read_objects([maps, sets, {"kind": "List", "items": [pod(pod_spec(), "n1")]}])
    assert [mode for mode, _, _ in modes(found)] == ["ipvs"]


def test_windows() -> None:
    spec = pod_spec("--v=4", nodeSelector={"kubernetes.io/os": "windows"})
    found = read_objects([daemonset(spec)])
    assert [mode for mode, _, _ in modes(found)] == ["kernelspace"]
    spec["containers"][0]["command"] = ["powershell", "/start.ps1"]
    found = read_objects([daemonset(spec)])
    assert [mode for mode, _, _ in modes(found)] == ["kernelspace"] and not any(
        isinstance(e, Unreadable) for e in found
    )
    del spec["nodeSelector"]
    [cause] = [e.cause for e in read_objects([daemonset(spec)]) if isinstance(e, Unreadable)]
    assert cause == "what its container kube-proxy starts cannot be understood"


def test_variables_of_a_container() -> None:
    spec: Json = pod_spec("--proxy-mode=$(MODE)", "--v=$(V)")
    spec["containers"][0]["env"] = [{"name": "M", "value": "vs"}, {"name": "MODE", "value": "ip$(M)"}]
    assert modes(read_objects([daemonset(spec)])) == [("ipvs", "daemonset kube-system/kube-proxy --proxy-mode", "")]
    spec["containers"][0]["env"] = []
    assert [mode for mode, _, _ in modes(read_objects([daemonset(spec)]))] == ["$(MODE)"]  # as kube-proxy gets it
    spec["containers"][0]["envFrom"] = [{"prefix": "MO", "configMapRef": {"name": "env"}}]
    [unread] = [e for e in read_objects([daemonset(spec)]) if isinstance(e, Unreadable)]
    assert "what MODE is cannot be seen" in unread.cause
    found = read_objects([daemonset(spec), config_map("nftables", "env", "DE")])
    assert [mode for mode, _, _ in modes(found)] == ["nftables"]


def node(name: str, arguments: str | None = None, annotation: str = "k3s.io/node-args", **info: str) -> Json:
    meta = {"name": name, "annotations": {annotation: arguments} if arguments is not None else {}}
    return {"kind": "Node", "metadata": meta, "status": {"nodeInfo": {"operatingSystem": "linux", **info}}}


def test_nodes() -> None:
    windows = node("w", kernelVersion="10.0.20348.1", kubeletVersion="v1.36.2") | {}
    windows["status"]["nodeInfo"]["operatingSystem"] = "windows"
    found = read_objects([node("a", kernelVersion="6.1.0", kubeletVersion="v1.36.2"), windows, node("b")])
    assert [(e.release, e.place) for e in found if isinstance(e, Kernel)] == [("6.1.0", Place("node", "a", node="a"))]
    assert [e.place.node for e in found if isinstance(e, Version)] == ["a", "w"]


def test_arguments_of_k3s_in_nodes() -> None:
    def args(*words: str) -> str:
        return json.dumps(words)

    found = read_objects([node("s", args("server", "--kube-proxy-arg", "proxy-mode=ipvs")), node("a", args("agent"))])
    assert modes(found) == [
        ("ipvs", "node s k3s.io/node-args --proxy-mode", "s"),
        ("iptables", "node a k3s.io/node-args", "a"),
    ]
    off = [node("s", args("server", "--disable-kube-proxy")), node("a", args("agent"))]
    assert modes(read_objects(off)) == []
    [unread] = read_objects([node("s", args("server", "--kube-proxy-arg=config=/c"), "rke2.io/node-args")])
    assert isinstance(unread, Unreadable) and "file of the node" in unread.cause
    for broken in ("", "server", "[1]", "{}"):
        [unread] = read_objects([node("s", broken)])
        assert isinstance(unread, Unreadable) and unread.cause == "the annotation is no list of arguments"


def test_a_daemonset_on_no_node() -> None:
    """How kube-proxy is switched off where something else does its work."""
    item = daemonset(pod_spec("--proxy-mode=ipvs")) | {"status": {"desiredNumberScheduled": 0}}
    assert modes(read_objects([item])) == [] and aside(read_objects([item])) == [
        ("ipvs", "this DaemonSet runs on no node")
    ]
    assert not judge(read_objects([item]), "1.40").findings


JUNK: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "kind", "items", "x"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in inner for found in paths(item, (*path, key)))]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_objects_of_any_shape(data: st.DataObject) -> None:
    whole: list[Json] = [
        config_map(HEAD + "mode: ipvs\n"), daemonset(pod_spec()), pod(pod_spec(), "n1"), node("n1", '["server"]')
    ]  # fmt: skip
    objects: Any = copy.deepcopy(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        *path, key = data.draw(st.sampled_from([p for p in paths(objects) if len(p) > 1]))
        target = objects
        try:
            for step in path:
                target = target[step]
            target[key] = data.draw(JUNK)
        except (TypeError, KeyError, IndexError):
            pass  # it is no more
    judge(read_objects(objects), "1.37")


def test_the_operating_system_of_a_pod() -> None:
    spec = pod_spec("--proxy-mode=iptables")
    spec["containers"][0]["command"] = ["C:\\k\\kube-proxy.exe"]
    for where, system in ((spec, "windows"), (pod_spec() | {"nodeSelector": {"kubernetes.io/os": "linux"}}, "linux")):
        found = [e for e in read_objects([daemonset(where)]) if isinstance(e, ConfiguredMode)]
        assert [e.os for e in found] == [system] * len(found) and (found or system == "linux")
