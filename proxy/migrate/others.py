"""What other programs have in iptables: their filters and marks, as iptables-save lists them. Only tables that are there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from proxy.addresses import Network
from proxy.migrate import iptables_facts, iptables_netlink
from proxy.migrate.entries import Unread
from proxy.migrate.facts import BaseChain, ForwardFilter, MarkUse
from proxy.migrate.iptables_programs import ProgramError, Variant, save
from proxy.migrate.iptables_save import Saved, parse
from rules.objects import Family

VARIANTS: Final[dict[str, Variant]] = {"iptables": "nft", "iptables-legacy": "legacy"}
"""BaseChain.program -> variant."""


class Others:
    """seen: families of which something was read."""

    def __init__(self) -> None:
        self.marks: list[MarkUse] = []
        self.seen: set[tuple[Variant, Family]] = set()
        self._filters: list[tuple[Family, str]] = []

    def take(self, variant: Variant, family: Family, saved: Saved) -> None:
        """What a program has printed. Little of it is kept."""
        self.seen.add((variant, family))
        self.marks += iptables_facts.marks(saved, family.nft)
        self._filters.append((family, iptables_facts.filters(saved)))

    def forward(self, pods: Sequence[Network]) -> list[ForwardFilter]:
        """What their FORWARD chains let through. pods: their ranges, as far as they are known."""
        found = (iptables_facts.forward(parse(text), family.nft, pods) for family, text in self._filters)
        return [one for one in found if one]

    def read_rest(self, chains: Iterable[BaseChain]) -> list[Unread]:
        """Run the programs for what was not seen. chains: the base chains that there are."""
        unread: list[Unread] = []
        there = {(VARIANTS[c.program], c.family) for c in chains if c.program in VARIANTS}
        for family in Family:
            for variant in VARIANTS.values():
                if (variant, family.nft) in there and (variant, family) not in self.seen:
                    try:
                        self.take(variant, family, parse(_printed(variant, family)))
                    except (ProgramError, ValueError, OSError) as error:
                        what = f"iptables rules ({variant}, {family.nft})"
                        unread.append(Unread(what, str(error), getattr(error, "remedy", "")))
        return unread


def _printed(variant: Variant, family: Family) -> bytes | bytearray:
    """As its program prints them, where there is one; nft's can be read without."""
    try:
        return save(variant, family).text
    except ProgramError:
        if variant == "legacy":
            raise
        return iptables_netlink.save(family)
