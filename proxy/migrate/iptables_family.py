"""One family's tables of kube-proxy's iptables mode -> entries. Pure."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from proxy.migrate.entries import Entry, Refusal
from proxy.migrate.iptables_base import (
    EXTERNAL_SERVICES,
    FIREWALL,
    JUMPS,
    NODE_PORTS,
    SERVICES,
    Base,
    mark_of_target,
)
from proxy.migrate.iptables_chains import (
    EXTERNAL_CHAINS,
    MARK_MASQUERADE,
    NOT_OURS,
    PROTOCOLS,
    SERVICE_CHAINS,
    Chains,
    text_of,
)
from proxy.migrate.iptables_save import Rule, Saved, Table
from proxy.migrate.notes import Notes
from proxy.migrate.outcomes import Outcome, Source
from rules.elements import describe_key, node_port_key, service_key
from rules.objects import Family

LOOPBACK: Final = "127.0.0.0/8"
_NAME: Final = re.compile(
    r"(\S+?):?(?: (cluster IP|external IP|loadbalancer IP|has no endpoints|has no local endpoints))?"
)


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
    """The rules for one key, in order."""

    rules: list[Rule]
    name: str = ""
    external: bool = False


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
        self._cluster_ips: dict[bytes, bool] = {}
        """Key of a clusterIP -> whether what comes from elsewhere is masqueraded."""

    def read(self) -> FamilyEntries:
        base = Base(self._family, self._nat, self._filter, self._rules, self._notes)
        mark = self._mark()
        base.check(JUMPS, mark)
        self._services()
        self._node_ports()
        for name in (SERVICES, EXTERNAL_SERVICES):
            self._refusals(name)
        self._firewall()
        keys = self._routes.keys() | self._verdicts.keys()
        entries = [self._entry(key, self._routes.get(key), self._verdicts.get(key)) for key in sorted(keys)]
        addresses = None if self._addresses is None else tuple(self._addresses)
        pods = self._pods() if self._cluster_ips else None
        return FamilyEntries(entries, addresses, self._localhost, mark, pods, base.health_checks())

    def _rules(self, table: Table, chain: str) -> Iterator[Rule]:
        return self._chains.rules(table[chain].lines()) if chain in table else iter(())

    def _note(self, rule: Rule, table: str) -> None:
        self._notes.add(f"{self._family.nft} {table}: {text_of(rule)}", NOT_OURS)

    def _services(self) -> None:
        """KUBE-SERVICES: first those of an address and port, last those that lead to the NodePorts."""
        for rule in self._rules(self._nat, SERVICES):
            key = self._key(rule)
            if rule.target == NODE_PORTS:
                self._leads_to_node_ports(rule)
            elif key and (rule.target == MARK_MASQUERADE or rule.target.startswith(SERVICE_CHAINS)):
                self._route(key, rule)
            else:
                self._note(rule, "nat")

        if self._addresses == [] and NODE_PORTS in self._nat and self._nat[NODE_PORTS].spans:
            where = f"{self._family.nft} nat: {SERVICES} does not lead to {NODE_PORTS}"
            self._notes.remark(where, "connections reach no NodePort")

    def _node_ports(self) -> None:
        """KUBE-NODEPORTS. Beside each rule there may be one for 127.0.0.0/8, which counts the packets."""
        local: list[tuple[bytes, Rule]] = []
        for rule in self._rules(self._nat, NODE_PORTS):
            key = self._key(rule, node_port=True)
            if key and (rule.target == MARK_MASQUERADE or rule.target.startswith(SERVICE_CHAINS)):
                if _value(rule, "-d") == LOOPBACK:
                    local.append((key, rule))
                else:
                    self._route(key, rule)
            else:
                self._note(rule, "nat")
        for key, rule in local:
            route = self._routes.get(key)
            if route is None or all(rule.target != other.target for other in route.rules):
                cause = "it leads elsewhere than the NodePort at other addresses does"
                self._notes.remark(f"{self._family.nft} nat: {text_of(rule)}", cause)

    def _route(self, key: bytes, rule: Rule) -> None:
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = _Route([])
        name, kind = _name(rule)
        if rule.target != MARK_MASQUERADE:
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
                case "-d" if not option.negated and (address := self._address(option.value)):
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
        for rule in self._rules(self._filter, name):
            key = self._key(rule) or self._key(rule, node_port=True)
            if key and rule.target in ("REJECT", "DROP") and _is_plain(rule):
                verdict = _Verdict("reject" if rule.target == "REJECT" else "drop", _name(rule)[0])
                self._verdicts.setdefault(key, verdict)
            else:
                self._note(rule, "filter")

    def _firewall(self) -> None:
        """KUBE-PROXY-FIREWALL drops what source ranges did not let through."""
        for rule in self._rules(self._filter, FIREWALL):
            key = self._key(rule)
            if key and rule.target == "DROP" and _is_plain(rule):
                self._guarded.add(key)
            else:
                self._note(rule, "filter")

    def _entry(self, key: bytes, route: _Route | None, verdict: _Verdict | None) -> Entry:
        refusal: Refusal = verdict.refusal if verdict else ""
        if route is None:
            return Entry(key, verdict.name if verdict else "", refusal=refusal, outside_refusal=refusal)
        outside = self._chains.follow(route.rules, Source.OUTSIDE)
        inside = self._inside(key, route, outside) if route.external else outside
        if not route.external:
            self._cluster_ips[key] = self._is_masqueraded(route.rules)
        if outside.sources is not None and FIREWALL in self._filter and key not in self._guarded:
            self._notes.remark(_called(key, route.name), "what its source ranges keep out is not dropped")
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
        )

    def _inside(self, key: bytes, route: _Route, outside: Outcome) -> Outcome:
        """What pods and this node get. It is the same; if not, the one that is not as it should be."""
        node = self._chains.follow(route.rules, Source.NODE)
        if not self._chains.detector:
            return node
        pod = self._chains.follow(route.rules, Source.POD)
        if pod.endpoints == node.endpoints:
            return node
        self._notes.remark(_called(key, route.name), "pods and this node are led to different endpoints")
        chain = "KUBE-SVC-" + route.rules[-1].target.rpartition("-")[2]
        usual = self._chains.through(chain, Source.OUTSIDE).endpoints if chain in self._nat else outside.endpoints
        return pod if node.endpoints == usual else node

    def _is_masqueraded(self, rules: list[Rule]) -> bool:
        """Whether there is a rule that marks what goes to this clusterIP from elsewhere, here or in its chain."""
        return any(
            rule.target == MARK_MASQUERADE or (rule.target, _value(rule, "-d")) in self._chains.marking
            for rule in rules
        )

    def _pods(self) -> str:
        """As in Beside. Where kube-proxy tells pods, or masquerades all, it does so for each clusterIP."""
        lacking = [key for key, is_masqueraded in self._cluster_ips.items() if not is_masqueraded]
        if self._chains.detector or len(lacking) < len(self._cluster_ips):
            for key in lacking:
                cause = "what comes to this clusterIP from elsewhere is not masqueraded"
                self._notes.remark(_called(key, self._routes[key].name), cause)
        return self._chains.detector.partition(" ")[2].replace("+", "*")

    def _key(self, rule: Rule, *, node_port: bool = False) -> bytes:
        """Of a rule for one address, protocol and port, or for a port at local addresses; b"" of another one."""
        protocol = PROTOCOLS.get(_value(rule, "-p"), 0)
        port = _value(rule, "--dport")
        if not protocol or not port.isdigit() or not 0 < int(port) < 65536:
            return b""
        if node_port:
            return node_port_key(self._family, protocol, int(port))
        address = self._address(_value(rule, "-d"))
        return service_key(address, protocol, int(port)) if address else b""

    def _address(self, text: str) -> bytes:
        """Of one address, packed; b"" of anything else."""
        host, _, length = text.partition("/")
        family, size = (socket.AF_INET, 32) if self._family is Family.IPV4 else (socket.AF_INET6, 128)
        try:
            return socket.inet_pton(family, host) if length in ("", str(size)) else b""
        except OSError:
            return b""

    def _mark(self) -> int:
        """What KUBE-MARK-MASQ sets."""
        for rule in self._rules(self._nat, MARK_MASQUERADE):
            if mark := mark_of_target(rule):
                return mark
            self._note(rule, "nat")
        self._notes.remark(
            f"{self._family.nft} nat: chain {MARK_MASQUERADE}", "it sets no mark: nothing is masqueraded"
        )
        return 0


def _value(rule: Rule, name: str) -> str:
    """Of an option that is there and not negated."""
    option = rule.option(name)
    return option.value if option and not option.negated else ""


def _called(key: bytes, name: str) -> str:
    service = name.partition(":")[0]
    return f"Service {service}, {describe_key(key)}" if service else describe_key(key)


def _is_plain(rule: Rule) -> bool:
    """Whether nothing but its address, protocol and port decides."""
    return all(
        option.name in ("-d", "-p", "--dport", "--comment")
        or (option.name == "" and option.module in PROTOCOLS)
        or (option.name == "--dst-type" and option.value == "LOCAL" and not option.negated)
        for option in rule.matches
    )


def _name(rule: Rule) -> tuple[str, str]:
    """ "namespace/name:port", and what the comment says of it."""
    found = _NAME.fullmatch(rule.comment)
    return (found[1], found[2] or "") if found and "/" in found[1] else ("", "")
