"""A table of iptables-legacy as the kernel has it: one blob of rules, read and written anew without some. Pure.

linux/netfilter_ipv4/ip_tables.h, linux/netfilter/x_tables.h, and the same for IPv6. A chain is a run of rules; one that
users made begins with a rule whose target is ERROR and holds its name. A jump is the offset of the rule to go on with, and
so is "go on with the next rule".

Kube-proxy's chains may have half a million rules, with hundreds of bytes each: those that go are not looked into.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Set
from itertools import islice
from typing import Final

from msgspec import Struct

from proxy.detect.iptables_legacy import TARGET_HEADER, Variant, offsets
from proxy.detect.kube_chains import SHARED, may_be_kube_proxys
from proxy.leftovers.found import Rule, XTable

HOOKS: Final = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
JUMPS: Final = b""
"""What a standard target is called."""
SET: Final = b"set"
TAIL: Final = "ERROR"
"""The name that the last rule of a table holds."""
_ERROR: Final = b"ERROR\0"
_SIZE = struct.Struct("=H")
_VERDICT = struct.Struct("=i")
ACCEPT_VERDICT: Final = -2  # -NF_ACCEPT - 1


class Info(Struct, frozen=True):
    """struct ipt_getinfo: valid_hooks is a bit for each of HOOKS; hooks and underflows: where their first rules stand, and
    where their policies."""

    name: bytes
    valid_hooks: int
    hooks: tuple[int, ...]
    underflows: tuple[int, ...]
    count: int
    size: int


class Chain(Struct):
    """first, end: offsets of its rules, and number: that of the first one. head: offset of the rule that names it; -1: it
    is a base chain."""

    name: str
    first: int
    number: int
    head: int = -1
    end: int = 0


class Entry(Struct, frozen=True):
    """A rule. number: which of the table's. target: what its target is called. verdict: of a standard one."""

    number: int
    at: int
    data: bytes
    target_at: int
    target: bytes
    verdict: int = 0

    @property
    def goes_on(self) -> bool:
        """With the next rule, whatever that is."""
        return self.target == JUMPS and self.verdict == self.at + len(self.data)


class Replacement(Struct, frozen=True):
    """What IPT_SO_SET_REPLACE gets, but for the counters' place. kept: numbers of the rules that are left, of the old ones,
    by which the counters are found again."""

    valid_hooks: int
    hooks: tuple[int, ...]
    underflows: tuple[int, ...]
    entries: bytes
    old_count: int
    kept: tuple[int, ...]


class Blob(Struct):
    """A table, taken apart into its chains. tail: offset of its last rule."""

    info: Info
    data: memoryview
    variant: Variant
    chains: dict[str, Chain]
    tail: int

    def entries(self, chain: Chain) -> Iterator[Entry]:
        """Its rules. Raises ValueError."""
        at, number = chain.first, chain.number
        while at < chain.end:
            yield self.entry(at, number)
            at += offsets(self.data, at, self.variant)[1]
            number += 1

    def entry(self, at: int, number: int) -> Entry:
        target, following = offsets(self.data, at, self.variant)
        data = bytes(self.data[at : at + following])
        name = _name(data, target)
        verdict = 0
        if name == JUMPS:
            if following < target + TARGET_HEADER + _VERDICT.size:
                raise ValueError(f"the rule at {at} has a target without a verdict")
            (verdict,) = _VERDICT.unpack_from(data, target + TARGET_HEADER)
        return Entry(number, at, data, target, name, verdict)


def parse(info: Info, data: memoryview, variant: Variant) -> Blob:
    """Raises ValueError where an offset cannot be true."""
    starts = {info.hooks[number]: HOOKS[number] for number in range(len(HOOKS)) if info.valid_hooks & 1 << number}
    chains: dict[str, Chain] = {}
    current: Chain | None = None
    at = number = tail = 0
    while at < len(data):
        target, following = offsets(data, at, variant)
        named = bytes(data[at + target + 2 : at + target + 2 + len(_ERROR)]) == _ERROR
        if (named or at in starts) and current:
            current.end = at
        if named:
            tail = at
            label = (
                bytes(data[at + target + TARGET_HEADER : at + following]).partition(b"\0")[0].decode(errors="replace")
            )
            current = Chain(label, at + following, number + 1, at)
            if at + following < len(data):
                chains[label] = current
        elif at in starts:
            current = chains[starts[at]] = Chain(starts[at], at, number)
        at += following
        number += 1
    if any(name not in chains or chains[name].end <= chains[name].first for name in starts.values()):
        raise ValueError("a table of iptables-legacy has a base chain without a policy")
    return Blob(info, data, variant, chains, tail)


