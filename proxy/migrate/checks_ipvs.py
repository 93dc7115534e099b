"""What IPVS mode does that nftables does not, or does otherwise. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from proxy.durations import parse_duration
from proxy.migrate.case import PROXIES, Case, finding
from proxy.migrate.compare import DEFAULT_SCHEDULER
from proxy.migrate.facts import Listener
from proxy.migrate.modes import EVEN, POLICY
from proxy.migrate.modes import SCHEDULER as SCHEDULER_CHECK
from proxy.migrate.ours import IPVS_INTERFACE
from proxy.migrate.report import Finding, Severity
from proxy.migrate.wording import many, service_of, services
from proxy.services import SCHEDULER_ANNOTATION
from rules.elements import address_of, describe_key, is_node_port
from rules.objects import PROTOCOLS
from rules.packed import address_text

FILTERED: Final = (1, 26)
"""Since then kube-proxy refuses what goes to its virtual addresses and is no Service's (kubernetes/kubernetes#108460)."""

_RR: Final = "annotate a Service with kube-proxy-nft/scheduler: rr and its endpoints take turns"
_SH: Final = (
    "annotate a Service with kube-proxy-nft/scheduler: sh and a client stays with its endpoint while the endpoints do"
)
_LEAST: Final = (
    "sends a new connection to where the fewest are (kube-proxy gives every endpoint the weight 1); here it is drawn evenly. Few long connections to"
    " few endpoints can spread unevenly by that; many short ones do not"
)
_FEW: Final = f"most Services need nothing; where a few long connections count, {_RR}"
SCHEDULERS: Final[dict[str, tuple[str, str]]] = {
    "wrr": ("takes turns by weight; kube-proxy gives every endpoint the weight 1, so that is rr", _RR),
    "lc": (_LEAST, _FEW),
    "wlc": (_LEAST, _FEW),
    "sed": ("estimates the shortest delay from the number of connections; here it is drawn evenly", _RR),
    "nq": ("prefers an endpoint without connections; here it is drawn evenly", _RR),
    "dh": ("chooses by the Service's own address, which leads a Service to one endpoint; here all are used", _SH),
    "sh": ("chooses by the client's address; here that is so where an annotation asks for it", _SH),
    "mh": (
        "chooses by the client's address and moves few clients when endpoints change (Maglev); the hash here moves more",
        f"{_SH}; or use sessionAffinity: ClientIP, which moves none",
    ),
    "lblc": ("keeps a destination with an endpoint until that is busy; here it is drawn evenly", _SH),
    "lblcr": ("keeps a destination with a few endpoints until they are busy; here it is drawn evenly", _SH),
}
"""Scheduler -> what it does and what becomes of it; what to use instead."""


def schedulers(case: Case) -> Iterator[Finding]:
    """A scheduler that is not an even one."""
    if case.mode != "ipvs":
        return
    used = dict(case.comparison.schedulers) if case.entries("ipvs") else {}
    if not used:
        used = {str(case.section("ipvs").get("scheduler") or DEFAULT_SCHEDULER): len(case.ours.ports)}
    ports = _by_scheduler(case)
    for scheduler, count in used.items():
        if scheduler in EVEN:
            continue
        what, instead = SCHEDULERS.get(scheduler, ("has no counterpart here; an endpoint is drawn evenly", _RR))
        yield finding(
            SCHEDULER_CHECK,
            "change",
            f"The IPVS scheduler {scheduler} has no counterpart" if scheduler != "sh" else "The IPVS scheduler is sh",
            f"{many(count, 'service port')} {'uses' if count == 1 else 'use'} {scheduler}. It {what}.",
            f"{instead}; sessionAffinity goes before any scheduler",
            services(map(service_of, ports.get(scheduler, ()))),
        )
    if "rr" in used:
        yield finding(
            SCHEDULER_CHECK,
            "info",
            "IPVS takes turns (rr); here an endpoint is drawn at random"
            + ("" if set(used) <= EVEN else f": {many(used['rr'], 'service port')}"),
            "Both spread connections evenly; at random that is so on average.",
            f"nothing; where turns matter, {_RR} ({SCHEDULER_ANNOTATION})",
        )


