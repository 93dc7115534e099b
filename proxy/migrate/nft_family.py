"""One of kube-proxy's nftables tables -> entries. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from proxy.migrate.entries import Entry, Refusal
from proxy.migrate.nft_chains import NftChains
from proxy.migrate.nft_rules import Action, Step
from proxy.migrate.nft_table import NftTable
from proxy.migrate.notes import Notes
from proxy.migrate.outcomes import Outcome, Source
from rules.elements import Sources, describe_key
from rules.expressions import Verdict
from rules.foreign import TABLE_DORMANT

SERVICE_IPS, NODE_PORTS = "service-ips", "service-nodeports"
NO_ENDPOINTS, NO_NODE_PORTS = "no-endpoint-services", "no-endpoint-nodeports"
FIREWALL: Final = "firewall-ips"
PREROUTING, INPUT, FORWARD, OUTPUT, POSTROUTING = range(5)
PATHS: Final = (
    ("nat", PREROUTING, SERVICE_IPS, "connections from pods and from outside reach no Service"),
    ("nat", OUTPUT, SERVICE_IPS, "connections from this node reach no Service"),
    ("nat", PREROUTING, NODE_PORTS, "connections from outside reach no NodePort"),
    ("filter", FORWARD, NO_ENDPOINTS, "connections to Services without endpoints are not refused"),
    ("filter", OUTPUT, NO_ENDPOINTS, "connections from this node to Services without endpoints are not refused"),
    ("filter", INPUT, NO_NODE_PORTS, "connections to NodePorts without endpoints are not refused"),
    ("filter", PREROUTING, FIREWALL, "source ranges keep nobody out"),
)
"""Maps that some base chain has to ask: its type, its hook, the map, and what follows if it does not."""

_NAME: Final = re.compile(r"[a-z]+-[A-Z2-7]{8}-([^/]+)/([^/]+)/[a-z]+/([^/_]*)(?:__.*)?")


class NftEntries(Struct):
    """nodeport_addresses: packed; None: at all addresses."""

    entries: list[Entry]
    nodeport_addresses: tuple[bytes, ...] | None
    mark: int


class _Found(Struct):
    """Everything that the maps have of one key."""

    chain: str = ""
    name: str = ""
    verdict: Refusal = ""
    sources: Sources | None = None


def read_family(table: NftTable, notes: Notes) -> NftEntries:
    """notes: takes what is not understood, and what is missing."""
    return _Reader(table, notes).read()


def name_of(chain: str) -> str:
    """ "namespace/name:port" in a chain's name; "" if there is none."""
    found = _NAME.fullmatch(chain)
    return f"{found[1]}/{found[2]}{':' if found[3] else ''}{found[3]}" if found else ""


