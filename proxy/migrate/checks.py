"""All checks, in one table: what each looks for, and how bad it can be. Pure. docs/migrate-checks.md is made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from proxy.migrate import (
    checks_beside,
    checks_config,
    checks_ipvs,
    checks_nat,
    checks_node,
    checks_nodeports,
    checks_packets,
    checks_rules,
    checks_services,
)
from proxy.migrate.case import Case
from proxy.migrate.report import Finding, Severity

SEVERITIES: Final[tuple[Severity, ...]] = ("blocker", "change", "notice", "info")
"""The worst first."""


class Check(NamedTuple):
    """identifiers: of the findings that it makes. severities: that they can have. about: for the documentation."""

    identifiers: tuple[str, ...]
    severities: tuple[Severity, ...]
    about: str
    run: Callable[[Case], Iterator[Finding]]


def _check(identifiers: str, severities: str, about: str, run: Callable[[Case], Iterator[Finding]]) -> Check:
    words = severities.split()
    return Check(tuple(identifiers.split()), tuple(one for one in SEVERITIES if one in words), about, run)


CHECKS: Final[tuple[Check, ...]] = (
    # The node.
    _check("elsewhere", "change", "the report was made on another machine, and knows nothing of the node itself",
           checks_node.elsewhere),
    _check("kernel", "blocker", "Linux 5.13 or newer", checks_node.kernel),
    _check("kernel-features", "blocker", "what nftables needs of the kernel, found by trying", checks_node.features),
    _check("proof", "blocker change", "the kernel accepts the tables, in a network namespace of their own", checks_node.proof),
    _check("forward-filter", "blocker change notice info", "firewalls that drop what is forwarded, once kube-proxy's"
           " own accepting rules (KUBE-FORWARD) are gone", checks_packets.forward_filters),
    _check("conntrack", "change notice", "room in the table of tracked connections", checks_node.conntrack),
    _check("ip-forward", "change info", "the kernel forwards packets, also after the next boot", checks_node.forwarding),
    _check("mark-collision", "change notice",
           "another program's use of the bit of packets' or connections' marks that asks for masquerading",
           checks_packets.mark_collisions),
    _check("nat-priority", "info", "other programs' NAT chains at the same hooks and priorities", checks_packets.nat_chains),
    _check("foreign-nat", "change", "other programs' rules that lead a Service's address elsewhere", checks_nat.foreign),
    _check("proxy-ports", "change info", "who has the ports of healthz and metrics", checks_nodeports.proxy_ports),
    _check("health-check-ports", "change", "healthCheckNodePorts that another program has",
           checks_nodeports.health_check_ports),
    _check("node-missing", "change", "the Node object of this node", checks_services.node_missing),
    _check("no-services", "blocker", "any Services at all", checks_services.no_services),
    # The configuration.
    _check("config-refused", "blocker", "a configuration that kube-proxy-nft does not start with", checks_config.refused),
    _check("config-unknown", "change", "no configuration of the present proxy was found", checks_config.unknown),
    _check("masquerade-bit", "change", "`iptables.masqueradeBit`, which has no effect here", checks_packets.masquerade_bit),
    _check("masquerade-all", "change", "`iptables.masqueradeAll`, which has no effect here", checks_packets.masquerade_all),
    _check("config-doubtful", "notice", "settings that hardly mean what they say on this node", checks_config.doubtful),
    _check("config-without-effect config-unknown-fields", "change notice info", "fields and feature gates without effect here, and"
           " fields that nobody knows", checks_config.fields),
    _check(" ".join(checks_config.DETECTED), "change notice info", "the mode and its future, as"
           " [`detect`](detect.md) tells it", checks_config.detected),
    # IPVS.
    _check("ipvs-scheduler", "change info", "`ipvs.scheduler`: what becomes of it, and what to use instead",
           checks_ipvs.schedulers),
    _check("ipvs-connections", "change", "connections that IPVS tracks, which end with its rules", checks_ipvs.connections),
    _check("ipvs-traffic-policy", "notice", "Local traffic policies, which IPVS cannot tell by the client",
           checks_ipvs.traffic_policy),
    _check("ipvs-addresses", "notice info", "Services' addresses on `kube-ipvs0`: ping, routes, sources",
           checks_ipvs.virtual_addresses),
    _check("ipvs-host-services", "notice info", "programs of the node that are reachable through Services' addresses",
           checks_ipvs.host_services),
    _check("ipvs-strict-arp", "info", "`ipvs.strictARP`, and MetalLB", checks_ipvs.strict_arp),
    _check("ipvs-exclude-cidrs", "notice", "`ipvs.excludeCIDRs`: IPVS servers of others", checks_ipvs.exclude_cidrs),
    _check("ipvs-timeouts", "change", "`ipvs.tcpTimeout`, `tcpFinTimeout`, `udpTimeout`", checks_ipvs.timeouts),
    _check("source-ranges source-ranges-node", "change notice", "`loadBalancerSourceRanges` that mean something else here",
           checks_services.source_ranges),
    # NodePorts.
    _check("nodeport-addresses", "change notice", "NodePorts at all addresses of the node, against the primary ones",
           checks_nodeports.addresses),
    _check("localhost-nodeports", "change notice info", "NodePorts at 127.0.0.1, used or possible", checks_nodeports.localhost),
    # Services.
    _check("external-ips", "notice", "`externalIPs`, deprecated by KEP-5707", checks_services.external_ips),
    _check("address-conflict", "notice", "external addresses that are the node's, or a clusterIP",
           checks_services.address_conflicts),
    _check("claimed-twice", "change", "an address, protocol and port that several Services claim",
           checks_services.claimed_twice),
    _check("objects-left-out", "change", "objects, or parts of them, that cannot be used", checks_services.left_out),
    _check("manifests-unread", "change", "files of `--manifests` that could not be read", checks_services.manifests),
    _check("orphan-slices", "info", "EndpointSlices without their Service", checks_services.orphans),
    _check("no-endpoints", "info", "Services without endpoints: how a refusal looks", checks_services.without_endpoints),
    _check("terminating-endpoints", "info", "Services that only have endpoints that terminate", checks_services.terminating),
    _check("unallocated-cluster-ips", "info", "what is sent to addresses and ports that no Service has",
           checks_services.unallocated),
    _check("session-affinity", "info", "clients are assigned anew once; `SO_PRIORITY`", checks_packets.socket_priority),
    _check("scheduler-annotation", "info", "the annotation `kube-proxy-nft/scheduler`", checks_rules.annotated),
    # The live rules.
    _check("stale-rules", "change", "live rules that are not what the objects ask for", checks_rules.stale),
    _check("rules-damaged", "change", "live rules that cannot be meant: a jump that is gone, a base chain at another"
           " hook, priority or policy, half of a Service's session"
           " affinity", checks_rules.damaged),
    _check("rules-unread", "change", "live rules that could not be read, or not all of them", checks_rules.unread),
    _check("no-rules", "change", "a node without any rules where a proxy is configured", checks_rules.none),
    _check("only-there", "change", "addresses that only the live rules have", checks_rules.only_there),
    _check("only-here", "change notice", "addresses that the live rules lack: most of them, or a few", checks_rules.only_here),
    _check("masquerade-source", "change", "how live rules tell pods from others, against the configuration",
           checks_beside.pods),
    _check("hairpin-rules", "change", "endpoints that live rules do not let reach themselves", checks_beside.hairpins),
    _check("health-check-rules", "change", "ports that live rules let in for health checks, against the Services'",
           checks_beside.health_checks),
    _check("unallocated-ranges", "change", "ranges of clusterIPs that live rules drop, against the ServiceCIDRs",
           checks_beside.dropped),
    _check("uneven-endpoints", "change", "endpoints with weights of their own", checks_beside.uneven),
    _check("ipvs-other-servers", "change", "virtual servers of IPVS that no Service explains", checks_beside.strays),
    _check("two-dataplanes", "change", "rules of several modes at once", checks_rules.two_dataplanes),
    _check("rules-of-another-mode", "change", "live rules of another mode than the configured one",
           checks_rules.another_mode),
    _check("already-here", "info", "kube-proxy-nft's own tables", checks_rules.already_here),
)  # fmt: skip


def findings(case: Case) -> list[Finding]:
    """What all checks find, the worst first; within one severity in the order of the table."""
    found = [finding for check in CHECKS for finding in check.run(case)]
    return sorted(found, key=lambda one: SEVERITIES.index(one.severity))
