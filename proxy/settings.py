"""What of the configuration the rules depend on, together with this node. Pure."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Iterable

from msgspec import Struct

from proxy.config import Config, NodePortAddresses
from proxy.nodes import NodeInfo
from rules.layout import Options
from rules.objects import Family


class Settings(Struct, frozen=True):
    """options: without what the Node decides. node_cidr: local pods are known by the Node's podCIDRs."""

    options: Options = Options()
    node_cidr: bool = False
    node_ports: NodePortAddresses = NodePortAddresses(primary=True)

    def options_on(self, node: NodeInfo | None) -> Options | None:
        """The table's options on this node; None: the Node has no podCIDRs yet, without which pods cannot be told."""
        if not self.node_cidr:
            return self.options
        if node is None or not node.pod_cidrs:
            return None
        return dataclasses.replace(self.options, local_networks=node.pod_cidrs)

    @property
    def follows_addresses(self) -> bool:
        """Whether NodePorts depend on the addresses of the node's interfaces."""
        return bool(self.node_ports.cidrs)

    def nodeport_ips(self, node: NodeInfo | None, local: Iterable[bytes]) -> dict[Family, frozenset[bytes]]:
        """Where NodePorts answer; local: the addresses of all interfaces, packed. Never on loopback: packets to it do
        not leave the node, and cannot be led elsewhere."""
        found: dict[Family, set[bytes]] = {family: set() for family in Family}
        if self.node_ports.primary and node:
            for packed in node.addresses:
                found[Family.of(packed)].add(packed)
        if self.node_ports.cidrs:
            for packed in local:
                address = ipaddress.ip_address(packed)
                if not address.is_loopback and any(address in cidr for cidr in self.node_ports.cidrs):
                    found[Family.of(packed)].add(packed)
        return {family: frozenset(addresses) for family, addresses in found.items()}


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
    )
