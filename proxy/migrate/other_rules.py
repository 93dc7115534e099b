"""A rule of another program's nftables table: whether a connection to a pod passes it, and whether it leads a Service's
address elsewhere. Pure.

Only what bears on that is understood; of any other condition it is taken for possible that it holds.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_network
from typing import Final

from msgspec import Struct

from proxy.addresses import Network
from proxy.migrate.iptables_facts import Match, interface_match, network_match
from proxy.migrate.nft_rules import word_of
from rules import expressions as e
from rules.foreign import ForeignExpression
from rules.netlink import attributes, read_text
from rules.objects import PROTOCOL_NAMES, Family

NFPROTO, OIFNAME = 15, 7
STATE, STATUS = 0, 2
NEW, DESTINATION_NAT = 8, 0x20
NAT_DESTINATION: Final = 1
PASSING: Final = frozenset({"counter", "log", "quota", "notrack"})
"""Expressions that go on with every packet. (A quota does not, one day.)"""
_ADDRESSES: Final = {
    (Family.IPV4, 12): "saddr",
    (Family.IPV4, 16): "daddr",
    (Family.IPV6, 8): "saddr",
    (Family.IPV6, 24): "daddr",
}
_ENDS: Final = {e.Verdict.ACCEPT: "accept", e.Verdict.DROP: "drop", e.Verdict.RETURN: "return"}


class Seen(Struct, frozen=True):
    """matches: whether a new connection from outside to a pod is meant. ends: "accept", "drop", "return", "jump", "goto" (to
    `chain`), "maybe" (a map of verdicts); "" goes on. destination: of a translation, "" if there is none, with
    its protocol and port."""

    matches: Match
    ends: str
    chain: str = ""
    destination: str = ""
    protocol: str = ""
    port: str = ""


def look(family: Family, expressions: Iterable[ForeignExpression], pods: Sequence[Network]) -> Seen:
    """For packets of this family. pods: the ranges that pods are in."""
    rule = _Rule(family, pods)
    for expression in expressions:
        rule.add(expression)
    results = set(rule.results)
    matches: Match = "no" if "no" in results else "maybe" if "maybe" in results else "yes"
    translated = rule.destination if rule.translates else ""
    return Seen(matches, rule.ends, rule.chain, translated, rule.protocol, rule.port)


class _Rule:
    """Follows what the registers hold: what, and a mask."""

    def __init__(self, family: Family, pods: Sequence[Network]) -> None:
        self._family, self._pods = family, pods
        self._held: dict[int, tuple[str, bytes]] = {}
        self.results: list[Match] = []
        self.ends = self.chain = self.destination = self.protocol = self.port = ""
        self.translates = False

    def add(self, it: ForeignExpression) -> None:
        match it:
            case e.Payload():
                self._held[word_of(it.register)] = self._payload(it), b""
            case e.Meta(register=int(register)):
                names = {NFPROTO: "nfproto", OIFNAME: "oif", e.Meta.IIFNAME: "iif", 16: "l4proto"}
                self._held[word_of(register)] = names.get(it.key, "other"), b""
            case e.Meta() | e.Byteorder() | e.Counter():
                pass
            case e.Conntrack(register=int(register)):
                self._held[word_of(register)] = {STATE: "state", STATUS: "status"}.get(it.key, "other"), b""
            case e.Bitwise():
                what, _ = self._held.get(word_of(it.source), ("other", b""))
                self._held[word_of(it.register)] = what, it.mask + it.xor
            case e.Compare():
                self._compare(it, *self._held.get(word_of(it.register), ("other", b"")))
            case e.Lookup():
                if it.register == e.VERDICT:
                    self.ends = "maybe"
                elif it.register is None:
                    self.results.append("maybe")
            case e.Immediate(register=e.VERDICT, data=(int(code), str(chain))):
                verdict = e.Verdict(code) if code in list(e.Verdict) else None
                self.ends = "maybe" if verdict is None else _ENDS.get(verdict, "")  # a queue
                if verdict in (e.Verdict.JUMP, e.Verdict.GOTO):
                    self.ends, self.chain = ("jump" if verdict is e.Verdict.JUMP else "goto"), chain
            case e.Immediate(data=bytes(data)):
                self._held[word_of(it.register)] = "constant", data
            case e.Reject():
                self.ends = "drop"
            case e.Nat():
                self.translates |= it.type == NAT_DESTINATION
            case e.Unknown(name="nat"):
                kind = dict(attributes(memoryview(it.data))).get(1, b"")
                self.translates |= int.from_bytes(kind) == NAT_DESTINATION
            case e.Unknown(name="redir" | "tproxy"):
                self.translates = True
            case e.Unknown(name="queue"):
                self.ends = "maybe"
            case e.Unknown(name=name) if name in PASSING:
                pass
            case _:
                self.results.append("maybe")

    def _payload(self, it: e.Payload) -> str:
        if it.base == 1:
            return _ADDRESSES.get((self._family, it.offset), "other")
        return "dport" if (it.base, it.offset, it.length) == (2, 2, 2) else "other"

    def _compare(self, it: e.Compare, what: str, mask: bytes) -> None:
        compare: Callable[[bytes, bytes], Match] | None = {
            "nfproto": lambda value, _: "yes" if value[:1] == bytes((self._family,)) else "no",
            "iif": lambda value, _: interface_match(read_text(value), is_in=True),
            "oif": lambda value, _: interface_match(read_text(value), is_in=False),
            "daddr": self._address("-d"),
            "saddr": self._address("-s"),
        }.get(what)
        is_plain = it.op in (e.Compare.EQUAL, e.Compare.UNEQUAL)
        found: Match = "maybe"
        if what in ("state", "status") and mask and not any(it.value) and it.op == e.Compare.UNEQUAL:
            bits = NEW if what == "state" else DESTINATION_NAT
            self.results.append("yes" if _number(mask[: len(mask) // 2]) & bits else "no")
            return
        if compare and is_plain:
            found = compare(it.value, mask)
            if it.op == e.Compare.UNEQUAL and found != "maybe":
                found = "no" if found == "yes" else "yes"
        if it.op == e.Compare.EQUAL:
            self._remember(what, it.value, mask)
        self.results.append(found)

    def _remember(self, what: str, value: bytes, mask: bytes) -> None:
        """What a translation is for."""
        if what == "daddr":
            self.destination = self._network(value, mask)
        elif what == "dport" and not mask:
            self.port = str(int.from_bytes(value))
        elif what == "l4proto":
            self.protocol = PROTOCOL_NAMES.get(value[0], "")

    def _address(self, option: str) -> Callable[[bytes, bytes], Match]:
        return lambda value, mask: network_match(option, self._network(value, mask), self._pods)

    def _network(self, value: bytes, mask: bytes) -> str:
        """An address, or the beginning of one: nft loads only whole bytes of it."""
        size = self._family.address_size
        bits = 8 * len(value)
        if mask:
            bits = int.from_bytes(mask[: len(mask) // 2]).bit_count()
        kind = socket.AF_INET if self._family is Family.IPV4 else socket.AF_INET6
        try:
            return str(ip_network(f"{socket.inet_ntop(kind, value.ljust(size, bytes(1))[:size])}/{bits}", strict=False))
        except ValueError:
            return ""


def _number(data: bytes) -> int:
    return int.from_bytes(data, sys.byteorder)
