"""Other programs' nftables tables: firewalld's, Calico's, an operator's own. What their rules have to do with a change of the
proxy: marks, connections to pods that they drop, Services' addresses that they lead elsewhere. iptables-nft's tables are
read by its programs (others).

linux/netfilter/nf_tables.h. Needs CAP_NET_ADMIN.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final, Literal

from proxy.addresses import Network
from proxy.detect.netlink import Netlink
from proxy.migrate.base_chains import FAMILIES
from proxy.migrate.facts import BaseChain, ForwardFilter, MarkUse, Translation
from proxy.migrate.nft_marks import KEY_OF_MARK, used
from proxy.migrate.other_rules import Seen, look
from proxy.unread import Unread
from rules.foreign import ForeignExpression, decode
from rules.netlink import GETRULE, NETLINK_NETFILTER, SUBSYSTEM, attributes, read_text, text
from rules.netlink_socket import DAMAGED
from rules.objects import Family

OURS: Final = frozenset({"iptables", "iptables-legacy", "kube-proxy", "kube-proxy-nft"})
"""Programs whose tables are read otherwise."""
NUMBERS: Final = {name: number for number, name in FAMILIES.items()}
MOST: Final = 1000
"""Uses of marks, and translations, that are kept."""
REMEMBERED: Final = 4096
"""Expressions that are kept decoded: most of a big table's are the same few."""
_OF_NAT: Final = (b"nat\0", b"redir\0", b"tproxy\0")
"""Without one of these a rule has nothing to do with a translation."""
SHOWN: Final = 20
"""Chains of a table that are named for the same bits."""
_NFGENMSG = struct.Struct(">BBH")
Outcome = Literal["accept", "drop", "through"]


class OtherTables:
    """marks, translations: of their rules. unread: tables that could not be read."""

    def __init__(self) -> None:
        self.marks: list[MarkUse] = []
        self.translations: list[Translation] = []
        self.unread: list[Unread] = []
        self._filters: list[tuple[BaseChain, dict[str, list[bytes]]]] = []

    def read(self, chains: Iterable[BaseChain]) -> None:
        """chains: the base chains that there are, which tell the tables: one without any does nothing."""
        tables: dict[tuple[str, str], list[BaseChain]] = {}
        for chain in chains:
            if chain.program not in OURS and chain.family in ("ip", "ip6", "inet"):
                tables.setdefault((chain.family, chain.table), []).append(chain)
        for (family, name), bases in tables.items():
            try:
                rules = _rules(family, name)
                self._take(family, name, bases, rules)
            except (OSError, *DAMAGED) as error:
                remedy = "run it as root, or look at the table with nft list table"
                self.unread.append(Unread(f"nftables table {family} {name}", str(error), remedy))

    def knows(self, chain: BaseChain) -> bool:
        """Whether its rules were read."""
        return any(known == chain for known, _ in self._filters)

    def forward(self, pods: Sequence[Network]) -> list[ForwardFilter]:
        """Of base chains that see what is forwarded, those that drop something. pods: the ranges that pods are in."""
        found: list[ForwardFilter] = []
        for base, rules in self._filters:
            place = f"chain {base.family} {base.table} {base.name}"
            lets = {family: _lets_dnat(family, base, rules, pods) for family in _families(base.family)}
            if len(set(lets.values())) == 1:
                lets = {family: one for family, one in lets.items() if family is next(iter(lets))}
                of = dict.fromkeys(lets, place)
            else:
                of = {family: f"{place}, {family.nft}" for family in lets}
            found += [ForwardFilter(of[family], one, apart=True) for family, one in lets.items() if one]
        return found

    def _take(self, family: str, name: str, bases: Iterable[BaseChain], rules: Iterable[tuple[str, bytes]]) -> None:
        by_chain: dict[str, list[bytes]] = {}
        of = {(base.name): base for base in bases}
        program = next((base.program for base in of.values()), "")
        seen: dict[tuple[int, bool], set[str]] = {}
        for chain, rule in rules:
            by_chain.setdefault(chain, []).append(rule)
            place = f"chain {family} {name} {chain}"
            if KEY_OF_MARK in rule:
                bits = used(_expressions(rule))
                for mask, of_connections in ((bits.packet, False), (bits.connection, True)):
                    chains = seen.setdefault((mask, of_connections), set())
                    if mask and chain not in chains and len(chains) < SHOWN and len(self.marks) < MOST:
                        chains.add(chain)
                        self.marks.append(MarkUse(place, mask, program, of_connections))
            for number in _families(family) if any(part in rule for part in _OF_NAT) else ():
                one = look(number, _expressions(rule), ())
                if one.destination and one.matches != "no" and len(self.translations) < MOST:
                    self.translations.append(
                        Translation(place, one.destination, one.protocol, one.port, "another address")
                    )
        for base in of.values():
            if base.hook == "forward" and base.kind == "filter":
                self._filters.append((base, by_chain))


