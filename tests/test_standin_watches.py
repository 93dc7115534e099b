"""Watches, bookmarks and streaming lists: each test runs on the stand-in and on a real API server (see tests/apis.py)."""

from __future__ import annotations

from http.client import HTTPException

import pytest

from tests.apis import Environment, endpoint_slice, env, version
from tests.asking import FUTURE, HEADLESS, SERVICES, SLICES, Group, eventually, names, query, refusal, shown, take

__all__ = ["env"]


def test_a_watch_shows_changes(env: Environment) -> None:
    group = Group(env)
    start = version(group.list())
    obj = group.new()
    name = obj["metadata"]["name"]
    with env.admin.watch(group.path(watch=1, resourceVersion=start, timeoutSeconds=60)) as events:
        created = env.put(obj)
        added = next(events)
        assert shown(added) == ("ADDED", name)
        assert added["object"] == created  # with kind and apiVersion, which lists do not have
        obj["spec"]["ports"][0]["port"] = 81
        changed = env.put(obj)
        modified = next(events)
        assert shown(modified) == ("MODIFIED", name)
        assert modified["object"] == changed
        assert version(changed) > version(created)
        env.delete(obj)
        deleted = next(events)
        assert shown(deleted) == ("DELETED", name)
        assert version(deleted["object"]) > version(changed)  # when it went
    with env.admin.watch(group.path(watch=1, resourceVersion=start, timeoutSeconds=60)) as events:
        assert take(events, 3) == [("ADDED", name), ("MODIFIED", name), ("DELETED", name)]  # what was before
    with env.admin.watch(group.path(watch=1, resourceVersion=version(created), timeoutSeconds=60)) as events:
        assert take(events, 2) == [("MODIFIED", name), ("DELETED", name)]


def test_a_watch_from_nowhere_begins_with_what_there_is(env: Environment) -> None:
    group = Group(env)
    first, second = sorted(names(group.put(2)))
    eventually(env, group.path(resourceVersion=0), [first, second])
    for start in ({"resourceVersion": 0}, {}):
        with env.admin.watch(group.path(watch=1, timeoutSeconds=60, **start)) as events:
            assert sorted(take(events, 2)) == [("ADDED", first), ("ADDED", second)]
            obj = group.new()
            env.put(obj)
            assert take(events, 1) == [("ADDED", obj["metadata"]["name"])]
            env.delete(obj)


def test_what_leaves_a_selector_is_deleted(env: Environment) -> None:
    name, of = env.name("slice"), env.name("s")
    selector = f"kubernetes.io/service-name={of},!{HEADLESS}"
    created = env.put(endpoint_slice(name, of, "10.244.0.2"))
    path = SLICES + query({"watch": 1, "labelSelector": selector, "timeoutSeconds": 60})
    with env.admin.watch(f"{path}&resourceVersion={version(created)}") as events:
        left = env.put(endpoint_slice(name, of, "10.244.0.3", labels={HEADLESS: ""}))
        assert left["metadata"]["labels"].keys() != created["metadata"]["labels"].keys()
        event = next(events)
        assert shown(event) == ("DELETED", name)
        assert version(event["object"]) == version(left)
        assert event["object"]["endpoints"] == created["endpoints"]  # as it was when it still belonged
        env.put(endpoint_slice(name, of, "10.244.0.4"))
        assert take(events, 1) == [("ADDED", name)]


def test_a_watch_ends_when_its_time_is_over(env: Environment) -> None:
    start = version(Group(env).list())
    with env.admin.watch(SERVICES + f"?watch=1&labelSelector=none&resourceVersion={start}&timeoutSeconds=1") as events:
        assert list(events) == []


def test_a_bookmark_before_the_end(env: Environment) -> None:
    group = Group(env)
    start = version(group.list())
    path = group.path(watch=1, resourceVersion=start, timeoutSeconds=4, allowWatchBookmarks="true")
    with env.admin.watch(path) as events:
        made = group.put(1)[0]
        first, *others = events
    assert shown(first) == ("ADDED", made["metadata"]["name"])
    assert others
    for mark in others:
        assert mark["type"] == "BOOKMARK"
        assert (mark["object"]["kind"], mark["object"]["apiVersion"]) == ("Service", "v1")
        assert "name" not in mark["object"]["metadata"]
        assert version(mark["object"]) >= version(made)


