"""An API server's gets and lists of any kind of object, as a Transport without a network: pages, selectors, refusals.

Only what the detector asks for; what it must not ask for fails. The selectors of pods are those of kube-apiserver v1.36.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from proxy.trouble import UNREACHABLE, Trouble

Json = dict[str, Any]
PATHS = {
    "DaemonSet": ("/apis/apps/v1", "daemonsets"),
    "Pod": ("/api/v1", "pods"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Node": ("/api/v1", "nodes"),
}
FIELDS = {"spec.nodeName": "nodeName", "spec.serviceAccountName": "serviceAccountName"}


@dataclass
class Answer:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    def header(self, name: str) -> str:
        return self.headers.get(name, "")

    def read(self) -> bytes:
        return self.body


class ClusterApi:
    """forbidden: plural names that are refused. before: is called with each path, and may answer in the server's place."""

    server = "192.0.2.1:6443"

    def __init__(self, objects: Sequence[Json] = (), version: str = "v1.36.2") -> None:
        self.version = version
        self.forbidden: set[str] = set()
        self.is_away = False
        self.asked: list[str] = []
        self.sent = 0  # objects
        self.before: Callable[[str], Answer | None] = lambda _path: None
        self._objects: dict[str, list[Json]] = {kind: [] for kind in PATHS}
        for obj in objects:
            self.put(obj)

    def put(self, obj: Json) -> None:
        meta = obj["metadata"]
        meta.setdefault("uid", f"uid-{obj['kind']}-{meta.get('namespace')}-{meta['name']}")
        self._objects[obj["kind"]].append(obj)

    def clear(self, kind: str) -> None:
        self._objects[kind].clear()

    @contextlib.contextmanager
    def get(self, path: str, *, read_timeout: float, compressed: bool = False) -> Iterator[Answer]:
        assert read_timeout > 0
        self.asked.append(path)
        if self.is_away:
            raise Trouble(UNREACHABLE, "connection refused")
        yield self.before(path) or self._answer(path)

    def _answer(self, path: str) -> Answer:
        url = urlsplit(path)
        if url.path == "/version":
            return _ok({"major": "1", "minor": "36", "gitVersion": self.version})
        for kind, (root, plural) in PATHS.items():
            found = re.fullmatch(rf"{root}(?:/namespaces/([^/]+))?/{plural}(?:/([^/]+))?", url.path)
            if found:
                namespace, name = found[1] or "", found[2] or ""
                if plural in self.forbidden:
                    return self._forbidden(plural, root, "get" if name else "list")
                here = [o for o in self._objects[kind] if namespace in ("", o["metadata"].get("namespace", ""))]
                if name:
                    return self._one(here, plural, name)
                query = dict(parse_qsl(url.query, keep_blank_values=True))
                return self._page(here, query, kind)
        raise AssertionError(f"nothing of the detector's business: {path}")

    def _one(self, objects: Sequence[Json], plural: str, name: str) -> Answer:
        for obj in objects:
            if obj["metadata"]["name"] == name:
                self.sent += 1
                return _ok(obj)
        return _status(404, f'{plural} "{name}" not found', "NotFound")

    def _page(self, objects: Sequence[Json], query: dict[str, str], kind: str) -> Answer:
        matching = [o for o in objects if _matches(o, query.get("labelSelector", ""), query.get("fieldSelector", ""))]
        start, limit = int(query.get("continue", "0").removeprefix("t")), int(query["limit"])
        page = matching[start : start + limit]
        self.sent += len(page)
        more = {"continue": f"t{start + limit}"} if start + limit < len(matching) else {}
        # Items of a list have neither kind nor apiVersion.
        items = [{key: value for key, value in o.items() if key not in ("kind", "apiVersion")} for o in page]
        return _ok(
            {"kind": f"{kind}List", "apiVersion": "v1", "metadata": {"resourceVersion": "9"} | more, "items": items}
        )

    def _forbidden(self, plural: str, root: str, verb: str) -> Answer:
        group = root.split("/")[2] if root.startswith("/apis") else ""
        why = f'{plural} is forbidden: User "jane" cannot {verb} resource "{plural}" in API group "{group}"'
        return _status(403, why, "Forbidden")


def expired(token: str) -> Answer:
    """A continue token is too old; `token`: one to go on with, '' for none."""
    meta = {"continue": token} if token else {}
    body = {
        "kind": "Status",
        "metadata": meta,
        "message": "The provided continue parameter is too old",
        "reason": "Expired",
    }
    return Answer(410, json.dumps(body | {"code": 410}).encode())


def _ok(body: Json) -> Answer:
    return Answer(200, msgspec.json.encode(body))


def _status(code: int, message: str, reason: str) -> Answer:
    body = {"kind": "Status", "metadata": {}, "status": "Failure", "message": message, "reason": reason, "code": code}
    return Answer(code, json.dumps(body).encode())


def _matches(obj: Json, labels: str, fields: str) -> bool:
    return all(
        _has(obj["metadata"].get("labels") or {}, term) for term in re.split(r",(?![^(]*\))", labels) if term
    ) and all(_field(obj, term) for term in fields.split(",") if term)


