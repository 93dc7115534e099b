"""What else touches the packets: marks, firewalls, other programs' NAT. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from proxy.migrate.case import IPTABLES_BASED, Case, finding
from proxy.migrate.facts import WHOLE_MARK, BaseChain, ForwardFilter, MarkUse
from proxy.migrate.report import Finding, Severity
from proxy.migrate.wording import many, services
from rules.elements import family_of
from rules.objects import Family

KUBERNETES: Final = frozenset({"kube-proxy", "kube-proxy-nft", "kubelet", "kube-proxy and kubelet"})
NAT_PRIORITY: Final = {"prerouting": -100, "output": -100, "postrouting": 100}
DEFAULT_BIT: Final = 14
_WHOLE_OF_CONNECTIONS: Final = (
    " Between kube-proxy-nft's prerouting and its postrouting, who writes all of a connection's mark lets a pod's connections"
    " to itself go unmasqueraded, so they fail; who copies it to the packet's has all connections of such pods masqueraded."
)


def forward_filters(case: Case) -> Iterator[Finding]:
    """Firewalls that drop what is forwarded, unless they let pods' traffic through without kube-proxy's help."""
    for apart in (False, True):
        yield from _forward_filters(case, [one for one in case.facts.here.forward if one.apart is apart], apart=apart)


def _forward_filters(case: Case, chains: Sequence[ForwardFilter], *, apart: bool) -> Iterator[Finding]:
    """apart: in tables that are not iptables'."""
    # To IPVS, what goes to a Service is the node's own: it is not forwarded. With iptables, it is.
    helped = case.mode in (("ipvs", "") if apart else (*IPTABLES_BASED, ""))
    for lets, severity, title in _FORWARD if helped else _FORWARD_LATER:
        places = [one for one in chains if one.lets_dnat == lets and _concerns(case, one)]
        if not places:
            continue
        yield finding(
            "forward-filter",
            severity,
            title,
            _APART
            if helped and apart
            else "kube-proxy's iptables and IPVS modes accept forwarded packets of Services themselves (the chain KUBE-FORWARD)."
            " kube-proxy-nft leaves other programs' filters alone, as kube-proxy's nftables mode does: when KUBE-FORWARD is"
            " cleaned up, these chains decide."
            if helped
            else "The proxy that runs does not help against it either, so nothing changes; these chains decide.",
            "accept there what goes to, and comes from, the pods' addresses, before the switch; many network plugins do so by"
            " themselves, and a firewall's zone for pods (firewalld: --zone=trusted --add-source) does",
            [
                f"chain {one.place.removeprefix('chain ')}"
                + (f" (accepts {', '.join(one.accepts[:3])})" if one.accepts else "")
                for one in places
            ],
        )


def _concerns(case: Case, one: ForwardFilter) -> bool:
    """Not so of a chain of a family in which no Service has an address."""
    words = one.place.split()
    served = {family_of(key).nft for key in case.ours.ports}
    return not any(family.nft in words and family.nft not in served for family in Family)


_APART: Final = (
    "IPVS takes what goes to a Service for the node's own packets, which are not forwarded. With kube-proxy-nft they are, and"
    " pass the forward chains of every table of nftables; what another table accepts is no help."
)
_FORWARD: Final[tuple[tuple[str, Severity, str], ...]] = (
    ("no", "blocker", "A firewall would drop connections to pods"),
    ("unknown", "change", "A firewall drops what is forwarded, and may drop connections to pods"),
)
_FORWARD_LATER: Final[tuple[tuple[str, Severity, str], ...]] = (
    ("no", "notice", "A firewall drops connections to pods, today as well"),
    ("unknown", "info", "A firewall drops what is forwarded; whether it lets pods through could not be told"),
)


def mark_collisions(case: Case) -> Iterator[Finding]:
    """Another program uses the bit of the mark that asks for masquerading."""
    ours = case.ours.settings.options.masquerade_mark
    met = [use for use in case.facts.here.marks if use.mask & ours and use.program not in KUBERNETES]
    if not met:
        return
    same_today = _mark_today(case) == ours and not any(use.of_connections for use in met)
    yield finding(
        "mark-collision",
        "notice" if same_today else "change",
        f"Another program uses the mark bit {ours:#x}" + (", today as well" if same_today else ""),
        "Between its own chains, kube-proxy-nft marks packets that are to be masqueraded with this bit, and clears it. Who"
        " sets it for another purpose gets such packets masqueraded; who matches it sees ours. A connection that may lead to its"
        " own sender has this bit in its mark, too, until it leaves the node."
        + (_WHOLE_OF_CONNECTIONS if any(use.of_connections and use.mask == WHOLE_MARK for use in met) else "")
        + (" The rules that are there now use the same bit, so this is not new." if same_today else ""),
        _free_the_bit(met, case.facts.here.marks),
        [
            f"{use.place}: {use.mask:#x}"
            + (" of connections" if use.of_connections else "")
            + (f" ({use.program})" if use.program else "")
            for use in met
        ],
    )


