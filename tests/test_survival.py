"""What lasts while everything changes: streams and exchanges through a Service, and new connections to one whose
endpoints come and go."""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from integration import namespaces, privileges
from integration.cluster import Cluster, endpoint_slice, port, service
from integration.namespaces import Namespace, in_thread
from integration.topology import CHECKOUT, Bed, Host
from integration.traffic import Commits, Stream, failure, until
from tests.packets import Counters

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`"),
]

CHANGES: Final = 1000
PODS: Final = 50
NODE: Final = "192.168.77.2"
POD_PORT: Final = 7000
# The kinds of Service that are tested, each with where it is reached: address, port.
KINDS: Final[dict[str, tuple[dict[str, Any], tuple[str, int]]]] = {
    "plain": ({}, ("10.96.9.1", 80)),
    "sticky": ({"sessionAffinity": "ClientIP"}, ("10.96.9.2", 80)),
    "nodeport": ({"type": "NodePort"}, (NODE, 30903)),
    "local": ({"type": "NodePort", "externalTrafficPolicy": "Local"}, (NODE, 30904)),
    "sticky-local": (
        {"type": "NodePort", "externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP"},
        (NODE, 30905),
    ),
}


def pod(kind: str, number: int) -> str:
    """An endpoint: on this node for Services with the Local policy, else on the other one."""
    return f"10.244.0.{100 + number}" if "local" in kind else f"10.244.1.{100 + number}"


class Echo:
    """All addresses of namespaces answer on POD_PORT, TCP and UDP, and give back what they get.

    TCP says first who it is, as integration.servers does; UDP puts that before what it got.
    """

    def __init__(self, *hosts: Namespace) -> None:
        self._sockets: list[socket.socket] = []
        for host in hosts:
            with host.entered():
                listener = socket.create_server(("", POD_PORT), backlog=1024)
                datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                datagrams.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
                datagrams.bind(("", POD_PORT))
            self._sockets += [listener, datagrams]
            in_thread(host, "listener", lambda listener=listener: self._accept(listener))  # type: ignore[misc]
            in_thread(host, "datagrams", lambda datagrams=datagrams: _answer(datagrams))  # type: ignore[misc]

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits
            each.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, peer = listener.accept()
                with suppress(OSError):
                    address, number = connection.getsockname()
                    connection.sendall(f"{address} {number} {peer[0]}\n".encode())
                threading.Thread(target=_echo, args=[connection], daemon=True).start()


_IP_PKTINFO: Final = 8


def _echo(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        while data := connection.recv(1 << 16):
            connection.sendall(data)


def _answer(datagrams: socket.socket) -> None:
    with suppress(OSError):
        while True:
            data, ancillary, _, peer = datagrams.recvmsg(2000, 100)
            if not peer:
                return
            info = ancillary[0][2]
            own = socket.inet_ntoa(info[8:12])
            reply = [(socket.IPPROTO_IP, _IP_PKTINFO, bytes(4) + info[8:12] + bytes(4))]
            with suppress(OSError):
                datagrams.sendmsg([f"{own} ".encode(), data], reply, 0, peer)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    privileges.acquire()
    with Bed() as bed:
        bed.client.namespace.ip(["route add local 10.77.0.0/16 dev lo"])
        bed.pod3.namespace.ip(f"addr add {pod('plain', i)}/32 dev lo" for i in range(PODS))
        bed.pod2.namespace.ip(f"addr add {pod('local', i)}/32 dev lo" for i in range(PODS))
        echo = Echo(bed.pod3.namespace, bed.pod2.namespace)
        it = Cluster(bed, tmp_path)
        it.start()
        try:
            yield it
        finally:
            echo.close()


PORTS: Final = [port("tcp", POD_PORT), port("udp", POD_PORT, "UDP")]


def put_services(cluster: Cluster) -> None:
    for number, (kind, (spec, (_, door))) in enumerate(KINDS.items(), 1):
        ports = [{**port(p.lower(), 80, p), **({"nodePort": door} if door != 80 else {})} for p in ("TCP", "UDP")]
        cluster.put(service(kind, [f"10.96.9.{number}"], *ports, **spec))


def lead(cluster: Cluster, kind: str, numbers: list[int]) -> None:
    where = "node0" if "local" in kind else "node1"
    cluster.put(endpoint_slice(kind, kind, {pod(kind, i): where for i in numbers}, *PORTS))


class Lasting:
    """A TCP connection that carries random bytes to and fro, and a UDP socket that asks and is answered, until `stop`.

    `faults` says what went wrong: a reset, a byte that is not what was sent, an answer that did not come or came from
    another endpoint than the first.
    """

    def __init__(self, source: Host, to: tuple[str, int]) -> None:
        self.rounds = 0
        self.faults: list[str] = []
        self._done = threading.Event()
        self._sockets = [
            source.namespace.socket(socket.AF_INET, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
        ]
        for each in self._sockets:
            each.settimeout(10)
            if not source.picks_source:
                each.bind((source.ipv4, 0))
            each.connect(to)
        _line(self._sockets[0])
        self._peer = self._ask()
        self._thread = in_thread(source.namespace, "lasting", self._loop)

    def stop(self) -> None:
        self._done.set()
        self._thread.join()
        for each in self._sockets:
            each.close()

    def _loop(self) -> None:
        stream = self._sockets[0]
        try:
            while not self._done.wait(0.005):
                data = random.randbytes(random.randrange(1, 20_000))
                stream.sendall(data)
                if _exactly(stream, len(data)) != data:
                    raise ConnectionError("other bytes than those sent")
                if (peer := self._ask()) != self._peer:
                    raise ConnectionError(f"an answer from {peer}, not {self._peer}")
                self.rounds += 1
        except OSError as error:
            self.faults.append(failure(error))

    def _ask(self) -> str:
        """Who answers a datagram."""
        exchange, question = self._sockets[1], random.randbytes(20).hex().encode()
        exchange.send(question)
        peer, _, answer = exchange.recv(200).partition(b" ")
        if answer != question:
            raise ConnectionError(f"{answer!r}, not {question!r}")
        return peer.decode()


def _line(stream: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        data += stream.recv(1)
    return data


def _exactly(stream: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not (more := stream.recv(size - len(data))):
            raise ConnectionError(f"closed after {len(data)} bytes of {size}")
        data += more
    return bytes(data)


def test_streams_and_exchanges_outlive_a_thousand_changes(cluster: Cluster) -> None:
    bed = cluster.bed
    put_services(cluster)
    for kind in KINDS:
        lead(cluster, kind, [0])  # what lasts leads there
    cluster.settle()
    sources = {"plain": [bed.client, bed.pod1, bed.node], "sticky": [bed.client, bed.pod1, bed.node]}
    lasting = [Lasting(s, to) for kind, (_, to) in KINDS.items() for s in sources.get(kind, [bed.client])]
    commits = Commits(bed.node.namespace)
    change = Changes(cluster)
    try:
        for _ in range(CHANGES):
            begun = time.monotonic()
            change()
            commits.after(begun)
        before = [it.rounds for it in lasting]
        alive = until(lambda: all(it.rounds > n for it, n in zip(lasting, before, strict=True)))
    finally:
        for it in lasting:
            it.stop()
        commits.close()
    assert [it.faults for it in lasting] == [[]] * len(lasting)
    assert alive
    assert all(it.rounds > 100 for it in lasting), [it.rounds for it in lasting]


class Changes:
    """A random change a call, each of which changes nftables: of other Services, or of the other endpoints of KINDS."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._others: dict[int, int] = {}  # number of a Service: how many endpoints
        self._own = {kind: [0] for kind in KINDS}

    def __call__(self) -> None:
        if random.random() < 0.5:
            self._change_own()
        elif len(self._others) < 5 or random.random() < 0.2:
            self._change_other(min(set(range(200)) - self._others.keys()))
        elif random.random() < 0.2:
            number = random.choice(list(self._others))
            del self._others[number]
            self._cluster.delete("Service", f"other-{number}")
        else:
            self._change_other(random.choice(list(self._others)))

    def _change_own(self) -> None:
        kind = random.choice(list(KINDS))
        before = self._own[kind]
        while set(self._own[kind]) == set(before):
            self._own[kind] = [0, *random.sample(range(1, PODS), random.choice([0, 1, 3, 8, 30]))]
        lead(self._cluster, kind, random.sample(self._own[kind], len(self._own[kind])))

    def _change_other(self, number: int) -> None:
        """A Service that shares endpoints with those that are tested: theirs are none of its business."""
        size = random.choice([n for n in (1, 2, 5, 9, 20) if n != self._others.get(number)])
        name = f"other-{number}"
        nodes = {pod("plain", i): "node1" for i in range(size)}
        if number not in self._others:
            sticky = {"sessionAffinity": "ClientIP"} if number % 3 == 0 else {}
            policy = {"externalTrafficPolicy": "Local"} if number % 2 else {}
            ports = [{**port(p.lower(), 80, p), "nodePort": 31000 + number} for p in ("TCP", "UDP")]
            # The slice alone, of a Service that is not there, changes nothing.
            self._cluster.put(endpoint_slice(name, name, nodes, *PORTS))
            made = service(name, [f"10.97.0.{number + 1}"], *ports, type="NodePort", **sticky, **policy)
            self._cluster.put(made)
        else:
            self._cluster.put(endpoint_slice(name, name, nodes, *PORTS))
        self._others[number] = size


# New connections.

SOURCES: Final = [f"10.77.1.{i}" for i in range(1, 50)]
# Datagrams of the flood go no further than behind our rules, so that conntrack does not fill up with them.
ARRIVED: Final = """
chain arrived {
    type filter hook forward priority 0;
    ip saddr 10.77.0.0/16 udp dport 7000 counter drop comment "arrived"
}
"""
SENT: Final = """
chain sent { type filter hook output priority 0; ip saddr 10.77.0.0/16 meta l4proto udp counter comment "sent"; }
chain got { type filter hook input priority 0; icmp type destination-unreachable counter comment "refused"; }
"""


def test_new_connections_never_fail_while_an_endpoint_stays(cluster: Cluster) -> None:
    """All kinds of Services go from 1 endpoint to 50 and back, one after the other, as fast as the agent follows."""
    bed = cluster.bed
    put_services(cluster)
    for kind in KINDS:
        lead(cluster, kind, [0])
    cluster.settle()
    commits = Commits(bed.node.namespace)
    streams = [Stream(bed.client, *to, pause=0.01) for _, to in KINDS.values()]
    with Counters(bed.node.namespace, ARRIVED) as arrived, Counters(bed.client.namespace, SENT) as sent:
        argv = [sys.executable, "-m", "tests.test_survival", *(f"{a}:{n}" for _, (a, n) in KINDS.values())]
        flood = bed.client.namespace.popen(argv, env={**os.environ, "PYTHONPATH": str(CHECKOUT)})
        try:
            assert until(lambda: sent.read()["sent"] > 0)
            for stream in streams:
                stream.start()
            for number in range(CHANGES // len(KINDS)):
                for kind in KINDS:
                    begun = time.monotonic()
                    lead(cluster, kind, [0] if number % 2 else list(range(PODS)))
                    commits.after(begun)
        finally:
            namespaces.stop(flood)
            attempts = [attempt for stream in streams for attempt in stream.stop()]
            commits.close()
        packets = sent.read()
        until(lambda: arrived.read()["arrived"] + packets["refused"] >= packets["sent"])
        counted = arrived.read()["arrived"]
    assert packets["refused"] == 0, packets
    assert counted == packets["sent"] > 10 * CHANGES
    assert [a for a in attempts if a.failure] == []
    assert len({a.endpoint for a in attempts}) > 10


def flood(*targets: str) -> None:
    """Datagrams to each address:port from each of SOURCES in turn, each from a port of its own, until it is killed."""
    send: list[Callable[[bytes], int]] = []
    for target in targets:
        address, _, number = target.partition(":")
        for source in SOURCES:
            raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
            raw.bind((source, 0))
            raw.connect((address, 0))
            rest = int(number).to_bytes(2) + b"\0\x08\0\0"
            send.append(lambda head, raw=raw, rest=rest: raw.send(head + rest))  # type: ignore[misc]
    while True:
        for each in range(1024, 65536):
            head = each.to_bytes(2)
            for one in send:
                one(head)


if __name__ == "__main__":
    flood(*sys.argv[1:])
