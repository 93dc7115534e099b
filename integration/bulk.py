"""Many connections at once from one network namespace: the questions come in bulk, and so do the outcomes.

`send` runs this file as a program of its own inside the namespace; it imports nothing of the project. A question that
is expected to end in silence has a short time-out, and holds up no other.
"""

from __future__ import annotations

import errno
import itertools
import json
import selectors
import socket
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from integration.namespaces import Namespace

PATIENCE: Final = 1.0
"""Time-outs from here on are for answers that are expected: few at a time, so that no buffer overflows."""

_AT_A_TIME: Final = 32
_FRESH: Final = 0.5
_FAILURES_ENOUGH: Final = 2
_SILENT_AT_A_TIME: Final = 1500
_KINDS: Final = {"TCP": socket.SOCK_STREAM, "UDP": socket.SOCK_DGRAM}
_IP_BIND_ADDRESS_NO_PORT: Final = 24
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Question:
    """Connect `count` times to address:port. bind: from this address; '': from the one that the kernel chooses.

    timeout: seconds without an answer after which there is none.
    """

    address: str
    port: int
    protocol: str
    bind: str
    count: int
    timeout: float


@dataclass(frozen=True)
class Outcome:
    """answers: (endpoint's address, its port, the source it saw, our own address) and how often.

    failures: 'rejected', 'dropped' or the system's name for the error, and how often.
    """

    answers: Counter[tuple[str, int, str, str]] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)


def send(namespace: Namespace, questions: Sequence[Question]) -> list[Outcome]:
    """Ask all questions, from inside the namespace; outcomes in the same order."""
    asked = json.dumps([asdict(q) for q in questions])
    done = namespace.run([sys.executable, "-S", "-E", __file__], text_in=asked)
    return [
        Outcome(Counter({(a, int(p), seen, own): n for a, p, seen, own, n in answers}), Counter(failures))
        for answers, failures in json.loads(done.stdout)
    ]


class _Sender:
    def __init__(self, questions: Sequence[Question]) -> None:
        self.outcomes = [Outcome() for _ in questions]
        numbered = list(enumerate(questions))
        self._lanes = (
            _Lane([(i, q) for i, q in numbered if q.timeout < PATIENCE], _SILENT_AT_A_TIME),
            _Lane([(i, q) for i, q in numbered if q.timeout >= PATIENCE], _AT_A_TIME),
        )
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        while any(lane.waiting or lane.deadlines for lane in self._lanes):
            for lane in self._lanes:
                for _ in range(_AT_A_TIME):  # in turn, so that the one lane does not keep the other's answers waiting
                    if not lane.waiting or len(lane.fresh) >= lane.width:
                        break
                    number, question = lane.waiting.popleft()
                    if self.outcomes[number].failures.total() < _FAILURES_ENOUGH:
                        self._start(lane, number, question)
            for key, _ in self._selector.select(0.02):
                self._hear(key.data)
            now = time.monotonic()
            for lane in self._lanes:
                for each in lane.silent_until(now):
                    self._end(each, "dropped")

    def _start(self, lane: _Lane, number: int, question: Question) -> None:
        family = socket.AF_INET6 if ":" in question.address else socket.AF_INET
        sock = socket.socket(family, _KINDS[question.protocol])
        sock.setblocking(False)
        started = _Connection(sock, lane, number)
        self._selector.register(sock, selectors.EVENT_READ, started)
        lane.add(started, time.monotonic(), question.timeout)
        try:
            if question.protocol == "TCP":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            if question.bind:
                sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
                sock.bind((question.bind, 0))
            sock.connect((question.address, question.port))
            if question.protocol == "UDP":
                sock.send(b"who are you?\n")
        except BlockingIOError:
            pass
        except PermissionError:
            pass  # rules of this very node do not let it go; whether it is also refused will be heard, or not
        except OSError as error:
            self._end(started, _name(error))

    def _hear(self, connection: _Connection) -> None:
        try:
            words = connection.sock.recv(200).decode().split()
            own = connection.sock.getsockname()[0]
        except BlockingIOError:
            return
        except OSError as error:
            self._end(connection, _name(error))
            return
        if len(words) == 3:
            self.outcomes[connection.number].answers[words[0], int(words[1]), words[2], own] += 1
            self._end(connection, "")
        else:
            self._end(connection, "closed before the answer")

    def _end(self, connection: _Connection, failure: str) -> None:
        if failure:
            self.outcomes[connection.number].failures[failure] += 1
        connection.lane.remove(connection)
        self._selector.unregister(connection.sock)
        connection.sock.close()


@dataclass(frozen=True, eq=False)
class _Connection:
    """number: of its question."""

    sock: socket.socket
    lane: _Lane
    number: int


class _Lane:
    """Connections with one and the same time-out. So many may be `fresh` at a time: those silent for longer do not
    count, so that what fails does not hold up the rest."""

    def __init__(self, questions: Sequence[tuple[int, Question]], width: int) -> None:
        most = max((q.count for _, q in questions), default=0)
        # Each question once, then each once more …: one that fails is known to fail before it is asked many times.
        self.waiting = deque((i, q) for turn in range(most) for i, q in questions if turn < q.count)
        self.width = width
        self.fresh: dict[_Connection, float] = {}
        self.deadlines: dict[_Connection, float] = {}

    def add(self, connection: _Connection, now: float, timeout: float) -> None:
        self.fresh[connection] = now + _FRESH
        self.deadlines[connection] = now + timeout

    def remove(self, connection: _Connection) -> None:
        self.fresh.pop(connection, None)
        del self.deadlines[connection]

    def silent_until(self, now: float) -> list[_Connection]:
        """Those whose time is over. The dicts are in the order of time."""
        for connection in list(itertools.takewhile(lambda c: self.fresh[c] < now, self.fresh)):
            del self.fresh[connection]
        return list(itertools.takewhile(lambda c: self.deadlines[c] < now, self.deadlines))


def _name(error: OSError) -> str:
    return "rejected" if isinstance(error, ConnectionRefusedError) else errno.errorcode.get(error.errno or 0, "?")


def _main() -> None:
    sender = _Sender([Question(**q) for q in json.load(sys.stdin)])
    sender.run()
    result = [([(*a, n) for a, n in o.answers.items()], o.failures) for o in sender.outcomes]
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    _main()
