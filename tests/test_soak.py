"""An agent under changes without end stays as it is; a short form of bench.soak, and its verdict."""

from __future__ import annotations

import os

import pytest

from bench.soak import Look, Outcome, Sample, soak
from integration import privileges

SECONDS = 15.0


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`")
def test_memory_descriptors_chains_and_rules_stay_as_they_are() -> None:
    privileges.acquire()
    outcome = soak(SECONDS, services=200, rate=200, sample_every=0.25, look_every=4)
    assert outcome.faults() == [], outcome.report()
    assert outcome.changes > 100
    assert len(outcome.looks) > 1


def outcome(
    memory: tuple[float, float] = (100, 100),
    descriptors: tuple[int, int] = (20, 20),
    chains: tuple[int, int] = (200, 200),
    sets: tuple[int, int] = (90, 90),
    differences: tuple[str, ...] = (),
    troubles: tuple[str, ...] = (),
) -> Outcome:
    """What was measured in the first half of the time, and in the second."""
    warming = [Sample(0.0, 1.0, 9), Sample(19.9, 1.0, 9)]
    samples = [Sample(20.0 + i, memory[i > 40], descriptors[i > 40]) for i in range(80)]
    looks = [Look(50.0 * i, chains[i], sets[i], 1000, list(differences)) for i in range(2)]
    return Outcome(10, 100.0, 1000, warming + samples, looks, list(troubles))


def test_all_is_well() -> None:
    assert outcome().faults() == []
    assert outcome(memory=(100, 104)).faults() == []
    assert outcome(descriptors=(20, 19)).faults() == []
    assert outcome().report().endswith("all is well")


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (outcome(memory=(100, 106)), "memory changed by +6.0%"),
        (outcome(memory=(100, 94)), "memory changed by -6.0%"),
        (outcome(descriptors=(20, 21)), "descriptors: 20 at first, 21 in the end"),
        (outcome(chains=(200, 201)), "chains 200 and sets 90 at first, 201 and 90 in the end"),
        (outcome(sets=(90, 91)), "chains 200 and sets 90 at first, 200 and 91 in the end"),
        (outcome(differences=("ip a: b",)), "audit at 0 s: ip a: b"),
        (outcome(troubles=("unexpected_failure",)), "unexpected_failure"),
    ],
)
def test_what_is_no_good_is_named(bad: Outcome, what: str) -> None:
    assert what in bad.faults()
    assert f"NOT AS IT SHOULD BE: {what}" in bad.report()
