"""NodePorts on loopback: where a connection leads (pure), and the forwarder, between real sockets of a bed's node and
pods."""

from __future__ import annotations

import errno
import logging
import os
import random
import select
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from ipaddress import ip_network
from typing import Any, Final

import pytest
import structlog
from structlog.testing import capture_logs

from integration import privileges
from integration.cluster import Cluster, endpoint_slice, port, service
from integration.topology import Bed, Host
from integration.traffic import ask, endpoint, tally, until
from proxy import forwarder, forwarder_connection, forwarder_policy
from proxy.forwarder import Forwarder
from proxy.forwarder_policy import Picker, led_to, loopback_families
from rules.elements import ServicePort, node_port_key, service_key
from rules.elements import endpoint as packed
from rules.objects import Family

V4, V6 = Family.IPV4, Family.IPV6
TCP, UDP, SCTP = 6, 17, 132
BOTH: Final = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
NODE_PORT: Final = 30080
LOOPBACK: Final = {V4: "127.0.0.1", V6: "::1"}
SECONDS: Final = 10.0
# Nobody has this address; the other node does not forward what is not for its pods.
SILENT: Final = packed(bytes([10, 244, 1, 200]), 80)
RESET: Final = struct.pack("ii", 1, 0)

needs_root = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`"),
]


# -- Where a connection leads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cidrs", "families"),
    [
        ([], []),
        (["127.0.0.0/8", "::1/128"], [V4, V6]),
        (["127.0.0.1/32"], [V4]),
        (["::1/128"], [V6]),
        (["192.168.0.0/16", "127.0.0.0/24"], [V4]),
        (["127.1.0.0/16"], []),  # loopback, but not where we answer
        (["0.0.0.0/0", "::/0"], []),  # must be listed explicitly
        (["126.0.0.0/7"], []),
    ],
)
def test_loopback_must_be_listed(cidrs: list[str], families: list[Family]) -> None:
    assert loopback_families(ip_network(cidr) for cidr in cidrs) == set(families)


A, B, C = (packed(bytes([10, 244, 0, i]), 8080) for i in (2, 3, 4))


def test_policy_local_leads_to_this_nodes_endpoints() -> None:
    key = node_port_key(V4, TCP, NODE_PORT)
    assert led_to(ServicePort(key, "a", endpoints=(A, B))) == (A, B)
    assert led_to(ServicePort(key, "a", endpoints=(A, B), local_policy=True, local=(B,))) == (B,)
    assert led_to(ServicePort(key, "a", endpoints=(A, B), local_policy=True, drop=True)) == ()
    assert led_to(None) == ()


def picker(*endpoints: bytes, timeout: int = 0) -> Picker:
    made = Picker()
    made.update(endpoints, timeout)
    return made


def test_without_affinity_every_endpoint_is_chosen() -> None:
    chosen = Counter(picker(A, B, C).pick("127.0.0.1", 0) for _ in range(3000))
    assert set(chosen) == {A, B, C} and min(chosen.values()) > 800  # fails by chance less than once in 10^15 runs


def test_what_failed_is_not_chosen_again() -> None:
    assert {picker(A, B, C).pick("127.0.0.1", 0, [A, C]) for _ in range(50)} == {B}
    assert picker(A, B).pick("127.0.0.1", 0, [B, A]) is None
    assert Picker().pick("127.0.0.1", 0) is None


def test_affinity_lasts_since_the_last_connection() -> None:
    made = picker(*(packed(bytes([10, 0, 0, i]), 80) for i in range(100)), timeout=10)
    first = made.pick("127.0.0.1", 0)
    assert [made.pick("127.0.0.1", now) for now in (9, 18, 27.9)] == [first] * 3
    assert len({made.pick("127.0.0.1", 1000 * i) for i in range(1, 30)}) > 1
    assert len({made.pick(f"127.0.0.{i}", 0) for i in range(1, 30)}) > 1  # others may be led elsewhere


def test_affinity_stays_when_endpoints_join_and_moves_when_its_endpoint_goes_or_fails() -> None:
    made = picker(A, timeout=10)
    assert made.pick("127.0.0.1", 0) == A
    made.update((A, B, C), 10)
    assert {made.pick("127.0.0.1", 1) for _ in range(20)} == {A}
    moved = made.pick("127.0.0.1", 1, [A])
    assert moved in (B, C) and {made.pick("127.0.0.1", 1) for _ in range(20)} == {moved}
    left = ({A, B, C} - {moved}).pop()
    made.update((left,), 10)
    assert made.pick("127.0.0.1", 1) == left


def test_affinity_that_is_taken_away_is_forgotten() -> None:
    made = picker(*(packed(bytes([10, 0, 0, i]), 80) for i in range(100)), timeout=10)
    before = made.pick("127.0.0.1", 0)
    made.update((A, B), 0)
    made.update((A, B, before or b""), 10)
    assert len({made.pick(f"127.0.0.{i}", 0) for i in range(30)}) > 1


def test_clients_that_are_remembered_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder_policy, "MAX_CLIENTS", 2)
    made = picker(A, B, timeout=100)
    for i in range(10):
        made.pick(f"127.0.0.{i}", i)
        made.pick("127.0.0.1", i)
    assert list(made._clients) == ["127.0.0.9", "127.0.0.1"]  # who came last


# -- Between sockets ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    privileges.acquire()
    with Bed() as made:
        yield made


class Here:
    """A forwarder on the bed's node, told of NodePorts."""

    def __init__(self, bed: Bed, *cidrs: str) -> None:
        self.bed = bed
        self.forwarder = Forwarder(map(ip_network, cidrs) if cidrs else BOTH)

    def put(self, *endpoints: bytes, number: int = NODE_PORT, family: Family = V4, **fields: Any) -> None:
        """A TCP NodePort that leads there. Returns when it answers, or where it leads nowhere, refuses."""
        key = node_port_key(family, TCP, number)
        self.update({key: ServicePort(key, f"default/web-{number}", endpoints, external=True, **fields)})
        made = ServicePort(key, "", endpoints, **fields)
        assert until(lambda: self.answers(number, family) == bool(led_to(made)))

    def update(self, changes: Mapping[bytes, ServicePort | None], complete: bool = False) -> None:
        with self.bed.node.namespace.entered():
            self.forwarder.update(changes, complete)

    def answers(self, number: int = NODE_PORT, family: Family = V4) -> bool:
        """Whether somebody listens, without connecting: as the kernel's table has it."""
        table = "tcp" if family is V4 else "tcp6"
        host = {V4: "0100007F", V6: "00000000000000000000000001000000"}[family]
        with self.bed.node.namespace.entered(), open(f"/proc/thread-self/net/{table}") as lines:
            return any(
                line.split()[1] == f"{host}:{number:04X}" and line.split()[3] == "0A" for line in list(lines)[1:]
            )

    def connect(self, number: int = NODE_PORT, family: Family = V4, source: str = "") -> socket.socket:
        sock = self.bed.node.namespace.socket(socket.AF_INET if family is V4 else socket.AF_INET6, socket.SOCK_STREAM)
        sock.settimeout(SECONDS)
        if source:
            sock.bind((source, 0))
        try:
            sock.connect((LOOPBACK[family], number))
        except BaseException:
            sock.close()
            raise
        return sock

    def reached(self, count: int, family: Family = V4) -> set[str]:
        """Which echo servers answer."""
        found = tally(self.bed.node, LOOPBACK[family], NODE_PORT, count=count)
        assert not found.failures
        return {answer.endpoint for answer in found.answers}

    @contextmanager
    def pair(self, server: socket.socket, number: int = NODE_PORT) -> Iterator[tuple[socket.socket, socket.socket]]:
        """A client, and who takes its connection at the other end."""
        with self.connect(number) as client:
            accepted, _ = server.accept()
            with accepted:
                accepted.settimeout(SECONDS)
                yield client, accepted


@pytest.fixture
def here(bed: Bed) -> Iterator[Here]:
    made = Here(bed)
    yield made
    made.forwarder.stop()


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    with capture_logs() as found:
        yield found
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


def at(host: Host, number: int = 8080, family: Family = V4) -> bytes:
    """An endpoint."""
    if family is V4:
        return packed(socket.inet_aton(host.ipv4), number)
    return packed(socket.inet_pton(socket.AF_INET6, host.ipv6), number)


def listening(host: Host, number: int = 7000) -> socket.socket:
    """A server of the test's own."""
    sock = host.namespace.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.settimeout(SECONDS)
    sock.bind((host.ipv4, number))
    sock.listen()
    return sock


@pytest.fixture
def server(bed: Bed) -> Iterator[socket.socket]:
    with listening(bed.pod1) as made:
        yield made


def everything(sock: socket.socket) -> bytes:
    """Until its end."""
    parts = []
    while part := sock.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


def in_background(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "forwarder"]


class TestRoutes:
    pytestmark = needs_root

    @pytest.mark.parametrize("family", [V4, V6])
    def test_leads_to_pods_here_and_elsewhere(self, here: Here, family: Family) -> None:
        pods = (here.bed.pod1, here.bed.pod3)
        here.put(*(at(pod, 8080, family) for pod in pods), family=family)
        number = 4 if family is V4 else 6
        assert here.reached(60, family) == {endpoint(pod.address(number), 8080) for pod in pods}
        assert here.forwarder.listeners == {V4: int(family is V4), V6: int(family is V6)}

    def test_answers_on_no_other_address(self, here: Here) -> None:
        here.put(at(here.bed.pod1))
        for address in ("127.0.0.2", "::1", here.bed.node.ipv4, here.bed.node.ipv6):
            with pytest.raises(ConnectionRefusedError):
                ask(here.bed.node, address, NODE_PORT)

    def test_only_families_of_the_cidrs(self, bed: Bed) -> None:
        only = Here(bed, "127.0.0.0/8")
        with ExitStack() as stack:
            stack.callback(only.forwarder.stop)
            key = node_port_key(V6, TCP, NODE_PORT)
            only.update({key: ServicePort(key, "a", (at(bed.pod1, 8080, V6),))})
            only.put(at(bed.pod1))  # was told later
            assert not only.answers(family=V6)

    def test_policy_local(self, here: Here) -> None:
        here.put(at(here.bed.pod1), at(here.bed.pod3), local_policy=True, local=(at(here.bed.pod1),))
        assert here.reached(30) == {endpoint(here.bed.pod1.ipv4, 8080)}
        here.put(at(here.bed.pod3), local_policy=True, drop=True)
        with pytest.raises(ConnectionRefusedError):
            here.connect()

    def test_endpoints_go_and_come(self, here: Here) -> None:
        here.put(at(here.bed.pod1))
        here.put()
        with pytest.raises(ConnectionRefusedError):
            here.connect()
        here.put(at(here.bed.pod2))
        assert here.reached(20) == {endpoint(here.bed.pod2.ipv4, 8080)}
        here.put(at(here.bed.pod3))
        assert until(lambda: here.reached(1) == {endpoint(here.bed.pod3.ipv4, 8080)})
        here.update({node_port_key(V4, TCP, NODE_PORT): None})
        assert until(lambda: not here.answers())

    def test_what_is_not_among_everything_is_gone(self, here: Here) -> None:
        here.put(at(here.bed.pod1))
        here.put(at(here.bed.pod1), number=30081)
        key = node_port_key(V4, TCP, 30082)
        clusterip = service_key(bytes([10, 96, 0, 1]), TCP, 80)
        new = {k: ServicePort(k, "new", (at(here.bed.pod1),)) for k in (key, clusterip)}
        here.update(new, complete=True)
        assert until(lambda: here.answers(30082))
        assert not here.answers() and not here.answers(30081)
        assert here.forwarder.listeners == {V4: 1, V6: 0}
        here.update({}, complete=True)
        assert until(lambda: not here.answers(30082))

    def test_affinity(self, here: Here) -> None:
        pods = {endpoint(pod.ipv4, 8080): at(pod) for pod in here.bed.pods}
        here.put(*pods.values(), timeout=100)
        first = here.reached(40)
        assert len(first) == 1
        others = {e for name, e in pods.items() if name not in first}
        here.put(*others, timeout=100)
        assert until(lambda: not here.reached(1) & first)
        assert len(here.reached(40)) == 1
        by_client = set()
        for i in range(2, 30):
            with here.connect(source=f"127.0.0.{i}") as client:
                by_client.add(client.recv(100).split()[0])
        assert len(by_client) > 1

    def test_from_many_threads(self, here: Here) -> None:
        def work(i: int) -> None:
            for number in range(31000 + i * 10, 31010 + i * 10):
                key = node_port_key(V4, TCP, number)
                for there in (True, False, True):
                    here.update({key: ServicePort(key, "a", (at(here.bed.pod1),)) if there else None})

        workers = [in_background(lambda i=i: work(i)) for i in range(8)]  # type: ignore[misc]
        for worker in workers:
            worker.join()
        assert until(lambda: here.forwarder.listeners[V4] == 80)
        assert len(threads()) == 1
        assert here.answers(31000) and here.answers(31079)


class TestFailures:
    pytestmark = needs_root

    def test_an_endpoint_that_refuses(self, here: Here) -> None:
        here.put(at(here.bed.pod1, 1), at(here.bed.pod2), at(here.bed.pod3, 1))
        assert here.reached(40) == {endpoint(here.bed.pod2.ipv4, 8080)}

    def test_an_endpoint_that_is_silent(self, here: Here, monkeypatch: pytest.MonkeyPatch, logs: list[Any]) -> None:
        monkeypatch.setattr(forwarder_connection, "CONNECT_SECONDS", 0.2)
        here.put(SILENT, at(here.bed.pod2))
        assert here.reached(8) == {endpoint(here.bed.pod2.ipv4, 8080)}
        causes = {e["cause"] for e in logs if e["event"] == "endpoint_not_reached"}
        assert causes == {os.strerror(errno.ETIMEDOUT)}

    def test_with_affinity_clients_stay_where_it_worked(self, here: Here) -> None:
        here.put(at(here.bed.pod1, 1), at(here.bed.pod2), at(here.bed.pod3, 1), timeout=100)
        assert here.reached(20) == {endpoint(here.bed.pod2.ipv4, 8080)}

    def test_all_fail(self, here: Here, logs: list[Any]) -> None:
        here.put(*(at(here.bed.pod1, i) for i in range(1, 6)))
        with pytest.raises(ConnectionResetError), here.connect() as client:  # even connect() may see it
            client.recv(1)
        assert sum(e["event"] == "endpoint_not_reached" for e in logs) == forwarder_connection.TRIES
        assert until(lambda: not open_connections(here))

    def test_a_client_that_gives_up_while_we_connect(self, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(forwarder_connection, "CONNECT_SECONDS", 600.0)
        here.put(SILENT)
        client = here.connect()
        assert until(lambda: open_connections(here) == 1)
        reset(client)
        assert until(lambda: not open_connections(here))

    @pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
    def test_a_port_that_is_taken(
        self, here: Here, monkeypatch: pytest.MonkeyPatch, logs: list[Any], address: str
    ) -> None:
        monkeypatch.setattr(forwarder, "RETRY_SECONDS", 0.05)

        def events(name: str) -> list[Any]:
            return [e for e in logs if e["event"] == name]

        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with here.bed.node.namespace.socket(family, socket.SOCK_STREAM) as other:
            other.bind((address, NODE_PORT))
            other.listen()
            key = node_port_key(V4, TCP, NODE_PORT)
            here.update({key: ServicePort(key, "default/web:http", (at(here.bed.pod1),))})
            here.put(at(here.bed.pod1), number=30081)
            assert until(lambda: bool(events("localhost_nodeport_not_listening")))
            assert here.forwarder.listeners[V4] == 1
            event = events("localhost_nodeport_not_listening")[0]
            assert event["service"] == "default/web:http"
            assert (event["address"], event["port"]) == ("127.0.0.1", NODE_PORT)
            with open("/proc/self/comm") as comm:
                assert event["cause"] == f"{comm.read().strip()} (pid {os.getpid()}) has this port"
            assert event["remedy"] and event["log_level"] == "warning"
        assert until(here.answers)
        assert until(lambda: bool(events("localhost_nodeport_listening")))
        assert here.reached(1)
        assert len(events("localhost_nodeport_not_listening")) == 1  # not at each retry

    def test_a_taken_port_that_nobody_wants_any_more(self, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(forwarder, "RETRY_SECONDS", 0.05)
        key = node_port_key(V4, TCP, NODE_PORT)
        with here.bed.node.namespace.socket(socket.AF_INET, socket.SOCK_STREAM) as other:
            other.bind(("127.0.0.1", NODE_PORT))
            here.update({key: ServicePort(key, "default/web", (at(here.bed.pod1),))})
            here.put(at(here.bed.pod1), number=30081)  # was told later
            here.update({key: None})
        with here.connect(30081) as client:  # goes through all that was to be done before
            assert client.recv(100)
        listeners = here.forwarder._running[2]._listeners  # type: ignore[index]
        assert set(listeners) == {node_port_key(V4, TCP, 30081)}
        assert not until(here.answers, timeout=0.2)

    def test_too_many_connections_wait(self, here: Here, monkeypatch: pytest.MonkeyPatch, logs: list[Any]) -> None:
        monkeypatch.setattr(
            forwarder, "_file_limit", lambda: 17
        )  # a listener, five connections, and as much for others
        monkeypatch.setattr(forwarder, "PAUSE_SECONDS", 0.01)
        here.put(at(here.bed.pod1))
        with ExitStack() as stack:
            clients = [stack.enter_context(here.connect()) for _ in range(8)]
            assert until(lambda: len(readable(clients)) == 5)
            assert until(lambda: any(e["event"] == "localhost_nodeport_full" for e in logs))
            assert open_connections(here) == 5 and len(readable(clients)) == 5
            for client in readable(clients):
                client.close()
                clients.remove(client)
            assert until(lambda: len(readable(clients)) == 3)

    def test_who_takes_all_that_there_is_leaves_some_for_others(
        self, here: Here, monkeypatch: pytest.MonkeyPatch, logs: list[Any]
    ) -> None:
        monkeypatch.setattr(forwarder, "_file_limit", lambda: 100)
        others = range(NODE_PORT + 1, NODE_PORT + 4)
        for number in (NODE_PORT, *others):
            here.put(at(here.bed.pod1), number=number)
        with ExitStack() as stack:
            clients = [stack.enter_context(here.connect()) for _ in range(60)]
            assert until(lambda: any(e["event"] == "localhost_nodeport_full" for e in logs))
            assert len(readable(clients)) < 30
            for number in others:
                last = [stack.enter_context(here.connect(number)) for _ in range(3)]
                assert until(lambda last=last: len(readable(last)) == 3)  # type: ignore[misc]


def readable(clients: list[socket.socket]) -> list[socket.socket]:
    return select.select(clients, [], [], 0)[0]


def open_connections(here: Here) -> int:
    running = here.forwarder._running
    assert running
    return len(running[2]._connections)


class TestStreams:
    pytestmark = needs_root

    def test_half_closed_by_the_client(self, here: Here, server: socket.socket) -> None:
        here.put(at(here.bed.pod1, 7000))
        with here.pair(server) as (client, accepted):
            client.sendall(b"question")
            client.shutdown(socket.SHUT_WR)
            assert everything(accepted) == b"question"
            accepted.sendall(b"an ")
            assert client.recv(10) == b"an "
            accepted.sendall(b"answer")
            accepted.close()
            assert everything(client) == b"answer"
        assert until(lambda: not open_connections(here))

    def test_half_closed_by_the_endpoint(self, here: Here, server: socket.socket) -> None:
        here.put(at(here.bed.pod1, 7000))
        with here.pair(server) as (client, accepted):
            accepted.sendall(b"go on")
            accepted.shutdown(socket.SHUT_WR)
            assert everything(client) == b"go on"
            client.sendall(b"still ")
            assert accepted.recv(10) == b"still "
            client.sendall(b"there")
            client.close()
            assert everything(accepted) == b"there"
        assert until(lambda: not open_connections(here))

    @pytest.mark.parametrize("half_closed", ["", "client", "endpoint"])
    @pytest.mark.parametrize("by", ["client", "endpoint"])
    def test_a_reset_passes(self, here: Here, server: socket.socket, by: str, half_closed: str) -> None:
        here.put(at(here.bed.pod1, 7000))
        with here.pair(server) as (client, accepted):
            ends = {"client": client, "endpoint": accepted}
            if half_closed:
                half = ends.pop(half_closed)
                half.shutdown(socket.SHUT_WR)
                (other,) = ends.values()
                assert other.recv(1) == b""
                ends[half_closed] = half
            reset(ends.pop(by))
            (other,) = ends.values()
            if half_closed == by:  # its end has been read, and is what recv() goes on to tell
                assert until(lambda: is_reset(other))
            else:
                with pytest.raises(ConnectionResetError):
                    other.recv(1)
        assert until(lambda: not open_connections(here))

    def test_what_came_before_a_reset_is_delivered(self, here: Here, server: socket.socket) -> None:
        here.put(at(here.bed.pod1, 7000))
        with here.pair(server) as (client, accepted):
            client.sendall(b"x" * 100_000)
            accepted.recv(1)
            accepted.sendall(b"413, and I do not read the rest")
            accepted.close()  # a reset, as there is something unread
            assert client.recv(100) == b"413, and I do not read the rest"
            with pytest.raises(ConnectionResetError):
                everything(client)

    def test_large_transfers_both_ways_at_once(self, here: Here, server: socket.socket) -> None:
        here.put(at(here.bed.pod1, 7000))
        data = {"up": random.randbytes(1 << 25), "down": random.randbytes(1 << 25)}
        got: dict[str, bytes] = {}
        with here.pair(server) as (client, accepted):

            def send(sock: socket.socket, way: str) -> None:
                sock.sendall(data[way])
                sock.shutdown(socket.SHUT_WR)

            def receive(sock: socket.socket, way: str) -> None:
                got[way] = everything(sock)

            work = [
                (send, client, "up"),
                (receive, accepted, "up"),
                (send, accepted, "down"),
                (receive, client, "down"),
            ]
            started = [in_background(lambda f=f, s=s, w=w: f(s, w)) for f, s, w in work]  # type: ignore[misc]
            for thread in started:
                thread.join()
        assert got == data
        assert until(lambda: not open_connections(here))

    @pytest.mark.parametrize("slow", ["client", "endpoint"])
    def test_a_slow_reader_stops_its_writer_and_nobody_else(self, here: Here, server: socket.socket, slow: str) -> None:
        here.put(at(here.bed.pod1, 7000))
        with here.pair(server) as (client, accepted):
            reader, writer = (client, accepted) if slow == "client" else (accepted, client)
            chunk, sent = random.randbytes(1 << 20), 0
            writer.settimeout(0.5)
            with pytest.raises(TimeoutError):
                while sent < 1 << 28:
                    sent += writer.send(chunk[sent % len(chunk) :])
            assert held(here) <= forwarder_connection.BUFFER_SIZE
            with here.pair(server) as (other, other_end):
                other.sendall(bytes(1 << 20))
                other.shutdown(socket.SHUT_WR)
                assert everything(other_end) == bytes(1 << 20)
            writer.shutdown(socket.SHUT_WR)
            left = sent
            while part := reader.recv(1 << 20):
                at_ = (sent - left) % len(chunk)
                expected = (chunk + chunk)[at_ : at_ + len(part)]
                assert part == expected
                left -= len(part)
            assert left == 0

    def test_a_writer_that_is_gone_before_all_is_read(self, here: Here, server: socket.socket) -> None:
        """The forwarder must not be busy meanwhile, and loses nothing that it holds."""
        here.put(at(here.bed.pod1, 7000))
        with here.pair(server) as (client, accepted):
            accepted.settimeout(0.5)
            sent = 0
            with pytest.raises(TimeoutError):
                while sent < 1 << 28:
                    sent += accepted.send(bytes(1 << 20))
            reset(accepted)
            assert until(lambda: hung(here))
            turns = count_turns(here)
            assert not until(lambda: turns() > 10, timeout=0.1)
            got = 0
            with pytest.raises(ConnectionResetError):
                while part := client.recv(1 << 20):
                    got += len(part)
            assert got >= forwarder_connection.BUFFER_SIZE

    def test_connections_survive_changes(self, here: Here, server: socket.socket) -> None:
        key = node_port_key(V4, TCP, NODE_PORT)
        here.put(at(here.bed.pod1, 7000))
        with here.pair(server) as (client, accepted):

            def goes_on() -> None:
                for one, other in ((client, accepted), (accepted, client)):
                    one.sendall(b"hello")
                    assert other.recv(10) == b"hello"

            here.put(at(here.bed.pod2), number=30081)  # another Service
            here.put(at(here.bed.pod1, 7000), at(here.bed.pod2))  # another endpoint joins
            goes_on()
            here.put(at(here.bed.pod2))  # our endpoint goes
            goes_on()
            here.put()  # all go
            goes_on()
            here.update({key: None})  # the Service goes
            goes_on()
            here.put(at(here.bed.pod2))
            goes_on()

    def test_thousands_at_once(self, here: Here) -> None:
        count = 2000
        here.put(*(at(pod) for pod in here.bed.pods))
        with ExitStack() as stack:
            clients = [stack.enter_context(here.connect()) for _ in range(count)]
            answers = Counter(client.recv(100).split()[0] for client in clients)
            assert len(answers) == len(here.bed.pods) and answers.total() == count
            for i, client in enumerate(clients):
                client.sendall(b"%d" % i)
            assert all(client.recv(100) == b"%d" % i for i, client in enumerate(clients))
            assert open_connections(here) == count
        assert until(lambda: not open_connections(here))


def is_reset(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, 0)
    return bool(poll.poll(0))


def ends(here: Here) -> list[Any]:
    running = here.forwarder._running
    assert running
    return [end for c in list(running[2]._connections._open) for end in (c._client, c._server) if end]


def held(here: Here) -> int:
    return sum(len(end.unsent) for end in ends(here))


def hung(here: Here) -> bool:
    return any(end.is_hung for end in ends(here))


def count_turns(here: Here) -> Callable[[], int]:
    """How often the loop has had something to do since."""
    running = here.forwarder._running
    assert running
    selector = running[0]._selector  # type: ignore[attr-defined]
    turns = 0
    original = selector.select

    def counted(timeout: float | None = None) -> Any:
        nonlocal turns
        turns += 1
        return original(timeout)

    selector.select = counted
    return lambda: turns


class TestLifetime:
    pytestmark = needs_root

    def test_without_loopback_nothing_is_started(self, bed: Bed) -> None:
        for cidrs in ((), ("0.0.0.0/0", "::/0"), ("192.168.0.0/16",)):
            idle = Forwarder(map(ip_network, cidrs))
            for family in Family:
                for protocol in (TCP, UDP):
                    key = node_port_key(family, protocol, NODE_PORT)
                    idle.update({key: ServicePort(key, "a", (A,))}, complete=True)
            assert not threads() and idle.rejected == 0 and idle.listeners == {}
            idle.stop()

    def test_the_thread_waits_for_a_nodeport(self, here: Here) -> None:
        clusterip, nodeport = service_key(bytes([10, 96, 0, 1]), TCP, 80), node_port_key(V4, TCP, NODE_PORT)
        here.update({clusterip: ServicePort(clusterip, "a", (A,)), nodeport: None}, complete=True)
        assert not threads()
        here.put(at(here.bed.pod1))
        assert len(threads()) == 1

    def test_stop_leaves_nothing_behind(self, bed: Bed, server: socket.socket) -> None:
        before = len(os.listdir("/proc/self/fd"))
        here = Here(bed)
        here.forwarder.stop()  # there is nothing yet
        here.put(at(bed.pod1, 7000))
        with here.pair(server) as (client, accepted):
            here.forwarder.stop()
            for sock in (client, accepted):
                with pytest.raises(ConnectionResetError):
                    sock.recv(1)
        assert not here.answers() and not threads()
        here.forwarder.stop()
        assert len(os.listdir("/proc/self/fd")) == before


class TestOtherProtocols:
    pytestmark = needs_root

    def test_are_counted_and_told_once(self, here: Here, logs: list[Any]) -> None:
        keys = {(f, p): node_port_key(f, p, 30053) for f in Family for p in (UDP, SCTP)}

        def put(*which: tuple[Family, int], complete: bool = False) -> None:
            here.update({keys[w]: ServicePort(keys[w], "default/dns:dns", (A,)) for w in which}, complete)

        put((V4, UDP), (V6, UDP))
        assert here.forwarder.rejected == 1  # one service port, two families
        put((V4, UDP), (V6, UDP), (V4, SCTP))
        assert here.forwarder.rejected == 2
        told = [e for e in logs if e["event"] == "localhost_nodeport_rejected"]
        assert [e["service"] for e in told] == ["default/dns:dns"] * 2
        assert [e["node_port"] for e in told] == ["NodePort 30053/UDP (IPv4)", "NodePort 30053/SCTP (IPv4)"]
        assert all(e["cause"] and e["remedy"] for e in told)
        here.update({keys[V4, UDP]: None})
        assert here.forwarder.rejected == 2
        here.update({keys[V6, UDP]: None, keys[V4, UDP]: None})
        assert here.forwarder.rejected == 1
        put((V6, UDP), complete=True)
        assert here.forwarder.rejected == 1
        here.update({}, complete=True)
        assert here.forwarder.rejected == 0 and not threads()

    def test_a_name_that_moves_to_another_port(self, here: Here) -> None:
        first, second = (node_port_key(V4, UDP, number) for number in (30053, 30054))
        here.update({first: ServicePort(first, "a", (A,))})
        here.update({first: None, second: ServicePort(second, "a", (A,))})
        assert here.forwarder.rejected == 1
        here.update({second: ServicePort(second, "b", (A,))})
        assert here.forwarder.rejected == 1


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`")
def test_with_an_agent(bed: Bed, tmp_path: Any) -> None:
    config = {"nodePortAddresses": ["primary", "localhost"]}
    families = {"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack", "type": "NodePort"}
    cluster = Cluster(bed, tmp_path, config)
    ports = [{**port("http", 80), "nodePort": 30080}, {**port("dns", 53, "UDP"), "nodePort": 30053}]
    cluster.put(service("web", ["10.96.0.10", "fd00:10:96::10"], *ports, **families))
    target = [port("http", 8080), port("dns", 5353, "UDP")]
    cluster.put(endpoint_slice("web-4", "web", {bed.pod1.ipv4: "node0", bed.pod3.ipv4: "node1"}, *target))
    cluster.put(endpoint_slice("web-6", "web", {bed.pod1.ipv6: "node0", bed.pod3.ipv6: "node1"}, *target))
    cluster.start()
    try:
        for family, loopback in ((4, "127.0.0.1"), (6, "::1")):
            pods = {endpoint(pod.address(family), 8080) for pod in (bed.pod1, bed.pod3)}
            assert until(lambda loopback=loopback: can_connect(bed, loopback))  # type: ignore[misc]
            for address in (loopback, bed.node.address(family)):
                found = tally(bed.node, address, 30080, count=40)
                assert not found.failures
                assert {answer.endpoint for answer in found.answers} == pods
            assert ask(bed.node, bed.node.address(family), 30053, "UDP").endpoint
            with pytest.raises(ConnectionRefusedError):
                ask(bed.node, loopback, 30053, "UDP")
        assert cluster.agent.wait("localhost_nodeport_rejected")["service"] == "default/web:dns"
        cluster.delete("Service", "web")
        assert until(lambda: not can_connect(bed, "127.0.0.1"))
    finally:
        cluster.stop()


def can_connect(bed: Bed, address: str) -> bool:
    try:
        ask(bed.node, address, 30080)
    except OSError:
        return False
    return True