def _by_scheduler(case: Case) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in case.entries("ipvs"):
        port = case.ours.ports.get(entry.key)
        found.setdefault(entry.scheduler, []).append(port.name if port else entry.name or describe_key(entry.key))
    return found


def virtual_addresses(case: Case) -> Iterator[Finding]:
    """Service addresses that are the node's own, on kube-ipvs0."""
    addresses = _virtual(case)
    if not addresses:
        return
    old = case.version is None or case.version < FILTERED
    ping = (
        "Before 1.26, a ping to them is answered by the node itself, which says nothing of the Service; here it is refused."
        if old
        else "A ping to them is refused there, and here."
    )
    yield finding(
        "ipvs-addresses",
        "notice" if old else "info",
        f"{many(len(addresses), 'Service address')} will not be addresses of this node any more",
        f"IPVS mode gives them to {IPVS_INTERFACE}; nftables needs no interface for them. {ping} A program on the node that"
        " binds to one of them, or a route that is announced because an interface has it, loses it. Connections from the"
        " node to a Service have the node's own address as their source, no longer the Service's.",
        "watch what a Service answers at its port, not with ping; let load balancers announce addresses by themselves",
        [address_text(address) for address in addresses],
    )


def host_services(case: Case) -> Iterator[Finding]:
    """Programs on the node that listen on all addresses, and so on kube-ipvs0's."""
    addresses = _virtual(case)
    listeners = [f"{one.program or 'a program'} at {one.port}/{one.protocol}" for one in _reachable(case, addresses)]
    if not listeners:
        return
    listeners = list(dict.fromkeys(listeners))
    severity: Severity = "info"
    title = "Programs of the node are not reachable through Service addresses, before and after"
    why = f"They listen on all addresses, {IPVS_INTERFACE}'s too; kube-proxy 1.26 and newer refuses that, and so do we."
    if case.version is None or case.version < FILTERED:
        severity = "notice"
        title = "Programs of the node are reachable through Service addresses, and will not be"
        why = (
            f"They listen on all addresses, and {IPVS_INTERFACE} has those of Services: before 1.26, kube-proxy lets"
            " anybody who reaches a Service's address reach them there. Here a port that no Service has is refused."
        )
    remedy = "let clients use the node's address, if anybody relies on it; most never meant to"
    yield finding("ipvs-host-services", severity, title, why, remedy, listeners)


def strict_arp(case: Case) -> Iterator[Finding]:
    """ipvs.strictARP, which MetalLB asks for."""
    if case.mode != "ipvs" or case.section("ipvs").get("strictARP") is not True:
        return
    yield finding(
        "ipvs-strict-arp",
        "info",
        "strictARP is not needed any more",
        f"It keeps the kernel from answering ARP for {IPVS_INTERFACE}'s addresses; without that interface there is nothing"
        " to answer for. MetalLB asks for it in IPVS mode only. The two settings that kube-proxy made"
        " (net.ipv4.conf.all.arp_ignore=1, arp_announce=2) stay until the node is booted.",
        "nothing; leave ipvs.strictARP in the file for the way back",
        tuple(
            f"net.ipv4.conf.all.{name} = {case.facts.here.sysctls[path]}"
            for name in ("arp_ignore", "arp_announce")
            if (path := f"net/ipv4/conf/all/{name}") in case.facts.here.sysctls
        ),
    )


def connections(case: Case) -> Iterator[Finding]:
    """Connections that IPVS tracks itself."""
    found = case.comparison.connections
    total = sum(found.values())
    if not total:
        return
    yield finding(
        "ipvs-connections",
        "change",
        f"{many(total, 'connection')} of {many(len(found), 'Service')} would be cut",
        "IPVS tracks them itself, those that are closing too. They end when its virtual servers are removed; until then"
        " they live on beside our rules. (Connections of iptables and nftables rules outlive them.)",
        "drain the node before the switch, or switch when few connections are open, or let clients connect anew",
        [f"Service {service}: {many(number, 'connection')}" for service, number in found.items()],
    )


