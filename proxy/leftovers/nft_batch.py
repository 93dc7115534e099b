"""What is to go from nftables, in one transaction: all of it, or nothing."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from proxy.leftovers.found import FamilyName
from proxy.leftovers.nft_reader import RULE_CHAIN, RULE_HANDLE, RULE_TABLE
from proxy.leftovers.plan import TableRemoval
from rules.netlink import (
    BATCH_BEGIN,
    BATCH_END,
    DELCHAIN,
    DELRULE,
    DELTABLE,
    NLM_F_ACK,
    NLMSG_ERROR,
    SO_RCVBUFFORCE,
    SO_SNDBUFFORCE,
    attribute,
    batch_mark,
    error_of,
    message,
    messages,
    text,
)
from rules.netlink_socket import RECEIVE_SIZE, open_socket
from rules.objects import Family

NUMBERS: Final[dict[FamilyName, Family]] = {"ip": Family.IPV4, "ip6": Family.IPV6}
PATIENCE: Final = 60.0
"""Seconds for the kernel's answer: it is there when send returns."""
_U64 = struct.Struct(">Q")

Change = tuple[int, int, bytes, str]
"""Kind of message, family, body, and what it is about in words."""


def commit(tables: Iterable[TableRemoval], own: Iterable[tuple[FamilyName, str]]) -> None:
    """Remove it. Raises OSError, whose text names the object that it is about."""
    changes = [*(change for table in tables for change in _of_table(table)), *_of_own(own)]
    if changes:
        _send(changes)


def _of_table(removal: TableRemoval) -> Iterator[Change]:
    table = removal.table
    family = NUMBERS[table.family]
    named = text(RULE_TABLE, table.name)
    for chain, rule in removal.rules:
        handle = attribute(RULE_HANDLE, _U64.pack(rule.handle))
        yield DELRULE, family, named + text(RULE_CHAIN, chain) + handle, f"a rule of {table.place} {chain}"
    for chain in (*removal.chains, *removal.emptied):  # all rules, before any chain: they jump to one another
        yield DELRULE, family, named + text(RULE_CHAIN, chain), f"the rules of {table.place} {chain}"
    for chain in removal.chains:
        yield DELCHAIN, family, named + text(3, chain), f"chain {table.place} {chain}"


def _of_own(own: Iterable[tuple[FamilyName, str]]) -> Iterator[Change]:
    for family, name in own:
        yield DELTABLE, NUMBERS[family], text(1, name), f"table {family} {name}"


def _send(changes: Sequence[Change]) -> None:
    """Up to the first refusal, of any of them, or the last one's acknowledgement: not Replies to one."""
    parts = [batch_mark(BATCH_BEGIN, 1)]
    last = len(changes) + 1
    for sequence, (kind, family, body, _) in enumerate(changes, 2):
        parts.append(message(kind, NLM_F_ACK if sequence == last else 0, sequence, family, body))
    parts.append(batch_mark(BATCH_END, last + 1))
    data = b"".join(parts)
    with open_socket(timeout=PATIENCE) as sock:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 4 << 20)
        # The kernel counts its own overhead; twice the size is more than it ever needs.
        sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, max(1 << 20, 2 * len(data)))
        sock.send(data)
        while True:
            for reply in messages(sock.recv(RECEIVE_SIZE)):
                if reply.kind != NLMSG_ERROR:
                    continue
                code, _ = error_of(reply)
                if code:
                    raise _refused(code, changes, reply.sequence)
                if reply.sequence == last:
                    return


def _refused(code: int, changes: Sequence[Change], sequence: int) -> OSError:
    at = sequence - 2
    what = changes[at][3] if 0 <= at < len(changes) else "the transaction"
    why = "something jumps to it" if code == errno.EBUSY else os.strerror(code)
    return OSError(code, f"{what}: {why}")
