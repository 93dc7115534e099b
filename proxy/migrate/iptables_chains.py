"""kube-proxy's chains of iptables mode, followed as a packet would, for each kind of source. Pure. One family at a time.

    KUBE-SERVICES -> KUBE-SVC-* (clusterIP), KUBE-EXT-* (external), KUBE-FW-* (source ranges) -> KUBE-EXT-*
    KUBE-NODEPORTS -> KUBE-EXT-* -> KUBE-SVC-* (all endpoints), KUBE-SVL-* (local ones) -> KUBE-SEP-* (one endpoint)

Before 1.24: KUBE-XLB-* for KUBE-EXT-* with the local policy, and rules that mark beside those that jump. What a rule means
is read off the rule; one that kube-proxy does not write is noted and not followed.
"""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import ip_network
from itertools import islice
from typing import Final, Literal

from msgspec.structs import replace

from proxy.migrate.iptables_keys import PROTOCOLS, is_of_key, key_of
from proxy.migrate.iptables_save import Chain, Option, Rule, Table, rule_of
from proxy.migrate.notes import Notes
from proxy.migrate.outcomes import Outcome, Source, flagged, merged
from rules.elements import address_range, endpoint
from rules.objects import Family

MARK_MASQUERADE, MARK_DROP = "KUBE-MARK-MASQ", "KUBE-MARK-DROP"
SERVICE_CHAINS: Final = ("KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-XLB-")
EXTERNAL_CHAINS: Final = ("KUBE-EXT-", "KUBE-FW-", "KUBE-XLB-")
DETECTOR_SAMPLE: Final = 1000

HARMLESS: Final = ("", "LOG", "NFLOG", "TRACE")
"""Targets behind which nothing is different."""
NOT_OURS: Final = "not a rule that kube-proxy writes: it was not followed"
Marking = Literal["elsewhere", "all"]
"""Who is masqueraded on the way to a clusterIP: who is no pod, or everybody."""
_MASK: Final = rb"(?: --mask (?:255\.255\.255\.255|ffff(?::ffff){7}))?"
_COMMENT: Final = rb'(?: -m comment --comment (?:"[^"\\\n]*+"|[^\s"]++))?'
_START: Final = rb"(?:\[\d++:\d++\] )?-A \S++"
_TO_ENDPOINT: Final = re.compile(
    _START + _COMMENT + rb"(?: -m statistic --mode random --probability ([\d.]++)"
    rb"| -m recent --rcheck --seconds (\d++)(?: --reap)? --name (\S++)" + _MASK + rb" --rsource)? -j (KUBE-SEP-\S++)\n"
)
_HAIRPIN: Final = re.compile(_START + rb" -s ([^\s/]++)(?:/32|/128)" + _COMMENT + rb" -j KUBE-MARK-MASQ\n")
_TRANSLATE: Final = re.compile(
    _START + rb" -p (\w++)" + _COMMENT + rb"(?: -m recent --set --name (\S++)" + _MASK + rb" --rsource)?"
    rb"(?: -m (?:tcp|udp|sctp))? -j DNAT --to-destination (\S++)\n"
)

_SERVICE: Final = re.compile(rb'--comment "?([a-z0-9.-]+/[a-z0-9.-]+)')


