"""Which bits of the packet's mark, and of the connection's, a rule of another program's nftables table sets or compares. Pure.

linux/netfilter/nf_tables.h: enum nft_bitwise_attributes, enum nft_bitwise_ops, enum nft_ct_attributes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final, NamedTuple

from proxy.migrate.facts import WHOLE_MARK
from proxy.migrate.nft_rules import word_of
from rules import expressions as e
from rules.foreign import ForeignExpression, InRange, NotIn, Remember
from rules.netlink import attributes

KEY_OF_MARK: Final = b"\x08\0\x02\0\0\0\0\x03"
"""Without these bytes a rule has nothing to do with marks: of ct's keys the mark's is the third, as of meta's."""
BITWISE_SOURCE, BITWISE_TARGET, BITWISE_OP, BITWISE_SOURCE2 = 1, 2, 6, 8
OR, XOR = 4, 5  # of two registers, since Linux 6.13
CT_TARGET, CT_KEY, CT_SOURCE = 1, 2, 4


class Marks(NamedTuple):
    """Bits of the packet's and of the connection's mark."""

    packet: int = 0
    connection: int = 0


def used(expressions: Iterable[ForeignExpression]) -> Marks:
    """Of a rule. Who sets a mark without a mask sets all of it; who copies one compares what he copies."""
    rule = _Rule()
    for expression in expressions:
        rule.add(expression)
    return Marks(rule.packet, rule.connection)


class _Value(NamedTuple):
    """What a register holds: bits of a mark that are in it as they were, and those that something else may have set."""

    packet: int = 0
    connection: int = 0
    others: int = WHOLE_MARK


class _Rule:
    def __init__(self) -> None:
        self.packet = self.connection = 0
        self._held: dict[int, _Value] = {}

    def add(self, it: ForeignExpression) -> None:
        match it:
            case e.Meta(register=int(register), key=e.Meta.MARK):
                self._held[word_of(register)] = _Value(packet=WHOLE_MARK, others=0)
            case e.Conntrack(register=int(register), key=e.Conntrack.MARK):
                self._held[word_of(register)] = _Value(connection=WHOLE_MARK, others=0)
            case e.Meta(register=int(register)) | e.Conntrack(register=int(register)) | e.Payload(register=register):
                self._held[word_of(register)] = _Value()
            case e.Immediate(register=register, data=bytes(data)):
                self._held[word_of(register)] = _Value(others=_number(data))
            case e.Byteorder():
                self._held[word_of(it.register)] = self._at(it.source)
            case e.Bitwise():
                self._held[word_of(it.register)] = _masked(self._at(it.source), _number(it.mask), _number(it.xor))
            case e.Unknown(name="bitwise", data=data):
                self._bitwise({number: bytes(value) for number, value in attributes(memoryview(data))})
            case e.Meta(source=int(source), key=e.Meta.MARK):
                value = self._at(source)
                self.packet |= ~value.packet & WHOLE_MARK | value.connection | value.others
                self.connection |= value.connection
            case e.Unknown(name="ct", data=data):
                self._conntrack({number: bytes(value) for number, value in attributes(memoryview(data))})
            case e.Compare(register=register) | InRange(register=register):
                self._read(self._at(register))
            case e.Lookup(source=source) | NotIn(source=source) | Remember(key=source) | e.DynamicSet(key=source):
                for word, value in self._held.items():  # a key may be made of several
                    if word >= word_of(source):
                        self._read(value)
                if isinstance(it, e.Lookup) and it.register not in (None, e.VERDICT):
                    self._held[word_of(it.register)] = _Value()
            case e.Meta() | e.Counter():
                pass
            case _:  # it may load something
                self._held.clear()

    def _at(self, register: int) -> _Value:
        return self._held.get(word_of(register), _Value())

    def _read(self, value: _Value) -> None:
        self.packet |= value.packet
        self.connection |= value.connection

    def _bitwise(self, values: dict[int, bytes]) -> None:
        """A shift, or two registers: `ct mark & 0xffff00ff | meta mark & 0xff00`."""
        one = self._at(int.from_bytes(values.get(BITWISE_SOURCE, b"")))
        other = self._at(int.from_bytes(values.get(BITWISE_SOURCE2, b"")))
        result = _Value()
        if int.from_bytes(values.get(BITWISE_OP, b"")) in (OR, XOR):
            result = _Value(one.packet | other.packet, one.connection | other.connection, one.others | other.others)
        else:
            self._read(one)
            self._read(other if BITWISE_SOURCE2 in values else _Value())
        self._held[word_of(int.from_bytes(values.get(BITWISE_TARGET, b"")))] = result

    def _conntrack(self, values: dict[int, bytes]) -> None:
        """It sets something, or loads of one direction."""
        if CT_TARGET in values:
            self._held[word_of(int.from_bytes(values[CT_TARGET]))] = _Value()
        elif int.from_bytes(values.get(CT_KEY, b"")) == e.Conntrack.MARK:
            value = self._at(int.from_bytes(values.get(CT_SOURCE, b"")))
            self.connection |= ~value.connection & WHOLE_MARK | value.packet | value.others
            self.packet |= value.packet


def _masked(value: _Value, mask: int, xor: int) -> _Value:
    return _Value(value.packet & mask, value.connection & mask, value.others & mask | xor)


def _number(data: bytes) -> int:
    return int.from_bytes(data[:4], sys.byteorder)
