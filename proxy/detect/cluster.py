"""A whole cluster as its API server shows it: which kube-proxy each node runs, with which configuration. Only gets and lists.

Pods are asked for by their DaemonSet's labels, and static ones by what only they lack, a service account: of a hundred
thousand pods those that run kube-proxy are sent. Pods of one DaemonSet and revision are read once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from proxy.detect.api_reader import ApiReader
from proxy.detect.cluster_objects import (
    OURS,
    Json,
    Node,
    Pod,
    config_maps,
    pod_spec,
    runs_ours,
    selector,
    with_pod_spec,
)
from proxy.detect.configured import set_aside
from proxy.detect.evidence import (
    ConfiguredMode,
    Evidence,
    OtherProxy,
    Place,
    Unreadable,
    Version,
)
from proxy.detect.objects import missing
from proxy.model import DECODE_ERRORS
from proxy.trouble import NONSENSE, Trouble

ReadObjects = Callable[[Sequence[Json]], Sequence[Evidence]]
"""What API objects, together, say of kube-proxy: proxy.detect.objects.read_objects."""

STATIC_PODS: Final = "/api/v1/namespaces/kube-system/pods"
DAEMONSETS: Final = "/apis/apps/v1/daemonsets"
NODES: Final = "/api/v1/nodes"
WINDOWS: Final = "a Windows node, whose only mode is kernelspace"

_RULES: Final = {
    "daemonsets": 'verbs ["list"] on resource "daemonsets" in apiGroup "apps"',
    "pods": 'verbs ["list"] on resource "pods" in apiGroup ""',
    "configmaps": 'verbs ["get"] on resource "configmaps" in apiGroup ""',
    "nodes": 'verbs ["list"] on resource "nodes" in apiGroup ""',
    "version": 'verbs ["get"] on nonResourceURL "/version"',
}

_NO_API: Final = "see that the kubeconfig names an API server of Kubernetes"

E = TypeVar("E", bound=Evidence)
T = TypeVar("T")


def gather(reader: ApiReader, read_objects: ReadObjects, node: str = "") -> list[Evidence]:
    """All evidence. With `node`, of this node alone. What cannot be read is evidence, too; raises nothing."""
    look = _Look(reader, read_objects, node)
    look.version()
    if not reader.is_gone:
        look.daemonsets()
        look.static_pods()
        look.nodes()
    return look.found


def server_version(reader: ApiReader) -> str:
    """Such as "v1.36.2". Raises Trouble."""
    try:
        return str(msgspec.json.decode(reader.get("/version"), type=_ServerVersion).git_version)
    except DECODE_ERRORS as error:
        raise Trouble(NONSENSE, f"the answer is no version of Kubernetes: {error}") from None


def cluster_version(reader: ApiReader) -> Evidence:
    """The same as evidence, or why there is none."""
    place = Place("api-server", reader.server, "version")
    try:
        return Version(place=place, version=server_version(reader), of="cluster")
    except Trouble as trouble:
        return _unreadable(place, "version", trouble)


def moved(evidence: E, node: str) -> E:
    """The same, found on this node; '': it holds for the whole cluster."""
    return msgspec.structs.replace(evidence, place=msgspec.structs.replace(evidence.place, node=node))


class _ServerVersion(Struct, rename="camel"):
    git_version: str


class _Revision(Struct):
    """Pods of one DaemonSet that are alike: one of them, and the nodes that they are on."""

    pod: msgspec.Raw
    nodes: list[str]


class _Look:
    def __init__(self, reader: ApiReader, read_objects: ReadObjects, node: str) -> None:
        self.found: list[Evidence] = []
        self._reader, self._read_objects, self._node = reader, read_objects, node
        self._config_maps: dict[tuple[str, str], Json | None] = {}

    def version(self) -> None:
        self.found.append(cluster_version(self._reader))

    # -- DaemonSets ----------------------------------------------------------------------------------------------------

    def daemonsets(self) -> None:
        for raw in self._items("daemonsets", DAEMONSETS):
            workload = (self._decoded(raw, Json, "daemonsets") or {}) | {"kind": "DaemonSet"}  # lists leave that out
            with self._one_of("daemonsets"):
                if self._read_objects([workload]):
                    self._daemonset(workload)
                elif runs_ours(workload) and not self._node:  # a node that is looked at from inside shows it better
                    self._ours(workload)

    def _daemonset(self, workload: Json) -> None:
        """One that has to do with kube-proxy."""
        unread = len(self._unread())
        revisions = self._revisions(workload)
        for revision in revisions:
            pod: Json = msgspec.json.decode(revision.pod)
            evidence = self._read(with_pod_spec(workload, pod.get("spec") or {}))
            self._add(evidence, revision.nodes)
        if not revisions:
            evidence = self._read(workload)
            if len(self._unread()) == unread:  # else its pods may be anywhere
                note = "none of its pods is on this node" if self._node else "no pod of it runs"
                evidence = set_aside(evidence, note)
            self._add(evidence, [""])

    def _ours(self, workload: Json) -> None:
        meta = workload.get("metadata") or {}
        place = Place("daemonset", f"{meta.get('namespace')}/{meta.get('name')}")
        here = OtherProxy(place=place, program=OURS)
        for revision in self._revisions(workload):
            self._add([here], revision.nodes)

    def _revisions(self, workload: Json) -> list[_Revision]:
        meta = workload.get("metadata") or {}
        query = {"labelSelector": selector(workload)} | self._on_node()
        newest: dict[str, tuple[str, str]] = {}  # by node: a pod that goes and the one that comes may both be there
        examples: dict[str, msgspec.Raw] = {}
        for raw in self._items("pods", f"/api/v1/namespaces/{meta.get('namespace')}/pods", query):
            pod = self._decoded(raw, Pod, "pods")
            if pod and pod.runs and pod.is_of(meta.get("uid", "")):
                born = (pod.metadata.creation_timestamp or "", pod.revision)
                newest[pod.spec.node_name] = max(born, newest.get(pod.spec.node_name, born))
                examples.setdefault(pod.revision, raw.copy())
        revisions = {revision: _Revision(raw, []) for revision, raw in examples.items()}
        for node, (_, revision) in newest.items():
            revisions[revision].nodes.append(node)
        return [revision for revision in revisions.values() if revision.nodes]

    def _read(self, workload: Json) -> list[Evidence]:
        """What a DaemonSet says, together with its ConfigMaps."""
        namespace = (workload.get("metadata") or {}).get("namespace", "")
        named = [self._config_map(namespace, name) for name in config_maps(pod_spec(workload))]
        found = self._read_objects([workload, *filter(None, named)])
        said = {missing(namespace, name) for (_, name), known in self._config_maps.items() if known is None}
        return [item for item in found if not (isinstance(item, Unreadable) and item.cause in said)]

    def _config_map(self, namespace: str, name: str) -> Json | None:
        """Each is asked for once; None: it is not to be had, which is said."""
        key = (namespace, name)
        if key not in self._config_maps:
            self._config_maps[key] = None
            try:
                body = self._reader.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
                self._config_maps[key] = self._decoded(msgspec.Raw(body), Json, "configmaps")
            except Trouble as trouble:
                place = Place("configmap", f"{namespace}/{name}")
                self.found.append(_unreadable(place, "configmaps", trouble))
        return self._config_maps[key]

    def _add(self, evidence: Iterable[Evidence], nodes: Sequence[str]) -> None:
        """What cannot be read is said once, and not for each node."""
        for item in evidence:
            if isinstance(item, Unreadable):
                if (item := moved(item, "")) not in self.found:
                    self.found.append(item)
            else:
                self.found += [moved(item, node) for node in nodes]

    # -- Static pods, and nodes ----------------------------------------------------------------------------------------

    def static_pods(self) -> None:
        query = {"fieldSelector": ",".join(["spec.serviceAccountName=", *self._on_node().values()])}
        for raw in self._items("pods", STATIC_PODS, query):
            pod = self._decoded(raw, Pod, "pods")
            if pod and pod.runs and pod.is_static:
                with self._one_of("pods"):
                    whole: Json = msgspec.json.decode(raw)
                    self.found += [moved(e, pod.spec.node_name) for e in self._read_objects([whole | {"kind": "Pod"}])]

    def nodes(self) -> None:
        """All together: what one of k3s' servers says of kube-proxy may hold for all of them."""
        windows: set[str] = set()
        objects: list[Json] = []
        for raw in self._nodes():
            node = self._decoded(raw, Node, "nodes")
            if node:
                objects.append({"kind": "Node"} | msgspec.to_builtins(node))
                if node.is_windows:
                    windows.add(node.metadata.name)
        self.found = list(_with_windows([*self.found, *self._read_objects(objects)], windows))

    def _nodes(self) -> Iterator[msgspec.Raw]:
        if not self._node:
            yield from self._items("nodes", NODES)
            return
        unread = len(self.found)
        one = list(self._items("nodes", NODES, {"fieldSelector": f"metadata.name={self._node}"}))
        if not one and len(self.found) == unread:
            place = Place("node", self._node, node=self._node)
            cause, remedy = "the cluster has no Node of this name", "give this node's name with --node"
            self.found.append(Unreadable(place=place, cause=cause, remedy=remedy))
        yield from one

    # -- Reading -------------------------------------------------------------------------------------------------------

    def _on_node(self) -> dict[str, str]:
        return {"fieldSelector": f"spec.nodeName={self._node}"} if self._node else {}

    def _items(self, resource: str, path: str, query: dict[str, str] | None = None) -> Iterator[msgspec.Raw]:
        """All that can be had; what stopped it is evidence."""
        count = 0
        try:
            for page in self._reader.pages(path, query):
                count += len(page)
                yield from page
        except Trouble as trouble:
            after = f", after {count} of them" if count else ""
            where = Place("api-server", self._reader.server, resource)
            unread = _unreadable(where, resource, trouble, after)
            if unread not in self.found:
                self.found.append(unread)

    def _decoded(self, raw: msgspec.Raw, kind: type[T], resource: str) -> T | None:
        try:
            return msgspec.json.decode(raw, type=kind)
        except DECODE_ERRORS as error:
            self._not_understood(resource, error)
            return None

    @contextlib.contextmanager
    def _one_of(self, resource: str) -> Iterator[None]:
        """One that no API server would give does not hide the others."""
        try:
            yield
        except (AttributeError, TypeError, *DECODE_ERRORS) as error:
            self._not_understood(resource, error)

    def _not_understood(self, resource: str, error: Exception) -> None:
        place = Place("api-server", self._reader.server, resource)
        self.found.append(Unreadable(place=place, cause=f"one of them cannot be understood: {error}"))

    def _unread(self) -> list[Unreadable]:
        return [e for e in self.found if isinstance(e, Unreadable) and e.place.part == "pods"]


def _unreadable(place: Place, resource: str, trouble: Trouble, after: str = "") -> Unreadable:
    if trouble.status in (401, 403):
        remedy = f"grant this account, in a ClusterRole: {_RULES[resource]}"
    elif trouble.status == 404:
        remedy = "see why it is missing: pods that mount it do not start" if resource == "configmaps" else _NO_API
    else:
        remedy = "see that the API server can be reached, and is well"
    return Unreadable(place=place, cause=trouble.cause + after, remedy=remedy)


def _with_windows(evidence: Iterable[Evidence], windows: set[str]) -> Iterator[Evidence]:
    """Windows nodes have one mode. What an unset one means elsewhere is nothing there."""
    said: set[str] = set()
    for item in evidence:
        if item.place.node in windows and isinstance(item, ConfiguredMode):
            if item.mode in ("", "kernelspace") or item.sure != "certain":
                item = msgspec.structs.replace(item, mode="kernelspace", note=WINDOWS)
            item = msgspec.structs.replace(item, os="windows")
            said.add(item.place.node)
        yield item
    for node in sorted(windows - said):
        yield ConfiguredMode(place=Place("node", node, node=node), mode="kernelspace", note=WINDOWS, os="windows")
