"""healthCheckNodePort: who answers, what is said (pure), and the servers, on real sockets in a namespace of each test's
own."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from proxy import health_checks, health_server, http_connections, http_server
from proxy.health_checks import Conflict, HealthCheck, HealthChecks, health_check
from proxy.health_server import HealthServer
from proxy.http_message import MAX_REQUEST, Request, parse, render
from proxy.policy import Place
from proxy.services import Name, PortInfo, Scope, ServiceInfo
from proxy.slices import Condition, EndpointInfo, SliceInfo
from rules.elements import node_port_key, service_key
from rules.objects import Family
from tests.netns import in_new_namespace

V4, V6 = Family.IPV4, Family.IPV6
NAME: Name = ("default", "lb-local")
READY = int(Condition.READY | Condition.SERVING)
HERE, THERE = "node1", "node2"

# What kube-proxy's nftables mode said, one ready endpoint being on its node.
RECORDED = (
    b"HTTP/1.1 200 OK\r\n"
    b"Content-Type: application/json\r\n"
    b"X-Content-Type-Options: nosniff\r\n"
    b"X-Load-Balancing-Endpoint-Weight: 1\r\n"
    b"Date: Mon, 30 Nov 2026 04:36:31 GMT\r\n"
    b"Content-Length: 119\r\n"
    b"\r\n"
    b'{\n\t"service": {\n\t\t"namespace": "default",\n\t\t"name": "lb-local"\n\t},\n'
    b'\t"localEndpoints": 1,\n\t"serviceProxyHealthy": true\n}'
)


# -- Who answers -------------------------------------------------------------------------------------------------------


def service(port: int = 30207, families: tuple[Family, ...] = (V4,)) -> ServiceInfo:
    addresses = {V4: bytes([10, 96, 0, 1]), V6: bytes(15) + b"\x07"}
    ports = [PortInfo(service_key(addresses[family], 6, 80), "http", "TCP") for family in families]
    # Where else the Service is reached says nothing of its families.
    ports.append(PortInfo(node_port_key(V4, 6, 30080), "http", "TCP", Scope.NODE_PORT))
    return ServiceInfo(NAME, "2026-01-01T00:00:00Z", tuple(ports), external_local=True, health_check_port=port)


def slice_(
    *endpoints: tuple[int, int, str], size: int = 4, ports: tuple[tuple[str, str, int], ...] = (("http", "TCP", 8080),)
) -> SliceInfo:
    """Endpoints: last byte of the address, conditions, node."""
    infos = [EndpointInfo(bytes(size - 1) + bytes([last]), conditions, node) for last, conditions, node in endpoints]
    return SliceInfo(NAME, size, ports, tuple(infos))


TWO_PORTS = (("http", "TCP", 8080), ("https", "TCP", 8443))
GOING = int(Condition.SERVING | Condition.TERMINATING)


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        ([], 0),
        ([slice_((1, READY, HERE), (2, READY, HERE), (3, READY, THERE), (4, READY, ""))], 2),
        ([slice_((1, int(Condition.SERVING), HERE), (2, 0, HERE), (3, GOING, HERE))], 0),
        # Two ports, or two slices: one endpoint.
        ([slice_((1, READY, HERE), ports=TWO_PORTS)], 1),
        ([slice_((1, READY, HERE)), slice_((1, READY, HERE), (2, READY, HERE))], 2),
        ([slice_((1, GOING, THERE)), slice_((1, READY, HERE))], 1),
        ([slice_((1, READY, HERE), ports=())], 0),
        ([slice_((1, READY, HERE), size=16)], 0),
    ],
)
def test_local_ready_endpoints_count(slices: list[SliceInfo], expected: int) -> None:
    check = health_check(service(), slices, Place(HERE))
    assert check and check.endpoints == {V4: expected}


def test_each_family_has_its_own_number() -> None:
    slices = [slice_((1, READY, HERE), (2, READY, HERE)), slice_((1, READY, HERE), size=16)]
    check = health_check(service(families=(V4, V6)), slices, Place(HERE))
    assert check == HealthCheck(30207, {V4: 2, V6: 1}, ("2026-01-01T00:00:00Z", NAME))
    only = health_check(service(families=(V6,)), slices, Place(HERE))
    assert only and only.endpoints == {V6: 1}


@pytest.mark.parametrize("info", [None, service(port=0), service(port=65536), service(port=-1)])
def test_no_port_no_check(info: ServiceInfo | None) -> None:
    assert health_check(info, [slice_((1, READY, HERE))], Place(HERE)) is None


def check(name: str, port: int, created: str = "2026", **families: int) -> tuple[Name, HealthCheck]:
    """families: v4=…, v6=…"""
    endpoints = {V4: 1} if not families else {{"v4": V4, "v6": V6}[k]: count for k, count in families.items()}
    return ("ns", name), HealthCheck(port, endpoints, (created, ("ns", name)))


def test_of_two_services_the_older_keeps_a_port() -> None:
    checks = HealthChecks()
    assert checks.update(dict([check("young", 30000, "2026")])) == (True, [])
    moved, conflicts = checks.update(dict([check("old", 30000, "2025", v6=7)]))
    assert moved and conflicts == [Conflict(30000, ("ns", "old"), ("ns", "young"))]
    assert checks.update(dict([check("third", 30000, "2027")])) == (
        True,
        [Conflict(30000, ("ns", "old"), ("ns", "third"))],
    )
    assert checks.endpoints(30000, V6) == (("ns", "old"), 7)
    assert checks.endpoints(30000, V4) is None  # the port has one owner, for both families
    assert checks.update({("ns", "old"): None}) == (True, [])
    assert checks.endpoints(30000, V4) == (("ns", "young"), 1)
    assert set(checks.ports()) == {(V4, 30000)}


def test_a_number_moves_no_port() -> None:
    checks = HealthChecks()
    checks.update(dict([check("a", 30000, v4=1)]))
    assert checks.update(dict([check("a", 30000, v4=2)])) == (False, [])
    assert checks.endpoints(30000, V4) == (("ns", "a"), 2)
    assert checks.update(dict([check("a", 30000, v4=2, v6=0)])) == (True, [])
    assert checks.update(dict([check("a", 30001, v4=2, v6=0)])) == (True, [])
    assert set(checks.ports()) == {(V4, 30001), (V6, 30001)}
    assert checks.update({("ns", "a"): None, ("ns", "never"): None}) == (True, [])
    assert not set(checks.ports())


CHANGE = st.tuples(
    st.sampled_from("abc"), st.none() | st.tuples(st.integers(1, 3), st.integers(0, 2), st.sampled_from(["v4", "v6"]))
)


@given(st.lists(CHANGE))
def test_history_leaves_no_trace(history: list[tuple[str, tuple[int, int, str] | None]]) -> None:
    """Whatever came before: the same as if only the last of each Service had come, and a move is always told."""
    checks, last = HealthChecks(), {}
    for name, what in history:
        before = set(checks.ports()), {port: checks.holder(port) for port in range(1, 4)}
        last[("ns", name)] = what and check(name, what[0], str(what[1]), **{what[2]: 1})[1]
        moved, _ = checks.update({("ns", name): last["ns", name]})
        assert moved or before == (set(checks.ports()), {port: checks.holder(port) for port in range(1, 4)})
    fresh = HealthChecks()
    fresh.update(last)
    assert set(checks.ports()) == set(fresh.ports())
    assert all(checks.endpoints(port, f) == fresh.endpoints(port, f) for port in range(1, 4) for f in Family)


# -- What is said ------------------------------------------------------------------------------------------------------

GET = b"GET / HTTP/1.1\r\nHost: node\r\n\r\n"


def answer(request: bytes, name: Name, endpoints: int, healthy: bool) -> bytes | None:
    said = parse(request)
    if said is None:
        return None
    head_only = isinstance(said, Request) and said.method == "HEAD"
    response = health_checks.answer(name, endpoints, healthy) if isinstance(said, Request) else said
    return render(response, 0.0, head_only=head_only)


def without(said: bytes, *names: bytes) -> bytes:
    head, separator, body = said.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(names)]
    return b"\r\n".join(lines) + separator + body


def test_it_says_what_kube_proxy_says() -> None:
    said = answer(GET, NAME, 1, True)
    assert said
    assert b"\r\nConnection: close\r\n" in said
    assert without(said, b"Date:", b"Connection:") == without(RECORDED, b"Date:")


@pytest.mark.parametrize(("endpoints", "healthy"), [(0, True), (3, False), (0, False)])
def test_unavailable_says_the_same(endpoints: int, healthy: bool) -> None:
    said = answer(GET, NAME, endpoints, healthy)
    assert said and said.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"\r\nX-Load-Balancing-Endpoint-Weight: %d\r\n" % endpoints in said
    assert said.endswith(
        b'"localEndpoints": %d,\n\t"serviceProxyHealthy": %s\n}' % (endpoints, str(healthy).lower().encode())
    )


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /any/path?at=all HTTP/1.0\r\n\r\n", b"200"),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"200"),
        (b"GET / HTTP/1.1\nHost: a\n\n", b"200"),
        (b"get / HTTP/1.1\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00 what TLS begins with\r\n\r\n", b"400"),
        (b"GET /\r\n\r\n", b"400"),
        (b"GET / HTTP/2.0\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + bytes(MAX_REQUEST), b"431"),
    ],
)
def test_what_comes_is_judged_leniently(request_: bytes, status: bytes) -> None:
    said = answer(request_, NAME, 1, True)
    assert said and said.split(b" ")[1] == status


def test_head_has_no_body() -> None:
    said, full = answer(GET.replace(b"GET", b"HEAD"), NAME, 1, True), answer(GET, NAME, 1, True)
    assert said and full
    assert without(said, b"Date:") == without(full, b"Date:").partition(b"{")[0]


@pytest.mark.parametrize("size", range(len(GET)))
def test_a_part_is_no_request(size: int) -> None:
    assert answer(GET[:size], NAME, 1, True) is None


# -- The servers -------------------------------------------------------------------------------------------------------

SECONDS = 20.0
A1, A2, LOOP6 = bytes([192, 0, 2, 1]), bytes([192, 0, 2, 2]), bytes(15) + b"\1"
A1_TEXT, A2_TEXT = "192.0.2.1", "192.0.2.2"


def addresses(*packed: bytes) -> dict[Family, frozenset[bytes]]:
    return {family: frozenset(a for a in packed if len(a) == family.address_size) for family in Family}


def ask(host: str, port: int, request: bytes = GET) -> bytes:
    """The whole answer; b"" if the connection ends without one. Raises ConnectionRefusedError."""
    with socket.create_connection((host, port), SECONDS) as client:
        client.sendall(request)
        try:
            return b"".join(iter(lambda: client.recv(65536), b""))
        except ConnectionResetError:
            return b""


def is_over(client: socket.socket) -> bool:
    """The server ends the connection without a word."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def status(host: str, port: int) -> str:
    """ "200 1": status and weight; "refused"; "" without an answer."""
    try:
        said = ask(host, port).decode()
    except (ConnectionRefusedError, ConnectionResetError):  # reset: refused after the handshake
        return "refused"
    weight = said.partition("Weight: ")[2].partition("\r\n")[0]
    return f"{said[9:12]} {weight}" if said else ""


