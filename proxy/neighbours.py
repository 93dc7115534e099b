"""Says once who else has nat chains at the hooks and priorities of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import structlog

from rules.errors import KernelUnreachable
from rules.lookout import Lookout
from rules.neighbours import Neighbour

LOG = structlog.get_logger()

MAX_TOLD: Final = 64
"""So many chains are told of; somebody who makes new ones all the time is not to fill the log."""

CAUSE: Final = (
    "its nat chains have the hooks and priorities of ours: the kernel asks those first that were made last,"
    " and the first one that translates a connection decides"
)
_CALM: Final = "no harm, as long as its rules leave alone what is for Services"
_ALARM: Final = "see that its rules leave alone what is for Services, or give its chains another priority"
_RIVAL: Final = "keep kube-proxy off this node, and remove its rules (kube-proxy-nft cleanup --kube-proxy)"

IPTABLES: Final = frozenset({("ip", "nat"), ("ip6", "nat")})
"""What iptables' nat tables are called in nftables; programs share them."""
CHAINS: Final = ("PREROUTING", "OUTPUT", "POSTROUTING")

_SHARERS: Final = {
    "KUBE-SERVICES": "kube-proxy",
    "KUBE-KUBELET-CANARY": "kubelet",
    "cali-PREROUTING": "Calico",
    "CILIUM_PRE_nat": "Cilium",
    "OLD_CILIUM_PRE_nat": "Cilium (left over)",
    "FLANNEL-POSTRTG": "flannel",
    "CNI-HOSTPORT-DNAT": "CNI portmap",
    "DOCKER": "Docker",
    "NETAVARK-HOSTPORT-DNAT": "Podman",
    "ISTIO_OUTPUT": "Istio",
    "LIBVIRT_PRT": "libvirt",
}
"""Of iptables' nat table: a chain that a program has there, and the program."""

_OWNERS: Final = {
    "aws-cni": "Amazon VPC CNI",
    "calico": "Calico",
    "cni_hostport": "CNI portmap",
    "cni_plugins_masquerade": "CNI plugins",
    "docker-bridges": "Docker",
    "firewalld": "firewalld",
    "flannel-ipv4": "flannel",
    "flannel-ipv6": "flannel",
    "incus": "Incus",
    "istio-ambient-nat": "Istio",
    "istio-proxy-nat": "Istio",
    "kube-ovn": "Kube-OVN",
    "libvirt_network": "libvirt",
    "lxd": "LXD",
    "netavark": "Podman",
}
"""Tables by name, and whose they are. That they do not touch Services is their business."""

KUBE_PROXY: Final = "kube-proxy"
"""Its table's name: two proxies for the same Services."""


class Neighbours:
    """For one thread; its network namespace counts."""

    def __init__(self, lookout: Callable[[], Lookout] = Lookout) -> None:
        self._lookout = lookout
        self._told: set[Neighbour] = set()

    def look(self) -> None:
        """Look who is there. To be called when messages about new chains may have been missed."""
        try:
            with self._lookout() as lookout:
                self.came(lookout.neighbours())
        except KernelUnreachable as error:
            LOG.debug("nat_neighbours_not_read", cause=str(error))

    def came(self, chains: Iterable[Neighbour]) -> None:
        """Tell of those that have not been told of."""
        by_table: dict[tuple[str, str], list[Neighbour]] = {}
        for chain in chains:
            if chain in self._told or len(self._told) >= MAX_TOLD:
                continue
            self._told.add(chain)
            by_table.setdefault((chain.family, chain.table), []).append(chain)
            if len(self._told) == MAX_TOLD:
                LOG.warning("nat_neighbours_too_many", told=MAX_TOLD, then="no more are told of", remedy=_ALARM)
        for (family, table), found in by_table.items():
            self._tell(family, table, found)

    def _tell(self, family: str, table: str, chains: list[Neighbour]) -> None:
        fields: dict[str, object] = {
            "family": family,
            "table": table,
            "chains": [f"{c.chain} ({c.hook})" for c in chains],
        }
        if (family, table) in IPTABLES and all(chain.chain in CHAINS for chain in chains):
            sharers = self._sharers(family)
            fields |= {"program": "iptables", "used_by": sharers, "cause": CAUSE}
            if "kube-proxy" in sharers:
                LOG.warning("nat_neighbour", **fields, remedy=_RIVAL)
            else:
                LOG.info("nat_neighbour", **fields, then=_CALM)
        elif table in _OWNERS:
            LOG.info("nat_neighbour", **fields, program=_OWNERS[table], cause=CAUSE, then=_CALM)
        elif table == KUBE_PROXY:
            LOG.warning("nat_neighbour", **fields, program="kube-proxy", cause=CAUSE, remedy=_RIVAL)
        else:
            LOG.warning("nat_neighbour", **fields, program="unknown", cause=CAUSE, remedy=_ALARM)

    def _sharers(self, family: str) -> list[str]:
        """Who has chains in iptables' nat table, of those that are known. One question for each."""
        try:
            with self._lookout() as lookout:
                return [who for chain, who in _SHARERS.items() if lookout.has(family, "nat", chain)]
        except KernelUnreachable:
            return []
