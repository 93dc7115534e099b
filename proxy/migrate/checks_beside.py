"""What the live rules do beside leading to endpoints: masquerading, drops, health checks, weights, other servers. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator

from proxy.migrate.case import Case, finding
from proxy.migrate.compare import UNEVEN, excluded
from proxy.migrate.entries import EVERYBODY, Beside
from proxy.migrate.outcomes import merged
from proxy.migrate.report import Finding
from proxy.migrate.wording import NAMES, endpoint_text, label, many, range_text, service_of, services
from proxy.model import ENDPOINT_SLICE, SERVICE, SERVICE_CIDR
from rules.elements import Sources, address_of, address_range, describe_key, family_of, node_port_key
from rules.objects import PROTOCOLS, Family

_ALL = "not at all: all are masqueraded"


def pods(case: Case) -> Iterator[Finding]:
    """How pods are told from others, which are masqueraded on their way to clusterIPs."""
    options = case.ours.settings.options_on(case.ours.state.node)
    section = "nftables" if case.mode == "nftables" else "iptables"
    all_ = case.section(section).get("masqueradeAll") is True
    if options is None or not case.facts.here.is_this_node:
        return
    found = []
    for family in Family:
        now = _beside(case).pods.get(family.nft)
        version = 4 if family is Family.IPV4 else 6
        then = [str(network) for network in options.local_networks if network.version == version]
        then += [options.local_interface] if options.local_interface else []
        then += [f"{options.local_interface_prefix}*"] if options.local_interface_prefix else []
        then = [EVERYBODY] if all_ else then
        if now is not None and now not in (then or [""]):
            words = [_ALL if one == EVERYBODY else one or "not at all" for one in (now, *(then or [""]))]
            found.append(f"{NAMES[family]}: now {words[0]}, then {', '.join(words[1:])}")
    if found:
        yield finding(
            "masquerade-source",
            "change",
            "The rules that are there now tell pods from others in another way than the configuration",
            "What comes to a clusterIP from elsewhere is masqueraded, and what comes from pods is not: "
            + "; ".join(found)
            + ". Without it, answers to clients that are no pods can go astray; with a wrong one, pods are masqueraded.",
            "see which is right: clusterCIDR and detectLocalMode of the configuration, or the rules; starting the proxy that"
            " runs again writes them anew",
            found,
        )


def hairpins(case: Case) -> Iterator[Finding]:
    """Endpoints of this node that could not connect to themselves through their Service."""
    there = _beside(case).hairpins
    if there is None or ENDPOINT_SLICE in case.ours.unread or not case.ours.knows_node:
        return
    size = {len(key) for key in there}
    missing: dict[str, None] = {}
    known = {entry.key: entry for entry in case.live.entries} if case.live else {}
    for key, port in case.ours.ports.items():
        entry = known.get(key)
        if entry is None or not port.hairpins:
            continue
        protocol = key[-8:-7]
        for endpoint in (*port.endpoints, *port.local):
            address = endpoint[:-4]
            if address not in port.hairpins or address in case.ours.nodeless or endpoint not in entry.endpoints:
                continue
            if protocol + endpoint not in there and (len(endpoint) + 1 in size or not size):
                missing[f"{port.name}: {endpoint_text(endpoint)}"] = None
    if missing:
        yield finding(
            "hairpin-rules",
            "change",
            "Endpoints that cannot reach themselves through their Service today",
            "The rules that are there now do not masquerade such connections of them, as the proxy's mode does. Here they are.",
            "nothing for kube-proxy-nft; starting the proxy that runs again mends its rules",
            list(missing),
        )


def health_checks(case: Case) -> Iterator[Finding]:
    """Ports that are let in for load balancers' health checks."""
    there = _beside(case).health_checks
    if there is None or SERVICE in case.ours.unread:
        return
    wanted: dict[bytes, str] = {}
    for name, info in case.ours.services.items():
        for family in {family_of(port.key) for port in info.ports} if info.health_check_port else ():
            wanted[node_port_key(family, PROTOCOLS["TCP"], info.health_check_port)] = "/".join(name)
    found = [f"Service {wanted[key]}: {describe_key(key)} is not let in" for key in wanted.keys() - there]
    found += [f"{describe_key(key)} is let in, and is no Service's" for key in there - wanted.keys()]
    if found:
        yield finding(
            "health-check-rules",
            "change",
            "The rules that are there now let in other ports for health checks than the Services have",
            "healthCheckNodePort tells a load balancer whether this node has endpoints. The rules have not followed the"
            " objects, or were changed. kube-proxy-nft answers at the ports that the objects have, and writes no rule that"
            " accepts: a firewall of the node has to let them in.",
            "see that the load balancer asks the right port, and that nothing else drops it",
            sorted(found),
        )


def dropped(case: Case) -> Iterator[Finding]:
    """Ranges of clusterIPs whose unused addresses are dropped."""
    there = _beside(case).dropped
    if there is None or SERVICE_CIDR in case.ours.unread or not case.ours.state.service_cidrs:
        return
    here = [address_range(network) for network in case.ours.state.service_cidrs]
    now, then = set(_by_family(there)), set(_by_family(here))
    if now != then:
        yield finding(
            "unallocated-ranges",
            "change",
            "The rules that are there now drop other ranges of clusterIPs than the ServiceCIDRs",
            f"What is sent to an address of them that no Service has is dropped: now {_ranges(now)}, then {_ranges(then)}.",
            "see which is right: the ServiceCIDRs, or the rules; starting the proxy that runs again writes them anew",
            [range_text(*one) for one in sorted(now ^ then)],
        )


def uneven(case: Case) -> Iterator[Finding]:
    """Endpoints that get more than their share."""
    names = case.comparison.explained.get(UNEVEN, [])
    if names:
        number = len({service_of(name) for name in names})
        yield finding(
            UNEVEN,
            "change",
            f"Endpoints of {many(number, 'Service')} have shares of their own",
            "No mode of kube-proxy makes a difference between endpoints (in IPVS all weights are 1, or 0 for those that"
            " terminate): somebody has changed the rules. Here each gets as many connections as the others.",
            "see who wants it and why; to take an endpoint out of service, make it not ready",
            services(map(service_of, names)),
        )


def strays(case: Case) -> Iterator[Finding]:
    """Virtual servers of IPVS that no Service has, at addresses that are not kube-proxy's."""
    ranges = excluded(case.facts.present)
    found = []
    for key in _beside(case).strays:
        address = ipaddress.ip_address(address_of(key))
        if not any(address in network for network in ranges):
            port = case.ours.ports.get(key)
            found.append(label(port.name if port else "", key))
    if found:
        yield finding(
            "ipvs-other-servers",
            "change",
            f"{many(len(found), 'virtual server')} of IPVS that no Service explains",
            "Their addresses are not on kube-ipvs0, and ipvs.excludeCIDRs does not have them: they are left over, or another"
            " program's (keepalived). kube-proxy-nft leaves them as they are, and IPVS may get connections before its rules.",
            "see whose they are; take away those that are nobody's with ipvsadm --delete-service",
            found,
        )


def _beside(case: Case) -> Beside:
    return case.live.beside if case.live else Beside()


def _by_family(ranges: Iterable[tuple[bytes, bytes]]) -> Sources:
    found = list(ranges)
    return tuple(one for size in (4, 16) for one in merged(r for r in found if len(r[0]) == size))


def _ranges(ranges: Iterable[tuple[bytes, bytes]]) -> str:
    return ", ".join(range_text(*one) for one in sorted(ranges)) or "none"
