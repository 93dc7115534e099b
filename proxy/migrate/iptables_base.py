"""What kube-proxy's iptables rules have once for all Services: the ways to its chains, masquerading, forwarding. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from ipaddress import ip_network
from typing import Final

from proxy.migrate.iptables_chains import HARMLESS, NOT_OURS, text_of
from proxy.migrate.iptables_keys import is_of_key, value_of
from proxy.migrate.iptables_save import Option, Rule, Table
from proxy.migrate.notes import Notes
from rules.elements import address_range, node_port_key
from rules.objects import Family

SERVICES, NODE_PORTS, EXTERNAL_SERVICES = "KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"
NODE_PORT: Final = "KUBE-NODE-PORT"
"""Of IPVS mode."""
FIREWALL, FORWARD, POSTROUTING = "KUBE-PROXY-FIREWALL", "KUBE-FORWARD", "KUBE-POSTROUTING"
Jump = tuple[str, str, str, str]

JUMPS: Final[tuple[Jump, ...]] = (
    ("nat", "PREROUTING", SERVICES, "connections from pods and from outside reach no Service"),
    ("nat", "OUTPUT", SERVICES, "connections from this node reach no Service"),
    ("nat", "POSTROUTING", POSTROUTING, "nothing is masqueraded"),
    ("filter", "FORWARD", SERVICES, "connections to Services without endpoints are not refused"),
    ("filter", "OUTPUT", SERVICES, "connections from this node to Services without endpoints are not refused"),
    ("filter", "INPUT", EXTERNAL_SERVICES, "connections to NodePorts without endpoints are not refused"),
    ("filter", "FORWARD", EXTERNAL_SERVICES, "connections to external addresses without endpoints are not refused"),
    ("filter", "INPUT", FIREWALL, "source ranges do not keep out what this node itself would answer"),
    ("filter", "FORWARD", FIREWALL, "source ranges do not keep out what is forwarded"),
    ("filter", "OUTPUT", FIREWALL, "source ranges do not keep out what this node sends"),
    ("filter", "INPUT", NODE_PORTS, "load balancers' health checks may not be let in"),
    ("filter", "FORWARD", FORWARD, "packets of Services may not be forwarded"),
)
"""Without which chains do nothing: table, chain, where to, and what follows if it is not there."""
IPVS_JUMPS: Final[tuple[Jump, ...]] = (
    ("nat", "PREROUTING", SERVICES, "what comes from pods and from outside is not masqueraded"),
    ("nat", "OUTPUT", SERVICES, "what this node sends to Services is not masqueraded"),
    ("nat", "POSTROUTING", POSTROUTING, "nothing is masqueraded"),
    ("nat", SERVICES, NODE_PORT, "what goes to NodePorts is not masqueraded"),
    ("filter", "INPUT", FIREWALL, "source ranges keep nobody out"),
    ("filter", "FORWARD", FIREWALL, "source ranges do not keep out what is forwarded"),
    ("filter", "FORWARD", FORWARD, "packets of Services may not be forwarded"),
    ("filter", "INPUT", "KUBE-NODE-PORT", "load balancers' health checks may not be let in"),
    ("filter", "INPUT", "KUBE-IPVS-FILTER", "programs of this node answer at Services' addresses"),
)
BASES: Final = frozenset({"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"})
CONCERNED: Final = {
    ("nat", SERVICES): "all",
    ("nat", POSTROUTING): "all",
    ("filter", SERVICES): "refused",
    ("filter", EXTERNAL_SERVICES): "refused",
    ("filter", FIREWALL): "guarded",
}
"""Whose Services' traffic is not as it should be where such a jump is missing: those without endpoints, with source ranges."""
DEEPEST: Final = 16
ENDS: Final = frozenset({"ACCEPT", "RETURN", "DROP", "REJECT", "DNAT", "REDIRECT"})
Rules = Callable[[Table, str], Iterable[Rule]]
"""A chain's rules; none where there is no such chain."""


