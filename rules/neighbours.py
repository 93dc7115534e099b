"""Nat chains of other programs that stand where ours do, told from what the kernel says of chains. Pure.

Nothing but chains is ever asked for: not what is in them, however much it is, and whatever version of nft wrote it. A
base chain says itself where it stands (NFTA_CHAIN_HOOK, NFTA_CHAIN_TYPE).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from rules.layout import TABLE_NAME
from rules.netlink import GETCHAIN, NLM_F_ACK, NLM_F_DUMP, Message, attributes, message, read_text, text
from rules.objects import OUTPUT, POSTROUTING, PREROUTING

FAMILIES: Final = {1: "inet", 2: "ip", 10: "ip6"}
"""Where a nat chain can stand beside ours: NFPROTO_* and nft's name."""

_PLACES: Final = {(hook.number, hook.priority): hook.name for hook in (PREROUTING, OUTPUT, POSTROUTING)}
_TABLE, _NAME, _HOOK, _TYPE = 1, 3, 4, 7
_NUMBER, _PRIORITY = 1, 2
_NAT: Final = text(_TYPE, "nat")


class Neighbour(Struct, frozen=True):
    """family: as nft calls it. hook: prerouting, output or postrouting, at the priority of ours."""

    family: str
    table: str
    chain: str
    hook: str


def read(told: Message) -> Neighbour | None:
    """A neighbour; None: it is another chain, of which there may be thousands. told: NEWCHAIN, a reply or a
    notification."""
    body = bytes(told.body)
    if _NAT not in body or body[0] not in FAMILIES:
        return None
    found = dict(attributes(body[4:]))
    hook = dict(attributes(found.get(_HOOK, b"")))
    place = int.from_bytes(hook.get(_NUMBER, b"")), int.from_bytes(hook.get(_PRIORITY, b""), signed=True)
    family, table = FAMILIES[body[0]], read_text(found.get(_TABLE, b""))
    if not hook or place not in _PLACES or (table == TABLE_NAME and family != "inet"):
        return None
    return Neighbour(family, table, read_text(found.get(_NAME, b"")), _PLACES[place])


def chains_request(family: int, sequence: int) -> bytes:
    """Ask for all chains of a family, of FAMILIES."""
    return message(GETCHAIN, NLM_F_DUMP, sequence, family, b"")


def chain_request(family: int, table: str, chain: str, sequence: int) -> bytes:
    """Ask for one chain; ENOENT if it is not there."""
    return message(GETCHAIN, NLM_F_ACK, sequence, family, text(_TABLE, table) + text(_NAME, chain))
