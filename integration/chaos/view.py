"""What tables say, as facts that compare: read from the kernel, or made of service ports. Pure.

Without what depends on the history: the numbers of endpoints, the bands of service ports with session affinity, the
names of chains, which service ports once had no endpoints. What must hold of those is checked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from rules.diff import scratch
from rules.dump import ChainState, TableState
from rules.elements import ServicePort, address_of, describe_key, element_key, is_node_port
from rules.endpoint_numbers import LOCAL, TICKET
from rules.expressions import NumberGenerator
from rules.layout import LAYOUTS, Network
from rules.objects import Family
from rules.transaction import AddElement, AddRule

Key = tuple[Family, bool, bytes]
"""A service port: its family, whether it is a NodePort, its key in the sets."""

Fact = tuple[Any, ...]
Elements = Mapping[bytes, tuple[bytes, str]]

GATES: Final = ("external", "external-local")
CLUSTER_IPS, EXTERNAL_IPS, HAIRPINS, NODEPORT_IPS = "cluster-ips", "external-ips", "hairpins", "nodeport-ips"
SHARED: Final = (CLUSTER_IPS, EXTERNAL_IPS, HAIRPINS, NODEPORT_IPS)
TICKETS: Final = ("tickets", "local-tickets")
COUNTED: Final = "no-endpoints"
PREFIX: Final = "nodeport-"
_STICKY: Final = re.compile(r"((?:local-)?sticky)-(\d+)-(for-\d+s)")


class Torn(ValueError):
    """A table that is inconsistent in itself."""


@dataclass
class View:
    """ports: what the sets say of each service port. shared: (family, set) -> keys of elements that stand for many.
    dropped: family -> the rules about ServiceCIDRs' addresses."""

    ports: dict[Key, frozenset[Fact]] = field(default_factory=dict)
    shared: dict[tuple[Family, str], frozenset[bytes]] = field(default_factory=dict)
    dropped: dict[Family, list[Any]] = field(default_factory=dict)

    def gates(self) -> dict[Key, frozenset[str]]:
        """The service ports that only their Service makes, whatever its endpoints are."""
        found = {}
        for key, facts in self.ports.items():
            if gates := frozenset(fact[0] for fact in facts if fact[0] in GATES):
                found[key] = gates
        return found


def read(tables: Mapping[Family, TableState]) -> View:
    """The kernel's tables. Raises Torn where they cannot be right; a table that is not there is empty."""
    view = View()
    for family, layout in LAYOUTS.items():
        table = tables.get(family) or TableState()
        sets = {name: found.elements for name, found in table.sets.items()}
        view.ports |= _ports(family, sets, table.chains)
        for name in SHARED:
            view.shared[family, name] = frozenset(sets.get(name, ()))
        unallocated = table.chains.get(layout.unallocated.name)
        view.dropped[family] = unallocated.rules if unallocated else []
    return view


def expect(ports: Iterable[ServicePort], nodeport_ips: Mapping[Family, frozenset[bytes]], cidrs: list[Network]) -> View:
    """What the kernel must hold where these are wanted."""
    view = View()
    shared: dict[tuple[Family, str], set[bytes]] = {(family, name): set() for family in Family for name in SHARED}
    for port in ports:
        view.ports |= _of_port(port)
        shared[port.family, HAIRPINS].update(address * 2 for address in port.hairpins)
        if not is_node_port(port.key):
            shared[port.family, EXTERNAL_IPS if port.external else CLUSTER_IPS].add(address_of(port.key))
    for family, layout in LAYOUTS.items():
        shared[family, NODEPORT_IPS].update(nodeport_ips[family])
        view.dropped[family] = [rule.expressions for rule in layout.unallocated_rules(cidrs)]
    view.shared = {where: frozenset(keys) for where, keys in shared.items()}
    return view


def describe(key: Key) -> str:
    """For people."""
    family, node_port, bare = key
    return describe_key(bytes([family]) + bare if node_port else bare)