class Chains:
    """nat: the table. notes: takes what is not understood."""

    def __init__(self, family: Family, nat: Table, notes: Notes) -> None:
        self._family, self._nat, self._notes = family, nat, notes
        self._known: dict[tuple[str, Source], Outcome] = {}
        self.detector = _detector(nat)
        """How a pod's packet is told: "-s 10.244.0.0/16", "-i cbr0"; "" if kube-proxy does not tell them."""
        self.marking: dict[tuple[str, bytes], Marking] = {}
        """(chain, key) of rules that were met which have what goes to a clusterIP masqueraded."""

    def follow(self, rules: Iterable[Rule], source: Source) -> Outcome:
        """What these rules do, one after another."""
        before = self._notes.seen
        return flagged(self._follow(rules, source), before, self._notes.seen)

    def _follow(self, rules: Iterable[Rule], source: Source) -> Outcome:
        masquerade = doubtful = damaged = False
        for rule in rules:
            if _is_for_cluster_ip(rule):
                self._mark_cluster_ip(rule)
                continue
            if not self._matches(rule, source):
                continue
            if rule.goto:  # it would not come back to the next rule
                self.note(rule, NOT_OURS)
            elif rule.target == MARK_MASQUERADE:
                masquerade = True
            elif rule.target in (MARK_DROP, "DROP"):
                return Outcome(masquerade=masquerade, refusal="drop", doubtful=doubtful, damaged=damaged)
            elif rule.target.startswith(SERVICE_CHAINS):
                found = self.through(rule.target, source)
                masquerade |= found.masquerade
                doubtful |= found.doubtful
                damaged |= found.damaged
                if found.ends:
                    return replace(found, masquerade=masquerade, doubtful=doubtful, damaged=damaged)
            elif rule.target:
                self.note(rule, NOT_OURS)
        return Outcome(masquerade=masquerade, doubtful=doubtful, damaged=damaged)

    def _mark_cluster_ip(self, rule: Rule) -> None:
        """Who comes to its clusterIP another way is not meant."""
        key, who = key_of(rule, self._family), "all"
        for option in rule.matches:
            if option.name in ("-s", "-i") and option.negated and f"{option.name} {option.value}" == self.detector:
                who = "elsewhere"
            elif not is_of_key(option):
                key = b""
        if not key or rule.goto:
            self.note(rule, NOT_OURS)
        elif self.marking.get((rule.chain, key)) != "all":
            self.marking[rule.chain, key] = who  # type: ignore[assignment]

    def through(self, name: str, source: Source) -> Outcome:
        """What a chain KUBE-SVC-*, KUBE-SVL-*, KUBE-EXT-*, KUBE-FW-* or KUBE-XLB-* does."""
        if name.startswith(("KUBE-SVC-", "KUBE-SVL-")):
            source = Source.OUTSIDE  # they make no difference
        found = self._known.get((name, source))
        if found is None:
            self._known[name, source] = Outcome()  # whoever comes back here goes round in circles
            before = self._notes.seen
            chain = self._nat.get(name)
            if chain is None:
                self._notes.remark(f"chain {name}", "it is not there, and a rule leads to it")
                found = Outcome()
            elif name.startswith("KUBE-FW-"):
                found = self._firewall(name, chain, source)
            else:
                found = self._balance(name, chain, source)
            found = self._known[name, source] = flagged(found, before, self._notes.seen)
        return found

    def note(self, rule: Rule, cause: str) -> None:
        self._notes.add(f"{self._family.nft} nat: {text_of(rule)}", cause)

    def rules(self, lines: Iterable[str]) -> Iterator[Rule]:
        """Each rule; those that cannot be are noted."""
        for line in lines:
            try:
                yield rule_of(line)
            except ValueError as error:
                self._notes.add(f"{self._family.nft} nat: {line[:200]}", str(error).partition(":")[0])

    def called(self, name: str) -> str:
        """A chain, for people, with the Service that its comments name."""
        chain = self._nat.get(name)
        for start, end in chain.blocks() if chain else ():
            if found := _SERVICE.search(chain.text, start, end):  # type: ignore[union-attr]
                return f"Service {found[1].decode(errors='replace')}, chain {name}"
        return f"chain {name}"

    def _matches(self, rule: Rule, source: Source) -> bool:
        """Noted, if that cannot be told."""
        result = True
        if rule.chain.startswith(("KUBE-SVC-", "KUBE-SVL-")) and any(map(_is_of_source, rule.matches)):
            self.note(rule, NOT_OURS)  # they make no difference
            return False
        for option in rule.matches:
            match option.name:
                case "" if option.module in PROTOCOLS:
                    continue
                case "--comment" | "--nfacct-name":
                    continue
                case "-d" | "-p" | "--dport" if (
                    rule.chain in ("KUBE-SERVICES", "KUBE-NODEPORTS") and not option.negated
                ):
                    continue
                case "--src-type" if option.value == "LOCAL":
                    result &= (source is Source.NODE) is not option.negated
                case "--dst-type" if option.value == "LOCAL" and not option.negated:
                    continue
                case "--physdev-is-in" if option.negated:  # it did not come over a bridge, as pods' packets do
                    result &= source is not Source.POD
                case "-s" if option.value == "127.0.0.0/8" and not option.negated:
                    result = False
                case "-s" | "-i" if f"{option.name} {option.value}" == self.detector:
                    result &= (source is Source.POD) is not option.negated
                case _:
                    self.note(rule, NOT_OURS)
                    return False
        return result

    def _firewall(self, name: str, chain: Chain, source: Source) -> Outcome:
        """KUBE-FW-*: the source ranges, each with a jump to the same chain; what is left is dropped."""
        ranges: list[tuple[bytes, bytes]] = []
        plain: list[Rule] = []
        before_ranges = 0
        targets: dict[str, None] = {}
        for rule in self.rules(chain.lines()):
            only = [option for option in rule.matches if option.name != "--comment"]
            if (
                len(only) == 1
                and only[0].name == "-s"
                and not only[0].negated
                and rule.target.startswith(SERVICE_CHAINS)
            ):
                try:
                    ranges.append(address_range(ip_network(only[0].value)))
                except ValueError:
                    self.note(rule, NOT_OURS)
                targets[rule.target] = None
                before_ranges = len(plain)
            else:
                plain.append(rule)
        if not ranges:
            return self.follow(plain, source)
        for rule in plain[:before_ranges]:
            if rule.target not in ("", MARK_MASQUERADE):
                self.note(rule, NOT_OURS)
        if len(targets) > 1:
            self._notes.remark(f"chain {name}", f"leads to {' and to '.join(targets)}: taken for the first")
        before = self.follow((rule for rule in plain if rule.target == MARK_MASQUERADE), source)
        rest = self.follow((rule for rule in plain if rule.target != MARK_MASQUERADE), source)
        if rest.endpoints:
            return rest  # the ranges keep nobody out
        found = self.through(next(iter(targets)), source)
        return replace(
            found,
            masquerade=found.masquerade or before.masquerade,
            sources=merged(ranges),
            doubtful=found.doubtful or before.doubtful or rest.doubtful,
            damaged=found.damaged or before.damaged or rest.damaged,
        )

    def _balance(self, name: str, chain: Chain, source: Source) -> Outcome:
        """A chain that leads to endpoints by chance, or by affinity; or to another chain."""
        text, chosen, sticky, others = chain.text, dict[bytes, None](), dict[bytes, tuple[int, bytes]](), list[Rule]()
        chances: list[bytes | None] = []
        for start, end in chain.blocks():
            at = start
            while at < end:
                found = _TO_ENDPOINT.match(text, at, end)
                if found is None:
                    next_at = text.index(b"\n", at) + 1
                    others += self.rules([text[at : next_at - 1].decode(errors="replace")])
                    at = next_at
                    continue
                at = found.end()
                chance, seconds, listed, to = found.groups()
                if seconds is None:
                    chosen[to] = None
                    chances.append(chance)
                elif chosen:
                    self._notes.remark(self.called(name), "session affinity comes after an endpoint was chosen")
                else:
                    sticky[to] = int(seconds), listed
        before = self.follow(others, source)
        if before.ends or not (chosen or sticky):
            return before
        if len(chances) > len(chosen):
            self._notes.remark(self.called(name), "an endpoint is there more than once")
        elif not _are_even(chances):
            self._notes.remark(self.called(name), "its endpoints are not chosen evenly")
        endpoints, remembered, protocols = set(), set(), set()
        for to in chosen | dict.fromkeys(sticky):
            packed, listed, protocol = self._endpoint(to)
            if packed:
                endpoints.add(packed)
                protocols.add(protocol)
            seconds, wanted = sticky.get(to, (0, b""))
            remembered.add(seconds if to in chosen and listed == wanted else 0)
        affinity = next(iter(remembered)) if len(remembered) == 1 else 0
        if sticky and not affinity:
            self._notes.remark(
                self.called(name), "session affinity for some endpoints, and not, or otherwise, for others"
            )
        protocol_numbers = frozenset(protocols)
        return replace(before, endpoints=frozenset(endpoints), affinity=affinity, protocols=protocol_numbers)

    def _endpoint(self, name: bytes) -> tuple[bytes, bytes, int]:
        """Where KUBE-SEP-* leads, b"" if that is nowhere; the list that it puts the client on; and the protocol."""
        chain = self._nat.get(name.decode())
        packed = listed = own = b""
        protocol = 0
        for start, end in chain.blocks() if chain else ():
            at = start
            while at < end:
                if not packed and (found := _HAIRPIN.match(chain.text, at, end)):  # type: ignore[union-attr]
                    own, at = found[1], found.end()
                    continue
                if not packed and (found := _TRANSLATE.match(chain.text, at, end)):  # type: ignore[union-attr]
                    packed, listed, at = destination(found[3]), found[2] or b"", found.end()
                    protocol = PROTOCOLS.get(found[1].decode(), 0)
                    continue
                next_at = chain.text.index(b"\n", at) + 1  # type: ignore[union-attr]
                self._notes.add(
                    f"{self._family.nft} nat: {chain.text[at : next_at - 1].decode(errors='replace')}",  # type: ignore[union-attr]
                    NOT_OURS,
                )
                at = next_at
        if not packed:
            self._notes.remark(self.called(name.decode()), "it leads to no endpoint")
        elif not own or _address(own) != packed[:-4]:
            cause = "an endpoint that connects to itself is not masqueraded"
            self._notes.remark(self.called(name.decode()), cause)
        return packed, listed, protocol