def _free_the_bit(met: Sequence[MarkUse], marks: Sequence[MarkUse]) -> str:
    """What to do about those that are `met`. marks: all that there are."""
    steps = []
    if any(use.mask == WHOLE_MARK for use in met):  # another bit is no help
        steps.append(
            "give the rules that set, copy or match a whole mark a mask that leaves this bit out (of iptables --nfmask, --ctmask"
            " and VALUE/MASK; of nft `ct mark set ct mark & 0xffffff00 | 0x1`, `ct mark & 0xff == 0x1`)"
        )
    if any(use.mask != WHOLE_MARK for use in met):
        taken = 0
        for use in marks:
            taken |= use.mask if use.mask != WHOLE_MARK else 0
        free = [str(bit) for bit in range(32) if not taken >> bit & 1]
        steps.append(f"set nftables.masqueradeBit to a free bit: {', '.join(free[:8]) or 'there is none'}")
    return "; ".join(steps)


def _mark_today(case: Case) -> int:
    """The bit that the proxy that runs uses; 0: not known."""
    if case.live and case.live.masquerade_mark:
        return case.live.masquerade_mark
    if case.mode not in (*IPTABLES_BASED, "nftables") or not case.facts.present.document:
        return 0
    bit = case.section("nftables" if case.mode == "nftables" else "iptables").get("masqueradeBit")
    return 1 << (bit if isinstance(bit, int) and 0 <= bit < 32 else DEFAULT_BIT)


def masquerade_bit(case: Case) -> Iterator[Finding]:
    """iptables.masqueradeBit, which has no effect here."""
    theirs = case.section("iptables").get("masqueradeBit")
    ours = case.ours.config.nftables.masquerade_bit
    if case.mode not in IPTABLES_BASED or not isinstance(theirs, int) or theirs in (ours, DEFAULT_BIT):
        return
    yield finding(
        "masquerade-bit",
        "change",
        "The mark bit that was chosen does not count here",
        f"iptables.masqueradeBit is {theirs}; in nftables mode nftables.masqueradeBit counts, which is {ours}. Whoever chose"
        " it had a reason: a network plugin, mostly, that uses the default.",
        f"set nftables.masqueradeBit: {theirs}",
    )


def masquerade_all(case: Case) -> Iterator[Finding]:
    """iptables.masqueradeAll, which has no effect here."""
    theirs = case.section("iptables").get("masqueradeAll") is True
    if case.mode not in IPTABLES_BASED or not theirs or case.ours.config.nftables.masquerade_all:
        return
    yield finding(
        "masquerade-all",
        "change",
        "masqueradeAll does not count here",
        "iptables.masqueradeAll is set; in nftables mode nftables.masqueradeAll counts, which is not. Connections from pods"
        " to clusterIPs would arrive with the pods' own addresses, and answers would have to find their way back.",
        "set nftables.masqueradeAll: true, or see that endpoints can answer pods directly",
    )


def nat_chains(case: Case) -> Iterator[Finding]:
    """Other programs' NAT at the hooks and priorities of ours."""
    others = [chain for chain in case.facts.here.chains if _is_beside(chain, case)]
    if not others:
        return
    yield finding(
        "nat-priority",
        "info",
        "Other programs translate addresses at the same hooks and priorities",
        "Of two NAT chains at one hook and priority the kernel asks the one first that was made later, and the first one that"
        " translates a connection decides. That matters only where both want the same address and port (a hostPort that is"
        " a NodePort, too).",
        "nothing, unless a hostPort or a port that is forwarded is a NodePort as well",
        [_describe(chain) for chain in others],
    )


def socket_priority(case: Case) -> Iterator[Finding]:
    """Session affinity uses the packets' priority between two look-ups."""
    sticky = {"/".join(name) for name, info in case.ours.services.items() if info.timeout}
    if not sticky:
        return
    yield finding(
        "session-affinity",
        "info",
        f"Clients of {many(len(sticky), 'Service')} with session affinity are assigned anew once",
        "Who goes where is not taken over from the other proxy's rules. Afterwards clients stay with their endpoints, also"
        " when kube-proxy-nft is started again. A priority that an application sets (SO_PRIORITY) is lost for the first"
        " packet of a connection to these Services.",
        "nothing; switch at a quiet time if a new assignment costs a login",
        services(sticky),
    )


def _is_beside(chain: BaseChain, case: Case) -> bool:
    if chain.kind != "nat" or NAT_PRIORITY.get(chain.hook) != chain.priority or chain.program in (*KUBERNETES, ""):
        return False
    # Of iptables' own chains, kube-proxy's modes have one rule in each: a jump.
    is_shared = chain.program.startswith("iptables") and case.mode in (*IPTABLES_BASED, "")
    return chain.rules > (1 if is_shared else 0)


def _describe(chain: BaseChain) -> str:
    return f"chain {chain.family} {chain.table} {chain.name} ({chain.program}, {chain.hook} {chain.priority})"
