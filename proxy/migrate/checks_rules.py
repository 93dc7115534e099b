"""The live rules: whether they are what the objects ask for, and whether there are several proxies'. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from proxy.migrate.case import Case, finding
from proxy.migrate.facts import Facts
from proxy.migrate.modes import ANNOTATION
from proxy.migrate.report import Finding
from proxy.migrate.wording import many, service_of, services, some
from proxy.unread import Unread

MOST: Final = 0.5
FEW: Final = 3
"""So many addresses, and more than this part of all, do not come a moment ago."""
READERS: Final = frozenset({"IPVS", "kube-proxy's iptables rules", "kube-proxy's nftables tables"})
"""What readers of a node's rules are called where one failed."""

_WORDS = {
    "endpoints": "endpoints",
    "outside-endpoints": "endpoints for traffic from outside",
    "refusal": "what happens without endpoints",
    "affinity": "session affinity",
    "sources": "source ranges",
    "scheduler": "scheduler",
    "source-address": "whether the source address is kept",
}


def stale(case: Case) -> Iterator[Finding]:
    """Rules that are not what their mode makes of the objects."""
    drift = {what: names for what, names in case.comparison.drift.items() if what in _WORDS}
    if not drift:
        return
    names = {service_of(name) for name in chain.from_iterable(drift.values())}
    what = some([f"{_WORDS[kind]} ({len(names)})" for kind, names in drift.items()])
    yield finding(
        "stale-rules",
        "change",
        f"The rules of {many(len(names), 'Service')} are not what the cluster's objects ask for",
        f"They differ in: {what}. Either the proxy that runs has not followed the last changes (yet), or somebody changed"
        " its rules or its configuration without starting it again. kube-proxy-nft will do what the objects say.",
        "run this again in a minute; if the same Services are named, look at that proxy's log, and decide which is right",
        services(names),
    )


def damaged(case: Case) -> Iterator[Finding]:
    """Rules that are understood, and cannot be meant."""
    remarks = case.live.remarks if case.live else ()
    for cause in dict.fromkeys(remark.cause for remark in remarks):
        yield finding(
            "rules-damaged",
            "change",
            "Rules that are there now are not as their proxy writes them",
            f"{cause[0].upper()}{cause[1:]}. Something else has changed them, or the proxy was interrupted.",
            "see what changes that proxy's rules, because it will meet ours next; starting that proxy again mends them",
            [remark.what for remark in remarks if remark.cause == cause],
        )


def only_there(case: Case) -> Iterator[Finding]:
    """Addresses that the live rules have and no object asks for."""
    names = case.comparison.drift.get("only-there", [])
    if names:
        yield finding(
            "only-there",
            "change",
            f"{many(len(names), 'address')} that only the rules have that are there now",
            "No object of the cluster asks for them (any more): the rules are left over, or another program's.",
            "see whether anything uses them; after the switch and the clean-up they lead nowhere",
            sorted(dict.fromkeys(names)),
        )


def only_here(case: Case) -> Iterator[Finding]:
    """Addresses that the live rules lack."""
    names = case.comparison.drift.get("only-here", [])
    if len(names) > MOST * case.comparison.expected and len(names) >= FEW:
        all_ = len(names) == case.comparison.expected
        yield finding(
            "only-here",
            "change",
            ("All" if all_ else "Most") + " addresses of Services are missing in the rules that are there now",
            f"{many(len(names), 'address')} of {case.comparison.expected:,} are missing. The proxy that runs does not serve this"
            " node: it has not programmed its rules yet, or somebody has removed them. kube-proxy-nft would serve all of them.",
            "look at that proxy's log, and start it again; then run this again, so that there is something to compare with",
            sorted(dict.fromkeys(names)),
        )
    elif names:
        yield finding(
            "only-here",
            "notice",
            f"{many(len(names), 'address')} that the rules that are there now do not have",
            "Services that came a moment ago, or that the proxy that runs could not program. They will work after the switch.",
            "run this again in a minute; if they are still missing, look at that proxy's log",
            sorted(dict.fromkeys(names)),
        )


