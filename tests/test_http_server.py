"""Small HTTP servers: what a request is, what is answered, and what clients cannot make a server do."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from proxy import http_connections, http_server
from proxy.config_values import HostPort
from proxy.errors import ConfigError
from proxy.http_message import MAX_REQUEST, Request, Response, only_reads, parse, render, text
from proxy.http_server import Site, explain, spots
from proxy.page_server import PageServer
from rules.objects import Family
from tests.netns import in_new_namespace

V4, V6 = Family.IPV4, Family.IPV6
SECONDS = 20.0
GET = b"GET /page?a=b HTTP/1.1\r\nHost: node\r\n\r\n"

# -- Messages ----------------------------------------------------------------------------------------------------------


def test_a_request() -> None:
    assert parse(GET) == Request("GET", "/page", "a=b")
    assert parse(b"HEAD / HTTP/1.0\n\n") == Request("HEAD", "/", "")
    assert parse(b"GET /?a?b HTTP/1.1\r\n\r\n") == Request("GET", "/", "a?b")


@pytest.mark.parametrize("head", [False, True])
def test_an_answer(head: bool) -> None:
    response = Response(HTTPStatus.OK, b"body\n", {"Content-Type": "text/plain"})
    assert render(response, 1796013391.4, head_only=head) == (
        b"HTTP/1.1 200 OK\r\n"
        b"Content-Type: text/plain\r\n"
        b"Date: Mon, 30 Nov 2026 04:36:31 GMT\r\n"
        b"Content-Length: 5\r\n"
        b"Connection: close\r\n"
        b"\r\n" + (b"" if head else b"body\n")
    )


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
def test_only_reading_is_allowed(method: str) -> None:
    refused = only_reads(Request(method, "/"))
    if method in ("GET", "HEAD"):
        assert refused is None
    else:
        assert refused and refused.status == 405 and refused.headers["Allow"] == "GET, HEAD"


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes(first: bytes, second: bytes) -> None:
    """Nothing breaks it, and what was complete is the same with what comes after it."""
    for start in (b"", b"GET / HTTP/1.1\r\n"):
        for end in (b"", b"\r\n\r\n"):
            said = parse(start + first + end)
            if said is not None:
                assert parse(start + first + end + second) == said
                if isinstance(said, Response):
                    assert said.status == 400


@given(st.integers(MAX_REQUEST, 3 * MAX_REQUEST))
def test_only_so_much_is_waited_for(size: int) -> None:
    for end in (b"", b" HTTP/1.1\r\n\r\n"):
        said = parse(b"GET /".ljust(size, b"x") + end)
        assert isinstance(said, Response) and said.status == 431
    assert parse(GET.ljust(size, b"x")) == parse(GET)  # a body is no concern of ours
    assert parse(b"GET /".ljust(MAX_REQUEST - 1, b"x")) is None


# -- Where -------------------------------------------------------------------------------------------------------------

ANY4, ANY6, LOOP4, LOOP6 = bytes(4), bytes(16), bytes([127, 0, 0, 1]), bytes(15) + b"\1"


@pytest.mark.parametrize(
    ("host", "families", "addresses"),
    [
        ("0.0.0.0", [V4, V6], {ANY4, ANY6}),
        ("::", [V4, V6], {ANY4, ANY6}),
        ("::", [V4], {ANY4}),
        ("0.0.0.0", [V6], {ANY6}),
        ("127.0.0.1", [V4, V6], {LOOP4}),
        ("::1", [V4, V6], {LOOP6}),
        ("::1", [V4], {LOOP6}),  # cannot be had, and that is to be said
    ],
)
def test_unspecified_means_every_address_of_both_families(host: str, families: list[Family], addresses: Any) -> None:
    assert spots(host, 7, families) == {(address, 7) for address in addresses}


def test_why_it_is_not_possible_to_listen() -> None:
    site = Site("page", lambda _request, _spot: None, {errno.EADDRINUSE: "stop it"})
    assert explain(OSError(errno.EADDRINUSE, "x"), site) == ("another program listens on this port", "stop it")
    assert explain(OSError(errno.EAFNOSUPPORT, "x"), site)[0] == "this kernel does not have this IP family"
    assert explain(OSError(errno.EPROTO, "Protocol error"), site) == ("Protocol error", "see the cause")


# -- Servers -----------------------------------------------------------------------------------------------------------


def in_namespace(action: Callable[[], None]) -> list[Mapping[str, Any]]:
    """In a namespace with a loopback interface. Returns the log."""

    def body() -> None:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        action()

    with capture_logs() as logs:
        in_new_namespace(body)
    return list(logs)


def hello(request: Request) -> Response:
    return Response(HTTPStatus.OK, f"{request.method} {request.path}".encode())


ANYWHERE = HostPort("0.0.0.0", 7001)


@contextmanager
def serving(
    answer: Callable[[Request], Response] = hello, bind: HostPort | None = ANYWHERE, **options: Any
) -> Iterator[PageServer]:
    server = PageServer("page", "pageBindAddress", bind, options.pop("families", (V4, V6)), answer, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def connect(host: str = "127.0.0.1", port: int = 7001) -> socket.socket:
    """Waits until somebody listens."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return socket.create_connection((host, port), SECONDS)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.005)


