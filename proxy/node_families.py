"""Which IP families this node has, and what of the configuration does not go with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog
from msgspec import Struct

from proxy.addresses import Network
from proxy.config import Config
from rules.objects import Family

LOG = structlog.get_logger()

PROC: Final = Path("/proc")
NAMES: Final = {Family.IPV4: "IPv4", Family.IPV6: "IPv6"}


def missing(proc: Path = PROC) -> dict[Family, str]:
    """The families that the network namespace of this thread has not, and why; never both. Reads /proc."""
    cause = _no_ipv6(proc)
    if cause:
        return {Family.IPV6: cause}
    if not (proc / "sys/net/ipv4").exists():
        return {Family.IPV4: "this kernel has no IPv4: there is no /proc/sys/net/ipv4"}
    return {}


def _no_ipv6(proc: Path) -> str:
    """Why there is no IPv6; "": there is."""
    try:
        addresses = (proc / "thread-self/net/if_inet6").read_text()
    except OSError:
        return "this kernel has no IPv6, or it is switched off (ipv6.disable=1): there is no /proc/net/if_inet6"
    try:
        switch = (proc / "sys/net/ipv6/conf/all/disable_ipv6").read_text()
    except OSError:
        return ""
    # The switch for all interfaces sets each one's own; if one was switched on again after that, it has an address.
    if switch.strip() == "1" and not addresses.strip():
        return "IPv6 is switched off: net.ipv6.conf.all.disable_ipv6 is 1, and no interface has an IPv6 address"
    return ""


def report_missing(causes: Mapping[Family, str]) -> None:
    """Say once that a family is left out. causes: as `missing` gives them, or a failed probe of nftables."""
    for family, cause in causes.items():
        LOG.info(
            "ip_family_left_out",
            family=NAMES[family],
            cause=cause,
            then="Services and their ports of this family are left out without a word",
            remedy="none needed, unless the cluster uses it: then switch it on and start the agent again",
        )


class Concern(Struct, frozen=True):
    """Something of the configuration, or of the Node, that hardly means what it says. field: its name there."""

    field: str
    cause: str
    remedy: str


def concerns(
    config: Config, families: Collection[Family], ips: Sequence[bytes], pod_cidrs: Sequence[Network]
) -> list[Concern]:
    """What kube-proxy calls a configuration that may be incomplete or incorrect. Pure.

    families: those that this node has. ips, pod_cidrs: see proxy.nodes.node_ips and NodeInfo; the family of the first
    IP is the node's primary one.
    """
    found = [*_of_bind_addresses(config, families)]
    if not ips:
        return found
    primary = Family.of(ips[0])
    if primary not in families:
        found.append(
            Concern(
                "status.addresses of the Node",
                f"the node's first IP is {NAMES[primary]}, which is left out here",
                f"switch {NAMES[primary]} on, or give the node another first IP (kubelet's --node-ip)",
            )
        )
    found += _of_local_pods(config, primary, pod_cidrs)
    found += _of_node_ports(config, primary, pod_cidrs)
    return found


def _of_bind_addresses(config: Config, families: Collection[Family]) -> list[Concern]:
    given = [("bindAddress", str(address)) for address in config.bind_address]
    for field, bind in (
        ("healthzBindAddress", config.healthz_bind_address),
        ("metricsBindAddress", config.metrics_bind_address),
    ):
        if bind and bind.host:
            given.append((field, bind.host))
    return [
        Concern(field, f"{host} is {NAMES[family]}, which this node does not have", "set an address of another family")
        for field, host in given
        for family in [Family.IPV6 if ":" in host else Family.IPV4]
        if family not in families and host not in ("0.0.0.0", "::")
    ]


def _of_local_pods(config: Config, primary: Family, pod_cidrs: Sequence[Network]) -> list[Concern]:
    ranges: Sequence[Network]
    if config.detect_local_mode == "ClusterCIDR":
        field, ranges = "clusterCIDR", [n for n in (config.cluster_cidr.v4, config.cluster_cidr.v6) if n]
    elif config.detect_local_mode == "NodeCIDR" and pod_cidrs:
        field, ranges = "spec.podCIDRs of the Node", pod_cidrs
    else:
        return []
    if primary in _families(ranges):
        return []
    has = "only a range of the other family" if ranges else "no range"
    return [
        Concern(
            field,
            f"it has {has}, and the node's first IP is {NAMES[primary]}: traffic of local pods is not told from other",
            f"give it the pods' {NAMES[primary]} range, or set another detectLocalMode",
        )
    ]


def _of_node_ports(config: Config, primary: Family, pod_cidrs: Sequence[Network]) -> list[Concern]:
    given = config.node_port_addresses
    if given.primary or not given.cidrs:
        return []
    have = _families(given.cidrs)
    dual = (config.cluster_cidr.v4 and config.cluster_cidr.v6) or len(_families(pod_cidrs)) > 1
    lacking = [f for f in Family if f not in have and (f is primary or dual)]
    return [
        Concern(
            "nodePortAddresses",
            f"it has no range of {NAMES[family]}: NodePorts answer on all {NAMES[family]} addresses",
            "add a range of this family, or set it to [primary]",
        )
        for family in lacking
    ]


def _families(networks: Sequence[Network]) -> frozenset[Family]:
    return frozenset(Family.of_version(network.version) for network in networks)