def _families(family: str) -> tuple[Family, ...]:
    return tuple(one for one in Family if family in ("inet", one.nft))


def _lets_dnat(
    family: Family, base: BaseChain, rules: dict[str, list[bytes]], pods: Sequence[Network]
) -> Literal["yes", "no", "unknown", ""]:
    """As in ForwardFilter; "": it drops nothing."""
    outcomes = _walk(family, base.name, rules, pods, {})
    if "through" in outcomes:
        outcomes = (outcomes - {"through"}) | {base.policy}
    if outcomes == {"accept"}:
        return "" if base.policy == "accept" else "yes"
    return "no" if outcomes == {"drop"} else "unknown"


def _walk(
    family: Family,
    name: str,
    rules: dict[str, list[bytes]],
    pods: Sequence[Network],
    known: dict[str, set[Outcome]],
) -> set[Outcome]:
    """What may become of a new connection from outside that was sent to a pod."""
    if name in known:
        return known[name]
    known[name] = {"through"}  # whoever comes back here goes round in circles
    found: set[Outcome] = set()
    for raw in rules.get(name, ()):
        rule = look(family, _expressions(raw), pods)
        if rule.matches == "no" or not rule.ends:
            continue
        outcomes = _outcomes(rule, lambda to: _walk(family, to, rules, pods, known))
        found |= outcomes - {"through"}
        if rule.ends == "return" or (rule.ends == "goto" and "through" in outcomes):
            found.add("through")  # back to where this chain was called
        if rule.matches == "yes" and (rule.ends in ("return", "goto") or "through" not in outcomes):
            break
    else:
        found.add("through")
    known[name] = found
    return found


def _outcomes(rule: Seen, walk: Callable[[str], set[Outcome]]) -> set[Outcome]:
    match rule.ends:
        case "accept" | "drop":
            return {rule.ends}
        case "jump" | "goto":
            return walk(rule.chain)
        case "return":
            return {"through"}
    return {"accept", "drop", "through"}


def _rules(family: str, table: str) -> list[tuple[str, bytes]]:
    """All of a table, in their order: chain, and what the rule consists of. Raises OSError, ValueError, LookupError."""
    body = _NFGENMSG.pack(NUMBERS[family], 0, 0) + text(1, table)
    with Netlink(NETLINK_NETFILTER) as netlink:
        found = netlink.dump(SUBSYSTEM << 8 | GETRULE, body, _read_rule)
    return [(chain, rule) for of, chain, rule in found if of == table]


def _read_rule(body: memoryview) -> tuple[str, str, bytes]:
    parts = dict(attributes(body[_NFGENMSG.size :]))
    return read_text(parts[1]), read_text(parts[2]), bytes(parts.get(4, b""))


def _expressions(rule: bytes) -> list[ForeignExpression]:
    return [_decoded(bytes(element)) for _, element in attributes(memoryview(rule))]


@lru_cache(REMEMBERED)
def _decoded(element: bytes) -> ForeignExpression:
    return decode(element)