def eventually(wanted: Any, look: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while (found := look()) != wanted:
        assert time.monotonic() < deadline, f"{found!r}, not {wanted!r}"
        time.sleep(0.005)


def with_server(
    body: Callable[[HealthServer], None], healthy: Callable[[], bool] = lambda: True, device: str = A1_TEXT
) -> list[Mapping[str, Any]]:
    """In a new namespace with addresses. Returns the log."""

    def action() -> None:
        for command in (f"addr add {device}/32 dev lo", f"addr add {A2_TEXT}/32 dev lo", "link set lo up"):
            subprocess.run(["ip", *command.split()], check=True)
        server = HealthServer(healthy)
        try:
            body(server)
        finally:
            server.stop()

    with capture_logs() as logs:
        in_new_namespace(action)
    return list(logs)


@pytest.mark.root
def test_a_service_is_asked_on_each_address() -> None:
    def body(server: HealthServer) -> None:
        server.update(dict([check("a", 30001, v4=2, v6=0)]), addresses(A1, A2, LOOP6))
        for host in (A1_TEXT, A2_TEXT):
            eventually("200 2", lambda host=host: status(host, 30001))  # type: ignore[misc]
        eventually("503 0", lambda: status("::1", 30001))
        assert status("127.0.0.1", 30001) == "refused"
        # Numbers, ports and addresses change; what stays is never closed.
        with socket.create_connection((A1_TEXT, 30001), SECONDS) as client:
            server.update(dict([check("a", 30001, v4=5)]), addresses(A1))
            eventually("refused", lambda: status(A2_TEXT, 30001))
            assert status("::1", 30001) == "refused"
            client.sendall(GET)
            assert b"Weight: 5" in client.recv(65536)
        server.update(dict([check("a", 30002), check("b", 30003, v4=9)]), addresses(A1))
        eventually("200 9", lambda: status(A1_TEXT, 30003))
        assert (status(A1_TEXT, 30001), status(A1_TEXT, 30002)) == ("refused", "200 1")
        server.update({("ns", "a"): None}, addresses(A1))
        eventually("refused", lambda: status(A1_TEXT, 30002))
        server.update({}, addresses(A2))
        eventually("200 9", lambda: status(A2_TEXT, 30003))
        assert status(A1_TEXT, 30003) == "refused"

    assert with_server(body) == []


@pytest.mark.root
def test_a_proxy_that_does_not_work_says_so() -> None:
    healthy = threading.Event()

    def body(server: HealthServer) -> None:
        server.update(dict([check("a", 30001, v4=2)]), addresses(A1))
        eventually("503 2", lambda: status(A1_TEXT, 30001))
        healthy.set()
        assert status(A1_TEXT, 30001) == "200 2"

    with_server(body, healthy.is_set)


@pytest.mark.root
def test_whose_service_goes_while_he_asks_gets_no_answer() -> None:
    def body(server: HealthServer) -> None:
        server.update(dict([check("a", 30001)]), addresses(A1))
        eventually("200 1", lambda: status(A1_TEXT, 30001))
        with socket.create_connection((A1_TEXT, 30001), SECONDS) as client:
            client.sendall(GET[:5])
            assert status(A1_TEXT, 30001) == "200 1"  # so the one before was accepted, too
            server.update({("ns", "a"): None}, addresses(A1))
            eventually("refused", lambda: status(A1_TEXT, 30001))
            client.sendall(GET[5:])
            assert is_over(client)

    assert with_server(body) == []


@pytest.mark.root
def test_a_port_that_is_taken_is_reported_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "RETRY_SECONDS", (0.02,))

    def body(server: HealthServer) -> None:
        with socket.create_server((A1_TEXT, 30001)):
            server.update(dict([check("a", 30001), check("b", 30002)]), addresses(A1, A2))
            eventually("200 1", lambda: status(A2_TEXT, 30001))
            assert status(A1_TEXT, 30002) == "200 1"
        eventually("200 1", lambda: status(A1_TEXT, 30001))

    logs = with_server(body)
    assert [log["event"] for log in logs] == ["health_check_not_listening", "health_check_listening"]
    assert logs[0] == {
        "event": "health_check_not_listening",
        "log_level": "warning",
        "service": "ns/a",
        "address": A1_TEXT,
        "port": 30001,
        "cause": "another program listens on this port",
        "remedy": "stop it, or give the Service another port; it is tried again and again",
    }


