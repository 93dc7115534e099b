"""A watcher with an API server that answers with anything: it goes on for ever, and is never a burden."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from proxy.events import Delete, Inbox, Put, Replace
from proxy.resources import resources
from proxy.trouble import BROKEN, SILENT, UNREACHABLE, Trouble
from proxy.watch import ABSENT_RETRY, LIST_TIMEOUT, Watcher
from tests.fuzz import corpus
from tests.fuzz.corpus import SEPARATOR
from tests.fuzz.hunt import Target
from tests.fuzz.on_objects import JSON_TOKENS, bits

ANSWERS: Final = 12


class _Answer:
    """One of the data's: a line with the status and headers, then the body."""

    server = "192.0.2.1:6443"

    def __init__(self, data: bytes, clock: _Clock) -> None:
        head, _, self._body = data.partition(b"\n")
        status, *headers = head.decode("latin-1").split("|")
        self.status = int(status) if re.fullmatch("[1-5][0-9][0-9]", status) else 200
        self._headers = dict(zip(("Retry-After", "Date"), headers, strict=False))
        self._rand, self._clock = bits(data), clock

    def header(self, name: str) -> str:
        return self._headers.get(name, "")

    def read(self) -> bytes:
        return self._body

    def pieces(self) -> Iterator[bytes]:
        body = self._body
        while body:
            self._clock.now += self._rand.choice((0.0, 0.0, 1.0, 30.0))
            size = self._rand.choice((1, 100, 10_000))
            yield body[:size]
            body = body[size:]
        match self._rand.randrange(4):
            case 0:
                raise Trouble(BROKEN, "broken")
            case 1:
                raise Trouble(SILENT, "silent")

    def wait_up_to(self, seconds: float) -> None:
        assert seconds > 0

    def avoid(self) -> None:
        pass


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


class _Transport:
    server = "192.0.2.1:6443"

    def __init__(self, answers: Sequence[bytes], clock: _Clock, stop: threading.Event) -> None:
        self._answers, self._clock, self._stop = list(answers)[::-1], clock, stop
        self.asked: list[float] = []

    @contextlib.contextmanager
    def get(self, path: str, *, read_timeout: float, compressed: bool = False) -> Iterator[_Answer]:
        assert 0 < read_timeout <= LIST_TIMEOUT and path.isascii() and path.isprintable() and " " not in path
        self.asked.append(self._clock.now)
        if not self._answers:
            self._stop.set()
            raise Trouble(UNREACHABLE, "enough")
        yield _Answer(self._answers.pop(), self._clock)


def _check(data: bytes) -> None:
    answers = data.split(SEPARATOR)[:ANSWERS]
    for resource in resources("node0"):
        inbox, stop, clock = Inbox(), threading.Event(), _Clock()
        transport = _Transport(answers, clock, stop)
        watcher = Watcher(transport, resource, inbox, stop, clock=clock, rand=lambda: 0.5, sleep=clock.sleep)
        watcher.run()
        assert len(transport.asked) == len(answers) + 1
        assert all(0 <= pause <= ABSENT_RETRY for pause in clock.pauses)
        told = inbox.take(0)
        assert all(isinstance(event, Put | Delete | Replace) for event in told)
        assert len(clock.pauses) <= watcher.failures


def _conversations() -> list[bytes]:
    lists, watches, others = (corpus.answers(kind) for kind in ("list", "watch", "other"))
    found = []
    for number, body in enumerate(lists):
        parts = [b"200\n" + body, *(b"200\n" + watch for watch in watches[number::3])]
        parts += [
            b"%d|5\n" % status + other for status, other in zip((410, 403, 500, 404), others[number:], strict=False)
        ]
        found.append(SEPARATOR.join(parts))
    return [*found, SEPARATOR.join(b"200\n" + watch for watch in watches)]


_TOKENS: Final = (
    *JSON_TOKENS,
    SEPARATOR,
    SEPARATOR + b"410\n",
    SEPARATOR + b"429|9999999999\n",
    SEPARATOR + b"200\n\n",
)

TARGETS: Final = (Target("watcher", _conversations, _check, _TOKENS, (), 120),)
