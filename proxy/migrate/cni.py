"""Which pod network (CNI) a node has, and the bits of the packet mark that each is known to use."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from proxy.detect.host_files import HostFiles
from proxy.migrate.facts import MarkUse
from proxy.model import DECODE_ERRORS

DIRECTORIES: Final = ("/etc/cni/net.d", "/var/lib/rancher/k3s/agent/etc/cni/net.d", "/run/flannel")
INTERFACES: Final = (
    ("calico", "cali*"),
    ("calico", "vxlan.calico"),
    ("cilium", "cilium_host"),
    ("flannel", "flannel.*"),
    ("weave", "weave"),
    ("kube-router", "kube-bridge"),
    ("antrea", "antrea-gw0"),
    ("ovn-kubernetes", "ovn-k8s-mp0"),
    ("aws-cni", "eni*"),
)
"""Name -> what its interfaces are called."""
TYPES: Final = {"cilium-cni": "cilium", "weave-net": "weave", "ovn-k8s-cni-overlay": "ovn-kubernetes"}
"""Plugins that are called otherwise than their project."""
MARKS: Final = {
    "calico": 0xFFFF0000,  # Felix's IptablesMarkMask and NftablesMarkMask
    "cilium": 0xFFFF0F00,  # MARK_MAGIC_*, and an identity above
    "kube-router": 0x00030000,  # network policies
    "weave": 0x00060000,  # encryption, and network policies
    "portmap": 0x00002000,  # markMasqBit 13: host ports
}
"""Name -> bits that it uses where its configuration says nothing else."""


def names(files: HostFiles, interfaces: Iterable[str]) -> tuple[str, ...]:
    """Plugins in the configuration that the container engine takes, the first file by name; then what interfaces tell."""
    found: list[str] = []
    for directory in DIRECTORIES:
        found += _configured(files, directory)
        if found:
            break
    there = list(interfaces)
    found += [name for name, pattern in INTERFACES if any(fnmatchcase(one, pattern) for one in there)]
    return tuple(dict.fromkeys(found))


def marks(cni: Collection[str]) -> tuple[MarkUse, ...]:
    """Bits that these use by default."""
    return tuple(MarkUse(f"default of {name}", MARKS[name], name) for name in cni if name in MARKS)


def _configured(files: HostFiles, directory: str) -> list[str]:
    try:
        candidates = [n for n in files.names(directory) if n.endswith((".conf", ".conflist", ".json"))]
    except OSError:
        return []
    for name in candidates:
        try:
            said = msgspec.json.decode(files.read(f"{directory}/{name}"))
        except (OSError, *DECODE_ERRORS):
            continue
        plugins = said.get("plugins") if isinstance(said, dict) else None
        kinds = [p.get("type") for p in (plugins if isinstance(plugins, list) else [said]) if isinstance(p, dict)]
        found = [TYPES.get(kind, kind) for kind in kinds if isinstance(kind, str) and kind != "loopback"]
        if found:
            return [kind[:100] for kind in found]
    return []
