"""The present kube-proxy's configuration as the API server shows it: a ConfigMap, or a DaemonSet's or a pod's flags, or
what k3s writes into its Nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from proxy.detect.api_reader import ApiReader
from proxy.detect.containers import FromConfigMap, origin, proxies
from proxy.detect.evidence import ConfiguredMode, Evidence, Place
from proxy.detect.launch import Launch
from proxy.detect.words import words
from proxy.detect.yaml_lines import Value, from_object
from proxy.migrate.present import Found, of_flags, of_text
from proxy.migrate.present_host import of_k3s
from proxy.model import DECODE_ERRORS
from proxy.trouble import NONSENSE, Trouble
from proxy.unread import Unread

USUAL: Final = ("kube-system", "kube-proxy")
KEYS: Final = ("config.conf", "config", "config.yaml")
_ANNOTATIONS: Final = {"k3s": "k3s.io/node-args", "rke2": "rke2.io/node-args"}
_SURE: Final = {"certain": 0, "likely": 1, "possible": 2}


def in_cluster(reader: ApiReader, evidence: Sequence[Evidence], node: str) -> Found | None:
    """evidence: the detector's view of the cluster. What cannot be read is tried in the next place; where nothing is found
    that could be read, None."""
    said = [e for e in evidence if isinstance(e, ConfiguredMode) and not (e.overridden or e.idle) and e.os != "windows"]
    said = [e for e in said if e.place.node in ("", node)]
    places = [e.place for e in sorted(said, key=lambda e: (e.place.node != node, _SURE[e.sure]))]
    usual = [Place("configmap", "/".join(USUAL), key) for key in KEYS]
    for place in [*places, *usual]:
        try:
            found = _at(reader, place, node)
        except Trouble:
            continue
        if found is not None:
            return found
    return None


def unread(reader: ApiReader) -> Unread:
    """What to say where there is none."""
    return Unread(
        "configuration of the present kube-proxy",
        f"none was found on this machine, nor at {reader.server}",
        'give it with --config; or allow: verbs ["get"] on resource "configmaps" in apiGroup "",'
        " in the namespace kube-system",
    )


def _at(reader: ApiReader, place: Place, node: str) -> Found | None:
    namespace, _, name = place.name.partition("/")
    match place.kind:
        case "configmap":
            return _config_map(reader, namespace, name, place.part)
        case "daemonset":
            workload = _get(reader, f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")
            return _pod(reader, workload.get("spec", "template", "spec"), namespace, place)
        case "pod":
            pod = _get(reader, f"/api/v1/namespaces/{namespace}/pods/{name}")
            return _pod(reader, pod.get("spec"), namespace, place)
        case "node":
            return _node(_get(reader, f"/api/v1/nodes/{node}"), node)
    return None


def _config_map(reader: ApiReader, namespace: str, name: str, key: str) -> Found | None:
    data = _get(reader, f"/api/v1/namespaces/{namespace}/configmaps/{name}").fields("data")
    key = key.partition(" ")[0]
    text = data[key].text() if key in data else ""
    return of_text(text.encode(), f"ConfigMap {namespace}/{name}, {key}") if text else None


def _pod(reader: ApiReader, pod: Value | None, namespace: str, place: Place) -> Found | None:
    if pod is None:
        return None

    def data(name: str) -> dict[str, Value] | None:
        try:
            return _get(reader, f"/api/v1/namespaces/{namespace}/configmaps/{name}").fields("data")
        except Trouble:
            return None

    for container in proxies(pod, place, data):
        if container.launch is None:
            continue

        def read(path: str, of: object = container) -> bytes:
            match origin(of, path):  # type: ignore[arg-type]
                case FromConfigMap(name=name, key=key):
                    values = data(name) or {}
                    if key in values:
                        return values[key].text().encode()
            raise OSError(None, "it is a file of the node, or of the pod's image")

        return of_flags(container.launch.arguments, f"{place.kind} {place.name}", read)
    return None


def _node(node: Value, name: str) -> Found | None:
    for program, annotation in _ANNOTATIONS.items():
        text = node.text("metadata", "annotations", annotation)
        if text:
            try:
                arguments = msgspec.json.decode(text, type=list[str])
            except DECODE_ERRORS:
                return None
            launch = Launch(program, tuple(words(arguments[1:])))
            return of_k3s(launch, Place("node", name, annotation), None)
    return None


def _get(reader: ApiReader, path: str) -> Value:
    try:
        return from_object(msgspec.json.decode(reader.get(path)))
    except DECODE_ERRORS as error:
        raise Trouble(NONSENSE, f"the answer is no object: {error}") from None
