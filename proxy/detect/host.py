"""The configurations of a kube-proxy on a machine: the well-known places, and what they mean together.

What starts a kube-proxy decides: processes, static pods, services, k3s and its like, with the files that they name. Other
files may be left over; they count where nothing that starts one is found, and never for sure.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec

from proxy.detect.configured import distinct, set_aside
from proxy.detect.evidence import ConfiguredMode, Evidence, Place, Unreadable
from proxy.detect.files import read_file
from proxy.detect.host_files import HostFiles, NotAFile
from proxy.detect.host_units import services
from proxy.detect.launch import Launch
from proxy.detect.processes import RunningProxy
from proxy.detect.running import read_processes
from proxy.detect.started import read_flag_file, read_k3s, read_launch, reason, remedy_for
from proxy.detect.text import decode
from proxy.detect.yaml_lines import read_yaml

MANIFESTS: Final = (
    "/etc/kubernetes/manifests",
    "/var/lib/rancher/k3s/agent/pod-manifests",
    "/var/lib/rancher/rke2/agent/pod-manifests",
)
KUBELET_CONFIG: Final = "/var/lib/kubelet/config.yaml"
FLAGS: Final = (
    "/var/snap/microk8s/current/args/kube-proxy",
    "/var/snap/k8s/common/args/kube-proxy",  # Canonical Kubernetes
    "/var/snap/kube-proxy/current/args",  # Charmed Kubernetes
)
PODS: Final = "/var/lib/kubelet/pods"
OTHERS: Final = (
    "/var/lib/kube-proxy/*",
    "/var/lib/kube-proxy-config/*",  # EKS
    "/etc/kubernetes/*proxy*",
    "/etc/kubernetes/kubeadm*",  # kubespray
    "/run/kubeadm/*",  # Cluster API
    "/kind/kubeadm.conf",
    "/var/tmp/minikube/kubeadm.yaml",
    "/etc/default/kube-proxy",
    "/etc/sysconfig/kube-proxy",
    "/etc/k0s/k0s.yaml",
    "/var/lib/k0s/manifests/kubeproxy/*",
    "/system/state/config.yaml",  # Talos
)
"""Directories and the files in them that may hold a configuration."""
MOST_FILES: Final = 200
"""Files of one directory that are read."""
_UNUSED: Final = "nothing that starts a kube-proxy here names this file"
_ALONE: Final = "what would start a kube-proxy with this file was not found"
_NOT_ENABLED: Final = "this service is not enabled"
_VOLUMES: Final = ("kube-proxy", "kube-proxy-config", "config")


def gather_host(root: Path = Path("/"), node: str = "", running: Sequence[RunningProxy] = ()) -> list[Evidence]:
    """All configured evidence of a machine. root: where its file system is. node: its name, for the evidence. running: what
    processes.scan gave, of the same machine. Raises nothing for what may be there."""
    return distinct(_Host(HostFiles(root), node, running).gather())


class _Host:
    def __init__(self, files: HostFiles, node: str, running: Sequence[RunningProxy]) -> None:
        self._files, self._node, self._running = files, node, running
        self._unread: list[Evidence] = []

    def gather(self) -> list[Evidence]:
        processes = read_processes(self._running, self._node)
        starting = [*self._manifests(), *self._services(), *self._flags()]
        if not _decides(processes + starting):
            starting += self._volumes()
        others = self._others({e.place.name for e in processes + starting if e.place.kind == "file"})
        is_decided = _decides(processes + starting)
        others = set_aside(others, _UNUSED) if is_decided else [_possible(item) for item in others]
        return [*processes, *starting, *others, *self._unread]

    # -- What starts a kube-proxy --------------------------------------------------------------------------------------

    def _manifests(self) -> Iterator[Evidence]:
        """Static pods."""
        for directory in dict.fromkeys([*MANIFESTS, *self._static_pod_path()]):
            for path in self._paths(directory, "*"):
                yield from self._read(path)

    def _static_pod_path(self) -> list[str]:
        try:
            documents, _ = read_yaml(decode(self._files.read(KUBELET_CONFIG))[0])
        except OSError:
            return []  # what is usual is looked at anyway
        path = documents[0].text("staticPodPath") if documents else ""
        return [posixpath.normpath(path)] if path.startswith("/") else []

    def _services(self) -> list[Evidence]:
        found: list[Evidence] = []
        seen = {process.program for process in self._running if len(process.argv) > 1}
        units, unread = services(self._files, self._node)
        for unit in units:
            evidence = [e for launch, at in unit.service.launches for e in read_launch(launch, at, self._files)]
            evidence += unit.service.unread
            found += evidence if unit.enabled else set_aside(evidence, _NOT_ENABLED)
            seen |= {launch.program for launch, _ in unit.service.launches}
        for program in ("k3s", "rke2"):
            config = f"/etc/rancher/{program}/config.yaml"
            runs = any(process.program == program for process in self._running)
            if program not in seen and (runs or self._is_there(config)):
                place = Place("file", config, node=self._node)
                if runs and not self._is_there(config):
                    process = next(process for process in self._running if process.program == program)
                    place = msgspec.structs.replace(process.place, node=self._node)
                found += read_k3s(Launch(program, ()), place, self._files)
        return [*found, *unread]

    def _flags(self) -> list[Evidence]:
        if any(process.program == "kubelite" for process in self._running):
            return []  # its process names the file
        return [e for path in FLAGS for e in read_flag_file(path, self._node, self._files)]

    def _volumes(self) -> Iterator[Evidence]:
        """ConfigMaps as kubelet mounts them, where the processes of this machine cannot be seen."""
        for pod in self._names(PODS)[:MOST_FILES]:
            maps = posixpath.join(PODS, pod, "volumes/kubernetes.io~configmap")
            for volume in self._names(maps):
                if volume in _VOLUMES:
                    for path in self._paths(posixpath.join(maps, volume), "*"):
                        for item in self._read(path):
                            if isinstance(item, ConfiguredMode):
                                item = msgspec.structs.replace(
                                    item, sure="possible", note="a pod on this node mounts it"
                                )
                            yield item

    # -- What may be left over -----------------------------------------------------------------------------------------

    def _others(self, known: set[str]) -> list[Evidence]:
        found: list[Evidence] = []
        for pattern in OTHERS:
            directory, name = posixpath.split(pattern)
            for path in self._paths(directory, name):
                if path not in known:
                    found += self._read(path)
        return found

    # -- Reading -------------------------------------------------------------------------------------------------------

    def _read(self, path: str) -> list[Evidence]:
        try:
            data = self._files.read(path)
        except (FileNotFoundError, NotAFile):
            return []
        except OSError as error:
            if re.search("proxy|kubeadm", path):
                place = Place("file", path, node=self._node)
                self._unread.append(Unreadable(place=place, cause=reason(error), remedy=remedy_for(error)))
            return []
        return read_file(path, data, node=self._node, machine=self._files)

    def _paths(self, directory: str, pattern: str) -> list[str]:
        """kubelet, too, passes over what begins with a dot."""
        names = [n for n in self._names(directory) if not n.startswith(".") and fnmatchcase(n, pattern)]
        return [posixpath.join(directory, name) for name in names[:MOST_FILES]]

    def _names(self, directory: str) -> list[str]:
        try:
            return self._files.names(directory)
        except OSError as error:
            place = Place("file", directory, node=self._node)
            self._unread.append(Unreadable(place=place, cause=reason(error), remedy=remedy_for(error)))
            return []

    def _is_there(self, path: str) -> bool:
        directory, name = posixpath.split(path)
        return not {name, f"{name}.d"}.isdisjoint(self._names(directory))


def _possible(item: Evidence) -> Evidence:
    """What counts only if something starts a kube-proxy with this file."""
    if isinstance(item, ConfiguredMode):
        return msgspec.structs.replace(item, sure="possible", note=item.note or _ALONE)
    if isinstance(item, Unreadable) and item.effect == "refused":
        return msgspec.structs.replace(item, sure="possible")
    return item


def _decides(evidence: Sequence[Evidence]) -> bool:
    return any(isinstance(e, ConfiguredMode) and not e.overridden for e in evidence)
