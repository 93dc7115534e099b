"""A short hunt with a fixed seed through all that reads other people's bytes, and whether the hunt finds anything at all.

`make fuzz` hunts for longer, and elsewhere each time.
"""

from __future__ import annotations

import json
import os
import random
import re
import struct
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.agent import Agent
from proxy.events import Inbox
from proxy.settings import Settings
from proxy.state import State
from rules.adopt import Adopted, adopt
from rules.kernel import Kernel
from rules.layout import LAYOUTS, Options
from rules.netlink import GETTABLE, NLMSG_DONE, message, messages
from rules.objects import Family
from tests.fuzz import attributes, hunt, on_tables, trees
from tests.fuzz.corpus import replies
from tests.fuzz.found import FOUND
from tests.fuzz.hunt import Target, attempt, inputs
from tests.fuzz.limits import ADDRESS_SPACE
from tests.fuzz.on_netlink import _kernel
from tests.fuzz.scene import NODE, events
from tests.fuzz.targets import TARGETS
from tests.netns import Namespace

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


# -- What nobody's fuzzer does, but people do by hand: with the kernel -------------------------------------------------

TABLE = "ip kube-proxy-nft"
BY_HAND = {
    "a set that is looked up the other way round": "replace rule {table} services handle {services} "
    "ip daddr != @cluster-ips goto cluster-ip",
    "a jump that was a goto": "delete element {table} round-robin {{ {turn} }}; "
    "add element {table} round-robin {{ {turn} : jump {chain} }}",
}


@pytest.mark.parametrize("command", BY_HAND.values(), ids=BY_HAND)
def test_what_looks_alike_and_does_something_else_is_undone(namespace: Namespace, command: str) -> None:
    kernel = namespace.kernel
    Agent(State(NODE), kernel, Inbox()).handle(events())
    assert not taken_over(kernel).operations
    handle = re.search(
        r"@cluster-ips .* # handle (\d+)", namespace.nft("-a", "list", "chain", *TABLE.split(), "services")
    )
    turn = re.search(
        r"(\S+ \. tcp \. 80) : goto (\S+?),? ", namespace.nft("list", "map", *TABLE.split(), "round-robin")
    )
    assert handle and turn
    namespace.nft("-f", "-", stdin=command.format(table=TABLE, services=handle[1], turn=turn[1], chain=turn[2]))
    kernel.commit(taken_over(kernel).operations)
    assert "!=" not in namespace.nft("list", "chain", *TABLE.split(), "services")
    assert "jump" not in namespace.nft("list", "map", *TABLE.split(), "round-robin")


def taken_over(kernel: Kernel) -> Adopted:
    family, known = Family.IPV4, on_tables.world().state
    table = kernel.dump(LAYOUTS[family].table)
    wanted = {key: port for key, port in known.everything().items() if port and port.family is family}
    addresses = Settings().nodeport_ips(known.node, ())[family]
    taken = table and adopt(family, table, Options(), known.service_cidrs, wanted, addresses)
    assert taken
    return taken


def test_a_catch_all_element_neither_stops_nor_survives(namespace: Namespace) -> None:
    kernel = namespace.kernel
    Agent(State(NODE), kernel, Inbox()).handle(events())
    namespace.nft("add", "element", *TABLE.split(), "cluster-ips", "{ * }")
    Agent(State(NODE), kernel, Inbox()).handle(events())
    assert "*" not in namespace.nft("list", "set", *TABLE.split(), "cluster-ips")


def test_who_stops_reading_early_waits_for_nothing_that_has_come() -> None:
    reply, done = (struct.pack("=IHHII", 20, kind, 2, 1, 0) + bytes(4) for kind in (10 << 8, NLMSG_DONE))
    kernel = _kernel(reply + done)
    replies = kernel._ask(message(GETTABLE, 0, 1, 2, b""))
    kernel._sequence = 1
    assert next(replies).kind == 10 << 8
    replies.close()  # type: ignore[attr-defined]  # would find that there is nothing more to receive


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
        for one in messages(damaged):
            list(attributes.parse(bytes(one.body[4:])))
    assert changed > 400


def test_damaged_documents_are_documents() -> None:
    corpus = [b'{"a": [1, {"b": "c"}], "d": null}', b'[{"x": "10.0.0.1"}]']
    rand = random.Random(SEED)
    changed = {trees.JSON(rand, rand.choice(corpus), corpus) for _ in range(500)}
    assert len(changed) > 300
    for data in changed:
        json.loads(data.decode(errors="surrogatepass"))
