"""This node as the data plane sees it. Pure."""

from __future__ import annotations

from msgspec import Struct

from proxy.addresses import Network, parse_address, parse_network
from proxy.model import Node
from rules.objects import Family

ZONE_LABEL = "topology.kubernetes.io/zone"


class NodeInfo(Struct, frozen=True):
    """addresses: the first InternalIP of each family, packed. pod_cidrs: of either family, at most one each."""

    zone: str = ""
    addresses: tuple[bytes, ...] = ()
    pod_cidrs: tuple[Network, ...] = ()


def read_node(node: Node) -> tuple[NodeInfo, list[str]]:
    """The Node, and what of it had to be left out, and why."""
    faults: list[str] = []
    addresses: dict[Family, bytes] = {}
    for entry in (node.status.addresses if node.status else None) or ():
        if entry.type != "InternalIP":
            continue
        try:
            packed = parse_address(entry.address)
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
    return NodeInfo(zone, tuple(addresses.values()), tuple(cidrs.values())), faults
