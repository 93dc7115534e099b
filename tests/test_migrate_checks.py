"""Each check: what makes it speak, and the nearest case in which it is silent."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from docs import generate_migrate_checks
from proxy.detect.evidence import IpvsTable, ServedMode
from proxy.migrate import checks, ours
from proxy.migrate.case import Case
from proxy.migrate.compare import compare
from proxy.migrate.facts import NodeFacts
from proxy.migrate.report import Proof
from proxy.services import IPVS_SCHEDULERS
from proxy.unread import Unread
from tests.migrate_cases import (
    ACCEPTED,
    FILE,
    NODE_PORT,
    PLACE,
    WEB,
    Row,
    all_text,
    another,
    balanced,
    findings_of,
    running,
)
from tests.migrate_facts import facts, live
from tests.migrate_rows_node import NODE_ROWS
from tests.migrate_rows_rules import RULE_ROWS
from tests.migrate_rows_services import SERVICE_ROWS
from tests.objects import endpoint_slice, service

ROWS = [*NODE_ROWS, *RULE_ROWS, *SERVICE_ROWS]


@pytest.mark.parametrize("row", ROWS, ids=[f"{i}-{row.check}-{row.severity}" for i, row in enumerate(ROWS)])
def test_a_check_fires_where_it_should_and_nowhere_else(row: Row) -> None:
    fired = [f for f in findings_of(row.fires()) if f.check == row.check and f.severity == row.severity]
    assert fired, [f.check for f in findings_of(row.fires())]
    assert any(row.words in all_text(finding) for finding in fired), all_text(fired[0])
    silent = [f for f in findings_of(row.silent()) if f.check == row.check and f.severity == row.severity]
    assert not silent, silent


def test_every_check_is_tried() -> None:
    tried = {(row.check, row.severity) for row in ROWS}
    tried |= {("proof", "blocker"), ("rules-unread", "change"), ("no-rules", "change"), ("forward-filter", "info")}
    known = {name for check in checks.CHECKS for name in check.identifiers}
    assert known - {check for check, _ in tried} <= {  # the detector's, which its own tests try
        "mode-unknown", "ipvs-gate", "modes-differ", "ipvs-servers", "ipvs-leftover", "iptables-leftover",
    }  # fmt: skip
    assert {check for check, _ in tried} <= known


@pytest.mark.parametrize("row", ROWS, ids=[str(i) for i, _ in enumerate(ROWS)])
def test_findings_are_as_the_table_of_checks_says(row: Row) -> None:
    made = row.fires()
    read = ours.read(made)
    case = Case(made, read, compare(made, read), ACCEPTED)
    for check in checks.CHECKS:
        for finding in check.run(case):
            assert finding.check in check.identifiers
            assert finding.severity in check.severities, finding
            assert finding.title and finding.why and finding.remedy
            assert finding.count == len(finding.objects) or finding.count > len(finding.objects) == 1000
            assert not re.search(r"  |\.\.|;\s*$", all_text(finding)), finding


def test_a_refused_proof_blocks() -> None:
    proof = Proof("refused", "ENOENT: set cluster-ip-ports")
    found = [f for f in findings_of(facts(*WEB), proof) if f.check == "proof"]
    assert [f.severity for f in found] == ["blocker"] and "ENOENT" in found[0].why
    (one,) = [f for f in findings_of(facts(*WEB), Proof("not-tried", "no namespaces")) if f.check == "proof"]
    assert one.severity == "change" and "no namespaces" in one.why
    assert not [f for f in findings_of(facts(*WEB)) if f.check == "proof"]


def test_the_worst_comes_first_and_objects_are_bounded() -> None:
    many = [service(f"s{i}", f"10.96.{i // 250}.{i % 250 + 1}", externalIPs=["nonsense"]) for i in range(1100)]
    found = findings_of(facts(*many, mode="ipvs", here=NodeFacts(kernel="4.19")))
    severities = [checks.SEVERITIES.index(f.severity) for f in found]
    assert severities == sorted(severities) and found[0].check == "kernel"
    left_out = next(f for f in found if f.check == "objects-left-out")
    assert (len(left_out.objects), left_out.count) == (1000, 1100)


def test_every_scheduler_of_ipvs_has_its_words() -> None:
    for scheduler in (*IPVS_SCHEDULERS, "sh"):
        made = running(*WEB, scheduler=scheduler, config={"ipvs": {"scheduler": scheduler}})
        (one,) = [f for f in findings_of(made) if f.check == "ipvs-scheduler"]
        assert one.severity == "change" and scheduler in one.title


def test_taking_turns_is_told_beside_another_scheduler() -> None:
    made = running(
        *WEB, *NODE_PORT, change=lambda e: replace(e, scheduler="lc") if e.name.startswith("default/web") else e
    )
    found = [f for f in findings_of(made) if f.check == "ipvs-scheduler"]
    assert [f.severity for f in found] == ["change", "info"] and "1 service port uses lc" in found[0].why
    assert "service ports" in found[1].title


def test_a_timeline_is_told_once_and_in_sentences() -> None:
    servers = IpvsTable(place=PLACE, services=3, destinations=3, schedulers={"rr": 3}, kube=3)
    made = running(*WEB, evidence=(servers,), version="")
    made.cluster_version = ""
    (found,) = [f for f in findings_of(made) if f.check == "ipvs-mode"]
    assert found.title[0].isupper()
    assert max(Counter(re.findall(r"1\.\d\d\b", found.why)).values()) == 1, found.why


def test_a_proxy_that_is_not_known_makes_no_claims() -> None:
    """Only objects, from a workstation: nothing of a mode, a node or live rules."""
    made = facts(*WEB, *NODE_PORT, here=NodeFacts(is_this_node=False))
    assert {f.check for f in findings_of(made)} == {"elsewhere"}


def test_unread_ipsets_are_no_finding() -> None:
    made = running(balanced(loadBalancerSourceRanges=["10.0.0.0/8"]), endpoint_slice("lb", "10.244.0.4"))
    blind = tuple(replace(e, sources=None, keeps_source=None) for e in made.dataplanes[0].entries)
    made.dataplanes = (replace(made.dataplanes[0], entries=blind, unread=(Unread("ipsets", "no permission"),)),)
    assert not [f for f in findings_of(made) if f.check in ("stale-rules", "source-ranges")]


def test_the_detector_is_not_repeated() -> None:
    """Leftovers and two modes at once are told by the rules, where they were read."""
    servers = IpvsTable(place=PLACE, services=3, destinations=3, schedulers={"rr": 3}, kube=3)
    made = running(*WEB, mode="iptables", evidence=(ServedMode(place=FILE, mode="iptables"), servers))
    assert [f.check for f in findings_of(made) if "leftover" in f.check] == ["ipvs-leftover"]
    made = another(made, live(facts(*WEB), "ipvs"))
    assert [f.check for f in findings_of(made) if "leftover" in f.check or f.check == "two-dataplanes"] == [
        "two-dataplanes"
    ]


def test_the_documentation_is_current() -> None:
    file = Path(generate_migrate_checks.FILE)
    text = file.read_text(encoding="utf-8")
    assert generate_migrate_checks.current(text) == text, "run python -m docs.generate_migrate_checks"


def test_node_ports_at_one_address_only_are_no_news() -> None:
    made = running(*NODE_PORT, mode="iptables", all_addresses=True)
    assert not [f for f in findings_of(made) if f.check == "nodeport-addresses"]
