"""NodePorts: at which addresses they answer, there and here; ports that another program has. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final

from proxy.config_values import BadValue, HostPort, NodePortAddresses, node_port_addresses
from proxy.forwarder_policy import loopback_families
from proxy.migrate.case import IPTABLES_BASED, PROXIES, Case, finding
from proxy.migrate.compare import mute_families
from proxy.migrate.ours import node_addresses
from proxy.migrate.report import Finding, Severity
from proxy.migrate.wording import NAMES, many, some
from rules.elements import describe_key, family_of
from rules.objects import Family
from rules.packed import address_text

_LOOPBACK: Final = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
_INSIDE: Final = re.compile(
    r"(cni|cali|vxlan\.|tunl|flannel|cilium_|lxc|kube-bridge|weave|antrea|docker|br-[0-9a-f]{12}|virbr|podman|veth|nodelocaldns)"
)
_KEEP: Final = 'nodePortAddresses: ["0.0.0.0/0", "::/0"]'


def addresses(case: Case) -> Iterator[Finding]:
    """Addresses of the node at which NodePorts answer now, and would not any more; and the other way round."""
    if not any(case.node_ports()):
        return
    mute = mute_families(case.live, case.ours) if case.live else frozenset()
    if mute & {family_of(port.key) for port in case.node_ports()}:
        yield finding(
            "nodeport-addresses",
            "change",
            f"NodePorts answer at no {' and no '.join(NAMES[family] for family in sorted(mute))} address of this node now",
            "The rules that are there now have the ports, and an empty set of addresses (nodeport-ips). Either the proxy that"
            f" runs does not know the node's addresses, or somebody has taken them out. Here they will answer at {_ours(case)}.",
            "look at that proxy's log and nodePortAddresses; starting it again fills the set",
        )
        return
    known = _lost_and_gained(case)
    lost, gained = known or ([], [])
    if lost:
        yield finding(
            "nodeport-addresses",
            "notice" if _are_inside(case, lost) else "change",
            f"NodePorts will not answer at {many(len(lost), 'address')} of this node",
            f"They answer at {_where(case)} now. kube-proxy-nft, as kube-proxy's nftables mode, takes the node's primary"
            f" addresses where nodePortAddresses is not set: {_ours(case)}.",
            f"where clients use the others, set {_KEEP}, or the ranges that you need, before the switch",
            [address_text(address) for address in lost],
        )
    elif gained:
        yield finding(
            "nodeport-addresses",
            "notice",
            f"NodePorts will answer at {many(len(gained), 'more address')} of this node",
            "The rules that are there now do not have them.",
            "list in nodePortAddresses what you want",
            [address_text(address) for address in gained],
        )
    elif known is None and case.mode in IPTABLES_BASED and not _configured(case):
        yield finding(
            "nodeport-addresses",
            "notice",
            "NodePorts will answer at the node's primary addresses only",
            f"In {case.mode} mode they answer at all addresses where nodePortAddresses is not set; here, as in nftables mode,"
            " at the Node's InternalIPs. At which addresses they answer now was not read.",
            f"where clients use others, set {_KEEP} before the switch",
        )


def localhost(case: Case) -> Iterator[Finding]:
    """NodePorts at 127.0.0.1, which iptables mode has."""
    ports = list(case.node_ports())
    if case.mode != "iptables" or not ports or not _has_localhost(case):
        return
    ours = loopback_families(case.ours.settings.node_ports.cidrs)
    others = [p for p in ports if p.key[-8] != 6]
    if Family.IPV4 in ours:
        if others:
            yield finding(
                "localhost-nodeports",
                "notice",
                "NodePorts on localhost will answer for TCP only",
                "nodePortAddresses lists localhost, so kube-proxy-nft forwards TCP there itself (KEP-6032). UDP and SCTP"
                " have no such forwarder.",
                "let clients of these ports use the node's address",
                sorted({describe_key(p.key) for p in others if family_of(p.key) is Family.IPV4}),
                "KEP-6032",
            )
        return
    packets = case.facts.here.localhost_packets
    severity, used = _use_of_localhost(case)
    yield finding(
        "localhost-nodeports",
        severity,
        "NodePorts will not answer on localhost any more" + (", where they are used" if packets else ""),
        f"In iptables mode a NodePort answers at 127.0.0.1 of every node, IPv4 only. {used}",
        "list localhost in nodePortAddresses ([primary, localhost]) and TCP is forwarded there; or let clients use the"
        " node's address; a registry mirror on localhost:NODEPORT is the usual case",
        sorted({describe_key(p.key) for p in ports if family_of(p.key) is Family.IPV4}),
        "KEP-6032",
    )


def _use_of_localhost(case: Case) -> tuple[Severity, str]:
    packets = case.facts.here.localhost_packets
    if packets:
        connections = many(packets, "connection")
        return "change", f"{connections} took that way since the rules were made (counter localhost_nps_accepted_pkts)."
    if case.facts.here.sysctls.get("net/ipv4/conf/all/route_localnet") == "0":
        return (
            "info",
            "The kernel does not let them now: net.ipv4.conf.all.route_localnet, which kube-proxy sets, is 0.",
        )
    if packets == 0:
        return "notice", "Nothing used that since the rules were made (counter localhost_nps_accepted_pkts)."
    return "notice", "Whether anything uses that is not known: it is not counted there, or the counter was not read."


def health_check_ports(case: Case) -> Iterator[Finding]:
    """healthCheckNodePorts that a program other than the proxy listens at."""
    listeners = {one.port: one for one in case.facts.here.listeners if one.protocol == "TCP"}
    taken = []
    for (namespace, name), info in case.ours.services.items():
        one = listeners.get(info.health_check_port)
        if one and one.program and one.program not in PROXIES:
            taken.append(f"Service {namespace}/{name}: {info.health_check_port}/TCP, taken by {one.program}")
    if taken:
        yield finding(
            "health-check-ports",
            "change",
            f"{many(len(taken), 'healthCheckNodePort')} cannot be served",
            "Another program listens there, so load balancers get its answers and not the proxy's.",
            "stop that program, or give the Service another healthCheckNodePort (make it anew)",
            sorted(taken),
        )


def proxy_ports(case: Case) -> Iterator[Finding]:
    """The ports of healthz and metrics, and who listens there."""
    config = case.ours.config
    wanted = {"healthz": config.healthz_bind_address, "metrics": config.metrics_bind_address}
    others: list[str] = []
    same: list[str] = []
    for what, bind in wanted.items():
        for one in case.facts.here.listeners:
            if bind and one.protocol == "TCP" and one.port == bind.port and _meets(bind, one.address):
                text = f"{what}, {bind.port}/TCP: {one.program or 'a program that could not be seen'}"
                (others if one.program and one.program not in PROXIES else same).append(text)
    if others:
        yield finding(
            "proxy-ports",
            "change",
            "A port that the proxy serves is another program's",
            "kube-proxy-nft tries again until it is free; until then its probes fail.",
            "set healthzBindAddress or metricsBindAddress to another port, and the probes of the DaemonSet with it",
            others,
        )
    elif same:
        yield finding(
            "proxy-ports",
            "info",
            "The proxy that runs has the ports of healthz and metrics",
            "kube-proxy-nft takes them over when that one has ended.",
            "stop the one before the other is to become ready: the plan does so",
            same,
        )


def _lost_and_gained(case: Case) -> tuple[list[bytes], list[bytes]] | None:
    """None: where NodePorts answer there, or here, is not known."""
    local = {a for a in node_addresses(case.facts.here.interfaces) if _counts(a)}
    ours = {a for found in case.ours.node_ports.values() for a in found}
    if case.live is None:
        return None
    if case.live.mode == "kube-proxy-nft" or case.comparison.unknown:
        return [], []
    told = case.live.nodeport_addresses
    if told == ():
        return None  # nowhere: that is damage, and told as such
    anywhere = {len(a) for a in told or () if not any(a)}
    theirs = {a for a in local if told is None or len(a) in anywhere} | {a for a in told or () if any(a) and _counts(a)}
    if not theirs or (not ours and not local):
        return None if told is None else ([], [])
    served = {family_of(port.key) for port in case.node_ports()}
    lost = {a for a in theirs - ours if Family.of(a) in served}
    if case.mode != "ipvs":  # a family without any is damaged, and that is told as such
        served &= {Family.of(a) for a in theirs}
    gained = {a for a in ours - theirs if Family.of(a) in served}
    return sorted(lost), sorted(gained)


def _are_inside(case: Case, addresses: list[bytes]) -> bool:
    """Whether they are of interfaces that lead to pods and containers: hardly anybody goes to a NodePort there."""
    names = {a: one.name for one in case.facts.here.interfaces for a in one.addresses}
    return all(_INSIDE.match(names.get(address, "")) for address in addresses)


def _counts(address: bytes) -> bool:
    """Loopback is another finding; IPv6 link-local is nobody's way to a NodePort."""
    parsed = ip_address(address)
    return not parsed.is_loopback and not (parsed.version == 6 and parsed.is_link_local)


