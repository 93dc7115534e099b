"""deploy/ as an API server and a kubelet would read it, and held to the code that it deploys."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from proxy import __version__, event_object, sysctls
from proxy.apiserver import Reply
from proxy.config import load_config
from proxy.node_events import EventRecorder
from proxy.resources import resources
from tests import container, kustomize
from tests.kustomize import Key, Object

DEPLOY = container.REPO / "deploy"
OVERLAYS = sorted(path.parent for path in DEPLOY.rglob("kustomization.yaml"))
KUBERNETES = ("1.36", "1.37")
NAMES = {("kube-system", "kube-proxy-nft"), ("default", "kube-proxy-nft-events"), ("", "kube-proxy-nft")}
KUBE_PROXY_PATCH = "kube-proxy-patch.yaml"

overlays = pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)


def daemonset(objects: dict[Key, Object]) -> Object:
    return objects["DaemonSet", "kube-system", "kube-proxy-nft"]


# The objects.


@overlays
@pytest.mark.parametrize("version", KUBERNETES)
def test_the_api_takes_all_objects(overlay: Path, version: str) -> None:
    objects = kustomize.render(overlay)
    assert objects
    for obj in objects.values():
        kubernetes_validate.validate(obj, version, strict=True)


def test_the_schemas_know_what_is_wrong() -> None:
    obj = daemonset(kustomize.render(DEPLOY / "base"))
    obj["spec"]["template"]["spec"]["tolerate"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="tolerate"):
        kubernetes_validate.validate(obj, KUBERNETES[-1], strict=True)


def kustomize_version() -> tuple[int, ...]:
    """Of the one in kubectl; () without kubectl."""
    if not shutil.which("kubectl"):
        return ()
    done = subprocess.run(["kubectl", "version", "--client", "--output=json"], capture_output=True, check=True)
    return tuple(map(int, re.findall(r"\d+", json.loads(done.stdout).get("kustomizeVersion", ""))))


@overlays
@pytest.mark.skipif(kustomize_version() < (4,), reason="no kubectl with kustomize 4 or newer is installed")
def test_kubectl_makes_the_same_of_it(overlay: Path) -> None:
    done = subprocess.run(["kubectl", "kustomize", str(overlay)], capture_output=True, check=True)
    assert {kustomize.key(obj): obj for obj in yaml.safe_load_all(done.stdout)} == kustomize.render(overlay)


def test_every_file_is_part_of_something() -> None:
    used = {DEPLOY / overlay / KUBE_PROXY_PATCH for overlay in ("kubeadm", "kubeadm-node-by-node")}
    for overlay in OVERLAYS:
        [content] = kustomize.documents(overlay / "kustomization.yaml")
        names = [*content["resources"], *(patch["path"] for patch in content.get("patches", ()))]
        used |= {overlay / "kustomization.yaml", *((overlay / name).resolve() for name in names)}
    used |= set((DEPLOY / "monitoring").iterdir())  # for Prometheus and Grafana: tests/test_monitoring.py
    assert {path for path in DEPLOY.rglob("*") if path.is_file()} <= used


@overlays
def test_names(overlay: Path) -> None:
    """Ours are told apart from kube-proxy's, whose DaemonSet and monitoring select k8s-app=kube-proxy."""
    objects = kustomize.render(overlay)
    assert {found[1:] for found in objects} <= NAMES
    assert {obj["metadata"]["labels"]["k8s-app"] for obj in objects.values()} == {"kube-proxy-nft"}
    spec = daemonset(objects)["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"] == {"k8s-app": "kube-proxy-nft"}


@overlays
def test_the_image_is_of_this_version(overlay: Path) -> None:
    assert container.container(daemonset(kustomize.render(overlay)))["image"] == f"kube-proxy-nft:{__version__}"


# Rights: what the code asks for, and nothing else.


def granted(objects: dict[Key, Object], role: Key) -> set[tuple[str, str, str]]:
    """group, resource, verb."""
    rules = objects[role]["rules"]
    assert all(rule.keys() == {"apiGroups", "resources", "verbs"} for rule in rules)
    return {(g, r, v) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}


def test_rights_to_watch() -> None:
    needed = set()
    for resource in resources("node0"):
        prefix, name = resource.path.rsplit("/", 1)
        group = prefix.split("/")[2] if prefix.startswith("/apis/") else ""
        needed |= {(group, name, "list"), (group, name, "watch")}
    objects = kustomize.render(DEPLOY / "base")
    assert granted(objects, ("ClusterRole", "", "kube-proxy-nft")) == needed


