"""The built-in chains of iptables' legacy variant, as the kernel has them: linux/netfilter_ipv4/ip_tables.h and the same
for IPv6. Needs CAP_NET_ADMIN. Only tables that there are: asking for another would make the kernel create it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Final, Literal

from proxy.detect import iptables_legacy as legacy
from proxy.migrate.facts import BaseChain, Hook
from proxy.migrate.iptables_save import Saved

HOOKS: Final[tuple[Hook, ...]] = ("prerouting", "input", "forward", "output", "postrouting")
PRIORITIES: Final = {"nat": -100, "filter": 0, "mangle": -150}
_VERDICT = struct.Struct("=i")
_NF_DROP: Final = -1  # as a verdict: -NF_DROP - 1


def read(variant: legacy.Variant) -> Iterator[BaseChain]:
    """The built-in chains of the tables that there are. Raises OSError, ValueError."""
    tables = legacy.tables(variant)
    if not tables:
        return
    with socket.socket(variant.family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        for table in tables:
            info, entries = legacy.read_table(sock.fileno(), variant, table)
            yield from built_in(legacy.INFO.unpack(info)[1:], entries, variant, table)


def of_saved(family: str, saved: Saved) -> Iterator[BaseChain]:
    """The same of what iptables-legacy-save has printed: of a big table the kernel's answer is several times as large."""
    for table in legacy.TABLES:
        for name, chain in saved.tables.get(table, {}).items():
            hook = name.lower()
            if chain.policy and hook in HOOKS:
                policy: Literal["accept", "drop"] = "drop" if chain.policy == "DROP" else "accept"
                yield _chain(family, table, HOOKS[HOOKS.index(hook)], policy, sum(1 for _ in chain.lines()))


def _chain(family: str, table: str, hook: Hook, policy: Literal["accept", "drop"], rules: int) -> BaseChain:
    kind = "nat" if table == "nat" else "filter"
    priority = 100 if table == "nat" and hook in ("postrouting", "input") else PRIORITIES[table]
    return BaseChain(family, table, hook.upper(), kind, hook, priority, policy, rules, "iptables-legacy")


def built_in(info: tuple[int, ...], entries: memoryview, variant: legacy.Variant, table: str) -> Iterator[BaseChain]:
    """info: as legacy.INFO, without the name."""
    valid, starts, ends = info[0], info[1:6], info[6:11]
    for number, hook in enumerate(HOOKS):
        if not valid & 1 << number:
            continue
        at, rules = starts[number], 0
        while at < ends[number]:
            _, following = legacy.offsets(entries, at, variant)
            at, rules = at + following, rules + 1
        target, _ = legacy.offsets(entries, ends[number], variant)
        (verdict,) = _VERDICT.unpack_from(entries, ends[number] + target + legacy.TARGET_HEADER)
        policy: Literal["accept", "drop"] = "drop" if verdict == _NF_DROP else "accept"
        yield _chain(variant.part, table, hook, policy, rules)
