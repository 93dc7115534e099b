"""Addresses of pods by their names: of Pod objects, and of endpoints that say which pod they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import yaml
from msgspec import Struct

from proxy.addresses import parse_address
from proxy.detect.api_reader import ApiReader
from proxy.manifest_parse import is_manifest
from proxy.model import DECODE_ERRORS

Pods = Mapping[str, tuple[bytes, ...]]
"""namespace/name -> packed addresses."""


class _Ip(Struct):
    ip: str = ""


class _Status(Struct, rename="camel"):
    pod_ip: str = msgspec.field(name="podIP", default="")
    pod_ips: list[_Ip] | None = msgspec.field(name="podIPs", default=None)


class _Pod(Struct):
    status: _Status | None = None


def of_api(reader: ApiReader, name: str) -> Pods:
    """Of one pod, "namespace/name". Raises Trouble."""
    namespace, _, own = name.partition("/")
    raw = reader.get(f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(own)}")
    try:
        return {name: tuple(_of_status(msgspec.json.decode(raw, type=_Pod)))}
    except DECODE_ERRORS:
        return {}


def of_manifests(directory: str) -> Pods:
    """Of all that the directory's files name. What is broken there is told by those who read the Services."""
    found: dict[str, tuple[bytes, ...]] = {}
    for path in sorted(Path(directory).iterdir()):
        if is_manifest(path.name):
            for document in _documents(path):
                for name, addresses in _of_document(document):
                    found[name] = tuple(dict.fromkeys((*found.get(name, ()), *addresses)))
    return found


def _documents(path: Path) -> Iterator[Any]:
    try:
        for document in yaml.safe_load_all(path.read_bytes()):
            items = document.get("items") if isinstance(document, dict) else None
            yield from items if isinstance(items, list) else [document]
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return


def _of_document(document: Any) -> Iterator[tuple[str, list[bytes]]]:
    match document:
        case {"kind": "Pod", "metadata": {"name": str() as name}, "status": status}:
            try:
                pod = msgspec.convert({"status": status}, _Pod)
            except msgspec.ValidationError:
                return
            yield f"{_namespace(document)}/{name}", list(_of_status(pod))
        case {"kind": "EndpointSlice", "metadata": dict(), "endpoints": list() as endpoints}:
            for endpoint in endpoints:
                match endpoint:
                    case {"addresses": list() as texts, "targetRef": {"kind": "Pod", "name": str() as name}}:
                        yield f"{_namespace(document)}/{name}", list(_packed(map(str, texts[:1])))


def _namespace(document: Any) -> str:
    return document["metadata"].get("namespace") or "default"


def _of_status(pod: _Pod) -> Iterator[bytes]:
    status = pod.status or _Status()
    yield from _packed([ip.ip for ip in status.pod_ips or ()] or [status.pod_ip])


def _packed(texts: Iterable[str]) -> Iterator[bytes]:
    for text in texts:
        try:
            yield parse_address(text)
        except ValueError:
            continue
