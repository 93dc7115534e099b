"""proxy.event_series with a server that does not do as it is asked: nothing is lost, told twice, or grows for ever."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.event_series import BURST, FINISH, FORBIDDEN, LIMIT, REFILL, RULE, TRIES, Step, what_next
from proxy.trouble import UNREACHABLE, Trouble
from tests.event_store import AWAY, LOST, START, Told


@pytest.fixture
def told() -> Told:
    return Told()


# -- What an answer means ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "post", "patch"),
    [
        (400, Step.DROP, Step.DROP),
        (401, Step.RETRY, Step.RETRY),
        (403, Step.WAIT, Step.WAIT),
        (404, Step.DROP, Step.CREATE),
        (409, Step.RENAME, Step.RETRY),
        (422, Step.DROP, Step.DROP),
        (429, Step.RETRY, Step.RETRY),
        (500, Step.RETRY, Step.RETRY),
        (503, Step.RETRY, Step.RETRY),
        (302, Step.DROP, Step.DROP),
        (UNREACHABLE, Step.RETRY, Step.RETRY),
    ],
)
def test_what_an_answer_means(status: int, post: Step, patch: Step) -> None:
    assert what_next(Trouble(status, ""), create=True, keyed=False, unsure=False) is post
    assert what_next(Trouble(status, ""), create=False, keyed=False, unsure=False) is patch


def test_a_name_that_exists_is_ours_when_it_is_of_a_key_or_an_answer_got_lost() -> None:
    assert what_next(Trouble(409, "", reason="AlreadyExists"), create=True, keyed=True, unsure=False) is Step.DONE
    assert what_next(Trouble(409, "", reason="AlreadyExists"), create=True, keyed=False, unsure=True) is Step.DONE


def test_a_conflict_is_not_always_one_of_names() -> None:
    quota = Trouble(409, "Operation cannot be fulfilled on resourcequotas", reason="Conflict")
    for keyed in (True, False):
        assert what_next(quota, create=True, keyed=keyed, unsure=True) is Step.RETRY


# -- A server that does not do as it is asked --------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [AWAY, LOST, 500, 503, 504, 429, 401, 408])
def test_passing_faults_are_waited_for(told: Told, answer: int) -> None:
    told.happens()
    told.store.answers += [answer, answer]
    assert told.ask_all() == ["POST"]
    pauses = []
    while told.store.answers:
        at = told.events.wake_at()
        assert at is not None and at > told.now
        pauses.append(at - told.now)
        told.now = at
        told.happens()
        assert told.ask_all()[0] in ("POST", "PATCH")
    assert pauses == sorted(pauses)
    told.later(60)
    assert told.later(FINISH) in ([], ["PATCH"])
    assert list(told.store.counts.values()) == [1 + len(pauses)] and told.events.dropped == 0


def test_the_server_says_how_long_to_wait(told: Told) -> None:
    told.happens()
    told.store.answers.append(429)
    told.store.retry_after = 20.0
    told.ask_all()
    assert told.events.wake_at() == told.now + 20
    assert told.later(19) == [] and told.later(1) == ["POST"]


def test_an_answer_that_got_lost_does_not_make_two_events(told: Told) -> None:
    told.happens()
    told.store.answers.append(LOST)
    told.ask_all()
    told.happens()
    assert told.later(60) == ["POST", "PATCH"]
    assert list(told.store.counts.values()) == [2]


def test_one_that_fails_lets_the_others_go_first(told: Told) -> None:
    told.happens(note="first")
    told.happens(note="second")
    told.store.answers.append(500)
    told.ask_all()
    told.later(60)
    assert list(told.store.counts) == ["second", "first"]


def test_tries_come_to_an_end(told: Told) -> None:
    told.happens(note="never told", times=2)
    told.store.answers += [AWAY] * 1000
    while (at := told.events.wake_at()) is not None:
        told.now = at
        told.ask_all()
    assert len(told.store.requests) == TRIES
    assert 300 < told.now - START < 1800
    (notice,) = told.events.notices
    assert (notice.event, notice.note, notice.count) == ("node_event_lost", "never told", 2)
    assert told.events.dropped == 2 and len(told.events) == 0


def test_tries_are_counted_anew_after_each_success(told: Told) -> None:
    for _ in range(TRIES + 10):
        told.store.answers.append(503)  # each heartbeat fails once
        for _ in range(20):
            told.now += 100
            told.happens()
            told.ask_all()
        assert not told.store.answers
    told.ask_all(flush=True)
    assert told.store.counts == {"": 20 * (TRIES + 10)} and len(told.store.events) == 1


@pytest.mark.parametrize("answer", [400, 404, 405, 413, 422])
def test_what_is_refused_is_not_asked_again(told: Told, answer: int) -> None:
    told.happens(note="bad")
    told.happens(note="good")
    told.store.answers.append(answer)
    assert told.ask_all() == ["POST", "POST"]
    assert told.store.counts == {"good": 1} and told.events.dropped == 1
    (notice,) = told.events.notices
    assert (notice.event, notice.note, notice.cause) == ("node_event_lost", "bad", f"HTTP {answer}")
    assert told.events.wake_at() is None


def test_a_patch_that_is_refused_ends_the_series(told: Told) -> None:
    told.happens(times=2)
    told.ask_all()
    told.happens(times=5)
    told.store.answers.append(422)
    assert told.later(FINISH) == ["PATCH"]
    assert len(told.events) == 0 and told.events.dropped == 5


def test_without_permission_it_is_said_once_and_left_for_long(told: Told) -> None:
    told.happens(note="first")
    told.happens(note="second")
    told.store.answers += [403, 403]
    assert told.ask_all() == ["POST"]
    (notice,) = told.events.notices
    assert notice.event == "node_events_forbidden" and RULE in notice.remedy and notice.cause == "HTTP 403"
    assert told.later(FORBIDDEN - 1) == [] and told.later(1) == ["POST"]
    assert told.later(FORBIDDEN) == ["POST", "POST"]  # it was granted
    assert len(told.events.notices) == 1 and told.store.counts == {"first": 1, "second": 1}


# -- Any history -------------------------------------------------------------------------------------------------------


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("happens"), st.integers(0, 7), st.integers(0, 15)),
        st.tuples(st.just("later"), st.sampled_from([0.1, 1, 50, 400, 2000, 4000]), st.just(0)),
        st.tuples(st.just("ask"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("expire"), st.integers(0, 30), st.just(0)),
    ),
    max_size=120,
)


@given(STEPS, st.lists(st.sampled_from([AWAY, LOST, 401, 403, 429, 500, 503]), max_size=20))
def test_nothing_is_lost_and_nothing_is_told_twice(steps: list[tuple[str, Any, int]], answers: list[int]) -> None:
    told, happened, gone = Told(), 0, 0
    told.store.answers += answers
    for step, n, m in steps:
        if step == "happens":
            told.happens(f"Reason{n}", f"note {m}")
            happened += 1
        elif step == "later":
            told.now += n
        elif step == "ask":
            for _ in range(n):
                told.ask()
        elif n < len(told.store.events):
            # The server forgets an Event, here one that is no longer written to.
            name = list(told.store.events)[n]
            if all(series.name != name for series in told.events._series.values()):
                gone += _count(told.store.events.pop(name))
        assert len(told.events) <= LIMIT
        assert len(told.series) <= BURST + (told.now - START) / REFILL
    for _ in range(2 * len(answers) + 2):
        told.now += FORBIDDEN
        told.ask_all(flush=True)
    assert 422 not in [status for _, _, status in told.store.requests]
    in_events = sum(_count(event) for event in told.store.events.values())
    if LOST in answers:  # what was given up may have been done
        assert in_events + gone + told.events.dropped >= happened
    else:
        assert in_events + gone + told.events.dropped == happened
    assert told.events.wake_at() is None


def _count(event: dict[str, Any]) -> int:
    count: int = event.get("series", {"count": 1})["count"]
    return count


@given(STEPS, st.lists(st.sampled_from([AWAY, LOST, 200, 302, 403, 404, 409, 410, 422, 429, 500]), max_size=300))
def test_no_history_makes_it_grow_or_ask_without_end(steps: list[tuple[str, Any, int]], answers: list[int]) -> None:
    told = Told()
    told.store.answers += answers
    for step, n, m in steps:
        if step == "happens":
            told.happens(f"Reason{n}", f"note {m}", key=string.ascii_letters[m] * (m % 2))
        elif step == "later":
            told.now += n
        elif step == "ask":
            told.ask_all(flush=bool(n % 2))
        assert len(told.events) <= LIMIT
        assert len(told.series) <= BURST + (told.now - START) / REFILL
        assert len(told.events.notices) <= len(told.store.requests) + 1 + len(steps)