class Listener:
    """Takes all Events, and remembers with which method they came."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.more = threading.Condition()

    def send(self, method: str, path: str, body: bytes, **_: object) -> Reply:
        with self.more:
            self.asked.append((method, path))
            self.more.notify()
        return Reply(201 if method == "POST" else 200, body, 0.0)


def test_rights_to_tell_of_events() -> None:
    listener = Listener()
    recorder = EventRecorder(listener, "node0")
    recorder.start()
    recorder.record("Starting", "once")
    with listener.more:
        assert listener.more.wait_for(lambda: listener.asked, timeout=10)
    recorder.record("Starting", "once")
    recorder.stop(timeout=10)
    assert {method for method, _ in listener.asked} == {"POST", "PATCH"}
    assert {path[: len(event_object.PATH)] for _, path in listener.asked} == {event_object.PATH}
    _, _, group, _, _, namespace, resource = event_object.PATH.split("/")
    objects = kustomize.render(DEPLOY / "base")
    needed = {(group, resource, "create"), (group, resource, "patch")}
    assert granted(objects, ("Role", namespace, "kube-proxy-nft-events")) == needed


@overlays
def test_the_rights_are_the_pods(overlay: Path) -> None:
    objects = kustomize.render(overlay)
    account = {"kind": "ServiceAccount", "namespace": "kube-system", "name": "kube-proxy-nft"}
    assert tuple(account.values()) in objects
    assert container.pod_spec(daemonset(objects))["serviceAccountName"] == account["name"]
    roles = {k for k in objects if k[0].endswith("Role")}
    bound = set()
    for kind, namespace, _ in list(objects):
        if kind.endswith("RoleBinding"):
            binding = objects[kind, namespace, _]
            assert binding["subjects"] == [account]
            assert binding["roleRef"]["kind"] == kind.removesuffix("Binding")
            bound.add((binding["roleRef"]["kind"], namespace, binding["roleRef"]["name"]))
    assert bound == roles


# The pod.


@overlays
def test_the_pod_is_what_a_node_agent_must_be(overlay: Path) -> None:
    spec = container.pod_spec(daemonset(kustomize.render(overlay)))
    assert spec["hostNetwork"] is True
    assert spec["dnsPolicy"] == "Default"
    assert spec["priorityClassName"] == "system-node-critical"
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["nodeSelector"]["kubernetes.io/os"] == "linux"
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = container.container(daemonset(kustomize.render(overlay)))["securityContext"]
    assert context.keys() == {"allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities"}
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    assert {v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v} == {"/proc/sys/net/netfilter"}


@overlays
def test_each_volume_has_its_place(overlay: Path) -> None:
    obj = daemonset(kustomize.render(overlay))
    places = {mount["name"]: mount for mount in container.container(obj)["volumeMounts"]}
    assert places.keys() == {volume["name"] for volume in container.pod_spec(obj)["volumes"]}
    root = container.environment(obj)[sysctls.ROOT_VARIABLE]
    assert places["sysctls"]["mountPath"] == f"{root}/{sysctls.DIRECTORY}"
    assert places["config"]["readOnly"]


def config_of(overlay: Path, tmp_path: Path) -> Path:
    """The configuration file that the agent finds."""
    objects = kustomize.render(overlay)
    obj = daemonset(objects)
    [volume] = [v for v in container.pod_spec(obj)["volumes"] if v["name"] == "config"]
    path = tmp_path / "config.conf"
    if volume["configMap"]["name"] == "kube-proxy":  # kubeadm's
        path.write_text((container.REPO / "tests" / "data" / "config" / "kubeadm.yaml").read_text())
    else:
        path.write_text(objects["ConfigMap", "kube-system", volume["configMap"]["name"]]["data"]["config.conf"])
    return path


@overlays
def test_the_configuration_is_understood(overlay: Path, tmp_path: Path) -> None:
    config = load_config(str(config_of(overlay, tmp_path)))
    assert (config.warnings, config.without_effect) == ((), ())


@overlays
def test_probes_ask_where_health_is_told(overlay: Path, tmp_path: Path) -> None:
    address = load_config(str(config_of(overlay, tmp_path))).healthz_bind_address
    assert address
    found = container.container(daemonset(kustomize.render(overlay)))
    probes = {name: found[name] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["httpGet"]["port"] for probe in probes.values()} == {address.port}
    assert {name: probe["httpGet"]["path"] for name, probe in probes.items()} == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/healthz",
    }


# kubeadm's kube-proxy.


def test_kubeadms_files_are_where_its_configuration_says(tmp_path: Path) -> None:
    obj = daemonset(kustomize.render(DEPLOY / "kubeadm"))
    [mount] = [m for m in container.container(obj)["volumeMounts"] if m["name"] == "config"]
    config = load_config(str(config_of(DEPLOY / "kubeadm", tmp_path)))
    assert config.client_connection.kubeconfig == f"{mount['mountPath']}/kubeconfig.conf"
    assert f"--config={mount['mountPath']}/config.conf" in container.arguments(obj)


def matches(labels: dict[str, str], spec: Object) -> bool:
    """Whether a pod of this spec may run on a node with these labels, as the scheduler sees it."""
    if any(labels.get(name) != value for name, value in spec.get("nodeSelector", {}).items()):
        return False
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    [term] = required["nodeSelectorTerms"]
    wanted = {"In": True, "NotIn": False}
    return all(
        (labels.get(expression["key"]) in expression["values"]) == wanted[expression["operator"]]
        for expression in term["matchExpressions"]
    )


def kube_proxys_patch(overlay: Path) -> Object:
    """What kube-proxy's pod gets."""
    [patch] = kustomize.documents(overlay / KUBE_PROXY_PATCH)
    found: Object = patch["spec"]["template"]["spec"]
    assert found.keys() == {"affinity"}  # kubeadm's DaemonSet has none
    return found


