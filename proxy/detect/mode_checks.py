"""Findings about the mode that is configured or runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from proxy.detect import versions
from proxy.detect.evidence import (
    ConfiguredMode,
    Evidence,
    FeatureGate,
    IpvsOption,
    ServedMode,
)
from proxy.detect.findings import Finding
from proxy.detect.scope import Scope, by_row
from proxy.detect.versions import GATE, KEP_DEFAULT, KEP_IPVS, Row

MODES: Final = ("iptables", "ipvs", "nftables", "kernelspace")


def ipvs_mode(scope: Scope) -> Iterator[Finding]:
    """Somebody wants IPVS mode, or runs it."""
    served, configured = scope.of(ServedMode), scope.configured()
    said: list[Evidence] = [e for e in served if e.mode == "ipvs"]
    said += [e for e in configured if e.mode == "ipvs"]
    force = scope.in_force()
    if force and force.mode != "ipvs" and force.sure != "possible":
        said = [e for e in said if e.sure != "possible"]  # one reading of many, and another one is surer
    live = scope.ipvs_in_kernel()
    if not said and (scope.mode() or not live):
        return
    gate = scope.gate()
    if gate and not gate.value and scope.version >= versions.GATE_BORN:
        off = Row(
            versions.GATE_BORN,
            "broken",
            f"{GATE}=false is set: kube-proxy exits at its start in IPVS mode",
            versions.IPVS[0].remedy,
        )
        rows: tuple[Row, ...] = (off,)
    else:
        rows = versions.IPVS_WITH_GATE if gate and gate.value else versions.IPVS
    row = versions.row_at(rows, scope.version)
    title = "kube-proxy is in IPVS mode"
    if not said:
        title = "the kernel has the IPVS rules of a kube-proxy"
    elif not live and not any(isinstance(item, ServedMode) for item in said):
        title = "IPVS mode is configured"
    options = scope.of(IpvsOption)
    evidence = [*said, *live, *options, *([gate] if gate else [])]
    yield by_row(scope, "ipvs-mode", KEP_IPVS, title, row, rows, evidence, mode="ipvs")


def mode_unset(scope: Scope) -> Iterator[Finding]:
    """A configuration that leaves the mode to the default."""
    unset = [e for e in scope.configured() if e.mode == ""]
    if unset:
        row = versions.row_at(versions.UNSET, scope.version)
        yield by_row(
            scope, "mode-unset", KEP_DEFAULT, "kube-proxy's mode is not set", row, versions.UNSET, unset, mode=""
        )


def mode_unknown(scope: Scope) -> Iterator[Finding]:
    for found in scope.configured():
        if found.mode and found.mode not in MODES:
            spelled = found.mode.strip("\"' \t").lower()
            hint = f"did you mean {spelled}? " if spelled in MODES and spelled != found.mode else ""
            yield Finding(
                check="mode-unknown",
                severity="broken",
                title=f"{found.mode!r} is no mode of kube-proxy",
                explanation="kube-proxy exits at its start. (userspace was removed in 1.26.)",
                remedy=f"{hint}set the mode to nftables or iptables",
                evidence=(found,),
                mode=found.mode,
                node=scope.node,
            )


def feature_gate(scope: Scope) -> Iterator[Finding]:
    """The gate itself, where the mode's own finding does not say it."""
    for gate in scope.of(FeatureGate):
        if gate.name != GATE:
            continue
        words = f"{GATE}={'true' if gate.value else 'false'} is set"
        if scope.version < versions.GATE_BORN:
            yield Finding(
                check="ipvs-gate",
                severity="broken",
                title=words,
                explanation=f"kube-proxy {versions.show(scope.version)} does not know this gate and exits at its start",
                remedy=f"take {GATE} out of the feature gates until {versions.show(versions.GATE_BORN)}",
                evidence=(gate,),
                kep=KEP_IPVS,
                node=scope.node,
            )
        elif scope.mode() != "ipvs" or scope.version >= (1, 46):
            rows = versions.GATE_TRUE if gate.value else versions.GATE_FALSE
            row = versions.row_at(rows, scope.version)
            yield by_row(scope, "ipvs-gate", KEP_IPVS, words, row, rows, [gate])


def ipvs_options(scope: Scope) -> Iterator[Finding]:
    options = scope.of(IpvsOption)
    if options and scope.configured() and scope.mode() != "ipvs":
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
    configured = scope.configured()
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
            yield Finding(
                check="restart-pending",
                severity="notice",
                title=f"{' or '.join(sorted(wanted))} is configured, and kube-proxy runs in {served.mode} mode",
                explanation="kube-proxy reads its mode at its start only, or it reads another configuration than this one",
                remedy="restart kube-proxy on this node, and look again",
                evidence=(served, *here),
                mode=served.mode,
                node=scope.node,
            )
