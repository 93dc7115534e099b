"""Whose packets pass a rule of kube-proxy's nftables tables that was not understood. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Struct

from proxy.migrate.entries import Entry
from proxy.migrate.nft_places import is_after_translation
from proxy.migrate.nft_rules import Condition, Step
from proxy.migrate.nft_table import NftTable
from rules.elements import address_of
from rules.expressions import Verdict
from rules.foreign import ForeignChain


class Doubt(Struct, frozen=True):
    """A rule on the way of all packets. base: where they come from to it. behind: maps that were asked before: what they
    led away does not come to it."""

    base: ForeignChain
    step: Step
    behind: frozenset[str] = frozenset()


class Doubts:
    """node_ports: addresses of NodePorts, packed; None: all of the node's."""

    def __init__(self, table: NftTable, found: Iterable[Doubt], node_ports: Collection[bytes] | None) -> None:
        self._table, self._found, self._node_ports = table, tuple(found), node_ports

    def concern(self, entry: Entry, map_name: str) -> bool:
        """map_name: the one that leads to its endpoints."""
        return any(self._concerns(doubt, entry, map_name) for doubt in self._found)

    def _concerns(self, doubt: Doubt, entry: Entry, map_name: str) -> bool:
        is_led = bool(entry.endpoints and entry.outside)
        if is_led and map_name in doubt.behind:
            return False
        step, protocol, port = doubt.step, entry.key[-8], entry.key[-4:-2]
        asked = [self._table.maps.get(str(action.value)) for action in step.actions if action.kind == "dispatch"]
        if (
            asked
            and len(asked) == len(step.actions)
            and not any(found is None or _key(entry) in found for found in asked)
        ):
            return False
        is_after, is_harmless = is_after_translation(doubt.base), doubt.base.type != "nat" and _lets_pass(step)
        if is_harmless and is_led and entry.sources is None:
            return False
        if not (is_after and is_led):
            at = (address_of(entry.key),) if len(entry.key) != 9 else self._node_ports
            if any(self._may_match(step, address, protocol, port) for address in (at if at is not None else (None,))):
                return True
        if not is_after or is_harmless:
            return False
        return any(self._may_match(step, end[:-4], protocol, end[-4:-2]) for end in entry.endpoints | entry.outside)

    def _may_match(self, step: Step, address: bytes | None, protocol: int, port: bytes) -> bool:
        if step.unknown:
            return True
        return all(self._may_hold(condition, address, protocol, port) for condition in step.conditions)

    def _may_hold(self, condition: Condition, address: bytes | None, protocol: int, port: bytes) -> bool:
        """address: None where it is any of the node's."""
        match condition.kind:
            case "destination" if address is not None:
                found = _has_prefix(address, bytes(condition.value), condition.bits)  # type: ignore[arg-type]
            case "destination-in" if address is not None and condition.value in self._table.ranges:
                found = any(first <= address <= last for first, last in self._table.ranges[str(condition.value)])
            case "destination-in" if address is not None and condition.value in self._table.members:
                found = address in self._table.members[str(condition.value)]
            case "protocol":
                found = bytes(condition.value)[:1] == bytes((protocol,))  # type: ignore[arg-type]
            case "port":
                found = bytes(condition.value)[:2] == port  # type: ignore[arg-type]
            case _:
                return True
        return found is not condition.negated


def _key(entry: Entry) -> bytes:
    """As the maps have it."""
    return entry.key[1:] if len(entry.key) == 9 else entry.key


def _has_prefix(address: bytes, prefix: bytes, bits: int) -> bool:
    shift = 8 * len(address) - bits
    return int.from_bytes(address) >> shift == int.from_bytes(prefix.ljust(len(address), b"\0")) >> shift


def _lets_pass(step: Step) -> bool:
    """Whether it only skips rules, which in a chain of type filter refuse or drop."""
    codes = {action.code if action.kind == "verdict" else None for action in step.actions}
    return not step.unknown and codes <= {Verdict.RETURN, Verdict.ACCEPT}
