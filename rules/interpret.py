"""What a table does with the first packet of a connection: its rules, run as the kernel runs them. Pure.

A table is a TableState, what rules.fake keeps or the kernel's dump gives, so a rule that somebody changed counts as it
is. Where the kernel draws a number, every number is followed, and the chances add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec import Struct

from rules import expressions as e
from rules.dump import TableState
from rules.elements import endpoint
from rules.interpret_rule import NotUnderstood, RuleRun
from rules.objects import OUTPUT, POSTROUTING, PREROUTING, Family, Hook
from rules.packet import Packet, PacketState

What = Literal["endpoint", "refused", "dropped", "untouched"]
End = Literal["accept", "refused", "dropped"]
Weights = Mapping[PacketState, float]
_Chances = defaultdict[PacketState, float]
_DEEPEST: Final = 16  # NFT_JUMP_STACK_SIZE


class Fate(Struct, frozen=True, order=True):
    """endpoint: where it is led, packed by rules.elements.endpoint; b"" where it is led nowhere. path: the chains that
    it went through, in order, each with the sets by which it got further: "services @cluster-ips"."""

    what: What
    endpoint: bytes = b""
    is_masqueraded: bool = False
    path: tuple[str, ...] = ()


def fates(table: TableState, packet: Packet) -> dict[Fate, float]:
    """All that can become of it, with its chances, which sum to 1. Raises NotUnderstood."""
    hook = PREROUTING if packet.interface else OUTPUT
    found: defaultdict[Fate, float] = defaultdict(float)
    for (what, state), chance in _Run(table, packet).base(hook, {PacketState(): 1.0}).items():
        if what != "accept":
            found[Fate(what, path=state.path)] += chance
            continue
        # The kernel makes the priority of what it forwards anew, from the TOS.
        if packet.interface and packet.family is Family.IPV4:
            state = msgspec.structs.replace(state, priority=bytes(4))
        for (after, last), part in _Run(table, packet).base(POSTROUTING, {state: chance}).items():
            led = endpoint(*last.led) if last.led else b""
            kind: What = ("endpoint" if led else "untouched") if after == "accept" else after
            found[Fate(kind, led, last.is_masqueraded, last.path)] += part
    return dict(found)


class _Run:
    """One packet's way through a table, with all its branches: at the same place in the same state, they are one."""

    def __init__(self, table: TableState, packet: Packet) -> None:
        self._table, self._packet = table, packet
        self._ends: defaultdict[tuple[End, PacketState], float] = defaultdict(float)

    def base(self, hook: Hook, weights: Weights) -> Mapping[tuple[End, PacketState], float]:
        """Through the base chains at a hook."""
        place = (hook.number, hook.priority)
        for name, chain in self._table.chains.items():
            if chain.hook and chain.hook[:2] == place:
                weights = self._chain(name, weights, 0)
        for state, chance in weights.items():
            self._ends["accept", state] += chance
        return self._ends

    def _chain(self, name: str, weights: Weights, depth: int) -> Weights:
        """Those that come back to the chain that led here."""
        chain = self._table.chains.get(name)
        if chain is None or depth > _DEEPEST:
            raise NotUnderstood(f"there is no chain {name}" if chain is None else f"chain {name} leads to itself")
        back: _Chances = defaultdict(float)
        for expressions in chain.rules:
            going: _Chances = defaultdict(float)
            for state, chance in weights.items():
                for rule in RuleRun(self._table, self._packet, name, state, chance).run(expressions):
                    self._follow(rule, going, back, depth)
            weights = going
        for state, chance in weights.items():
            back[state] += chance
        return back

    def _follow(self, rule: RuleRun, going: _Chances, back: _Chances, depth: int) -> None:
        """Where one run of a rule leads."""
        state, chance = rule.state, rule.chance
        match rule.verdict:
            case None:
                going[state] += chance
            case (e.Verdict.JUMP, chain):
                for returned, part in self._chain(chain, {state: chance}, depth + 1).items():
                    going[returned] += part
            case (e.Verdict.GOTO, chain):
                for returned, part in self._chain(chain, {state: chance}, depth + 1).items():
                    back[returned] += part
            case (e.Verdict.RETURN, _):
                back[state] += chance
            case (e.Verdict.DROP, _):
                self._ends["dropped", state] += chance
            case (e.Verdict.ACCEPT, _):
                self._ends["accept", state] += chance
            case "refused":
                self._ends["refused", state] += chance
