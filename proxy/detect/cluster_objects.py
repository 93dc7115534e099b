"""What the cluster's view needs of DaemonSets, Pods and Nodes, as the API server writes them. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Struct

MIRROR: Final = "kubernetes.io/config.mirror"
REVISION: Final = "controller-revision-hash"
"""Pods of one DaemonSet with the same value have the same specification."""
OURS: Final = "kube-proxy-nft"
_EVERYWHERE: Final = "kube-root-ca.crt"
"""The ConfigMap that every pod's account comes with."""

Json = dict[str, Any]


class Owner(Struct, rename="camel", omit_defaults=True):
    uid: str = ""


class Metadata(Struct, rename="camel", omit_defaults=True):
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None
    owner_references: list[Owner] | None = None


class PodSpec(Struct, rename="camel", omit_defaults=True):
    node_name: str = ""


class PodStatus(Struct, rename="camel", omit_defaults=True):
    phase: str = ""


class Pod(Struct, rename="camel", omit_defaults=True):
    metadata: Metadata
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def runs(self) -> bool:
        """It is on a node, and not over."""
        return bool(self.spec.node_name) and self.status.phase not in ("Succeeded", "Failed")

    @property
    def is_static(self) -> bool:
        return MIRROR in (self.metadata.annotations or ())

    @property
    def revision(self) -> str:
        return (self.metadata.labels or {}).get(REVISION, "")

    def is_of(self, uid: str) -> bool:
        return any(owner.uid == uid for owner in self.metadata.owner_references or ())


class NodeInfo(Struct, rename="camel", omit_defaults=True):
    kernel_version: str = ""
    kubelet_version: str = ""
    operating_system: str = ""


class NodeStatus(Struct, rename="camel", omit_defaults=True):
    node_info: NodeInfo = msgspec.field(default_factory=NodeInfo)


class Node(Struct, rename="camel", omit_defaults=True):
    metadata: Metadata
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)

    @property
    def is_windows(self) -> bool:
        label = (self.metadata.labels or {}).get("kubernetes.io/os", "")
        return (self.status.node_info.operating_system or label).lower() == "windows"


def selector(workload: Json) -> str:
    """The pods of a DaemonSet, as the query parameter labelSelector."""
    wanted = (workload.get("spec") or {}).get("selector") or {}
    terms = [f"{key}={value}" for key, value in (wanted.get("matchLabels") or {}).items()]
    for rule in wanted.get("matchExpressions") or ():
        key, values = rule.get("key", ""), ",".join(rule.get("values") or ())
        match rule.get("operator"):
            case "In":
                terms.append(f"{key} in ({values})")
            case "NotIn":
                terms.append(f"{key} notin ({values})")
            case "Exists":
                terms.append(key)
            case "DoesNotExist":
                terms.append(f"!{key}")
    return ",".join(terms)


def pod_spec(workload: Json) -> Json:
    """Of a DaemonSet's pods."""
    spec: Json = ((workload.get("spec") or {}).get("template") or {}).get("spec") or {}
    return spec


def runs_ours(workload: Json) -> bool:
    """Whether its pods run kube-proxy-nft."""
    for container in pod_spec(workload).get("containers") or ():
        words = [container.get("image") or "", *(container.get("command") or ())[:1]]
        if any(re.split("[:@]", word.rpartition("/")[2])[0] == OURS for word in words):
            return True
    return False


def with_pod_spec(workload: Json, spec: Json) -> Json:
    """The same DaemonSet as it was when it made a pod with this specification."""
    template = (workload.get("spec") or {}).get("template") or {}
    return workload | {"spec": (workload.get("spec") or {}) | {"template": template | {"spec": spec}}}


def config_maps(spec: Json) -> list[str]:
    """The names of the ConfigMaps that pods with this specification mount, or take variables from."""
    names: list[str] = []
    for volume in spec.get("volumes") or ():
        sources = [volume, *((volume.get("projected") or {}).get("sources") or ())]
        names += [(source.get("configMap") or {}).get("name", "") for source in sources]
    for container in spec.get("containers") or ():
        for source in container.get("envFrom") or ():
            names.append((source.get("configMapRef") or {}).get("name", ""))
        for variable in container.get("env") or ():
            names.append(((variable.get("valueFrom") or {}).get("configMapKeyRef") or {}).get("name", ""))
    return [name for name in dict.fromkeys(names) if name and name != _EVERYWHERE]
