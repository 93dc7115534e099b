"""Lists and pages: each test runs on the stand-in and on a real API server (see tests/apis.py)."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.apis import Environment, env, version
from tests.asking import FUTURE, MARK, SERVICES, Group, eventually, good, names, query, refusal

__all__ = ["env"]


def test_a_list_from_the_cache(env: Environment) -> None:
    group = Group(env)
    made = group.put(3)
    found = eventually(env, group.path(resourceVersion=0), sorted(names(made)))
    assert (found["kind"], found["apiVersion"]) == ("ServiceList", "v1")
    assert version(found) >= max(map(version, made))
    assert all("kind" not in item and "apiVersion" not in item for item in found["items"])
    by_name = {obj["metadata"]["name"]: obj for obj in made}
    for item in found["items"]:
        whole = by_name[item["metadata"]["name"]]
        assert item == {name: value for name, value in whole.items() if name not in ("kind", "apiVersion")}


def test_a_list_of_the_newest_state(env: Environment) -> None:
    group = Group(env)
    made = group.put(2)
    found = group.list()
    assert names(found["items"]) == sorted(names(made))
    assert version(found) >= version(made[-1])
    newest = made[-1]["metadata"]["resourceVersion"]
    found = group.list(resourceVersion=newest, resourceVersionMatch="NotOlderThan")
    assert names(found["items"]) == sorted(names(made))


def test_selectors(env: Environment) -> None:
    group = Group(env)
    plain, headless = group.new(), group.new()
    headless["metadata"]["labels"]["other"] = "x"
    env.put(plain, headless)
    for term, expected in (
        ("!other", [plain]),
        ("other", [headless]),
        ("other=x", [headless]),
        ("other!=x", [plain]),
        ("other=y", []),
    ):
        path = SERVICES + query({"labelSelector": f"{MARK}={group.mark},{term}"})
        assert names(good(env.admin.get(path))["items"]) == names(expected), term


def test_pages_show_one_state(env: Environment) -> None:
    group = Group(env)
    expected = sorted(names(group.put(5)))
    page = group.list(limit=2)
    at = version(page)
    env.put(group.new("zz-" + env.name()))
    found, pages = names(page["items"]), 1
    while token := page["metadata"].get("continue"):
        assert "remainingItemCount" not in page["metadata"]  # not known with a selector
        page = group.list(limit=2, **{"continue": token})
        assert version(page) == at
        found += names(page["items"])
        pages += 1
    assert (found, pages) == (expected, 3)


def test_a_page_says_how_many_are_left(env: Environment) -> None:
    env.put(*(Group(env).new() for _ in range(3)))
    everything = len(good(env.admin.get(SERVICES))["items"])
    page = good(env.admin.get(SERVICES + "?limit=1"))
    assert (len(page["items"]), page["metadata"]["remainingItemCount"]) == (1, everything - 1)


def test_the_cache_answers_in_one_piece(env: Environment) -> None:
    group = Group(env)
    made = sorted(names(group.put(3)))
    found = eventually(env, group.path(resourceVersion=0, limit=1), made)
    assert "continue" not in found["metadata"]


def test_a_continue_token_that_means_nothing(env: Environment) -> None:
    said = refusal(env.admin.get(SERVICES + "?limit=2&continue=abc"), 400, "BadRequest")
    assert said["message"].startswith("invalid continue token: continue key is not valid: ")


@pytest.mark.parametrize(
    ("parameters", "fields"),
    [
        ("resourceVersionMatch=Exact", ["resourceVersionMatch"]),
        ("resourceVersion=0&resourceVersionMatch=Exact", ["resourceVersionMatch"]),
        ("sendInitialEvents=true", ["sendInitialEvents"]),
        ("watch=1&sendInitialEvents=true", ["resourceVersionMatch"]),
        ("watch=1&sendInitialEvents=true&resourceVersionMatch=Exact", ["resourceVersionMatch"]),
        ("watch=1&resourceVersion=1&resourceVersionMatch=NotOlderThan", ["resourceVersionMatch"]),
    ],
)
def test_parameters_that_forbid_each_other(env: Environment, parameters: str, fields: list[str]) -> None:
    said = refusal(env.admin.get(f"{SERVICES}?{parameters}"), 422, "Invalid")
    assert (said["details"]["group"], said["details"]["kind"]) == ("meta.k8s.io", "ListOptions")
    assert sorted({cause["field"] for cause in said["details"]["causes"]}) == fields
    assert "FieldValueForbidden" in {cause["reason"] for cause in said["details"]["causes"]}


def test_a_version_from_the_future(env: Environment) -> None:
    answer = env.admin.get(f"{SERVICES}?resourceVersion={FUTURE}&resourceVersionMatch=NotOlderThan")
    said = refusal(answer, 504, "Timeout")
    assert said["message"].startswith(f"Timeout: Too large resource version: {FUTURE}, current: ")
    assert said["details"]["causes"] == [
        {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    ]  # fmt: skip
    assert answer.headers["Retry-After"] == str(said["details"]["retryAfterSeconds"]) == "1"


def test_large_lists_are_compressed(env: Environment) -> None:
    group = Group(env)
    for _ in range(2):
        obj = group.new()
        obj["metadata"]["annotations"] = {"filler": "ab" * 40_000}
        env.put(obj)
    small = env.admin.get(group.path(limit=1), Accept_Encoding="gzip")
    assert "Content-Encoding" not in small.headers
    large = env.admin.get(group.path(), Accept_Encoding="gzip")
    assert large.headers["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in large.headers["Vary"]
    assert len(json.loads(gzip.decompress(large.body))["items"]) == 2
    assert "Content-Encoding" not in env.admin.get(group.path()).headers
    stream = env.admin.get(group.path(watch=1, resourceVersion=0, timeoutSeconds=1), Accept_Encoding="gzip")
    assert "Content-Encoding" not in stream.headers
    assert len(stream.body) > 160_000