class _Reader:
    def __init__(self, table: NftTable, notes: Notes) -> None:
        self._table, self._notes = table, notes
        self._chains = NftChains(table, notes)
        self._found: dict[bytes, _Found] = {}

    def read(self) -> NftEntries:
        self._check()
        for map_name in (SERVICE_IPS, NODE_PORTS):
            for found, chain, comment in self._elements(map_name):
                if isinstance(chain, str):
                    found.chain, found.name = chain, comment or name_of(chain)
        for map_name in (NO_ENDPOINTS, NO_NODE_PORTS):
            for found, chain, comment in self._elements(map_name):
                found.verdict = self._refusal(chain)
                found.name = found.name or comment
        for found, chain, _ in self._elements(FIREWALL):
            if isinstance(chain, str):
                found.sources = self._chains.sources(chain)
        entries = [self._entry(key, found) for key, found in sorted(self._found.items())]
        return NftEntries(entries, self._node_port_addresses(), self._mark())

    def _elements(self, map_name: str) -> Iterator[tuple[_Found, str | int, str]]:
        """Of each element, where its verdict leads: a chain, or Verdict.DROP; and its comment. Noted, if it is another."""
        for key, (data, comment) in self._table.maps.get(map_name, {}).items():
            whole = bytes((self._table.family,)) + key if len(key) == 8 else key
            if len(whole) not in (9, 8 + self._table.family.address_size):
                self._notes.add(f"map {map_name}", f"it has a key of {len(key)} bytes")
                continue
            chain: str | int = data.decode(errors="replace")
            if len(data) == 4 and data == Verdict.DROP.to_bytes(4):
                chain = int(Verdict.DROP)
            elif chain not in self._table.chains:
                cause = "its element has a verdict that kube-proxy does not use"
                self._notes.add(f"map {map_name}, {describe_key(whole)}", cause)
                continue
            yield self._found.setdefault(whole, _Found()), chain, comment.rstrip(":")

    def _refusal(self, chain: str | int) -> Refusal:
        if not isinstance(chain, str):
            return "drop"
        return self._chains.through(chain, Source.OUTSIDE).refusal

    def _entry(self, key: bytes, found: _Found) -> Entry:
        refusal = found.verdict
        if not found.chain:
            return Entry(key, found.name, refusal=refusal, outside_refusal=refusal, sources=found.sources)
        external = len(key) == 9 or found.chain.startswith("external-")
        outside = self._chains.through(found.chain, Source.OUTSIDE)
        inside = self._inside(key, found.chain) if external else outside
        lasting = inside if inside.endpoints else outside
        return Entry(
            key,
            found.name,
            inside.endpoints,
            outside.endpoints,
            "" if inside.endpoints else inside.refusal or refusal,
            "" if outside.endpoints else outside.refusal or refusal,
            not outside.masquerade if external else None,
            lasting.affinity,
            found.sources,
        )

    def _inside(self, key: bytes, chain: str) -> Outcome:
        """What pods and this node get. It is the same; if not, the one that is not as it should be."""
        node = self._chains.through(chain, Source.NODE)
        if self._chains.detector is None:
            return node
        pod = self._chains.through(chain, Source.POD)
        if pod.endpoints == node.endpoints:
            return node
        self._notes.remark(describe_key(key), "pods and this node are led to different endpoints")
        usual = "service-" + chain.partition("-")[2]
        wanted = self._chains.through(usual, Source.OUTSIDE).endpoints if usual in self._table.chains else frozenset()
        return pod if node.endpoints == wanted else node

    def _node_port_addresses(self) -> tuple[bytes, ...] | None:
        """Of the rules that ask the map of NodePorts."""
        addresses: set[bytes] = set()
        for steps in self._table.chains.values():
            for step in steps:
                if not any(_asks(action, NODE_PORTS) for action in step.actions):
                    continue
                for condition in step.conditions:
                    if condition.kind == "to-node" and not condition.negated:
                        return None
                    if condition.kind == "destination-in" and not condition.negated:
                        addresses |= set(self._table.members.get(str(condition.value), ()))
        return tuple(sorted(addresses))

    def _mark(self) -> int:
        """Most chains' mark."""
        for steps in self._table.chains.values():
            for step in steps:
                for action in step.actions:
                    if action.kind == "mark":
                        return action.code
        self._notes.remark(f"table {self._table.family.nft} kube-proxy", "no rule sets a mark: nothing is masqueraded")
        return 0

    def _check(self) -> None:
        """That packets come by at all."""
        table = f"table {self._table.family.nft} kube-proxy"
        if self._table.flags & TABLE_DORMANT:
            self._notes.remark(table, "it is dormant: none of its rules is in force")
        for kind, hook, map_name, otherwise in PATHS:
            if map_name not in self._table.maps:
                self._notes.remark(f"{table}: map {map_name}", "it is not there")
            elif self._table.maps[map_name] and not self._is_asked(kind, hook, map_name):
                self._notes.remark(f"{table}: no base chain leads to map {map_name}", otherwise)
        if not any(
            action.kind == "masquerade" for step in self._reached("nat", POSTROUTING) for action in step.actions
        ):
            self._notes.remark(table, "nothing is masqueraded")

    def _is_asked(self, kind: str, hook: int, map_name: str) -> bool:
        return any(_asks(action, map_name) for step in self._reached(kind, hook) for action in step.actions)

    def _reached(self, kind: str, hook: int) -> Iterator[Step]:
        """All rules of base chains, and of those that they jump to."""
        waiting = [base.name for base in self._table.bases if (base.type, base.hook) == (kind, hook)]
        seen = set(waiting)
        while waiting:
            for step in self._table.chains.get(waiting.pop(), ()):
                yield step
                for action in step.actions:
                    if action.kind == "verdict" and str(action.value) and str(action.value) not in seen:
                        seen.add(str(action.value))
                        waiting.append(str(action.value))


def _asks(action: Action, map_name: str) -> bool:
    return action.kind == "dispatch" and action.value == map_name
