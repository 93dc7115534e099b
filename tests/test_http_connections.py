"""What clients of an HTTP server cannot do, however many they are: hold more than their share, keep others out, make it
work without end."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from proxy import http_connections
from proxy.config_values import HostPort
from proxy.http_connections import MAX_CONNECTIONS, MAX_READS, SHARE, SMALL, Connections, Spot
from proxy.http_message import Request, Response, ends_there
from proxy.page_server import PageServer
from rules.objects import Family
from tests.deployed import wait_until
from tests.netns import Namespace
from tests.objects import endpoint_slice, list_of, service
from tests.test_end_to_end import Node, manifests, node

__all__ = ["manifests", "node"]

GET = b"GET /page HTTP/1.1\r\nHost: node\r\n\r\n"
SPOT = (bytes(4), 7001)
BIG = bytes(1 << 22)

# -- One loop, one thread: nothing happens but in `turn` ---------------------------------------------------------------


class World:
    """Clients, and the server's side of them."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.connections = Connections(self.loop, self._answer)
        self.asked = 0
        self._ends: list[socket.socket] = []

    def _answer(self, request: Request, spot: Spot) -> Response | None:
        assert spot == SPOT
        self.asked += 1
        if request.path == "/hang-up":
            return None
        if request.path == "/fail":
            raise RuntimeError("a bug")
        return Response(HTTPStatus.OK, BIG if request.path == "/big" else b"hello")

    def client(self, peer: str = "10.0.0.1", said: bytes = b"") -> socket.socket:
        """One that has said this when it is taken in."""
        client, server = socket.socketpair()
        client.settimeout(5)
        self._ends.append(client)
        client.sendall(said)
        self.connections.add(server, peer, SPOT)
        return client

    def turn(self, times: int = 3) -> None:
        """Let happen what can happen now."""
        for _ in range(times):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def close(self) -> None:
        self.connections.close()
        assert len(self.connections) == 0
        for end in self._ends:
            end.close()
        self.loop.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def is_open(client: socket.socket) -> bool:
    ready, _, _ = select.select([client], [], [], 0)
    if not ready:
        return True
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except ConnectionResetError:
        return False


def answer(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65536), b""))


def test_who_has_asked_is_answered_at_once_and_holds_nothing(world: World) -> None:
    client = world.client(said=GET)
    assert len(world.connections) == 0
    assert answer(client).endswith(b"hello")


@pytest.mark.parametrize("cuts", [(1,), (5, 20), (len(GET) - 1,)])
def test_a_request_in_pieces(world: World, cuts: tuple[int, ...]) -> None:
    pieces = [GET[a:b] for a, b in zip((0, *cuts), (*cuts, len(GET)), strict=True)]
    client = world.client(said=pieces[0])
    for piece in pieces[1:]:
        assert len(world.connections) == 1
        client.sendall(piece)
        world.turn()
    assert answer(client).endswith(b"hello") and len(world.connections) == 0


def test_who_has_closed_for_writing_gets_his_answer(world: World) -> None:
    client = world.client(said=GET[:9])
    client.sendall(GET[9:])
    client.shutdown(socket.SHUT_WR)
    world.turn()
    assert answer(client).endswith(b"hello") and len(world.connections) == 0


def test_half_a_request_and_its_end_is_the_end(world: World) -> None:
    client = world.client(said=GET[:9])
    client.shutdown(socket.SHUT_WR)
    world.turn()
    assert answer(client) == b"" and len(world.connections) == 0


def test_of_many_requests_at_once_the_first_is_answered(world: World) -> None:
    client = world.client(said=GET * 100)
    world.turn()
    assert answer(client).count(b"HTTP/1.1 ") == 1
    assert world.asked == 1
    client.close()
    world.turn()
    assert len(world.connections) == 0


@pytest.mark.parametrize("end", [b"", b"x", GET, b"\r\n"])
def test_whether_more_came_than_a_request(end: bytes) -> None:
    assert ends_there(GET + end) == (end == b"")
    assert not ends_there(GET[:-1])


def test_a_byte_at_a_time_is_not_work_without_end(world: World) -> None:
    client = world.client(said=b"G")
    sent = 0
    while is_open(client) and sent < 10 * MAX_READS:
        try:
            client.send(b"E")
        except BrokenPipeError:
            break
        sent += 1
        world.turn(1)
    assert sent <= MAX_READS + 2
    assert len(world.connections) == 0


def test_a_big_answer_is_held_for_so_long_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "REQUEST_SECONDS", 0.0)
    client = world.client(said=GET.replace(b"/page", b"/big"))
    assert len(world.connections) == 1 and len(BIG) > SMALL
    world.turn()
    assert len(world.connections) == 0
    assert len(answer(client)) < len(BIG)


