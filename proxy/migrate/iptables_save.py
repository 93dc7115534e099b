"""What iptables-save and ip6tables-save print, of any program's rules: tables, chains and their policies, rules. Pure.

`parse` only finds where each chain's rules stand, which is quick and takes no memory; a rule is taken apart when somebody
asks for it. Both variants' output, with counters or without.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

_COUNTERS: Final = rb"(?:\[\d++:\d++\] )?"
# Rules of one chain in a row are one match: there are several for each of a hundred thousand chains.
_LINES: Final = re.compile(
    rb"(?P<rules>" + _COUNTERS + rb"-A (?P<of>\S++)(?=[ \n])[^\n]*+\n"
    rb"(?:" + _COUNTERS + rb"-A (?P=of)(?=[ \n])[^\n]*+\n)*)"
    rb"|:(?P<chain>\S++) (?P<policy>\S++)(?: \[(?P<packets>\d++):(?P<bytes>\d++)\])?+ *+\n"
    rb"|\*(?P<table>\S++) *+\n"
    rb"|(?P<end>COMMIT) *+\n"
    rb"|(?P<comment>\#)[^\n]*+\n"
    rb"|[ \t\r]*+\n"
)
_INCOMPATIBLE: Final = re.compile(rb"# Table [`'](\S+?)' (?:is|contains) incompatible")
_LEFT_OUT: Final = (b"' is incompatible, use 'nft' tool", b"' contains incompatible base-chains, use 'nft' tool")
_START: Final = re.compile(r"(?:\[(\d+):(\d+)\] )?-A (\S+) ?")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*+)"(?= |$)|([^\s"]++)', re.DOTALL)

_ONE_VALUE: Final = frozenset(
    {"--comment", "--log-prefix", "--nflog-prefix", "--string", "--hex-string", "--name", "--nfacct-name"}
)
"""Options whose value is any text, also one that looks like an option: iptables-save only quotes what needs it."""


class Option(Struct, frozen=True, gc=False):
    """One option of a rule. module: of the match or target that it belongs to; "" for -s, -d, -p, -i, -o, -f.

    name: as it is written: "-s", "--dport". values: without quotes and escapes.
    """

    module: str
    name: str
    values: tuple[str, ...] = ()
    negated: bool = False

    @property
    def value(self) -> str:
        """The one value; "" if there is none, all of them with blanks between if there are several."""
        return " ".join(self.values)


class Rule(Struct, frozen=True, gc=False):
    """One rule, as it is written.

    target: what -j or -g names, a chain or an extension; "" if there is none. goto: it was -g.
    matches: everything before it, in order; a match module without options is an Option with the name "".
    arguments: the target's options. packets, bytes: -1 where they are not told.
    """

    chain: str
    target: str = ""
    goto: bool = False
    matches: tuple[Option, ...] = ()
    arguments: tuple[Option, ...] = ()
    packets: int = -1
    bytes: int = -1

    def option(self, name: str) -> Option | None:
        """The first match option of that name, also the target's."""
        return next((option for option in self.matches + self.arguments if option.name == name), None)

    @property
    def comment(self) -> str:
        found = self.option("--comment")
        return found.value if found else ""


