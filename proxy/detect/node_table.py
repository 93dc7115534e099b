"""A report on a whole cluster for a person: a line for each node, and a summary for a change request. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from proxy.detect import report as reports
from proxy.detect import versions
from proxy.detect.cluster_objects import OURS
from proxy.detect.evidence import (
    ConfiguredMode,
    Evidence,
    Kernel,
    OtherProxy,
    Unreadable,
)
from proxy.detect.evidence import Version as VersionFound
from proxy.detect.findings import Finding, Report, Severity
from proxy.detect.numbers import count
from proxy.detect.report import Paint
from proxy.detect.scope import Scope

HEADER: Final = ("NODE", "KERNEL", "KUBELET", "MODE", "FROM", "FINDINGS")
NAMED: Final = 5
"""How many nodes a summary names."""
_ORDER: Final[dict[Severity, int]] = {"broken": 0, "deprecated": 1, "notice": 2}
UNSEEN, UNKNOWN = "no kube-proxy found", "not known: see below"


class Line(NamedTuple):
    """The cells of a node. severity: of its worst finding, None when it has none."""

    cells: tuple[str, ...]
    severity: Severity | None


class _Group(Struct):
    finding: Finding
    nodes: list[str]


def as_table(report: Report, *, colours: bool = False) -> str:
    """All nodes by name, and then what was found, the worst first, once for all the nodes that have it."""
    paint = Paint(colours)
    parts = [reports.head(report, paint)]
    rows = list(lines(report))
    if rows:
        parts.append("\n".join(_aligned(rows, paint)))
    parts += [_summary(group, len(report.nodes), paint) for group in _grouped(report.findings)]
    parts.append(_counts(report, rows))
    return "\n\n".join(parts) + "\n"


def lines(report: Report) -> Iterable[Line]:
    by_node: dict[str, list[Evidence]] = {}
    for item in report.evidence:
        by_node.setdefault(item.place.node, []).append(item)
    findings: dict[str, list[Finding]] = {}
    for finding in report.findings:
        findings.setdefault(finding.node, []).append(finding)
    version = versions.parse(report.kubernetes) or versions.NEWEST
    cluster = tuple(by_node.get("", ()))
    for node in report.nodes:
        scope = Scope(node, tuple(by_node.get(node, ())), cluster, version, not report.kubernetes)
        mode, where = _mode(scope)
        here = findings.get(node, []) + _of_cluster(scope, findings.get("", ()))
        here.sort(key=lambda finding: _ORDER[finding.severity])
        checks = ", ".join(dict.fromkeys(finding.check for finding in here)) or "-"
        cells = (node, _kernel(scope), _kubelet(scope), mode, where, checks)
        yield Line(tuple(map(reports.plain, cells)), here[0].severity if here else None)


def _of_cluster(scope: Scope, findings: Iterable[Finding]) -> list[Finding]:
    """What is found of the whole cluster, where that is what a node is taken to run."""
    if scope.in_force() not in scope.cluster:
        return []
    return [finding for finding in findings if finding.check != "unreadable"]


def _mode(scope: Scope) -> tuple[str, str]:
    """The mode in force, and what says so."""
    said = scope.in_force()
    if said is not None:
        place = f"{said.place.kind} {said.place.name}"
        return said.mode or f"{scope.mode()} (unset)", place
    others = [e for e in (*scope.evidence, *scope.cluster) if isinstance(e, OtherProxy)]
    if others and others[0].program == OURS:
        return OURS, f"{others[0].place.kind} {others[0].place.name}"
    if others:
        return "-", f"no kube-proxy; {others[0].program} is here"
    blind = any(isinstance(e, Unreadable) and not e.harmless for e in (*scope.evidence, *scope.cluster))
    return "-", UNKNOWN if blind else UNSEEN


def _kernel(scope: Scope) -> str:
    kernels = scope.of(Kernel)
    if kernels:
        return kernels[0].release
    return "Windows" if any(e.os == "windows" or e.mode == "kernelspace" for e in scope.of(ConfiguredMode)) else "-"


def _kubelet(scope: Scope) -> str:
    return next((e.version for e in scope.of(VersionFound) if e.of == "kubelet"), "") or "-"


def _aligned(rows: Sequence[Line], paint: Paint) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(HEADER, *(row.cells for row in rows), strict=True)]
    for cells, severity in [(HEADER, None), *rows]:
        *before, last = cells
        padded = [f"{cell:<{width}}" for cell, width in zip(before, widths, strict=False)]
        yield "  ".join([*padded, paint.coloured(last, severity) if severity else last])


def _grouped(findings: Iterable[Finding]) -> list[_Group]:
    """In the order of the report: the worst first."""
    groups: dict[tuple[str, ...], _Group] = {}
    for finding in findings:
        key = (finding.severity, finding.check, finding.title, finding.explanation, finding.remedy)
        groups.setdefault(key, _Group(finding, [])).nodes.append(finding.node)
    return list(groups.values())


def _summary(group: _Group, total: int, paint: Paint) -> str:
    """With the evidence of the first node, as an example."""
    nodes = [node for node in group.nodes if node]
    return reports.paragraph(group.finding, paint, _nodes(nodes, total) if nodes else "the whole cluster")


def _nodes(nodes: Sequence[str], total: int) -> str:
    if len(nodes) == total and total > NAMED:
        return f"all {total} nodes"
    names = ", ".join(nodes[:NAMED])
    return f"{len(nodes)} of {count(total, 'node')}: {names}" + (
        f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
    )


def _counts(report: Report, rows: Sequence[Line]) -> str:
    modes: dict[str, int] = {}
    for row in rows:
        mode, where = row.cells[3:5]
        if mode == "-":
            mode = "not known" if where == UNKNOWN else "none seen"
        modes[mode] = modes.get(mode, 0) + 1
    if not rows:
        return "no nodes were seen"
    text = f"{count(len(rows), 'node')} by mode: {', '.join(f'{n} {mode}' for mode, n in sorted(modes.items()))}"
    affected = sum(row.severity not in (None, "notice") for row in rows)
    unknown = modes.get("not known", 0)
    if affected:
        return f"{text}; {affected} with something deprecated or worse"
    if unknown == len(rows):
        return f"{text}; what is deprecated on them cannot be told"
    return f"{text}; nothing deprecated or worse on {'the others' if unknown else 'them'}"
