"""A rule of kube-proxy's nftables tables, from the kernel's expressions to conditions and actions. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final, Literal

from msgspec import Struct

from rules import expressions as e
from rules.foreign import ForeignExpression, InRange, NotIn, Remember
from rules.objects import Family
from rules.packed import prefix_length

ConditionKind = Literal[
    "source", "source-range", "source-in", "from-node", "interface", "destination", "destination-in", "to-node", "protocol", "port",
    "mark", "state", "status", "hairpin"
]  # fmt: skip
ActionKind = Literal[
    "verdict", "endpoint", "balance", "translate", "dispatch", "mark", "masquerade", "reject", "remember"
]


class Condition(Struct, frozen=True, gc=False):
    """kind: "source" and "destination": value is the first `bits` bits of an address. "source-range": first and last. "-in":
    value is a set's name. "mark", "state", "status": value is the bits, as the kernel orders bytes. "interface": value is its index, or (the beginning of) its name."""

    kind: ConditionKind
    value: bytes | str = b""
    bits: int = 0
    negated: bool = False


class Action(Struct, frozen=True, gc=False):
    """kind: "verdict": `code`, and `value` the chain. "endpoint": DNAT to `value`, packed. "balance": by a number below
    `code`, one of the chains in the map `value`; "translate": the same with endpoints. "dispatch": what the map `value` has
    for the packet. "mark": the bit `code` is set. "remember": the source is put into the set `value`."""

    kind: ActionKind
    value: bytes | str = b""
    code: int = 0


class Step(Struct, frozen=True, gc=False):
    """One rule. unknown: names of expressions that are not understood; then the rest is not to be relied on."""

    conditions: tuple[Condition, ...] = ()
    actions: tuple[Action, ...] = ()
    unknown: str = ""


Loaded = tuple[str, int, bytes]
"""What a register holds: what, its size or a number, its mask or value."""

_PACKET: Final = {
    (Family.IPV4, 1, 12): ("saddr", 4),
    (Family.IPV4, 1, 16): ("daddr", 4),
    (Family.IPV6, 1, 8): ("saddr", 16),
    (Family.IPV6, 1, 24): ("daddr", 16),
    (Family.IPV4, 2, 2): ("dport", 2),
    (Family.IPV6, 2, 2): ("dport", 2),
}
_META: Final = {3: "mark", 4: "iif", 6: "iifname", 16: "l4proto"}
_OF_LOADED: Final[dict[str, ConditionKind]] = {
    "saddr": "source",
    "daddr": "destination",
    "dport": "port",
    "l4proto": "protocol",
    "iif": "interface",
    "iifname": "interface",
    "mark": "mark",
    "ct 0": "state",
    "ct 2": "status",
    "fib-saddr": "from-node",
    "fib-daddr": "to-node",
}
_IN_SET: Final[dict[str, ConditionKind]] = {"saddr": "source-in", "daddr": "destination-in"}
LOCAL: Final = e.Fib.LOCAL.to_bytes(4, sys.byteorder)


def translate(family: Family, expressions: Iterable[ForeignExpression]) -> Step:
    """What a rule means."""
    rule = _Rule(family)
    for expression in expressions:
        rule.add(expression)
    return Step(tuple(rule.conditions), tuple(rule.actions), ", ".join(dict.fromkeys(rule.unknown)))


