"""Facts of a node as a migration report is made of: from objects as plain data, and from the recordings."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from proxy.migrate import ours
from proxy.migrate.entries import Dataplane, Entry, ModeName
from proxy.migrate.facts import Facts, Interface, NodeFacts, PresentProxy
from proxy.migrate.iptables_entries import of_text as of_iptables
from proxy.migrate.ipvs_entries import of_text as of_ipvs
from proxy.migrate.modes import There, made, name_of
from proxy.model import KINDS
from proxy.unread import Unread
from rules.objects import Family
from tests.dataplanes import DATA, recorded

Object = dict[str, Any]

NODE: Object = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node0", "labels": {"topology.kubernetes.io/zone": "z1"}},
    "spec": {"podCIDRs": ["10.244.0.0/24", "fd44::/64"]},
    "status": {
        "addresses": [
            {"type": "InternalIP", "address": "192.168.77.2"},
            {"type": "InternalIP", "address": "fd77::2"},
        ]
    },
}
ETH0 = Interface("eth0", tuple(ipaddress.ip_address(a).packed for a in ("192.168.77.2", "fd77::2")))
CONFIG: Object = {"clusterCIDR": "10.244.0.0/16,fd44::/48"}


def facts(
    *objects: Object,
    mode: str = "",
    config: Object | None = None,
    here: NodeFacts | None = None,
    dataplanes: Sequence[Dataplane] = (),
    node: Object | None = NODE,
    unread: Sequence[Unread] = (),
    version: str = "v1.36.2",
    source: str = "config.conf",
    **more: Any,
) -> Facts:
    """config: without `mode`, which is added; None: an ordinary one."""
    by_kind: dict[str, list[msgspec.Raw]] = {kind: [] for kind in KINDS}
    for obj in (*objects, *([node] if node else [])):
        kind = obj.get("kind") or ("EndpointSlice" if "addressType" in obj else "Service")
        by_kind[kind].append(msgspec.Raw(json.dumps(obj).encode()))
    document = {**(CONFIG if config is None else config), **({"mode": mode} if mode else {})}
    return Facts(
        "node0",
        "2026-11-30T12:00:00Z",
        "kube-proxy-nft 0.1.0",
        PresentProxy(mode, bool(mode), document, source, version),
        by_kind,
        here or NodeFacts(kernel="6.1.0", interfaces=(ETH0,)),
        tuple(dataplanes),
        unread=tuple(unread),
        cluster_version="v1.36.2",
        **more,
    )


def live(facts_: Facts, mode: ModeName, scheduler: str = "rr", **more: Any) -> Dataplane:
    """What this mode makes of the objects, as if it had been read from the kernel."""
    read = ours.read(facts_)
    there = There(mode, scheduler, frozenset(Family))
    both = (made(port, read.services.get(name_of(port)), there, read) for port in read.ports.values())
    entries = tuple(one.there for one in both if one.there is not None)
    more.setdefault("nodeport_addresses", tuple(a for found in read.node_ports.values() for a in found))
    return Dataplane(mode, entries, source="made", **more)


def changed(dataplane: Dataplane, change: Iterable[tuple[Entry, Entry | None]]) -> Dataplane:
    """With these entries in the place of those; None: without."""
    new = {old.key: entry for old, entry in change}
    entries = (new.get(entry.key, entry) for entry in dataplane.entries)
    return msgspec.structs.replace(dataplane, entries=tuple(entry for entry in entries if entry is not None))


def recorded_objects() -> list[Object]:
    items: list[Object] = json.loads((DATA / "objects.json").read_text())["items"]
    for item in items:
        if "kind" not in item:
            is_node = "nodeInfo" in item.get("status", {})
            item["kind"] = "EndpointSlice" if "addressType" in item else "Node" if is_node else "Service"
    return items


def recorded_interfaces(mode: str) -> tuple[Interface, ...]:
    return tuple(
        Interface(one["ifname"], tuple(ipaddress.ip_address(a["local"]).packed for a in one["addr_info"]))
        for one in json.loads(recorded(mode, "ip-addr.json"))
        if one
    )


def recorded_facts(mode: str, objects: Sequence[Object] | None = None, texts: Sequence[str] | None = None) -> Facts:
    """The recorded cluster and one mode's recorded rules. texts: the two texts that tell the rules, if not as recorded."""
    both = texts or recorded_texts(mode)
    dataplane = of_ipvs(*both) if mode == "ipvs" else of_iptables(*both)
    assert dataplane
    document = json.loads(recorded(mode, "config.json"))
    return facts(
        *(recorded_objects() if objects is None else objects),
        node=None,
        mode=mode,
        config=document,
        here=NodeFacts(kernel="6.1.0", interfaces=recorded_interfaces(mode)),
        dataplanes=[dataplane],
    )


def recorded_texts(mode: str) -> tuple[str, str]:
    files = ("ipvsadm-save.txt", "ipset-save.txt") if mode == "ipvs" else ("iptables-save.txt", "ip6tables-save.txt")
    return recorded(mode, files[0]), recorded(mode, files[1])
