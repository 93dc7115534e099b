"""What one of kube-proxy's nftables tables has once for all Services: the ways to its maps, masquerading, drops. Pure."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator
from typing import Final

from proxy.migrate.entries import EVERYBODY
from proxy.migrate.nft_chains import CLUSTER_IPS, NftChains
from proxy.migrate.nft_doubts import Doubt
from proxy.migrate.nft_places import (
    FORWARD,
    INPUT,
    OUTPUT,
    POSTROUTING,
    PREROUTING,
    is_after_translation,
    is_before_translation,
    is_usual,
    sees_states,
    text_of,
)
from proxy.migrate.nft_rules import Action, Condition, Step
from proxy.migrate.nft_table import NftTable
from proxy.migrate.notes import Notes
from proxy.migrate.outcomes import merged
from rules.elements import Sources
from rules.expressions import Verdict
from rules.foreign import TABLE_DORMANT, ForeignChain

SERVICE_IPS, NODE_PORTS = "service-ips", "service-nodeports"
NO_ENDPOINTS, NO_NODE_PORTS = "no-endpoint-services", "no-endpoint-nodeports"
FIREWALL, HAIRPINS, UNALLOCATED = "firewall-ips", "hairpin-connections", "cluster-ips-check"
NEW, INVALID = 8, 1  # of a connection's state
HARMLESS: Final = ("", "log", "limit", "quota", "last", "connlimit")
"""Expressions behind which nothing is different."""
PATHS: Final = (
    ("nat", PREROUTING, SERVICE_IPS, "connections from pods and from outside reach no Service"),
    ("nat", OUTPUT, SERVICE_IPS, "connections from this node reach no Service"),
    ("nat", PREROUTING, NODE_PORTS, "connections from outside reach no NodePort"),
    ("filter", FORWARD, NO_ENDPOINTS, "connections to Services without endpoints are not refused"),
    ("filter", OUTPUT, NO_ENDPOINTS, "connections from this node to Services without endpoints are not refused"),
    ("filter", INPUT, NO_NODE_PORTS, "connections to NodePorts without endpoints are not refused"),
    ("filter", PREROUTING, FIREWALL, "source ranges keep nobody out"),
    ("filter", OUTPUT, FIREWALL, "source ranges do not keep out what this node sends"),
)
"""Maps that some base chain has to ask: its type, its hook, the map, and what follows if it does not."""


class NftBase:
    def __init__(self, table: NftTable, chains: NftChains, notes: Notes) -> None:
        self._table, self._chains, self._notes = table, chains, notes
        self.concerned: set[str] = set()
        """Maps and sets whose keys' traffic is not as it should be; "all": everybody's."""
        self.doubts: list[Doubt] = []
        """Rules on the way of all packets that were not understood."""

    def check(self) -> None:
        """That packets come by at all, and are masqueraded."""
        table = f"table {self._table.family.nft} kube-proxy"
        if self._table.flags & TABLE_DORMANT:
            self._all_concerned(table, "it is dormant: none of its rules is in force")
        for base in self._table.bases:
            if base.policy == 0:
                rest = "what is led to no Service" if base.type == "nat" else "what no rule of it accepts"
                self._all_concerned(f"{table}: {text_of(base)}", f"its policy is drop: {rest} is dropped")
            self._check_place(table, base)
        for base in self._table.bases:
            self._check_way(base)
        for kind, hook, map_name, otherwise in PATHS:
            if map_name not in self._table.maps:
                self._notes.remark(f"{table}: map {map_name}", "it is not there")
            elif self._table.maps[map_name] and not self._is_asked(kind, hook, map_name):
                self._notes.remark(f"{table}: no base chain leads to map {map_name}", otherwise)
                self.concerned.add(map_name)
        masquerading = [
            step
            for chain, step in self._reached("nat", POSTROUTING)
            if _masquerades(step) and self._is_known(chain, step)
        ]
        if self._chains.mark and not self._is_masqueraded(marked=True):
            self._all_concerned(table, "nothing is masqueraded" + (" but hairpin connections" if masquerading else ""))
        if self._is_masqueraded(marked=False):
            self._all_concerned(table, "everything is masqueraded, and not only what is marked for it")
        if HAIRPINS in self._table.members and not any(
            condition.kind == "hairpin" for step in masquerading for condition in step.conditions
        ):
            self._notes.remark(table, "an endpoint that connects to itself is not masqueraded")
        self._check_drops(table)

    def pods(self) -> str:
        """As in Beside.pods."""
        marking = [s for s in self._table.chains.get("services", ()) if self._chains.marks_any_cluster_ip(s)]
        if any(len(step.conditions) == 1 for step in marking):
            return EVERYBODY
        if self._chains.detector is None:
            return ""
        kind, value, bits = self._chains.detector
        if kind == "interface":
            name = value.rstrip(b"\0").decode(errors="replace")
            return name if value.endswith(b"\0") or len(value) == 16 else f"{name}*"
        address = value.ljust(self._table.family.address_size, b"\0")
        return f"{ipaddress.ip_address(address)}/{bits}"

    def hairpins(self) -> frozenset[bytes] | None:
        """As in Beside.hairpins; each element is source . destination . protocol . port, in words of 4 bytes."""
        if HAIRPINS not in self._table.members:
            return None
        size = self._table.family.address_size
        return frozenset(
            key[2 * size : 2 * size + 1] + key[size : 2 * size] + key[2 * size + 4 : 2 * size + 6] + b"\0\0"
            for key in self._table.members[HAIRPINS]
            if len(key) == 2 * size + 8 and key[:size] == key[size : 2 * size]
        )

    def dropped(self) -> Sources | None:
        """As in Beside.dropped. None: this version does not drop what goes to unallocated addresses."""
        if UNALLOCATED not in self._table.chains:
            return None
        found: list[tuple[bytes, bytes]] = []
        size = self._table.family.address_size
        for step in self._table.chains[UNALLOCATED]:
            if [(action.kind, action.code) for action in step.actions] != [("verdict", Verdict.DROP)]:
                continue
            for condition in step.conditions:
                if condition.kind == "destination" and not condition.negated:
                    first = bytes(condition.value).ljust(size, b"\0")  # type: ignore[arg-type]
                    last = int.from_bytes(first) | ((1 << (8 * size - condition.bits)) - 1)
                    found.append((first, last.to_bytes(size)))
                elif condition.kind == "destination-in" and not condition.negated:
                    found += self._table.ranges.get(str(condition.value), ())
        return merged(found)

    def _check_drops(self, table: str) -> None:
        if UNALLOCATED not in self._table.chains:
            return
        for hook in (FORWARD, OUTPUT):
            ends = [step for _, step in self._reached("filter", hook) if _is_about_cluster_ips(step)]
            if self._table.members.get(CLUSTER_IPS) and not ends:
                where = f"{table}: {'forward' if hook == FORWARD else 'output'}"
                self._notes.remark(where, "what goes to a clusterIP's other ports is not refused")

    def _is_asked(self, kind: str, hook: int, map_name: str) -> bool:
        steps = (step for chain, step in self._reached(kind, hook) if self._is_known(chain, step))
        return any(asks(action, map_name) for step in steps for action in step.actions)

    def _check_place(self, table: str, base: ForeignChain) -> None:
        """That a base chain sees packets as it has to: with a Service's address, or with an endpoint's."""
        steps = [step for _, step in self._from(base)]
        where = f"{table}: {text_of(base)}"
        asks_state = any(
            _needs_state(condition)
            for chain in self._under(base)
            for step in self._table.chains.get(chain, ())
            for condition in step.conditions
        )
        if base.type == "filter" and base.hook in (PREROUTING, OUTPUT):
            if not sees_states(base) and asks_state:
                cause = (
                    "it comes before connections are tracked: none is new to it, and its rules for new ones do nothing"
                )
                self._notes.remark(where, cause)
            elif not is_before_translation(base) and any(asks(a, FIREWALL) for s in steps for a in s.actions):
                cause = "it comes when destinations have been translated: source ranges keep nobody out"
                self._notes.remark(where, cause)
                self.concerned.add(FIREWALL)
            elif not is_after_translation(base) and any(map(self._ends_cluster_ips, steps)):
                cause = "it comes before destinations are translated: connections to all clusterIPs are refused"
                self._notes.remark(where, cause)
                self.concerned.add(CLUSTER_IPS)
            else:
                self._check_priority(where, base)
        elif base.type != "nat":  # those are judged beside other programs'
            self._check_priority(where, base)

    def _check_priority(self, where: str, base: ForeignChain) -> None:
        if not is_usual(base):
            self._notes.remark(where, "kube-proxy gives it another priority; no packet fares differently by that alone")

    def _ends_cluster_ips(self, step: Step) -> bool:
        """Whether it refuses or drops what goes to clusterIPs."""
        is_drop = [(action.kind, action.code) for action in step.actions] == [("verdict", Verdict.DROP)]
        return _is_about_cluster_ips(step) or (is_drop and step in self._table.chains.get(UNALLOCATED, ()))

    def _check_way(self, base: ForeignChain) -> None:
        """That what comes by a base chain meets no rule that kube-proxy does not write."""
        for chain in self._under(base):
            asked: set[str] = set()
            for step in self._table.chains.get(chain, ()):
                if not self._is_known(chain, step):
                    self._chains.note(chain, step)
                    if step.actions or not _is_harmless(step):
                        self.doubts.append(Doubt(base, step, frozenset(asked)))
                    continue
                asked |= {str(a.value) for a in step.actions if a.kind == "dispatch"}

    def _all_concerned(self, what: str, cause: str) -> None:
        self._notes.remark(what, cause)
        self.concerned.add("all")

    def _is_masqueraded(self, *, marked: bool) -> bool:
        """What becomes of a packet with the mark, or without, that is no endpoint's to itself."""
        bases = [base.name for base in self._table.bases if (base.type, base.hook) == ("nat", POSTROUTING)]
        return any(self._ends(name, marked, set()) == "masquerade" for name in bases)

    def _ends(self, chain: str, marked: bool, seen: set[str]) -> str:
        """How its way through a chain ends: "masquerade", "return", another verdict; "" if nothing ends it."""
        seen.add(chain)
        for step in self._table.chains.get(chain, ()):
            if step.unknown or any(condition.kind != "mark" for condition in step.conditions):
                continue
            # Of another bit, a packet of ours has none.
            if any(c.negated is not (marked and c.value == self._bit) for c in step.conditions):
                continue
            for action in step.actions:
                if action.kind == "masquerade":
                    return "masquerade"
                if action.kind != "verdict":
                    continue
                if action.code == Verdict.RETURN:
                    return "return"
                to = str(action.value)
                found = self._ends(to, marked, seen) if to and to not in seen else "" if to else "verdict"
                if found not in ("", "return"):
                    return found
        return ""

    @property
    def _bit(self) -> bytes:
        return self._chains.mark.to_bytes(4, sys.byteorder)

    def _is_known(self, chain: str, step: Step) -> bool:
        """Whether kube-proxy writes such a rule there."""
        if step.unknown:
            return False
        if not step.actions:
            return not step.conditions  # the mark is taken away
        if step.actions[0].kind == "mark":
            return self._chains.marks_any_cluster_ip(step) or self._chains.only_marks(step)
        kinds, action = [condition.kind for condition in step.conditions], step.actions[0]
        match action.kind:
            case "dispatch" if action.value in (SERVICE_IPS, NO_ENDPOINTS, FIREWALL):
                return not kinds
            case "dispatch":
                return action.value in (NODE_PORTS, NO_NODE_PORTS) and _is_to_node(step, action.value == NO_NODE_PORTS)
            case "verdict" if action.code == Verdict.JUMP and self._chains.is_marking(str(action.value)):
                return self._chains.marks_any_cluster_ip(step)
            case "verdict" if action.code == Verdict.JUMP:
                return all(map(_is_of_new, step.conditions))
            case "verdict" if action.code == Verdict.DROP and kinds == ["state"]:  # v1.29, of what is invalid
                return step.conditions[0].value == INVALID.to_bytes(4, sys.byteorder)
            case "verdict" if action.code == Verdict.DROP and chain == UNALLOCATED:
                return len(kinds) == 1 and kinds[0] in ("destination", "destination-in") and _is_positive(step)
            case "verdict" if action.code == Verdict.RETURN:  # up to v1.32, of what has no mark
                return step.conditions == (Condition("mark", self._bit),)
            case "reject":
                return not kinds or (len(kinds) == 1 and _is_about_cluster_ips(step))
            case "masquerade":
                is_marked = step.conditions == (Condition("mark", self._bit, negated=True),)
                is_hairpin = [(c.kind, c.negated) for c in step.conditions] == [("status", True), ("hairpin", False)]
                return is_marked or is_hairpin or not kinds  # up to v1.32: behind a rule that returns
        return False

    def _reached(self, kind: str, hook: int) -> Iterator[tuple[str, Step]]:
        """All rules of base chains, and of those that they jump to, and the chains that they are in."""
        for base in self._table.bases:
            if (base.type, base.hook) == (kind, hook):
                yield from self._from(base)

    def _from(self, base: ForeignChain) -> Iterator[tuple[str, Step]]:
        """The same of one base chain; but for what no packet gets to there."""
        for chain in self._under(base, sees_states(base)):
            for step in self._table.chains.get(chain, ()):
                if sees_states(base) or not any(map(_needs_state, step.conditions)):
                    yield chain, step

    def _under(self, base: ForeignChain, has_states: bool = True) -> list[str]:
        """A base chain, and those that its rules jump to."""
        found = [base.name]
        for chain in found:
            for step in self._table.chains.get(chain, ()):
                if not has_states and any(map(_needs_state, step.conditions)):
                    continue
                for action in step.actions:
                    if action.kind == "verdict" and str(action.value) and str(action.value) not in found:
                        found.append(str(action.value))
        return found


