"""The stand-in for the API server answers as a real one was recorded to answer: status, headers and body."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from integration.apiserver import FakeApi, Object
from tests.recordings import Exchange, numbers

TOKEN = "right"
EVENTS_LAST = "initial-events-end"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi(token=TOKEN, watch_seconds=0.1) as server:
        yield server


Answer = tuple[int, dict[str, str], bytes]


def replay(
    api: FakeApi, exchange: Exchange, token: str = TOKEN, meanwhile: Callable[[], object] = lambda: None
) -> Answer:
    """The recorded request, asked of the stand-in. `meanwhile` runs when the first answer's head is here."""
    headers = exchange.request_headers | {"Host": "x"}
    if "Authorization" in headers:
        headers["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
    try:
        connection.request(exchange.method, exchange.path, exchange.request_body, headers)
        answer = connection.getresponse()
        meanwhile()
        body = answer.read()
    finally:
        connection.close()
    found: dict[str, str] = {}
    for name, value in answer.getheaders():
        found[name] = f"{found[name]}, {value}" if name in found else value
    return answer.status, found, body


def compare(exchange: Exchange, answer: Answer) -> None:
    status, headers, body = answer
    assert status == exchange.status
    assert body == exchange.body
    assert headers == exchange.headers


def happen(api: FakeApi, kind: str, events: Iterable[tuple[str, Object]]) -> None:
    """Let these changes come about, each at the version that it was recorded at."""
    for what, obj in events:
        meta = obj["metadata"]
        api.version = int(meta["resourceVersion"]) - 1
        if what == "DELETED":
            api.delete(kind, meta.get("namespace", ""), meta["name"])
        else:
            api.put({"kind": kind} | obj)


def exist(api: FakeApi, kind: str, objects: Iterable[Object], version: int = 0) -> None:
    """Let these objects have been created, in the order of their versions, and perhaps others later."""
    in_order = sorted(objects, key=lambda obj: int(obj["metadata"]["resourceVersion"]))
    happen(api, kind, [("ADDED", obj) for obj in in_order])
    api.version = version or api.version


def items(number: str) -> list[Object]:
    found: list[Object] = json.loads(Exchange(number).body)["items"]
    return found


def events(number: str) -> list[tuple[str, Object]]:
    lines = [json.loads(line) for line in Exchange(number).body.splitlines()]
    return [(line["type"], line["object"]) for line in lines if line["type"] != "BOOKMARK"]


def listed(number: str, kind: str) -> Callable[[FakeApi], None]:
    """The objects of a recorded list are there, and the version is its version."""

    def prepare(api: FakeApi) -> None:
        version = int(json.loads(Exchange(number).body)["metadata"]["resourceVersion"])
        exist(api, kind, items(number), version)

    return prepare


def pages(api: FakeApi) -> None:
    exist(api, "Service", items("04") + items("05"), 219)


def forgotten(api: FakeApi) -> None:
    api.version = 239
    api.compact()


def at(version: int) -> Callable[[FakeApi], None]:
    return lambda api: setattr(api, "version", version)


def history(api: FakeApi) -> None:
    happen(api, "Service", events("12"))


def nothing(api: FakeApi) -> None:
    pass


def without_streams(api: FakeApi) -> None:
    api.streaming = "off"


STATES: dict[str, Callable[[FakeApi], None]] = {
    "01": nothing,
    "02": listed("02", "Service"),
    "03": listed("03", "EndpointSlice"),
    "04": pages,
    "05": pages,
    "06": listed("06", "ServiceCIDR"),
    "07": listed("07", "Node"),
    "11b": without_streams,
    "12": history,
    "13": forgotten,
    "14": forgotten,
    "15": at(239),
    "16": at(252),
    "17": nothing,
    "18": nothing,
    "19": nothing,
    "20": nothing,
    "21": nothing,
}
WATCHED = ("08", "09", "10", "11", "22")
OTHERS = ("23", "24")


def test_every_recording_is_replayed() -> None:
    assert sorted([*STATES, *WATCHED, *OTHERS]) == numbers()


@pytest.mark.parametrize("number", STATES)
def test_it_answers_as_recorded(api: FakeApi, number: str) -> None:
    STATES[number](api)
    compare(Exchange(number), replay(api, Exchange(number), "wrong" if number == "19" else TOKEN))


@pytest.mark.parametrize(
    ("number", "kind", "before", "version"),
    [
        ("08", "Service", lambda: items("04") + items("05"), 219),
        ("09", "EndpointSlice", lambda: items("03"), 224),
        ("11", "Service", lambda: items("04") + items("05"), 231),
        ("22", "Node", lambda: items("07"), 252),
    ],
)
def test_it_shows_changes_as_recorded(
    api: FakeApi, number: str, kind: str, before: Callable[[], list[Object]], version: int
) -> None:
    exist(api, kind, before(), version)
    api.watch_seconds = 2.2  # the last bookmark comes two seconds before the end

    def meanwhile() -> None:
        api.wait_for(lambda: api.watching(kind))
        known = {obj["metadata"]["resourceVersion"] for obj in before()}
        happen(
            api, kind, [(what, obj) for what, obj in events(number) if obj["metadata"]["resourceVersion"] not in known]
        )

    compare(Exchange(number), replay(api, Exchange(number), meanwhile=meanwhile))


def test_what_leaves_a_selector_is_deleted_as_recorded(api: FakeApi) -> None:
    exist(api, "EndpointSlice", items("03"), 228)
    ((_, gone),) = events("10")
    meta = gone["metadata"] | {"labels": gone["metadata"]["labels"] | {"service.kubernetes.io/headless": ""}}
    last = next(obj for obj in items("03") if obj["metadata"]["name"] == meta["name"])
    api.put({"kind": "EndpointSlice"} | last | {"metadata": meta})
    compare(Exchange("10"), replay(api, Exchange("10")))


def without_accidents(event: Object) -> Object:
    meta = event["metadata"] | {"uid": "", "resourceVersion": "", "creationTimestamp": ""}
    meta.pop("managedFields", None)
    return event | {"metadata": meta}


def test_an_event_is_created_as_recorded(api: FakeApi) -> None:
    exchange = Exchange("23")
    status, headers, body = replay(api, exchange)
    assert status == exchange.status
    assert headers | {"Content-Length": "860"} == exchange.headers  # the stand-in has no managedFields
    ours, theirs = (without_accidents(json.loads(text)) for text in (body, exchange.body))
    assert json.dumps(ours) == json.dumps(theirs)  # in the same order too
    assert api.posted == [(exchange.path, json.loads(exchange.request_body or b""))]
    assert [event["note"] for event in api.objects("Event")] == ["started"]


def test_a_large_answer_is_compressed_as_recorded(api: FakeApi) -> None:
    exchange = Exchange("24")
    spec: dict[str, Any] = {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}
    for i in range(1000):
        meta = {"name": f"s{i}", "annotations": {"filler": "x" * 100}}
        api.put({"kind": "Service", "metadata": meta, "spec": spec})
    exchange.path = "/api/v1/services"
    status, headers, body = replay(api, exchange)
    assert (status, body[:2]) == (200, b"\x1f\x8b")
    of_a_file = {"Accept-Ranges", "Etag", "Last-Modified", "Vary"}
    assert headers == {k: v for k, v in exchange.headers.items() if k not in of_a_file} | {"Vary": "Accept-Encoding"}
    assert exchange.headers["Vary"].startswith("Accept-Encoding")
