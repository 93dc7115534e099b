"""Rules of iptables-nft, from the kernel's expressions to what iptables-save would write: the extensions that
kube-proxy uses, and what iptables-nft (1.8) turns into expressions of nftables. Pure.

linux/netfilter/xt_*.h, nf_nat.h; the layouts are the host's. What is not understood is written as "-m unread-NAME",
which is no rule that anybody writes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from typing import Final

from rules import expressions as e
from rules.foreign import ForeignExpression, InRange
from rules.netlink import attribute, attributes
from rules.objects import Family
from rules.packed import address_text, prefix_length

PROTOCOLS: Final = {6: "tcp", 17: "udp", 132: "sctp", 1: "icmp", 58: "ipv6-icmp"}
_VERDICTS: Final = {e.Verdict.DROP: "DROP", e.Verdict.ACCEPT: "ACCEPT", e.Verdict.RETURN: "RETURN"}
_ADDRESSES: Final = {
    (Family.IPV4, 12): "-s",
    (Family.IPV4, 16): "-d",
    (Family.IPV6, 8): "-s",
    (Family.IPV6, 24): "-d",
}
_HEAD: Final = ("-s", "-d", "-i", "-o", "-p")
_COMMENT: Final = (
    attribute(1, b"comment\0") + attribute(2, bytes(4)) + attribute(3, bytes(256))[:4]
)  # the most frequent extension by far, as it stands before its text
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+")
_SPECIAL: Final = re.compile(r"([\"'\\])")
_LOCAL: Final = 1 << 2  # RTN_LOCAL
_ALL_PORTS: Final = (0, 65535)
_STATES: Final = {
    "INVALID": 1,
    "NEW": 8,
    "RELATED": 4,
    "ESTABLISHED": 2,
    "UNTRACKED": 256,
    "SNAT": 64,
    "DNAT": 128,
}


def text_of(family: Family, expressions: Iterable[ForeignExpression]) -> str:
    """One rule, without "-A CHAIN"."""
    rule = _Rule(family)
    for expression in expressions:
        rule.add(expression)
    head = [rule.head[option] for option in _HEAD if option in rule.head]
    return " ".join([*head, *rule.matches, *rule.target])


class _Rule:
    def __init__(self, family: Family) -> None:
        self._family = family
        self._held: dict[int, tuple[str, int, bytes]] = {}
        self._protocol = ""
        self.head: dict[str, str] = {}
        self.matches: list[str] = []
        self.target: list[str] = []

    def add(self, it: ForeignExpression) -> None:
        match it:
            case e.Payload(base=1) if (self._family, it.offset) in _ADDRESSES:
                self._held[it.register] = (_ADDRESSES[self._family, it.offset], it.length, b"")
            case e.Payload(base=2, offset=0 | 2, length=2):
                self._held[it.register] = ("--dport" if it.offset else "--sport", 2, b"")
            case e.Meta(register=int(register), key=6 | 7 | 16 | 3):
                self._held[register] = ({6: "-i", 7: "-o", 16: "-p", 3: "--mark"}[it.key], 0, b"")
            case e.Payload(register=int(register)) | e.Meta(register=int(register)):
                self._held[register] = ("something else", 0, b"")
            case e.Bitwise():
                what, size, _ = self._held.get(it.source, ("", 0, b""))
                self._held[it.register] = (what, size, it.mask)
            case e.Compare(op=0 | 1):
                self._compare(it)
            case InRange() if self._held.get(it.register, ("",))[0] in ("--dport", "--sport"):
                self._port(self._held[it.register][0], (int.from_bytes(it.first), int.from_bytes(it.last)), bool(it.op))
            case e.Immediate(register=e.VERDICT, data=(code, str(chain))):
                jump = {e.Verdict.JUMP: "-j", e.Verdict.GOTO: "-g"}.get(code)
                self.target = [f"{jump} {chain}"] if jump else [f"-j {_VERDICTS.get(code, 'unread-verdict')}"]
            case e.Masquerade():
                self.target = ["-j MASQUERADE"]
            case e.Reject():
                self.target = ["-j REJECT"]
            case e.Unknown(name="counter"):
                pass
            case e.Unknown(name="match" | "target"):
                self._extension(it)
            case e.Unknown():
                self.matches.append(f"-m unread-{it.name}")
            case _:
                self.matches.append(f"-m unread-{it.NAME}")

    def _compare(self, it: e.Compare) -> None:
        what, size, mask = self._held.get(it.register, ("", 0, b""))
        no = "! " if it.op else ""
        match what:
            case "-s" | "-d":
                bits = prefix_length(mask) if mask else 8 * size
                address = address_text(it.value.ljust(self._family.address_size, b"\0"))
                self.head[what] = f"{no}{what} {address}/{bits}" if bits >= 0 else "-m unread-mask"
            case "-i" | "-o":
                whole = len(it.value) == 16 or it.value.endswith(b"\0")
                self.head[what] = f"{no}{what} {_text(it.value)}{'' if whole else '+'}"
            case "-p":
                self._protocol = PROTOCOLS.get(it.value[0], str(it.value[0]))
                self.head[what] = f"{no}{what} {self._protocol}"
            case "--dport" | "--sport":
                self._port(what, (int.from_bytes(it.value),) * 2, bool(it.op))
            case "--mark":
                value, used = (int.from_bytes(part, _ORDER) for part in (it.value, mask or b"\xff" * 4))
                self.matches.append(f"-m mark {no}--mark {value:#x}/{used:#x}")
            case _:
                self.matches.append("-m unread-cmp")

    def _port(self, option: str, ports: tuple[int, ...], negated: bool) -> None:
        self.matches.append(f"-m {self._protocol or 'unread-port'} {_ports(option, ports, negated)}")

    def _extension(self, it: e.Unknown) -> None:
        if it.name == "target":
            self.target = self._words(it)
        else:
            self.matches += self._words(it)

    def _words(self, it: e.Unknown) -> list[str]:
        if it.name == "match" and it.data.startswith(_COMMENT):
            return ["-m comment", _comment(self._family, 0, it.data[len(_COMMENT) :])]
        values = {number: bytes(value) for number, value in attributes(it.data)}
        name, revision, info = _text(values.get(1, b"")), int.from_bytes(values.get(2, b"")), values.get(3, b"")
        writers = _MATCHES if it.name == "match" else _TARGETS
        try:
            words = writers[name](self._family, revision, info)
        except (LookupError, ValueError, struct.error):
            words = None
        option = "-j" if it.name == "target" else "-m"
        return [f"{option} {name}" if words is not None else f"{option} unread-{name}", *filter(None, (words,))]


Writer = Callable[[Family, int, bytes], str]
_ORDER: Final = "little" if struct.pack("=H", 1) == b"\1\0" else "big"


def _comment(_: Family, __: int, info: bytes) -> str:
    text = _text(info)
    plain = _PLAIN.fullmatch(text)
    quoted = _SPECIAL.sub(r"\\\1", text.replace("\n", " "))
    return f"--comment {text}" if plain else f'--comment "{quoted}"'


def _addrtype(_: Family, revision: int, info: bytes) -> str:
    source, destination, flags = struct.unpack_from("=HHI", info)
    if revision != 1 or flags & ~3:
        raise ValueError
    words = []
    for option, types, inverted in (("--src-type", source, flags & 1), ("--dst-type", destination, flags & 2)):
        if types not in (0, _LOCAL):
            raise ValueError
        if types:
            words.append(f"{'! ' if inverted else ''}{option} LOCAL")
    return " ".join(words)


def _tcp(_: Family, __: int, info: bytes) -> str:
    *ports, option, mask, compared, inverted = struct.unpack_from("=HHHHBBBB", info)
    if option or mask or compared:
        raise ValueError
    return _both_ports(ports, inverted)


def _udp(_: Family, __: int, info: bytes) -> str:
    *ports, inverted = struct.unpack_from("=HHHHB", info)
    return _both_ports(ports, inverted)


def _sctp(_: Family, __: int, info: bytes) -> str:
    dest_first, dest_last, first, last = struct.unpack_from("=HHHH", info)
    flags, inverted = struct.unpack_from("=II", info, 284)
    if flags & ~3:
        raise ValueError
    sources = (first, last) if flags & 1 else _ALL_PORTS
    return _both_ports([*sources, *((dest_first, dest_last) if flags & 2 else _ALL_PORTS)], inverted)


def _both_ports(ports: list[int], inverted: int) -> str:
    words = []
    for option, pair, bit in (("--sport", tuple(ports[:2]), 1), ("--dport", tuple(ports[2:]), 2)):
        if pair != _ALL_PORTS or inverted & bit:
            words.append(_ports(option, pair, bool(inverted & bit)))
    return " ".join(words)


def _ports(option: str, ports: tuple[int, ...], negated: bool) -> str:
    first, last = ports
    return f"{'! ' if negated else ''}{option} {first if first == last else f'{first}:{last}'}"


def _statistic(_: Family, __: int, info: bytes) -> str:
    mode, flags, probability = struct.unpack_from("=HHI", info)
    if mode or flags:
        raise ValueError
    return f"--mode random --probability {probability / 0x80000000:.11f}"


def _recent(family: Family, revision: int, info: bytes) -> str:
    check, set_, update, remove, ttl, reap = (1 << bit for bit in range(6))
    seconds, hits, wanted, inverted, name, side = struct.unpack_from("=IIBB200sB", info)
    if hits or wanted & (update | remove | ttl) or side or inverted:
        raise ValueError
    words = ["--set" if wanted & set_ else "--rcheck" if wanted & check else ""]
    words += [f"--seconds {seconds}"] if seconds else []
    words += ["--reap"] if wanted & reap else []
    words.append(f"--name {_text(name)}")
    if revision == 1:
        words.append(f"--mask {address_text(info[212 : 212 + family.address_size])}")
    return " ".join([*words, "--rsource"])


def _nfacct(_: Family, __: int, info: bytes) -> str:
    return f"--nfacct-name {_text(info[:32])}"


def _mark(_: Family, revision: int, info: bytes) -> str:
    mark, mask, inverted = struct.unpack_from("=IIB", info)
    if revision != 1:
        raise ValueError
    return f"{'! ' if inverted else ''}--mark {mark:#x}/{mask:#x}"


def _physdev(_: Family, __: int, info: bytes) -> str:
    is_in = 8
    inverted, used = info[64], info[65]
    if used != is_in:
        raise ValueError
    return f"{'! ' if inverted & is_in else ''}--physdev-is-in"


def _conntrack(_: Family, revision: int, info: bytes) -> str:
    """Only states."""
    used, inverted, states = struct.unpack_from("=HHH", info, 146)
    if revision not in (2, 3) or used != 1:
        raise ValueError
    names = ",".join(name for name, bit in _STATES.items() if states & bit)
    return f"{'! ' if inverted & 1 else ''}--ctstate {names}"


def _set_mark(_: Family, revision: int, info: bytes) -> str:
    mark, mask = struct.unpack_from("=II", info)
    if revision != 2:
        raise ValueError
    return f"--set-xmark {mark:#x}/{mask:#x}"


def _dnat(family: Family, revision: int, info: bytes) -> str:
    if revision == 0 and family is Family.IPV4:
        ranges, flags, first, last, port, last_port = struct.unpack_from("=II4s4s2s2s", info)
        if ranges != 1:
            raise ValueError
    else:
        flags, first, last, port, last_port = struct.unpack_from("=I16s16s2s2s", info)
        first, last = first[: family.address_size], last[: family.address_size]
    if flags != 3 or first != last or port != last_port:  # one address, one port
        raise ValueError
    host = f"[{address_text(first)}]" if family is Family.IPV6 else address_text(first)
    return f"--to-destination {host}:{int.from_bytes(port)}"


def _masquerade(family: Family, _: int, info: bytes) -> str:
    (flags,) = struct.unpack_from("=I", info, 4 if family is Family.IPV4 else 0)
    return "--random-fully" if flags & e.Masquerade.FULLY_RANDOM else ""


def _reject(family: Family, _: int, info: bytes) -> str:
    (code,) = struct.unpack_from("=I", info)
    is_port = code == (3 if family is Family.IPV4 else 4)
    return f"--reject-with icmp{'' if family is Family.IPV4 else '6'}-port-unreachable" if is_port else ""


_MATCHES: Final[dict[str, Writer]] = {
    "comment": _comment,
    "addrtype": _addrtype,
    "tcp": _tcp,
    "udp": _udp,
    "sctp": _sctp,
    "statistic": _statistic,
    "recent": _recent,
    "nfacct": _nfacct,
    "mark": _mark,
    "physdev": _physdev,
    "conntrack": _conntrack,
}
_TARGETS: Final[dict[str, Writer]] = {
    "MARK": _set_mark,
    "DNAT": _dnat,
    "MASQUERADE": _masquerade,
    "REJECT": _reject,
}


def _text(value: bytes) -> str:
    return value.partition(b"\0")[0].decode(errors="replace")
