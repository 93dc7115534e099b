"""kube-proxy's iptables mode -> what it does with each address and port."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from msgspec.structs import replace

from proxy.detect import iptables_legacy, nft_names
from proxy.detect.evidence import Evidence, KubeChains, Place, Unreadable
from proxy.detect.kernel_support import KernelFiles
from proxy.detect.kube_chains import classify
from proxy.detect.unreadable import because
from proxy.migrate import iptables_netlink
from proxy.migrate.entries import Beside, Dataplane, Entry
from proxy.migrate.iptables_family import FamilyEntries, read_family
from proxy.migrate.iptables_programs import Patience, ProgramError, Variant, save
from proxy.migrate.iptables_save import Saved, is_whole, parse
from proxy.migrate.notes import Notes
from proxy.unread import Unread
from rules.objects import Family

TABLES: Final = ("nat", "filter")
REMEDY: Final = "look at it with iptables-save and ip6tables-save; restarting kube-proxy writes its rules anew"

Text = bytes | bytearray | str
Seen = Callable[[Variant, Family, Saved], None]
"""Hears of what a variant's program has printed, while it is there: it may be 100 MB."""
Refused = list[tuple[Family, Unread]]


def read(seen: Seen | None = None, patience: Patience | None = None) -> Dataplane | None:
    """Of this network namespace. Runs iptables-nft-save and iptables-legacy-save where they have anything to show. Where the
    former is not there, fails, or leaves a table out, its tables are read over netlink.

    None: there are no chains of this mode. Without entries: there may be, and `unread` says what stood in the way.
    """
    evidence: list[Evidence] = list(nft_names.gather(KernelFiles().presence))
    patience = patience or Patience()
    parts = {e.place.part for e in _chains_of("nft", evidence)}
    nft, failed = _variant("nft", [family for family in Family if family.nft in parts], seen, patience)
    legacy, refused = _variant("legacy", _legacy_families(), seen, patience)
    if refused:  # what it would have printed may be nobody's, or another mode's
        looked = iptables_legacy.gather()
        parts = {e.place.part for e in _chains_of("legacy", looked)}
        failed += [one for one in refused if one[0].nft in parts]
        evidence += [e for e in looked if isinstance(e, Unreadable)]
    found = [part for part in (nft, legacy) if part]
    unread = [Unread(_where(e.place), e.cause, e.remedy) for e in evidence if isinstance(e, Unreadable)]
    unread += [unread for _, unread in failed]
    if not found:
        return Dataplane("iptables", (), unread=tuple(unread)) if unread else None
    whole = found[0] if len(found) == 1 else both(*found)
    return replace(whole, unread=(*unread, *whole.unread))


def of_text(ip4: Text, ip6: Text, source: str = "") -> Dataplane | None:
    """From what iptables-save and ip6tables-save print, b"" for what was not run. None: no kube-proxy of iptables mode has
    left chains there. A text that cannot be read is in `unread`."""
    return _of_families([(Family.IPV4, lambda: ip4), (Family.IPV6, lambda: ip6)], source)


def both(nft: Dataplane, legacy: Dataplane) -> Dataplane:
    """Chains in both variants: the kernel asks both, and which is first depends on which was there first."""
    others = {entry.key: entry for entry in legacy.entries}
    differ = {entry.key for entry in nft.entries if others.get(entry.key, entry) != entry}
    differing = len(differ)
    first = {entry.key: replace(entry, doubtful=True) if entry.key in differ else entry for entry in nft.entries}
    entries = others | first
    told = Unread(
        "KUBE-* chains of iptables in both variants, nft and legacy",
        f"{len(nft.entries)} addresses in nft, {len(legacy.entries)} in legacy, {differing} of them in both and different; "
        "the kernel asks both, nft's are shown where they differ",
        "one is left over from before somebody changed the variant: find out which kube-proxy uses, clear the other",
    )
    return Dataplane(
        "iptables",
        tuple(entries[key] for key in sorted(entries)),
        nft.nodeport_addresses,
        nft.masquerade_mark or legacy.masquerade_mark,
        f"{nft.source}, {legacy.source}",
        (*nft.unread, *legacy.unread),
        nft.localhost_nodeports or legacy.localhost_nodeports,
        (told, *nft.remarks, *legacy.remarks),
        nft.beside,
    )