@pytest.mark.root
def test_an_address_may_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "RETRY_SECONDS", (0.02,))

    def body(server: HealthServer) -> None:
        server.update(dict([check("a", 30001)]), addresses(A1, A2))
        eventually("200 1", lambda: status(A2_TEXT, 30001))
        subprocess.run(["ip", "addr", "add", f"{A1_TEXT}/32", "dev", "lo"], check=True)
        eventually("200 1", lambda: status(A1_TEXT, 30001))

    logs = with_server(body, device="198.51.100.1")
    assert [log["event"] for log in logs] == ["health_check_not_listening", "health_check_listening"]
    assert logs[0]["cause"] == "no interface of this node has this address (yet)"


@pytest.mark.root
def test_what_is_tried_again_can_be_called_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "RETRY_SECONDS", (0.02,))

    def body(server: HealthServer) -> None:
        with socket.create_server((A1_TEXT, 30001)):
            server.update(dict([check("a", 30001), check("b", 30002)]), addresses(A1))
            eventually("200 1", lambda: status(A1_TEXT, 30002))
            server.update({("ns", "a"): None}, addresses(A1))
            server.update(dict([check("b", 30002, v4=2)]), addresses(A1))
            eventually("200 2", lambda: status(A1_TEXT, 30002))
        time.sleep(0.06)  # three tries, if it were not called off
        assert status(A1_TEXT, 30001) == "refused"

    assert [log["event"] for log in with_server(body)] == ["health_check_not_listening"]


