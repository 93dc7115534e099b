"""Findings about the mode that is configured or runs, by the version table. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from proxy.detect import versions
from proxy.detect.evidence import (
    ConfiguredMode,
    FeatureGate,
    IpvsOption,
    ServedMode,
)
from proxy.detect.findings import Finding
from proxy.detect.scope import Scope, by_row
from proxy.detect.versions import GATE, KEP_DEFAULT, KEP_IPVS, Row

_STARTED: Final = "a kube-proxy that is started with this configuration"


def ipvs_mode(scope: Scope) -> Iterator[Finding]:
    """Somebody wants IPVS mode, or runs it."""
    served, configured = scope.of(ServedMode), scope.configured()
    said: list[ServedMode | ConfiguredMode] = [e for e in served if e.mode == "ipvs"]
    said += [e for e in configured if e.mode == "ipvs" and scope.fits(e)]
    force = scope.in_force()
    if force and force.mode != "ipvs" and force.sure != "possible":
        said = [e for e in said if e.sure != "possible"]  # one reading of many, and another one is surer
    is_ours = bool(said) and all(_is_idle(e) for e in said)
    live = [] if is_ours else scope.ipvs_in_kernel()
    if not said and (scope.mode() or scope.has_ours_alone() or not live):
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
    elif is_ours:
        title = "a configuration names IPVS mode, which kube-proxy-nft does not read"
    elif not live and not any(isinstance(item, ServedMode) for item in said):
        title = "IPVS mode is configured"
    options = scope.of(IpvsOption)
    evidence = [*said, *live, *options, *([gate] if gate else [])]
    who = _STARTED if is_ours else ""
    yield by_row(scope, "ipvs-mode", KEP_IPVS, title, row, rows, evidence, mode="ipvs", who=who)


def mode_unset(scope: Scope) -> Iterator[Finding]:
    """A configuration that leaves the mode to the default."""
    unset = [e for e in scope.configured() if e.mode == "" and not scope.is_set_by_its_tool(e)]
    if unset:
        row = versions.row_at(versions.UNSET, scope.version)
        title, who = "kube-proxy's mode is not set", ""
        if all(_is_idle(e) for e in unset):
            title, who = "a configuration names no mode, and kube-proxy-nft reads none", _STARTED
        yield by_row(scope, "mode-unset", KEP_DEFAULT, title, row, versions.UNSET, unset, mode="", who=who)


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
        elif not _is_ipvs(scope) or scope.version >= (1, 46):
            rows = versions.GATE_TRUE if gate.value else versions.GATE_FALSE
            row = versions.row_at(rows, scope.version)
            yield by_row(scope, "ipvs-gate", KEP_IPVS, words, row, rows, [gate])


def _is_idle(said: ServedMode | ConfiguredMode) -> bool:
    return isinstance(said, ConfiguredMode) and said.idle


def _is_ipvs(scope: Scope) -> bool:
    """IPVS mode is in force, or is what a kube-proxy would be started with where kube-proxy-nft is in its place."""
    return scope.mode() == "ipvs" or (
        scope.in_force() is None and any(e.mode == "ipvs" for e in scope.configured() if e.idle)
    )
