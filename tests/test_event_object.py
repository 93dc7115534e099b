"""proxy.event_object: an Event as the API server takes it, whatever the words and names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.event_object import (
    PATH,
    Occurrence,
    cut,
    event_body,
    event_name,
    instance,
    micro_time,
    occurrence,
    series_patch,
    told_once,
)
from tests.event_store import BORN, NODE, faults, what

RECORDED = Path(__file__).parent / "data" / "api" / "23-event-create.txt"


def _body(event: Occurrence, node: str = NODE, uid: str = "", count: int = 1) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(event_body(event, node, uid, event_name(node, f"{event.time:x}"), count, BORN))
    return body


def test_an_event_is_like_one_that_a_real_server_took() -> None:
    asked = [line[2:] for line in RECORDED.read_text().splitlines() if line.startswith("> ")]
    recorded = json.loads(asked[-1])
    ours = _body(what(note=recorded["note"]), uid="8e0ad4f6")
    assert asked[0] == f"POST {PATH}"
    assert ours.pop("metadata").keys() == recorded.pop("metadata").keys()
    assert ours.pop("eventTime").endswith("Z") and recorded.pop("eventTime")
    assert ours.pop("regarding") == recorded.pop("regarding") | {"uid": "8e0ad4f6"}
    assert ours == recorded


def test_what_the_nodes_uid_is_not_known_for_goes_by_its_name() -> None:
    assert _body(what())["regarding"]["uid"] == NODE


def test_a_series_of_one_is_none() -> None:
    assert "series" not in _body(what(), count=1)
    assert _body(what(), count=2)["series"] == {"count": 2, "lastObservedTime": "2026-11-30T00:53:20.123456Z"}
    assert json.loads(series_patch(3, BORN)) == {
        "series": {"count": 3, "lastObservedTime": "2026-11-30T00:53:20.123456Z"}
    }


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (BORN, "2026-11-30T00:53:20.123456Z"),
        (10**9 - 1, "1970-01-01T00:00:00.999999Z"),
    ],
)
def test_times_have_microseconds(time: int, text: str) -> None:
    assert micro_time(time) == text


@pytest.mark.parametrize(
    ("text", "limit", "kept"),
    [
        ("abc", 3, "abc"),
        ("abcdef", 5, "ab…"),
        ("äää", 6, "äää"),
        ("äääx", 6, "ä…"),  # not half an ä
        ("\N{PILE OF POO}" * 2, 7, "\N{PILE OF POO}…"),
        ("a\udcffb", 9, "a?b"),
    ],
)
def test_notes_are_cut_between_characters(text: str, limit: int, kept: str) -> None:
    assert cut(text, limit) == kept


NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,80}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,80}[a-z0-9])?){0,4}", fullmatch=True)


@given(NAMES.filter(lambda name: len(name) <= 253), st.text(), st.text(min_size=1), st.text(), st.text())
def test_any_words_make_an_event_that_is_valid(node: str, note: str, reason: str, action: str, key: str) -> None:
    event = occurrence(reason, note * 99, warning=True, action=action * 40, key=key, time=BORN)
    for name in (event_name(node, f"{event.time:x}"), told_once(node, key)):
        assert faults(json.loads(event_body(event, node, "", name, 2, BORN))) == []


def test_agents_on_nodes_with_long_names_are_told_apart() -> None:
    first, second = (instance("n" * 250 + end) for end in "ab")
    assert len(first) == len(second) == 128 and first != second
    assert instance(NODE) == "kube-proxy-nft-node0"


def test_a_cut_name_ends_with_a_letter_or_digit() -> None:
    node = "a" * 230 + "." + "-" * 20 + "a"
    assert event_name(node, "0" * 16) == "a" * 230 + "." + "0" * 16
