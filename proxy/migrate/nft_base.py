"""What one of kube-proxy's nftables tables has once for all Services: the ways to its maps, masquerading, drops. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from proxy.migrate.nft_chains import CLUSTER_IPS, NftChains
from proxy.migrate.nft_rules import Action, Step
from proxy.migrate.nft_table import NftTable
from proxy.migrate.notes import Notes
from proxy.migrate.outcomes import merged
from rules.elements import Sources
from rules.expressions import Verdict
from rules.foreign import TABLE_DORMANT

SERVICE_IPS, NODE_PORTS = "service-ips", "service-nodeports"
NO_ENDPOINTS, NO_NODE_PORTS = "no-endpoint-services", "no-endpoint-nodeports"
FIREWALL, HAIRPINS, UNALLOCATED = "firewall-ips", "hairpin-connections", "cluster-ips-check"
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


class NftBase:
    def __init__(self, table: NftTable, chains: NftChains, notes: Notes) -> None:
        self._table, self._chains, self._notes = table, chains, notes

    def check(self) -> None:
        """That packets come by at all, and are masqueraded."""
        table = f"table {self._table.family.nft} kube-proxy"
        if self._table.flags & TABLE_DORMANT:
            self._notes.remark(table, "it is dormant: none of its rules is in force")
        for kind, hook, map_name, otherwise in PATHS:
            if map_name not in self._table.maps:
                self._notes.remark(f"{table}: map {map_name}", "it is not there")
            elif self._table.maps[map_name] and not self._is_asked(kind, hook, map_name):
                self._notes.remark(f"{table}: no base chain leads to map {map_name}", otherwise)
        masquerading = [step for step in self._reached("nat", POSTROUTING) if _masquerades(step)]
        if not any(condition.kind == "mark" for step in masquerading for condition in step.conditions):
            self._notes.remark(table, "nothing is masqueraded" + (" but hairpin connections" if masquerading else ""))
        if HAIRPINS in self._table.members and not any(
            condition.kind == "hairpin" for step in masquerading for condition in step.conditions
        ):
            self._notes.remark(table, "an endpoint that connects to itself is not masqueraded")
        self._check_drops(table)

    def pods(self) -> str:
        """As in Beside.pods."""
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
            ends = [step for step in self._reached("filter", hook) if _is_about_cluster_ips(step)]
            if self._table.members.get(CLUSTER_IPS) and not ends:
                where = f"{table}: {'forward' if hook == FORWARD else 'output'}"
                self._notes.remark(where, "what goes to a clusterIP's other ports is not refused")

    def _is_asked(self, kind: str, hook: int, map_name: str) -> bool:
        return any(asks(action, map_name) for step in self._reached(kind, hook) for action in step.actions)

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


def asks(action: Action, map_name: str) -> bool:
    return action.kind == "dispatch" and action.value == map_name


def _masquerades(step: Step) -> bool:
    return any(action.kind == "masquerade" for action in step.actions)


def _is_about_cluster_ips(step: Step) -> bool:
    ends = any(action.kind == "reject" for action in step.actions)
    return ends and any(condition.value == CLUSTER_IPS and not condition.negated for condition in step.conditions)
