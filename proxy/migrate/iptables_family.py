"""One family's tables of kube-proxy's iptables mode -> entries. Pure."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from proxy.migrate.entries import EVERYBODY, Entry, Refusal
from proxy.migrate.iptables_base import (
    EXTERNAL_SERVICES,
    FIREWALL,
    JUMPS,
    NODE_PORTS,
    SERVICES,
    Base,
    clears_others,
    mark_of_target,
)
from proxy.migrate.iptables_chains import (
    EXTERNAL_CHAINS,
    MARK_MASQUERADE,
    NOT_OURS,
    SERVICE_CHAINS,
    Chains,
    Marking,
    text_of,
)
from proxy.migrate.iptables_doubts import Doubt, Doubts, is_doubtful
from proxy.migrate.iptables_keys import PROTOCOLS, is_plain, key_of, name_of, one_address, value_of
from proxy.migrate.iptables_save import Rule, Saved, Table
from proxy.migrate.notes import Notes
from proxy.migrate.outcomes import Outcome, Source
from proxy.migrate.wording import service_at
from rules.elements import address_of, endpoint, node_port_key, service_key
from rules.objects import Family

LOOPBACK: Final = "127.0.0.0/8"


class FamilyEntries(Struct):
    """nodeport_addresses: packed; None: at all addresses. localhost: NodePorts answer at 127.0.0.0/8. pods, health_checks:
    as in Beside; pods is None where there are no clusterIPs."""

    entries: list[Entry]
    nodeport_addresses: tuple[bytes, ...] | None
    localhost: bool
    mark: int
    pods: str | None = None
    health_checks: frozenset[bytes] | None = None


class _Route(Struct):
    """The rules for one key, in order. leads: the number of the first one that leads on; 0: none does."""

    rules: list[Rule]
    name: str = ""
    external: bool = False
    doubtful: bool = False
    leads: int = 0


class _Verdict(Struct):
    refusal: Refusal
    name: str


def read_family(family: Family, saved: Saved, notes: Notes) -> FamilyEntries:
    """notes: takes what is not understood, and what is missing."""
    return _Reader(family, saved, notes).read()


class _Reader:
    def __init__(self, family: Family, saved: Saved, notes: Notes) -> None:
        self._family, self._notes = family, notes
        self._nat: Table = saved.tables.get("nat", {})
        self._filter: Table = saved.tables.get("filter", {})
        self._chains = Chains(family, self._nat, notes)
        self._routes: dict[bytes, _Route] = {}
        self._verdicts: dict[bytes, _Verdict] = {}
        self._addresses: list[bytes] | None = []
        self._localhost = False
        self._guarded: set[bytes] = set()
        self._cluster_ips: dict[bytes, Marking | None] = {}
        """Key of a clusterIP -> who is masqueraded on the way to it; None: nobody."""
        self._doubts = Doubts()
        self._leads_to_ports = 0
        """The number of the first rule in KUBE-SERVICES that leads to NodePorts; 0: there is none."""

    def read(self) -> FamilyEntries:
        base = Base(self._family, self._nat, self._filter, self._rules, self._notes)
        mark = self._mark()
        self._services()
        self._node_ports()
        for name in (SERVICES, EXTERNAL_SERVICES):
            self._refusals(name)
        self._firewall()
        keys = self._routes.keys() | self._verdicts.keys()
        base.check(JUMPS, mark, {address_of(key) for key in keys if len(key) != 9})
        self._doubts.services += [Doubt(rule, 0) for rule in base.keeping]
        self._doubts.refusing += [Doubt(rule, 0) for rule in base.stopping]
        found = {key: self._entry(key, self._routes.get(key), self._verdicts.get(key)) for key in sorted(keys)}
        pods = self._pods(found) if self._cluster_ips else None
        self._refused_endpoints(found)
        self._doubts.node_addresses = self._addresses
        self._doubts.cluster_ips = {address_of(key) for key in self._cluster_ips}
        entries = [self._with_common(entry, base) for entry in found.values()]
        addresses = None if self._addresses is None else tuple(self._addresses)
        return FamilyEntries(entries, addresses, self._localhost, mark, pods, base.health_checks())

    def _with_common(self, entry: Entry, base: Base) -> Entry:
        """With what is wrong, or not understood, for many of them."""
        is_node_port = len(entry.key) == 9
        damaged = (
            "all" in base.concerned
            or ("refused" in base.concerned and (entry.refusal or entry.outside_refusal) != "")
            or ("guarded" in base.concerned and entry.sources is not None)
            or (is_node_port and self._addresses == [])
        )
        doubtful = bool(self._doubts) and self._is_doubted(entry)
        if not damaged and not doubtful:
            return entry
        return replace(entry, doubtful=entry.doubtful or doubtful, damaged=entry.damaged or damaged)

    def _rules(self, table: Table, chain: str) -> Iterator[Rule]:
        return self._chains.rules(table[chain].lines()) if chain in table else iter(())

    def _note(self, rule: Rule, table: str) -> None:
        self._notes.add(f"{self._family.nft} {table}: {text_of(rule)}", NOT_OURS)

    def _refused_endpoints(self, found: dict[bytes, Entry]) -> None:
        """What is refused in the table filter may be no Service, but an endpoint."""
        refused: dict[int, set[bytes]] = {}
        for key in self._verdicts.keys() - self._routes.keys():
            if len(key) != 9:
                refused.setdefault(key[-8], set()).add(endpoint(address_of(key), int.from_bytes(key[-4:-2])))
        if not refused:
            return
        for key, entry in list(found.items()):
            for end in (entry.endpoints | entry.outside) & refused.get(key[-8], set()):
                self._notes.remark(service_at(key, entry.name), "one of its endpoints is refused, or dropped")
                found[key] = replace(entry, damaged=True)
                found.pop(service_key(end[:-4], key[-8], int.from_bytes(end[-4:-2])), None)

    def _is_doubted(self, entry: Entry) -> bool:
        route = self._routes.get(entry.key)
        leads = route.leads if route and route.leads else sys.maxsize
        if len(entry.key) == 9:
            return self._doubts.concern(entry, self._leads_to_ports or sys.maxsize, leads)
        return self._doubts.concern(entry, leads, 0)

    def _numbered(self, table: Table, chain: str, doubts: list[Doubt]) -> Iterator[tuple[int, Rule]]:
        """A chain's rules and their numbers, from 1. What is no rule may be about all that comes by: doubts takes it."""
        lines = table[chain].lines() if chain in table else iter(())
        for number, line in enumerate(lines, 1):
            found = list(self._chains.rules([line]))
            if not found:
                doubts.append(Doubt(Rule(chain, "?"), number))
            yield from ((number, rule) for rule in found)

    def _doubt(self, rule: Rule, number: int, doubts: list[Doubt], table: str) -> None:
        """Of a rule among those of all Services."""
        self._note(rule, table)
        if is_doubtful(rule):
            doubts.append(Doubt(rule, number))

    def _services(self) -> None:
        """KUBE-SERVICES: first those of an address and port, last those that lead to the NodePorts."""
        for number, rule in self._numbered(self._nat, SERVICES, self._doubts.services):
            key = self._key(rule)
            if rule.target == NODE_PORTS:
                self._leads_to_ports = self._leads_to_ports or number
                self._leads_to_node_ports(rule)
            elif key and (rule.target == MARK_MASQUERADE or rule.target.startswith(SERVICE_CHAINS)):
                self._route(key, rule, number)
            else:
                self._doubt(rule, number, self._doubts.services, "nat")

        if self._addresses == [] and NODE_PORTS in self._nat and self._nat[NODE_PORTS].spans:
            where = f"{self._family.nft} nat: {SERVICES} does not lead to {NODE_PORTS}"
            self._notes.remark(where, "connections reach no NodePort")

    def _node_ports(self) -> None:
        """KUBE-NODEPORTS. Beside each rule there may be one for 127.0.0.0/8, which counts the packets."""
        local: list[tuple[bytes, Rule]] = []
        for number, rule in self._numbered(self._nat, NODE_PORTS, self._doubts.node_ports):
            key = self._key(rule, node_port=True)
            if key and (rule.target == MARK_MASQUERADE or rule.target.startswith(SERVICE_CHAINS)):
                if value_of(rule, "-d") == LOOPBACK:
                    local.append((key, rule))
                    continue
                self._route(key, rule, number)
                if rule.option("-d"):  # at one address, or at all but one
                    self._note(rule, "nat")
                    self._routes[key].doubtful = True
            else:
                self._doubt(rule, number, self._doubts.node_ports, "nat")
        for key, rule in local:
            route = self._routes.get(key)
            if route is None or all(rule.target != other.target for other in route.rules):
                cause = "it leads elsewhere than the NodePort at other addresses does"
                self._notes.remark(f"{self._family.nft} nat: {text_of(rule)}", cause)

    def _route(self, key: bytes, rule: Rule, number: int) -> None:
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = _Route([])
        name, kind = name_of(rule)
        if rule.target != MARK_MASQUERADE:
            route.leads = route.leads or number
            route.name = route.name or name
            route.external |= rule.target.startswith(EXTERNAL_CHAINS) or kind in ("external IP", "loadbalancer IP")
        if len(key) == 9:
            route.external = True
        route.rules.append(rule)

    def _leads_to_node_ports(self, rule: Rule) -> None:
        """To local addresses, or to this one."""
        everywhere, localhost = False, True
        for option in rule.matches:
            match option.name:
                case "--comment":
                    continue
                case "--dst-type" if option.value == "LOCAL" and not option.negated:
                    everywhere = True
                case "-d" if option.negated and option.value in (LOOPBACK, "::1/128"):
                    localhost = False
                case "-d" if not option.negated and (address := one_address(option.value, self._family)):
                    if self._addresses is not None:
                        self._addresses.append(address)
                    self._localhost |= address[0] == 127 and self._family is Family.IPV4
                    return
                case _:
                    self._note(rule, "nat")
                    return
        if everywhere:
            self._addresses = None
            self._localhost |= localhost and self._family is Family.IPV4
        else:
            self._note(rule, "nat")

    def _refusals(self, name: str) -> None:
        for number, rule in self._numbered(self._filter, name, self._doubts.refusing):
            key = self._key(rule)
            if not key and value_of(rule, "--dst-type") == "LOCAL":
                key = self._key(rule, node_port=True)
            if key and rule.target in ("REJECT", "DROP") and is_plain(rule):
                verdict = _Verdict("reject" if rule.target == "REJECT" else "drop", name_of(rule)[0])
                self._verdicts.setdefault(key, verdict)
            else:
                self._doubt(rule, number, self._doubts.refusing, "filter")

    def _firewall(self) -> None:
        """KUBE-PROXY-FIREWALL drops what source ranges did not let through."""
        for number, rule in self._numbered(self._filter, FIREWALL, self._doubts.guarding):
            key = self._key(rule)
            if key and rule.target == "DROP" and is_plain(rule):
                self._guarded.add(key)
            else:
                self._doubt(rule, number, self._doubts.guarding, "filter")

    def _entry(self, key: bytes, route: _Route | None, verdict: _Verdict | None) -> Entry:
        refusal: Refusal = verdict.refusal if verdict else ""
        if route is None:
            return Entry(key, verdict.name if verdict else "", refusal=refusal, outside_refusal=refusal)
        before = self._notes.seen
        outside = self._chains.follow(route.rules, Source.OUTSIDE)
        inside = self._inside(key, route, outside) if route.external else outside
        if not route.external:
            self._cluster_ips[key] = self._who_is_masqueraded(key, route.rules)
        if (outside.protocols | inside.protocols) - {key[-8]}:
            self._notes.remark(service_at(key, route.name), "what leads to its endpoints is for another protocol")
        if outside.sources is not None and FIREWALL in self._filter and key not in self._guarded:
            self._notes.remark(service_at(key, route.name), "what its source ranges keep out is not dropped")
        lasting = inside if inside.endpoints else outside
        return Entry(
            key,
            route.name or (verdict.name if verdict else ""),
            inside.endpoints,
            outside.endpoints,
            "" if inside.endpoints else inside.refusal or refusal,
            "" if outside.endpoints else outside.refusal or refusal,
            not outside.masquerade if route.external else None,
            lasting.affinity,
            outside.sources,
            doubtful=route.doubtful or outside.doubtful or inside.doubtful or self._notes.seen.doubts > before.doubts,
            damaged=outside.damaged or inside.damaged or self._notes.seen.faults > before.faults,
        )

    def _inside(self, key: bytes, route: _Route, outside: Outcome) -> Outcome:
        """What pods and this node get. It is the same; if not, the one that is not as it should be."""
        node = self._chains.follow(route.rules, Source.NODE)
        if node.endpoints and not node.masquerade:
            self._notes.remark(service_at(key, route.name), "what this node itself sends there is not masqueraded")
        if not self._chains.detector:
            return node
        pod = self._chains.follow(route.rules, Source.POD)
        if pod.endpoints and pod.masquerade != outside.masquerade:
            cause = (
                "what pods send there is masqueraded" if pod.masquerade else "what pods send there is not masqueraded"
            )
            self._notes.remark(service_at(key, route.name), cause)
        if pod.endpoints == node.endpoints:
            return replace(node, doubtful=node.doubtful or pod.doubtful, damaged=node.damaged or pod.damaged)
        self._notes.remark(service_at(key, route.name), "pods and this node are led to different endpoints")
        chain = "KUBE-SVC-" + route.rules[-1].target.rpartition("-")[2]
        usual = self._chains.through(chain, Source.OUTSIDE).endpoints if chain in self._nat else outside.endpoints
        return pod if node.endpoints == usual else node

    def _who_is_masqueraded(self, key: bytes, rules: list[Rule]) -> Marking | None:
        """By a rule that marks what goes to this clusterIP, here or in its chain."""
        if any(rule.target == MARK_MASQUERADE and not _is_narrow(rule) for rule in rules):
            return "all"
        return next(
            filter(None, (self._chains.marking.get((at, key)) for rule in rules for at in (rule.target, SERVICES))),
            None,
        )

    def _pods(self, entries: dict[bytes, Entry]) -> str:
        """As in Beside. Where kube-proxy tells pods, or masquerades all, it does so for each clusterIP."""
        common = Counter(self._cluster_ips.values()).most_common(1)[0][0]
        for key, who in self._cluster_ips.items():
            if who is None and (self._chains.detector or common):
                cause = "what comes to this clusterIP from elsewhere is not masqueraded"
            elif who == "all" and common == "elsewhere":
                cause = "what comes to this clusterIP from pods is masqueraded"
            elif who == "elsewhere" and common == "all":
                cause = "what comes to this clusterIP from pods is not masqueraded, as it is for others"
            else:
                continue
            self._notes.remark(service_at(key, self._routes[key].name), cause)
            entries[key] = replace(entries[key], damaged=True)
        return EVERYBODY if common == "all" else self._chains.detector.partition(" ")[2].replace("+", "*")

    def _key(self, rule: Rule, *, node_port: bool = False) -> bytes:
        """Of a rule for one address, protocol and port, or for a port at local addresses; b"" of another one."""
        if not node_port:
            return key_of(rule, self._family)
        protocol, port = PROTOCOLS.get(value_of(rule, "-p"), 0), value_of(rule, "--dport")
        if not protocol or not port.isdecimal() or not 0 < int(port) < 65536:
            return b""
        return node_port_key(self._family, protocol, int(port))

    def _mark(self) -> int:
        """What KUBE-MARK-MASQ sets."""
        mark = 0
        for rule in self._rules(self._nat, MARK_MASQUERADE):
            found = mark_of_target(rule)
            if mark or not found or not all(option.name == "--comment" for option in rule.matches):
                self._note(rule, "nat")
                self._doubts.is_about_all |= is_doubtful(rule)
                continue
            mark = found
            if clears_others(rule):
                self._notes.remark(
                    f"{self._family.nft} nat: {text_of(rule)}", "it clears other programs' bits of the mark"
                )
        if not mark:
            where = f"{self._family.nft} nat: chain {MARK_MASQUERADE}"
            self._notes.remark(where, "it sets no mark: nothing is masqueraded")
        return mark


def _is_narrow(rule: Rule) -> bool:
    """Whether it is about some senders only."""
    return any(option.name in ("-s", "-i") for option in rule.matches)
