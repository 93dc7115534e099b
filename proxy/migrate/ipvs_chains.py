"""kube-proxy's iptables rules of IPVS mode: that packets come by, and that those to be masqueraded are. Pure.

IPVS leads packets to endpoints; iptables marks those whose source has to become the node's, and refuses and guards. Which
ones, ipsets tell (proxy.detect.ipset_members).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from proxy.migrate import ipvs_shapes
from proxy.migrate.entries import EVERYBODY
from proxy.migrate.iptables_base import IPVS_JUMPS, POSTROUTING, SERVICES, Base, mark_of_target
from proxy.migrate.iptables_chains import text_of
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
    masqueraded, if an ipset names it. is_damaged: the way of all packets is not as it should be. shapes: table, chain and
    what ipvs_shapes.shape says of each rule."""

    mark: int
    pods: str
    has_hairpins: bool
    is_damaged: bool = False
    shapes: frozenset[tuple[str, str, str]] = frozenset()


def check(family: Family, saved: Saved, notes: Notes) -> Told:
    """kube-proxy leaves a rule out whose ipset is empty; what a set asks for, a rule for the same set tells."""
    nat: Table = saved.tables.get("nat", {})
    base = Base(family, nat, saved.tables.get("filter", {}), rules, notes)
    first = next(rules(nat, "KUBE-MARK-MASQ"), None)
    is_plain = first is not None and all(option.name == "--comment" for option in first.matches)
    mark = mark_of_target(first) if first and is_plain else 0
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
    shapes, is_strange = set(), False
    for (table, chain), known in ipvs_shapes.SHAPES.items():
        of_table, is_over = saved.tables.get(table, {}), False
        if chain in of_table:
            shapes.add((table, chain, ""))
        for rule in rules(of_table, chain):
            shape = ipvs_shapes.shape(rule)
            shapes.add((table, chain, shape))
            was_over, is_over = is_over, is_over or shape == rule.target == "DROP"
            if shape not in known or was_over:
                notes.remark(f"{family.nft} {table}: {text_of(rule)}", "not a rule that kube-proxy writes")
                is_strange |= rule.target not in ipvs_shapes.HARMLESS
    is_damaged = is_strange or "all" in base.concerned
    return Told(mark, next(map(_source, marking), ""), hairpins, is_damaged, frozenset(shapes))


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
    return EVERYBODY if _set(rule).endswith(" dst,dst") else ""
