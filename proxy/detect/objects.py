"""Kubernetes objects as evidence, from an API server or from files: who runs a kube-proxy, and with which configuration. Pure.

A ConfigMap counts by what is in it and who mounts it, not by its name: kubeadm's is "kube-proxy", and others have theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from proxy.detect import nodes
from proxy.detect.command_line import ReadConfig, read_command
from proxy.detect.configured import distinct, same_meaning, set_aside
from proxy.detect.containers import Container, FromConfigMap, FromHost, origin, proxies, system_of
from proxy.detect.evidence import ConfiguredMode, Evidence, Place, PlaceKind, Unreadable, Version
from proxy.detect.proxy_config import GROUP, KIND, WINDOWS, at, read_as_kube_proxy, read_text
from proxy.detect.yaml_lines import Value, from_object

_TEMPLATES: Final = ("DaemonSet", "Deployment", "Job", "ReplicaSet", "StatefulSet")
_KINDS: Final = (*_TEMPLATES, "ConfigMap", "Node", "Pod")
_USUAL_KEYS: Final = ("config.conf", "config", "config.yaml")
_MIRROR: Final = "kubernetes.io/config.mirror"


class Source(Struct, frozen=True):
    """Where objects come from. file: the path of the file that they are in, '' when an API server gave them. node: whose
    they are, if they are one node's. host: reads a file of that node."""

    file: str = ""
    node: str = ""
    host: ReadConfig | None = None


def read_objects(objects: Iterable[Mapping[str, Any]]) -> list[Evidence]:
    """What objects from an API server say, lists or single ones, together: DaemonSets and Pods with their ConfigMaps,
    Nodes. What is on one node only has its name."""
    return read([from_object(item) for item in objects], Source())


def is_object(document: Value) -> bool:
    """Whether it is of a kind that is read here, or a list of some."""
    kind, version = document.text("kind"), document.text("apiVersion")
    ours = kind in _KINDS or (kind.endswith("List") and document.get("items") is not None)
    return ours and (version in ("", "v1") or version.split("/")[0] in ("apps", "batch", "extensions"))


def read(documents: Sequence[Value], source: Source) -> list[Evidence]:
    """The same for objects that have lines."""
    return distinct(_Objects([o for d in documents for o in _flat(d)], source).read())


def _flat(document: Value) -> list[Value]:
    """What is in a list; in a list of one kind the items do not say it."""
    kind = document.text("kind")
    if not kind.endswith("List"):
        return [document] if kind in _KINDS else []
    items = [item for item in document.items("items") if isinstance(item.data, dict)]
    for item in items:
        item.data.setdefault("kind", Value(kind.removesuffix("List"), item.line))
    return [item for item in items if item.text("kind") in _KINDS]


class _Workload(Struct):
    owner: tuple[str, str]
    evidence: list[Evidence]


