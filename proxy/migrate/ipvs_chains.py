"""kube-proxy's iptables rules of IPVS mode: that packets come by, and that those to be masqueraded are. Pure.

IPVS leads packets to endpoints; iptables marks those whose source has to become the node's, and refuses and guards. Which
ones, ipsets tell (proxy.detect.ipset_members).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from proxy.migrate.iptables_base import IPVS_JUMPS, POSTROUTING, SERVICES, Base, mark_of_target
from proxy.migrate.iptables_save import Rule, Saved, Table, rule_of
from proxy.migrate.notes import Notes
from rules.objects import Family

ONLY_HERE: Final = ("KUBE-LOAD-BALANCER", "KUBE-NODE-PORT")
"""Chains in the table nat that no other mode makes."""
REMEDY: Final = "look at it with iptables-save; restarting kube-proxy writes its rules anew"


def are_there(saved: Saved) -> bool:
    """Whether kube-proxy in IPVS mode has made chains here."""
    return all(name in saved.tables.get("nat", {}) for name in ONLY_HERE)


class Told(Struct, frozen=True):
    """mark: the bit that KUBE-MARK-MASQ sets. pods: as in Beside. has_hairpins: connections of an endpoint to itself are
    masqueraded, if an ipset names it."""

    mark: int
    pods: str
    has_hairpins: bool


def check(family: Family, saved: Saved, notes: Notes) -> Told:
    """kube-proxy leaves a rule out whose ipset is empty; what a set asks for, a rule for the same set tells."""
    nat: Table = saved.tables.get("nat", {})
    base = Base(family, nat, saved.tables.get("filter", {}), rules, notes)
    mark = next((bits for rule in rules(nat, "KUBE-MARK-MASQ") if (bits := mark_of_target(rule))), 0)
    if not mark:
        notes.remark(f"{family.nft} nat: chain KUBE-MARK-MASQ", "it sets no mark: nothing is masqueraded")
    base.check(IPVS_JUMPS, mark)
    services = list(rules(nat, SERVICES))
    where = f"{family.nft} nat: chain {SERVICES}"
    if _is_asked(services, "LOAD-BALANCER", "ACCEPT") and not _is_asked(
        services, "LOAD-BALANCER", "KUBE-LOAD-BALANCER"
    ):
        notes.remark(where, "what goes to load balancers' addresses is not masqueraded")
    if _is_asked(services, "EXTERNAL-IP", "ACCEPT") and not _is_asked(services, "EXTERNAL-IP", "KUBE-MARK-MASQ"):
        notes.remark(where, "what goes to external addresses is not masqueraded")
    hairpins = any(rule.target == "MASQUERADE" and "LOOP-BACK" in _set(rule) for rule in rules(nat, POSTROUTING))
    marking = (rule for rule in services if rule.target == "KUBE-MARK-MASQ" and "CLUSTER-IP" in _set(rule))
    return Told(mark, next(map(_source, marking), ""), hairpins)


def rules(table: Table, chain: str) -> Iterator[Rule]:
    """Those that can be taken apart."""
    for line in table[chain].lines() if chain in table else ():
        try:
            yield rule_of(line)
        except ValueError:
            continue


def _is_asked(services: list[Rule], name: str, target: str) -> bool:
    names = (f"KUBE-{name} ", f"KUBE-6-{name} ")
    return any(rule.target == target and _set(rule).startswith(names) for rule in services)


def _set(rule: Rule) -> str:
    option = rule.option("--match-set")
    return option.value if option else ""


def _source(rule: Rule) -> str:
    for option in rule.matches:
        if option.name in ("-s", "-i") and option.negated:
            return option.value.replace("+", "*")
    return ""