def asks(action: Action, map_name: str) -> bool:
    return action.kind == "dispatch" and action.value == map_name


def _is_positive(step: Step) -> bool:
    return not any(condition.negated for condition in step.conditions)


def _is_of_new(condition: Condition) -> bool:
    """Of a connection's state: nothing new is left out."""
    value = condition.value if isinstance(condition.value, bytes) else b""
    return condition.kind == "state" and condition.negated and bool(int.from_bytes(value, sys.byteorder) & NEW)


def _is_harmless(step: Step) -> bool:
    """Of a rule without an action that is understood: whether it changes nothing."""
    return all(name in HARMLESS or name.startswith(("comparison", "lookup")) for name in step.unknown.split(", "))


def _needs_state(condition: Condition) -> bool:
    """Whether a packet whose connection is not tracked does not match."""
    value = condition.value if isinstance(condition.value, bytes) else b""
    return condition.kind == "state" and condition.negated and not int.from_bytes(value, sys.byteorder) & INVALID


def _is_to_node(step: Step, is_input: bool) -> bool:
    """To addresses of the node, all or some; but for loopback. is_input: what comes there is the node's anyhow."""
    there = [c for c in step.conditions if c.kind in ("to-node", "destination-in") and not c.negated]
    rest = [c for c in step.conditions if c not in there]
    return (len(there) == 1 or (is_input and not there)) and all(c.kind == "destination" and c.negated for c in rest)


def _masquerades(step: Step) -> bool:
    return any(action.kind == "masquerade" for action in step.actions)


def _is_about_cluster_ips(step: Step) -> bool:
    ends = any(action.kind == "reject" for action in step.actions)
    return ends and any(condition.value == CLUSTER_IPS and not condition.negated for condition in step.conditions)
