"""kube-proxy's chains of nftables mode, followed as a packet would, for each kind of source. Pure. One family at a time.

    service-ips -> service-* (all endpoints), local-* (local ones), external-* -> service-*, local-*
    up to v1.33:  service-* -> endpoint-* (one endpoint) by a map of verdicts; since: by a map of addresses and ports

What a rule means is read off the rule; one that kube-proxy does not write is noted and not followed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec.structs import replace

from proxy.migrate.nft_rules import Action, Condition, Step
from proxy.migrate.nft_table import NftTable
from proxy.migrate.notes import Notes
from proxy.migrate.outcomes import Outcome, Source, flagged, merged
from rules.elements import Sources
from rules.expressions import Verdict

DETECTOR_SAMPLE: Final = 1000
NOT_OURS: Final = "not a rule that kube-proxy writes: it was not followed"
CLUSTER_IPS: Final = "cluster-ips"
_NAME: Final = re.compile(r"[a-z]+-[A-Z2-7]{8}-([^/]+)/([^/]+)/[a-z]+/([^/_]*)(?:__.*)?")


def name_of(chain: str) -> str:
    """ "namespace/name:port" in a chain's name; "" if there is none."""
    found = _NAME.fullmatch(chain)
    return f"{found[1]}/{found[2]}{':' if found[3] else ''}{found[3]}" if found else ""