def has_iptables_mode(saved: Saved) -> bool:
    """Whether there are chains that only this mode makes."""
    named = [(name, True) for table in TABLES for name in saved.tables.get(table, ())]
    return any(chains.mode == "iptables" for chains in classify(named, Place("iptables", "")))


def _chains_of(variant: Variant, evidence: Iterable[Evidence]) -> list[KubeChains]:
    """kube-proxy's of this mode."""
    return [
        e
        for e in evidence
        if isinstance(e, KubeChains) and e.mode == "iptables" and e.place.kind == "iptables" and e.place.name == variant
    ]


def _legacy_families() -> list[Family]:
    """Those that have a table for NAT there. The rules are looked at once, when they are printed: the kernel's own
    answer is several times as large."""
    there: list[Family] = []
    for family, variant in ((Family.IPV4, iptables_legacy.IPV4), (Family.IPV6, iptables_legacy.IPV6)):
        with contextlib.suppress(OSError):
            if "nat" in iptables_legacy.tables(variant):
                there.append(family)
    return there


def _variant(
    variant: Variant, families: Iterable[Family], seen: Seen | None, patience: Patience
) -> tuple[Dataplane | None, Refused]:
    """Of one variant, if there are chains of this mode in it; and of which families nothing could be read."""
    failed: Refused = []
    sources: list[str] = []

    def printed(family: Family) -> Text:
        try:
            done = save(variant, family, patience)
            if variant == "legacy" or is_whole(done.text):
                sources.append(done.source)
                return done.text
        except ProgramError as error:
            if variant == "legacy":
                failed.append((family, Unread(f"iptables rules ({variant}, {family.nft})", str(error), error.remedy)))
                return b""
        try:
            text = iptables_netlink.save(family)
        except (OSError, ValueError) as error:
            said = because(Place("iptables", variant, family.nft), error)
            failed.append((family, Unread(_where(said.place), said.cause, said.remedy)))
            return b""
        sources.append("netlink")
        return text

    def tell(family: Family, saved: Saved) -> None:
        if seen is not None:
            seen(variant, family, saved)

    found = _of_families(((family, partial(printed, family)) for family in families), seen=tell)
    return (replace(found, source=", ".join(dict.fromkeys(sources))) if found else None), failed


def _of_families(
    texts: Iterable[tuple[Family, Callable[[], Text]]],
    source: str = "",
    seen: Callable[[Family, Saved], None] = lambda family, saved: None,
) -> Dataplane | None:
    """One text at a time: each may be 100 MB."""
    notes = Notes(REMEDY)
    found: dict[Family, FamilyEntries] = {}
    unread: list[Unread] = []
    for family, text in texts:
        program = "iptables-save" if family is Family.IPV4 else "ip6tables-save"
        try:
            saved = parse(text())
        except ValueError as error:
            unread.append(Unread(f"what {program} prints", str(error), f"run {program}, and look at that line"))
            continue
        seen(family, saved)
        unread += [
            Unread(f"iptables table {table} ({family.nft})", "it has rules of nft that iptables cannot show")
            for table in saved.incompatible
            if table in TABLES
        ]
        if has_iptables_mode(saved):
            found[family] = read_family(family, saved, notes)
        del saved
    if not found and not unread:
        return None
    entries: list[Entry] = [entry for part in found.values() for entry in part.entries]
    return Dataplane(
        "iptables",
        tuple(entries),
        _addresses(found),
        next((part.mark for part in found.values() if part.mark), 0),
        source,
        (*unread, *notes.unread()),
        any(part.localhost for part in found.values()),
        notes.remarks(),
        _beside(found),
    )


def _addresses(found: dict[Family, FamilyEntries]) -> tuple[bytes, ...] | None:
    """As Dataplane.nodeport_addresses."""
    if all(part.nodeport_addresses is None for part in found.values()):
        return None
    addresses: set[bytes] = set()
    for family, part in found.items():
        addresses |= {bytes(family.address_size)} if part.nodeport_addresses is None else set(part.nodeport_addresses)
    return tuple(sorted(addresses))


def _beside(found: dict[Family, FamilyEntries]) -> Beside:
    checks = [part.health_checks for part in found.values() if part.health_checks is not None]
    return Beside(
        pods={family.nft: part.pods for family, part in found.items() if part.pods is not None},
        health_checks=frozenset().union(*checks) if checks else None,
    )


def _where(place: Place) -> str:
    return " ".join(filter(None, ("iptables" if place.kind == "iptables" else place.kind, place.name, place.part)))
