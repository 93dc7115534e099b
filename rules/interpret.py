"""What a table does with the first packet of a connection: its rules, run as the kernel runs them. Pure.

A table is a TableState, what rules.fake keeps or the kernel's dump gives, so a rule that somebody changed counts as it
is. Where the kernel draws a number, every number is followed, and the chances add up.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

import msgspec
from msgspec import Struct

from rules import expressions as e
from rules.dump import SetState, TableState
from rules.elements import endpoint
from rules.objects import OUTPUT, POSTROUTING, PREROUTING, Family, Field, Hook

What = Literal["endpoint", "refused", "dropped", "untouched"]


class Packet(Struct, frozen=True):
    """source, destination: packed. protocol: 6, 17, 132. interface: the one of the node that it came in through; "": this
    node sends it. is_local: its source is one of this node's addresses."""

    family: Family
    source: bytes
    destination: bytes
    protocol: int
    port: int
    interface: str = ""
    is_local: bool = False


class Fate(Struct, frozen=True, order=True):
    """endpoint: where it is led, packed by rules.elements.endpoint; b"" where it is led nowhere. path: the chains that it
    went through, in order, each with the sets by which it got further: "services @cluster-ips"."""

    what: What
    endpoint: bytes = b""
    is_masqueraded: bool = False
    path: tuple[str, ...] = ()


class NotUnderstood(ValueError):
    """An expression that this program never writes, or a chain or set that is not there: nobody knows what the rule does."""


def fates(table: TableState, packet: Packet) -> dict[Fate, float]:
    """All that can become of it, with its chances, which sum to 1. Raises NotUnderstood."""
    hook = PREROUTING if packet.interface else OUTPUT
    found: defaultdict[Fate, float] = defaultdict(float)
    for (what, state), chance in _Run(table, packet).base(hook, {_State(): 1.0}).items():
        if what != "accept":
            found[Fate(what, path=state.path)] += chance
            continue
        # The kernel makes the priority of what it forwards anew, from the TOS.
        if packet.interface and packet.family is Family.IPV4:
            state = msgspec.structs.replace(state, priority=bytes(4))
        for (after, last), part in _Run(table, packet).base(POSTROUTING, {state: chance}).items():
            led = endpoint(*last.led) if last.led else b""
            kind: What = ("endpoint" if led else "untouched") if after == "accept" else after
            found[Fate(kind, led, last.is_masqueraded, last.path)] += part
    return dict(found)


End = Literal["accept", "refused", "dropped"]


class _State(Struct, frozen=True):
    """What a packet takes along from rule to rule. tickets: (map, key) -> data, b"" where it was deleted."""

    mark: int = 0
    connection_mark: int = 0
    priority: bytes = bytes(4)
    led: tuple[bytes, int] | None = None
    is_masqueraded: bool = False
    tickets: tuple[tuple[str, bytes, bytes], ...] = ()
    path: tuple[str, ...] = ()

    def ticket(self, name: str, key: bytes) -> bytes | None:
        return next((data for map_, k, data in reversed(self.tickets) if (map_, k) == (name, key)), None)


Weights = Mapping[_State, float]
_Chances = defaultdict[_State, float]
_INTERVAL: Final = 0x4  # NFT_SET_INTERVAL
_DEEPEST: Final = 16  # NFT_JUMP_STACK_SIZE
_SIZES: Final = {field.type_number: field.size for field in Field}
_MOST_DRAWS: Final = 1 << 17


class _Run:
    def __init__(self, table: TableState, packet: Packet) -> None:
        self._table, self._packet = table, packet
        self._ends: defaultdict[tuple[End, _State], float] = defaultdict(float)

    def base(self, hook: Hook, weights: Weights) -> Mapping[tuple[End, _State], float]:
        """Through the base chains at a hook."""
        place = (hook.number, hook.priority)
        for name, chain in self._table.chains.items():
            if chain.hook and chain.hook[:2] == place:
                weights = self._chain(name, weights, 0)
        for state, chance in weights.items():
            self._ends["accept", state] += chance
        return self._ends

    def _chain(self, name: str, weights: Weights, depth: int) -> Weights:
        """Those that come back to the chain that led here."""
        chain = self._table.chains.get(name)
        if chain is None or depth > _DEEPEST:
            raise NotUnderstood(f"there is no chain {name}" if chain is None else f"chain {name} leads to itself")
        back: _Chances = defaultdict(float)
        for expressions in chain.rules:
            going: _Chances = defaultdict(float)
            for state, chance in weights.items():
                for rule in _Rule(self._table, self._packet, name, state, chance).run(expressions):
                    self._follow(rule, going, back, depth)
            weights = going
        for state, chance in weights.items():
            back[state] += chance
        return back

    def _follow(self, rule: _Rule, going: _Chances, back: _Chances, depth: int) -> None:
        """Where one run of a rule leads."""
        state, chance = rule.state, rule.chance
        match rule.verdict:
            case None:
                going[state] += chance
            case (e.Verdict.JUMP, chain):
                for returned, part in self._chain(chain, {state: chance}, depth + 1).items():
                    going[returned] += part
            case (e.Verdict.GOTO, chain):
                for returned, part in self._chain(chain, {state: chance}, depth + 1).items():
                    back[returned] += part
            case (e.Verdict.RETURN, _):
                back[state] += chance
            case (e.Verdict.DROP, _):
                self._ends["dropped", state] += chance
            case (e.Verdict.ACCEPT, _):
                self._ends["accept", state] += chance
            case "refused":
                self._ends["refused", state] += chance


