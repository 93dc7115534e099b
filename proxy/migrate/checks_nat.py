"""Other programs' translation of Services' own addresses. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from proxy.migrate.case import Case, finding
from proxy.migrate.facts import Translation
from proxy.migrate.report import Finding
from proxy.migrate.wording import label, many
from rules.elements import address_of, is_node_port
from rules.objects import PROTOCOLS


def foreign(case: Case) -> Iterator[Finding]:
    """A rule of another program leads a Service's address elsewhere."""
    rules = case.facts.here.translations
    if not rules:
        return
    at: dict[bytes, list[bytes]] = {}
    for key in case.ours.ports:
        if not is_node_port(key):
            at.setdefault(address_of(key), []).append(key)
    found: dict[str, None] = {}
    for rule in rules:
        for key in _met(rule, at):
            where = label(case.ours.ports[key].name, key)
            found[f"{where}: {rule.place} leads {rule.destination} to {rule.to or 'this node'}"] = None
    if found:
        yield finding(
            "foreign-nat",
            "change",
            f"Another program's rules lead {many(len(found), 'address')} of Services elsewhere",
            "Whichever rule comes first decides: with iptables the order in its chain, with nftables which chain was made"
            " later. So such a rule may win today and not after the switch, or the other way round.",
            "see whose rule it is and which of the two is meant, and remove the rule or the Service's address",
            list(found),
        )


def _met(rule: Translation, at: dict[bytes, list[bytes]]) -> Iterator[bytes]:
    """Keys of service ports that it translates. at: address -> keys."""
    try:
        network = ipaddress.ip_network(rule.destination, strict=False)
    except ValueError:
        return
    if network.num_addresses == 1:
        addresses = [network.network_address.packed]
    else:
        size, first, last = network.max_prefixlen // 8, network.network_address.packed, network.broadcast_address.packed
        addresses = [address for address in at if len(address) == size and first <= address <= last]
    for address in addresses:
        for key in at.get(address, ()):
            if rule.protocol in ("", "ALL") or PROTOCOLS.get(rule.protocol) == key[-8]:
                if not rule.ports or _has(rule.ports, int.from_bytes(key[-4:-2])):
                    yield key


def _has(ports: str, port: int) -> bool:
    """ports: "80", "80:90", "80,443"."""
    for part in ports.split(","):
        first, colon, last = part.partition(":")
        try:
            if int(first or "0") <= port <= int((last or "65535") if colon else first):
                return True
        except ValueError:
            return True  # a name: it may be this one
    return False
