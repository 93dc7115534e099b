"""Containers that run a kube-proxy: its arguments with all variables, and where the file that --config names comes from. Pure.

Shapes: core/v1 PodSpec and Container.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from typing import Final, Literal

import msgspec
from msgspec import Struct

from proxy.detect.evidence import Place
from proxy.detect.launch import Launch, base_name, launches
from proxy.detect.words import Word, expand, references
from proxy.detect.yaml_lines import Value

ReadData = Callable[[str], dict[str, Value] | None]
"""The data of a ConfigMap of the pod's namespace; None when it is not to be had."""

_OWN_IMAGE: Final = re.compile(r"kube-proxy(-(amd64|arm|arm64|linux|ppc64le|s390x|windows)\b.*)?")
_IMAGES: Final = re.compile(r"(kube-proxy|hyperkube|hardened-kubernetes)\b.*")
_OS_LABELS: Final = ("kubernetes.io/os", "beta.kubernetes.io/os")
_EXE: Final = re.compile(r"(^|[\s/\\\\])kube-proxy\.exe\b", re.IGNORECASE)
_TAG: Final = re.compile(r":(v?\d+\.\d+[0-9A-Za-z._+-]*)(@|$)")


class Container(Struct):
    """One that runs a kube-proxy. launch: None when its command cannot be understood. version: of Kubernetes, as its image
    has it, '' for none."""

    name: str
    spec: Value
    pod: Value
    launch: Launch | None
    version: str
    fault: Value | None = None
    """What is no list of texts in its command line."""


class FromConfigMap(Struct, frozen=True):
    """key: '' when the ConfigMap's keys have other paths."""

    name: str
    key: str


class FromHost(Struct, frozen=True):
    path: str


Origin = FromConfigMap | FromHost | None
"""Where a file of a container comes from; None: from its image, or from something that is made when it starts."""


def proxies(pod: Value, place: Place, read: ReadData) -> Iterator[Container]:
    """Those of a pod's spec. place: of the pod; the words of their command lines have its lines."""
    for spec in pod.items("containers"):
        image = spec.text("image")
        fault = _fault(spec)
        found = _launch(spec, place, read) if fault is None else None
        is_named = fault is not None and _names_kube_proxy(fault)
        if found or is_named or _OWN_IMAGE.fullmatch(base_name(image)):
            tag = _TAG.search(image) if _IMAGES.fullmatch(base_name(image)) else None
            yield Container(spec.text("name"), spec, pod, found, tag[1] if tag else "", fault)


def origin(container: Container, path: str) -> Origin:
    """Where this file of its comes from."""
    path = _normal(path, container.spec.text("workingDir") or "/")
    mounts = [(_normal(mount.text("mountPath"), "/"), mount) for mount in container.spec.items("volumeMounts")]
    inside = [(at, mount) for at, mount in mounts if path == at or path.startswith(at.rstrip("/") + "/")]
    if not inside:
        return None
    at, mount = max(inside, key=lambda item: len(item[0]))
    inner = posixpath.join(mount.text("subPath"), path[len(at) :].lstrip("/")).rstrip("/")
    volume = next((v for v in container.pod.items("volumes") if v.text("name") == mount.text("name")), None)
    if volume is None:
        return None
    host = volume.text("hostPath", "path")
    if host:
        return FromHost(posixpath.join(host, inner) if inner else host)
    projected = [source.get("configMap") for source in volume.items("projected", "sources")]
    found = [_key(source, inner) for source in [volume.get("configMap"), *projected] if source is not None]
    return next((item for item in found if item.key), found[0] if found else None)


def system_of(pod: Value) -> Literal["linux", "windows", ""]:
    """The operating system of the nodes that a pod's spec is for, '' where it does not say."""
    selector = pod.fields("nodeSelector")
    found = {selector[name].text() for name in _OS_LABELS if name in selector} | {pod.text("os", "name")}
    terms = pod.items("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    for system in ("linux", "windows"):
        if terms and all(_wants(term, system) for term in terms):
            found.add(system)
    commands = [word.text() for spec in pod.items("containers") for word in spec.items("command") + spec.items("args")]
    if "windows" in found or any(_EXE.search(word) for word in commands):
        return "windows"
    return "linux" if "linux" in found else ""


def _wants(term: Value, system: str) -> bool:
    return any(
        rule.text("key") in _OS_LABELS
        and rule.text("operator") == "In"
        and [value.text() for value in rule.items("values")] == [system]
        for rule in term.items("matchExpressions")
    )


def _fault(spec: Value) -> Value | None:
    """What is no list of texts in a container's command line."""
    for name in ("command", "args"):
        value = spec.get(name)
        if value is None or value.data is None:
            continue
        if not isinstance(value.data, list):
            return value
        for item in value.data:
            if isinstance(item.data, list | dict):
                return item  # type: ignore[no-any-return]
    return None


def _names_kube_proxy(value: Value) -> bool:
    texts = [value.text(), *(item.text() for item in value.items()), *(item.text() for item in value.fields().values())]
    return any("kube-proxy" in text for text in texts)


def _key(source: Value, path: str) -> FromConfigMap:
    items = source.items("items")
    key = next((item.text("key") for item in items if item.text("path") == path), "") if items else path
    return FromConfigMap(source.text("name"), key)


def _normal(path: str, directory: str) -> str:
    """Paths of Windows, too: C:\\k is the same as C:/k."""
    return posixpath.normpath(posixpath.join(directory, path.replace("\\", "/")))


def _launch(spec: Value, place: Place, read: ReadData) -> Launch | None:
    command, arguments = spec.items("command"), spec.items("args")
    values = [value for value in command + arguments if isinstance(value.data, bool | str)]
    variables = _variables(spec, place, read)
    words = [expand(Word(value.text(), _place(value, place)), variables) for value in values]
    in_block = any(value.text_line and value.line for value in values)
    found = launches(words, variables, counts_lines=in_block)
    if found:
        return next((launch for launch in found if launch.program == "kube-proxy"), None)
    image = base_name(spec.text("image"))
    if not command and _OWN_IMAGE.fullmatch(image) and (not words or words[0].text.startswith("-")):
        return Launch("kube-proxy", tuple(words))  # the image's own entry point
    if not command and image.startswith("hyperkube") and words and words[0].text == "proxy":
        return Launch("kube-proxy", tuple(words[1:]))
    return None


def _variables(spec: Value, place: Place, read: ReadData) -> dict[str, Word | None]:
    found: dict[str, Word | None] = {}
    for source in spec.items("envFrom"):
        data = read(source.text("configMapRef", "name")) if source.get("configMapRef") else None
        for key, value in (data or {}).items():
            found[source.text("prefix") + key] = Word(value.text(), _place(value, place))
        if data is None:  # any variable may be in it
            texts = [value.text() for value in spec.items("command") + spec.items("args")]
            found |= {name: None for text in texts for name in references(text) if name not in found}
    for item in spec.items("env"):
        name, wanted = item.text("name"), item.get("valueFrom", "configMapKeyRef")
        if item.get("valueFrom") is None:
            given = item.get("value") or item
            found[name] = expand(Word(given.text(), _place(given, place)), found)
        else:
            known = (read(wanted.text("name")) or {}).get(wanted.text("key")) if wanted is not None else None
            found[name] = Word(known.text(), _place(known, place)) if known is not None else None
    return found


def _place(value: Value, place: Place) -> Place:
    """Of a word, or of the first line of a script."""
    line = value.text_line if value.text_line and value.line else value.line
    return msgspec.structs.replace(place, line=line or place.line)