class _Rule:
    """One rule, one packet. Its registers are its own: no rule of ours reads what another one left."""

    def __init__(self, table: TableState, packet: Packet, chain: str, state: _State, chance: float) -> None:
        self._table, self._packet, self._chain = table, packet, chain
        self.state, self.chance = state, chance
        self.verdict: tuple[e.Verdict, str] | Literal["refused"] | None = None
        self._registers = bytearray(96)
        self._sets: tuple[str, ...] = ()
        self._before = state

    def run(self, expressions: tuple[e.Expression, ...]) -> Iterator[_Rule]:
        """One of it for each number that can be drawn, each at its end."""
        for position, expression in enumerate(expressions):
            if isinstance(expression, e.NumberGenerator) and expression.modulus > 1:
                yield from self._draw(expression, expressions[position + 1 :])
                return
            if not self._step(expression):
                self.state = self._before  # what has been done to the packet stays; no rule of ours does before it asks
                self.verdict = None
                yield self
                return
            if self.verdict:
                break
        self._arrive()
        yield self

    def _draw(self, number: e.NumberGenerator, rest: tuple[e.Expression, ...]) -> Iterator[_Rule]:
        if number.modulus > _MOST_DRAWS:
            raise NotUnderstood(f"chain {self._chain} draws one of {number.modulus} numbers")
        missed = 0.0
        for drawn in range(number.modulus):
            one = _Rule(self._table, self._packet, self._chain, self.state, self.chance / number.modulus)
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
    e.Payload: _Rule._payload,
    e.Meta: _Rule._meta,
    e.Conntrack: _Rule._conntrack,
    e.Compare: _Rule._compare,
    e.Bitwise: _Rule._bitwise,
    e.Lookup: _Rule._lookup,
    e.NumberGenerator: _Rule._number,
    e.Hash: _Rule._hash,
    e.DynamicSet: _Rule._dynamic_set,
    e.Immediate: _Rule._immediate,
    e.Byteorder: _Rule._byteorder,
    e.Fib: _Rule._fib,
    e.Nat: _Rule._nat,
    e.Masquerade: _Rule._masquerade,
    e.Reject: _Rule._reject,
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


def jhash(data: bytes, seed: int) -> int:
    """Jenkins' hash as the kernel has it (linux/jhash.h); data: a multiple of 4 bytes."""
    words = [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]
    a = b = c = (0xDEADBEEF + len(data) + seed) & _ALL
    while len(words) > 3:
        a, b, c = (a + words[0]) & _ALL, (b + words[1]) & _ALL, (c + words[2]) & _ALL
        words = words[3:]
        for kind, bits in zip("abcabc", (4, 6, 8, 16, 19, 4), strict=True):
            if kind == "a":
                a, c = ((a - c) & _ALL) ^ _turned(c, bits), (c + b) & _ALL
            elif kind == "b":
                b, a = ((b - a) & _ALL) ^ _turned(a, bits), (a + c) & _ALL
            else:
                c, b = ((c - b) & _ALL) ^ _turned(b, bits), (b + a) & _ALL
    if not words:
        return c
    a, b, c = (value + word & _ALL for value, word in zip((a, b, c), [*words, 0, 0][:3], strict=True))
    for kind, bits in zip("cabcabc", (14, 11, 25, 16, 4, 14, 24), strict=True):
        if kind == "a":
            a = ((a ^ c) - _turned(c, bits)) & _ALL
        elif kind == "b":
            b = ((b ^ a) - _turned(a, bits)) & _ALL
        else:
            c = ((c ^ b) - _turned(b, bits)) & _ALL
    return c


_ALL: Final = 0xFFFFFFFF


def _turned(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _ALL
