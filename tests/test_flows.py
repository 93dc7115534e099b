"""Recorded flows, one test a case: what upstream kube-proxy's rules did with real packets, ours must do, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from integration import flows, privileges
from integration.cluster import Cluster
from integration.flows import Case, Flow, Outcome, difference
from integration.topology import Bed

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`"),
]

CASES: Final = [flows.load(path) for path in sorted((Path(__file__).parent / "data/flows").glob("*.json"))]
PENDING: Final[frozenset[str]] = frozenset()


class Clusters:
    """One bed, and one agent at a time: the one of the last case, for as long as the next cases can share it."""

    def __init__(self, bed: Bed, factory: pytest.TempPathFactory) -> None:
        self._bed, self._factory = bed, factory
        self._current: Cluster | None = None
        self._agent = ""

    def of(self, case: Case) -> Cluster:
        if self._current is None or self._agent != case.agent:
            self.stop()
            self._current = Cluster(self._bed, self._factory.mktemp("cluster"), case.config, case.node_labels)
            self._current.start()
            self._agent = case.agent
        return self._current

    def stop(self) -> None:
        if self._current:
            self._current.stop()
            self._current = None


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    privileges.acquire()
    with Bed() as bed:
        yield Clusters(bed, tmp_path_factory)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name) for case in sorted(CASES, key=lambda c: c.agent) if case.name not in PENDING]
)
def test_flows_go_where_they_were_recorded_to_go(clusters: Clusters, case: Case) -> None:
    assert flows.run(clusters.of(case), case) == []
