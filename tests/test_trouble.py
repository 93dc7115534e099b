"""proxy.trouble: what the server's refusals mean, and what follows."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.trouble import (
    BACKOFF_MAX,
    BROKEN,
    NONSENSE,
    RETRY_AFTER_MAX,
    TOO_LARGE,
    UNREACHABLE,
    Step,
    Trouble,
    backoff,
    error_event,
    refusal,
    retry_after,
    rule_of,
    what_next,
)
from tests.recordings import Exchange


@pytest.mark.parametrize(
    ("step", "status", "following"),
    [
        (Step.LIST, UNREACHABLE, Step.LIST),
        (Step.WATCH, UNREACHABLE, Step.WATCH),
        (Step.WATCH, BROKEN, Step.WATCH),
        (Step.WATCH, NONSENSE, Step.LIST),
        (Step.WATCH, 400, Step.LIST),
        (Step.WATCH, 401, Step.WATCH),
        (Step.LIST, 403, Step.LIST),
        (Step.WATCH, 403, Step.WATCH),
        (Step.WATCH, 404, Step.LIST),
        (Step.WATCH, 410, Step.LIST),
        (Step.WATCH, 422, Step.LIST),
        (Step.WATCH, 429, Step.WATCH),
        (Step.WATCH, 500, Step.WATCH),
        (Step.LIST, 504, Step.LIST),
    ],
)
def test_what_follows_trouble(step: Step, status: int, following: Step) -> None:
    after = what_next(step, Trouble(status, ""), failures=0, rand=0.0)
    assert after.step is following
    assert (after.pause == 0) == (status == 410)


def test_a_watch_of_a_version_that_the_server_does_not_have_yet_lists() -> None:
    trouble = Trouble(504, "", reason=TOO_LARGE)
    assert what_next(Step.WATCH, trouble, failures=0, rand=0.0).step is Step.LIST
    assert rule_of(trouble).event == "api_server_behind"
    assert rule_of(Trouble(504, "")).event == "api_refused"


def test_expired_again_and_again_is_not_without_pause() -> None:
    assert what_next(Step.WATCH, Trouble(410, ""), failures=1, rand=0.0).pause > 0


def test_retry_after_is_the_least_pause() -> None:
    assert what_next(Step.LIST, Trouble(503, "", 17), failures=0, rand=0.9).pause == 17
    assert what_next(Step.LIST, Trouble(503, "", 1), failures=30, rand=0.9).pause > 1


@given(st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_backoff_grows_to_its_limit(failures: int, rand: float) -> None:
    pause = backoff(failures, rand)
    assert 0.1 <= pause <= BACKOFF_MAX
    assert pause <= backoff(failures + 1, rand)
    assert failures < 8 or pause >= BACKOFF_MAX / 2


def test_backoff_spreads_the_nodes() -> None:
    assert backoff(3, 0.0) * 1.9 < backoff(3, 0.99)


@pytest.mark.parametrize("number", ["14", "16", "17", "18", "19", "20", "21"])
def test_recorded_refusals(number: str) -> None:
    exchange = Exchange(number)
    said = json.loads(exchange.body)
    trouble = refusal(exchange.status, exchange.headers.get("Retry-After", ""), exchange.body)
    assert trouble.status == exchange.status == said["code"]
    assert said["message"][:100] in trouble.cause
    assert trouble.retry_after == (1 if number == "16" else 0)
    assert trouble.reason == (TOO_LARGE if number == "16" else said["reason"])
    assert trouble.is_of_version == (number in ("14", "16"))


@pytest.mark.parametrize(("number", "of_version"), [("13", True), ("11b", False)])
def test_recorded_errors_in_a_stream(number: str, of_version: bool) -> None:
    event = json.loads(Exchange(number).body)
    trouble = error_event(json.dumps(event["object"]).encode())
    assert trouble.status == event["object"]["code"]
    assert event["object"]["message"] in trouble.cause
    assert trouble.is_of_version == of_version


def test_an_error_in_a_stream_may_say_when_to_come_again() -> None:
    said = json.loads(Exchange("16").body)
    trouble = error_event(json.dumps(said).encode())
    assert (trouble.status, trouble.reason, trouble.retry_after) == (504, TOO_LARGE, 1.0)


@pytest.mark.parametrize("obj", [b"7", b'{"code":"x"}', b'{"details":[]}'])
def test_an_error_that_is_no_status_is_nonsense(obj: bytes) -> None:
    assert error_event(obj).status == NONSENSE


def test_what_stands_between_may_answer_with_anything() -> None:
    trouble = refusal(503, "5", b"<html>\n busy\xff")
    assert (trouble.status, trouble.cause, trouble.retry_after) == (503, "HTTP 503: <html> busy\ufffd", 5)


NOW = "Wed, 21 Oct 2026 07:28:00 GMT"


@pytest.mark.parametrize(
    ("header", "date", "seconds"),
    [
        ("", "", 0),
        ("5", "", 5),
        ("5", NOW, 5),
        ("86400", "", RETRY_AFTER_MAX),
        ("-1", "", 0),
        ("²", "", 0),
        ("soon", NOW, 0),
        ("Wed, 21 Oct 2026 07:28:12 GMT", NOW, 12),
        ("Wed, 21 Oct 2026 09:28:12 GMT", NOW, RETRY_AFTER_MAX),
        ("Wed, 21 Oct 2026 07:27:00 GMT", NOW, 0),
        ("Wed, 21 Oct 2026 07:28:12 GMT", "", 0),  # our clock may be another than the server's
        ("Wed, 21 Oct 2026 07:28:12", NOW, 0),  # no zone: not comparable
        ("Wed, 99 Oct 99999999 07:28:12 GMT", NOW, 0),
    ],
)
def test_retry_after(header: str, date: str, seconds: float) -> None:
    assert retry_after(header, date) == seconds
