"""One rule, run for one packet as the kernel runs it. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, Literal

import msgspec

from rules import expressions as e
from rules.dump import SetState, TableState
from rules.jhash import jhash
from rules.objects import Family, Field
from rules.packet import Packet, PacketState

_INTERVAL: Final = 0x4  # NFT_SET_INTERVAL
_SIZES: Final = {field.type_number: field.size for field in Field}
_MOST_DRAWS: Final = 1 << 17


class NotUnderstood(ValueError):
    """An expression that this program never writes, or a chain or set that is not there: nobody knows what the rule
    does."""


class RuleRun:
    """One rule, one packet. Its registers are its own: no rule of ours reads what another one left."""

    def __init__(self, table: TableState, packet: Packet, chain: str, state: PacketState, chance: float) -> None:
        self._table, self._packet, self._chain = table, packet, chain
        self.state, self.chance = state, chance
        self.verdict: tuple[e.Verdict, str] | Literal["refused"] | None = None
        self._registers = bytearray(96)
        self._sets: tuple[str, ...] = ()
        self._before = state

    def run(self, expressions: tuple[e.Expression, ...]) -> Iterator[RuleRun]:
        """One of it for each number that can be drawn, each at its end."""
        for position, expression in enumerate(expressions):
            if isinstance(expression, e.NumberGenerator) and expression.modulus > 1:
                yield from self._draw(expression, expressions[position + 1 :])
                return
            if not self._step(expression):  # what it did to the packet before stays
                yield self
                return
            if self.verdict:
                break
        self._arrive()
        yield self

    def _draw(self, number: e.NumberGenerator, rest: tuple[e.Expression, ...]) -> Iterator[RuleRun]:
        if number.modulus > _MOST_DRAWS:
            raise NotUnderstood(f"chain {self._chain} draws one of {number.modulus} numbers")
        missed = 0.0
        for drawn in range(number.modulus):
            one = RuleRun(self._table, self._packet, self._chain, self.state, self.chance / number.modulus)
            one._registers[:], one._sets = self._registers, self._sets
            one._store(number.register, struct.pack("=I", number.offset + drawn))
            for end in one.run(rest):
                if end.verdict is None and end.state == self.state:
                    missed += end.chance
                else:
                    yield end
        if missed:
            self.chance = missed
            yield self

    def _arrive(self) -> None:
        """Note how it got here, if it got anywhere."""
        if self.verdict or self.state.led != self._before.led:
            step = " @".join((self._chain, *self._sets))
            if self.state.path[-1:] != (step,):
                self.state = msgspec.structs.replace(self.state, path=(*self.state.path, step))

    # Registers.

    def _store(self, register: int, data: bytes) -> None:
        at = _offset(register)
        size = (len(data) + 3) // 4 * 4
        self._registers[at : at + size] = data.ljust(size, b"\0")

    def _load(self, register: int, size: int) -> bytes:
        at = _offset(register)
        return bytes(self._registers[at : at + size])

    # Expressions: each gives whether the rule goes on.

    def _step(self, expression: e.Expression) -> bool:
        step = _STEPS.get(type(expression))
        if step is None:
            name = expression.name if isinstance(expression, e.Unknown) else expression.NAME
            raise NotUnderstood(f"chain {self._chain} has a rule with an expression {name!r} that is none of ours")
        return step(self, expression)

    def _payload(self, it: e.Payload) -> bool:
        header = self._network() if it.base == 1 else self._transport()
        data = header[it.offset : it.offset + it.length]
        self._store(it.register, data)
        return len(data) == it.length

    def _network(self) -> bytes:
        destination = self.state.led[0] if self.state.led else self._packet.destination
        before = bytes((*bytes(9), self._packet.protocol, 0, 0)) if self._packet.family is Family.IPV4 else bytes(8)
        return before + self._packet.source + destination

    def _transport(self) -> bytes:
        port = self.state.led[1] if self.state.led else self._packet.port
        return struct.pack(">HH", 0, port)

    def _meta(self, it: e.Meta) -> bool:
        if it.source is not None:
            value = self._load(it.source, 4)
            change = {"priority": value} if it.key == it.PRIORITY else {"mark": struct.unpack("=I", value)[0]}
            if it.key not in (it.PRIORITY, it.MARK):
                raise NotUnderstood(f"chain {self._chain} sets metadata {it.key}")
            self.state = msgspec.structs.replace(self.state, **change)
            return True
        values = {
            it.PRIORITY: self.state.priority,
            it.MARK: struct.pack("=I", self.state.mark),
            it.IIFNAME: self._packet.interface.encode().ljust(16, b"\0"),
            it.L4PROTO: bytes((self._packet.protocol,)),
        }
        if it.key not in values or it.register is None:
            raise NotUnderstood(f"chain {self._chain} reads metadata {it.key}")
        self._store(it.register, values[it.key])
        return True

    def _conntrack(self, it: e.Conntrack) -> bool:
        if it.source is not None and it.key == it.MARK:
            (mark,) = struct.unpack("=I", self._load(it.source, 4))
            self.state = msgspec.structs.replace(self.state, connection_mark=mark)
            return True
        values = {it.STATUS: it.DNAT if self.state.led else 0, it.MARK: self.state.connection_mark}
        if it.key not in values or it.register is None:
            raise NotUnderstood(f"chain {self._chain} reads or sets conntrack's {it.key}")
        self._store(it.register, struct.pack("=I", values[it.key]))
        return True

    def _compare(self, it: e.Compare) -> bool:
        if it.op not in (it.EQUAL, it.UNEQUAL):
            raise NotUnderstood(f"chain {self._chain} compares by {it.op}")
        return (self._load(it.register, len(it.value)) == it.value) == (it.op == it.EQUAL)

    def _bitwise(self, it: e.Bitwise) -> bool:
        value = self._load(it.source, it.length)
        self._store(it.register, bytes((v & m) ^ x for v, m, x in zip(value, it.mask, it.xor, strict=True)))
        return True

    def _lookup(self, it: e.Lookup) -> bool:
        data = self._find(it.set, it.source)
        if data is None:
            return False
        if it.register == e.VERDICT:
            self.verdict = (e.Verdict.GOTO, data.decode())
        elif it.register is not None:
            self._store(it.register, data)
        self._sets += (it.set,)
        return True

    def _find(self, name: str, register: int) -> bytes | None:
        found = self._table.sets.get(name)
        if found is None:
            raise NotUnderstood(f"there is no set {name}")
        key = self._load(register, _key_size(found))
        held = self.state.ticket(name, key)
        if held is not None:
            return held or None
        if found.flags & _INTERVAL:
            return next((b"" for first, (last, _) in found.elements.items() if first <= key <= (last or first)), None)
        element = found.elements.get(key)
        return None if element is None else element[0]

    def _number(self, it: e.NumberGenerator) -> bool:
        """The only one there is."""
        self._store(it.register, struct.pack("=I", it.offset))
        return True

    def _hash(self, it: e.Hash) -> bool:
        hashed = jhash(self._load(it.source, it.length), it.seed)
        self._store(it.register, struct.pack("=I", it.offset + (hashed * it.modulus >> 32)))
        return True

    def _dynamic_set(self, it: e.DynamicSet) -> bool:
        found = self._table.sets.get(it.set)
        if found is None:
            raise NotUnderstood(f"there is no set {it.set}")
        key = self._load(it.key, _key_size(found))
        there = self._find(it.set, it.key)
        if it.op == it.DELETE or there is None:
            data = b"" if it.op == it.DELETE else self._load(it.data, 4)
            self.state = msgspec.structs.replace(self.state, tickets=(*self.state.tickets, (it.set, key, data)))
        return True

    def _immediate(self, it: e.Immediate) -> bool:
        if isinstance(it.data, bytes):
            self._store(it.register, it.data)
        else:
            self.verdict = it.data
        return True

    def _byteorder(self, it: e.Byteorder) -> bool:
        self._store(it.register, self._load(it.source, 4))  # of the protocol, which is one byte: no change
        return True

    def _fib(self, it: e.Fib) -> bool:
        self._store(it.register, struct.pack("=I", e.Fib.LOCAL if self._packet.is_local else 1))
        return True

    def _nat(self, it: e.Nat) -> bool:
        address = self._load(it.address, self._packet.family.address_size)
        (port,) = struct.unpack(">H", self._load(it.port, 2))
        self.state = msgspec.structs.replace(self.state, led=(address, port))
        self.verdict = (e.Verdict.ACCEPT, "")
        return True

    def _masquerade(self, _: e.Masquerade) -> bool:
        self.state = msgspec.structs.replace(self.state, is_masqueraded=True)
        self.verdict = (e.Verdict.ACCEPT, "")
        return True

    def _reject(self, _: e.Reject) -> bool:
        self.verdict = "refused"
        return True


_STEPS: Final[dict[type, Callable[..., bool]]] = {
    e.Payload: RuleRun._payload,
    e.Meta: RuleRun._meta,
    e.Conntrack: RuleRun._conntrack,
    e.Compare: RuleRun._compare,
    e.Bitwise: RuleRun._bitwise,
    e.Lookup: RuleRun._lookup,
    e.NumberGenerator: RuleRun._number,
    e.Hash: RuleRun._hash,
    e.DynamicSet: RuleRun._dynamic_set,
    e.Immediate: RuleRun._immediate,
    e.Byteorder: RuleRun._byteorder,
    e.Fib: RuleRun._fib,
    e.Nat: RuleRun._nat,
    e.Masquerade: RuleRun._masquerade,
    e.Reject: RuleRun._reject,
}


def _offset(register: int) -> int:
    """Of enum nft_registers in their memory."""
    return (register - e.WORD) * 4 if register >= e.WORD else (register - 1) * 16


def _key_size(found: SetState) -> int:
    """Of the fields whose types are packed in the set's type, six bits each."""
    size, types = 0, found.type
    while types:
        kind = types & 0x3F
        if kind not in _SIZES:
            raise NotUnderstood(f"a set has a key of type {kind}")
        size, types = size + _SIZES[kind], types >> 6
    return size