class Chain(Struct, gc=False):
    """A chain of one table. policy: "ACCEPT" or "DROP"; "" of a chain that somebody made.

    packets, bytes: what its policy was applied to. spans: where in `text` its rules stand.
    """

    text: bytes | bytearray
    policy: str = ""
    packets: int = 0
    bytes: int = 0
    spans: tuple[int, ...] = ()

    def lines(self) -> Iterator[str]:
        """Its rules as they are written, counters included."""
        for start, end in self.blocks():
            yield from self.text[start : end - 1].decode(errors="replace").split("\n")

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Where in `text` they stand, several at a time."""
        yield from zip(self.spans[::2], self.spans[1::2], strict=True)

    def rules(self) -> Iterator[Rule]:
        """Its rules, taken apart. Raises ValueError at one that cannot be: `rule_of` of each of `lines` goes on there."""
        return map(rule_of, self.lines())


Table = dict[str, Chain]
"""Name -> chain."""


class Saved(Struct):
    """tables: name -> chains. incompatible: tables that iptables-nft left out, because something else is in them."""

    tables: dict[str, Table]
    incompatible: tuple[str, ...] = ()

    def chain(self, table: str, name: str) -> Chain | None:
        return self.tables.get(table, {}).get(name)


def parse(text: bytes | bytearray | str) -> Saved:
    """Raises ValueError, with the number of the line, where this is no output of iptables-save, or not all of it."""
    data = text.encode() if isinstance(text, str) else text
    tables: dict[str, Table] = {}
    incompatible: list[str] = []
    table: Table | None = None
    at, size = 0, len(data)
    if size and not data.endswith(b"\n"):
        data += b"\n"
        size += 1
    match = _LINES.match
    while at < size:
        found = match(data, at)
        if found is None:
            raise _wrong(data, at, "no line of iptables-save")
        kind, start, at = found.lastgroup, at, found.end()
        match kind:
            case "rules":
                chain = table.get(found["of"].decode(errors="replace")) if table is not None else None
                if chain is None:
                    raise _wrong(data, start, "a rule of no chain")
                chain.spans += (start, at)
            case "bytes" | "policy":
                if table is None:
                    raise _wrong(data, start, "a chain of no table")
                table[found["chain"].decode(errors="replace")] = _chain(data, found)
            case "table":
                table = tables.setdefault(found["table"].decode(errors="replace"), {})
            case "end":
                table = None
            case "comment" if left_out := _INCOMPATIBLE.match(data, start):
                incompatible.append(left_out[1].decode(errors="replace"))
    if table is not None:
        raise ValueError("it ends without COMMIT: this is not all of it")
    return Saved(tables, tuple(incompatible))


def is_whole(text: bytes | bytearray | str) -> bool:
    """Whether iptables-nft-save has not left out a table, because something else is in it, or its chains are at other hooks."""
    data = text.encode() if isinstance(text, str) else text
    return not any(said in data for said in _LEFT_OUT)


def _chain(data: bytes | bytearray, found: re.Match[bytes]) -> Chain:
    policy = found["policy"]
    return Chain(
        data,
        "" if policy == b"-" else policy.decode(errors="replace"),
        int(found["packets"] or 0),
        int(found["bytes"] or 0),
    )


def _wrong(data: bytes | bytearray, at: int, why: str) -> ValueError:
    line = data[at : data.find(b"\n", at)].decode(errors="replace")
    number = data.count(b"\n", 0, at) + 1
    return ValueError(f"line {number}: {why}: {line[:200]}")


def tokens(line: str) -> list[tuple[str, bool]]:
    """The words of a rule, and whether each was in quotes. Raises ValueError where quotes do not end."""
    if '"' not in line:
        return [(word, False) for word in line.split()]
    words, at = [], 0
    for found in _QUOTED.finditer(line):
        if line[at : found.start()].strip():
            break
        quoted = found[1]
        words.append((found[2], False) if quoted is None else (_ESCAPED.sub(r"\1", quoted), True))
        at = found.end()
    if line[at:].strip():
        raise ValueError(f"quotes that do not end: {line[:200]}")
    return words


def rule_of(line: str) -> Rule:
    """Take one rule apart: "-A INPUT ...", with counters or without. Raises ValueError."""
    start = _START.match(line)
    if start is None:
        raise ValueError(f"no rule: {line[:200]}")
    matches: list[Option] = []
    arguments: list[Option] = []
    into, module, target, goto, negated = matches, "", "", False, False
    words = tokens(line[start.end() :])
    at, end = 0, len(words)
    while at < end:
        word, quoted = words[at]
        at += 1
        if quoted or not word.startswith("-"):
            if word != "!" or quoted or negated:
                raise ValueError(f"{word!r} belongs to no option: {line[:200]}")
            negated = True
            continue
        values: list[str] = []
        while at < end:
            value, quoted = words[at]
            if not quoted and not (word in _ONE_VALUE and not values):
                if value == "!" and values:
                    break  # the next option's
                if value == "!" and at + 1 < end and not words[at + 1][0].startswith("-"):
                    negated, at = True, at + 1  # as very old versions write it
                    continue
                if value == "!" or (value.startswith("-") and not value[1:].isdigit()):
                    break
            values.append(value)
            at += 1
        if word in ("-m", "--match", "-j", "-g", "--jump", "--goto"):
            if len(values) != 1 or negated:
                raise ValueError(f"{word} with {len(values)} names: {line[:200]}")
            module = values[0]
            if word in ("-m", "--match"):
                if at >= end or words[at][0] in ("-m", "-j", "-g"):
                    matches.append(Option(module, ""))
            else:
                target, goto, into = module, word in ("-g", "--goto"), arguments
            continue
        owner = module if word.startswith("--") else ""
        into.append(Option(owner, word, tuple(values), negated))
        negated = False
    if negated:
        raise ValueError(f"a negation of nothing: {line[:200]}")
    packets, byte_count = (int(start[1]), int(start[2])) if start[1] else (-1, -1)
    return Rule(start[3], target, goto, tuple(matches), tuple(arguments), packets, byte_count)
