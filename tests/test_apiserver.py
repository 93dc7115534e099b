"""proxy.apiserver against the stand-in API server, over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from integration.apiserver.server import FakeApi, Object, error_line
from proxy import watch
from proxy.apiserver import ApiSource, Connection
from proxy.events import Delete, Event, Failed, Inbox, Put, Replace
from proxy.model import ENDPOINT_SLICE, KINDS, NODE, SERVICE, SERVICE_CIDR
from proxy.trouble import Trouble
from proxy.watch import Watcher
from proxy.watch_stream import as_it_is


def service(name: str, **meta: Any) -> Object:
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"} | meta,
        "spec": {"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ports": ports},
    }


def endpoint_slice(name: str, **labels: str) -> Object:
    return {
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": "web"} | labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.244.0.2"]}],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


def node(name: str, zone: str = "a") -> Object:
    return {"kind": "Node", "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}}, "spec": {}}


class Following:
    """A running source, and what it has told so far."""

    def __init__(self, api: FakeApi, kubeconfig: str, server: str = "") -> None:
        self.api = api
        self.inbox = Inbox()
        self.connection = Connection(kubeconfig, server, rand=lambda: 0.0)
        self.source = ApiSource(self.connection, self.inbox, "here", prepare=as_it_is)
        self.events: list[Event] = []

    def until(self, *kinds: type[Event], timeout: float = 10) -> list[Event]:
        """Take events until one of each of these types came, in this order; returns those that came, oldest first."""
        seen: list[Event] = []
        wanted = list(kinds)
        while wanted:
            events = self.inbox.take(timeout)
            assert events, f"nothing came; waited for {wanted}, had {seen}"
            seen += events
            for event in events:
                if wanted and isinstance(event, wanted[0]):
                    wanted.pop(0)
        self.events += seen
        return seen

    def begin(self) -> dict[str, list[str]]:
        """Start, wait for the four lists and watches. Returns the names of the objects by kind."""
        self.source.start()
        found = self.until(*[Replace] * 4)
        self.api.wait_for(self.api.watching)
        return {
            event.kind: [obj.metadata.name for obj in event.objects] for event in found if isinstance(event, Replace)
        }


@pytest.fixture
def following(api: FakeApi, tmp_path: Path) -> Iterator[Following]:
    follower = Following(api, api.kubeconfig(tmp_path / "kubeconfig"))
    yield follower
    follower.source.stop()


def shown(events: list[Event]) -> list[tuple[str, str]]:
    names = []
    for event in events:
        if isinstance(event, Put):
            names.append(("put", event.obj.metadata.name))
        elif isinstance(event, Delete):
            names.append(("delete", event.name))
        else:
            names.append((type(event).__name__.lower(), getattr(event, "kind", "")))
    return names


def how(api: FakeApi, *kinds: str) -> list[str]:
    """The requests so far: 'list', 'stream' (a streaming list) or 'watch', with a '@' and the version if one is named."""
    shown = []
    for request in api.requests:
        if request.kind in (kinds or KINDS):
            verb = "stream" if "sendInitialEvents" in request.query else request.verb
            version = request.query.get("resourceVersion", "")
            shown.append(f"{verb}@{version}" if version else verb)
    return shown


def alive(source: ApiSource) -> list[str]:
    return [thread.name for thread in source._threads if thread.is_alive()]


# -- The source --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", ["on", "off", "refused"])
def test_it_lists_what_concerns_this_node(api: FakeApi, following: Following, streaming: str) -> None:
    api.streaming = streaming
    api.put(service("web"))
    api.put(service("foreign", labels={"service.kubernetes.io/service-proxy-name": "other"}))
    api.put(endpoint_slice("web-a"))
    api.put(endpoint_slice("headless", **{"service.kubernetes.io/headless": ""}))
    api.put({"kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12"]}})
    api.put(node("here"))
    api.put(node("there"))
    assert following.begin() == {
        SERVICE: ["web"],
        ENDPOINT_SLICE: ["web-a"],
        SERVICE_CIDR: ["kubernetes"],
        NODE: ["here"],
    }
    mode = "streaming" if streaming == "on" else "list"
    assert [watcher.mode for watcher in following.source.watchers] == [mode] * 4


def test_a_server_from_before_streaming_lists(
    api: FakeApi, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "STREAM_SILENCE", 0.1)
    api.streaming = "ignored"
    api.put(service("web"))
    assert following.begin()[SERVICE] == ["web"]
    assert how(api, SERVICE) == ["stream", "list@0", "watch@2"]


def test_it_follows_changes_on_the_stream_of_the_list(api: FakeApi, following: Following) -> None:
    api.put(endpoint_slice("web-a"))
    following.begin()
    api.put(service("web"))
    assert shown(following.until(Put)) == [("put", "web")]
    api.put(endpoint_slice("web-a", **{"service.kubernetes.io/headless": ""}))  # leaves the selector
    assert shown(following.until(Delete)) == [("delete", "web-a")]
    api.put(node("there"))
    api.put(node("here", zone="b"))
    assert shown(following.until(Put)) == [("put", "here")]
    api.delete("Service", "default", "web")
    assert shown(following.until(Delete)) == [("delete", "web")]
    assert how(api) == ["stream"] * 4


def test_a_burst_arrives_whole_and_in_order(api: FakeApi, following: Following) -> None:
    following.begin()
    for i in range(500):
        api.put(service(f"s{i}"))
    assert shown(following.until(*[Put] * 500)) == [("put", f"s{i}") for i in range(500)]


def test_a_long_list_comes_compressed(api: FakeApi, following: Following) -> None:
    api.streaming = "refused"
    for i in range(600):
        api.put(service(f"s{i}", annotations={"filler": "x" * 200}))
    with following.connection.get("/api/v1/services", read_timeout=5, compressed=True) as answer:
        assert answer.header("Content-Encoding") == "gzip"
        assert len(answer.read()) > 128 << 10
    assert len(following.begin()[SERVICE]) == 600
    assert {r.headers["Accept-Encoding"] for r in api.requests if r.verb == "watch"} == {"identity"}


def test_a_broken_connection_goes_on_without_a_list(api: FakeApi, following: Following) -> None:
    following.begin()
    api.put(service("one"))
    following.until(Put)
    api.inject(SERVICE, b'{"type":"ADDED","object":{"kind":"Serv')
    api.cut_watches()
    api.put(service("two"))
    assert shown(following.until(Put)) == [("put", "two")]
    api.wait_for(api.watching)
    assert how(api, SERVICE) == ["stream", "watch@2"]


@pytest.mark.parametrize("at", ["start", "headers", "line", 40])
def test_resets_at_any_place_of_a_streaming_list(api: FakeApi, following: Following, at: str | int) -> None:
    api.put(service("web"))
    api.reset(at=at, kind=SERVICE)
    assert following.begin()[SERVICE] == ["web"]
    assert how(api, SERVICE) == ["stream", "stream"]


@pytest.mark.parametrize("at", ["start", 40, 0.5])
def test_resets_at_any_place_of_a_list(api: FakeApi, following: Following, at: str | float) -> None:
    api.streaming = "refused"
    api.put(service("web"))
    api.reset(at=at, kind=SERVICE, verb="list")
    assert following.begin()[SERVICE] == ["web"]
    assert how(api, SERVICE)[:3] == ["stream", "list@0", "list@0"]


def test_an_ended_watch_goes_on_without_a_list(api: FakeApi, following: Following) -> None:
    following.begin()
    api.bookmark()
    api.end_watches()
    api.wait_for(lambda: len(how(api)) == 8)
    api.put(service("web"))
    assert shown(following.until(Put)) == [("put", "web")]
    assert "list" not in "".join(how(api))


def test_a_bookmark_keeps_the_version_young(api: FakeApi, following: Following) -> None:
    following.begin()
    for _ in range(5):
        api.put(node("there"))  # moves the version of the cluster, unseen
    api.put(node("here"))
    following.until(Put)
    api.bookmark(SERVICE)
    api.put(service("web"))  # behind the bookmark in the stream: when it is here, so is the bookmark
    following.until(Put)
    api.compact()
    api.end_watches(SERVICE)
    api.wait_for(lambda: how(api, SERVICE) == ["stream", "watch@8"])
    api.put(service("other"))
    assert shown(following.until(Put)) == [("put", "other")]


def test_expired_lists_again(api: FakeApi, following: Following) -> None:
    api.put(service("old"))
    following.begin()
    api.fail(503, kind=SERVICE, verb="watch")  # keeps it away while the history goes
    api.cut_watches(SERVICE)
    api.delete("Service", "default", "old")
    api.put(service("new"))
    api.compact()
    replaced = [event for event in following.until(Replace) if isinstance(event, Replace)][-1]
    assert [obj.metadata.name for obj in replaced.objects] == ["new"]
    assert how(api, SERVICE)[-1] == "stream@2"


def test_expired_in_a_running_stream_lists_again(api: FakeApi, following: Following) -> None:
    following.begin()
    api.inject(SERVICE, error_line(410, "Expired", "too old resource version: 1 (9)"))
    (replaced,) = following.until(Replace)
    assert isinstance(replaced, Replace)
    assert replaced.kind == SERVICE


def test_changes_that_come_again_are_passed_over(api: FakeApi, following: Following) -> None:
    following.begin()
    api.put(service("web", labels={"v": "1"}))
    api.put(service("web", labels={"v": "2"}))
    api.delete(SERVICE, "default", "web")
    following.until(Put, Put, Delete)
    api.replay(SERVICE, 3)  # the last is as old as what is known, and does no harm
    api.put(service("other"))
    assert shown(following.until(Put)) == [("delete", "web"), ("put", "other")]


def test_an_unreadable_object_leaves_the_others(api: FakeApi, following: Following) -> None:
    bad = service("bad")
    bad["spec"]["ports"] = [{"port": "http"}]
    api.put(bad)
    api.put(service("good"))
    assert following.begin()[SERVICE] == ["good"]
    assert following.source.left_out == 1
    api.put(service("bad"))
    assert shown(following.until(Put)) == [("put", "bad")]
    assert following.source.left_out == 0


def test_an_older_server_without_service_cidrs(api: FakeApi, following: Following) -> None:
    api.absent.add(SERVICE_CIDR)
    following.source.start()
    found = following.until(*[Replace] * 4)
    assert {event.kind for event in found if isinstance(event, Replace)} == set(KINDS)
    api.wait_for(lambda: api.watching(SERVICE, ENDPOINT_SLICE, NODE))
    assert how(api, SERVICE_CIDR) == ["stream"]


def test_a_server_that_is_away_at_first(tmp_path: Path) -> None:
    api = FakeApi().start()
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    api.stop()
    with capture_logs() as logs:
        follower = Following(api, kubeconfig)
        follower.source.start()
        assert follower.inbox.take(0.5) == []
        api.put(service("web"))
        api.start()
        try:
            found = follower.until(*[Replace] * 4)
        finally:
            follower.source.stop()
            api.stop()
    assert len(found) == 4
    away = [entry for entry in logs if entry["event"] == "api_unreachable"]
    assert sorted(entry["kind"] for entry in away) == sorted(KINDS)
    assert {entry["cause"] for entry in away} == {"Connection refused"}


def test_a_server_that_restarts(api: FakeApi, following: Following) -> None:
    following.begin()
    api.stop()
    api.put(service("web"))
    api.start()
    assert shown(following.until(Put)) == [("put", "web")]
    assert how(api, SERVICE)[0] == "stream"
    assert set(how(api, SERVICE)[1:]) == {"watch@1"}


def test_a_server_that_restarts_and_has_forgotten(api: FakeApi, following: Following) -> None:
    api.put(service("web"))
    following.begin()
    api.put(node("there"))
    api.restart()
    (replaced,) = [event for event in following.until(Replace) if isinstance(event, Replace)][:1]
    assert replaced.kind in KINDS


@pytest.mark.parametrize("code", [401, 403, 429, 500, 503])
def test_refusals_pass(api: FakeApi, following: Following, code: int) -> None:
    api.fail(code, times=4)
    api.put(service("web"))
    assert following.begin()[SERVICE] == ["web"]


def test_a_bug_ends_the_agent_and_not_the_thread_alone(
    api: FakeApi, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall(self: Watcher) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Watcher, "run", fall)
    following.source.start()
    events = following.until(*[Failed] * 4)
    assert isinstance(events[0], Failed)
    assert str(events[0].error) == "a bug"


# -- Silence -----------------------------------------------------------------------------------------------------------


def test_a_stalled_streaming_list_is_noticed(
    api: FakeApi, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "STREAM_SILENCE", 0.2)
    for i in range(20):
        api.put(service(f"s{i}"))
    api.stall(at=2000, kind=SERVICE)
    assert len(following.begin()[SERVICE]) == 20
    assert how(api, SERVICE)[:2] == ["stream", "list@0"]


@pytest.mark.parametrize("at", [0.5, 200])
def test_a_stalled_list_is_noticed(
    api: FakeApi, following: Following, monkeypatch: pytest.MonkeyPatch, at: float
) -> None:
    monkeypatch.setattr(watch, "LIST_SILENCE", 0.2)
    api.streaming = "refused"
    api.put(service("web"))
    api.stall(at=at, kind=SERVICE, verb="list")
    assert following.begin()[SERVICE] == ["web"]


def test_a_watch_that_has_gone_silent_begins_anew(
    api: FakeApi, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "WATCH_SILENCE", 0.3)
    monkeypatch.setattr(watch, "SHORTEST", 0.1)
    following.begin()
    with capture_logs() as logs:
        api.freeze_watches()
        api.put(service("web"))
        assert shown(following.until(Put)) == [("put", "web")]
    assert [entry for entry in logs if entry["log_level"] == "warning"] == []


def test_a_long_wait_for_a_change_is_no_silence_yet(
    api: FakeApi, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the list, the time that a watch may be silent counts, not that of a list."""
    monkeypatch.setattr(watch, "STREAM_SILENCE", 0.2)
    following.begin()
    threading.Event().wait(0.5)
    assert how(api) == ["stream"] * 4