def exclude_cidrs(case: Case) -> Iterator[Finding]:
    """ipvs.excludeCIDRs: servers of somebody else."""
    ranges = case.section("ipvs").get("excludeCIDRs")
    if not ranges or not isinstance(ranges, list):
        return
    yield finding(
        "ipvs-exclude-cidrs",
        "notice",
        "Some IPVS servers are another program's",
        "excludeCIDRs keeps kube-proxy from removing virtual servers of these ranges. kube-proxy-nft touches no IPVS while"
        " it runs; `kube-proxy --cleanup` removes all virtual servers, whosever they are.",
        "clean up with `kube-proxy-nft cleanup --kube-proxy`, and look at what it would do with --dry-run first",
        [str(text) for text in ranges],
    )


TIMEOUTS: Final = {
    "tcpTimeout": "conntrack.tcpEstablishedTimeout",
    "tcpFinTimeout": "the sysctl net.netfilter.nf_conntrack_tcp_timeout_fin_wait",
    "udpTimeout": "conntrack.udpTimeout and conntrack.udpStreamTimeout",
}


def timeouts(case: Case) -> Iterator[Finding]:
    """Time-outs of IPVS's own table of connections."""
    section = case.section("ipvs")
    given = {name: str(section[name]) for name in TIMEOUTS if _is_set(section.get(name))}
    if not given or case.mode != "ipvs":
        return
    instead = "; ".join(f"{TIMEOUTS[name]} in the place of ipvs.{name}" for name in given)
    yield finding(
        "ipvs-timeouts",
        "change",
        "Time-outs of IPVS are set, and have no counterpart",
        "They are of IPVS's table of connections. Here the kernel's connection tracking has them all.",
        f"set what you need: {instead}. They then count for every connection of the node",
        [f"ipvs.{name}: {value}" for name, value in given.items()],
    )


def traffic_policy(case: Case) -> Iterator[Finding]:
    """Where IPVS cannot tell traffic from outside from other."""
    names = case.comparison.explained.get(POLICY, [])
    if not names:
        return
    yield finding(
        POLICY,
        "notice",
        f"{many(len(set(map(service_of, names))), 'Service')} with a Local traffic policy will be served as documented",
        "An IPVS server has one list of endpoints for everybody. With externalTrafficPolicy Local, pods and this node will"
        " reach all endpoints of the cluster, as if they came from outside; where no endpoint is on this node, traffic from"
        " outside is dropped (IPVS sends it to other nodes, whose answers get lost). With internalTrafficPolicy Local and"
        " no endpoint here, connections are dropped, not refused or sent elsewhere.",
        "nothing, unless a program relies on it",
        services(map(service_of, names)),
    )


def _virtual(case: Case) -> list[bytes]:
    """Service addresses that this node has; by its interface, else by its virtual servers."""
    here = case.facts.here
    found = {a for interface in here.interfaces if interface.name == IPVS_INTERFACE for a in interface.addresses}
    if not found and case.mode == "ipvs":
        found = {address_of(entry.key) for entry in case.entries("ipvs") if not is_node_port(entry.key)}
    return sorted((a for a in found if not _is_link_local(a)), key=lambda a: (len(a), a))


def _is_link_local(address: bytes) -> bool:
    return len(address) == 16 and address[0] == 0xFE and address[1] & 0xC0 == 0x80


def _reachable(case: Case, addresses: list[bytes]) -> Iterator[Listener]:
    """Listeners on any address whose port is no Service's at one of these addresses at least."""
    virtual = set(addresses)
    taken = Counter((key[-8], key[-4:-2]) for key in case.ours.ports if address_of(key) in virtual)
    for one in case.facts.here.listeners:
        port = PROTOCOLS[one.protocol], one.port.to_bytes(2)
        if not any(one.address) and one.program not in PROXIES and taken[port] < len(addresses):
            yield one


def _is_set(value: object) -> bool:
    if isinstance(value, str):
        try:
            return parse_duration(value) != 0
        except ValueError:
            return bool(value)
    return bool(value)
