"""proxy.apiserver.Connection against the stand-in API server and against sockets that answer what no server should."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
import threading
import zlib
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from integration.apiserver.server import FakeApi, error_line
from proxy import connections
from proxy.apiserver import Connection, Reply
from proxy.events import Put, Replace
from proxy.model import SERVICE
from proxy.trouble import BROKEN, SILENT, UNREACHABLE, Trouble
from tests.test_apiserver import Following, how, service, shown


@pytest.fixture
def following(api: FakeApi, tmp_path: Path) -> Iterator[Following]:
    follower = Following(api, api.kubeconfig(tmp_path / "kubeconfig"))
    yield follower
    follower.source.stop()


# -- The connection ----------------------------------------------------------------------------------------------------


def services(connection: Connection) -> int:
    """The status of a list of Services."""
    with connection.get("/api/v1/services", read_timeout=5) as answer:
        answer.read()
        return answer.status


def test_silence_has_an_end(api: FakeApi, following: Following) -> None:
    api.stall()
    with pytest.raises(Trouble) as caught, following.connection.get("/api/v1/services", read_timeout=0.1):
        pass
    assert (caught.value.status, caught.value.cause) == (UNREACHABLE, "timed out")


def test_silence_in_a_stream_has_an_end(api: FakeApi, following: Following) -> None:
    path = "/api/v1/services?watch=1&resourceVersion=1"
    with following.connection.get(path, read_timeout=5) as answer:
        answer.wait_up_to(0.1)
        with pytest.raises(Trouble) as caught:
            list(answer.pieces())
    assert (caught.value.status, caught.value.cause) == (SILENT, "timed out")


def test_a_stream_that_breaks(api: FakeApi, following: Following) -> None:
    api.put(service("web"))
    api.reset(at="line")
    path = "/api/v1/services?watch=1&resourceVersion=1"
    with following.connection.get(path, read_timeout=5) as answer, pytest.raises(Trouble) as caught:
        list(answer.pieces())
    assert caught.value.status == BROKEN


def test_redirects_are_not_followed(api: FakeApi, following: Following) -> None:
    api.fail(302, headers={"Location": "/api/v1/nodes"})
    with following.connection.get("/api/v1/services", read_timeout=1) as answer:
        assert answer.status == 302
    assert [request.path for request in api.requests] == ["/api/v1/services"]


def test_an_object_is_sent(api: FakeApi, following: Following) -> None:
    event = {"kind": "Event", "metadata": {"name": "here.1", "namespace": "default"}}
    body = (b'{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"here.1","namespace":"default"},'
            b'"eventTime":null,"reason":"Starting","action":"Start","type":"Normal","reportingController":"x",'
            b'"reportingInstance":"y","regarding":{"kind":"Node","name":"here"}}')  # fmt: skip
    reply = following.connection.send("POST", "/apis/events.k8s.io/v1/namespaces/default/events", body)
    assert api.posted[0][0] == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert api.posted[0][1]["metadata"] == event["metadata"]
    assert isinstance(reply, Reply)
    assert reply.body


def test_what_is_sent_may_be_refused(api: FakeApi, following: Following) -> None:
    api.fail(429, verb="any", retry_after=3)
    reply = following.connection.send("POST", "/api/v1/namespaces/default/events", b"{}")
    assert (reply.status, reply.retry_after) == (429, 3.0)
    assert b"injected" in reply.body


def test_nobody_to_send_to(api: FakeApi, following: Following) -> None:
    api.stop()
    with pytest.raises(Trouble) as caught:
        following.connection.send("POST", "/api/v1/namespaces/default/events", b"{}")
    assert (caught.value.status, caught.value.cause) == (UNREACHABLE, "Connection refused")


def test_threads_may_share_it(api: FakeApi, following: Following) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(services(following.connection))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == [200] * 12


def test_importing_costs_nothing_and_the_kubernetes_package_is_not_loaded(api: FakeApi, tmp_path: Path) -> None:
    program = """
        import sys
        import proxy.apiserver
        assert not {"kubernetes", "urllib3", "requests"} & set(sys.modules)
        proxy.apiserver.Connection(sys.argv[1])
        assert not {"kubernetes", "requests"} & set(sys.modules)
    """
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), kubeconfig], check=True, timeout=60)


class Raw:
    """A server that answers the first request with these bytes, as they are, and then closes or stays."""

    def __init__(self, answer: bytes, *, stay: bool = False) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._answer, self._stay = answer, stay
        self._done = threading.Event()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(self._answer)
            if self._stay:
                self._done.wait(10)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._listener.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def received(answer: bytes) -> list[bytes]:
    with Raw(answer) as server, Connection(server=server.url).get("/", read_timeout=5) as got:
        return list(got.pieces())


def test_a_watch_that_somebody_on_the_way_compresses() -> None:
    """Nobody asked for it. What has arrived comes out, line by line."""
    compressor = zlib.compressobj(wbits=31)
    pieces = [compressor.compress(line) + compressor.flush(zlib.Z_SYNC_FLUSH) for line in (b"one\n", b"two\n")]
    body = b"".join(map(chunk, [*pieces, compressor.flush()]))
    answer = HEAD + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"
    assert b"".join(received(answer)) == b"one\ntwo\n"


def test_a_compressed_watch_comes_line_by_line() -> None:
    compressor = zlib.compressobj(wbits=31)
    piece = compressor.compress(b"one\n") + compressor.flush(zlib.Z_SYNC_FLUSH)
    head = HEAD + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    with Raw(head + chunk(piece), stay=True) as server, Connection(server=server.url).get("/", read_timeout=5) as got:
        assert next(got.pieces()) == b"one\n"


def test_trailers_are_read_past() -> None:
    answer = HEAD + b"Transfer-Encoding: chunked\r\nTrailer: X\r\n\r\n" + chunk(b"one\n") + b"0\r\nX: y\r\n\r\n"
    assert received(answer) == [b"one\n"]


@pytest.mark.parametrize("rest", [b"", b"5\r\non", b"zz\r\n", b"4\r\none\n"])
def test_chunks_that_are_wrong_or_cut_short(rest: bytes) -> None:
    with pytest.raises(Trouble) as caught:
        received(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"one\n") + rest)
    assert caught.value.status == BROKEN


def test_an_answer_without_a_length_that_the_server_closes() -> None:
    answer = HEAD + b"Connection: close\r\n\r\n" + b"one\n"
    assert received(answer) == [b"one\n"]


def test_silence_where_the_server_will_close_the_connection() -> None:
    answer = HEAD + b"Connection: close\r\n\r\none\n"
    with Raw(answer, stay=True) as server, Connection(server=server.url).get("/", read_timeout=60) as got:
        got.wait_up_to(0.1)
        with pytest.raises(Trouble) as caught:
            list(got.pieces())
    assert caught.value.status == SILENT


def test_a_list_that_is_cut_short_is_none() -> None:
    answer = HEAD + b"Content-Length: 100\r\n\r\n" + b'{"items":[]'
    said = "closed in the middle of an answer"
    with (
        Raw(answer) as server,
        Connection(server=server.url).get("/", read_timeout=5) as got,
        pytest.raises(Trouble, match=said) as caught,
    ):
        got.read()
    assert caught.value.status == UNREACHABLE


# -- Several servers ---------------------------------------------------------------------------------------------------


@pytest.fixture
def second(api: FakeApi) -> Iterator[FakeApi]:
    """Another server of the same cluster."""
    with FakeApi(store=api.store) as server:
        yield server


@pytest.fixture
def pair(api: FakeApi, second: FakeApi) -> Iterator[Following]:
    follower = Following(api, "", f"{api.url}/, {second.url}")
    yield follower
    follower.source.stop()


def test_the_first_server_that_can_is_used(api: FakeApi, second: FakeApi, pair: Following) -> None:
    api.stop()
    with capture_logs() as logs:
        assert services(pair.connection) == services(pair.connection) == 200
    assert len(second.requests) == 2
    (entry,) = [entry for entry in logs if entry["event"] == "api_server_changed"]
    assert (entry["server"], entry["before"]) == (f"127.0.0.1:{second.port}", f"127.0.0.1:{api.port}")


@pytest.mark.parametrize("code", [500, 502, 503, 504])
def test_a_server_that_fails_is_left_for_the_next(api: FakeApi, second: FakeApi, pair: Following, code: int) -> None:
    api.fail(code, times=inf)
    assert services(pair.connection) == services(pair.connection) == 200
    assert (len(api.requests), len(second.requests)) == (1, 2)


@pytest.mark.parametrize("code", [401, 403, 404, 410, 429])
def test_what_the_client_did_wrong_is_wrong_everywhere(
    api: FakeApi, second: FakeApi, pair: Following, code: int
) -> None:
    api.fail(code, times=inf)
    assert services(pair.connection) == code
    assert second.requests == []


def test_when_none_can_the_last_ones_answer_counts(api: FakeApi, second: FakeApi, pair: Following) -> None:
    api.fail(500)
    second.fail(503)
    assert services(pair.connection) == 503
    assert services(pair.connection) == 200
    assert [len(server.requests) for server in (api, second)] == [2, 1]


def test_when_none_is_there(api: FakeApi, second: FakeApi, pair: Following) -> None:
    api.stop()
    second.stop()
    with pytest.raises(Trouble) as caught:
        services(pair.connection)
    assert caught.value.status == UNREACHABLE


def test_a_stalled_server_is_left_for_the_next(api: FakeApi, second: FakeApi, pair: Following) -> None:
    api.stall(times=inf)
    with pair.connection.get("/api/v1/services", read_timeout=0.2) as answer:
        assert (answer.status, answer.server) == (200, f"127.0.0.1:{second.port}")


def test_a_server_whose_answer_breaks_is_left_for_the_next(api: FakeApi, second: FakeApi, pair: Following) -> None:
    api.put(service("web"))
    api.reset(at=10)
    with pytest.raises(Trouble):
        services(pair.connection)
    assert services(pair.connection) == 200
    assert len(second.requests) == 1


def test_chance_says_which_is_the_first() -> None:
    urls = [f"https://{name}:6443" for name in "abc"]
    firsts = [Connection(server=",".join(urls), rand=lambda r=r: r).server for r in (0.0, 0.34, 0.99)]  # type: ignore[misc]
    assert firsts == ["a:6443", "b:6443", "c:6443"]


def test_watches_move_to_the_server_that_is_left(api: FakeApi, second: FakeApi, pair: Following) -> None:
    pair.begin()
    api.stop()
    second.put(service("web"))
    assert shown(pair.until(Put)) == [("put", "web")]
    second.wait_for(second.watching)
    assert set(how(second, SERVICE)) == {"watch@1"}


def test_a_server_behind_the_others_does_not_take_us_back(api: FakeApi, second: FakeApi, pair: Following) -> None:
    second.lag()
    pair.begin()
    api.put(service("web"))
    pair.until(Put)
    api.stop()
    second.wait_for(lambda: second.watching(SERVICE))
    second.inject(SERVICE, error_line(410, "Expired", "too old"))
    second.wait_for(lambda: "stream@2" in how(second, SERVICE))  # which it does not have yet
    assert not [event for event in pair.inbox.take(0.3) if isinstance(event, Replace)]
    second.catch_up()
    found = [event for event in pair.until(Replace) if isinstance(event, Replace)]
    assert [obj.metadata.name for obj in found[0].objects] == ["web"]


def test_all_addresses_of_a_name_are_tried(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = socket.getaddrinfo

    def several(host: str, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        if host != "api.example":
            return found(host, port, *args, **kwargs)
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, (address, port)) for address in ("127.0.0.2", "127.0.0.3", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", several)
    assert services(Connection(server=f"http://api.example:{api.port}")) == 200


# -- Proxies -----------------------------------------------------------------------------------------------------------


def through(api: FakeApi, tmp_path: Path, **cluster: str) -> str:
    kubeconfig = Path(api.kubeconfig(tmp_path / "k"))
    config = yaml.safe_load(kubeconfig.read_text())
    config["clusters"][0]["cluster"] = {name.replace("_", "-"): value for name, value in cluster.items()}
    kubeconfig.write_text(yaml.safe_dump(config))
    return str(kubeconfig)


def test_the_proxy_of_the_kubeconfig_is_used(api: FakeApi, tmp_path: Path) -> None:
    assert services(Connection(through(api, tmp_path, server="http://api.invalid:6443", proxy_url=api.url))) == 200
    assert api.requests[-1].path == "http://api.invalid:6443/api/v1/services"


def test_the_proxy_of_the_environment_is_used_and_may_want_a_password() -> None:
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                seen.append(connection.recv(65536))
                connection.sendall(HEAD + b"Content-Length: 2\r\n\r\n{}")

        threading.Thread(target=serve, daemon=True).start()
        proxy = f"http://me:pa%20ss@127.0.0.1:{listener.getsockname()[1]}"
        connection = Connection(server="http://api.invalid:6443", environment={"HTTP_PROXY": proxy})
        assert services(connection) == 200
    assert seen[0].startswith(b"GET http://api.invalid:6443/api/v1/services HTTP/1.1\r\n")
    assert b"bWU6cGEgc3M=" in seen[0]  # me:pa ss


def test_no_proxy_is_minded(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    found = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: found("127.0.0.1", *rest, **more))
    environment = {"HTTP_PROXY": "http://192.0.2.1:1", "NO_PROXY": "10.0.0.0/8,.example"}
    assert services(Connection(server=f"http://api.example:{api.port}", environment=environment)) == 200


def test_connecting_does_not_take_for_ever() -> None:
    assert connections.CONNECT_TIMEOUT <= 10