@pytest.mark.root
def test_two_services_with_one_port() -> None:
    def body(server: HealthServer) -> None:
        server.update(dict([check("young", 30001, "2026", v4=1)]), addresses(A1))
        eventually("200 1", lambda: status(A1_TEXT, 30001))
        server.update(dict([check("old", 30001, "2025", v4=2)]), addresses(A1))
        eventually("200 2", lambda: status(A1_TEXT, 30001))
        server.update({("ns", "old"): None}, addresses(A1))
        eventually("200 1", lambda: status(A1_TEXT, 30001))

    (log,) = with_server(body)
    assert log == {
        "event": "health_check_port_taken",
        "log_level": "warning",
        "port": 30001,
        "service": "ns/young",
        "cause": "Service ns/old, which is older, has the same healthCheckNodePort",
        "remedy": "give one of them another port",
    }


@pytest.mark.root
def test_slow_clients_do_not_keep_others_from_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "GRACE_SECONDS", 0.0)

    def body(server: HealthServer) -> None:
        server.update(dict([check("a", 30001)]), addresses(A1))
        eventually("200 1", lambda: status(A1_TEXT, 30001))
        with ExitStack() as stack:
            slow = [
                stack.enter_context(socket.create_connection((A1_TEXT, 30001), SECONDS))
                for _ in range(http_connections.SHARE + 20)
            ]
            for client in slow[20:]:
                client.sendall(GET[:7])
            assert status(A1_TEXT, 30001) == "200 1"
            # The oldest had to make room; the youngest may still finish.
            assert is_over(slow[0])
            slow[-1].sendall(GET[7:])
            assert slow[-1].recv(65536).startswith(b"HTTP/1.1 200 OK")

    assert with_server(body) == []


