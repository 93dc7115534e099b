"""Recorded flows, one test a case: what upstream kube-proxy's rules did with real packets, ours must do, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from integration import flows, privileges
from integration.cluster import Clusters
from integration.flows import Case, Flow, Outcome, difference
from integration.topology import Bed

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`"),
]

CASES: Final = [flows.load(path) for path in sorted((Path(__file__).parent / "data/flows").glob("*.json"))]
NODE_ADDRESSES: Final = ("192.168.77.2", "192.168.78.2", "10.244.0.1", "fd77::2", "127.0.0.1")

# What is still to be done. When PENDING is empty and NODE_PORTS_PENDING too, all of what was recorded is tested.
PENDING: Final = frozenset(
    {
        "affinity",
        "detect-local-bridge",
        "external-ips",
        "internal-local-external-cluster",
        "lb-cluster",
        "lb-ipmode-proxy",
        "lb-local",
        "lb-local-without-local",
        "lb-no-nodeports",
        "lb-source-ranges",
        "lb-source-ranges-any",
        "local-terminating-remote-ready",
        "no-endpoints",
        "nodeport-addresses-all",
        "nodeport-addresses-config",
        "nodeport-cluster",
        "nodeport-local-with-local",
        "nodeport-local-without-local",
        "only-terminating",
    }
)
NODE_PORTS_PENDING: Final = frozenset({"dual-stack"})
TESTED: Final = sorted(
    (case for case in CASES if case.name not in PENDING), key=lambda case: case.agent
)  # those that share an agent together


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    privileges.acquire()
    with Bed() as bed:
        yield Clusters(bed, tmp_path_factory.mktemp("clusters"))


@pytest.mark.parametrize("case", TESTED, ids=lambda case: case.name)
def test_flows_go_where_they_were_recorded_to_go(clusters: Clusters, case: Case) -> None:
    def wanted(flow: Flow) -> bool:
        return case.name not in NODE_PORTS_PENDING or flow.to not in NODE_ADDRESSES

    differences = flows.run(clusters.get(case.config, case.node_labels), case, wanted)
    assert not differences, "\n".join(["", *differences])


def test_what_is_pending_was_recorded() -> None:
    assert {case.name for case in CASES} > PENDING | NODE_PORTS_PENDING
    assert len(CASES) == 42


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
