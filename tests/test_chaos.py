"""An API server that misbehaves while objects change; and that the judge of it all finds agents with a fault."""

from __future__ import annotations

import os
import random
import sys

import pytest

from integration import privileges
from integration.chaos.judge import Violation
from integration.chaos.run import run
from tests.chaos_mutants import MUTANTS

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`"),
]

SECONDS = 20.0
LONGEST = 120.0  # a fault is found within seconds, most often


@pytest.fixture(autouse=True)
def _privileges() -> None:
    privileges.acquire()


@pytest.mark.slow
def test_the_kernel_only_ever_holds_what_some_moment_allowed_and_what_is_true_in_the_end() -> None:
    """What fails says its seed: python -m integration.chaos --seconds 20 --seed N"""
    outcome = run(SECONDS, random.randrange(1 << 32))
    assert outcome.commits > 10, outcome
    assert sum(outcome.faults.values()) > 20, outcome


@pytest.mark.parametrize("name", MUTANTS)
def test_an_agent_with_a_fault_is_found_out(name: str) -> None:
    mutant = MUTANTS[name]
    command = [sys.executable, "-m", "tests.chaos_mutants", name]
    with pytest.raises(Violation, match=rf"^seed {mutant.seed}: ") as found:
        run(LONGEST, mutant.seed, command, [mutant.provoked_by], mutant.every)
    assert "the agent said" not in str(found.value)
    if name in ("back in time", "takes any list"):
        assert "back in time" in str(found.value)