class Base:
    """rules: takes them apart. notes: takes what is wrong. concerned: whose traffic that is, as in CONCERNED."""

    def __init__(self, family: Family, nat: Table, filters: Table, rules: Rules, notes: Notes) -> None:
        self._family, self._nat, self._filter = family, nat, filters
        self._rules, self._notes = rules, notes
        self.concerned: set[str] = set()
        self.keeping: list[Rule] = []
        """Of other programs: rules that keep some packets from KUBE-SERVICES in the table nat."""
        self.stopping: list[Rule] = []
        """Rules of KUBE-FORWARD that stop what is forwarded."""

    def check(self, jumps: Iterable[Jump], mark: int, served: Collection[bytes] = ()) -> None:
        """mark: what KUBE-MARK-MASQ sets; 0: nothing. served: addresses of Services, packed."""
        self._check_jumps(jumps, served)
        if not mark:
            self.concerned.add("all")
        if POSTROUTING in self._nat:
            self._check_masquerading(mark)
        if FORWARD in self._filter:
            self._check_forwarding(mark)

    def health_checks(self) -> frozenset[bytes] | None:
        """Ports that are let in; None: this version has no rules for them."""
        if NODE_PORTS not in self._filter:
            return None
        found: set[bytes] = set()
        for rule in self._rules(self._filter, NODE_PORTS):
            port = value_of(rule, "--dport")
            is_plain = value_of(rule, "-p") == "tcp" and all(map(is_of_key, rule.matches)) and rule.option("-d") is None
            if rule.target == "ACCEPT" and is_plain and port.isdecimal() and 0 < int(port) < 65536:
                found.add(node_port_key(self._family, 6, int(port)))
            elif not rule.option("--match-set"):  # IPVS mode's are told by their ipsets
                self._notes.add(f"{self._family.nft} filter: {text_of(rule)}", NOT_OURS)
        return frozenset(found)

    def _check_jumps(self, jumps: Iterable[Jump], served: Collection[bytes]) -> None:
        tables = {"nat": self._nat, "filter": self._filter}
        for table, base, to, otherwise in jumps:
            rules = tables[table]
            if to not in rules or (table == "filter" and not rules[to].spans):
                continue
            where = f"{self._family.nft} {table}: {base}"
            if base in BASES and base in rules and not rules[base].policy:
                self._notes.remark(f"{where} is no base chain: no packet comes to it", otherwise)
                self.concerned.add(CONCERNED.get((table, to), ""))
                continue
            before: list[Rule] = []
            is_narrow = False
            for rule in self._rules(rules, base):
                if rule.target == to:
                    if all(_is_of_new(option) or (to == NODE_PORT and _is_local(option)) for option in rule.matches):
                        break
                    is_narrow = True
                before.append(rule)
            else:
                how = f"leads to {to} for some packets only" if is_narrow else f"does not lead to {to}"
                self._notes.remark(f"{where} {how}", otherwise)
                self.concerned.add(CONCERNED.get((table, to), ""))
                continue
            self._check_before(table, where, to, before, served)

    def _check_before(self, table: str, where: str, to: str, before: Iterable[Rule], served: Collection[bytes]) -> None:
        """Rules that keep packets from a jump."""
        for rule in before:
            if table == "nat" and to == SERVICES and rule.target in self._nat:
                for inner in self._ending(rule, []):
                    if self._may_be_for_service(inner, served):
                        self.keeping.append(inner)
                        self._notes.add(f"{where}: {text_of(inner)}", f"such packets may not come to {to}")
                continue
            if (rule.target not in ENDS and not rule.goto) or (to == FORWARD and rule.target in ("ACCEPT", "RETURN")):
                continue
            is_all = all(map(_is_of_new, rule.matches))
            if is_all:
                self.concerned.add(CONCERNED.get((table, to), ""))
            # Firewalls have many rules that accept this and that: only one for everything is meant there.
            if is_all or (table == "nat" and to == SERVICES and self._may_be_for_service(rule, served)):
                cause = f"such packets do not come to {to}, whose jump is behind this rule"
                self._notes.remark(f"{where}: {text_of(rule)}", cause)
                if not is_all:
                    self.keeping.append(rule)

    def _ending(self, rule: Rule, above: Sequence[str]) -> Iterator[Rule]:
        """What another program's chain has that ends a packet's way, with all that leads to it. above: chains on the way."""
        if rule.target in above or len(above) > DEEPEST:
            return
        for inner in self._rules(self._nat, rule.target):
            whole = Rule(rule.chain, inner.target, inner.goto, (*rule.matches, *inner.matches), inner.arguments)
            if inner.target in self._nat:
                yield from self._ending(whole, [*above, rule.target])
            elif inner.target in ENDS and (inner.target != "RETURN" or rule.goto):
                yield whole

    def _may_be_for_service(self, rule: Rule, served: Collection[bytes]) -> bool:
        """In the table nat. Translations that name a destination are told otherwise (iptables_nat)."""
        destination = rule.option("-d")
        if destination is None:
            return True
        if rule.target in ("DNAT", "REDIRECT") and not destination.negated:
            return False
        try:
            first, last = address_range(ip_network(destination.value))
        except ValueError:
            return True
        return any((first <= address <= last) is not destination.negated for address in served)

    def _check_masquerading(self, mark: int) -> None:
        where = f"{self._family.nft} nat: chain {POSTROUTING}"
        rules = list(self._rules(self._nat, POSTROUTING))
        marked = [number for rule in rules if (number := _mark_of(rule))]
        if not any(rule.target == "MASQUERADE" and not rule.option("--match-set") for rule in rules):
            self._notes.remark(where, "nothing is masqueraded")
        elif mark and marked and mark not in marked:
            cause = f"it masquerades packets with the mark {marked[0]:#x}, and KUBE-MARK-MASQ sets {mark:#x}"
            self._notes.remark(where, cause)
        elif mark and not _is_masqueraded(rules, mark):
            self._notes.remark(where, "what is marked for it is not masqueraded")
        elif _is_masqueraded(rules, 0):
            self._notes.remark(where, "everything is masqueraded, and not only what is marked for it")
        else:
            for rule in rules:
                if not _is_of_postrouting(rule):
                    self._notes.remark(f"{where}: {text_of(rule)}", "not a rule that kube-proxy writes")
            return
        self.concerned.add("all")

    def _check_forwarding(self, mark: int) -> None:
        where = f"{self._family.nft} filter: chain {FORWARD}"
        rules = list(self._rules(self._filter, FORWARD))
        accepting = [rule for rule in rules if rule.target == "ACCEPT"]
        plain = [rule for rule in accepting if all(map(_is_of_mark, rule.matches))]
        marked = [number for rule in plain if (number := _mark_of(rule))]
        answers = [rule for rule in accepting if "ESTABLISHED" in value_of(rule, "--ctstate").split(",")]
        if not accepting:
            self._notes.remark(where, "it lets nothing through: packets of Services may not be forwarded")
        elif not marked or (mark and mark not in marked):
            self._notes.remark(where, "it does not let through what is to be masqueraded")
        elif not answers:
            self._notes.remark(where, "it does not let answers through")
        for rule in rules:
            is_invalid = rule.target == "DROP" and value_of(rule, "--ctstate") == "INVALID"
            if not is_invalid and rule not in plain and rule not in answers:
                self._notes.remark(f"{where}: {text_of(rule)}", "not a rule that kube-proxy writes")
                if rule.target not in ("ACCEPT", "RETURN", *HARMLESS):
                    self.stopping.append(rule)