def test_a_dead_peer_is_noticed_by_the_kernel(api: FakeApi, following: Following) -> None:
    following.begin()
    for sock in list(following.connection._sockets._open):
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, interval, count = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + interval * count <= 60
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000


# -- stop --------------------------------------------------------------------------------------------------------------


def test_stop_ends_threads_that_wait_for_events(api: FakeApi, following: Following) -> None:
    following.begin()
    following.source.stop()
    assert alive(following.source) == []


@pytest.mark.parametrize("at", ["start", 0])
def test_stop_ends_threads_that_wait_for_an_answer(api: FakeApi, following: Following, at: str | int) -> None:
    api.stall(at=at, times=4)
    following.source.start()
    api.wait_for(lambda: len(api.requests) == 4)
    following.source.stop()
    assert alive(following.source) == []


def test_stop_ends_threads_that_pause(api: FakeApi, following: Following) -> None:
    api.fail(503, times=inf, retry_after=60)
    following.source.start()
    api.wait_for(lambda: len(api.requests) == 4)
    following.source.stop()
    assert alive(following.source) == []


def test_stop_without_start(following: Following) -> None:
    following.source.stop()
    assert alive(following.source) == []


def test_a_closed_connection_stays_closed(api: FakeApi, following: Following) -> None:
    following.connection.close()
    with pytest.raises(Trouble), following.connection.get("/version", read_timeout=1):
        pass
    assert api.requests == []
