"""A short hunt with a fixed seed through all that reads other people's bytes, and whether the hunt finds anything at all.

`make fuzz` hunts for longer, and elsewhere each time.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rules.netlink import messages
from rules.objects import Family
from tests.fuzz import attributes, hunt, on_tables, trees
from tests.fuzz.corpus import replies
from tests.fuzz.found import FOUND
from tests.fuzz.hunt import Target, attempt, inputs
from tests.fuzz.limits import ADDRESS_SPACE
from tests.fuzz.targets import TARGETS

SEED = 0
BY_NAME = {target.name: target for target in TARGETS}


@pytest.fixture(scope="module")
def slice_of_all() -> dict[str, Any]:
    """By target: what a short hunt found. One process for all, so that its libraries are loaded once."""
    command = [sys.executable, "-m", "tests.fuzz", "--short", "--json", "--seed", str(SEED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=Path(__file__).parents[1])
    assert done.returncode in (0, 1), done.stderr
    return {found["target"]: found for found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_short_hunt_finds_nothing(slice_of_all: dict[str, Any], name: str) -> None:
    found = slice_of_all[name]
    assert found["inputs"] >= BY_NAME[name].inputs
    told = [f"{f['where']}\ninput: {b64decode(f['data'])[:500]!r}\n{f['trace']}" for f in found["failures"]]
    assert not told, "\n\n".join(told)


@pytest.mark.parametrize(
    ("name", "data"), [pytest.param(name, data, id=f"{name}-{what}") for name, what, data in FOUND]
)
def test_what_was_found_once(name: str, data: bytes) -> None:
    assert attempt(BY_NAME[name], data) is None


# -- Tables, where Hypothesis makes a failure small --------------------------------------------------------------------

STEPS = st.lists(
    st.builds(
        on_tables.Step,
        st.integers(0, on_tables.KINDS_OF_MENDABLE - 1),
        st.integers(0, 100),
        st.integers(0, 1000),
        st.integers(0, 100_000),
    ),
    max_size=8,
)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(Family), STEPS)
def test_elements_and_rules_are_mended_whatever_happened_to_them(family: Family, steps: list[on_tables.Step]) -> None:
    assert on_tables.check(on_tables.world(), family, steps)


# -- The hunt itself ---------------------------------------------------------------------------------------------------


def planted(check: Callable[[bytes], object]) -> Target:
    return Target("planted", lambda: [b"a good one", b"one that is no worse"], check, (b"<bad>",))


def hunted(check: Callable[[bytes], object], count: int = 300) -> list[hunt.Failure]:
    return hunt.hunt(planted(check), SEED, count=count).failures


def crash(data: bytes) -> None:
    if b"<bad>" in data:
        raise KeyError(data)


def loop(data: bytes) -> None:
    while b"<bad>" in data:
        try:
            raise ValueError
        except Exception:
            pass


def bomb(data: bytes) -> None:
    if b"<bad>" in data:
        try:
            assert len(bytearray(100 << 20).strip(b"x"))
        except MemoryError:
            pass


def huge(data: bytes) -> None:
    if b"<bad>" in data:
        bytes(2 * ADDRESS_SPACE)


def test_an_exception_is_found_and_its_input_made_small() -> None:
    [failure] = hunted(crash)
    assert failure.data == b"<bad>"
    assert failure.where.startswith("KeyError at tests/test_fuzz.py:")
    assert "raise KeyError(data)" in failure.trace


def test_an_endless_loop_is_found_whatever_it_catches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunt, "CPU_SECONDS", 0.2)
    monkeypatch.setattr(hunt, "SHRINK_SECONDS", 1.0)
    [failure] = hunted(loop)
    assert b"<bad>" in failure.data
    assert failure.where == "OverLimit in tests/test_fuzz.py"


def test_memory_is_found_even_if_it_is_given_back() -> None:
    [failure] = hunted(bomb)
    assert failure.data == b"<bad>"
    assert "OverLimit" in failure.where


def test_more_memory_than_there_is_to_be_is_refused() -> None:
    [failure] = hunted(huge)
    assert failure.where.startswith("MemoryError")


def test_the_end_of_the_process_is_found() -> None:
    [failure] = hunted(lambda data: b"<bad>" in data and os.abort())
    assert failure.where == "ended by SIGABRT"
    assert b"<bad>" in failure.data


def test_an_input_that_never_returns_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunt, "SILENCE", 1.0)
    reading, writing = os.pipe()
    [failure] = hunted(lambda data: b"<bad>" in data and os.read(reading, 1))
    os.close(reading)
    os.close(writing)
    assert failure.where == "a hang for 1 s"
    assert b"<bad>" in failure.data


def test_the_same_seed_gives_the_same_inputs() -> None:
    def first(seed: int) -> list[bytes]:
        return [data for data, _ in zip(inputs(planted(crash), seed), range(300), strict=False)]

    assert first(1) == first(1)
    assert first(1) != first(2)
    assert first(1)[:2] == [b"a good one", b"one that is no worse"]
    assert len(set(first(1))) > 200


def test_a_hunt_from_the_command_line_can_be_repeated(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "duration", "--inputs", "20", "--seed", "3", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    assert "26 inputs" in done.stdout and "seed 3" in done.stdout
    bad = tmp_path / "bad"
    bad.write_bytes(b"1h")
    command = [sys.executable, "-m", "tests.fuzz", "duration", "--input", str(bad)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[1])
    assert (done.returncode, done.stdout) == (0, "it is in order\n")


# -- What knows the structure does not destroy it ----------------------------------------------------------------------


def test_damaged_attributes_have_true_lengths() -> None:
    corpus = replies("nftables", 9)[:20]
    rand = random.Random(SEED)
    mutate = attributes.mutation(4)
    changed = 0
    for _ in range(500):
        data = rand.choice(corpus)
        damaged = mutate(rand, data, corpus)
        changed += damaged != data
        for message in messages(damaged):
            list(attributes.parse(bytes(message.body[4:])))
    assert changed > 400


def test_damaged_documents_are_documents() -> None:
    corpus = [b'{"a": [1, {"b": "c"}], "d": null}', b'[{"x": "10.0.0.1"}]']
    rand = random.Random(SEED)
    changed = {trees.JSON(rand, rand.choice(corpus), corpus) for _ in range(500)}
    assert len(changed) > 300
    for data in changed:
        json.loads(data.decode(errors="surrogatepass"))