def ask(request: bytes = GET, host: str = "127.0.0.1", port: int = 7001) -> bytes:
    with connect(host, port) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(65536), b""))


def is_free(host: str, port: int = 7001) -> bool:
    try:
        socket.create_connection((host, port), SECONDS).close()
    except OSError:
        return True
    return False


@pytest.mark.root
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_page_on_all_addresses(host: str) -> None:
    def body() -> None:
        with serving(bind=HostPort(host, 7001)):
            assert ask().endswith(b"\r\n\r\nGET /page")
            assert ask(host="::1").endswith(b"\r\n\r\nGET /page")
            assert ask(GET.replace(b"GET", b"HEAD")).endswith(b"Content-Length: 10\r\nConnection: close\r\n\r\n")
        assert is_free("127.0.0.1") and is_free("::1")

    assert in_namespace(body) == []


@pytest.mark.root
def test_a_page_on_one_address() -> None:
    def body() -> None:
        with serving(bind=HostPort("::1", 7001)):
            assert ask(host="::1").startswith(b"HTTP/1.1 200 OK\r\n")
            assert is_free("127.0.0.1")
        with serving(families=[V4]):
            assert ask().startswith(b"HTTP/1.1 200 OK\r\n")
            assert is_free("::1")

    assert in_namespace(body) == []


@pytest.mark.parametrize("bind", [None, HostPort("0.0.0.0", 0), HostPort("", 7001)])
def test_no_address_no_server(bind: HostPort | None) -> None:
    with serving(bind=bind, hard_fail=True):
        assert "page-server" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.root
def test_what_cannot_be_had_is_said_once_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "RETRY_SECONDS", (0.02,))

    def body() -> None:
        with socket.create_server(("127.0.0.1", 7001)) as other, serving(bind=HostPort("127.0.0.1", 7001)):
            time.sleep(0.1)  # some tries
            other.close()
            with connect() as client:
                client.sendall(GET)
                assert client.recv(9) == b"HTTP/1.1 "

    logs = in_namespace(body)
    assert [log["event"] for log in logs] == ["page_not_listening", "page_listening"]
    assert logs[0]["cause"] == "another program listens on this port"
    assert logs[0]["remedy"] == "stop it, or set another pageBindAddress; it is tried again and again"


@pytest.mark.root
def test_hard_fail_is_an_error_that_leaves_nothing_open() -> None:
    def body() -> None:
        with socket.create_server(("::1", 7001), family=socket.AF_INET6):
            before = len(os.listdir("/proc/self/fd"))
            # The one for all IPv4 addresses can be had, and is given back.
            with pytest.raises(ConfigError) as caught, serving(hard_fail=True):
                pass
            assert len(os.listdir("/proc/self/fd")) == before
            assert str(caught.value).startswith(
                "pageBindAddress: cannot listen on ::, port 7001: another program listens on this port "
                "(stop it, or set another pageBindAddress"
            )
            assert is_free("127.0.0.1")
        with serving(hard_fail=True):
            assert ask().startswith(b"HTTP/1.1 200 OK\r\n")
            assert ask(host="::1").startswith(b"HTTP/1.1 200 OK\r\n")

    assert in_namespace(body) == []