class NftChains:
    """notes: takes what is not understood."""

    def __init__(self, table: NftTable, notes: Notes) -> None:
        self._table, self._notes = table, notes
        self._known: dict[tuple[str, Source], Outcome] = {}
        self._bits = 8 * table.family.address_size
        self._marking = {
            name
            for name, steps in islice(table.chains.items(), DETECTOR_SAMPLE)
            if steps and all(map(_only_marks, steps))
        }
        """Chains that others jump to for their mark (up to v1.33)."""
        marks = Counter(a.code for steps in table.chains.values() for s in steps for a in s.actions if a.kind == "mark")
        self.mark = marks.most_common(1)[0][0] if marks else 0
        """Most chains' bit; 0: none sets one."""
        self.detector = self._find_detector()
        """How a pod's packet is told; None if kube-proxy does not tell them."""
        self.marked: set[str] = set()
        """Chains that were met which have what goes to a clusterIP from elsewhere masqueraded (up to v1.33)."""

    def through(self, name: str, source: Source) -> Outcome:
        """What a chain service-*, local-*, external-* or endpoint-* does."""
        if not name.startswith("external-"):
            source = Source.OUTSIDE  # they make no difference
        if leaf := self._table.leaves.get(name):
            return Outcome(frozenset((leaf.endpoint,)), protocols=_protocols(leaf.protocol))
        found = self._known.get((name, source))
        if found is None:
            self._known[name, source] = Outcome()  # whoever comes back here goes round in circles
            before = self._notes.seen
            if name not in self._table.chains:
                self._notes.remark(self.called(name), "it is not there, and a rule leads to it")
            found = self._known[name, source] = flagged(self._follow(name, source), before, self._notes.seen)
        return found

    def sources(self, name: str) -> Sources | None:
        """Who gets through a chain firewall-*; None: everybody."""
        allowed: list[tuple[bytes, bytes]] | None = None
        for step in self._table.chains.get(name, ()):
            is_drop = [(a.kind, a.code) for a in step.actions] == [("verdict", Verdict.DROP)]
            if step.unknown or not is_drop or len(step.conditions) != 1 or not step.conditions[0].negated or allowed:
                self.note(name, step)
                continue
            allowed = self._range_of(step.conditions[0])
            if allowed is None:
                self.note(name, step)
        return None if allowed is None else merged(allowed)

    def note(self, chain: str, step: Step) -> None:
        cause = f"it has expressions that kube-proxy does not use: {step.unknown}" if step.unknown else NOT_OURS
        words = [*(_condition_text(c) for c in step.conditions), *(_action_text(a) for a in step.actions)]
        self._notes.add(
            f"{self._table.family.nft} kube-proxy, chain {chain}: {' '.join(words) or 'a rule'}"[:300], cause
        )

    def _follow(self, name: str, source: Source) -> Outcome:
        masquerade = doubtful = damaged = False
        sticky: dict[str, str] = {}
        protocols = frozenset[int]()
        for step in self._table.chains.get(name, ()):
            if step.unknown:
                self.note(name, step)
                continue
            if remembered := self._remembered(step):
                sticky[remembered[0]] = remembered[1]
                continue
            if not self._matches(name, step, source):
                continue
            protocols |= _protocols_of(step)
            for action in step.actions:
                if action.kind == "mark":
                    if not name.startswith("external-"):
                        self.note(name, step)
                    if action.code == self.mark:
                        masquerade = True
                    else:
                        self._notes.remark(self.called(name), "it sets another mark than the one that is masqueraded")
                    continue
                found, ends = self._act(name, step, action, source, sticky)
                masquerade |= found.masquerade
                doubtful |= found.doubtful
                damaged |= found.damaged
                if ends or found.ends:
                    protocols |= found.protocols
                    return replace(
                        found, masquerade=masquerade, protocols=protocols, doubtful=doubtful, damaged=damaged
                    )
        if sticky:
            self._notes.remark(self.called(name), "session affinity, and no way to an endpoint for new clients")
            endpoints = frozenset(leaf.endpoint for to in sticky if (leaf := self._table.leaves.get(to)))
            return Outcome(endpoints, masquerade)
        return Outcome(masquerade=masquerade, protocols=protocols, doubtful=doubtful, damaged=damaged)

    def _act(
        self, name: str, step: Step, action: Action, source: Source, sticky: dict[str, str]
    ) -> tuple[Outcome, bool]:
        """What an action does, and whether it is the last one."""
        match action.kind:
            case "verdict" if action.code in (Verdict.GOTO, Verdict.JUMP):
                if str(action.value) in self._marking:
                    return Outcome(masquerade=True), action.code == Verdict.GOTO
                return self.through(str(action.value), source), action.code == Verdict.GOTO
            case "verdict":
                return Outcome(refusal="drop" if action.code == Verdict.DROP else ""), True
            case "reject":
                return Outcome(refusal="reject"), True
            case "endpoint":
                endpoints = frozenset((bytes(action.value),))  # type: ignore[arg-type]
                return Outcome(endpoints, protocols=_protocols_of(step)), True
            case "translate":
                return Outcome(frozenset(self._numbered(name, action)), protocols=_protocols_of(step)), True
            case "balance":
                chosen = [to.decode(errors="replace") for to in self._numbered(name, action)]
                return self._balance(name, chosen, sticky), True
            case _:
                self.note(name, step)
                return Outcome(), False

    def _numbered(self, name: str, action: Action) -> tuple[bytes, ...]:
        found = self._table.numbered.get(str(action.value), ())
        if len(found) != action.code:
            cause = f"it draws a number below {action.code} for a map of {len(found)}"
            self._notes.remark(self.called(name), cause)
        elif str(action.value) in self._table.gaps:
            self._notes.remark(self.called(name), "it draws numbers that its map does not have")
        elif len(set(found)) < len(found):
            self._notes.remark(self.called(name), "an endpoint is there more than once")
        return found

    def _balance(self, name: str, chosen: list[str], sticky: dict[str, str]) -> Outcome:
        endpoints, remembered, protocols = set(), set(), set[int]()
        for to in dict.fromkeys([*chosen, *sticky]):
            leaf = self._table.leaves.get(to)
            if leaf is None:
                self._notes.remark(self.called(to), "it leads to no endpoint")
                continue
            endpoints.add(leaf.endpoint)
            protocols |= _protocols(leaf.protocol)
            of = self._table.sets.get(leaf.remembers)
            kept = of is not None and to in chosen and sticky.get(to) == leaf.remembers
            remembered.add(of.timeout // 1000 if of is not None and kept else 0)
        affinity = next(iter(remembered)) if len(remembered) == 1 else 0
        if sticky and not affinity:
            self._notes.remark(
                self.called(name), "session affinity for some endpoints, and not, or otherwise, for others"
            )
        return Outcome(frozenset(endpoints), affinity=affinity, protocols=frozenset(protocols))

    def _remembered(self, step: Step) -> tuple[str, str] | None:
        """(chain of an endpoint, set of its clients), if this is the rule that keeps clients where they were."""
        if len(step.conditions) == len(step.actions) == 1 and step.conditions[0].kind == "source-in":
            condition, action = step.conditions[0], step.actions[0]
            if action.kind == "verdict" and str(action.value) in self._table.leaves and not condition.negated:
                return str(action.value), str(condition.value)
        return None

    def _matches(self, name: str, step: Step, source: Source) -> bool:
        """Noted, if that cannot be told."""
        kinds = {condition.kind for condition in step.conditions}
        if self._marks(step) and ("destination" in kinds or self._is_hairpin(step)):
            if "destination" in kinds:
                self.marked.add(name)
            return False  # for the clusterIP; or what an endpoint sends to itself
        result = True
        if not name.startswith("external-") and kinds & {"source", "interface", "from-node"}:
            self.note(name, step)  # they make no difference
            return False
        for condition in step.conditions:
            match condition.kind:
                case "protocol" if not condition.negated:
                    continue
                case "from-node":
                    result &= (source is Source.NODE) is not condition.negated
                case "source" | "interface" if _what(condition) == self.detector:
                    result &= (source is Source.POD) is not condition.negated
                case _:
                    self.note(name, step)
                    return False
        return result

    def marks_cluster_ips(self) -> bool:
        """Whether one rule has what goes to any clusterIP from elsewhere masqueraded (since v1.33)."""
        return any(map(self.marks_any_cluster_ip, self._table.chains.get("services", ())))

    def marks_any_cluster_ip(self, step: Step) -> bool:
        """Whether this is that rule: for all senders, or for all but pods."""
        if step.unknown or not step.actions or not self._marks(step):
            return False
        of = [c for c in step.conditions if c.kind == "destination-in" and c.value == CLUSTER_IPS and not c.negated]
        rest = [c for c in step.conditions if c not in of]
        return len(of) == 1 and all(c.negated and _what(c) == self.detector for c in rest)

    def called(self, name: str) -> str:
        """A chain, for people, with the Service in its name."""
        service = name_of(name).partition(":")[0]
        return f"Service {service}, chain {name}" if service else f"chain {name}"

    def is_marking(self, name: str) -> bool:
        """Whether a chain is there for its mark alone (up to v1.33)."""
        return name in self._marking

    def only_marks(self, step: Step) -> bool:
        """Whether it is the one rule of a chain that others jump to for its mark (up to v1.33)."""
        return any(step in self._table.chains[name] for name in self._marking)

    def _marks(self, step: Step) -> bool:
        return all(
            (a.kind, a.code) == ("mark", self.mark) or (a.kind == "verdict" and str(a.value) in self._marking)
            for a in step.actions
        )

    def _is_hairpin(self, step: Step) -> bool:
        return [(c.kind, c.bits) for c in step.conditions] == [("source", self._bits)]

    def _range_of(self, condition: Condition) -> list[tuple[bytes, bytes]] | None:
        match condition.kind:
            case "source":
                size = self._bits // 8
                first = bytes(condition.value).ljust(size, b"\0")  # type: ignore[arg-type]
                last = int.from_bytes(first) | ((1 << (self._bits - condition.bits)) - 1)
                return [(first, last.to_bytes(size))]
            case "source-range":
                value = bytes(condition.value)  # type: ignore[arg-type]
                return [(value[: len(value) // 2], value[len(value) // 2 :])]
            case "source-in" if condition.value in self._table.ranges:
                return self._table.ranges[str(condition.value)]
            case "source-in" if condition.value in self._table.members:
                return [(address, address) for address in self._table.members[str(condition.value)]]
        return None

    def _find_detector(self) -> tuple[str, bytes, int] | None:
        """Most rules decide: one that is different is not kube-proxy's, or damaged."""
        found: Counter[tuple[str, bytes, int]] = Counter()
        chains = self._table.chains
        wanted = (name for name in chains if name.startswith(("external-", "service-", "local-")))
        for name in ["services", *islice(wanted, DETECTOR_SAMPLE)]:
            for step in chains.get(name, ()):
                found.update(self._tells_pods(step))
        return found.most_common(1)[0][0] if found else None

    def _tells_pods(self, step: Step) -> Iterator[tuple[str, bytes, int]]:
        for condition in step.conditions:
            if condition.kind == "interface" or (condition.kind == "source" and condition.bits < self._bits):
                yield _what(condition)


def _protocols(number: int) -> frozenset[int]:
    return frozenset((number,)) if number else frozenset()


def _protocols_of(step: Step) -> frozenset[int]:
    """That its condition names."""
    return frozenset(bytes(c.value)[0] for c in step.conditions if c.kind == "protocol" and not c.negated)  # type: ignore[arg-type]


def _only_marks(step: Step) -> bool:
    return bool(step.actions) and not step.conditions and all(action.kind == "mark" for action in step.actions)


def _what(condition: Condition) -> tuple[str, bytes, int]:
    value = condition.value
    return condition.kind, value.encode() if isinstance(value, str) else value, condition.bits


def _condition_text(condition: Condition) -> str:
    value = condition.value if isinstance(condition.value, str) else condition.value.hex()
    return f"{condition.kind} {'!= ' if condition.negated else ''}{value}".strip()


def _action_text(action: Action) -> str:
    value = action.value if isinstance(action.value, str) else action.value.hex()
    kind = (
        Verdict(action.code).name.lower() if action.kind == "verdict" and action.code in list(Verdict) else action.kind
    )
    return f"{kind} {value}".strip()