def _has(labels: dict[str, str], term: str) -> bool:
    if found := re.fullmatch(r"(\S+) (in|notin) \(([^)]*)\)", term):
        return (labels.get(found[1]) in found[3].split(",")) == (found[2] == "in")
    name, equals, value = term.partition("=")
    if equals:
        return labels.get(name) == value
    return (name.lstrip("!") in labels) != name.startswith("!")


def _field(obj: Json, term: str) -> bool:
    name, _, value = term.partition("=")
    if name == "metadata.name":
        return bool(obj["metadata"]["name"] == value)
    return str(obj["spec"].get(FIELDS[name], "")) == value  # another one: KeyError, as the server's 400


# -- Objects as they are in clusters -----------------------------------------------------------------------------------


def config(mode: str | None, *more: str) -> str:
    lines = ["apiVersion: kubeproxy.config.k8s.io/v1alpha1", "kind: KubeProxyConfiguration"]
    return "\n".join([*lines, *([] if mode is None else [f'mode: "{mode}"']), *more]) + "\n"


def config_map(text: str, name: str = "kube-proxy", namespace: str = "kube-system") -> Json:
    meta = {"name": name, "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta,
        "data": {"config.conf": text, "kubeconfig.conf": "x: 1\n"},
    }


def pod_spec(name: str = "kube-proxy", version: str = "v1.36.2", *flags: str) -> Json:
    """kubeadm's, whose configuration is in the ConfigMap `name`; with flags: those, and no configuration."""
    command = ["/usr/local/bin/kube-proxy"]
    command += flags or ("--config=/var/lib/kube-proxy/config.conf", "--hostname-override=$(NODE_NAME)")
    container = {
        "name": "kube-proxy",
        "image": f"registry.k8s.io/kube-proxy:{version}",
        "command": command,
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "volumeMounts": [{"mountPath": "/var/lib/kube-proxy", "name": "kube-proxy"}],
    }
    volumes = [{"name": "kube-proxy", "configMap": {"name": name, "defaultMode": 420}}]
    return {
        "serviceAccountName": "kube-proxy",
        "hostNetwork": True,
        "containers": [container],
        "volumes": [] if flags else volumes,
    }


def daemonset(spec: Json | None = None, name: str = "kube-proxy", namespace: str = "kube-system") -> Json:
    labels = {"k8s-app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec or pod_spec(name)},
        },
    }


def pod_of(owner: Json, node: str, revision: str = "r1", spec: Json | None = None, **status: str) -> Json:
    meta = owner["metadata"]
    token: Json = {"name": "kube-api-access", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}}
    spec = dict(spec or owner["spec"]["template"]["spec"])
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{meta['name']}-{node}-{revision}",
            "namespace": meta["namespace"],
            "creationTimestamp": status.get("born", "2026-11-30T08:00:00Z"),
            "labels": owner["spec"]["template"]["metadata"]["labels"] | {"controller-revision-hash": revision},
            "ownerReferences": [{"kind": "DaemonSet", "name": meta["name"], "uid": meta["uid"], "controller": True}],
        },
        "spec": spec | {"nodeName": node, "volumes": [*spec["volumes"], token]},
        "status": {"phase": status.get("phase", "Running")},
    }


def static_pod(node: str, *flags: str, name: str = "kube-proxy", labels: dict[str, str] | None = None) -> Json:
    """RKE2's, or GKE's."""
    spec = pod_spec("", "v1.36.2", *flags) | {"nodeName": node}
    spec["containers"][0] |= {"name": name, "image": f"registry.k8s.io/{name}:v1.36.2"}
    if name != "kube-proxy":
        spec["containers"][0]["command"] = [name, *flags]
    del spec["serviceAccountName"]
    meta: Json = {
        "name": f"{name}-{node}",
        "namespace": "kube-system",
        "annotations": {"kubernetes.io/config.mirror": "0123"},
    }
    owner = {"kind": "Node", "name": node, "uid": f"uid-Node-{node}", "controller": True}
    meta |= {"labels": labels or {"component": name, "tier": "control-plane"}, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running"}}


def other_pod(name: str, node: str) -> Json:
    """Of an application."""
    meta = {"name": name, "namespace": "kube-system", "labels": {"app": "web"}}
    spec = {
        "serviceAccountName": "default",
        "nodeName": node,
        "containers": [{"name": "c", "image": "web:1"}],
        "volumes": [],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running"}}


def node(name: str, kernel: str = "6.1.0-40-amd64", kubelet: str = "v1.36.2", system: str = "linux") -> Json:
    info = {
        "kernelVersion": kernel,
        "kubeletVersion": kubelet,
        "operatingSystem": system,
        "osImage": "Debian GNU/Linux 12",
    }
    meta = {"name": name, "labels": {"kubernetes.io/os": system, "kubernetes.io/hostname": name}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}, "status": {"nodeInfo": info}}
