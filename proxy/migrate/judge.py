"""From a node's facts to the report. Pure: the same facts give the same report, wherever it is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from proxy.migrate import checks, checks_rules, ours
from proxy.migrate.case import Case
from proxy.migrate.compare import WORST_FIRST, Comparison, compare, is_blind
from proxy.migrate.facts import Facts
from proxy.migrate.ours import Ours
from proxy.migrate.plan import plan
from proxy.migrate.report import EXIT_CODES, Counts, Finding, Gap, Present, Proof, Report
from proxy.migrate.verdict import verdict
from proxy.migrate.wording import many
from proxy.unread import PLURAL, Unread
from rules.objects import Family


def report(facts: Facts, proof: Proof, made: Ours | None = None) -> Report:
    """proof: what the kernel said to `ours.operations(made)`. made: ours.read(facts), where that is there already."""
    made = made or ours.read(facts)
    comparison = compare(facts, made)
    found = checks.findings(Case(facts, made, comparison, proof))
    seen = facts.here.is_this_node and not checks_rules.unread_parts(facts)
    missing = made.unread & frozenset(PLURAL)
    decided, reasons = verdict(found, missing, compared=comparison.compared, seen=seen)
    mode = facts.present.mode or comparison.mode
    return Report(
        decided,
        EXIT_CODES[decided],
        reasons,
        facts.node,
        facts.made,
        facts.made_by,
        facts.cluster_version,
        facts.source,
        _present(facts, mode),
        comparison.compared,
        _counts(made, comparison, found),
        proof,
        tuple(found),
        comparison.rows,
        plan(facts.here.platform, mode, found),
        _gaps(facts, comparison),
    )


def _present(facts: Facts, mode: str) -> Present:
    present = facts.present
    dataplanes = tuple(dataplane.mode for dataplane in facts.dataplanes if not is_blind(dataplane))
    return Present(mode, present.mode_is_set, present.version, present.source, dataplanes)


def _counts(made: Ours, comparison: Comparison, found: Sequence[Finding]) -> Counts:
    results = Counter(row.result for row in comparison.rows)
    severities = Counter(finding.severity for finding in found)
    endpoints: dict[tuple[str, int, Family], int] = {}
    for port in made.ports.values():
        one = port.name, port.key[-8], port.family
        endpoints[one] = max(endpoints.get(one, 0), len(port.endpoints))
    ports = {(name, protocol) for name, protocol, _ in endpoints}
    return Counts(
        len(comparison.rows),
        len(ports),
        sum(endpoints.values()),
        sum(len(row.entries) for row in comparison.rows),
        {result: results[result] for result in reversed(WORST_FIRST)},
        {severity: severities[severity] for severity in checks.SEVERITIES},
    )


def _gaps(facts: Facts, comparison: Comparison) -> tuple[Gap, ...]:
    unread: list[Unread] = list(facts.unread)
    for dataplane in facts.dataplanes:
        unread += dataplane.unread
    gaps = [Gap(one.what, one.cause, one.remedy) for one in dict.fromkeys(unread)]
    if comparison.unknown:
        gaps.append(
            Gap(
                f"{many(comparison.unknown, 'address')} of Services",
                f"not among the rules of {comparison.mode} mode that were read; they may be in the part that was not",
                "read that part, too, and run this again",
            )
        )
    return tuple(gaps)
