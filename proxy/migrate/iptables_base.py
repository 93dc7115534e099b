"""What kube-proxy's iptables rules have once for all Services: the ways to its chains, masquerading, forwarding. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from proxy.migrate.iptables_save import Rule, Table
from proxy.migrate.notes import Notes
from rules.elements import node_port_key
from rules.objects import Family

SERVICES, NODE_PORTS, EXTERNAL_SERVICES = "KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"
FIREWALL, FORWARD, POSTROUTING = "KUBE-PROXY-FIREWALL", "KUBE-FORWARD", "KUBE-POSTROUTING"
Jump = tuple[str, str, str, str]

JUMPS: Final[tuple[Jump, ...]] = (
    ("nat", "PREROUTING", SERVICES, "connections from pods and from outside reach no Service"),
    ("nat", "OUTPUT", SERVICES, "connections from this node reach no Service"),
    ("nat", "POSTROUTING", POSTROUTING, "nothing is masqueraded"),
    ("filter", "FORWARD", SERVICES, "connections to Services without endpoints are not refused"),
    ("filter", "OUTPUT", SERVICES, "connections from this node to Services without endpoints are not refused"),
    ("filter", "INPUT", EXTERNAL_SERVICES, "connections to NodePorts without endpoints are not refused"),
    ("filter", "FORWARD", EXTERNAL_SERVICES, "connections to external addresses without endpoints are not refused"),
    ("filter", "INPUT", FIREWALL, "source ranges do not keep out what this node itself would answer"),
    ("filter", "FORWARD", FIREWALL, "source ranges do not keep out what is forwarded"),
    ("filter", "OUTPUT", FIREWALL, "source ranges do not keep out what this node sends"),
    ("filter", "INPUT", NODE_PORTS, "load balancers' health checks may not be let in"),
    ("filter", "FORWARD", FORWARD, "packets of Services may not be forwarded"),
)
"""Without which chains do nothing: table, chain, where to, and what follows if it is not there."""
IPVS_JUMPS: Final[tuple[Jump, ...]] = (
    ("nat", "PREROUTING", SERVICES, "what comes from pods and from outside is not masqueraded"),
    ("nat", "OUTPUT", SERVICES, "what this node sends to Services is not masqueraded"),
    ("nat", "POSTROUTING", POSTROUTING, "nothing is masqueraded"),
    ("nat", SERVICES, "KUBE-NODE-PORT", "what goes to NodePorts is not masqueraded"),
    ("filter", "INPUT", FIREWALL, "source ranges keep nobody out"),
    ("filter", "FORWARD", FIREWALL, "source ranges do not keep out what is forwarded"),
    ("filter", "FORWARD", FORWARD, "packets of Services may not be forwarded"),
    ("filter", "INPUT", "KUBE-NODE-PORT", "load balancers' health checks may not be let in"),
    ("filter", "INPUT", "KUBE-IPVS-FILTER", "programs of this node answer at Services' addresses"),
)
Rules = Callable[[Table, str], Iterable[Rule]]
"""A chain's rules; none where there is no such chain."""


class Base:
    """rules: takes them apart. notes: takes what is wrong."""

    def __init__(self, family: Family, nat: Table, filters: Table, rules: Rules, notes: Notes) -> None:
        self._family, self._nat, self._filter = family, nat, filters
        self._rules, self._notes = rules, notes

    def check(self, jumps: Iterable[Jump], mark: int) -> None:
        """mark: what KUBE-MARK-MASQ sets; 0: nothing."""
        self._check_jumps(jumps)
        if POSTROUTING in self._nat:
            self._check_masquerading(mark)
        if FORWARD in self._filter:
            self._check_forwarding(mark)

    def health_checks(self) -> frozenset[bytes] | None:
        """Ports that are let in; None: this version has no rules for them."""
        if NODE_PORTS not in self._filter:
            return None
        found: set[bytes] = set()
        for rule in self._rules(self._filter, NODE_PORTS):
            port = rule.option("--dport")
            if rule.target == "ACCEPT" and port and port.value.isdecimal() and 0 < int(port.value) < 65536:
                found.add(node_port_key(self._family, 6, int(port.value)))
        return frozenset(found)

    def _check_jumps(self, jumps: Iterable[Jump]) -> None:
        tables = {"nat": self._nat, "filter": self._filter}
        for table, base, to, otherwise in jumps:
            rules = tables[table]
            if to not in rules or (table == "filter" and not rules[to].spans):
                continue
            if not any(rule.target == to for rule in self._rules(rules, base)):
                self._notes.remark(f"{self._family.nft} {table}: {base} does not lead to {to}", otherwise)

    def _check_masquerading(self, mark: int) -> None:
        where = f"{self._family.nft} nat: chain {POSTROUTING}"
        rules = list(self._rules(self._nat, POSTROUTING))
        marked = [number for rule in rules if (number := _mark_of(rule))]
        if not any(rule.target == "MASQUERADE" and not rule.option("--match-set") for rule in rules):
            self._notes.remark(where, "nothing is masqueraded")
        elif mark and marked and mark not in marked:
            cause = f"it masquerades packets with the mark {marked[0]:#x}, and KUBE-MARK-MASQ sets {mark:#x}"
            self._notes.remark(where, cause)

    def _check_forwarding(self, mark: int) -> None:
        where = f"{self._family.nft} filter: chain {FORWARD}"
        accepting = [rule for rule in self._rules(self._filter, FORWARD) if rule.target == "ACCEPT"]
        marked = [number for rule in accepting if (number := _mark_of(rule))]
        if not accepting:
            self._notes.remark(where, "it lets nothing through: packets of Services may not be forwarded")
        elif not marked or (mark and mark not in marked):
            self._notes.remark(where, "it does not let through what is to be masqueraded")


def mark_of_target(rule: Rule) -> int:
    """The bits that a rule sets; 0: none."""
    for name in ("--set-xmark", "--or-mark", "--set-mark"):
        option = rule.option(name)
        if option and rule.target == "MARK":
            return _number(option.value)
    return 0


def _mark_of(rule: Rule) -> int:
    option = rule.option("--mark")
    return _number(option.value) if option else 0


def _number(text: str) -> int:
    try:
        return int(text.partition("/")[0], 0)
    except ValueError:
        return 0
