"""How long the agent waits before it tries again, and before it undoes again what others do."""

from __future__ import annotations

import math

from proxy.events import TablesTouched
from proxy.patience import MEND_CALM, MEND_PAUSE, MENDS_AT_ONCE, RETRY_SECONDS, TOUCHED_SECONDS, OthersWork, Retries
from rules.changes import Touched
from rules.objects import Family

TOUCHED = TablesTouched((Touched(Family.IPV4, chains={"services"}),))


def test_waits_grow_and_begin_anew_after_a_success() -> None:
    retries = Retries()
    waits = [retries.failed(100.0, is_clash=False) for _ in range(8)]
    assert waits == [*RETRY_SECONDS[1:], *[RETRY_SECONDS[-1]] * 3]
    assert (retries.failures, retries.clashes, retries.next_at) == (8, 0, 100.0 + RETRY_SECONDS[-1])
    retries.worked()
    assert retries.failures == 0
    assert retries.failed(200.0, is_clash=False) == RETRY_SECONDS[1]


def test_after_the_first_clash_there_is_no_wait() -> None:
    retries = Retries()
    waits = [retries.failed(0.0, is_clash=True) for _ in range(8)]
    assert waits == [*RETRY_SECONDS, *[RETRY_SECONDS[-1]] * 2]
    retries.worked()
    assert retries.clashes == 0
    assert [retries.failed(0.0, is_clash=is_clash) for is_clash in (False, False, True)] == [*RETRY_SECONDS[1:3], 0.0]


def test_a_cause_is_news_once_until_a_success_or_another_cause() -> None:
    retries = Retries()
    assert [retries.is_news(cause) for cause in ("a", "a", "b", "a")] == [True, False, True, True]
    retries.worked()
    assert retries.is_news("a")


def test_a_wait_is_shortened_and_never_made_longer() -> None:
    retries = Retries()
    for _ in RETRY_SECONDS:
        retries.failed(0.0, is_clash=False)
    retries.hasten(10.0)
    assert retries.next_at == 10.0 + TOUCHED_SECONDS
    retries.hasten(10.05)
    assert retries.next_at == 10.0 + TOUCHED_SECONDS


def test_where_nothing_was_done_there_is_nothing_to_undo() -> None:
    others = OthersWork()
    assert others.next_at == math.inf
    others.note(TOUCHED)
    assert others.next_at <= 0.0
    others.clear()
    assert others.next_at == math.inf and not others.changes


def test_what_is_known_is_gathered_and_each_reason_said_once() -> None:
    others = OthersWork()
    for event in (TOUCHED, TablesTouched((), "messages were lost"), TOUCHED, TablesTouched((), "messages were lost")):
        others.note(event)
    assert others.changes == [*TOUCHED.changes, *TOUCHED.changes]
    assert others.why == "messages were lost"


def test_it_is_undone_at_once_then_with_pauses_until_it_was_calm() -> None:
    others = OthersWork()

    def again(now: float) -> float:
        """How long what is done then has to wait, when it has just been undone."""
        others.begin(now)
        others.clear()
        others.note(TOUCHED)
        return others.next_at - now

    assert [again(100.0) for _ in range(MENDS_AT_ONCE + 2)] == [0.0] * (MENDS_AT_ONCE - 1) + [MEND_PAUSE] * 3
    assert again(100.0 + MEND_CALM) == MEND_PAUSE, "not calm for so long since the last pause"
    assert again(100.0 + 2 * MEND_CALM + MEND_PAUSE) == 0.0