@pytest.mark.root
def test_a_request_takes_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "REQUEST_SECONDS", 0.05)

    def body(server: HealthServer) -> None:
        server.update(dict([check("a", 30001)]), addresses(A1))
        eventually("200 1", lambda: status(A1_TEXT, 30001))
        with socket.create_connection((A1_TEXT, 30001), SECONDS) as client:
            client.sendall(GET[:-1])
            assert is_over(client)

    with_server(body)


@pytest.mark.root
def test_without_descriptors_it_waits_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "ACCEPT_PAUSE", 0.02)

    def body(server: HealthServer) -> None:
        server.update(dict([check("a", 30001)]), addresses(A1))
        eventually("200 1", lambda: status(A1_TEXT, 30001))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket() as client, capture_logs() as logs:
            client.settimeout(SECONDS)
            try:
                # The client has the last one.
                resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, limits[1]))
                client.connect((A1_TEXT, 30001))
                client.sendall(GET)
                eventually(True, lambda: "health_check_not_accepted" in {log["event"] for log in logs})
                time.sleep(0.05)
                assert len(logs) == 1  # it is said once in a minute
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert client.recv(65536).startswith(b"HTTP/1.1 200 OK")
            assert {log["cause"] for log in logs} == {"too many files are open"}

    with_server(body)