def test_what_was_not_read_is_not_kept_in_the_kernel(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "REQUEST_SECONDS", 0.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), 5) as client,
    ):
        client.sendall(GET.replace(b"/page", b"/big"))
        world.connections.add(listener.accept()[0], "127.0.0.1", SPOT)
        world.turn()
        assert len(world.connections) == 0
        with pytest.raises(ConnectionResetError):
            while client.recv(1 << 20):
                pass


@pytest.mark.parametrize("path", [b"/hang-up", b"/fail"])
def test_who_gets_no_answer_is_hung_up_on(world: World, path: bytes) -> None:
    for said in (GET, GET[:20]):
        client, server = socket.socketpair()
        with client:
            client.settimeout(5)
            client.sendall(said.replace(b"/page", path))
            try:
                world.connections.add(server, "::1", SPOT)
            except RuntimeError:
                assert path == b"/fail"
            if said != GET:
                client.sendall(GET[20:])
                world.loop.set_exception_handler(lambda _loop, _context: None)
                world.turn()
            assert answer(client) == b"" and len(world.connections) == 0


# Who has to go.


def test_the_oldest_of_a_source_goes_when_it_has_its_share(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "GRACE_SECONDS", 0.0)
    other = world.client("10.0.0.2")
    clients = [world.client() for _ in range(SHARE + 5)]
    assert [is_open(client) for client in clients] == [False] * 5 + [True] * SHARE
    assert is_open(other)
    clients[-1].sendall(GET)
    world.turn()
    assert answer(clients[-1]).endswith(b"hello")


def test_in_a_flood_who_is_silent_goes_himself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "GRACE_SECONDS", 60.0)
    first = [world.client() for _ in range(SHARE)]
    late = [world.client(said=said) for said in (b"", b"GET /pag", b"")]
    assert [is_open(client) for client in late] == [False] * 3
    # Who has asked is answered; and one that has to be waited for takes the place of a silent one.
    assert answer(world.client(said=GET)).endswith(b"hello")
    slow = world.client(said=GET.replace(b"/page", b"/big"))
    assert is_open(slow) and [is_open(client) for client in first] == [False] + [True] * (SHARE - 1)
    assert is_open(world.client("10.0.0.2"))


def test_those_who_have_their_answer_go_first(world: World) -> None:
    silent = [world.client() for _ in range(SHARE - 1)]
    had = world.client(said=GET + b"more")
    world.turn()
    assert len(world.connections) == SHARE
    assert is_open(world.client())
    assert all(map(is_open, silent)) and len(world.connections) == SHARE
    assert answer(had).endswith(b"hello")


def test_all_together_are_bounded_and_who_has_most_gives(world: World) -> None:
    """And one that is alone of its source stays, whatever others do."""
    alone = world.client("192.0.2.1")
    for source in range(20):
        for _ in range(SHARE):
            world.client(f"10.0.1.{source}")
            assert len(world.connections) <= MAX_CONNECTIONS
    assert len(world.connections) == MAX_CONNECTIONS
    assert is_open(alone)
    alone.sendall(GET)
    world.turn()
    assert answer(alone).endswith(b"hello")


def test_a_link_of_ipv6_addresses_is_one_source(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "GRACE_SECONDS", 0.0)
    other = world.client("2001:db8:0:1::1")
    for number in range(3 * SHARE):
        world.client(f"2001:db8::{number:x}")
    world.client("fe80::1%eth0")
    assert len(world.connections) == SHARE + 2
    assert is_open(other)


# -- Thousands of clients ----------------------------------------------------------------------------------------------

# argv: what to do, how many at once, address, port. Says "ready" when it has begun; ends when its standard input does.
ATTACK = """
import errno, resource, select, socket, sys, time
how, crowd, host, port = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_NOFILE, (crowd + 100, crowd + 100))
said = {
    "idle": b"", "drip": b"G", "headers": b"GET / HTTP/1.1\\r\\nX: " + b"x" * 30000, "requests": b"GET / HTTP/1.1\\r\\n\\r\\n" * 100,
    "body": b"POST / HTTP/1.1\\r\\nContent-Length: 1000000\\r\\n\\r\\n" + b"x" * 30000, "ask": b"GET /big HTTP/1.1\\r\\n\\r\\n",
}[how]
poll, clients, opened, ready = select.epoll(), {}, 0, False
poll.register(0, select.EPOLLIN)
while True:
    for _ in range(min(500, crowd - len(clients))):
        client = socket.socket()
        client.setblocking(False)
        if client.connect_ex((host, port)) not in (0, errno.EINPROGRESS):
            client.close()
            break
        opened += 1
        clients[client.fileno()] = client
        poll.register(client, select.EPOLLOUT | select.EPOLLRDHUP)
    if opened > crowd and not ready:
        ready = True
        print("ready", flush=True)
    for number, events in poll.poll(0.01, 1000):
        if number == 0:
            sys.exit()
        client = clients[number]
        try:
            if events & (select.EPOLLERR | select.EPOLLHUP | select.EPOLLRDHUP):
                raise OSError
            if said:
                client.send(said)
            poll.modify(client, select.EPOLLRDHUP)
        except OSError:
            del clients[number]
            client.close()
"""
PROBE = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as client:
    client.settimeout(5)
    client.sendall(b"GET /livez HTTP/1.1\\r\\nHost: node\\r\\n\\r\\n")
    sys.exit(b" 200 OK" not in client.recv(65536))
