"""Base chains that somebody has given another hook, priority or policy than kube-proxy's rules need, among those of other
programs. Pure.

iptables-nft's chains have theirs for ever; kube-proxy's nftables chains of type filter are judged with their rules
(nft_places). Chains of type nat are asked in the order of their priorities, and the first that translates decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from proxy.migrate.entries import Dataplane, Entry
from proxy.migrate.facts import BaseChain
from proxy.migrate.iptables_base import CONCERNED, FIREWALL, IPVS_JUMPS, JUMPS
from proxy.migrate.nft_places import TRACKED, TRANSLATED
from proxy.unread import Unread
from rules.elements import family_of

NAT_PRIORITY: Final = {"prerouting": -100, "output": -100, "postrouting": 100}
IPTABLES: Final = {
    ("nat", "PREROUTING"): ("nat", "prerouting", -100),
    ("nat", "OUTPUT"): ("nat", "output", -100),
    ("nat", "POSTROUTING"): ("nat", "postrouting", 100),
    ("filter", "INPUT"): ("filter", "input", 0),
    ("filter", "FORWARD"): ("filter", "forward", 0),
    ("filter", "OUTPUT"): ("filter", "output", 0),
}
"""Table and chain -> type, hook, priority."""
NO_DIFFERENCE: Final = "it has another priority than it should; no packet of a Service fares differently by that today"
REMEDY: Final = "look at it with nft list chains; delete the chain and let its program make it anew"
Wrong = tuple[str, str, str]
"""What, its cause, and whose traffic is concerned: as iptables_base.CONCERNED has it; "": nobody's."""


def judged(dataplane: Dataplane, chains: Sequence[BaseChain]) -> Dataplane:
    """With what the places of its base chains do to it. chains: all that there are."""
    wrong: dict[str, list[Wrong]] = {}
    for family in sorted({family_of(entry.key).nft for entry in dataplane.entries}):
        own = [chain for chain in chains if chain.family == family]
        if dataplane.mode == "nftables":
            wrong[family] = [w for chain in own if chain.program == "kube-proxy" for w in _order(chain, chains)]
        elif dataplane.mode == "ipvs" or (dataplane.mode == "iptables" and _is_nft(dataplane)):
            wrong[family] = [
                w for chain in own if chain.program == "iptables" for w in _iptables(dataplane, chain, chains)
            ]
    found = [one for family in wrong.values() for one in family]
    if not found:
        return dataplane
    remarks = dict.fromkeys(Unread(what, cause, REMEDY) for what, cause, _ in found)
    concerned = {family: {whom for _, _, whom in of} for family, of in wrong.items()}
    return replace(
        dataplane,
        remarks=(*dataplane.remarks, *remarks),
        entries=tuple(
            replace(e, damaged=True) if _concerns(concerned[family_of(e.key).nft], e) else e for e in dataplane.entries
        ),
    )


def _is_nft(dataplane: Dataplane) -> bool:
    """Whether it was read of iptables-nft, or of both variants."""
    return any("legacy" not in source for source in dataplane.source.split(", "))


def _iptables(dataplane: Dataplane, chain: BaseChain, chains: Sequence[BaseChain]) -> Iterator[Wrong]:
    expected = IPTABLES.get((chain.table, chain.name))
    if expected is None:
        return
    kind, hook, priority = expected
    jumps = [j for j in (IPVS_JUMPS if dataplane.mode == "ipvs" else JUMPS) if j[:2] == (chain.table, chain.name)]
    if (chain.kind, chain.hook) != (kind, hook):
        for _, _, to, otherwise in jumps:
            yield f"{_text(chain)}: its place is {hook}", otherwise, CONCERNED.get((chain.table, to), "")
        return
    if kind == "nat":
        yield from _order(chain, chains)
        if chain.policy == "drop":
            yield _text(chain), "its policy is drop: what is led to no Service is dropped", "all"
    elif chain.priority != priority:
        before = len(jumps) if hook == "output" and chain.priority <= TRANSLATED else 0
        for _, _, to, otherwise in jumps[:before]:
            if chain.priority <= TRACKED:  # no connection is new there
                yield _text(chain), otherwise, CONCERNED.get((chain.table, to), "")
            elif to == FIREWALL:
                cause = "it comes before destinations are translated: what source ranges let in is dropped, too"
                yield _text(chain), cause, "guarded"
        if not before:
            yield _text(chain), NO_DIFFERENCE, ""


def _order(chain: BaseChain, chains: Sequence[BaseChain]) -> Iterator[Wrong]:
    """Of a chain of type nat, against other programs' that are asked in another order by its priority."""
    usual = NAT_PRIORITY.get(chain.hook)
    if chain.kind != "nat" or usual is None or chain.priority == usual:
        return
    first, last = sorted((usual, chain.priority))
    met = [
        f"{one.family} {one.table} {one.name} ({one.priority})"
        for one in chains
        if one.kind == "nat" and one.hook == chain.hook and first <= one.priority <= last and one.rules != 0
        if one.family in (chain.family, "inet") and one != chain and one.program not in ("kube-proxy-nft", *_own(chain))
    ]
    if not met:
        yield _text(chain), NO_DIFFERENCE, ""
    elif chain.priority > usual:
        cause = "other programs' chains translate addresses before it: what they do first decides"
        yield f"{_text(chain)} and not {usual}: behind {', '.join(met)}", cause, "all"
    else:
        cause = "it translates addresses before other programs' chains, which would come first otherwise"
        yield f"{_text(chain)} and not {usual}: before {', '.join(met)}", cause, "all"


def _own(chain: BaseChain) -> tuple[str, ...]:
    """Programs whose chains are no others'."""
    return ("kube-proxy",) if chain.program == "kube-proxy" else ()


def _concerns(whom: set[str], entry: Entry) -> bool:
    return (
        "all" in whom
        or ("refused" in whom and (entry.refusal or entry.outside_refusal) != "")
        or ("guarded" in whom and entry.sources is not None)
    )


def _text(chain: BaseChain) -> str:
    return f"chain {chain.family} {chain.table} {chain.name} ({chain.kind}, {chain.hook} {chain.priority})"
