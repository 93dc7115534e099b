"""The live rules: whether they are what the objects ask for, and whether there are several proxies'. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from proxy.migrate.case import Case, finding
from proxy.migrate.modes import ANNOTATION
from proxy.migrate.report import Finding
from proxy.migrate.wording import many, service_of, services, some

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
    if names:
        yield finding(
            "only-here",
            "notice",
            f"{many(len(names), 'address')} that the rules that are there now do not have",
            "Services that came a moment ago, or that the proxy that runs could not program. They will work after the switch.",
            "run this again in a minute; if they are still missing, look at that proxy's log",
            sorted(dict.fromkeys(names)),
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
