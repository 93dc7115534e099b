"""The present kube-proxy's configuration on its machine: what starts one decides, in the order of how sure that is.

The same places as the detector looks at (proxy.detect.host); here all of the configuration is wanted, not its mode alone.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from msgspec import Struct

from proxy.detect import k3s
from proxy.detect.command_line import parse_flags
from proxy.detect.containers import FromHost, origin, proxies
from proxy.detect.evidence import Place
from proxy.detect.flag_files import flag_words
from proxy.detect.host import FLAGS, MANIFESTS, MOST_FILES, OTHERS, PODS
from proxy.detect.host_files import HostFiles
from proxy.detect.host_units import services
from proxy.detect.launch import Launch, launches
from proxy.detect.processes import RunningProxy
from proxy.detect.started import k3s_layers
from proxy.detect.text import decode
from proxy.detect.words import Word, words
from proxy.detect.yaml_lines import Value, read_yaml
from proxy.migrate.present import Found, of_flags, of_text, put
from proxy.unread import Unread

K3S_CLUSTER_CIDR: Final = "10.42.0.0/16"
"""Of k3s and RKE2, where their configuration says nothing else."""
_VOLUMES: Final = ("kube-proxy", "kube-proxy-config", "config")
_MOUNTED: Final = "a pod on this node mounts it; whether it is kube-proxy's was not seen"
_ALONE: Final = "what would start a kube-proxy with this file was not found"


class OnHost(Struct):
    """files: where the paths in it are."""

    found: Found
    files: HostFiles


def starting(files: HostFiles, running: Sequence[RunningProxy], node: str = "") -> OnHost | None:
    """The configuration of a kube-proxy that runs, or that something on this machine starts. None: there is none."""
    return next(_starting(files, running, node), None)


def left_over(files: HostFiles) -> OnHost | None:
    """A file that may be its configuration, where nothing is found that starts one."""
    for path in _mounted(files):
        if found := _of_file(files, path, _MOUNTED):
            return found
    for pattern in OTHERS:
        directory, name = posixpath.split(pattern)
        for path in _paths(files, directory, name):
            if found := _of_file(files, path, _ALONE):
                return found
    return None


def _starting(files: HostFiles, running: Sequence[RunningProxy], node: str) -> Iterator[OnHost]:
    for process in running:
        inside = HostFiles(Path(process.root))
        place = process.place
        for launch in launches(words(process.argv), {}):
            if launch.program not in ("k3s", "rke2") or len(process.argv) > 1:
                yield from _of_launch(launch, place, inside if launch.program == "kube-proxy" else files)
    for directory in MANIFESTS:
        for path in _paths(files, directory, "*"):
            yield from _of_manifest(files, path)
    units, _ = services(files, node)
    for unit in units:
        if unit.enabled:
            for launch, at in unit.service.launches:
                yield from _of_launch(launch, at, files)
    for program in ("k3s", "rke2"):
        config = f"/etc/rancher/{program}/config.yaml"
        runs = any(process.program == program for process in running)
        if runs or "config.yaml" in _names(files, posixpath.dirname(config)):
            yield from _of_launch(Launch(program, ()), Place("file", config), files)
    for path in FLAGS:
        yield from _of_flag_file(files, path)


def _of_launch(launch: Launch, place: Place, files: HostFiles) -> Iterator[OnHost]:
    source = f"{place.kind} {place.name}" if place.kind != "file" else place.name
    match launch.program:
        case "kubelite":
            named = parse_flags(launch.arguments).values.get("proxy-args-file")
            if named is not None and named.value:
                yield from _of_flag_file(files, named.value)
        case "k3s" | "rke2":
            if found := of_k3s(launch, place, files):
                yield OnHost(found, files)
        case _:
            yield OnHost(of_flags(launch.arguments, source, files.read), files)


def of_k3s(launch: Launch, place: Place, files: HostFiles | None) -> Found | None:
    """What k3s or RKE2 starts its kube-proxy with. None: it starts none. files: of its node, None if not to be had."""
    command, named = k3s.from_command(launch.arguments, place)
    path = named or f"/etc/rancher/{launch.program}/config.yaml"
    layers = k3s_layers(path, place.node, files)[0] if files is not None else []
    arguments: list[Word] = []
    disabled = False
    for layer in [*layers, command]:
        disabled = disabled if layer.disabled is None else layer.disabled
        if layer.arguments is not None:
            arguments = [*(arguments if layer.adds else ()), *layer.arguments]
    if disabled:
        return None
    flags = [Word(f"--{word.text.removeprefix('--')}", word.place, word.unknown) for word in arguments]

    def read(path: str) -> bytes:
        if files is None:
            raise OSError(None, "it is a file of the node")
        return files.read(path)

    found = of_flags(flags, f"{launch.program} ({place.name})", read)
    given = {word.text.partition("=")[0] for word in flags}
    if "--config" not in given:
        if "--proxy-mode" not in given:
            put(found.document, "mode", k3s.MODE)
        if "--cluster-cidr" not in given:
            put(found.document, "clusterCIDR", _cluster_cidr(path, launch, files))
        if "--kubeconfig" not in given:
            at = f"/var/lib/rancher/{launch.program}/agent/kubeproxy.kubeconfig"
            put(found.document, "clientConnection.kubeconfig", at)
    return found


def _cluster_cidr(path: str, launch: Launch, files: HostFiles | None) -> str:
    given = parse_flags(launch.arguments).values.get("cluster-cidr")
    if given is not None and given.value:
        return given.value
    try:
        documents, _ = read_yaml(decode(files.read(path))[0]) if files else ([], [])
    except OSError:
        documents = []
    value = documents[0].get("cluster-cidr") if documents else None
    if value is not None and isinstance(value.data, list):
        return ",".join(item.text() for item in value.data)
    return (value.text() if value is not None else "") or K3S_CLUSTER_CIDR


def _of_manifest(files: HostFiles, path: str) -> Iterator[OnHost]:
    """A static pod."""
    data = _read(files, path)
    if b"proxy" not in data:
        return
    for document in read_yaml(decode(data)[0])[0]:
        pod = document.get("spec")
        if document.text("kind") == "Pod" and pod is not None:
            yield from _of_pod(pod, path, files)


def _of_pod(pod: Value, source: str, files: HostFiles) -> Iterator[OnHost]:
    for container in proxies(pod, Place("file", source), lambda _name: None):
        if container.launch is None:
            continue

        def read(path: str, of: object = container) -> bytes:
            match origin(of, path):  # type: ignore[arg-type]
                case FromHost(path=host):
                    return files.read(host)
            raise OSError(None, "it is no file of the node")

        found = of_flags(container.launch.arguments, source, read)
        if found.kubeconfig and isinstance(there := origin(container, found.kubeconfig), FromHost):
            put(found.document, "clientConnection.kubeconfig", there.path)
        yield OnHost(found, files)


def _of_flag_file(files: HostFiles, path: str) -> Iterator[OnHost]:
    if data := _read(files, path):
        arguments = flag_words(decode(data)[0], Place("file", path))
        yield OnHost(of_flags(arguments, path, files.read), files)


def _of_file(files: HostFiles, path: str, note: str) -> OnHost | None:
    found = of_text(_read(files, path), path)
    if found is None or len(found.document) <= 2:
        return None
    found.unread.append(Unread(f"whether {path} is in use", note, "give the configuration in use with --config"))
    return OnHost(found, files)


def _mounted(files: HostFiles) -> Iterator[str]:
    for pod in _names(files, PODS)[:MOST_FILES]:
        maps = posixpath.join(PODS, pod, "volumes/kubernetes.io~configmap")
        for volume in _names(files, maps):
            if volume in _VOLUMES:
                yield from _paths(files, posixpath.join(maps, volume), "*")


def _paths(files: HostFiles, directory: str, pattern: str) -> list[str]:
    names = [n for n in _names(files, directory) if not n.startswith(".") and fnmatchcase(n, pattern)]
    return [posixpath.join(directory, name) for name in names[:MOST_FILES]]


def _names(files: HostFiles, directory: str) -> list[str]:
    try:
        return files.names(directory)
    except OSError:
        return []  # the detector says so


def _read(files: HostFiles, path: str) -> bytes:
    try:
        return files.read(path)
    except OSError:
        return b""
