"""Where a packet goes on, or that it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rules import expressions as e
from rules.objects import Family, Set
from rules.statements.packet_key import key_text, load_key

ICMP_PORT_UNREACHABLE: Final = {Family.IPV4: 3, Family.IPV6: 4}


@dataclass(frozen=True, slots=True)
class Go:
    """A verdict; JUMP and GOTO name the chain."""

    verdict: e.Verdict
    chain: str = ""

    def text(self, family: Family) -> str:
        return f"{self.verdict.name.lower()} {self.chain}".rstrip()

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (e.Immediate((self.verdict, self.chain)),)


def jump(chain: str) -> Go:
    return Go(e.Verdict.JUMP, chain)


def goto(chain: str) -> Go:
    return Go(e.Verdict.GOTO, chain)


def drop() -> Go:
    return Go(e.Verdict.DROP)


def go_back() -> Go:
    """Back to the chain that jumped here."""
    return Go(e.Verdict.RETURN)


@dataclass(frozen=True, slots=True)
class GoToMapped:
    """Go where the map of verdicts says for the key, loaded from the packet. Not there: the next rule's turn."""

    map: Set

    def text(self, family: Family) -> str:
        return f"{key_text(self.map.key)} vmap @{self.map.name}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, _ = load_key(self.map.key)
        return (*loads, e.Lookup(self.map.name, register=e.VERDICT))


@dataclass(frozen=True, slots=True)
class RefuseTcp:
    """A TCP reset for TCP. (An IPv6 TCP client ignores ICMP here and hangs until it times out.)"""

    def text(self, family: Family) -> str:
        return "meta l4proto tcp reject with tcp reset"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (
            e.Meta(e.Meta.L4PROTO, register=e.REGISTER),
            e.Compare(e.Compare.EQUAL, b"\x06"),
            e.Reject(e.Reject.TCP_RESET),
        )


@dataclass(frozen=True, slots=True)
class Refuse:
    """ICMP port unreachable."""

    def text(self, family: Family) -> str:
        return "reject"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (e.Reject(e.Reject.ICMP, ICMP_PORT_UNREACHABLE[family]),)