def mark_of_target(rule: Rule) -> int:
    """The bits that a rule sets; 0: none."""
    for name in ("--set-xmark", "--or-mark", "--set-mark"):
        option = rule.option(name)
        if option and rule.target == "MARK":
            return _number(option.value)
    return 0


def clears_others(rule: Rule) -> bool:
    """Whether bits of the mark go that it does not set."""
    option = rule.option("--set-xmark") or rule.option("--set-mark")
    if option is None:
        return False
    value, _, mask = option.value.partition("/")
    return bool(_number(mask or "0xffffffff") & ~_number(value))


def _mark_of(rule: Rule) -> int:
    return _number(option.value) if (option := rule.option("--mark")) else 0


def _is_of_new(option: Option) -> bool:
    """Whether no new connection is left out by it."""
    return option.name == "--comment" or (
        option.name == "--ctstate" and not option.negated and "NEW" in option.value.split(",")
    )


def _is_of_mark(option: Option) -> bool:
    return option.name == "--comment" or (_is_of_bits(option) and not option.negated)


def _is_of_bits(option: Option) -> bool:
    """Whether it is about bits of the mark that are all set, whatever the others are."""
    value, _, mask = option.value.partition("/")
    return option.name == "--mark" and _number(value) == _number(mask)


def _is_of_postrouting(rule: Rule) -> bool:
    """Whether KUBE-POSTROUTING has such a rule: it goes back, clears the mark, or masquerades."""
    if not all(option.name in ("--comment", "--match-set") or _is_of_bits(option) for option in rule.matches):
        return False
    if rule.target == "MARK":
        bits = rule.option("--set-xmark")
        return rule.option("--xor-mark") is not None or (bits is not None and bits.value.endswith("/0x0"))
    return rule.target in ("RETURN", "MASQUERADE")


def _is_local(option: Option) -> bool:
    return option.name == "--dst-type" and option.value == "LOCAL" and not option.negated


def _is_masqueraded(rules: Iterable[Rule], mark: int) -> bool:
    """Whether KUBE-POSTROUTING masquerades what has this mark, and is no connection of an endpoint to itself."""
    for rule in rules:
        wanted = rule.option("--mark")
        if wanted and (_number(wanted.value) == mark) is wanted.negated:
            continue
        if any(option.name not in ("--comment", "--mark") for option in rule.matches):
            continue
        if rule.target in (*ENDS, "MASQUERADE"):
            return rule.target == "MASQUERADE"
    return False


def _number(text: str) -> int:
    try:
        return int(text.partition("/")[0], 0)
    except ValueError:
        return 0
