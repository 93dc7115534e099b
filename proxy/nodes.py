"""This node as the data plane sees it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from proxy.addresses import Network, parse_address, parse_network
from proxy.model import Node
from rules.objects import Family

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
TO_BE_DELETED: Final = "ToBeDeletedByClusterAutoscaler"
"""The taint of a node that the cluster autoscaler is about to remove (KEP-3836)."""


class NodeInfo(Struct, frozen=True):
    """addresses: the node's IPs, packed, at most one of each family, that of the primary family first: InternalIPs,
    else ExternalIPs. pod_cidrs: at most one of each family. eligible: load balancers may send new connections here.
    exists: there is a Node of this name. uid: its metadata.uid.
    """

    zone: str = ""
    addresses: tuple[bytes, ...] = ()
    pod_cidrs: tuple[Network, ...] = ()
    eligible: bool = True
    exists: bool = True
    uid: str = ""


ABSENT: Final = NodeInfo(eligible=False, exists=False)


def read_node(node: Node) -> tuple[NodeInfo, list[str]]:
    """The Node, and what of it had to be left out, and why."""
    faults: list[str] = []
    addresses: dict[Family, bytes] = {}
    for text in _addresses(node):
        try:
            packed = parse_address(text)
        except ValueError as error:
            faults.append(f"status.addresses: {error}")
            continue
        addresses.setdefault(Family.of(packed), packed)
    cidrs: dict[int, Network] = {}
    texts = (node.spec.pod_cidrs or [node.spec.pod_cidr]) if node.spec else []
    for text in filter(None, texts):
        try:
            network = parse_network(text)
        except ValueError as error:
            faults.append(f"spec.podCIDRs: {error}")
            continue
        cidrs.setdefault(network.version, network)
    zone = (node.metadata.labels or {}).get(ZONE_LABEL, "")
    info = NodeInfo(zone, tuple(addresses.values()), tuple(cidrs.values()), _is_eligible(node), uid=node.metadata.uid)
    return info, faults


def node_ips(node: NodeInfo | None, bound: Sequence[bytes]) -> tuple[bytes, ...]:
    """The IPs that count as this node's, packed, at most one of each family, that of the primary family first.

    bound: what the configuration says they are (bindAddress), which goes before what the Node says.
    """
    families = {Family.of(address) for address in bound}
    return (*bound, *(a for a in (node.addresses if node else ()) if Family.of(a) not in families))


def _addresses(node: Node) -> Iterator[str]:
    """In the order in which they count."""
    entries = (node.status.addresses if node.status else None) or ()
    for type_ in ("InternalIP", "ExternalIP"):
        yield from (entry.address for entry in entries if entry.type == type_)


def _is_eligible(node: Node) -> bool:
    taints = (node.spec.taints if node.spec else None) or ()
    return not node.metadata.deletion_timestamp and all(taint.key != TO_BE_DELETED for taint in taints)