class _Rule:
    """Follows what the registers hold; they are counted in words of 4 bytes."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._held: dict[int, Loaded] = {}
        self.conditions: list[Condition] = []
        self.actions: list[Action] = []
        self.unknown: list[str] = []

    def add(self, it: ForeignExpression) -> None:
        match it:
            case e.Payload():
                what, _ = _PACKET.get((self._family, it.base, it.offset), (f"bytes {it.base}/{it.offset}", 0))
                self._held[word_of(it.register)] = (what, it.length, b"")
            case e.Meta(register=int(register)):
                self._held[word_of(register)] = (_META.get(it.key, f"meta {it.key}"), 0, b"")
            case e.Meta(source=int(source), key=e.Meta.MARK):
                self._set_mark(self._held.get(word_of(source)))
            case e.Conntrack(register=int(register)):
                self._held[word_of(register)] = (f"ct {it.key}", it.key, b"")
            case e.Fib(result=3, flags=1 | 2):
                self._held[word_of(it.register)] = ("fib-saddr" if it.flags == 1 else "fib-daddr", 4, b"")
            case e.NumberGenerator(offset=0):
                self._held[word_of(it.register)] = ("numgen", it.modulus, b"")
            case e.Bitwise():
                what, size, _ = self._held.get(word_of(it.source), ("nothing", 0, b""))
                self._held[word_of(it.register)] = (what, size, it.mask + it.xor)
            case e.Compare():
                self._compare(it)
            case InRange() if self._held.get(word_of(it.register), ("",))[0] == "saddr":
                self.conditions.append(Condition("source-range", it.first + it.last, negated=bool(it.op)))
            case e.Lookup():
                self._look_up(it.set, it.source, it.register)
            case NotIn():
                self._look_up(it.set, it.source, None, negated=True)
            case Remember() if self._held.get(word_of(it.key), ("",))[0] == "saddr":
                self.actions.append(Action("remember", it.set))
            case e.Immediate(register=e.VERDICT, data=(int(code), str(chain))):
                self.actions.append(Action("verdict", chain, code))
            case e.Immediate(data=bytes(data)):
                self._held[word_of(it.register)] = ("constant", len(data), data)
            case e.Nat(type=e.Nat.DESTINATION):
                self._translate_address(it)
            case e.Masquerade():
                self.actions.append(Action("masquerade"))
            case e.Reject():
                self.actions.append(Action("reject"))
            case e.Unknown(name="counter"):
                pass
            case e.Unknown():
                self.unknown.append(it.name)
            case _:
                self.unknown.append(it.NAME)

    def _set_mark(self, held: Loaded | None) -> None:
        """`mark | bit`, or `mark ^ bit` after masquerading was decided."""
        if held is None or held[0] != "mark" or not held[2]:
            self.unknown.append("meta mark")
            return
        mask, bit = held[2][:4], held[2][4:]
        if mask != b"\xff" * 4:
            self.actions.append(Action("mark", code=int.from_bytes(bit, sys.byteorder)))

    def _compare(self, it: e.Compare) -> None:
        what, size, mask = self._held.get(word_of(it.register), ("nothing", 0, b""))
        kind = _OF_LOADED.get(what)
        if kind is None:
            self.unknown.append(f"comparison of {what}")
            return
        negated = it.op == e.Compare.UNEQUAL
        bits = 0
        mask, xor = mask[: len(mask) // 2], mask[len(mask) // 2 :]
        is_plain = it.op in (e.Compare.EQUAL, e.Compare.UNEQUAL) and not any(xor)
        if kind in ("source", "destination"):
            bits = prefix_length(mask) if mask else 8 * size
            is_plain &= bits >= 0
        elif kind in ("from-node", "to-node"):
            is_plain &= it.value == LOCAL
        elif kind in ("mark", "state", "status"):
            is_plain &= bool(mask) and not any(it.value)
        else:
            is_plain &= not mask
        if not is_plain:
            self.unknown.append(f"comparison of {what}")
            return
        if kind in ("mark", "state", "status"):
            self.conditions.append(Condition(kind, mask[:4], negated=negated))
            return
        self.conditions.append(Condition(kind, it.value, bits, negated))

    def _look_up(self, name: str, source: int, register: int | None, negated: bool = False) -> None:
        what, number, _ = self._held.get(word_of(source), ("nothing", 0, b""))
        if register == e.VERDICT and what == "numgen":
            self.actions.append(Action("balance", name, number))
        elif register == e.VERDICT and self._is_key(word_of(source)):
            self.actions.append(Action("dispatch", name))
        elif register == e.VERDICT:
            self.unknown.append(f"verdict by {what}")
        elif register is not None:
            self._held[word_of(register)] = ("endpoint" if what == "numgen" else "map", number, name.encode())
        elif what == "saddr" and self._held.get(word_of(source) + self._family.address_size // 4, ("",))[0] == "daddr":
            self.conditions.append(Condition("hairpin", name, negated=negated))
        elif what in _IN_SET:
            self.conditions.append(Condition(_IN_SET[what], name, negated=negated))
        else:
            self.unknown.append(f"lookup of {what}")

    def _is_key(self, word: int) -> bool:
        """Whether a Service's address, protocol and port are held there, or a NodePort's protocol and port."""
        size = self._family.address_size // 4
        held = [self._held.get(at, ("",))[0] for at in range(word, word + size + 2)]
        return (held[0], *held[size:]) == ("daddr", "l4proto", "dport") or held[:2] == ["l4proto", "dport"]

    def _translate_address(self, it: e.Nat) -> None:
        address = self._held.get(word_of(it.address), ("nothing", 0, b""))
        if address[0] == "endpoint":
            self.actions.append(Action("translate", address[2].decode(), address[1]))
            return
        port = self._held.get(word_of(it.port), ("nothing", 0, b""))
        if (address[0], port[0]) == ("constant", "constant"):
            self.actions.append(Action("endpoint", address[2] + port[2][:2] + b"\0\0"))
        else:
            self.unknown.append("nat")


def word_of(register: int) -> int:
    """Where it begins, in registers of 4 bytes."""
    return register - e.WORD if register >= e.WORD else 4 * (register - e.REGISTER)
