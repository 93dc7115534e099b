"""Chains of iptables-nft and the jumps between them, and kube-proxy's own nftables tables: linux/netfilter/nf_tables.h.

Needs CAP_NET_ADMIN. Rules of chains that kube-proxy alone makes are not looked into: there may be hundreds of thousands.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from proxy.detect.kube_chains import SHARED, may_be_kube_proxys
from proxy.detect.netlink import Netlink
from proxy.detect.nft_names import ANY_FAMILY, IPTABLES, read_table
from proxy.leftovers.found import FamilyName, Rule, XTable
from rules.netlink import GETCHAIN, GETRULE, GETTABLE, NETLINK_NETFILTER, SUBSYSTEM, attributes, read_text, text
from rules.objects import Family

KUBE_PROXY: Final = "kube-proxy"
CHAIN_TABLE, CHAIN_NAME, CHAIN_HOOK, CHAIN_POLICY = 1, 3, 4, 5
RULE_TABLE, RULE_CHAIN, RULE_HANDLE, RULE_EXPRESSIONS = 1, 2, 3, 4
POLICY_DROP: Final = 0
FAMILIES: Final[dict[int, FamilyName]] = {Family.IPV4: "ip", Family.IPV6: "ip6"}


def read() -> tuple[list[XTable], list[tuple[FamilyName, str]]]:
    """iptables' tables that have a chain of kube-proxy's or kubelet's, and kube-proxy's own. Raises OSError, ValueError."""
    found: list[XTable] = []
    with Netlink(NETLINK_NETFILTER) as netlink:
        tables = netlink.dump(SUBSYSTEM << 8 | GETTABLE, bytes([ANY_FAMILY, 0, 0, 0]), read_table)
        own = [(FAMILIES[family], name) for family, name, _ in tables if family in FAMILIES and name == KUBE_PROXY]
        for family, name in FAMILIES.items():
            here = {
                table: XTable("nft", name, table)
                for number, table, _ in tables
                if number == family and table in IPTABLES
            }
            if here:
                netlink.dump(SUBSYSTEM << 8 | GETCHAIN, bytes([family, 0, 0, 0]), _chain_reader(here))
            for table in here.values():
                if any(chain.startswith("KUBE-") for chain in table.chains):
                    _read_rules(netlink, family, table)
                    found.append(table)
    return found, own


def _chain_reader(tables: dict[str, XTable]) -> Callable[[memoryview], None]:
    def read_chain(body: memoryview) -> None:
        parts = dict(attributes(body[4:]))
        table = tables.get(read_text(parts[CHAIN_TABLE]))
        if table:
            name = read_text(parts[CHAIN_NAME])
            table.chains.setdefault(name, [])
            if CHAIN_HOOK in parts:
                drops = CHAIN_POLICY in parts and int.from_bytes(parts[CHAIN_POLICY]) == POLICY_DROP
                table.policies[name] = "drop" if drops else "accept"

    return read_chain


def _read_rules(netlink: Netlink, family: int, table: XTable) -> None:
    """Of each chain that is of interest by itself: those are few beside kube-proxy's."""
    targets: set[str] = set()
    for chain, rules in table.chains.items():
        if chain in SHARED or not may_be_kube_proxys(chain):
            rules += _rules(netlink, family, table.name, chain)
            targets |= {rule.target for rule in rules} if chain not in table.policies else set()
    for chain in targets & table.chains.keys():
        if not table.chains[chain] and not _rules(netlink, family, table.name, chain):
            table.bare.add(chain)


def _rules(netlink: Netlink, family: int, table: str, chain: str) -> list[Rule]:
    body = bytes([family, 0, 0, 0]) + text(RULE_TABLE, table) + text(RULE_CHAIN, chain)
    with suppress(FileNotFoundError):  # it has just gone
        return netlink.dump(SUBSYSTEM << 8 | GETRULE, body, read_rule)
    return []


def read_rule(body: memoryview) -> Rule:
    """Raises ValueError, LookupError."""
    parts = dict(attributes(body[4:]))
    target, uses_set = _looked_into(parts.get(RULE_EXPRESSIONS, memoryview(b"")))
    return Rule(int.from_bytes(parts[RULE_HANDLE]), target, uses_set)


def _looked_into(expressions: memoryview) -> tuple[str, bool]:
    """Where a rule jumps to, and whether it matches an ipset."""
    target, uses_set = "", False
    for _, expression in attributes(expressions):
        parts = dict(attributes(expression))
        name, data = read_text(parts[1]), parts.get(2, memoryview(b""))
        if name == "immediate":
            target = _chain_of(data) or target
        elif name == "match":
            uses_set |= read_text(dict(attributes(data))[1]) == "set"
    return target, uses_set


def _chain_of(immediate: memoryview) -> str:
    """NFTA_IMMEDIATE_DATA { NFTA_DATA_VERDICT { NFTA_VERDICT_CHAIN } }."""
    data = dict(attributes(dict(attributes(immediate)).get(2, b"")))
    verdict = dict(attributes(data.get(2, b"")))
    return read_text(verdict[2]) if 2 in verdict else ""
