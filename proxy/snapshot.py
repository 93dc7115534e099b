"""The cluster's objects, read once: reduced to what a proxy reads, from an API server or from files.

Reads only: get and list. What cannot be read is told, and the rest goes on without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from proxy import manifest_names, model
from proxy.detect.api_reader import ApiReader
from proxy.events import Inbox, Replace
from proxy.manifests import ManifestSource
from proxy.model import ENDPOINT_SLICE, NODE, SERVICE, SERVICE_CIDR, BadObject, KubeObject, Node
from proxy.nodes import ZONE_LABEL
from proxy.resources import Resource, resources
from proxy.services import SCHEDULER_ANNOTATION
from proxy.trouble import Trouble
from proxy.unread import PLURAL, Unread

Choose = Callable[[Iterable[Node]], str] | None
"""Given the Nodes, read as far as it needs, the name of one of them; '' for none."""
Progress = Callable[[str, int], None]
"""Hears of what is being read, and how many there are by now."""

LABELS: Final = frozenset(
    {model.LABEL_SERVICE_NAME, model.LABEL_PROXY_NAME, model.LABEL_HEADLESS, ZONE_LABEL, "kubernetes.io/hostname"}
)
ANNOTATIONS: Final = frozenset({SCHEDULER_ANNOTATION})
SHOWN: Final = 20
"""Broken objects of one kind that are named."""
_WITHOUT: Final = {
    SERVICE: "without them no Service can be compared: this report is about the node and its kube-proxy alone",
    ENDPOINT_SLICE: "without them no endpoint can be compared: every Service seems to have none",
    SERVICE_CIDR: "without them what is not allocated cannot be told",
    NODE: "without it the node's zone and addresses are not known: local endpoints and NodePorts may come out wrong",
}
_LOG_IN: Final = (
    "give credentials that the API server takes (--kubeconfig FILE): these have expired, or are another cluster's"
)
_REACH: Final = "see that the API server can be reached, and is well"


class Objects(Struct):
    """items: kind -> each object's JSON. boot: the Node's bootID, "" if it does not tell. source: for people."""

    items: dict[str, list[msgspec.Raw]]
    node: Node | None = None
    boot: str = ""
    unread: list[Unread] = []
    source: str = ""


class _NodeInfo(Struct, rename="camel"):
    boot_id: str = msgspec.field(name="bootID", default="")


class _BootStatus(Struct, rename="camel"):
    node_info: _NodeInfo | None = None


class _Boot(Struct):
    status: _BootStatus | None = None


def from_api(reader: ApiReader, progress: Progress, names: Sequence[str], choose: Choose) -> Objects:
    """All of them, and one Node: as node_from_api finds it."""
    found = node_from_api(reader, progress, names, choose)
    add_from_api(reader, progress, found)
    return found


def node_from_api(reader: ApiReader, progress: Progress, names: Sequence[str], choose: Choose) -> Objects:
    """The Node alone: the first of these names that there is, else the one that is chosen of all Nodes; choose None: no other
    will do."""
    found = Objects({kind: [] for kind in model.KINDS}, source=f"API server {reader.server}")
    progress("Node", 0)
    try:
        _find_node(reader, names, choose, found)
    except Trouble as trouble:
        rule = 'verbs ["get", "list"] on resource "nodes" in apiGroup ""'
        found.unread.append(_unread(NODE, PLURAL[NODE], rule, trouble))
    return found


def add_from_api(reader: ApiReader, progress: Progress, found: Objects) -> None:
    """All Services, EndpointSlices and ServiceCIDRs."""
    for resource in resources(""):
        if resource.kind != NODE:
            _list(reader, resource, found, progress)


def _find_node(reader: ApiReader, names: Sequence[str], choose: Choose, found: Objects) -> None:
    for name in names:
        try:
            _take_node(reader.get(f"/api/v1/nodes/{quote(name, safe='')}"), found)
            return
        except Trouble as trouble:
            if trouble.status != 404:
                raise
    name = choose(_nodes(reader)) if choose else ""
    if name:
        _take_node(reader.get(f"/api/v1/nodes/{quote(name, safe='')}"), found)
    else:
        found.unread.append(_no_node(names, "the cluster"))


def _nodes(reader: ApiReader) -> Iterator[Node]:
    for page in reader.pages("/api/v1/nodes"):
        for raw in page:
            try:
                node = model.decode(NODE, raw)
            except BadObject:
                continue
            assert isinstance(node, Node)
            yield node


def _no_node(names: Sequence[str], where: str) -> Unread:
    cause = f"{where} has no Node of this name; {_WITHOUT[NODE]}"
    return Unread(f"Node {names[0] if names else ''}".strip(), cause, "name the node with --node")


def _take_node(raw: bytes, found: Objects) -> None:
    try:
        node = model.decode(NODE, raw)
    except BadObject as error:
        found.unread.append(Unread(f"Node {error.name}", error.reason, "see the object"))
        return
    assert isinstance(node, Node)
    found.node, found.boot = node, _boot_id(raw)
    found.items[NODE] = [reduced(node)]


def _boot_id(raw: bytes) -> str:
    try:
        status = msgspec.json.decode(raw, type=_Boot).status
    except model.DECODE_ERRORS:
        return ""
    return status.node_info.boot_id if status and status.node_info else ""


def _list(reader: ApiReader, resource: Resource, found: Objects, progress: Progress) -> None:
    kind, what = resource.kind, PLURAL[resource.kind]
    items, broken = found.items[kind], 0
    progress(what, 0)
    try:
        for page in reader.pages(resource.path, dict(resource.selector)):
            for raw in page:
                try:
                    items.append(reduced(model.decode(kind, raw)))
                except BadObject as error:
                    broken += 1
                    if broken <= SHOWN:
                        found.unread.append(_broken(error))
            progress(what, len(items))
    except Trouble as trouble:
        if trouble.status == 404 and resource.optional and not items:
            return  # an older server: there are none
        rule = resource.rule.replace(', "watch"', "")
        after = f"after {len(items)} of them" if items else ""
        found.unread.append(_unread(kind, what, rule, trouble, after))
    if broken > SHOWN:
        found.unread.append(Unread(f"{broken - SHOWN} more {what}", "they have not the shape of their kind"))


def _unread(kind: str, what: str, rule: str, trouble: Trouble, after: str = "") -> Unread:
    remedy = f"grant this account, in a ClusterRole: {rule}" if trouble.status == 403 else _REACH
    if trouble.status == 401:
        remedy = _LOG_IN
    cause = ", ".join(filter(None, [trouble.cause, after]))
    return Unread(what, f"{cause}; {_WITHOUT[kind]}", remedy)


def _broken(error: BadObject) -> Unread:
    name = "/".join(filter(None, [error.namespace, error.name])) or "(without a name)"
    return Unread(f"{error.kind} {name}", error.reason, "correct the object: no proxy can read it")


def from_manifests(directory: str, progress: Progress, names: Sequence[str], choose: Choose) -> Objects:
    """The same from a directory of files. Raises SourceError."""
    found = Objects({kind: [] for kind in model.KINDS}, source=f"manifests {directory}")
    progress("manifests", 0)

    def report(problem: str, what: str, reason: str) -> None:
        if len(found.unread) < 5 * SHOWN:
            what = f"{manifest_names.FILE}{what}" if problem == "broken_file" else what
            found.unread.append(Unread(what, reason, "correct the file"))

    inbox = Inbox()
    ManifestSource(directory, inbox, report).load()
    found.unread += manifest_names.no_files(directory)[: 5 * SHOWN]
    nodes: list[Node] = []
    for event in inbox.take():
        assert isinstance(event, Replace)
        for obj in event.objects:
            if isinstance(obj, Node):
                nodes.append(obj)
            elif isinstance(obj, KubeObject):
                found.items[event.kind].append(reduced(obj))
        progress(PLURAL[event.kind], len(event.objects))
    there = {node.metadata.name: node for node in nodes}
    name = next((name for name in names if name in there), "") or (choose(nodes) if choose else "")
    if name:
        found.node = there[name]
        found.items[NODE] = [reduced(found.node)]
    else:
        found.unread.append(_no_node(names, directory))
    return found


def reduced(obj: KubeObject) -> msgspec.Raw:
    """An object's JSON, with what a proxy reads and nothing else. Changes the object."""
    meta = obj.metadata
    meta.uid = meta.resource_version = ""
    meta.labels = _only(meta.labels, LABELS)
    meta.annotations = _only(meta.annotations, ANNOTATIONS)
    return msgspec.Raw(_encoder.encode(obj))


def _only(texts: dict[str, str] | None, names: frozenset[str]) -> dict[str, str] | None:
    return ({key: text for key, text in texts.items() if key in names} or None) if texts else None


_encoder: Final = msgspec.json.Encoder()
