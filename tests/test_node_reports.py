"""proxy.node_reports: when the agent speaks up, and in which words."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.node_reports import PATIENCE, NodeReports
from proxy.object_faults import Problem


class Recorder:
    def __init__(self) -> None:
        self.said: list[tuple[str, str, dict[str, Any]]] = []

    def record(self, reason: str, note: str, **more: Any) -> None:
        self.said.append((reason, note, more))

    @property
    def reasons(self) -> list[str]:
        return [reason for reason, _, _ in self.said]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def reports(recorder: Recorder) -> NodeReports:
    return NodeReports(recorder)


def test_the_start_is_told_as_kube_proxy_does(recorder: Recorder, reports: NodeReports) -> None:
    reports.started("0.1.0")
    assert recorder.said == [("Starting", "kube-proxy-nft 0.1.0", {"action": "StartKubeProxy"})]


def test_a_start_that_fails_over_and_over_is_told_once(recorder: Recorder, reports: NodeReports) -> None:
    for _ in range(2):
        reports.start_failed("nftables: this kernel does not have it")
    (first, second) = recorder.said
    assert first == second and first[2]["key"] and first[2]["warning"]


def test_what_is_wrong_with_the_configuration_has_a_key(recorder: Recorder, reports: NodeReports) -> None:
    reports.configured("IPVSDeprecation", "ipvs.scheduler has no effect")
    reports.configured("IPVSDeprecation", "ipvs.strictARP has no effect")
    assert recorder.reasons == ["IPVSDeprecation"] * 2
    assert len({more["key"] for _, _, more in recorder.said}) == 2 and all(m["warning"] for _, _, m in recorder.said)


def test_a_sync_that_fails_for_long_is_told_and_that_it_works_again(recorder: Recorder, reports: NodeReports) -> None:
    for now in (0.0, 0.1, 0.6, 2.6, 12.6, PATIENCE - 0.1):
        reports.sync_failed("EEXIST", now)
    assert recorder.said == []
    reports.sync_failed("EEXIST", PATIENCE)
    reports.sync_failed("EEXIST", 72.6)
    first, second = recorder.said
    assert first == second  # the same words: counted, not told anew
    assert first[0] == "FailedToSyncRules" and first[1].endswith(": EEXIST") and first[2]["warning"]
    reports.sync_works(73.0)
    assert recorder.said[2][:2] == ("SyncRulesRecovered", "The rules in the kernel are up to date again, after 73 s")
    reports.sync_works(74.0)
    assert len(recorder.said) == 3


def test_a_sync_that_fails_for_a_moment_is_not_told(recorder: Recorder, reports: NodeReports) -> None:
    for now in range(0, 1000, 20):
        reports.sync_failed("EEXIST", now)
        reports.sync_works(now + 19)
    assert recorder.said == []


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 100)), max_size=50))
def test_what_has_recovered_had_failed(steps: list[tuple[bool, float]]) -> None:
    recorder, now = Recorder(), 0.0
    reports = NodeReports(recorder)
    for fails, seconds in steps:
        now += seconds
        if fails:
            reports.sync_failed("no", now)
        else:
            reports.sync_works(now)
    told = False
    for reason in recorder.reasons:
        assert reason == "FailedToSyncRules" or told
        told = reason == "FailedToSyncRules"


def _problem(n: int) -> Problem:
    reason = (
        f"10.0.0.{n} TCP port 80 belongs to Service b/old, which is older: give one of them another address or port"
    )
    return Problem("Service", "a", f"new{n:03}", reason)


def test_a_conflict_names_both_services_and_the_address(recorder: Recorder, reports: NodeReports) -> None:
    reports.conflicts([_problem(7)])
    ((reason, note, more),) = recorder.said
    assert reason == "AddressConflict" and more["warning"]
    assert note == "Service a/new007: " + _problem(7).reason


def test_many_conflicts_are_one_event(recorder: Recorder, reports: NodeReports) -> None:
    reports.conflicts([_problem(n) for n in range(200)])
    ((_, note, _),) = recorder.said
    assert note.startswith(
        "200 claims of addresses that other Services have; the log names all. The first: Service a/new000"
    )
    assert "new002" in note and "new003" not in note


def test_the_same_conflicts_are_the_same_words_in_any_order(recorder: Recorder, reports: NodeReports) -> None:
    problems = [_problem(n) for n in range(20)]
    reports.conflicts(problems)
    reports.conflicts(random.Random(1).sample(problems, 20))
    reports.conflicts(problems[:-1])
    assert recorder.said[0] == recorder.said[1] != recorder.said[2]
    assert recorder.said[0][2]["key"] != recorder.said[2][2]["key"]


def test_no_conflict_is_no_event(recorder: Recorder, reports: NodeReports) -> None:
    reports.conflicts([])
    assert recorder.said == []


def test_without_an_api_server_nothing_is_told() -> None:
    reports = NodeReports()
    reports.started("0.1.0")
    reports.sync_failed("no", 0.0)
    reports.sync_works(PATIENCE)
