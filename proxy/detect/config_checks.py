"""Findings about configurations that do not mean what somebody meant: no such mode, refused, contradicting. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from proxy.detect.evidence import ConfiguredMode, IpvsOption, Place, ServedMode, Unreadable
from proxy.detect.findings import Finding, Severity
from proxy.detect.scope import MODES, WINDOWS_MODE, Scope

_TEMPLATE: Final = re.compile(r"\$[({A-Za-z]|\{\{|%[A-Za-z]$|<[%A-Za-z]|@[A-Za-z_]+@")
_EXITS: Final = "kube-proxy exits at its start"


def mode_unknown(scope: Scope) -> Iterator[Finding]:
    """A mode that kube-proxy does not have, or not on this operating system."""
    for found in scope.configured():
        if not found.mode:
            continue
        severity: Severity = "broken"
        title = f"{found.mode!r} is no mode of kube-proxy"
        why = f"{_EXITS}. (userspace was removed in 1.26.)"
        remedy = "set the mode to nftables or iptables"
        if _TEMPLATE.search(found.mode):
            severity, title = "notice", f"the mode {found.mode!r} is a template"
            why = "what stands there in the end is not known, and it is not judged"
            remedy = "give the file that is made from it"
        elif not scope.fits(found):
            on = "Windows" if scope.system(found) == "windows" else "Linux"
            title = f"kube-proxy has no mode {found.mode} on {on}"
            why = f"{_EXITS}: {WINDOWS_MODE} is for Windows, which has no other mode"
            if on == "Windows":
                remedy = f"set the mode to {WINDOWS_MODE}, or leave it out, for the Windows nodes"
        elif found.mode in (*MODES, WINDOWS_MODE):
            continue
        else:
            spelled = found.mode.strip("\"' \t").lower()
            remedy = f"did you mean {spelled}? {remedy}" if spelled in (*MODES, WINDOWS_MODE) else remedy
        if found.idle and severity == "broken":
            why = f"kube-proxy-nft reads no mode; of a kube-proxy that is started with this configuration: {why}"
        yield Finding(
            check="mode-unknown",
            severity=severity,
            title=title,
            explanation=why,
            remedy=remedy,
            evidence=(found,),
            mode=found.mode,
            node=scope.node,
        )


def ipvs_options(scope: Scope) -> Iterator[Finding]:
    options = scope.of(IpvsOption)
    configured = scope.configured()
    if scope.in_force() is not None:
        configured = [e for e in configured if not e.idle]
    if options and configured and scope.mode() != "ipvs" and not any(e.idle and e.mode == "ipvs" for e in configured):
        names = ", ".join(dict.fromkeys(option.name for option in options))
        yield Finding(
            check="ipvs-options",
            severity="notice",
            title="IPVS options are set, and the mode is not ipvs",
            explanation=f"{names}: kube-proxy reads them in IPVS mode only",
            remedy="remove them with the next change, so that nobody takes this for an IPVS cluster",
            evidence=tuple(options),
            node=scope.node,
        )


def modes_differ(scope: Scope) -> Iterator[Finding]:
    """Configurations that contradict each other, or what runs."""
    configured = [e for e in scope.configured() if not e.idle]
    if len({e.mode for e in configured}) > 1:
        modes = " and ".join(sorted({e.mode or "unset" for e in configured}))
        yield Finding(
            check="modes-differ",
            severity="notice",
            title=f"configurations name different modes: {modes}",
            explanation="they may be of different groups of nodes; on one node only one of them counts",
            remedy="see which one each node uses, and remove what is not used",
            evidence=tuple(configured),
            node=scope.node,
        )
    for served in scope.of(ServedMode):
        here = configured or [e for e in scope.cluster if isinstance(e, ConfiguredMode) and not e.overridden]
        wanted = {e.mode for e in here} - {""}
        if wanted and served.mode not in wanted:
            remedy = "restart kube-proxy on this node, and look again"
            if all(e.sure == "possible" for e in here):
                remedy = "see first which configuration it uses (its command line); if it is this one, restart it"
            yield Finding(
                check="restart-pending",
                severity="notice",
                title=f"{' or '.join(sorted(wanted))} is configured, and kube-proxy runs in {served.mode} mode",
                explanation="kube-proxy reads its mode at its start only, or it reads another configuration than this one",
                remedy=remedy,
                evidence=(served, *here),
                mode=served.mode,
                node=scope.node,
            )


def refused(scope: Scope) -> Iterator[Finding]:
    """What kube-proxy does not start with, once for each file, object or command line."""
    by_place: dict[tuple[str, str], list[Unreadable]] = {}
    for found in scope.of(Unreadable):
        if found.effect == "refused":
            by_place.setdefault((found.place.kind, found.place.name), []).append(found)
    for faults in by_place.values():
        is_sure = any(found.sure != "possible" for found in faults)
        where = _where(faults[0].place) if len(faults) == 1 else faults[0].place.name
        yield Finding(
            check="config-refused",
            severity="broken" if is_sure else "notice",
            title=f"kube-proxy does not start with {where}" + ("" if is_sure else ", if it is given that"),
            explanation="; ".join(dict.fromkeys(found.cause for found in faults)),
            remedy="; ".join(dict.fromkeys(found.remedy for found in faults)),
            evidence=tuple(faults),
            node=scope.node,
        )


def unreadable(scope: Scope) -> Iterator[Finding]:
    """What could not be read, and what does not mean what it seems to."""
    for found in scope.of(Unreadable):
        if found.harmless or found.effect == "refused":
            continue
        is_read = found.effect == "passed-over"
        where = _where(found.place)
        yield Finding(
            check="unreadable",
            severity="notice",
            title=f"{where} does not say what it seems to" if is_read else f"{where} could not be read",
            explanation=found.cause if is_read else f"{found.cause}; what is there is not part of this judgement",
            remedy=found.remedy or "make it readable and look again",
            evidence=(found,),
            node=scope.node,
        )


def _where(place: Place) -> str:
    return f"{place.name}{f' {place.part}' if place.part else ''}{f', line {place.line}' if place.line else ''}"