BIG = Response(HTTPStatus.OK, bytes(range(256)) * (1 << 15))  # 8 MiB: more than any socket's buffers


@pytest.mark.root
def test_a_big_page_arrives_whole() -> None:
    def body() -> None:
        with serving(lambda _: BIG), connect() as slow:
            slow.sendall(GET)
            assert len(slow.recv(1)) == 1
            assert ask().endswith(BIG.body)  # meanwhile
            rest = b"".join(iter(lambda: slow.recv(1 << 20), b""))
            assert rest.endswith(BIG.body)

    assert in_namespace(body) == []


@pytest.mark.root
def test_who_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "REQUEST_SECONDS", 0.05)

    def body() -> None:
        with serving(lambda _: BIG), connect() as first:
            first.sendall(b"no request\r\n\r\n")
            assert first.recv(1)
            first.close()
            idle = descriptors_at_rest()
            with connect() as client:
                client.sendall(GET)
                got = len(client.recv(1))
                while len(os.listdir("/proc/self/fd")) > idle + 1:  # ours is there, the server's not any more
                    time.sleep(0.005)
                try:
                    while data := client.recv(1 << 20):
                        got += len(data)
                except ConnectionResetError:
                    pass
                assert got < len(BIG.body)

    assert in_namespace(body) == []


def descriptors_at_rest() -> int:
    """How many are open when nothing happens any more."""
    counts = [-1]
    while len(counts) < 20 or len(set(counts[-20:])) > 1:
        counts.append(len(os.listdir("/proc/self/fd")))
        time.sleep(0.005)
    return counts[-1]


@pytest.mark.root
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /page HTTP/1.1\r\nContent-Length: 500000\r\n\r\n" + bytes(500_000), b"405"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 500_000 + b"\r\n\r\n", b"431"),
    ],
)
def test_an_answer_reaches_who_is_still_sending(request_: bytes, status: bytes) -> None:
    """Closed over unread bytes, the connection would be reset, and the answer lost."""

    def body() -> None:
        with serving(lambda request: only_reads(request) or hello(request)):
            for _ in range(20):
                assert ask(request_).split(b" ")[1] == status

    assert in_namespace(body) == []


@pytest.mark.root
def test_who_sends_without_end_is_dropped() -> None:
    def body() -> None:
        with serving(), connect() as client:
            client.sendall(GET)
            with pytest.raises(ConnectionError):
                for _ in range(1000):
                    client.sendall(bytes(1 << 16))

    assert in_namespace(body) == []


@pytest.mark.root
def test_a_page_that_fails_ends_one_connection() -> None:
    def fails(request: Request) -> Response:
        if request.query:
            raise RuntimeError("a bug")
        return text(HTTPStatus.OK)

    def body() -> None:
        with serving(fails):
            assert ask() == b""
            assert ask(b"GET / HTTP/1.1\r\n\r\n").endswith(b"200 OK\n")

    (log,) = in_namespace(body)
    assert (log["event"], str(log["exc_info"])) == ("page_failure", "a bug")


@pytest.mark.root
def test_stop_ends_whatever_is_open() -> None:
    before = len(os.listdir("/proc/self/fd"))

    def body() -> None:
        with serving(lambda _: BIG) as server:
            with connect() as asks, connect() as reads:
                asks.sendall(GET[:5])
                reads.sendall(GET)
                assert reads.recv(1)
                server.stop()
                assert asks.recv(1) == b""
            server.stop()
            assert "page-server" not in {thread.name for thread in threading.enumerate()}

    assert in_namespace(body) == []
    assert len(os.listdir("/proc/self/fd")) == before
