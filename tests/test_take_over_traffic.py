"""`run --take-over` under traffic: from kube-proxy's rules to ours without a connection lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration import privileges
from integration.agent import Agent
from integration.topology import Bed
from integration.traffic import until
from tests import takeover
from tests.dataplanes import DATA, needs
from tests.takeover import Traffic

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root"),
    needs("iptables-nft-restore", "nft"),
]
CONNECTIONS = 300
"""New ones of each way before the switch, and after it."""


@pytest.fixture
def bed() -> Iterator[Bed]:
    privileges.acquire()
    with Bed() as it:
        yield it


def switched(bed: Bed, directory: Path) -> tuple[Traffic, dict[str, Any]]:
    """Start the agent amid the traffic; what it logged of it."""
    with Traffic(bed) as traffic:
        assert until(lambda: traffic.count > CONNECTIONS, 60)
        agent = takeover.start_agent(bed, directory, "--take-over")
        done = agent.wait("took_over", timeout=60)
        so_far = traffic.count
        assert until(lambda: traffic.count > so_far + CONNECTIONS, 60)
    agent.check()
    assert not [line.text for line in agent.log() if line.is_error()]
    return traffic, done


def judge(traffic: Traffic) -> None:
    assert traffic.failures() == []
    assert [each.broken for each in traffic.old] == [[]] * len(traffic.old)
    assert all(each.lines for each in traffic.old)


def left(bed: Bed) -> list[str]:
    node = bed.node.namespace
    rules = node.run(["nft", "-s", "list", "ruleset"]).stdout + node.run(["iptables-legacy-save"]).stdout
    return [line for line in rules.splitlines() if "KUBE-" in line or "table ip kube-proxy {" in line]


@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_from_iptables(bed: Bed, tmp_path: Path, variant: str) -> None:
    takeover.restore_iptables(bed, "iptables", variant)
    takeover.works(bed)
    assert len(left(bed)) > 100
    traffic, done = switched(bed, tmp_path)
    judge(traffic)
    assert left(bed) == []
    assert (done["chains"], done["rules"], done["failed"]) == (90, 28, 0)


def test_from_nftables(bed: Bed, tmp_path: Path) -> None:
    bed.node.namespace.run(["nft", "-f", str(DATA / "nftables" / "nft-ruleset.txt")])
    takeover.works(bed)
    assert left(bed)
    traffic, done = switched(bed, tmp_path)
    judge(traffic)
    assert left(bed) == []
    assert (done["tables"], done["failed"]) == (2, 0)


def test_it_waits_for_kube_proxys_end(bed: Bed, tmp_path: Path) -> None:
    takeover.restore_iptables(bed, "iptables", "nft")
    program = tmp_path / "kube-proxy"
    program.symlink_to("/bin/sleep")
    kube_proxy = bed.node.namespace.popen([str(program), "600"])
    before = left(bed)
    agent = takeover.start_agent(bed, tmp_path, "--take-over")
    waits = agent.wait("take_over_waits", timeout=30)
    assert [kube_proxy.pid == int(words.split()[1]) for words in waits["for_end_of"]] == [True]
    assert left(bed) == before
    kube_proxy.kill()
    kube_proxy.wait()
    assert agent.wait("took_over", timeout=30)["failed"] == 0
    assert left(bed) == []


def test_without_the_option_nothing_is_taken_over(bed: Bed, tmp_path: Path) -> None:
    takeover.restore_iptables(bed, "iptables", "nft")
    before = left(bed)
    agent: Agent = takeover.start_agent(bed, tmp_path)
    agent.wait("programmed", timeout=30)
    agent.stop()
    assert left(bed) == before
    assert not [line for line in agent.log() if "take" in line.event or "took" in line.event]
