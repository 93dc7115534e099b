"""The faults of the API server's stand-in, as a client's socket sees them."""

from __future__ import annotations

from math import inf

import pytest

from integration.apiserver import FakeApi
from integration.apiserver.faults import Place
from tests.raw_client import A_MOMENT, PATIENCE, SERVICES, SLICES, WATCH, Client, body, get, lines, service, shown


@pytest.mark.parametrize("end", ["reset", "closed"])
@pytest.mark.parametrize("place", ["start", "headers", 0, 1000, 0.5])
def test_a_list_breaks(api: FakeApi, end: str, place: Place) -> None:
    for i in range(20):
        api.put(service(f"s{i}", 1000))
    whole = Client(api, SERVICES, "Connection: close\r\n").read()
    (api.reset if end == "reset" else api.hang_up)(at=place)
    client = Client(api, SERVICES)
    got = client.read()
    assert client.end == end
    if end == "reset":  # what the kernel had not delivered yet is lost with the connection
        assert whole.startswith(got)
    if place == "start":
        assert got == b""
    elif place == "headers" and end == "closed":
        assert whole.startswith(got)
        assert b"\r\n\r\n" not in got
    elif end == "closed":
        assert len(body(got)) == (len(body(whole)) // 2 if place == 0.5 else place)
    assert get(api, SERVICES)[0] == 200  # the next is well


@pytest.mark.parametrize("end", ["reset", "closed"])
def test_a_watch_breaks_in_the_middle_of_a_line(api: FakeApi, end: str) -> None:
    (api.reset if end == "reset" else api.hang_up)(at="line", verb="watch")
    client = Client(api, WATCH)
    api.wait_for(lambda: api.watching("Service"))
    client.read(b"\r\n\r\n")
    api.put(service("web"))
    got = client.read()
    assert client.end == end
    assert b"\n" not in body(got).partition(b"\r\n")[2]
    if end == "closed":
        assert b'{"type":"ADDED"' in got


def test_running_watches_break(api: FakeApi) -> None:
    for reset, end in ((False, "closed"), (True, "reset")):
        client = Client(api, WATCH)
        api.wait_for(lambda: api.watching("Service"))
        api.cut_watches("Service", reset=reset)
        client.read()
        assert client.end == end


def test_a_fault_is_for_its_kind_its_verb_and_so_many_requests(api: FakeApi) -> None:
    api.fail(500, kind="Service", verb="list", times=2)
    api.fail(503, when=lambda path: "limit=7" in path, times=inf)
    assert get(api, SLICES)[0] == 200
    assert [get(api, SERVICES)[0] for _ in range(3)] == [500, 500, 200]
    assert [get(api, SERVICES + "?limit=7")[0] for _ in range(2)] == [503, 503]
    api.heal()
    assert get(api, SERVICES + "?limit=7")[0] == 200
    api.fail(500, verb="get")
    assert get(api, SERVICES)[0] == 200
    assert get(api, SERVICES + "/x")[0] == 404
    assert get(api, "/api/v1/nodes/x")[0] == 500


def test_throttling_says_when_to_come_again(api: FakeApi) -> None:
    api.fail(429, retry_after=7)
    code, headers, said = get(api, SERVICES)
    assert (code, headers["Retry-After"], said["reason"]) == (429, "7", "TooManyRequests")


@pytest.mark.parametrize("place", ["start", "headers", 0, 0.5])
def test_a_list_stalls_until_it_is_healed(api: FakeApi, place: Place) -> None:
    for i in range(20):
        api.put(service(f"s{i}", 1000))
    whole = Client(api, SERVICES, "Connection: close\r\n").read()
    api.stall(at=place)
    client = Client(api, SERVICES, "Connection: close\r\n")
    got = client.read(patience=A_MOMENT)
    assert client.end == "open"
    assert whole.startswith(got)
    assert len(got) < len(whole)
    api.heal()
    assert client.read() == whole


def test_a_frozen_watch_says_nothing_until_it_is_healed(api: FakeApi) -> None:
    api.watch_seconds = A_MOMENT / 2
    client = Client(api, WATCH)
    api.wait_for(lambda: api.watching("Service"))
    api.freeze_watches()
    api.put(service("web"))
    api.end_watches()
    assert body(client.read(patience=A_MOMENT)) == b""
    assert client.end == "open"
    api.heal()
    assert client.read(b"0\r\n\r\n").count(b'"type":"ADDED"') == 1


def test_a_frozen_watch_ends_with_the_server(api: FakeApi) -> None:
    client = Client(api, WATCH)
    api.wait_for(lambda: api.watching("Service"))
    api.freeze_watches()
    api.stop()
    client.read()
    assert client.end == "closed"


def test_a_server_that_says_nothing_at_all(api: FakeApi) -> None:
    api.silent = True
    client = Client(api, SERVICES)
    assert (client.read(patience=A_MOMENT), client.end) == (b"", "open")
    api.heal()
    assert b"200 OK" in client.read(b"\r\n\r\n")


def test_a_trickle(api: FakeApi) -> None:
    api.put(service("web", 2000))
    api.trickle(20, at=100)
    client = Client(api, SERVICES)
    first = len(client.read(b'{"metadata"'))
    client.socket.settimeout(PATIENCE)
    pieces = [client.socket.recv(65536) for _ in range(4)]
    assert max(map(len, pieces)) <= 4  # of more than 2,000; one byte a step
    assert first < 700
    api.heal()
    client.read(b"]}\n")


def test_a_trickling_watch(api: FakeApi) -> None:
    api.trickle(1000, verb="watch")
    client = Client(api, WATCH)
    api.wait_for(lambda: api.watching("Service"))
    for i in range(3):
        api.put(service(f"s{i}", 300))
    client.read(b"\r\n\r\n")
    pieces = [len(client.socket.recv(65536)) for _ in range(20)]
    assert max(pieces) <= 100  # of more than 1,500 bytes; two steps may arrive as one


def test_errors_and_nonsense_in_the_stream(api: FakeApi) -> None:
    client = Client(api, WATCH)
    api.wait_for(lambda: api.watching("Service"))
    api.inject("Service", b'{"type":"ADDED","obj')
    api.end_watches()
    assert b'{"type":"ADDED","obj\r\n0\r\n\r\n' in client.read(b"0\r\n\r\n")


def test_changes_come_twice(api: FakeApi) -> None:
    client = Client(api, WATCH)
    api.wait_for(lambda: api.watching("Service"))
    api.put(service("a"))
    api.put(service("b"))
    api.delete("Service", "default", "a")
    api.replay("Service", 2)
    api.end_watches()
    told = [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    assert shown(client.read(b"0\r\n\r\n")) == [*told, *told[1:]]


def test_a_watch_that_lags_too_far_behind_is_ended(api: FakeApi) -> None:
    api.buffer = 10
    client = Client(api, WATCH)
    api.wait_for(lambda: api.watching("Service"))
    api.put_all([service(f"s{i}") for i in range(50)])
    got = client.read(b"0\r\n\r\n")
    assert 10 <= len(lines(got)) < 50


def test_a_client_that_goes_away_is_noticed(api: FakeApi) -> None:
    client = Client(api, WATCH)
    api.wait_for(lambda: api.watching("Service"))
    client.close()
    api.wait_for(lambda: not api.watching("Service"))


@pytest.mark.parametrize(
    ("streaming", "code", "first"),
    [("on", 200, "BOOKMARK"), ("off", 200, "ERROR"), ("refused", 422, ""), ("ignored", 200, "ADDED")],
)
def test_what_becomes_of_a_streaming_list(api: FakeApi, streaming: str, code: int, first: str) -> None:
    api.streaming = streaming
    path = SERVICES + "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    client = Client(api, path)
    got = client.read(b"\r\n\r\n")
    assert f"HTTP/1.1 {code} ".encode() in got
    if first:
        api.put(service("web"))
        api.end_watches()
        assert lines(client.read(b"0\r\n\r\n"))[0]["type"] == first
