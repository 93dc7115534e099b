"""Many connections at once from one network namespace: the questions come in bulk, and so do the outcomes.

`send` runs this file as a program of its own inside the namespace; it imports nothing of the project. A question that
is expected to end in silence has a short time-out, and holds up no other.
"""

from __future__ import annotations

import errno
import json
import selectors
import socket
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from integration.namespaces import Namespace

PATIENCE: Final = 1.0
"""Time-outs from here on are for answers that are expected: few at a time, so that no buffer overflows."""

_AT_A_TIME: Final = 32
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
        self.questions = questions
        self.outcomes = [Outcome() for _ in questions]
        self._selector = selectors.DefaultSelector()
        self._open: set[socket.socket] = set()

    def run(self) -> None:
        numbered = list(enumerate(self.questions))
        silent = [(i, q) for i, q in numbered if q.timeout < PATIENCE]
        lanes = [
            _Lane(silent, _SILENT_AT_A_TIME),
            _Lane([(i, q) for i, q in numbered if q.timeout >= PATIENCE], _AT_A_TIME),
        ]
        while any(lane.waiting or lane.running for lane in lanes):
            for lane in lanes:
                # One at a time in turn, so that a lane that fills up does not keep the other's answers waiting.
                for _ in range(_AT_A_TIME):
                    if not lane.waiting or lane.running >= lane.width:
                        break
                    self._start(lane, *lane.waiting.popleft())
            for key, _ in self._selector.select(0.02):
                self._hear(key.fileobj, *key.data)  # type: ignore[arg-type]
            now = time.monotonic()
            for lane in lanes:
                while lane.deadlines and lane.deadlines[0][0] < now:
                    _, sock, number = lane.deadlines.popleft()
                    if sock in self._open:
                        self._end(sock, lane, number, "dropped")

    def _start(self, lane: _Lane, number: int, question: Question) -> None:
        family = socket.AF_INET6 if ":" in question.address else socket.AF_INET
        sock = socket.socket(family, _KINDS[question.protocol])
        sock.setblocking(False)
        lane.running += 1
        self._open.add(sock)
        self._selector.register(sock, selectors.EVENT_READ, (lane, number))
        lane.deadlines.append((time.monotonic() + question.timeout, sock, number))
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
            self._end(sock, lane, number, _name(error))

    def _hear(self, sock: socket.socket, lane: _Lane, number: int) -> None:
        try:
            words = sock.recv(200).decode().split()
            own = sock.getsockname()[0]
        except BlockingIOError:
            return
        except OSError as error:
            self._end(sock, lane, number, _name(error))
            return
        if len(words) == 3:
            self.outcomes[number].answers[words[0], int(words[1]), words[2], own] += 1
            self._end(sock, lane, number, "")
        else:
            self._end(sock, lane, number, "closed before the answer")

    def _end(self, sock: socket.socket, lane: _Lane, number: int, failure: str) -> None:
        if failure:
            self.outcomes[number].failures[failure] += 1
        self._open.discard(sock)
        self._selector.unregister(sock)
        sock.close()
        lane.running -= 1


class _Lane:
    """Questions with one and the same time-out, so many at a time."""

    def __init__(self, questions: Iterable[tuple[int, Question]], width: int) -> None:
        self.waiting = deque((i, q) for i, q in questions for _ in range(q.count))
        self.deadlines: deque[tuple[float, socket.socket, int]] = deque()
        self.width = width
        self.running = 0


def _name(error: OSError) -> str:
    return "rejected" if isinstance(error, ConnectionRefusedError) else errno.errorcode.get(error.errno or 0, "?")


def _main() -> None:
    sender = _Sender([Question(**q) for q in json.load(sys.stdin)])
    sender.run()
    result = [([(*a, n) for a, n in o.answers.items()], o.failures) for o in sender.outcomes]
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    _main()