class _Objects:
    def __init__(self, objects: Sequence[Value], source: Source) -> None:
        self._objects, self._source = objects, source
        self._maps = {_key(o): o for o in objects if o.text("kind") == "ConfigMap"}
        self._read: dict[tuple[str, str, str], list[Evidence]] = {}
        self._templates: list[_Workload] = []
        self._several: bool | None = None

    def read(self) -> list[Evidence]:
        by_kind: dict[str, list[Value]] = {kind: [] for kind in _KINDS}
        for item in self._objects:
            by_kind[item.text("kind")].append(item)
        found: list[Evidence] = []
        for kind in _TEMPLATES:
            for item in by_kind[kind]:
                found += self._template(kind, item)
        for pod in by_kind["Pod"]:
            found += self._pod(pod)
        workloads = any(by_kind[kind] for kind in (*_TEMPLATES, "Pod"))
        for key, item in self._maps.items():
            found += self._unused(key, item, set_apart=bool(found) if self._source.file else workloads)
        return found + nodes.read(by_kind["Node"], self._place)

    # -- Who runs a kube-proxy -----------------------------------------------------------------------------------------

    def _template(self, kind: str, item: Value) -> list[Evidence]:
        pod = item.get("spec", "template", "spec")
        if pod is None:
            return []
        place = self._place("daemonset" if kind == "DaemonSet" else "pod", kind, item)
        evidence = self._pod_evidence(pod, _key(item)[0], place)
        if evidence and kind == "DaemonSet":
            self._templates.append(_Workload(_key(item), evidence))
            if item.text("status", "desiredNumberScheduled") == "0":
                return set_aside(evidence, "this DaemonSet runs on no node")
        return evidence

    def _pod(self, item: Value) -> list[Evidence]:
        """A pod of a DaemonSet that is here says nothing new, unless it is of another revision, or there are several."""
        pod = item.get("spec")
        if pod is None or item.text("status", "phase") in ("Failed", "Succeeded"):
            return []
        static = " (static)" if _MIRROR in item.fields("metadata", "annotations") else ""
        place = self._place("pod", "Pod", item, node=pod.text("nodeName"), part=static.strip())
        evidence = self._pod_evidence(pod, _key(item)[0], place)
        owners = item.items("metadata", "ownerReferences")
        names = {owner.text("name") for owner in owners if owner.text("kind") == "DaemonSet"}
        own = [t for t in self._templates if t.owner[0] == _key(item)[0] and t.owner[1] in names]
        if own and not self._differ() and same_meaning(own[0].evidence, evidence):
            return []
        return evidence

    def _differ(self) -> bool:
        """Whether there are several DaemonSets that do not say the same."""
        if self._several is None:
            first = self._templates[0].evidence
            self._several = any(not same_meaning(t.evidence, first) for t in self._templates[1:])
        return self._several

    def _pod_evidence(self, pod: Value, namespace: str, place: Place) -> list[Evidence]:
        found: list[Evidence] = []
        system = system_of(pod)
        windows = system == "windows"

        def data(name: str) -> dict[str, Value] | None:
            return self._maps[namespace, name].fields("data") if (namespace, name) in self._maps else None

        for container in proxies(pod, place, data):
            if container.launch is not None:
                found += read_command(
                    container.launch.arguments,
                    place,
                    lambda path, c=container: self._config(path, c, namespace, place),  # type: ignore[misc]
                    windows=windows,
                )
            elif container.fault is not None:
                cause = f"the command line of its container {container.name} is no list of texts"
                remedy = "write command and args as lists of texts"
                found.append(Unreadable(place=at(place, container.fault), cause=cause, remedy=remedy, effect="refused"))
            elif windows:
                found.append(ConfiguredMode(place=place, sure="likely", mode="kernelspace", note=WINDOWS))
            else:
                cause = f"what its container {container.name} starts cannot be understood"
                found.append(Unreadable(place=place, cause=cause, remedy="see the command line of the running process"))
            if container.version:
                found.append(Version(place=place, version=container.version, of="kube-proxy"))
        return [msgspec.structs.replace(e, os=system) if isinstance(e, ConfiguredMode) else e for e in found]

    # -- Configurations ------------------------------------------------------------------------------------------------

    def _config(self, path: str, container: Container, namespace: str, place: Place) -> list[Evidence]:
        """The file that --config names."""
        match origin(container, path):
            case FromConfigMap(name=name, key=key):
                return self._mounted(namespace, name, key, place)
            case FromHost(path=host):
                if self._source.host is not None:
                    return self._source.host(host)
                cause, remedy = (
                    f"it is the file {host} of the node",
                    "run this on the node, or give the file with --config",
                )
            case _:
                cause = f"where {path} comes from is not in the pod: its image has it, or something makes it"
                remedy = "run this on the node"
        where = msgspec.structs.replace(place, part=f"{place.part} --config".strip())
        return [Unreadable(place=where, cause=cause, remedy=remedy)]

    def _mounted(self, namespace: str, name: str, key: str, place: Place) -> list[Evidence]:
        item = self._maps.get((namespace, name))
        text = item.get("data", key) if item is not None else None
        if item is None or text is None:
            what = missing(namespace, name)
            if item is not None:
                what = f"ConfigMap {_shown(namespace, name)} has no key {key or 'for the file that --config names'}"
            remedy = f"give it too: kubectl --namespace {namespace or 'kube-system'} get configmap {name} --output yaml"
            return [Unreadable(place=place, cause=what, remedy=remedy)]
        known = (namespace, name, key)
        if known not in self._read:
            where = self._place("configmap", "ConfigMap", item, part=key)
            self._read[known] = read_as_kube_proxy(text.text(), where, *_lines(text), one_line=_is_one_line(text))
        return [msgspec.structs.replace(e, place=_on_node(e.place, place.node)) for e in self._read[known]]

    def _unused(self, key: tuple[str, str], item: Value, *, set_apart: bool) -> list[Evidence]:
        """A ConfigMap that no pod here mounts for its --config. set_apart: others decide."""
        found: list[Evidence] = []
        for name, text in item.fields("data").items():
            if (*key, name) in self._read or not isinstance(text.data, str):
                continue
            usual = key[1].startswith("kube-proxy") and name in _USUAL_KEYS
            if usual or KIND in text.data or GROUP in text.data:
                where = self._place("configmap", "ConfigMap", item, part=name)
                found += read_text(
                    text.data, where, *_lines(text), one_line=_is_one_line(text), expected=usual, first_counts=True
                )
        return set_aside(found, "no pod that is known here uses it for a kube-proxy") if set_apart else found

    def _place(self, kind: PlaceKind, what: str, item: Value, *, part: str = "", node: str = "") -> Place:
        name = "/".join(filter(None, _key(item)))
        if self._source.file:
            part = " ".join(filter(None, [what, name, part]))
            return Place("file", self._source.file, part, item.line, node or self._source.node)
        return Place(kind, name, part, node=node or self._source.node)


def missing(namespace: str, name: str) -> str:
    """The cause where a ConfigMap is not among the objects."""
    return f"ConfigMap {_shown(namespace, name)}, which --config names, is not here"


def _shown(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def _key(item: Value) -> tuple[str, str]:
    return item.text("metadata", "namespace"), item.text("metadata", "name")


def _on_node(place: Place, node: str) -> Place:
    return msgspec.structs.replace(place, node=node)


def _lines(text: Value) -> tuple[int]:
    return (text.text_line or text.line,)


def _is_one_line(text: Value) -> bool:
    return not text.text_line
