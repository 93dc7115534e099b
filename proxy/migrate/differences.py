"""One address of a service port: how the live rules, the mode's own idea of them, and ours differ. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from proxy.migrate.entries import Entry, ModeName
from proxy.migrate.modes import CLAIMED, EVEN, Made, check_of
from proxy.migrate.report import Difference, Result
from proxy.migrate.wording import endpoints_text, sources_text
from rules.elements import Sources

ENDPOINTS: Final = ("endpoints", "outside-endpoints")


class Known(Struct, frozen=True):
    """What can be compared. mode: of the live rules. endpoints: those that we would choose are known. whole: all of the
    live rules were read. node: the Node is known, whose IPs let load balancers' addresses in. contested: several Services
    claim this address."""

    mode: ModeName
    endpoints: bool = True
    whole: bool = True
    node: bool = True
    contested: bool = False


def differences(live: Entry, made: Made, known: Known) -> Iterator[Difference]:
    """Between what the kernel does and what we would do. Explained by a check where the mode does it on purpose, and
    by none where the live rules are not what the objects ask for."""
    here = made.here
    expected = made.there or here
    skipped = _skipped(live, here, known)
    for what, compare in _ASPECTS.items():
        if what in skipped:
            continue
        texts = compare(live, here)
        drift = compare(live, expected)
        if what == "scheduler" and texts is None and drift:
            texts = live.scheduler, here.scheduler  # as good, but not what was asked for
        if texts is None:
            continue
        check = "" if drift else check_of(known.mode, what, expected, here)
        if drift and known.contested:
            check = CLAIMED
        yield Difference(what, *texts, check)


def result_of(found: tuple[Difference, ...]) -> Result:
    if not found:
        return "same"
    stale = any(d.what in ENDPOINTS and not d.check for d in found)
    return "endpoints" if stale else "behaviour"


def merged(sources: Sources | None) -> Sources | None:
    """Sorted, with those that touch made one; None where everybody may come."""
    if sources is None:
        return None
    found: list[tuple[bytes, bytes]] = []
    for first, last in sorted(sources):
        if found and int.from_bytes(first) <= int.from_bytes(found[-1][1]) + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    everybody = len(found) == 1 and not any(found[0][0]) and set(found[0][1]) == {255}
    return None if everybody else tuple(found)


def _skipped(live: Entry, here: Entry, known: Known) -> tuple[str, ...]:
    """What the live rules, or what was read, do not tell."""
    skipped: tuple[str, ...] = ()
    if not known.endpoints:
        skipped = (*ENDPOINTS, "refusal")
    if known.mode not in ("ipvs", "kube-proxy-nft") and not live.endpoints and not live.outside:
        skipped = (*skipped, *_OF_CHAINS)  # there is no chain that would tell
    if not known.node and live.sources is not None and here.sources is not None:
        skipped = (*skipped, "sources")
    if not known.whole:
        skipped = (*skipped, "refusal")
        skipped = (*skipped, *(["sources"] if live.sources is None else ()), *(() if live.affinity else ["affinity"]))
    return skipped


def _endpoints(one: Entry, other: Entry) -> tuple[str, str] | None:
    if one.endpoints == other.endpoints:
        return None
    return endpoints_text(one.endpoints, other.endpoints), endpoints_text(other.endpoints, one.endpoints)


def _outside(one: Entry, other: Entry) -> tuple[str, str] | None:
    if one.outside == other.outside:
        return None
    if one.outside == one.endpoints and other.outside == other.endpoints:
        return None  # said already
    return endpoints_text(one.outside, other.outside), endpoints_text(other.outside, one.outside)


def _refusal(one: Entry, other: Entry) -> tuple[str, str] | None:
    """Where neither leads anywhere."""
    for mine, theirs, led in (
        (one.refusal, other.refusal, one.endpoints or other.endpoints),
        (one.outside_refusal, other.outside_refusal, one.outside or other.outside),
    ):
        if not led and mine != theirs:
            return mine or "nothing", theirs or "nothing"
    return None


def _affinity(one: Entry, other: Entry) -> tuple[str, str] | None:
    if one.affinity == other.affinity:
        return None
    return _seconds(one.affinity), _seconds(other.affinity)


def _seconds(affinity: int) -> str:
    return f"{affinity} s" if affinity else "none"


def _sources(one: Entry, other: Entry) -> tuple[str, str] | None:
    if one.sources == other.sources:
        return None
    mine, theirs = merged(one.sources), merged(other.sources)
    return None if mine == theirs else (sources_text(mine), sources_text(theirs))


def _scheduler(one: Entry, other: Entry) -> tuple[str, str] | None:
    if one.scheduler == other.scheduler or {one.scheduler, other.scheduler} == EVEN:
        return None
    return one.scheduler, other.scheduler


def _keeps_source(one: Entry, other: Entry) -> tuple[str, str] | None:
    if one.keeps_source is None or other.keeps_source is None or one.keeps_source == other.keeps_source:
        return None
    return _address(one.keeps_source), _address(other.keeps_source)


def _address(kept: bool) -> str:
    return "kept" if kept else "masqueraded"


_ASPECTS: Final[dict[str, Callable[[Entry, Entry], tuple[str, str] | None]]] = {
    "endpoints": _endpoints,
    "outside-endpoints": _outside,
    "refusal": _refusal,
    "affinity": _affinity,
    "sources": _sources,
    "scheduler": _scheduler,
    "source-address": _keeps_source,
}
"""What there may be a difference in -> the words of both sides, None where there is none."""
_OF_CHAINS: Final = ("affinity", "sources", "scheduler", "source-address")
