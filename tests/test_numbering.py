"""Numbers of endpoints: few change, none is missing, and with session affinity no client of a living endpoint moves."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rules.numbering import Slots, dense, place, place_sticky

ENDPOINTS = st.lists(st.integers(0, 30).map(lambda i: bytes([i])), unique=True, max_size=20)
HISTORIES = st.lists(ENDPOINTS, min_size=1, max_size=12)


@given(HISTORIES)
@settings(max_examples=500)
def test_numbers_have_no_gaps_and_change_no_more_than_they_must(history: list[list[bytes]]) -> None:
    slots: Slots = ()
    for wanted in history:
        before, slots = slots, place(slots, wanted)
        assert sorted(e for e in slots if e) == sorted(wanted)
        changed = sum(a != b for a, b in zip(before, slots, strict=False)) + abs(len(before) - len(slots))
        gone, new = len(set(before) - set(wanted)), len(set(wanted) - set(before))
        assert changed <= max(gone, new) + max(0, gone - new)


@given(HISTORIES)
@settings(max_examples=500)
def test_a_ticket_leads_to_its_endpoint_for_as_long_as_that_lives(history: list[list[bytes]]) -> None:
    slots: Slots = ()
    for wanted in history:
        before, slots = slots, place_sticky(slots, wanted)
        for number, endpoint in enumerate(before):
            if endpoint in wanted:
                assert slots[number] == endpoint
        assert {e for e in slots if e} == set(wanted)
        assert set(slots[: dense(slots)]) == set(wanted)


@given(HISTORIES)
@settings(max_examples=500)
def test_numbers_stay_low(history: list[list[bytes]]) -> None:
    """About two numbers an endpoint, however long the history: so nobody gets much more than a share."""
    slots: Slots = ()
    for wanted in history:
        slots = place_sticky(slots, wanted)
    assert len(slots) <= 2 * max(len(wanted) for wanted in history) + 1


def test_the_last_one_moves_into_the_gap() -> None:
    assert place((b"a", b"b", b"c", b"d"), [b"a", b"c", b"d"]) == (b"a", b"d", b"c")
    assert place_sticky((b"a", b"b", b"c", b"d"), [b"a", b"c", b"d"]) == (b"a", b"d", b"c", b"d")


def test_a_new_one_takes_the_place_of_one_that_goes() -> None:
    assert place((b"a", b"b", b"c"), [b"c", b"x", b"a"]) == (b"a", b"x", b"c")
    assert place_sticky((b"a", b"b", b"c"), [b"c", b"x", b"a"]) == (b"a", b"x", b"c")


def test_who_survives_alone_is_number_0() -> None:
    assert place((b"a", b"b", b"c"), [b"c"]) == (b"c",)
    assert place_sticky((b"a", b"b", b"c"), [b"c"]) == (b"c", None, b"c")
    assert dense((b"c", None, b"c")) == 1
