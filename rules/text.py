"""Operations to nft text: what `nft -f` takes and a person reads. Pure.

Written as `nft list` writes: one block a table, its sets with their elements, then its chains. For transactions that
build a table; those that change one have no text of their own.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Iterator

from rules.objects import Chain, Field, Rule, Set, Table, comment_text
from rules.transaction import AddChain, AddElement, AddRule, AddSet, AddTable, Operation

INDENT = "\t"


def render(operations: Iterable[Operation]) -> str:
    """The tables that the operations build, as one text that ends in a newline. DeleteTable and AddTable before the
    objects (a replacement) are left out: load the text with `nft delete table` before it, or into an empty namespace.
    """
    tables: dict[Table, None] = {}
    sets: dict[Set, list[AddElement]] = {}
    chains: dict[Chain, list[Rule]] = {}
    for operation in operations:
        match operation:
            case AddTable(table):
                tables[table] = None
            case AddSet(set_):
                sets[set_] = []
            case AddChain(chain):
                chains[chain] = []
            case AddRule(rule):
                chains[rule.chain].append(rule)
            case AddElement():
                sets[operation.set].append(operation)
            case _:
                pass
    lines: list[str] = []
    for table in tables:
        lines.append(f"table {table.family.nft} {table.name} {{")
        lines += _comment(table.comment, INDENT)
        for set_, elements in sets.items():
            if set_.table == table:
                lines += _set(set_, elements)
        for chain, rules in chains.items():
            if chain.table == table:
                lines += _chain(chain, rules)
        lines[-1] = "}"  # in place of the empty line behind the last block
    return "\n".join(lines) + "\n"


def _comment(comment: str, indent: str) -> Iterator[str]:
    if comment:
        yield f'{indent}comment "{comment_text(comment)}"'


def _set(set_: Set, elements: list[AddElement]) -> Iterator[str]:
    yield f"{INDENT}{'map' if set_.data or set_.verdict else 'set'} {set_.name} {{"
    yield f"{INDENT * 2}{'typeof' if set_.typeof else 'type'} {_type(set_)}"
    if size := set_.dynamic or set_.size:
        yield f"{INDENT * 2}size {size}"
    if set_.dynamic or set_.interval:
        yield f"{INDENT * 2}flags {'dynamic,timeout' if set_.dynamic else 'interval'}"
    if set_.counts:
        yield f"{INDENT * 2}counter"
    yield from _comment(set_.comment, INDENT * 2)
    if elements:
        yield f"{INDENT * 2}elements = {{"
        yield ",\n".join(f"{INDENT * 3}{_element(set_, element)}" for element in sorted(elements, key=_order))
        yield f"{INDENT * 2}}}"
    yield f"{INDENT}}}"
    yield ""


def _order(element: AddElement) -> tuple[bytes, int]:
    """By address, protocol and port; then by number, which is in host order."""
    if element.set.key[-1] in (Field.INDEX, Field.PRIORITY):
        return element.key[:-4], struct.unpack("=I", element.key[-4:])[0]
    return element.key, 0


def _type(set_: Set) -> str:
    def declared(parts: tuple[Field, ...]) -> str:
        return " . ".join(part.declared if set_.typeof else part.datatype for part in parts)

    data = "verdict" if set_.verdict else declared(set_.data)
    return declared(set_.key) + (f" : {data}" if data else "")


def _element(set_: Set, element: AddElement) -> str:
    comment = f' comment "{comment_text(element.comment)}"' if element.comment else ""
    data = f" : {concatenation(set_.data, element.data)}" if set_.data else ""
    if set_.verdict:
        data = f" : goto {element.data.decode()}"
    return f"{concatenation(set_.key, element.key, element.end)}{comment}{data}"


def concatenation(parts: tuple[Field, ...], value: bytes, end: bytes = b"") -> str:
    """Packed fields as nft writes them: "10.96.0.10 . tcp . 80". With `end`, the last key of a range: networks."""
    words, at = [], 0
    for part in parts:
        piece = slice(at, at + part.size)
        words.append(_range(part, value[piece], end[piece]) if end else part.value_text(value[piece]))
        at += part.size
    return " . ".join(words)


def _range(part: Field, first: bytes, last: bytes) -> str:
    if first == last:
        return part.value_text(first)
    ends = ipaddress.ip_address(first), ipaddress.ip_address(last)
    networks = list(ipaddress.summarize_address_range(*ends)) if ends[0] <= ends[1] else []  # type: ignore[operator]
    return str(networks[0]) if len(networks) == 1 else f"{ends[0]}-{ends[1]}"


def _chain(chain: Chain, rules: list[Rule]) -> Iterator[str]:
    yield f"{INDENT}chain {chain.name} {{"
    yield from _comment(chain.comment, INDENT * 2)
    if hook := chain.hook:
        yield f"{INDENT * 2}type nat hook {hook.name} priority {hook.priority_text}; policy accept;"
    for rule in rules:
        statements = " ".join(statement.text(chain.table.family) for statement in rule.statements)
        yield f"{INDENT * 2}{statements}" + (f' comment "{comment_text(rule.comment)}"' if rule.comment else "")
    yield f"{INDENT}}}"
    yield ""
