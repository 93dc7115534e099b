"""proxy.node_events: the thread that sends Events, against a store that behaves as the API server's, and over HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from integration.apiserver import FakeApi
from proxy.apiserver import Connection
from proxy.event_series import RULE
from proxy.node_events import EventRecorder
from proxy.node_reports import NodeReports
from tests.event_store import LOST, EventStore, Reply


@pytest.fixture
def store() -> EventStore:
    return EventStore()


@pytest.fixture
def recorder(store: EventStore) -> Iterator[EventRecorder]:
    made = EventRecorder(store, "node0", rand=lambda: 0.0)
    yield made
    store.gate.set()
    made.stop(5.0)


def test_what_happens_is_told(store: EventStore, recorder: EventRecorder) -> None:
    recorder.start()
    recorder.record("Starting", "version 1", action="StartKubeProxy")
    recorder.record("FailedToSyncRules", "kernel says no", warning=True)
    store.wait_until(lambda: len(store.events) == 2)
    first, second = store.events.values()
    assert (first["reason"], first["type"], first["action"]) == ("Starting", "Normal", "StartKubeProxy")
    assert (second["reason"], second["type"], second["note"]) == ("FailedToSyncRules", "Warning", "kernel says no")
    seconds = datetime.fromisoformat(first["eventTime"]).timestamp()
    assert abs(time.time() - seconds) < 60


def test_what_happened_before_the_start_is_told_too(store: EventStore, recorder: EventRecorder) -> None:
    recorder.record("Starting", "")
    recorder.start()
    store.wait_until(lambda: len(store.events) == 1)


def test_the_second_time_is_a_patch(store: EventStore, recorder: EventRecorder) -> None:
    recorder.start()
    recorder.record("Starting", "")
    store.wait_until(lambda: len(store.events) == 1)
    recorder.record("Starting", "")
    store.wait_until(lambda: store.counts == {"": 2})
    assert [method for method, _, _ in store.requests] == ["POST", "PATCH"]


def test_the_uid_of_the_node_is_told_as_soon_as_it_is_known(store: EventStore, recorder: EventRecorder) -> None:
    recorder.start()
    recorder.record("Starting", "")
    store.wait_until(lambda: len(store.events) == 1)
    recorder.node_uid = "8e0ad4f6"
    recorder.record("Ready", "")
    store.wait_until(lambda: len(store.events) == 2)
    assert [event["regarding"]["uid"] for event in store.events.values()] == ["node0", "8e0ad4f6"]


def test_recording_does_not_wait_for_the_server(store: EventStore, recorder: EventRecorder) -> None:
    store.gate.clear()
    recorder.start()
    recorder.record("Starting", "")
    store.wait_for_request()
    for _ in range(1000):
        recorder.record("FailedToSyncRules", "no", warning=True)  # returns while the server has a request
    store.gate.set()
    store.wait_until(lambda: store.counts == {"": 1, "no": 1000})


def test_many_threads_may_record(store: EventStore, recorder: EventRecorder) -> None:
    recorder.start()

    def record() -> None:
        for n in range(200):
            recorder.record("R", str(n % 5))

    threads = [threading.Thread(target=record) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.stop(5.0)
    assert store.counts == {str(n): 320 for n in range(5)}


def test_faults_are_waited_for(store: EventStore, recorder: EventRecorder) -> None:
    store.answers += [503, LOST]
    recorder.start()
    recorder.record("Starting", "")
    store.wait_until(lambda: [status for _, _, status in store.requests] == [503, 201, 409])
    assert store.counts == {"": 1}


def test_the_server_says_how_long_to_wait(store: EventStore, recorder: EventRecorder) -> None:
    store.answers.append(429)
    store.retry_after = 50.0
    recorder.start()
    recorder.record("Starting", "")
    store.wait_until(lambda: len(store.requests) == 1)
    recorder.stop(5.0)
    at = recorder._events.wake_at()
    assert at is not None and at > time.monotonic() + 20 and len(store.requests) == 1


def test_whatever_a_socket_says_is_no_answer() -> None:
    class Closed(EventStore):
        def send(self, *args: Any, **more: Any) -> Reply:
            if not self.requests:
                self.requests.append(("", "", 0))
                raise OSError("closed")
            return super().send(*args, **more)

    store = Closed()
    recorder = EventRecorder(store, "node0")
    recorder.start()
    recorder.record("Starting", "")
    store.wait_until(lambda: len(store.events) == 1)
    recorder.stop(5.0)


def test_stop_sends_what_is_left(store: EventStore, recorder: EventRecorder) -> None:
    recorder.start()
    for n in range(10):
        recorder.record(f"Reason{n}", "", warning=True)
    recorder.stop(5.0)
    assert len(store.events) == 10
    recorder.record("TooLate", "")
    recorder.stop()
    assert len(store.events) == 10
    assert not recorder._thread.is_alive()


def test_stop_tells_the_counts_that_could_have_waited(store: EventStore, recorder: EventRecorder) -> None:
    recorder.start()
    recorder.record("R", "")
    store.wait_until(lambda: len(store.events) == 1)
    recorder.record("R", "")
    store.wait_until(lambda: store.counts == {"": 2})
    recorder.record("R", "")
    recorder.stop(5.0)
    assert store.counts == {"": 3}


def test_stop_does_not_wait_for_a_server_that_does_not_answer(store: EventStore, recorder: EventRecorder) -> None:
    store.gate.clear()
    recorder.start()
    recorder.record("Starting", "")
    store.wait_for_request()
    recorder.record("More", "")
    recorder.stop(0.05)
    assert recorder._thread.is_alive()  # the request still has seconds to go
    store.gate.set()
    recorder._thread.join(10.0)
    assert len(store.requests) == 1  # and none after it


def test_stop_does_not_ask_again_what_fails(store: EventStore, recorder: EventRecorder) -> None:
    store.answers += [503] * 100
    recorder.start()
    recorder.record("Starting", "")
    store.wait_until(lambda: len(store.requests) >= 1)
    recorder.stop(5.0)
    assert not recorder._thread.is_alive()
    assert len(store.answers) > 90


def test_stop_without_a_start(store: EventStore, recorder: EventRecorder) -> None:
    recorder.record("Starting", "")
    recorder.stop()
    assert store.requests == []


def test_what_is_missing_is_in_the_log_once(store: EventStore, recorder: EventRecorder) -> None:
    store.answers += [403, 403]
    with capture_logs() as logs:
        recorder.start()
        recorder.record("Starting", "one")
        recorder.record("Starting", "two")
        store.wait_until(lambda: len(store.requests) == 1)
        recorder.stop(5.0)
    (line,) = logs
    assert line["event"] == "node_events_forbidden" and line["log_level"] == "warning"
    assert line["remedy"] == f"grant this account, in a Role of namespace default or a ClusterRole: {RULE}"
    assert line["cause"] == "HTTP 403: said so"


def test_what_is_refused_is_in_the_log(store: EventStore, recorder: EventRecorder) -> None:
    store.answers.append(422)
    with capture_logs() as logs:
        recorder.start()
        recorder.record("Starting", "nonsense")
        recorder.stop(5.0)
    (line,) = logs
    assert (line["event"], line["reason"], line["note"], line["lost"]) == ("node_event_lost", "Starting", "nonsense", 1)
    assert recorder.dropped == 1


def test_a_bug_ends_the_events_and_nothing_else() -> None:
    class Broken:
        def send(self, *_: object, **__: object) -> Reply:
            raise KeyError("oh")

    recorder = EventRecorder(Broken(), "node0")
    with capture_logs() as logs:
        recorder.start()
        recorder.record("Starting", "")
        recorder._thread.join(10.0)
    assert [(line["event"], line["cause"]) for line in logs] == [("node_events_ended", "KeyError: 'oh'")]
    for n in range(1000):
        recorder.record(f"Reason{n}", "")
    recorder.stop()
    assert len(recorder._events) <= 64


# -- Over HTTP ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi(token="secret") as server:
        yield server


@pytest.fixture
def connection(api: FakeApi, tmp_path: Path) -> Iterator[Connection]:
    made = Connection(api.kubeconfig(tmp_path / "kubeconfig", token="secret"))
    yield made
    made.close()


def _counts(api: FakeApi) -> list[int]:
    return [event.get("series", {"count": 1})["count"] for event in api.objects("Event")]


def _eventually(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_api_server_takes_what_happens(api: FakeApi, connection: Connection) -> None:
    recorder = EventRecorder(connection, "node0")
    recorder.start()
    NodeReports(recorder).started("0.1.0")
    recorder.record("Odd", "äöü" * 1000, warning=True)
    _eventually(lambda: _counts(api) == [1, 1])
    recorder.record("Odd", "äöü" * 1000, warning=True)
    _eventually(lambda: _counts(api) == [1, 2])
    recorder.record("Odd", "äöü" * 1000, warning=True)
    recorder.stop(5.0)
    assert _counts(api) == [1, 3]
    started, odd = api.objects("Event")
    assert started["regarding"] == {"kind": "Node", "name": "node0", "uid": "node0", "apiVersion": "v1"}
    assert (started["reason"], started["note"], started["type"]) == ("Starting", "kube-proxy-nft 0.1.0", "Normal")
    assert odd["note"].endswith("…") and odd["type"] == "Warning"


def test_an_event_that_was_deleted_is_made_anew(api: FakeApi, connection: Connection) -> None:
    recorder = EventRecorder(connection, "node0")
    recorder.start()
    recorder.record("Odd", "")
    _eventually(lambda: _counts(api) == [1])
    api.delete("Event", "default", api.objects("Event")[0]["metadata"]["name"])
    recorder.record("Odd", "")
    _eventually(lambda: _counts(api) == [2])
    recorder.stop(5.0)


def test_an_agent_that_is_started_again_and_again(api: FakeApi, connection: Connection) -> None:
    for _ in range(3):
        recorder = EventRecorder(connection, "node0")
        reports = NodeReports(recorder)
        recorder.start()
        reports.started("0.1.0")
        reports.configured("IPVSDeprecation", "ipvs.scheduler has no effect")
        recorder.stop(5.0)
        assert recorder.dropped == 0
    assert sorted(event["reason"] for event in api.objects("Event")) == ["IPVSDeprecation"] + ["Starting"] * 3


def test_without_permission(api: FakeApi, connection: Connection) -> None:
    api.rules["admin"] = [{"apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch"]}]
    recorder = EventRecorder(connection, "node0")
    with capture_logs() as logs:
        recorder.start()
        recorder.record("Starting", "")
        recorder.record("Odd", "")
        recorder.stop(5.0)
    (line,) = logs
    assert line["event"] == "node_events_forbidden" and 'cannot create resource "events"' in line["cause"]
    assert len(api.posted) == 1


def test_an_api_server_that_throttles(api: FakeApi, connection: Connection) -> None:
    api.fail(429, verb="create", retry_after=50)
    recorder = EventRecorder(connection, "node0")
    recorder.start()
    recorder.record("Starting", "")
    recorder.stop(5.0)
    assert len(api.posted) == 1 and recorder.dropped == 0


def test_an_api_server_that_is_away_is_no_reason_to_wait_at_the_end(tmp_path: Path) -> None:
    with FakeApi() as api:
        kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    recorder = EventRecorder(Connection(kubeconfig), "node0")
    recorder.start()
    recorder.record("Starting", "")
    recorder.stop(5.0)
    assert not recorder._thread.is_alive() and recorder.dropped == 0
