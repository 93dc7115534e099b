"""What the node must be able to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from proxy.detect import versions
from proxy.migrate.case import Case, finding
from proxy.migrate.report import Finding
from proxy.migrate.wording import NAMES
from rules.elements import family_of
from rules.objects import Family

FULL: Final = 0.95
FILLING: Final = 0.75
_FORWARDING: Final = {
    Family.IPV4: ("net/ipv4/ip_forward", "net.ipv4.ip_forward"),
    Family.IPV6: ("net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding"),
}


def elsewhere(case: Case) -> Iterator[Finding]:
    """This machine is not the node."""
    if not case.facts.here.is_this_node:
        yield finding(
            "elsewhere",
            "change",
            f"Node {case.facts.node} itself was not looked at",
            "This was made on another machine: what rules, marks, firewalls, sockets and settings the node has is not known,"
            " and whether its own kernel accepts the ruleset.",
            "run it on that node, or make a bundle there with `kube-proxy-nft migrate collect` and read it with --bundle",
            [f"Node {case.facts.node}"],
        )


def kernel(case: Case) -> Iterator[Finding]:
    """Too old."""
    release = case.facts.here.kernel
    version = versions.parse_kernel(release)
    if version and version < versions.KERNEL_FOR_NFTABLES:
        need = versions.show(versions.KERNEL_FOR_NFTABLES)
        yield finding(
            "kernel",
            "blocker",
            f"Linux {release} is too old",
            f"Linux {need} or newer is needed, as for kube-proxy's nftables mode.",
            f"upgrade the kernel to {need} or newer",
            [f"Linux {release}"],
            versions.KEP_NFTABLES,
        )


def features(case: Case) -> Iterator[Finding]:
    """Something of nftables is missing in the kernel."""
    missing = case.facts.here.missing_features
    if missing:
        yield finding(
            "kernel-features",
            "blocker",
            "The kernel lacks something of nftables",
            "It was built without these options, or their modules cannot be loaded.",
            "use a kernel that has them, or install the package with its modules (linux-modules-extra and the like)",
            missing,
        )


def proof(case: Case) -> Iterator[Finding]:
    """The kernel did not take our tables, or was not asked."""
    if case.proof.status == "not-tried":
        yield finding(
            "proof",
            "change",
            "It was not tried whether the kernel accepts our tables",
            f"They could not be loaded into a network namespace of their own: {case.proof.detail or 'no reason was given'}.",
            "run this as root on the node, with a kernel that has nftables and lets network namespaces be made",
        )
    if case.proof.status == "refused":
        yield finding(
            "proof",
            "blocker",
            "The kernel refuses our tables",
            f"They were loaded into a network namespace of their own, and refused: {case.proof.detail}",
            "report it with a bundle of this node (kube-proxy-nft migrate collect)",
        )


def conntrack(case: Case) -> Iterator[Finding]:
    """The table of connections is nearly full."""
    count, most = case.facts.here.conntrack_count, case.facts.here.conntrack_max
    if count is None or not most or count < FILLING * most:
        return
    full = count >= FULL * most
    yield finding(
        "conntrack",
        "change" if full else "notice",
        "The kernel's table of connections is " + ("full" if full else "filling up"),
        f"{count:,} of {most:,} connections are tracked. Beyond that, new ones are dropped, with any proxy.",
        "raise conntrack.maxPerCore or conntrack.min in the configuration (0 leaves the kernel's limit as it is)",
        [f"net.netfilter.nf_conntrack_max = {most}"],
    )


def forwarding(case: Case) -> Iterator[Finding]:
    """The kernel does not forward packets, or does so only because kube-proxy told it to."""
    served = {family_of(key) for key in case.ours.ports}
    for family, (path, name) in _FORWARDING.items():
        if family in served and case.facts.here.sysctls.get(path) == "0":
            yield finding(
                "ip-forward",
                "change",
                f"This node does not forward {NAMES[family]} packets",
                f"{name} is 0: connections to endpoints on other nodes, or from other hosts, would be lost.",
                f"set {name} = 1 in /etc/sysctl.d",
                [f"{name} = 0"],
            )
    if case.mode == "ipvs" and case.facts.here.sysctls.get("net/ipv4/ip_forward") == "1":
        yield finding(
            "ip-forward",
            "info",
            "IPVS mode sets net.ipv4.ip_forward at every start; kube-proxy-nft does not",
            "It is 1 now. kubeadm asks for it, and most network plugins set it, too.",
            "see that a file in /etc/sysctl.d sets it, so that it is 1 after the next boot",
        )
