"""10,000 Services on Debian's 6.1, where tables cannot outlive their owner: `nft flush ruleset` while connections are made
(make test-vm; docs/faults.md has the numbers). The processor is emulated: how long the agent takes says nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration import privileges
from integration.faults.stage import Stage, by_hand
from integration.faults.traffic import Seen, Traffic
from integration.vm import IN_VM
from rules.objects import Family
from rules.ownership import can_own

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        IN_VM not in os.environ, reason="measures on another kernel, in a virtual machine: make test-vm"
    ),
]
SERVICES, ENDPOINTS = 10_000, 1
PATIENCE = 900.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    privileges.acquire()
    with Stage(Path(tmp_path_factory.mktemp("stage")), SERVICES, ENDPOINTS) as made:
        made.start(wait=False)
        made.agent.wait("programmed", timeout=PATIENCE)
        made.agent.wait("standby_ready", timeout=PATIENCE)
        yield made


@pytest.mark.parametrize("commands", ["flush ruleset", "delete table T4; delete table T6", "flush chain T4 services"])
def test_others_cost_no_connection(stage: Stage, commands: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert stage.kind() == "standby" and not can_own(stage.kernel, Family.IPV4)
    before = stage.tables()
    assert before and len(before[Family.IPV4].sets["cluster-ips"].elements) > SERVICES
    mark = stage.agent.mark()
    seen = Seen()
    with Traffic(stage, seen):
        struck = stage.nft(by_hand(commands))
        stage.agent.wait("tables_mended", since=mark, timeout=PATIENCE)
        mended = time.monotonic() - struck
    with capsys.disabled():
        print(
            f"\n{commands}, {SERVICES:,} Services on {os.uname().release}: {seen.failed} of {seen.attempts:,} connections"
            f" failed, {len(seen.broken)} that lasted; none took longer than {seen.longest:.0f} ms;"
            f" our own tables were there again after {mended:.1f} s"
        )
    assert stage.tables() == before
    assert seen.attempts > 10 and not seen.broken
    assert not seen.failed, seen