"""
IP = shutil.which("ip") or "ip"
HOST, ATTACKER = "10.9.0.1", "10.9.0.2"


@pytest.fixture
def attacker(namespace: Namespace) -> Iterator[Namespace]:
    """A namespace with a cable to the server's."""
    other = Namespace()
    name = f"/proc/{os.getpid()}/fd/{other.descriptor}"
    for command in (
        "link set lo up",
        "link add v0 type veth peer name v1",
        f"address add {HOST}/24 dev v0",
        "link set v0 up",
    ):
        assert namespace.run(IP, *command.split()).returncode == 0
    subprocess.run(
        [
            "nsenter",
            f"--net=/proc/{os.getpid()}/fd/{namespace.descriptor}",
            "sh",
            "-c",
            f"exec 3<{name}; ip link set v1 netns /proc/self/fd/3",
        ],
        check=True,
        pass_fds=[other.descriptor],
    )
    for command in (f"address add {ATTACKER}/24 dev v1", "link set v1 up"):
        assert other.run(IP, *command.split()).returncode == 0
    yield other
    other.close()


def probe(namespace: Namespace) -> bool:
    """A kubelet's: on the node, from its address, of 5 seconds."""
    return namespace.run(sys.executable, "-c", PROBE, HOST, "10256").returncode == 0


def resident() -> int:
    """Of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def attack(attacker: Namespace, how: str, crowd: int) -> subprocess.Popen[bytes]:
    """Returns when so many have come."""
    enter = [shutil.which("nsenter") or "nsenter", f"--net=/proc/{os.getpid()}/fd/{attacker.descriptor}"]
    argv = [*enter, sys.executable, "-c", ATTACK, how, str(crowd), HOST, "10256"]
    flood = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert flood.stdout and flood.stdout.readline() == b"ready\n"
    return flood


def end(flood: subprocess.Popen[bytes]) -> None:
    assert flood.stdin and flood.stdout
    flood.stdin.close()
    flood.wait()
    flood.stdout.close()


@pytest.mark.root
@pytest.mark.parametrize(
    ("how", "crowd"),
    [("idle", 10_000), ("drip", 3000), ("headers", 1000), ("body", 1000), ("requests", 1000), ("ask", 1000)],
)
def test_thousands_at_once(namespace: Namespace, attacker: Namespace, how: str, crowd: int) -> None:
    """A probe gets its answer among them, who come from another address; what they make us hold is bounded; work that somebody else
    in this process does goes on; and when they are gone, all of it is gone."""
    page = Response(HTTPStatus.OK, bytes(60_000))
    server = PageServer(
        "page",
        "pageBindAddress",
        HostPort(HOST, 10256),
        [Family.IPV4],
        lambda request: page if request.path == "/big" else Response(HTTPStatus.OK, b"ok"),
    )
    namespace.inside(server.start)
    done, stop = [0], threading.Event()

    def work() -> None:
        while not stop.wait(0.005):
            done[0] += 1

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: probe(namespace), "the server listens")
    before = len(os.listdir("/proc/self/fd"))
    memory = resident()
    flood = attack(attacker, how, crowd)
    try:
        begun = done[0]
        answered = [probe(namespace) for _ in range(4)]
        assert sum(answered) >= 3, answered  # a kubelet asks more than once before it does anything
        wait_until(lambda: done[0] - begun > 20, "others' work goes on")
        assert len(os.listdir("/proc/self/fd")) <= before + SHARE + 20
        assert resident() - memory < 50 << 20
    finally:
        end(flood)
        stop.set()
        worker.join()
    try:
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, "nothing is left open")
        assert probe(namespace)
    finally:
        server.stop()


@pytest.mark.root
@pytest.mark.parametrize("how", ["idle", "ask"])
def test_an_agent_does_its_work_meanwhile(node: Node, attacker: Namespace, manifests: Path, how: str) -> None:
    objects = [service("web", "10.96.0.1"), endpoint_slice("web", "10.244.0.1")]
    (manifests / "web.json").write_text(list_of(*objects))
    node.start("--manifests", manifests)
    node.logged("programmed")
    flood = attack(attacker, how, 2000)
    try:
        for number in range(2, 20):
            more = [
                service(f"web-{number}", f"10.96.0.{number}"),
                endpoint_slice(f"web-{number}", f"10.244.0.{number}"),
            ]
            (manifests / f"{number}.json").write_text(list_of(*more))
            objects += more
        node.holds(*objects)
        assert flood.poll() is None
        assert any(probe(node.namespace) for _ in range(3))
    finally:
        end(flood)
    assert node.stop() == 0
    assert node.events("healthz_failure", "unexpected_failure") == []
