"""Evidence and a version of Kubernetes -> findings. Pure.

Evidence of one node is judged together; what holds for the whole cluster (node '') is judged once, and is what a node
is taken to run when nothing on it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from proxy.detect import config_checks, kernel_checks, mode_checks, versions
from proxy.detect.evidence import Evidence
from proxy.detect.evidence import Version as VersionFound
from proxy.detect.findings import Finding, Report, Severity
from proxy.detect.scope import Scope

_SEVERITY: Final[dict[Severity, int]] = {"broken": 0, "deprecated": 1, "notice": 2}


def judge(evidence: Iterable[Evidence], kubernetes: str = "") -> Report:
    """All findings, the worst first. `kubernetes`: the version to judge by; '' = what the evidence says, else the newest
    release that is known here."""
    everything = tuple(evidence)
    name = kubernetes or version_of(everything)
    known = versions.parse(name)
    version = known or versions.NEWEST
    by_node: dict[str, list[Evidence]] = {}
    for item in everything:
        by_node.setdefault(item.place.node, []).append(item)
    cluster = tuple(by_node.get("", ()))
    findings: list[Finding] = []
    for node, items in by_node.items():
        scope = Scope(node, tuple(items), cluster if node else (), version, known is None)
        for check in CHECKS:
            findings += check(scope)
    findings.sort(key=lambda f: (_SEVERITY[f.severity], f.node, f.check))
    nodes = tuple(sorted(filter(None, by_node)))
    return Report(kubernetes=name if known else "", nodes=nodes, findings=tuple(findings), evidence=everything)


def version_of(evidence: Iterable[Evidence]) -> str:
    """The cluster's version as the evidence has it: the API server's, else kube-proxy's, else the kubelets' newest."""
    found = [e for e in evidence if isinstance(e, VersionFound) and versions.parse(e.version)]
    for of in ("cluster", "kube-proxy", "kubelet"):
        named = [e.version for e in found if e.of == of]
        if named:
            return max(named, key=lambda text: versions.parse(text) or (0, 0))
    return ""


CHECKS: Final[tuple[Callable[[Scope], Iterator[Finding]], ...]] = (
    mode_checks.ipvs_mode,
    mode_checks.mode_unset,
    config_checks.mode_unknown,
    mode_checks.feature_gate,
    config_checks.ipvs_options,
    config_checks.modes_differ,
    kernel_checks.leftovers,
    kernel_checks.idle_leftovers,
    kernel_checks.foreign_servers,
    kernel_checks.two_dataplanes,
    kernel_checks.other_proxies,
    kernel_checks.kernel,
    config_checks.refused,
    config_checks.unreadable,
)
