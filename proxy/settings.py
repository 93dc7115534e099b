"""What of the configuration the rules depend on, together with this node. Pure."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from proxy.config import Config, NodePortAddresses
from proxy.nodes import NodeInfo, node_ips
from rules.layout import Options
from rules.objects import Family

LOOPBACK6: Final = bytes(15) + b"\1"


class Settings(Struct, frozen=True):
    """options: without what the Node decides. node_cidr: local pods are known by the Node's podCIDRs.
    bound: addresses that count as the node's whatever the Node says, packed, at most one of each family."""

    options: Options = Options()
    node_cidr: bool = False
    node_ports: NodePortAddresses = NodePortAddresses(primary=True)
    bound: tuple[bytes, ...] = ()

    def options_on(self, node: NodeInfo | None) -> Options | None:
        """The table's options on this node; None: the Node has no podCIDRs yet, without which pods cannot be told."""
        if not self.node_cidr:
            return self.options
        if node is None or not node.pod_cidrs:
            return None
        return dataclasses.replace(self.options, local_networks=node.pod_cidrs)

    @property
    def follows_addresses(self) -> bool:
        """Whether NodePorts can depend on the addresses of the node's interfaces."""
        return bool(self.node_ports.cidrs) or (self.node_ports.primary and not any(map(_usable, self.bound)))

    def nodeport_ips(self, node: NodeInfo | None, local: Iterable[bytes]) -> dict[Family, frozenset[bytes]]:
        """Where NodePorts answer; local: the addresses of all interfaces, packed. Never on loopback: packets to it do
        not leave the node, and cannot be led elsewhere."""
        found: set[bytes] = set()
        if self.node_ports.primary:
            found.update(filter(_usable, node_ips(node, self.bound)))
            if (
                node and node.exists and not found
            ):  # it has no IP (yet): as kube-proxy then does, so that NodePorts work
                found.update(filter(_usable, local))
        if self.node_ports.cidrs:
            found.update(packed for packed in filter(_usable, local) if self._is_selected(packed))
        return {family: frozenset(a for a in found if Family.of(a) is family) for family in Family}

    def _is_selected(self, packed: bytes) -> bool:
        address = ipaddress.ip_address(packed)
        of_family = [cidr for cidr in self.node_ports.cidrs if cidr.version == address.version]
        if not of_family and not self.node_ports.primary:
            return True  # as in kube-proxy: who lists ranges of one family only says nothing of the other
        return any(address in cidr for cidr in of_family)


def _usable(packed: bytes) -> bool:
    return packed[0] != 127 if len(packed) == 4 else packed != LOOPBACK6


def settings(config: Config) -> Settings:
    """The same with kube-proxy's names for it."""
    mode, cidr = config.detect_local_mode, config.cluster_cidr
    return Settings(
        Options(
            masquerade_mark=1 << config.nftables.masquerade_bit,
            masquerade_all=config.nftables.masquerade_all,
            local_networks=tuple(n for n in (cidr.v4, cidr.v6) if n) if mode == "ClusterCIDR" else (),
            local_interface=config.detect_local.bridge_interface if mode == "BridgeInterface" else "",
            local_interface_prefix=config.detect_local.interface_name_prefix if mode == "InterfaceNamePrefix" else "",
        ),
        node_cidr=mode == "NodeCIDR",
        node_ports=config.node_port_addresses,
        bound=tuple(address.packed for address in config.bind_address if not address.is_unspecified),
    )
