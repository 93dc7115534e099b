"""What the kernel holds at every moment, by its own word: the notifications of nftables, replayed.

A listener is told of every object that a transaction makes and removes, and of its end (NEWGEN). So nothing has to be
read while it changes, and no state between two transactions is missed.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

from rules import expressions as e
from rules.dump import TableState, read_chains, read_elements, read_rules, read_sets
from rules.layout import TABLE_NAME
from rules.netlink import (
    DELCHAIN,
    DELRULE,
    DELSET,
    DELSETELEM,
    DELTABLE,
    NETLINK_NETFILTER,
    NEWCHAIN,
    NEWGEN,
    NEWRULE,
    NEWSET,
    NEWSETELEM,
    NEWTABLE,
    NFNLGRP_NFTABLES,
    SO_RCVBUFFORCE,
    SUBSYSTEM,
    Message,
    attributes,
)
from rules.objects import Family

BUFFER: Final = 256 << 20


def listen() -> socket.socket:
    """A socket that is told of every change of nftables in this thread's network namespace. Waits for a moment only:
    TimeoutError is no news."""
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
    made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
    made.bind((0, 1 << NFNLGRP_NFTABLES - 1))
    made.settimeout(0.2)
    return made


class Replay:
    """Our tables, from the first notification on. Begins without any."""

    def __init__(self) -> None:
        self._tables: dict[Family, TableState] = {}
        self._rules: dict[Family, dict[tuple[str, int], tuple[e.Expression, ...]]] = {}

    def tables(self) -> Mapping[Family, TableState]:
        """What is there now. Changes with the next notification."""
        for family, table in self._tables.items():
            for chain in table.chains.values():
                chain.rules = []
            for (name, _), rule in self._rules[family].items():
                table.chains[name].rules.append(rule)
        return self._tables

    def apply(self, reply: Message) -> int | None:
        """Take in a notification. If it ends a transaction: the id of the process whose it was."""
        if reply.kind >> 8 != SUBSYSTEM:
            return None
        kind = reply.kind & 0xFF
        found = {number: bytes(value) for number, value in attributes(reply.body[4:])}
        if kind == NEWGEN:
            return int.from_bytes(found[2])
        if found.get(1, b"").rstrip(b"\0").decode() != TABLE_NAME:
            return None
        family = Family(reply.body[0])
        if kind == NEWTABLE:  # one that is there gets an owner
            self._tables.setdefault(family, TableState())
            self._rules.setdefault(family, {})
        elif kind == DELTABLE:
            del self._tables[family], self._rules[family]
        else:
            self._change(kind, reply, found, self._tables[family], self._rules[family])
        return None

    @staticmethod
    def _change(
        kind: int,
        reply: Message,
        found: Mapping[int, bytes],
        table: TableState,
        rules: dict[tuple[str, int], tuple[e.Expression, ...]],
    ) -> None:
        match kind:
            case _ if kind == NEWCHAIN:
                table.chains.update(read_chains([reply], TABLE_NAME))
            case _ if kind == DELCHAIN:
                del table.chains[_text(found[3])]
            case _ if kind == NEWRULE:
                [(chain, rule)] = read_rules([reply], TABLE_NAME)
                rules[chain, int.from_bytes(found[3])] = rule
            case _ if kind == DELRULE:
                del rules[_text(found[2]), int.from_bytes(found[3])]
            case _ if kind == NEWSET:
                table.sets.update(read_sets([reply], TABLE_NAME))
            case _ if kind == DELSET:
                del table.sets[_text(found[2])]
            case _ if kind == NEWSETELEM:
                table.sets[_text(found[2])].elements.update(read_elements([reply], TABLE_NAME))
            case _ if kind == DELSETELEM:
                for key, _ in read_elements([reply], TABLE_NAME):
                    del table.sets[_text(found[2])].elements[key]


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode()
