"""Events created and patched: each test runs on the stand-in and on a real API server (see tests/apis.py)."""

from __future__ import annotations

import json

import pytest

from integration.rest import Object
from tests.apis import Environment, env
from tests.asking import EVENTS, event, now, refusal

__all__ = ["env"]


def test_an_event_is_created_once(env: Environment) -> None:
    wanted = event(env.name("e"))
    answer = env.admin.request("POST", EVENTS, wanted)
    assert answer.status == 201, answer.body
    created = answer.json()
    assert {name: created[name] for name in wanted if name != "metadata"} == {
        name: value for name, value in wanted.items() if name != "metadata"
    }
    assert created["metadata"]["uid"]
    said = refusal(env.admin.request("POST", EVENTS, wanted), 409, "AlreadyExists")
    name = wanted["metadata"]["name"]
    assert said["message"] == f'events.events.k8s.io "{name}" already exists'
    assert said["details"] == {"name": name, "group": "events.k8s.io", "kind": "events"}


@pytest.mark.parametrize("content_type", ["application/strategic-merge-patch+json", "application/merge-patch+json"])
def test_an_event_becomes_a_series(env: Environment, content_type: str) -> None:
    name = env.name("e")
    env.admin.request("POST", EVENTS, event(name))
    for count in (2, 3):
        series = {"count": count, "lastObservedTime": now()}
        change = json.dumps({"series": series}).encode()
        answer = env.admin.request("PATCH", f"{EVENTS}/{name}", change, Content_Type=content_type)
        assert answer.status == 200, answer.body
        assert answer.json()["series"] == series
        assert answer.json()["note"] == "started"


def test_an_unknown_event_cannot_be_patched(env: Environment) -> None:
    name = env.name("e")
    change = json.dumps({"series": {"count": 2, "lastObservedTime": now()}}).encode()
    path = f"{EVENTS}/{name}"
    answer = env.admin.request("PATCH", path, change, Content_Type="application/strategic-merge-patch+json")
    said = refusal(answer, 404, "NotFound")
    assert said["message"] == f'events.events.k8s.io "{name}" not found'
    answer = env.admin.request("PATCH", path, change, Content_Type="application/nonsense")
    assert answer.status == 415


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"action": None}, {"action": "FieldValueRequired"}),
        ({"reason": None}, {"reason": "FieldValueRequired"}),
        ({"eventTime": None}, {"eventTime": "FieldValueRequired"}),
        ({"reportingInstance": None}, {"reportingInstance": "FieldValueRequired"}),
        ({"type": "Odd"}, {"type": "FieldValueInvalid"}),
        ({"type": None}, {"type": "FieldValueInvalid"}),
        ({"note": "x" * 1025}, {"message": "FieldValueInvalid"}),
        ({"note": "ü" * 513}, {"message": "FieldValueInvalid"}),
        ({"reason": "x" * 129}, {"reason": "FieldValueInvalid"}),
        ({"action": "x" * 129}, {"action": "FieldValueInvalid"}),
        ({"reportingInstance": "x" * 129}, {"reportingInstance": "FieldValueInvalid"}),
        ({"reportingController": "not a name"}, {"reportingController": "FieldValueInvalid"}),
        ({"series": {"count": 1, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}}, {"series.count": "FieldValueInvalid"}),
        ({"deprecatedCount": 1}, {"count": "FieldValueInvalid"}),
        ({"action": None, "reason": None}, {"action": "FieldValueRequired", "reason": "FieldValueRequired"}),
    ],
)  # fmt: skip
def test_an_invalid_event(env: Environment, fields: Object, wrong: dict[str, str]) -> None:
    name = env.name("e")
    said = refusal(env.admin.request("POST", EVENTS, event(name, **fields)), 422, "Invalid")
    assert {cause["field"]: cause["reason"] for cause in said["details"]["causes"]} == wrong
    assert said["message"].startswith(f'Event "{name}" is invalid: ')
    assert env.admin.request("POST", EVENTS, event(name)).status == 201


def test_notes_as_long_as_they_may_be(env: Environment) -> None:
    assert env.admin.request("POST", EVENTS, event(env.name("e"), note="x" * 1024)).status == 201
    assert env.admin.request("POST", EVENTS, event(env.name("e"), note=None)).status == 201


def test_only_the_series_of_an_event_may_change(env: Environment) -> None:
    name = env.name("e")
    env.admin.request("POST", EVENTS, event(name))
    change = json.dumps({"note": "another"}).encode()
    answer = env.admin.request("PATCH", f"{EVENTS}/{name}", change, Content_Type="application/merge-patch+json")
    said = refusal(answer, 422, "Invalid")
    assert [cause["field"] for cause in said["details"]["causes"]] == ["message"]


def test_an_event_elsewhere_than_its_path_says(env: Environment) -> None:
    made = event(env.name("e"))
    made["metadata"]["namespace"] = "kube-system"
    refusal(env.admin.request("POST", EVENTS, made), 400, "BadRequest")
