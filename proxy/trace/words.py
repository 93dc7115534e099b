"""A rule of our tables in words near nft's, from the kernel's expressions. Pure."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Sequence
from typing import Final

from rules import expressions as e
from rules.netlink import read_text
from rules.packed import prefix_length

_FIELDS: Final = {
    (1, 9, 1): "ip protocol",
    (1, 12, 4): "ip saddr",
    (1, 16, 4): "ip daddr",
    (1, 8, 16): "ip6 saddr",
    (1, 24, 16): "ip6 daddr",
    (2, 2, 2): "th dport",
}
_METADATA: Final = {
    e.Meta.PRIORITY: "meta priority",
    e.Meta.MARK: "meta mark",
    e.Meta.IIFNAME: "iifname",
    e.Meta.L4PROTO: "meta l4proto",
}
_CONNTRACK: Final = {e.Conntrack.STATUS: "ct status", e.Conntrack.MARK: "ct mark"}
_ADDRESSES: Final = ("ip saddr", "ip daddr", "ip6 saddr", "ip6 daddr")
_NUMBERS: Final = ("meta priority", "meta mark", "ct mark", "ct status")
"""Four bytes, as the kernel orders them."""


def describe(rule: Sequence[e.Expression]) -> str:
    """All of a rule on one line."""
    words: list[str] = []
    loads: list[str] = []
    bitwise: e.Bitwise | None = None
    constant = ""
    for expression in rule:
        match expression:
            case e.Payload(base, offset, length):
                loads.append(_field(base, offset, length))
            case e.Meta(key, register=int()):
                loads.append(_METADATA.get(key, f"meta {key}"))
            case e.Conntrack(key, register=int()):
                loads.append(_CONNTRACK.get(key, f"ct {key}"))
            case e.Fib():
                loads.append("fib saddr type")
            case e.NumberGenerator(modulus, kind):
                loads.append(f"numgen {'random' if kind else 'inc'} mod {modulus}")
            case e.Hash(modulus=modulus):
                loads.append(f"jhash mod {modulus}")
            case e.Bitwise():
                bitwise = expression
            case e.Byteorder():
                pass
            case e.Compare():
                words.append(_comparison(loads, bitwise, expression))
                loads, bitwise = [], None
            case e.Lookup(name, register=register):
                kind_of_set = {None: "", e.VERDICT: "vmap "}.get(register, "map ")
                words += [_loaded(loads, bitwise), f"{kind_of_set}@{name}"]
                loads, bitwise = [], None
            case e.Immediate((verdict, chain)):
                words.append(f"{verdict.name.lower()} {chain}".rstrip())
            case e.Immediate(bytes(value)):
                constant = f" to {int.from_bytes(value, sys.byteorder):#x}"
            case e.Meta(key) | e.Conntrack(key):
                names = _METADATA if isinstance(expression, e.Meta) else _CONNTRACK
                name = names.get(key, f"{expression.NAME} {key}")
                words.append(f"{name} set {_loaded(loads, bitwise)}" if loads else f"set {name}{constant}")
                loads, bitwise, constant = [], None, ""
            case e.Nat():
                words.append("dnat")
            case e.Masquerade():
                words.append("masquerade")
            case e.Reject(kind):
                words.append("reject with tcp reset" if kind else "reject")
            case e.DynamicSet(name, op):
                words += [_loaded(loads, bitwise), f"{'update' if op == e.DynamicSet.UPDATE else 'delete in'} @{name}"]
                loads, bitwise = [], None
            case e.Unknown(name):
                words.append(f"({name})")
    return " ".join(filter(None, words))


def _field(base: int, offset: int, length: int) -> str:
    """Of an address the first bytes may be enough: networks are compared so."""
    for (header, start, size), name in _FIELDS.items():
        if (header, start) == (base, offset) and length <= size:
            return name
    return "a part of the packet"


def _loaded(loads: Sequence[str], bitwise: e.Bitwise | None) -> str:
    """What the registers hold. bitwise: what was done to the last of them."""
    return " . ".join(loads) + (_operation(loads, bitwise) if bitwise else "")


def _operation(loads: Sequence[str], bitwise: e.Bitwise) -> str:
    """As nft writes it: `x & ~bit ^ bit` is `x | bit`."""
    mask, xor = (_number(data) for data in (bitwise.mask, bitwise.xor))
    size = len(bitwise.mask)
    whole = (1 << 8 * size) - 1

    def words(number: int) -> str:
        return _value(loads, number.to_bytes(size, sys.byteorder))

    if xor and mask == whole & ~xor:
        return f" | {words(xor)}"
    return (f" & {words(mask)}" if mask != whole else "") + (f" ^ {words(xor)}" if xor else "")


def _comparison(loads: Sequence[str], bitwise: e.Bitwise | None, compare: e.Compare) -> str:
    op = "!=" if compare.op else "=="
    if bitwise and loads[-1:] == ["ct status"] and _number(bitwise.mask) == e.Conntrack.DNAT and not any(compare.value):
        return "ct status dnat" if compare.op else "ct status & dnat == 0"
    if bitwise and loads and loads[-1] in _ADDRESSES and len(compare.value) in (4, 16) and not any(bitwise.xor):
        bits = prefix_length(bitwise.mask)
        if bits >= 0:
            return f"{' . '.join(loads)} {op} {ipaddress.ip_address(compare.value)}/{bits}"
    return f"{_loaded(loads, bitwise)} {op} {_value(loads, compare.value)}"


def _value(loads: Sequence[str], value: bytes) -> str:
    match loads[-1:]:
        case ["ip saddr" | "ip daddr" | "ip6 saddr" | "ip6 daddr" as field]:
            size = 16 if field.startswith("ip6") else 4
            address = ipaddress.ip_address(value.ljust(size, b"\0"))
            return str(address) if len(value) == size else f"{address}/{8 * len(value)}"
        case ["iifname"]:
            return read_text(value)
        case ["fib saddr type"]:
            return "local"
        case ["meta l4proto" | "ip protocol"]:
            return {6: "tcp", 17: "udp", 132: "sctp"}.get(value[0], str(value[0]))
        case [name] if name in _NUMBERS:
            return f"0x{_number(value):08x}"
    return f"0x{value.hex()}"


def _number(data: bytes) -> int:
    return int.from_bytes(data, sys.byteorder)
