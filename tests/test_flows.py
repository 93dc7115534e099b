"""Recorded flows, one test a case: what upstream kube-proxy's rules did with real packets, ours must do, too."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from integration import flows, privileges
from integration.cluster import Clusters
from integration.flows import Case, Flow, Outcome, difference
from integration.topology import Bed
from integration.traffic import Answer

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`"),
]

CASES: Final = [flows.load(path) for path in sorted((Path(__file__).parent / "data/flows").glob("*.json"))]

TESTED: Final = sorted(CASES, key=lambda case: case.agent)  # those that share an agent together


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    privileges.acquire()
    with Bed() as bed:
        yield Clusters(bed, tmp_path_factory.mktemp("clusters"))


@pytest.mark.parametrize("case", TESTED, ids=lambda case: case.name)
def test_flows_go_where_they_were_recorded_to_go(clusters: Clusters, case: Case) -> None:
    differences = flows.run(clusters.get(case.config, case.node_labels), case)
    assert not differences, "\n".join(["", *differences])


def test_all_at_once_next_to_5000_other_services(clusters: Clusters) -> None:
    """Every case of the usual configuration, each with names, NodePorts and external addresses of its own."""
    usual = [case for case in CASES if not case.config and not case.node_labels]
    alone = [flows.set_apart(case, number) for number, case in enumerate(usual)]
    cluster = clusters.get()
    items = [obj for number in range(5000) for obj in flows.bystander(number)]
    cluster.put({"apiVersion": "v1", "kind": "List", "metadata": {"name": "bystanders"}, "items": items})
    try:
        for case in alone:
            cluster.put(*case.steps[0].objects)
        differences = [why for case in alone for why in flows.run(cluster, case, keep=True)]
    finally:
        cluster.clear()
        cluster.delete("List", "bystanders")
        cluster.settle()
    assert len(alone) > 30
    assert not differences, "\n".join(["", *differences])


def test_all_that_was_recorded_is_tested() -> None:
    assert len(CASES) == len({case.name for case in CASES}) == 42


class Asked:
    """In place of connections: who answers the first, the second … "": nobody does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: Iterator[str]) -> None:
        self.count = 0
        self._answers = answers
        monkeypatch.setattr(flows, "_host", lambda bed, name: None)
        monkeypatch.setattr(flows, "ask", self._ask)

    def _ask(self, *_: object, **__: object) -> Answer:
        self.count += 1
        if not (endpoint := next(self._answers)):
            raise TimeoutError
        return Answer(endpoint, "192.0.2.1", "192.0.2.1")


@pytest.mark.parametrize(
    ("answers", "count", "reach", "fails"),
    [
        (itertools.cycle("abcd"), flows.LEAST, "a b c d", ""),
        (itertools.chain("abc" * flows.LEAST, "d"), 3 * flows.LEAST + 1, "a b c d", ""),
        (itertools.cycle("abc"), flows.MOST, "a b c", ""),
        (itertools.chain("abc" * flows.LEAST, [""]), 3 * flows.LEAST + 1, "a b c", "dropped"),
        (itertools.repeat(""), 2, "", "dropped"),
    ],
)
def test_a_flow_ends_when_all_have_answered_and_not_by_chance(
    monkeypatch: pytest.MonkeyPatch, answers: Iterator[str], count: int, reach: str, fails: str
) -> None:
    asked = Asked(monkeypatch, answers)
    flow = Flow("external", "192.0.2.9", 80, "UDP", outcome("a b c d", "preserved"))
    found = flows.observe(None, flow)  # type: ignore[arg-type]
    assert (asked.count, found.reach, found.fails) == (count, frozenset(reach.split()), frozenset(fails.split()))


def outcome(reach: str = "", source: str = "", fails: str = "") -> Outcome:
    return Outcome(frozenset(reach.split()), frozenset(source.split()), frozenset(fails.split()))


@pytest.mark.parametrize(
    ("expected", "got", "sticky", "why"),
    [
        (outcome("a b", "preserved"), outcome("b a", "preserved"), None, ""),
        (outcome("a b", "preserved"), outcome("a", "preserved"), None, "reached a, not a, b"),
        (outcome("a", "preserved"), outcome("a", "preserved masqueraded"), None, "source masqueraded, preserved, not"),
        (outcome("a", "preserved"), outcome("a", "preserved", "dropped"), None, "fails dropped, not nothing"),
        (outcome(fails="rejected"), outcome(fails="dropped"), None, "fails dropped, not rejected"),
        (outcome(fails="rejected"), outcome(fails="blocked"), None, ""),
        (outcome(fails="blocked"), outcome("a", "preserved"), None, "fails nothing, not blocked"),
        (outcome("a", "preserved"), outcome("b", "preserved"), {"a", "b"}, ""),
        (outcome("a", "preserved"), outcome("a b", "preserved"), {"a", "b"}, "reached a, b, not 1 of a, b"),
        (outcome("a", "preserved"), outcome("c", "preserved"), {"a", "b"}, "reached c, not 1 of a, b"),
    ],
)
def test_outcomes_are_compared(expected: Outcome, got: Outcome, sticky: set[str] | None, why: str) -> None:
    said = difference(expected, got, sticky)
    assert said.startswith(why)
    assert bool(said) is bool(why)
