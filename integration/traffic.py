"""Clients: single questions, counts of many, streams of new connections, and long-lived connections."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from integration.namespaces import Namespace, in_thread
from integration.topology import Host
from rules.netlink import NETLINK_NETFILTER, NEWGEN, NFNLGRP_NFTABLES, SUBSYSTEM

_KINDS: Final = {"TCP": socket.SOCK_STREAM, "UDP": socket.SOCK_DGRAM}
_IP_BIND_ADDRESS_NO_PORT: Final = 24  # Linux: choose the port in connect(), so that many may share one
_NO_LINGER: Final = struct.pack("ii", 1, 0)  # close with a reset: no port of ours stays in TIME_WAIT


@dataclass(frozen=True)
class Answer:
    """Who answered (`endpoint`, as 10.244.0.2:8080 or [fd44::2]:8080), the source address it saw, and ours."""

    endpoint: str
    seen: str
    own: str


@dataclass
class Tally:
    """Outcomes of many questions: answers, and failures by name ('refused', 'no answer', or the system's word)."""

    answers: Counter[Answer] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)


def endpoint(address: str, port: int | str) -> str:
    """Address and port as one word."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def ask(source: Host, address: str, port: int, protocol: str = "TCP", timeout: float = 2.0) -> Answer:
    """Connect from `source` and hear who answers. Raises OSError: ConnectionRefusedError, TimeoutError, …"""
    with source.namespace.entered():
        return _ask(source, address, port, protocol, timeout)


def tally(source: Host, address: str, port: int, protocol: str = "TCP", *, count: int, timeout: float = 2.0) -> Tally:
    """Ask `count` times, each time anew."""
    result = Tally()
    with source.namespace.entered():
        for _ in range(count):
            try:
                result.answers[_ask(source, address, port, protocol, timeout)] += 1
            except OSError as e:
                result.failures[failure(e)] += 1
    return result


def failure(error: OSError) -> str:
    """A short name for how a connection failed."""
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, TimeoutError):
        return "no answer"
    return os.strerror(error.errno) if error.errno else str(error)


@dataclass(frozen=True)
class Attempt:
    """One connection of a Stream; times are `time.monotonic()` before connect() and after the answer."""

    started: float
    ended: float
    endpoint: str
    failure: str = ""


class Stream:
    """New TCP connections, one after the other with `pause` seconds between, from `start` to `stop`."""

    def __init__(self, source: Host, address: str, port: int, pause: float = 0.001) -> None:
        self.source = source
        self.attempts: list[Attempt] = []
        self._to = (address, port)
        self._pause = pause
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = in_thread(self.source.namespace, "stream of connections", self._loop)

    def stop(self) -> list[Attempt]:
        """End it and return all attempts. May be called twice."""
        self._done.set()
        if self._thread:
            self._thread.join()
        return self.attempts

    def _loop(self) -> None:
        while not self._done.wait(self._pause):
            started = time.monotonic()
            try:
                reached, failed = _ask(self.source, *self._to, "TCP", 2.0).endpoint, ""
            except OSError as e:
                reached, failed = "", failure(e)
            self.attempts.append(Attempt(started, time.monotonic(), reached, failed))


class LongLived:
    """TCP connections that stay open; a line goes to and fro on each of them again and again until `stop`."""

    def __init__(self, source: Host, address: str, port: int, count: int, pause: float = 0.005) -> None:
        """Opens `count` connections at once. Raises OSError if one fails."""
        self.lines = 0
        self.broken: list[str] = []  # endpoint and failure of each connection that was lost
        self.endpoints: Counter[str] = Counter()
        self._pause = pause
        self._connections: list[tuple[socket.socket, str]] = []
        self._done = threading.Event()
        try:
            with source.namespace.entered():
                for _ in range(count):
                    connection = _connect(source, address, port, "TCP", 2.0)
                    reached = _greeting(connection).endpoint
                    self._connections.append((connection, reached))
                    self.endpoints[reached] += 1
        except BaseException:
            self._close()
            raise
        self._thread = in_thread(source.namespace, "long-lived connections", self._loop)

    def stop(self) -> None:
        """Close them. `lines`, `broken` and `endpoints` are final then. May be called twice."""
        self._done.set()
        self._thread.join()
        self._close()

    def _loop(self) -> None:
        alive = list(self._connections)
        while alive and not self._done.is_set():
            for each in list(alive):
                if self._done.wait(self._pause):
                    break
                connection, reached = each
                line = b"%d\n" % self.lines
                try:
                    connection.sendall(line)
                    if (got := connection.recv(100)) != line:
                        raise ConnectionError(f"sent {line!r}, got {got!r}")
                    self.lines += 1
                except OSError as e:
                    self.broken.append(f"{reached}: {failure(e)}")
                    alive.remove(each)

    def _close(self) -> None:
        for connection, _ in self._connections:
            connection.close()


class Commits:
    """The kernel's word that nftables rules of a namespace have changed: a new generation was committed."""

    _NEW_GENERATION: Final = SUBSYSTEM << 8 | NEWGEN

    def __init__(self, namespace: Namespace) -> None:
        """Listens from now on, until `close`."""
        self._socket = namespace.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self._socket.bind((0, 1 << NFNLGRP_NFTABLES - 1))
        self.times: list[float] = []
        self._done = threading.Event()
        self._news = threading.Condition()
        self._socket.settimeout(0.2)
        self._thread = threading.Thread(target=self._loop, name="commits", daemon=True)
        self._thread.start()

    def after(self, moment: float, timeout: float = 20.0) -> float:
        """`time.monotonic()` of the first commit later than `moment`. Raises TimeoutError."""
        with self._news:
            if not self._news.wait_for(lambda: self.times and self.times[-1] > moment, timeout):
                raise TimeoutError(f"no change of nftables rules for {timeout:g} s")
            return next(t for t in self.times if t > moment)

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        self._socket.close()

    def _loop(self) -> None:
        while not self._done.is_set():
            try:
                news = self._NEW_GENERATION in _message_types(self._socket.recv(65536))
            except TimeoutError:
                continue
            except OSError as error:  # a first load is more messages than the buffer holds: that is news, too
                news = error.errno == errno.ENOBUFS
            now = time.monotonic()
            if news:
                with self._news:
                    self.times.append(now)
                    self._news.notify_all()


def until(condition: Callable[[], bool], timeout: float = 5.0) -> bool:
    """Ask again and again; True as soon as the condition holds, False after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _message_types(data: bytes) -> list[int]:
    types, at = [], 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        types.append(kind)
        at += max(16, (length + 3) & ~3)
    return types


def _ask(source: Host, address: str, port: int, protocol: str, timeout: float) -> Answer:
    with _connect(source, address, port, protocol, timeout) as connection:
        if protocol == "UDP":
            connection.send(b"who are you?\n")
        return _greeting(connection)


def _connect(source: Host, address: str, port: int, protocol: str, timeout: float) -> socket.socket:
    """The calling thread is in the namespace already."""
    family = 6 if ":" in address else 4
    connection = socket.socket(socket.AF_INET6 if family == 6 else socket.AF_INET, _KINDS[protocol])
    try:
        connection.settimeout(timeout)
        if protocol == "TCP":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        if not source.picks_source:
            connection.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            connection.bind((source.address(family), 0))
        connection.connect((address, port))
    except BaseException:
        connection.close()
        raise
    return connection


def _greeting(connection: socket.socket) -> Answer:
    words = connection.recv(200).decode().split()
    if len(words) != 3:
        raise ConnectionError("closed before the answer")
    address, port, peer = words
    return Answer(endpoint(address, port), peer, str(connection.getsockname()[0]))
