"""Whose packets pass a rule of iptables that was not understood. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from ipaddress import IPv4Network, IPv6Network

from msgspec import Struct

from proxy.migrate.entries import Entry
from proxy.migrate.iptables_chains import HARMLESS
from proxy.migrate.iptables_keys import PROTOCOLS
from proxy.migrate.iptables_save import Option, Rule
from rules.elements import address_of

SKIPPING = ("RETURN", "ACCEPT")
"""Targets in the table filter behind which less is refused or dropped."""


class Doubt(Struct, frozen=True):
    """rule: without matches, if it could not be taken apart. at: its number in its chain."""

    rule: Rule
    at: int


class Doubts:
    """Among the rules of all Services. services, node_ports: in the table nat, in KUBE-SERVICES and KUBE-NODEPORTS.
    refusing, guarding: in the table filter, those that refuse, and those of source ranges. node_addresses: where NodePorts
    answer; None: at all of the node's addresses, which are not near clusterIPs: cluster_ips."""

    def __init__(self) -> None:
        self.node_addresses: Collection[bytes] | None = None
        self.cluster_ips: Collection[bytes] = ()
        self.services: list[Doubt] = []
        self.node_ports: list[Doubt] = []
        self.refusing: list[Doubt] = []
        self.guarding: list[Doubt] = []
        self.is_about_all = False

    def __bool__(self) -> bool:
        return bool(self.is_about_all or self.services or self.node_ports or self.refusing or self.guarding)

    def concern(self, entry: Entry, leads: int, port_leads: int) -> bool:
        """leads: the number of the rule in KUBE-SERVICES that leads it on; port_leads: the same in KUBE-NODEPORTS."""
        if self.is_about_all:
            return True
        is_led = bool(entry.endpoints and entry.outside)
        passed = [d for d in self.services if d.at < leads or not is_led]
        at: Collection[bytes | None] = (
            (address_of(entry.key),) if len(entry.key) != 9 else self.node_addresses or (None,)
        )
        if len(entry.key) == 9:
            passed += [d for d in self.node_ports if d.at < port_leads or not is_led]
        if not is_led:
            passed += self.refusing
        if entry.sources is not None:
            passed += self.guarding
        protocol, port = entry.key[-8], int.from_bytes(entry.key[-4:-2])
        if any(self._may_match(doubt.rule, address, protocol, port) for doubt in passed for address in at):
            return True
        # What is led has its endpoint's address when it comes to the table filter.
        ending = [d for d in (*self.refusing, *self.guarding) if d.rule.target not in SKIPPING]
        return any(
            self._may_match(doubt.rule, end[:-4], protocol, int.from_bytes(end[-4:-2]))
            for doubt in ending
            for end in entry.endpoints | entry.outside
        )

    def _may_match(self, rule: Rule, address: bytes | None, protocol: int, port: int) -> bool:
        """Whether it may be about packets to there, as far as these decide. address: None: any of the node's."""
        return all(self._may_hold(option, address, protocol, port) for option in rule.matches)

    def _may_hold(self, option: Option, address: bytes | None, protocol: int, port: int) -> bool:
        match option.name:
            case "-d":
                try:
                    network = ipaddress.ip_network(option.value)
                except ValueError:
                    return True
                if address is None:
                    return option.negated or not self._is_of_cluster_ips(network)
                found = ipaddress.ip_address(address) in network
            case "-p" if option.value not in ("all", "0"):
                found = PROTOCOLS.get(option.value) == protocol or option.value == str(protocol)
            case "--dst-type" if option.value == "LOCAL":  # as no clusterIP is in this mode
                return option.negated or address not in self.cluster_ips
            case "--dport" | "--dports":
                ranges = [_range(part) for part in option.value.split(",")]
                if None in ranges:
                    return True
                found = any(first <= port <= last for first, last in filter(None, ranges))
            case _:
                return True
        return found is not option.negated

    def _is_of_cluster_ips(self, network: IPv4Network | IPv6Network) -> bool:
        """Whether it is of the 256 addresses around one of them, at most: ranges of clusterIPs are no nodes'."""
        first, size = network.network_address.packed, network.max_prefixlen
        return network.prefixlen >= size - 8 and any(one[:-1] == first[:-1] for one in self.cluster_ips)


def is_doubtful(rule: Rule) -> bool:
    """Whether packets may fare differently by it."""
    return rule.target not in HARMLESS


def _range(text: str) -> tuple[int, int] | None:
    """Of "80", "80:90"; None of a name."""
    first, colon, last = text.partition(":")
    try:
        return int(first or "0"), int((last or "65535") if colon else first)
    except ValueError:
        return None