@pytest.mark.parametrize(
    ("overlay", "label", "ours"),
    [
        ("kubeadm-node-by-node", None, False),
        ("kubeadm-node-by-node", "false", False),
        ("kubeadm-node-by-node", "true", True),
        ("kubeadm", None, True),
        ("kubeadm", "false", False),
        ("kubeadm", "true", True),
    ],
)
def test_every_node_has_one_proxy(overlay: str, label: str | None, ours: bool) -> None:
    labels = {"kubernetes.io/os": "linux"} | ({"kube-proxy-nft/enabled": label} if label else {})
    spec = container.pod_spec(daemonset(kustomize.render(DEPLOY / overlay)))
    theirs = {"nodeSelector": {"kubernetes.io/os": "linux"}} | kube_proxys_patch(DEPLOY / overlay)
    assert (matches(labels, spec), matches(labels, theirs)) == (ours, not ours)


@pytest.mark.parametrize("overlay", ["kubeadm", "kubeadm-node-by-node"])
def test_the_patch_fits_a_daemonset(overlay: str) -> None:
    obj = daemonset(kustomize.render(DEPLOY / "base"))
    container.pod_spec(obj).update(kube_proxys_patch(DEPLOY / overlay))
    kubernetes_validate.validate(obj, KUBERNETES[-1], strict=True)


# docs/install.md.


def test_the_overlay_in_the_documentation_works(tmp_path: Path) -> None:
    text = (container.REPO / "docs" / "install.md").read_text()
    [block] = [found for found in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "kind: Kustomization" in found]
    (tmp_path / "my-cluster").mkdir()
    (tmp_path / "my-cluster" / "kustomization.yaml").write_text(block)
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    objects = kustomize.render(tmp_path / "my-cluster")
    for obj in objects.values():
        kubernetes_validate.validate(obj, KUBERNETES[-1], strict=True)
    assert container.environment(daemonset(objects)).keys() >= {"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"}
    config = tmp_path / "config.conf"
    config.write_text(objects["ConfigMap", "kube-system", "kube-proxy-nft"]["data"]["config.conf"])
    loaded = load_config(str(config))
    assert loaded.warnings == ()
    assert loaded.cluster_cidr.v4
    if kustomize_version() >= (4,):
        done = subprocess.run(["kubectl", "kustomize", str(tmp_path / "my-cluster")], capture_output=True, check=True)
        assert {kustomize.key(obj): obj for obj in yaml.safe_load_all(done.stdout)} == objects


def test_the_documentation_names_files_that_exist() -> None:
    text = (container.REPO / "docs" / "install.md").read_text()
    named = set(re.findall(r"\bdeploy/[\w./-]*\w", text))
    assert named
    assert [name for name in named if not (container.REPO / name).exists()] == []