@lru_cache(maxsize=1 << 16)
def _of_port(port: ServicePort) -> dict[Key, frozenset[Fact]]:
    """Not to be changed."""
    sets: dict[str, dict[bytes, tuple[bytes, str]]] = {}
    chains: dict[str, ChainState] = {}
    for operation in scratch(port.family, [port]).operations:
        if isinstance(operation, AddRule):
            chains.setdefault(operation.rule.chain.name, ChainState()).rules.append(operation.rule.expressions)
        elif isinstance(operation, AddElement):
            found = sets.setdefault(operation.set.name, {})
            found[operation.key] = (operation.data or operation.end, operation.comment)
    made = _ports(port.family, sets, chains)
    assert not made or set(made) == {(port.family, is_node_port(port.key), element_key(port.key))}
    return made


def _check_fixed(family: Family, name: str, elements: Elements) -> None:
    wanted = {key: (element.data, "") for (of, key), element in LAYOUTS[family].fixed.items() if of == name}
    if elements != wanted:
        raise Torn(f"{family.nft} {name} is {dict(elements)}")


def _ports(
    family: Family, sets: Mapping[str, Elements], chains: Mapping[str, ChainState]
) -> dict[Key, frozenset[Fact]]:
    found: dict[Key, list[Fact]] = {}
    lists: dict[tuple[Key, bool], dict[int, bytes]] = {}
    for name, elements in sets.items():
        if name in SHARED or name in TICKETS:
            continue
        if name.endswith("by-number"):
            _check_fixed(family, name, elements)
            continue
        node_port = name.startswith(PREFIX)
        base = name.removeprefix(PREFIX)
        size = 8 if node_port else 8 + family.address_size
        for whole, (data, comment) in elements.items():
            key = (family, node_port, whole[:size])
            if base in ("endpoints", "sticky-endpoints"):
                number = int.from_bytes(whole[size:], sys.byteorder) - (TICKET if base == "sticky-endpoints" else 0)
                lists.setdefault((key, number >= LOCAL), {})[number % LOCAL] = data
                found.setdefault(key, []).append((base, number >= LOCAL, data))
            elif base.endswith("round-robin"):
                [*_, generator, _, _] = chains[data.decode()].rules[0]
                assert isinstance(generator, NumberGenerator)
                found.setdefault(key, []).append((base, generator.modulus))
            else:
                found.setdefault(key, []).append((base, whole[size:], data, comment))
    return {
        key: frozenset(_settled(key, fact, lists) for fact in facts if fact[0] != COUNTED or not _leads_on(facts))
        for key, facts in found.items()
    }


def _leads_on(facts: Iterable[Fact]) -> bool:
    """Whether it has endpoints somewhere: then it depends on the history whether it is counted."""
    return any(fact[0] in ("endpoints", "sticky-endpoints", "dropped") for fact in facts)


def _settled(key: Key, fact: Fact, lists: Mapping[tuple[Key, bool], Mapping[int, bytes]]) -> Fact:
    """The fact without what depends on the history. Raises Torn."""
    name = fact[0]
    if name in ("endpoints", "sticky-endpoints"):
        numbered = lists[key, fact[1]]
        dense = _dense(numbered)
        whole = {numbered[i] for i in range(dense)} == set(numbered.values())
        if not whole or (name == "endpoints" and not dense == len(numbered) == len(set(numbered.values()))):
            raise Torn(f"{describe(key)}: its endpoints have the numbers {sorted(numbered)}")
    elif sticky := _STICKY.fullmatch(name):
        how, bound, timeout = sticky.groups()
        dense = _dense(lists.get((key, how.startswith("local")), {}))
        if not (int(bound) // 2 < dense <= int(bound) or dense == int(bound) == 1):
            raise Torn(f"{describe(key)}: it is in {name}, and has {dense} endpoints")
        return (f"{how}-{timeout}", *fact[1:])
    return fact


def _dense(numbered: Mapping[int, bytes]) -> int:
    """How many numbers from 0 on there are."""
    return next(i for i in range(len(numbered) + 1) if i not in numbered)
