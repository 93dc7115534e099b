"""What of that which was found goes, what stays, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field

from proxy.detect.ipvs_table import Server
from proxy.detect.kube_chains import KUBELET_ALONE, SHARED, may_be_kube_proxys
from proxy.leftovers.found import FamilyName, Found, Rule, Unread, XTable

ENTRANCES: Final = frozenset(
    {
        "KUBE-SERVICES",
        "KUBE-EXTERNAL-SERVICES",
        "KUBE-NODEPORTS",
        "KUBE-NODE-PORT",
        "KUBE-FORWARD",
        "KUBE-PROXY-FIREWALL",
        "KUBE-POSTROUTING",
        "KUBE-FIREWALL",
        "KUBE-IPVS-FILTER",
        "KUBE-IPVS-OUT-FILTER",
    }
)
"""Where kube-proxy (and kubelet) jumps to from base chains. Who jumps elsewhere is somebody else."""

MARK, MASQUERADE = "KUBE-MARK-MASQ", "KUBE-POSTROUTING"
KUBELETS: Final = ("KUBE-FIREWALL", "KUBE-MARK-DROP")
FORWARD: Final = "KUBE-FORWARD"

ARP: Final = "strictARP of IPVS mode: set it to 0, unless a load balancer on this node needs it (MetalLB)"
SYSCTLS: Final = {
    "net/ipv4/conf/all/route_localnet": "lets in what other machines send to 127.0.0.0/8, for NodePorts on localhost: set "
    "it to 0, unless something else needs it",
    "net/ipv4/conf/all/arp_ignore": ARP,
    "net/ipv4/conf/all/arp_announce": ARP,
    "net/netfilter/nf_conntrack_max": "kube-proxy raises it by its conntrack settings; kube-proxy-nft has the same ones",
}
"""What kube-proxy sets and nobody sets back -> what to do about it."""


class Kept(Struct, frozen=True, rename="camel"):
    """Something of kube-proxy's, or that looks so, which stays."""

    what: str
    why: str


class TableRemoval(Struct):
    """Of one table of iptables. chains: removed with their rules. emptied: only their rules. rules: single ones, with the
    chain that they are in."""

    table: XTable
    chains: list[str] = field(default_factory=list)
    emptied: list[str] = field(default_factory=list)
    rules: list[tuple[str, Rule]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.chains or self.emptied or self.rules)


class Plan(Struct):
    """As in Found. notes: what people should know beside it."""

    tables: list[TableRemoval] = field(default_factory=list)
    nft_tables: list[tuple[FamilyName, str]] = field(default_factory=list)
    servers: list[Server] = field(default_factory=list)
    interface: int | None = None
    sets: list[str] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    notes: list[Kept] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to remove."""
        return not (self.tables or self.nft_tables or self.servers or self.sets) and self.interface is None


def plan(found: Found) -> Plan:
    is_kubelets = found.kubelet or any(name in KUBELET_ALONE for table in found.tables for name in table.chains)
    made = Plan(
        nft_tables=list(found.nft_tables),
        servers=list(found.servers),
        interface=found.interface,
        sets=list(found.sets),
        unread=list(found.unread),
    )
    for table in found.tables:
        removal = of_table(table, is_kubelets, made.kept)
        if not removal.is_empty:
            made.tables.append(removal)
            made.notes += _about_forwarding(removal)
    if found.other_servers:
        what = f"{found.other_servers} IPVS virtual server{'s' if found.other_servers > 1 else ''}"
        made.kept.append(Kept(what, "not kube-proxy's: not at an address of kube-ipvs0, and no NodePort"))
    made.notes += [Kept(f"{name} = {value}", SYSCTLS[name]) for name, value in found.sysctls.items()]
    return made


def of_table(table: XTable, is_kubelets: bool, kept: list[Kept]) -> TableRemoval:
    """is_kubelets: a kubelet is here, whose chains stay. kept: gets what stays, with the reason."""
    own = {name for name in table.chains if may_be_kube_proxys(name)}
    if is_kubelets:
        for name in sorted(own.intersection(KUBELETS)):
            kept.append(Kept(f"{table.place} chain {name}", "kubelet's"))
        own.difference_update(KUBELETS)
    users = _users(table, own)
    whole = {name for name in users if name in SHARED}
    if MARK in whole and MASQUERADE in own:
        users.setdefault(MASQUERADE, users[MARK])
        whole.add(MASQUERADE)  # without it the mark means nothing
    for name in sorted(users):
        why = f"used by {_listed(users[name])}"
        kept.append(Kept(f"{table.place} chain {name}", why if name in whole else f"{why}: emptied"))
    goes = own - whole
    emptied = sorted(goes.intersection(users) - table.bare)
    return TableRemoval(table, sorted(goes - users.keys()), emptied, _single_rules(table, goes, whole))


def _users(table: XTable, own: set[str]) -> dict[str, list[str]]:
    """Chains of kube-proxy's -> chains of others that jump to them."""
    users: dict[str, list[str]] = {}
    for name, rules in table.chains.items():
        if name in own:
            continue
        for rule in rules:
            is_entrance = name in table.policies and rule.target in ENTRANCES
            if rule.target in own and not is_entrance and name not in users.setdefault(rule.target, []):
                users[rule.target].append(name)
    return users


def _single_rules(table: XTable, goes: set[str], whole: set[str]) -> list[tuple[str, Rule]]:
    """Jumps from base chains to what goes; and in chains that stay, what would keep an ipset in use."""
    found = [
        (name, rule)
        for name in table.policies
        for rule in table.chains.get(name, ())
        if rule.target in goes and rule.target in ENTRANCES
    ]
    found += [
        (name, rule)
        for name in sorted(whole)
        for rule in table.chains.get(name, ())
        if rule.uses_set or rule.target in goes
    ]
    return found


def _about_forwarding(removal: TableRemoval) -> Iterable[Kept]:
    """Where a firewall drops what it does not know, KUBE-FORWARD let through what Services made."""
    if FORWARD in removal.chains and removal.table.policies.get("FORWARD") == "drop":
        yield Kept(
            f"{removal.table.place} FORWARD has the policy drop",
            f"{FORWARD} let masqueraded connections to pods pass: see that another rule there accepts what goes to pods",
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:3])} and {len(names) - 3} more"
