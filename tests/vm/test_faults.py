"""Faults on Debian's 6.1, where tables cannot outlive their owner: what others do is undone, and costs no connection, because a
standby answers (with 10,000 Services: test_standby.py). And a clock that really jumps,
which only a machine of its own may have (make test-vm; numbers: see docs/faults.md)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from integration import privileges
from integration.faults import catalogue
from integration.faults.catalogue import Fault
from integration.faults.stage import Stage
from integration.vm import IN_VM
from rules.objects import Family
from rules.ownership import can_own

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(IN_VM not in os.environ, reason="changes the clock, in a virtual machine: make test-vm"),
]
DAY = 86_400


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    privileges.acquire()
    with Stage(tmp_path_factory.mktemp("stage"), services=20, endpoints=5) as made:
        made.start()
        yield made


def test_tables_have_an_owner_only_where_they_outlive_it(stage: Stage) -> None:
    assert stage.is_owned() is can_own(stage.kernel, Family.IPV4)
    assert stage.has_standby() is not stage.is_owned()


@pytest.mark.parametrize("fault", catalogue.BY_OTHERS, ids=lambda fault: fault.name)
def test_what_others_do_is_undone(stage: Stage, fault: Fault) -> None:
    mark = stage.agent.mark()
    row = catalogue.run(stage, replace(fault, rounds=1))
    assert row.connections > 10
    if not stage.is_owned():
        assert all(row.seconds), row
        assert stage.agent.wait("tables_mended", since=mark)["by"].startswith("nft (pid ")
    assert row.broken == 0, row
    if stage.is_owned() or "affinity" not in fault.name:
        assert row.failed == 0, row


@pytest.mark.parametrize("jump", [DAY, -DAY, 10 * 365 * DAY, -10 * 365 * DAY])
def test_the_machines_clock_jumps(stage: Stage, jump: int) -> None:
    before = time.clock_gettime(time.CLOCK_REALTIME), time.monotonic()
    time.clock_settime(time.CLOCK_REALTIME, before[0] + jump)
    try:
        stage.right_since(stage.change(5))
        stage.right_since(stage.nft("flush ruleset"))
    finally:
        time.clock_settime(time.CLOCK_REALTIME, before[0] + time.monotonic() - before[1])
