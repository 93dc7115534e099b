"""Markdown tables made from code, between <!-- NAME --> and <!-- end --> in a document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def filled(text: str, tables: Mapping[str, str]) -> str:
    """The document with these tables in their places. Raises ValueError where one has none."""
    for name, table in tables.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not end:
            raise ValueError(f"the document has no place for the table {name}")
        text = before + begin + table + end + after
    return text


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
