"""Operations: what a transaction is made of. They know nothing of how they are run.

A transaction is a sequence of operations that the kernel (`kernel.Kernel`) or the fake (`fake.FakeKernel`) applies
whole, in order, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from rules.objects import Chain, Rule, Set, Table


@dataclass(frozen=True, slots=True)
class AddTable:
    """Exists already: nothing."""

    table: Table


@dataclass(frozen=True, slots=True)
class DeleteTable:
    """With all that is in it. Not there: ENOENT."""

    table: Table


@dataclass(frozen=True, slots=True)
class AddChain:
    """Exists already: nothing."""

    chain: Chain


@dataclass(frozen=True, slots=True)
class FlushChain:
    """Remove the chain's rules."""

    chain: Chain


@dataclass(frozen=True, slots=True)
class AddSet:
    """Exists already: nothing, or EEXIST if it differs."""

    set: Set


@dataclass(frozen=True, slots=True)
class AddRule:
    rule: Rule


class AddElement(Struct, frozen=True, gc=False):
    """`key` and `data` as the set's fields side by side, each padded to 4 bytes, in network order but for an index.

    In a map of verdicts, data is the name of the chain to go to. There with the same data: nothing. There with other
    data: EEXIST or, older kernels, EBUSY (delete it first, in the same transaction).
    """

    set: Set
    key: bytes
    data: bytes = b""
    comment: str = ""
    end: bytes = b""
    """Of a range: its last key."""


class DeleteElement(Struct, frozen=True, gc=False):
    """Not there: ENOENT."""

    set: Set
    key: bytes
    end: bytes = b""


Operation = AddTable | DeleteTable | AddChain | FlushChain | AddSet | AddRule | AddElement | DeleteElement
