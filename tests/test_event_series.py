"""proxy.event_series: which Events there are, and how often the server hears of them."""

from __future__ import annotations

import pytest

from proxy.event_series import BURST, COMBINED, FINISH, LIMIT, REFILL, REFRESH, SIMILAR, TOLD
from tests.event_store import BORN, START, Told, what


@pytest.fixture
def told() -> Told:
    return Told()


# -- Series ------------------------------------------------------------------------------------------------------------


def test_the_same_again_is_counted(told: Told) -> None:
    told.happens()
    assert told.ask_all() == ["POST"]
    told.now += 60
    told.happens()
    assert told.ask_all() == ["PATCH"]  # the second time at once
    told.happens(times=10)
    assert told.ask_all() == []  # more of them later
    assert told.events.wake_at() == told.now + FINISH
    assert told.later(FINISH - 1) == []
    assert told.later(1) == ["PATCH"]
    assert told.store.counts == {"": 12}
    assert told.events.wake_at() is None


def test_what_was_counted_before_it_was_told_goes_with_it(told: Told) -> None:
    told.happens(times=3)
    assert told.ask_all() == ["POST"]
    assert told.store.counts == {"": 3}


def test_what_lasts_is_told_every_half_hour(told: Told) -> None:
    told.happens(times=2)
    told.ask_all()
    patches = []
    for _ in range(120):
        told.now += 60
        told.happens()
        patches += [told.now] * len(told.ask_all())
    assert patches == [START + n * REFRESH for n in (1, 2, 3, 4)]
    assert len(told.store.events) == 1 and len(told.events) == 1


def test_after_six_minutes_it_is_a_new_story(told: Told) -> None:
    told.happens()
    assert told.ask_all() == ["POST"]
    assert told.later(FINISH) == []
    told.happens()
    assert told.ask_all() == ["POST"]
    assert len({name for _, name, _ in told.store.requests}) == 2
    assert len(told.events) == 1


def test_other_words_are_another_event(told: Told) -> None:
    told.happens("AddressConflict", "one")
    told.happens("AddressConflict", "two")
    told.happens("SyncFailed", "one")
    told.ask_all()
    assert len(told.store.events) == 3


def test_many_that_differ_in_words_only_become_one(told: Told) -> None:
    for n in range(SIMILAR + 5):
        told.happens("AddressConflict", f"address {n}", key="k" * (n % 2) + str(n))
    told.happens("SyncFailed", "not like them")
    told.ask_all()
    assert len(told.store.events) == SIMILAR + 2
    assert told.store.counts[f"{COMBINED}address {SIMILAR}"] == 5


def test_an_event_that_the_server_forgot_is_made_anew(told: Told) -> None:
    told.happens(times=2)
    told.ask_all()
    (name,) = told.store.events
    told.store.events.clear()
    told.happens()
    assert told.later(FINISH) == ["PATCH", "POST"]
    assert told.store.events.keys() == {name} and told.store.counts == {"": 3}


def test_a_name_that_is_taken_is_not_insisted_on(told: Told) -> None:
    told.happens()
    told.store.answers += [409, 409]
    assert told.ask_all() == ["POST", "POST", "POST"]
    assert len({name for _, name, _ in told.store.requests}) == 3
    assert told.store.counts == {"": 1}


def test_names_differ_when_the_clock_stands_still_or_goes_back(told: Told) -> None:
    for n in range(4):
        told.events.record(what(note=str(n), time=BORN - n), told.now)
    assert told.ask_all() == ["POST"] * 4
    assert [status for _, _, status in told.store.requests] == [201] * 4


# -- Keys --------------------------------------------------------------------------------------------------------------


def test_with_a_key_it_is_told_once_in_an_hour(told: Told) -> None:
    told.happens(note="deprecated", key="k", times=3)
    assert told.ask_all() == ["POST"]
    told.now += TOLD - 1
    told.happens(note="deprecated", key="k")
    assert told.ask_all() == []
    told.now += 1
    told.store.events.clear()  # as the server does by now
    told.happens(note="deprecated", key="k")
    assert told.ask_all() == ["POST"]
    assert told.store.counts == {"deprecated": 1}


def test_what_an_earlier_agent_told_is_not_told_again(told: Told) -> None:
    told.happens(note="deprecated", key="k")
    told.ask_all()
    again = Told()
    again.store, again.now = told.store, told.now + 7
    again.happens(note="deprecated", key="k", times=2)
    assert again.ask_all() == ["POST"] and again.store.requests[-1][2] == 409
    assert again.later(FINISH) == [] and again.events.notices == []
    assert again.store.counts == {"deprecated": 1}


def test_the_key_says_what_is_the_same(told: Told) -> None:
    told.happens(note="deprecated in version 1", key="k")
    told.happens(note="deprecated in version 2", key="k")
    assert told.ask_all() == ["POST"]


def test_what_has_a_key_is_not_forgotten_before_it_is_told(told: Told) -> None:
    told.happens(key="k")
    told.happens("Other")
    assert told.ask_all() == ["POST", "POST"]


# -- Limits ------------------------------------------------------------------------------------------------------------


def test_new_events_come_at_a_limited_rate(told: Told) -> None:
    for n in range(100):
        told.happens(f"Reason{n}")
    told.ask_all()
    assert len(told.store.events) == BURST
    assert told.events.dropped == 100 - BURST
    (notice,) = told.events.notices  # once, not 75 times
    assert notice.event == "node_events_limited" and notice.reason == f"Reason{BURST}"
    told.now += 2 * REFILL
    for n in range(100, 110):
        told.happens(f"Reason{n}")
    told.ask_all()
    assert len(told.store.events) == BURST + 2


def test_the_limit_is_told_again_when_it_is_reached_again(told: Told) -> None:
    for drought in (1, 2):
        told.now += BURST * REFILL
        for n in range(BURST + 3):
            told.happens(f"Reason{drought}.{n}")
        assert len(told.events.notices) == drought


def test_a_long_time_without_events_does_not_make_for_many(told: Told) -> None:
    told.now += 1000 * REFILL
    for n in range(100):
        told.happens(f"Reason{n}")
    assert len(told.events) == BURST


def test_what_the_server_is_just_told_is_not_dropped(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.event_series.LIMIT", 2)
    told.happens(note="oldest")
    request = told.events.next_request(told.now)
    assert request is not None
    for n in range(5):
        told.now += 1
        told.happens(note=f"note {n}")
    told.events.answered(request, None, told.now, 0.0)
    told.ask_all()
    assert told.store.counts == {"note 4": 1} and told.events.dropped == 4 and len(told.events) == 2


def test_what_is_going_on_is_counted_when_the_limit_is_reached(told: Told) -> None:
    for n in range(100):
        told.happens(f"Reason{n}")
    told.happens("Reason0")
    told.ask_all(flush=True)
    assert max(e.get("series", {"count": 1})["count"] for e in told.store.events.values()) == 2


def test_stories_without_end_make_way_for_new_ones(told: Told) -> None:
    for n in range(LIMIT + 10):
        told.now += REFILL
        for each in (n, *range(n)):
            told.happens(f"Reason{each}")
        told.ask_all()
        assert len(told.events) <= LIMIT
    assert {event["reason"] for event in told.store.events.values()} == {f"Reason{n}" for n in range(LIMIT + 10)}
