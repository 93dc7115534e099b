"""What this node is like, for the checks: read in the network namespace of the calling thread, nothing is changed."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from proxy.addresses import Network
from proxy.detect.host_files import HostFiles
from proxy.detect.interfaces import addresses
from proxy.detect.kernel_support import KernelFiles
from proxy.detect.netlink import NETLINK_ROUTE, Netlink
from proxy.detect.processes import RunningProxy
from proxy.migrate import accounting, cni, iptables_facts, listeners
from proxy.migrate.facts import BaseChain, ForwardFilter, Interface, MarkUse, NodeFacts
from proxy.migrate.others import VARIANTS, Others
from proxy.unread import Unread
from rules.netlink import attributes, read_text

SYSCTLS: Final = (
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/route_localnet",
    "net/ipv4/conf/default/route_localnet",
    "net/ipv4/conf/all/arp_ignore",
    "net/ipv4/conf/all/arp_announce",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/conf/default/rp_filter",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/ipv4/vs/conntrack",
    "net/ipv4/vs/conn_reuse_mode",
    "net/ipv4/vs/expire_nodest_conn",
    "net/ipv4/vs/expire_quiescent_template",
    "net/ipv6/conf/all/forwarding",
    "net/ipv6/conf/all/disable_ipv6",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_buckets",
    "net/netfilter/nf_conntrack_tcp_be_liberal",
    "net/netfilter/nf_conntrack_tcp_timeout_established",
    "net/netfilter/nf_conntrack_tcp_timeout_close_wait",
    "net/netfilter/nf_conntrack_udp_timeout",
    "net/netfilter/nf_conntrack_udp_timeout_stream",
)
"""Those that have to do with Services. What a kernel has not is left out."""
PROC_SYS: Final = Path("/proc/sys")
RTM_GETLINK: Final = 18
IFLA_IFNAME: Final = 3
_IFINFOMSG = struct.Struct("=BxHiII")


def read(
    files: HostFiles,
    running: Sequence[RunningProxy],
    chains: tuple[BaseChain, ...],
    others: Others,
    pods: Sequence[Network],
) -> tuple[NodeFacts, list[Unread]]:
    """files: the machine's. running: as processes.scan gives it. chains: as base_chains gives them. others: what was read of
    iptables. pods: their ranges, as far as they are known. `missing_features` is left to proof.missing_features."""
    unread: list[Unread] = []
    there = _interfaces(unread)
    values = sysctls()
    networks = cni.names(files, [interface.name for interface in there])
    marked = {mark.program for mark in others.marks}
    facts = NodeFacts(
        kernel=os.uname().release,
        interfaces=there,
        listeners=listeners.read(),
        sysctls=values,
        conntrack_count=_number(values.pop("net/netfilter/nf_conntrack_count", "")),
        conntrack_max=_number(values.get("net/netfilter/nf_conntrack_max", "")),
        chains=chains,
        forward=_forward(chains, others, pods),
        translations=tuple(others.translations),
        marks=(*others.marks, *_defaults(networks, marked)),
        localhost_packets=_localhost(unread),
        cni=networks,
        platform=platform(files, running),
    )
    return facts, unread


def sysctls(root: Path = PROC_SYS) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in SYSCTLS:
        try:
            found[name] = (root / name).read_text().strip()
        except OSError:
            continue
    return found


def platform(files: HostFiles, running: Sequence[RunningProxy]) -> Literal["kubeadm", "k3s", "rke2", ""]:
    """By what runs, and by the files that each has; "" where nothing tells."""
    programs = {process.program for process in running}
    for name in ("rke2", "k3s"):
        if name in programs or _names(files, f"/etc/rancher/{name}") or _names(files, f"/var/lib/rancher/{name}"):
            return name
    if "kubeadm-flags.env" in _names(files, "/var/lib/kubelet") or "bootstrap-kubelet.conf" in _names(
        files, "/etc/kubernetes"
    ):
        return "kubeadm"
    return ""


def _interfaces(unread: list[Unread]) -> tuple[Interface, ...]:
    try:
        with Netlink(NETLINK_ROUTE) as netlink:
            names = dict(netlink.dump(RTM_GETLINK, _IFINFOMSG.pack(0, 0, 0, 0, 0), read_link))
        of = addresses()
    except (OSError, ValueError) as error:
        unread.append(Unread("interfaces and their addresses", str(error), "allow AF_NETLINK sockets"))
        return ()
    return tuple(Interface(name, tuple(sorted(of.get(index, ())))) for index, name in names.items())


def read_link(body: memoryview) -> tuple[int, str]:
    """Index and name. Raises ValueError, LookupError, struct.error."""
    index = _IFINFOMSG.unpack_from(body)[2]
    return index, read_text(dict(attributes(body[_IFINFOMSG.size :]))[IFLA_IFNAME])


def _forward(chains: Sequence[BaseChain], others: Others, pods: Sequence[Network]) -> tuple[ForwardFilter, ...]:
    found = others.forward(pods)
    seen = {(variant, family.nft) for variant, family in others.seen}
    for chain in chains:
        known = (VARIANTS.get(chain.program), chain.family) in seen or others.tables.knows(chain)
        rejects = chain.policy == "drop" or chain.program == "firewalld"  # whose last rule rejects
        if chain.hook == "forward" and chain.kind == "filter" and rejects and not known:
            place = f"chain {chain.family} {chain.table} {chain.name}"
            found.append(ForwardFilter(place, "unknown", apart=chain.program not in VARIANTS))
    return tuple(found)


def _defaults(networks: Sequence[str], marked: set[str]) -> tuple[MarkUse, ...]:
    """Of those whose rules were not seen."""
    return cni.marks([name for name in networks if name not in marked])


def _localhost(unread: list[Unread]) -> int | None:
    try:
        return accounting.packets(iptables_facts.LOCALHOST_COUNTER, KernelFiles().presence)
    except OSError as error:
        unread.append(Unread("kube-proxy's counter of NodePorts at localhost", str(error)))
        return None


def _names(files: HostFiles, directory: str) -> list[str]:
    try:
        return files.names(directory)
    except OSError:
        return []


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def elsewhere(kernel: str) -> NodeFacts:
    """Of a node that this machine is not. kernel: as its Node tells it."""
    return NodeFacts(is_this_node=False, kernel=kernel)
