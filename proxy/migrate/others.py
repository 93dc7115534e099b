"""What iptables has beside kube-proxy's iptables mode, as iptables-save lists it: other programs' filters and marks, and
what IPVS mode needs. Only tables that are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from proxy.addresses import Network
from proxy.migrate import iptables_facts, iptables_nat, iptables_netlink, ipvs_chains, ipvs_shapes, legacy_chains
from proxy.migrate.entries import Dataplane
from proxy.migrate.facts import BaseChain, ForwardFilter, MarkUse, Translation
from proxy.migrate.iptables_programs import Patience, ProgramError, Variant, save
from proxy.migrate.iptables_save import Saved, is_whole, parse
from proxy.migrate.notes import Notes
from proxy.migrate.other_tables import OtherTables
from proxy.unread import Unread
from rules.elements import family_of
from rules.objects import Family

VARIANTS: Final[dict[str, Variant]] = {"iptables": "nft", "iptables-legacy": "legacy"}
"""BaseChain.program -> variant."""


class Others:
    """seen: families of which something was read."""

    def __init__(self) -> None:
        self.marks: list[MarkUse] = []
        self.tables = OtherTables()
        self.translations: list[Translation] = []
        self.seen: set[tuple[Variant, Family]] = set()
        self._filters: list[tuple[Family, str]] = []
        self._ipvs: dict[Family, ipvs_chains.Told] = {}
        self._notes = Notes(ipvs_chains.REMEDY)
        self.chains: list[BaseChain] = []
        """Built-in chains of iptables-legacy that were seen."""

    def take(self, variant: Variant, family: Family, saved: Saved) -> None:
        """What a program has printed. Little of it is kept."""
        self.seen.add((variant, family))
        self.marks += iptables_facts.marks(saved, family.nft)
        self.translations += iptables_nat.translations(saved, family.nft)
        self._filters.append((family, iptables_facts.filters(saved)))
        if variant == "legacy":
            self.chains += legacy_chains.of_saved(family.nft, saved)
        if ipvs_chains.are_there(saved):
            self._ipvs[family] = ipvs_chains.check(family, saved, self._notes)

    def forward(self, pods: Sequence[Network]) -> list[ForwardFilter]:
        """What their FORWARD chains let through. pods: their ranges, as far as they are known."""
        found = (iptables_facts.forward(parse(text), family.nft, pods) for family, text in self._filters)
        return [*(one for one in found if one), *self.tables.forward(pods)]

    def read_rest(self, chains: Sequence[BaseChain], patience: Patience | None = None) -> list[Unread]:
        """Read the tables of nftables, and run the programs for what was not seen. chains: the base chains that there are."""
        patience = patience or Patience()
        self.tables.read(chains)
        self.marks += self.tables.marks
        self.translations += self.tables.translations
        unread: list[Unread] = list(self.tables.unread)
        there = {(VARIANTS[c.program], c.family) for c in chains if c.program in VARIANTS}
        for family in Family:
            for variant in VARIANTS.values():
                if (variant, family.nft) in there and (variant, family) not in self.seen:
                    try:
                        self.take(variant, family, parse(_printed(variant, family, patience)))
                    except (ProgramError, ValueError, OSError) as error:
                        what = f"iptables rules ({variant}, {family.nft})"
                        unread.append(Unread(what, str(error), getattr(error, "remedy", "")))
        return unread

    def with_chains(self, ipvs: Dataplane, *, is_all: bool) -> Dataplane:
        """IPVS mode's dataplane, with what its chains tell. is_all: everything in iptables was seen."""
        if not self._ipvs and is_all and ipvs.entries:
            cause = "they are not there: nothing is masqueraded, and source ranges keep nobody out"
            self._notes.remark("kube-proxy's chains of iptables", cause)
        for family, told in self._ipvs.items():
            size = family.address_size + 5
            if not told.has_hairpins and any(len(one) == size for one in ipvs.beside.hairpins or ()):
                where = f"{family.nft} nat: chain KUBE-POSTROUTING"
                self._notes.remark(where, "an endpoint that connects to itself is not masqueraded")
        damaged = {family for family, told in self._ipvs.items() if told.is_damaged}
        for family, told in self._ipvs.items():
            entries = [entry for entry in ipvs.entries if family_of(entry.key) is family]
            for where, cause in ipvs_shapes.missing(told.shapes, entries):
                self._notes.remark(f"{family.nft} {where}", cause)
                damaged.add(family)
        return replace(
            ipvs,
            entries=tuple(replace(e, damaged=True) if family_of(e.key) in damaged else e for e in ipvs.entries),
            masquerade_mark=next((told.mark for told in self._ipvs.values() if told.mark), 0),
            remarks=(*ipvs.remarks, *self._notes.remarks()),
            beside=replace(ipvs.beside, pods={family.nft: told.pods for family, told in self._ipvs.items()}),
        )


def _printed(variant: Variant, family: Family, patience: Patience) -> bytes | bytearray:
    """As its program prints them, where there is one; nft's can be read without."""
    try:
        text = save(variant, family, patience).text
        return text if variant == "legacy" or is_whole(text) else iptables_netlink.save(family)
    except ProgramError:
        if variant == "legacy":
            raise
        return iptables_netlink.save(family)