def unread(case: Case) -> Iterator[Finding]:
    """Live rules that could not be read, or not all of them."""
    parts = unread_parts(case.facts)
    if not parts:
        return
    none = not case.comparison.compared
    yield finding(
        "rules-unread",
        "change",
        "The rules that are there now could not " + ("be read" if none else "all be read"),
        (
            "Nothing was compared"
            if none
            else "Where something is missing, a Service is called not compared, and not the same"
        )
        + f": {some(list(dict.fromkeys(one.cause for one in parts)), 3)}.",
        "; ".join(dict.fromkeys(filter(None, (one.remedy for one in parts)))) or "run this as root on the node",
        list(dict.fromkeys(one.what for one in parts)),
    )


def unread_parts(facts: Facts) -> list[Unread]:
    """Of the rules that are there now, what could not be read."""
    parts = [one for dataplane in facts.dataplanes for one in dataplane.unread]
    return parts + [one for one in facts.unread if one.what in READERS]


def none(case: Case) -> Iterator[Finding]:
    """A node without any rules, where a proxy is said to run."""
    mode = case.facts.present.mode
    read_all = not case.comparison.blind and not any(one.what in READERS for one in case.facts.unread)
    there = any(d.entries for d in case.facts.dataplanes) or case.live is not None
    if case.facts.here.is_this_node and mode and read_all and not there:
        yield finding(
            "no-rules",
            "change",
            f"There are no rules of {mode} mode on this node",
            f"A kube-proxy in {mode} mode is configured, and the kernel has nothing of it, nor of another mode: no Service works"
            " here, or another program serves them. There was nothing to compare with.",
            "see whether that proxy runs and what its log says; run this again when it has programmed its rules. In a pod:"
            " with hostNetwork: true",
            [case.facts.present.source or "the present configuration"],
        )


def two_dataplanes(case: Case) -> Iterator[Finding]:
    """Rules of several modes at once."""
    if case.comparison.others and case.live:
        modes = [case.live.mode, *(d.mode for d in case.comparison.others)]
        yield finding(
            "two-dataplanes",
            "change",
            f"The kernel has rules of {' and '.join(modes)} mode at once",
            f"A switch of modes was not finished. This report compares with those of {case.live.mode} mode; the others do not"
            " follow the cluster, and can lead connections to endpoints that are gone.",
            "clean up with `kube-proxy-nft cleanup --kube-proxy` once kube-proxy-nft serves the node; it removes all of them",
            [f"{d.mode}: {many(len(d.entries), 'address')} ({d.source})" for d in (case.live, *case.comparison.others)],
        )


def another_mode(case: Case) -> Iterator[Finding]:
    """The proxy that runs is said to be in one mode, and the rules are another's."""
    mode = case.facts.present.mode
    if mode and case.live and case.live.mode not in (mode, "kube-proxy-nft"):
        yield finding(
            "rules-of-another-mode",
            "change",
            f"The proxy is in {mode} mode, and the rules in the kernel are of {case.live.mode} mode",
            f"There are none of {mode} mode. The configuration was changed and the proxy not started again, or another"
            " configuration is in use than the one that was read. This report compares with the rules that are there.",
            "find the proxy that runs and its configuration (port 10249, /proxyMode), or give it with --config",
            [case.facts.present.source or "the present configuration", case.live.source or case.live.mode],
        )


def already_here(case: Case) -> Iterator[Finding]:
    """Our own tables are there."""
    if any(d.mode == "kube-proxy-nft" for d in case.facts.dataplanes):
        yield finding(
            "already-here",
            "info",
            "kube-proxy-nft's tables are on this node",
            "It serves the node already, or was tried here.",
            "nothing; `kube-proxy-nft cleanup` removes them",
        )


def annotated(case: Case) -> Iterator[Finding]:
    """Schedulers that an annotation asks for, which only we know."""
    names = case.comparison.explained.get(ANNOTATION, [])
    if names:
        yield finding(
            ANNOTATION,
            "info",
            f"{many(len(set(map(service_of, names))), 'Service')} with the annotation kube-proxy-nft/scheduler",
            "Endpoints will be chosen as it says; the proxy that runs does not know it.",
            "nothing",
            services(map(service_of, names)),
        )