def _where(case: Case) -> str:
    told = case.live.nodeport_addresses if case.live else None
    if told is None:
        return "all addresses of the node"
    return some([address_text(a) if any(a) else f"all {NAMES[Family.of(a)]} addresses of the node" for a in told])


def _ours(case: Case) -> str:
    found = sorted(a for addresses in case.ours.node_ports.values() for a in addresses)
    return some([address_text(a) for a in found]) or "none is known"


def _configured(case: Case) -> NodePortAddresses | None:
    raw = case.facts.present.document.get("nodePortAddresses")
    try:
        return node_port_addresses(raw) if raw else None
    except BadValue:
        return None


def _has_localhost(case: Case) -> bool:
    """Whether the iptables mode that runs lets NodePorts answer on localhost."""
    if case.live and case.live.mode == "iptables":
        return case.live.localhost_nodeports
    if case.section("iptables").get("localhostNodePorts") is False:
        return False
    given = _configured(case)
    return given is None or any(ip_address(_LOOPBACK[Family.IPV4]) in n for n in given.cidrs if n.version == 4)


def _meets(bind: HostPort, address: bytes) -> bool:
    """Whether a listener at this address keeps us from listening there."""
    wanted = ip_address(bind.host)
    return wanted.is_unspecified or not any(address) or wanted.packed == address