@pytest.mark.root
def test_very_many_addresses_are_one_socket() -> None:
    """And back, with the port in use all the time."""
    many = [bytes([192, 0, 2, last]) for last in range(1, 200)]
    many += [b"\x20\1" + bytes(13) + bytes([last]) for last in range(1, 200)]

    def body(server: HealthServer) -> None:
        server.update(dict([check("a", 30001, v4=1, v6=1)]), addresses(A1, LOOP6))
        eventually("200 1", lambda: status(A1_TEXT, 30001))
        server.update({}, addresses(*many))
        eventually("200 1", lambda: status("127.0.0.1", 30001))
        assert status("::1", 30001) == "200 1"
        server.update({}, addresses(A2))
        eventually("200 1", lambda: status(A2_TEXT, 30001))
        assert (status(A1_TEXT, 30001), status("::1", 30001)) == ("refused", "refused")

    assert with_server(body) == []


@pytest.mark.root
def test_link_local_addresses_are_left_out() -> None:
    def body(server: HealthServer) -> None:
        server.update(dict([check("a", 30001, v6=1)]), addresses(b"\xfe\x80" + bytes(13) + b"\1", LOOP6))
        eventually("200 1", lambda: status("::1", 30001))

    assert with_server(body) == []


@pytest.mark.root
def test_stop_leaves_nothing_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))

    def names() -> set[str]:
        return {thread.name for thread in threading.enumerate()}

    def body(server: HealthServer) -> None:
        server.stop()
        server.update({("ns", "a"): None}, addresses(A1))
        assert "health-check-server" not in names()  # nobody wants one
        server.update(dict([check("a", 30001)]), addresses(A1))
        eventually("200 1", lambda: status(A1_TEXT, 30001))
        assert "health-check-server" in names()
        with socket.create_connection((A1_TEXT, 30001), SECONDS) as client:
            client.sendall(GET[:5])
            assert status(A1_TEXT, 30001) == "200 1"  # so the one before was accepted, too
            server.stop()
            assert is_over(client)
        assert status(A1_TEXT, 30001) == "refused"
        assert "health-check-server" not in names()

    with_server(body)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.root
def test_a_bug_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    def body(server: HealthServer) -> None:
        server.update(dict([check("a", 30001)]), addresses(A1))
        eventually("200 1", lambda: status(A1_TEXT, 30001))
        with monkeypatch.context() as patch:
            patch.setattr(HealthChecks, "update", fail)
            server.update(dict([check("b", 30002)]), addresses(A1))
            patch.setattr(health_server, "answer", fail)
            eventually("", lambda: status(A1_TEXT, 30001))
        assert status(A1_TEXT, 30001) == "200 1"

    logs = with_server(body)
    assert {log["event"] for log in logs} == {"health_check_failure"}
    assert {str(log["exc_info"]) for log in logs} == {"a bug"}