def test_no_bookmark_unless_asked_for(env: Environment) -> None:
    group = Group(env)
    start = version(group.list())
    with env.admin.watch(group.path(watch=1, resourceVersion=start, timeoutSeconds=4)) as events:
        group.put(1)
        assert [event["type"] for event in events] == ["ADDED"]


def test_a_watch_from_the_future_says_nothing(env: Environment) -> None:
    group = Group(env)
    with env.admin.watch(group.path(watch=1, resourceVersion=FUTURE, timeoutSeconds=2)) as events:
        group.put(1)
        assert list(events) == []


STREAM = {
    "watch": 1,
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
    "allowWatchBookmarks": "true",
    "timeoutSeconds": 60,
}


def needs_streams(env: Environment) -> None:
    if not env.server.streams:
        pytest.skip("this etcd is too old for streaming lists")


@pytest.mark.parametrize("start", [{}, {"resourceVersion": 0}])
def test_a_streaming_list(env: Environment, start: dict[str, object]) -> None:
    needs_streams(env)
    group = Group(env)
    made = group.put(3)
    eventually(env, group.path(resourceVersion=0), sorted(names(made)))
    with env.admin.watch(group.path(**STREAM, **start)) as events:
        assert sorted(take(events, 3)) == [("ADDED", name) for name in sorted(names(made))]
        mark = next(events)
        assert mark["type"] == "BOOKMARK"
        assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert version(mark["object"]) >= max(map(version, made))
        obj = group.new()
        env.put(obj)
        assert take(events, 1) == [("ADDED", obj["metadata"]["name"])]
    with env.admin.watch(group.path(watch=1, resourceVersion=version(mark["object"]), timeoutSeconds=60)) as events:
        assert take(events, 1) == [("ADDED", obj["metadata"]["name"])]  # the mark's version is one to start from


def test_a_streaming_list_of_nothing(env: Environment) -> None:
    needs_streams(env)
    with env.admin.watch(Group(env).path(**STREAM)) as events:
        mark = next(events)
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_a_streaming_list_from_the_future(env: Environment) -> None:
    needs_streams(env)
    with env.admin.watch(Group(env).path(**STREAM, resourceVersion=FUTURE)) as events:
        (event,) = events
    assert (event["type"], event["object"]["code"]) == ("ERROR", 504)


def test_a_streaming_list_that_the_storage_cannot_do(env: Environment) -> None:
    if env.server.streams and env.server.name == "real":
        pytest.skip("this etcd is new enough for streaming lists")
    if env.server.name == "stand-in":
        env.server.fake.streaming = "off"  # type: ignore[attr-defined]
    with env.admin.watch(Group(env).path(**STREAM)) as events:
        (event,) = events
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 500, "InternalError")


def test_after_a_compaction(env: Environment) -> None:
    group = Group(env)
    made = group.put(3)
    page = group.list(limit=1)
    start, token = version(page), page["metadata"]["continue"]
    env.delete(made[2])
    group.put(2)
    expected = names(group.list()["items"])
    env.server.compact()
    with env.admin.watch(group.path(watch=1, resourceVersion=start, timeoutSeconds=60)) as events:
        (event,) = events  # and the server ends it
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
    assert event["object"]["message"].startswith(f"too old resource version: {start} (")
    said = refusal(env.admin.get(group.path(resourceVersion=start, resourceVersionMatch="Exact")), 410, "Expired")
    assert said["message"] == "The resourceVersion for the provided list is too old."
    said = refusal(env.admin.get(group.path(limit=1, **{"continue": token})), 410, "Expired")
    rest = group.list(limit=9, **{"continue": said["metadata"]["continue"]})  # a state of another time, but all of it
    assert names(page["items"] + rest["items"]) == expected
    assert names(group.list(resourceVersion=0)["items"]) == expected


def test_after_a_restart(env: Environment) -> None:
    group = Group(env)
    made = sorted(names(group.put(2)))
    eventually(env, group.path(resourceVersion=0), made)
    with env.admin.watch(group.path(watch=1, resourceVersion=0, timeoutSeconds=60)) as events:
        take(events, 2)
        env.server.restart()
        with pytest.raises((OSError, HTTPException, StopIteration)):
            next(events)
    eventually(env, group.path(resourceVersion=0), made)