def _name(data: bytes, at: int) -> bytes:
    """Of a match or target: its size comes before its name."""
    return data[at + 2 : at + 2 + 29].partition(b"\0")[0]


def _uses_set(entry: Entry, variant: Variant) -> bool:
    at = variant.size
    while at + TARGET_HEADER <= entry.target_at:
        (size,) = _SIZE.unpack_from(entry.data, at)
        if size < TARGET_HEADER:
            raise ValueError(f"a match of {size} bytes")
        if _name(entry.data, at) == SET:
            return True
        at += size
    return False


def table_of(blob: Blob, name: str) -> XTable:
    """The same as the planner knows it. Raises ValueError."""
    by_offset = {chain.first: chain.name for chain in blob.chains.values() if chain.head >= 0}
    found = XTable("legacy", "ip" if blob.variant.part == "ip" else "ip6", name)
    for chain in blob.chains.values():
        found.chains[chain.name] = rules = []
        if may_be_kube_proxys(chain.name) and chain.name not in SHARED:
            if sum(1 for _ in islice(blob.entries(chain), 2)) < 2:  # the last one goes back
                found.bare.add(chain.name)
            continue
        last = None
        for last in blob.entries(chain):
            target = by_offset.get(last.verdict, "") if last.target == JUMPS and not last.goes_on else ""
            rules.append(Rule(last.number, target, _uses_set(last, blob.variant)))
        if last and chain.head < 0:
            found.policies[chain.name] = "accept" if last.verdict == ACCEPT_VERDICT else "drop"
    return found


def without(blob: Blob, chains: Set[str], emptied: Set[str], rules: Set[int]) -> Replacement:
    """The table without these chains, without the rules of some others, and without single rules (by their number).

    Raises ValueError where a rule that is left jumps to a chain that is not.
    """
    kept: list[Entry] = []
    moved: dict[int, int] = {}
    size = 0
    for chain in blob.chains.values():
        if chain.name in chains:
            continue
        waiting: list[int] = []
        if chain.head >= 0:
            kept.append(blob.entry(chain.head, chain.number - 1))
            moved[chain.head] = size
            size += len(kept[-1].data)
        for entry in blob.entries(chain):
            waiting.append(entry.at)  # who jumps to a rule that goes, goes on with the next one that stays
            is_last = entry.at + len(entry.data) == chain.end
            if entry.number not in rules and (is_last or chain.name not in emptied):
                kept.append(entry)
                moved.update(dict.fromkeys(waiting, size))
                waiting = []
                size += len(entry.data)
    kept.append(blob.entry(blob.tail, blob.info.count - 1))
    info = blob.info
    return Replacement(
        info.valid_hooks,
        tuple(moved.get(offset, 0) for offset in info.hooks),
        tuple(moved.get(offset, 0) for offset in info.underflows),
        b"".join(_rewritten(entry, moved) for entry in kept),
        info.count,
        tuple(entry.number for entry in kept),
    )


def _rewritten(entry: Entry, moved: Mapping[int, int]) -> bytes:
    if entry.target != JUMPS or entry.verdict < 0:
        return entry.data
    if entry.goes_on:
        to = moved[entry.at] + len(entry.data)
    elif entry.verdict in moved:
        to = moved[entry.verdict]
    else:
        raise ValueError(f"the rule at {entry.at} jumps to a chain that is to go")
    at = entry.target_at + TARGET_HEADER
    return entry.data[:at] + _VERDICT.pack(to) + entry.data[at + _VERDICT.size :]
