"""A node with one pod that asks, one that answers for every endpoint, and somebody outside: four namespaces and what joins
them. All is in this process: a thread enters a namespace to make a socket, and uses it from anywhere.

The endpoints are all of 11.0.0.0/9: one listener answers for them. Whoever connects closes with a reset, and what is
closed is forgotten after a second, so that neither ports nor conntrack fill.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.netns import CLONE_NEWNET, Namespace

POD_NETWORK = "11.0.0.0/8"
POD = "11.255.0.2"
POD_CLIENTS = 0x0BFE0000  # 11.254.0.0/16: more addresses of the pod, to be many clients
OUTSIDE = "198.18.0.2"
NODE = "198.18.0.1"  # for NodePorts
LINGER = struct.pack("ii", 1, 0)
PATIENCE = struct.pack("ll", 5, 0)
POD_PORT = 8080

_LIBC = ctypes.CDLL(None, use_errno=True)
_LINKS = """
link add pod0 type veth peer name eth0 netns {pod}
link add srv0 type veth peer name eth0 netns {server}
link add out0 type veth peer name eth0 netns {outside}
link set lo up
link set pod0 up
link set srv0 up
link set out0 up
addr add 11.255.0.1/24 dev pod0
addr add 172.31.0.1/30 dev srv0
addr add 198.18.0.1/24 dev out0
route add 11.0.0.0/9 via 172.31.0.2
"""
_ROUTES = """
route add 11.254.0.0/16 via 11.255.0.2
route add default via 198.18.0.2
"""
_POD = """
link set lo up
link set eth0 up
addr add 11.255.0.2/24 dev eth0
route add default via 11.255.0.1
route add local 11.254.0.0/16 dev lo
"""
_SERVER = """
link set lo up
link set eth0 up
addr add 172.31.0.2/30 dev eth0
route add default via 172.31.0.1
route add local 11.0.0.0/9 dev lo
"""
_OUTSIDE = """
link set lo up
link set eth0 up
addr add 198.18.0.2/24 dev eth0
route add default via 198.18.0.1
"""
_UDP_TIMEOUTS = ("netfilter/nf_conntrack_udp_timeout", "netfilter/nf_conntrack_udp_timeout_stream")
_SYSCTLS = {
    "ipv4/ip_forward": 1,
    "ipv4/conf/all/rp_filter": 0,
    "ipv4/conf/default/rp_filter": 0,
    "ipv4/tcp_no_metrics_save": 1,
    "ipv4/neigh/default/base_reachable_time_ms": 86_400_000,
    "netfilter/nf_conntrack_tcp_timeout_close": 1,
    **dict.fromkeys(_UDP_TIMEOUTS, 1),
}


class Trouble(RuntimeError):
    """Something that the measurement needs cannot be had, or does not do what it should."""


@contextmanager
def inside(namespace: Namespace) -> Iterator[None]:
    """The calling thread is in the namespace meanwhile."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(namespace.descriptor)
        yield
    finally:
        _enter(home)
        os.close(home)


def set_sysctls(namespace: Namespace, values: dict[str, int]) -> None:
    """net.*, with slashes. Those that the namespace does not have are left out."""
    with inside(namespace):
        for name, value in values.items():
            with suppress(FileNotFoundError):
                Path("/proc/sys/net", name).write_text(str(value))


def _enter(descriptor: int) -> None:
    if _LIBC.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "entering a network namespace: run this as root")


@dataclass
class World:
    """Exists until `close`."""

    node: Namespace = field(default_factory=Namespace)
    pod: Namespace = field(default_factory=Namespace)
    server: Namespace = field(default_factory=Namespace)
    outside: Namespace = field(default_factory=Namespace)

    def __post_init__(self) -> None:
        for namespace in self._all():
            set_sysctls(namespace, _SYSCTLS)
        paths = {
            name: f"/proc/{os.getpid()}/fd/{getattr(self, name).descriptor}" for name in ("pod", "server", "outside")
        }
        for namespace, commands in (
            (self.node, _LINKS.format(**paths)),
            (self.pod, _POD),
            (self.server, _SERVER),
            (self.outside, _OUTSIDE),
            (self.node, _ROUTES),
        ):
            done = namespace.run("ip", "-batch", "-", stdin=commands)
            if done.returncode:
                raise Trouble(f"ip: {done.stderr.strip()}")

    def remember_udp(self) -> None:
        """From now on a flow without packets is not forgotten within a second, but within three minutes."""
        set_sysctls(self.node, dict.fromkeys(_UDP_TIMEOUTS, 180))

    def _all(self) -> tuple[Namespace, ...]:
        return self.node, self.pod, self.server, self.outside

    def close(self) -> None:
        for namespace in self._all():
            namespace.close()

    def origin(self, name: str) -> Namespace:
        """Where a client is: "pod", "node" or "outside"."""
        found = getattr(self, name)
        assert isinstance(found, Namespace)
        return found

    def listener(self, *, shared: bool = False) -> socket.socket:
        """Accepts the TCP connections to all endpoints. shared: with others that are `shared`."""
        with inside(self.server):
            sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("", POD_PORT))
        sock.listen(4096)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, PATIENCE)
        return sock

    def receiver(self) -> socket.socket:
        """Receives the UDP packets to all endpoints, and is told to which one, so that it can answer from there."""
        with inside(self.server):
            sock = socket.socket(type=socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, PATIENCE)
        sock.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
        sock.setsockopt(socket.IPPROTO_IP, 8, 1)  # IP_PKTINFO
        sock.bind(("", POD_PORT))
        return sock


class Way(NamedTuple):
    """From the origin ("pod", "outside") to these places. base: the name of the way that it is held against."""

    world: World
    places: Sequence[tuple[str, int]]
    origin: str
    base: str


def clients(namespace: Namespace, count: int, *, udp: bool = False, sources: Sequence[str] = ()) -> list[socket.socket]:
    """Sockets of the namespace, ready to connect; one for each of `sources`, bound to it, where there are any. A
    connect() that nobody answers fails after five seconds."""
    kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
    with inside(namespace):
        found = [socket.socket(type=kind) for _ in range(count)]
    for sock in found:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, PATIENCE)
        if udp:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, PATIENCE)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
    for sock, source in zip(found, sources, strict=False):
        sock.bind((source, 0))
    return found
