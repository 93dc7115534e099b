"""iptables-nft's tables without its programs, as in a container: over netlink, as text that iptables_save reads."""

from __future__ import annotations

from typing import Final

from rules.foreign import Changed, Reader
from rules.netlink_socket import DAMAGED
from rules.objects import Family, Table
from rules.xtables import text_of

TABLES: Final = ("filter", "nat")
TRIES: Final = 5
_POLICIES: Final = {0: "DROP", 1: "ACCEPT"}


def save(family: Family) -> bytearray:
    """The tables nat and filter, without counters. Extensions that rules.xtables does not know are modules "unread-NAME".
    Raises OSError, ValueError."""
    for _ in range(TRIES):
        try:
            with Reader() as reader:
                return _save(reader, family)
        except (Changed, FileNotFoundError):  # what one reply spoke of, the next does not know any more
            continue
        except DAMAGED as error:
            raise ValueError(f"the kernel's reply cannot be understood ({error})") from error
    raise ValueError("the tables changed during each of several reads")


def _save(reader: Reader, family: Family) -> bytearray:
    written = bytearray()
    for name in TABLES:
        table = Table(family, name)
        if reader.flags(table) is None:
            continue
        chains = reader.chains(table)
        written += f"*{name}\n".encode()
        for chain in chains:
            policy = _POLICIES.get(chain.policy, "-") if chain.hook >= 0 else "-"
            written += f":{chain.name} {policy} [0:0]\n".encode()
        for chain in chains:
            for rule in reader.rules(table, chain.name):
                written += f"-A {chain.name} {text_of(family, reader.expressions(rule))}".rstrip().encode() + b"\n"
        written += b"COMMIT\n"
    return written
