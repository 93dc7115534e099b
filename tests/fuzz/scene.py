"""A small cluster with some of everything: in the recordings, and where tables are damaged."""

from __future__ import annotations

import copy
from typing import Any, Final

from proxy.events import Event, Replace
from proxy.model import KINDS, KubeObject, convert
from tests.fuzz.corpus import scenes

NODE: Final = "node0"
_SCHEDULERS: Final = ("random", "rr", "sh")


def parts() -> list[dict[str, Any]]:
    """The objects of all recorded flows side by side, with names and NodePorts of their own, and schedulers."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for number, scene in enumerate(scenes()):
        for item in scene:
            item = copy.deepcopy(item)
            meta, spec = item["metadata"], item.get("spec") or {}
            if item["kind"] in ("Service", "EndpointSlice"):
                meta["name"] = f"s{number}-{meta['name']}"
            if item["kind"] == "Service":
                meta["annotations"] = {"kube-proxy-nft/scheduler": _SCHEDULERS[number % 3]}
                if len(spec.get("clusterIPs") or ()) == 1 and spec["clusterIPs"] != ["None"]:
                    spec["clusterIP"] = f"10.96.{100 + number}.1"
                    spec["clusterIPs"] = [spec["clusterIP"]]
                for port in spec.get("ports") or ():
                    if "nodePort" in port:
                        port["nodePort"] += 10 * number
            elif item["kind"] == "EndpointSlice":
                label = "kubernetes.io/service-name"
                meta["labels"][label] = f"s{number}-{meta['labels'][label]}"
            found[item["kind"], meta["name"]] = item
    node = {"metadata": {"name": NODE}, "status": {"addresses": [{"type": "InternalIP", "address": "10.1.0.1"}]}}
    found["Node", NODE] = {"kind": "Node", **node}
    found["ServiceCIDR", "all"] = {
        "kind": "ServiceCIDR",
        "metadata": {"name": "all"},
        "spec": {"cidrs": ["10.96.0.0/12"]},
    }
    return list(found.values())


def cluster() -> dict[str, list[KubeObject]]:
    """By kind."""
    found: dict[str, list[KubeObject]] = {kind: [] for kind in KINDS}
    for item in parts():
        found[item["kind"]].append(convert(item["kind"], item))
    return found


def events() -> list[Event]:
    """What a source tells of it at first."""
    return [Replace(kind, listed) for kind, listed in cluster().items()]