def _is_of_source(option: Option) -> bool:
    return option.name in ("-s", "-i", "--src-type", "--physdev-is-in")


def _is_for_cluster_ip(rule: Rule) -> bool:
    """Whether it marks what goes to one address, in a chain that others come to as well, or only from some."""
    if rule.target != MARK_MASQUERADE or rule.option("-d") is None:
        return False
    if rule.chain.startswith(("KUBE-SVC-", "KUBE-SVL-")):
        return True
    return rule.chain == "KUBE-SERVICES" and any(option.name in ("-s", "-i") for option in rule.matches)


def _are_even(chances: list[bytes | None]) -> bool:
    """Of n endpoints the first gets 1/n, the next 1/(n-1) of what is left; the last all of it."""
    count = len(chances)
    return all(
        chance is None if left == 1 else chance is not None and _is_about(chance, left)
        for left, chance in zip(range(count, 0, -1), chances, strict=True)
    )


@lru_cache(4096)
def _is_about(chance: bytes, left: int) -> bool:
    """Old versions write five digits."""
    try:
        return abs(float(chance) - 1 / left) < 1e-5
    except ValueError:
        return False


def _detector(nat: Table) -> str:
    """Most rules decide: one that is different is not kube-proxy's, or damaged."""
    found: Counter[str] = Counter()
    own = (chain for name, chain in nat.items() if name.startswith(SERVICE_CHAINS) and not name.startswith("KUBE-FW-"))
    for chain in islice(own, DETECTOR_SAMPLE):
        for line in islice(chain.lines(), 1):
            found.update(_sources_in(line, "KUBE-SV" in line.partition(" ")[0]))
    if not found and (services := nat.get("KUBE-SERVICES")):
        for line in islice(services.lines(), DETECTOR_SAMPLE):
            if MARK_MASQUERADE in line:
                found.update(_sources_in(line, True))
    return found.most_common(1)[0][0] if found else ""


def _sources_in(line: str, negated: bool) -> Iterator[str]:
    try:
        rule = rule_of(line)
    except ValueError:
        return
    for option in rule.matches:
        if option.name in ("-s", "-i") and option.value != "127.0.0.0/8":
            yield f"{option.name} {option.value}"


def destination(text: bytes) -> bytes:
    """ "10.244.0.2:8080" or "[fd44::2]:8080", packed; b"" for anything else."""
    host, _, port = text.rpartition(b":")
    try:
        return endpoint(_address(host.strip(b"[]")), int(port))
    except (OSError, ValueError):
        return b""


def _address(text: bytes) -> bytes:
    try:
        return socket.inet_pton(socket.AF_INET6 if b":" in text else socket.AF_INET, text.decode())
    except OSError:
        return b""


def text_of(rule: Rule) -> str:
    """For people, near to what iptables-save writes."""
    words = [f"-A {rule.chain}"]
    for option in rule.matches + rule.arguments:
        name = option.name or f"-m {option.module}"
        words.append(" ".join(filter(None, ("!" if option.negated else "", name, option.value))))
    if rule.target:
        words.insert(1 + len(rule.matches), f"{'-g' if rule.goto else '-j'} {rule.target}")
    return " ".join(filter(None, words))[:300]
