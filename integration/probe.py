"""New connections without end, from a process of its own: one every millisecond, to each target in turn.

    answers = Answers(Place(...), …)
    probe = Probe(["TCP 10.96.0.1 80", …])
    …
    outcomes = probe.stop()

This file is the program of both processes; it imports nothing of the project. A TCP connection counts when its
handshake is done, a UDP exchange when an answer came. Sockets do not block: one that waits holds up no other.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from integration.namespaces import Namespace

EVERY: Final = 0.001
PATIENCE: Final = 2.0  # seconds after which an attempt has failed
MOST_SOCKETS: Final = 1 << 16
URGENT: Final = -10  # niceness: who looks must not wait for those who are looked at
_KINDS: Final = {"TCP": socket.SOCK_STREAM, "UDP": socket.SOCK_DGRAM}
_BACKLOG: Final = 4096
_BUFFER: Final = 16 << 20
_SO_RCVBUFFORCE: Final = 33
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # no port of ours stays in TIME_WAIT


@dataclass
class Outcome:
    """Of one target. failures: by the system's name, 'no answer' for silence; first_failures: when, by time.time().

    resent: TCP connections that went well, but lost a packet. longest: the longest that one took, in milliseconds.
    widest_gap: the longest time between two of them, in milliseconds: how well it was looked.
    """

    target: str
    attempts: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    first_failures: list[float] = field(default_factory=list)
    resent: int = 0
    longest: float = 0.0
    widest_gap: float = 0.0

    @property
    def failed(self) -> int:
        return sum(self.failures.values()) + self.resent


class Probe:
    """Begins at once; the constructor returns when every target has answered. targets: "TCP 10.96.0.1 80".

    namespace: where it is to run; None: here. Raises RuntimeError if a target does not answer.
    """

    def __init__(self, targets: Sequence[str], namespace: Namespace | None = None) -> None:
        argv = [sys.executable, "-S", "-E", __file__, *targets]
        if namespace:
            argv = ["nsenter", f"--net=/run/netns/{namespace.name}", *argv]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        if self._process.stdout.readline() != "ready\n":
            self._process.kill()
            self._process.communicate()
            raise RuntimeError("the probe does not reach all of " + ", ".join(targets))

    def stop(self) -> list[Outcome]:
        """No more attempts; those under way are waited for."""
        said, _ = self._process.communicate(timeout=2 * PATIENCE + 10)
        return [Outcome(**each) for each in json.loads(said)]


@dataclass(frozen=True)
class Place:
    """Where to answer; "TCP" or "UDP"."""

    namespace: Namespace
    protocol: str
    address: str
    port: int


class Answers:
    """Pods that answer as those of integration.servers do, from one process for all, which has room for what comes
    while it has to wait."""

    def __init__(self, *places: Place) -> None:
        sockets = [self._open(place) for place in places]
        numbers = [sock.fileno() for sock in sockets]
        argv = [sys.executable, "-S", "-E", __file__, "--answer", *map(str, numbers)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=numbers)
        for sock in sockets:
            sock.close()

    @staticmethod
    def _open(place: Place) -> socket.socket:
        family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
        sock = place.namespace.socket(family, _KINDS[place.protocol])
        sock.bind((place.address, place.port))
        if place.protocol == "TCP":
            sock.listen(_BACKLOG)
        else:
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        return sock

    def stop(self) -> None:
        self._process.communicate(timeout=10)


@dataclass
class _Attempt:
    sock: socket.socket
    target: int
    began: float


class _Prober:
    def __init__(self, targets: Sequence[str]) -> None:
        self.outcomes = [Outcome(target) for target in targets]
        self.answered: set[int] = set()
        self._where: list[tuple[int, int, tuple[str, int]]] = []
        for target in targets:
            protocol, address, port = target.split()
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._where.append((family, _KINDS[protocol], (address, int(port))))
        self._open: dict[int, _Attempt] = {}
        self._last = [0.0] * len(targets)
        self._poll = select.epoll()

    def begin(self, target: int) -> None:
        family, kind, to = self._where[target]
        sock = socket.socket(family, kind)
        sock.setblocking(False)
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        attempt = _Attempt(sock, target, time.monotonic())
        outcome = self.outcomes[target]
        outcome.attempts += 1
        if self._last[target]:
            outcome.widest_gap = max(outcome.widest_gap, (attempt.began - self._last[target]) * 1e3)
        self._last[target] = attempt.began
        code = sock.connect_ex(to)
        if code == 0 and kind == socket.SOCK_DGRAM:
            try:
                sock.send(b"?")
            except OSError as error:
                code = error.errno or errno.EIO
        if code in (0, errno.EINPROGRESS):
            self._open[sock.fileno()] = attempt
            self._poll.register(sock, select.EPOLLIN if kind == socket.SOCK_DGRAM else select.EPOLLOUT)
        else:
            self._end(attempt, errno.errorcode.get(code, str(code)))

    def collect(self, timeout: float) -> None:
        """Take in what has ended, or what ends first within so many seconds."""
        if timeout:
            select.select([self._poll], [], [], timeout)  # epoll itself counts in milliseconds
        for number, _ in self._poll.poll(0):
            attempt = self._open.pop(number)
            self._poll.unregister(number)
            code = attempt.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._end(attempt, errno.errorcode.get(code, str(code)) if code else "")

    def give_up(self) -> None:
        """End what has waited for too long."""
        before = time.monotonic() - PATIENCE
        while self._open and (oldest := next(iter(self._open.values()))).began < before:
            del self._open[oldest.sock.fileno()]
            self._poll.unregister(oldest.sock)
            self._end(oldest, "no answer")

    @property
    def waits(self) -> bool:
        return bool(self._open)

    def _end(self, attempt: _Attempt, failure: str) -> None:
        milliseconds = (time.monotonic() - attempt.began) * 1e3
        outcome = self.outcomes[attempt.target]
        if not failure and attempt.sock.type == socket.SOCK_STREAM:
            outcome.resent += bool(_resent(attempt.sock))
        attempt.sock.close()
        outcome.longest = max(outcome.longest, milliseconds)
        if failure:
            outcome.failures[failure] = outcome.failures.get(failure, 0) + 1
            if len(outcome.first_failures) < 10:
                outcome.first_failures.append(time.time() - milliseconds / 1e3)
        else:
            self.answered.add(attempt.target)


def probe(targets: Sequence[str]) -> None:
    """Attempts until standard input ends; then the outcomes on standard output, in JSON."""
    prober = _Prober(targets)
    for number in range(len(targets)):
        prober.begin(number)
    deadline = time.monotonic() + PATIENCE
    while len(prober.answered) < len(targets) and time.monotonic() < deadline:
        prober.collect(0.1)
    if len(prober.answered) < len(targets):
        return
    print("ready", flush=True)
    os.set_blocking(0, False)
    due = time.monotonic()
    numbers = itertools.cycle(range(len(targets)))
    while _is_open():
        prober.begin(next(numbers))
        prober.give_up()
        due = max(due + EVERY, time.monotonic())
        prober.collect(0)
        while (left := due - time.monotonic()) > 0:
            prober.collect(left)
    while prober.waits:
        prober.collect(0.1)
        prober.give_up()
    json.dump([asdict(outcome) for outcome in prober.outcomes], sys.stdout)


def _resent(sock: socket.socket) -> int:
    """Packets that had to be sent again (linux/tcp.h, tcp_info.tcpi_total_retrans), the first one too."""
    (count,) = struct.unpack_from("I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)
    return int(count)


def _is_open() -> bool:
    """Whether standard input has not ended."""
    try:
        return os.read(0, 1) != b""
    except BlockingIOError:
        return True


def answer(numbers: Sequence[int]) -> None:
    """Answer on these sockets until standard input ends."""
    sockets = {number: socket.socket(fileno=number) for number in numbers}
    while True:
        ready, _, _ = select.select([0, *numbers], [], [])
        if 0 in ready:
            return
        for number in ready:
            sock = sockets[number]
            with contextlib.suppress(OSError):  # a peer that is gone already
                if sock.type == socket.SOCK_STREAM:
                    connection, peer = sock.accept()
                    own = sock.getsockname()
                    connection.send(f"{own[0]} {own[1]} {peer[0]}\n".encode())
                    connection.close()
                else:
                    data, peer = sock.recvfrom(100)
                    sock.sendto(data, peer)


if __name__ == "__main__":
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, URGENT)
    with contextlib.suppress(PermissionError, ValueError):  # where nobody answers, thousands of attempts wait
        resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_SOCKETS, MOST_SOCKETS))
    if sys.argv[1] == "--answer":
        answer([int(number) for number in sys.argv[2:]])
    else:
        probe(sys.argv[1:])
