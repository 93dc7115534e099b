"""One of kube-proxy's nftables tables, read from the kernel, and reduced while it is read: there may be a million
expressions in it."""

from __future__ import annotations

import socket
import struct
import sys
from typing import Final

from msgspec import Struct, field

from proxy.migrate.nft_rules import Condition, Step, translate
from rules import expressions as e
from rules.foreign import INTERVAL, Changed, ForeignChain, ForeignSet, Reader
from rules.objects import Family, Table

NAME: Final = "kube-proxy"
TRIES: Final = 5
ANONYMOUS, MAP = 1, 8  # NFT_SET_*
AFFINITY: Final = "affinity-"

Elements = dict[bytes, tuple[bytes, str]]


class Leaf(Struct, frozen=True, gc=False):
    """A chain that leads to one endpoint. remembers: the set that its clients are put into; "" if there is none. protocol:
    the number of the one that is translated; 0: that is not told."""

    endpoint: bytes
    remembers: str = ""
    protocol: int = 0


class NftTable(Struct):
    """maps: of a named map, key -> (data, comment); data is the chain that a verdict goes to. numbered: of an anonymous
    map, what it leads to: packed endpoints, or names of chains. gaps: those of which a number below their size is not a key. ranges: of a set of intervals. members: of another set."""

    family: Family
    flags: int = 0
    bases: list[ForeignChain] = field(default_factory=list)
    chains: dict[str, tuple[Step, ...]] = field(default_factory=dict)
    leaves: dict[str, Leaf] = field(default_factory=dict)
    sets: dict[str, ForeignSet] = field(default_factory=dict)
    maps: dict[str, Elements] = field(default_factory=dict)
    numbered: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    gaps: set[str] = field(default_factory=set)
    ranges: dict[str, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    members: dict[str, tuple[bytes, ...]] = field(default_factory=dict)


def read_table(reader: Reader, family: Family, name: str = NAME) -> NftTable | None:
    """None: there is no such table. Raises OSError, ValueError, LookupError, struct.error; Changed if it never stood still."""
    for attempt in range(TRIES):
        try:
            return _read(reader, Table(family, name))
        except (Changed, FileNotFoundError):  # what one reply spoke of, the next does not know any more
            if attempt == TRIES - 1:
                raise Changed from None
    raise AssertionError


def _read(reader: Reader, table: Table) -> NftTable | None:
    flags = reader.flags(table)
    if flags is None:
        return None
    found = NftTable(table.family, flags)
    for chain in reader.chains(table):
        found.chains[chain.name] = ()
        if chain.hook >= 0:
            found.bases.append(chain)
    shared: dict[tuple[Condition, ...], tuple[Condition, ...]] = {}
    shapes: dict[tuple[bytes, ...], int] = {}
    for name in found.chains:
        rules = reader.rules(table, name)
        endpoint, shape = _shape(name, rules)
        if shape in shapes:
            found.leaves[name] = Leaf(endpoint, protocol=shapes[shape])
            continue
        steps = [translate(table.family, reader.expressions(rule)) for rule in rules]
        if leaf := _leaf(steps, 8 * table.family.address_size):
            found.leaves[name] = leaf
            if leaf == Leaf(endpoint, protocol=leaf.protocol):
                shapes[shape] = leaf.protocol
            continue
        found.chains[name] = tuple(
            [Step(shared.setdefault(step.conditions, step.conditions), step.actions, step.unknown) for step in steps]
        )
    for one in reader.sets(table):
        _add_set(reader, table, found, one)
    return found


def _shape(chain: str, rules: list[bytes]) -> tuple[bytes, tuple[bytes, ...]]:
    """The endpoint that a chain's name tells, endpoint-*__10.244.0.2/8080, and its rules without that address and port.

    There may be a hundred thousand such chains: those of one shape are understood once. A rule that has another address
    than the name has another shape.
    """
    host, _, port = chain.rpartition("__")[2].rpartition("/")
    if not port.isdigit() or not rules:
        return b"", ()
    try:
        packed = socket.inet_pton(socket.AF_INET, host)
        number = struct.pack(">H", int(port))
    except (OSError, struct.error):
        return b"", ()
    shape = tuple([rule.replace(packed, b"<address>").replace(number + b"\0\0", b"<port>") for rule in rules])
    return packed + number + b"\0\0", shape


def _add_set(reader: Reader, table: Table, found: NftTable, one: ForeignSet) -> None:
    if one.name.startswith(AFFINITY):
        found.sets[one.name] = one
    elif one.flags & INTERVAL:
        found.ranges[one.name] = reader.intervals(table, one)
    elif not one.flags & MAP:
        found.members[one.name] = tuple(reader.elements(table, one.name))
    elif one.flags & ANONYMOUS:
        elements = reader.elements(table, one.name)
        found.numbered[one.name] = tuple([data for data, _ in elements.values()])
        if any(number.to_bytes(4, sys.byteorder) not in elements for number in range(len(elements))):
            found.gaps.add(one.name)
    else:
        found.maps[one.name] = reader.elements(table, one.name)


def _leaf(steps: list[Step], bits: int) -> Leaf | None:
    """Of a chain that does nothing but remember the client and translate (and mark what the endpoint sends to itself)."""
    endpoint, remembers, protocol = b"", "", 0
    for step in steps:
        if step.unknown or not step.actions:
            return None
        for action in step.actions:
            match action.kind:
                case "endpoint" if all(condition.kind == "protocol" for condition in step.conditions):
                    endpoint = bytes(action.value)  # type: ignore[arg-type]
                    protocol = next((bytes(c.value)[0] for c in step.conditions), 0)  # type: ignore[arg-type]
                case "remember" if not step.conditions:
                    remembers = str(action.value)
                case "verdict" if action.code == e.Verdict.JUMP and _is_hairpin(step, bits):
                    pass
                case _:
                    return None
    return Leaf(endpoint, remembers, protocol) if endpoint else None


def _is_hairpin(step: Step, bits: int) -> bool:
    return [(c.kind, c.bits, c.negated) for c in step.conditions] == [("source", bits, False)]
