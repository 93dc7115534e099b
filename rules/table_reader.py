"""Reads a table in small pieces, over a socket of its own: what is done between two pieces does not disturb it, and a
read that is given up ends with the socket. In the network namespace of the thread that opens it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rules.compare import Found
from rules.dump import (
    ChainState,
    SetState,
    TableState,
    dump_request,
    element_request,
    read_chains,
    read_elements,
    read_rules,
    read_sets,
    read_table,
    table_request,
)
from rules.expressions import Expression
from rules.kernel import connect
from rules.netlink import GETCHAIN, GETRULE, GETSET, GETSETELEM, Message
from rules.netlink_socket import Replies
from rules.objects import Set, Table
from rules.packet_counts import Counted, read_packets


class Reader(Protocol):
    """Iterators give a piece at a time; other calls are allowed when one has come to its end. Raises OSError (ENOENT:
    there is no such table, chain or set), and ValueError or LookupError for replies that cannot be."""

    def close(self) -> None: ...

    def table(self, table: Table) -> TableState | None: ...

    def chains(self, table: Table) -> Iterator[dict[str, ChainState]]: ...

    def rules(self, table: Table, chain: str) -> list[tuple[Expression, ...]]: ...

    def sets(self, table: Table) -> Iterator[dict[str, SetState]]: ...

    def elements(self, set_: Set) -> Iterator[list[tuple[bytes, Found]]]: ...

    def element(self, set_: Set, key: bytes) -> Found | None: ...

    def packets(self, set_: Set) -> dict[bytes, Counted]: ...


class TableReader:
    """The kernel's. Raises KernelUnreachable if there is no socket to be had."""

    def __init__(self) -> None:
        self._socket = connect()
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def table(self, table: Table) -> TableState | None:
        """Without what is in it; None: it is not there."""
        try:
            return read_table(self._all(table_request(table, self._next())), table.name)
        except FileNotFoundError:
            return None

    def chains(self, table: Table) -> Iterator[dict[str, ChainState]]:
        """By name, without rules."""
        for piece in self._ask(dump_request(GETCHAIN, table.family, self._next(), table.name)):
            yield dict(read_chains(piece, table.name))

    def rules(self, table: Table, chain: str) -> list[tuple[Expression, ...]]:
        """The expressions of each rule of a chain."""
        request = dump_request(GETRULE, table.family, self._next(), table.name, chain)
        return [rule for where, rule in read_rules(self._all(request), table.name) if where == chain]

    def sets(self, table: Table) -> Iterator[dict[str, SetState]]:
        """By name, without elements."""
        for piece in self._ask(dump_request(GETSET, table.family, self._next(), table.name)):
            yield dict(read_sets(piece, table.name))

    def elements(self, set_: Set) -> Iterator[list[tuple[bytes, Found]]]:
        """By key. When there are changes meanwhile, some may be left out, or come twice."""
        table = set_.table
        for piece in self._ask(dump_request(GETSETELEM, table.family, self._next(), table.name, set_.name)):
            yield list(read_elements(piece, table.name))

    def element(self, set_: Set, key: bytes) -> Found | None:
        """The element of this key, as it is now; None: there is none."""
        try:
            replies = self._all(element_request(set_, key, self._next()))
            return next((found for one, found in read_elements(replies, set_.table.name) if one == key), None)
        except FileNotFoundError:
            return None

    def packets(self, set_: Set) -> dict[bytes, Counted]:
        """Of a set that counts, by key. As `elements`, some may be left out."""
        table = set_.table
        request = dump_request(GETSETELEM, table.family, self._next(), table.name, set_.name)
        return {key: found for piece in self._ask(request) for key, found in read_packets(piece, set_)}

    def _all(self, request: bytes) -> list[Message]:
        return [reply for piece in self._ask(request) for reply in piece]

    def _ask(self, request: bytes) -> Iterator[list[Message]]:
        return filter(None, Replies(self._socket, request))

    def _next(self) -> int:
        self._sequence = (self._sequence + 1) & 0x3FFFFFFF
        return self._sequence
