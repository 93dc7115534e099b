"""How API servers misbehave, at random. Each misbehaviour ends: at once, or when its time is over."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Final

from integration.apiserver import FakeApi, error_line
from proxy.model import KINDS, SERVICE

PLACES: Final = ("start", "headers", "line", 0, 1, 100, 0.3, 0.9)
CODES: Final = ((429, 1), (429, None), (503, 1), (500, None), (502, None), (504, None), (401, None), (403, None))
STREAMING: Final = ("on", "on", "off", "refused", "ignored")
NONSENSE: Final = (
    b"\n",
    b"garbage\n",
    b'{"type":"ADDED","object":{"kind":"Service"\n',
    b'{"type":"NOVEL","object":{"metadata":{}}}\n',
    b'{"type":"MODIFIED","object":{"metadata":{"name":"half","namespace":"default","resourceVersion":"1"},"sp',
)
Undo = Callable[[], object]
Moment = float
Way = Callable[[FakeApi, Moment], None]


class Faults:
    """`strike` does one thing to one server; `mend` ends what is over. count: how often each was done. Not for several
    threads.

    only: the names of those that may happen; none: all.
    """

    def __init__(self, servers: Sequence[FakeApi], rand: Random, only: Collection[str] = ()) -> None:
        self._servers, self._rand = servers, rand
        self._undo: list[tuple[Moment, int, Undo]] = []
        self._numbers = itertools.count()
        self._away: set[int] = set()  # ports of servers that are not there
        self.count: Counter[str] = Counter()
        ways: list[tuple[Way, int]] = [
            (self.break_requests, 6),
            (self.refuse_requests, 6),
            (self.break_watches, 5),
            (self.end_watches, 2),
            (self.freeze_watches, 2),
            (self.say_nonsense, 2),
            (self.expire, 2),
            (self.compact, 5),
            (self.repeat, 4),
            (self.lag, 3),
            (self.change_streaming, 2),
            (self.go_away, 3),
            (self.restart, 2),
            (self.lose_caches, 1),
            (self.send_bookmarks, 1),
            (self.limit_buffers, 1),
            (self.forget_a_while, 3),
        ]
        self._ways = [way for way in ways if not only or way[0].__name__ in only]

    def strike(self, now: Moment) -> None:
        ways, weights = zip(*self._ways, strict=True)
        way = self._rand.choices(ways, weights)[0]
        api = self._rand.choice(self._servers)
        if api.port not in self._away:
            self.count[way.__name__] += 1
            way(api, now)

    def mend(self, now: Moment) -> None:
        """End what is over by now."""
        while self._undo and self._undo[0][0] <= now:
            heapq.heappop(self._undo)[2]()

    def heal(self) -> None:
        """End everything: from now on they are servers as they should be."""
        self.mend(float("inf"))
        for api in self._servers:
            api.heal()

    def catch_up(self) -> None:
        """No server lags behind any more."""
        for api in self._servers:
            api.catch_up()

    # Misbehaviours.

    def break_requests(self, api: FakeApi, now: Moment) -> None:
        """The next answers break off, or stop, or come slowly."""
        place, kind, verb = self._rand.choice(PLACES), self._kind(), self._verb()
        times = self._rand.choice([1, 1, 3])
        match self._rand.randrange(4):
            case 0:
                api.reset(at=place, kind=kind, verb=verb, times=times)
            case 1:
                api.hang_up(at=place, kind=kind, verb=verb, times=times)
            case 2:
                api.stall(at=place, kind=kind, verb=verb, times=times)
                self._later(now, 4.0, api.heal)
            case _:
                api.trickle(self._rand.choice([300.0, 3000.0]), at=place, kind=kind, verb=verb, times=times)
                self._later(now, 4.0, api.heal)
        self._provoke(api)

    def refuse_requests(self, api: FakeApi, now: Moment) -> None:
        code, after = self._rand.choice(CODES)
        times = self._rand.choice([1, 2, 5])
        api.fail(code, kind=self._kind(), verb=self._verb(), times=times, retry_after=after)
        self._provoke(api)

    def break_watches(self, api: FakeApi, now: Moment) -> None:
        kind = self._kind()
        if self._rand.random() < 0.3:
            api.inject(kind, NONSENSE[-1])
        api.cut_watches(kind, reset=self._rand.random() < 0.5)

    def end_watches(self, api: FakeApi, now: Moment) -> None:
        api.end_watches(self._kind())

    def freeze_watches(self, api: FakeApi, now: Moment) -> None:
        """Half-open connections."""
        api.freeze_watches(self._kind())
        self._later(now, 6.0, api.heal)

    def say_nonsense(self, api: FakeApi, now: Moment) -> None:
        api.inject(self._kind(), self._rand.choice(NONSENSE[:-1]))

    def expire(self, api: FakeApi, now: Moment) -> None:
        """410, or another error, in the stream and by status."""
        code, reason = self._rand.choice([(410, "Expired"), (410, "Expired"), (500, "InternalError"), (504, "Timeout")])
        if self._rand.random() < 0.5:
            self._break_off(api, self._kind(), code, reason)
        else:
            api.fail(code, kind=self._kind(), verb="watch")
            api.end_watches()

    def compact(self, api: FakeApi, now: Moment) -> None:
        for each in self._servers:
            each.compact()
        if self._rand.random() < 0.5:
            api.cut_watches(self._kind())

    def repeat(self, api: FakeApi, now: Moment) -> None:
        """Changes come once more, also after a new list: the last ones, or one of long ago."""
        if self._rand.random() < 0.3:
            self._break_off(api)
        kind = self._rand.choice(KINDS)
        if self._rand.random() < 0.5:
            api.replay(kind, self._rand.choice([1, 3, 30]))
            return
        with api.held():
            if history := api.cache(kind).history:
                api.inject(kind, self._rand.choice(history).line(lambda _: True) or b"")

    def lag(self, api: FakeApi, now: Moment) -> None:
        """A server behind the others, best one that nobody watches: old lists, and events that come late and in parts."""
        api = next((each for each in self._servers if not each.watching(SERVICE)), api)

        def send_all_here() -> None:
            for each in self._servers:
                self._break_off(each)
                if each is not api:
                    each.fail(503, times=4)

        api.lag(*self._rand.sample(KINDS, self._rand.choice([1, 2, 4])))
        for _ in range(self._rand.randrange(4)):
            self._later(now, 2.0, lambda: api.catch_up(changes=self._rand.randrange(1, 20)))
        if self._rand.random() < 0.5:
            self._later(now, 1.0, send_all_here, least=0.3)
        self._later(now, 3.0, api.catch_up, least=1.0)

    def change_streaming(self, api: FakeApi, now: Moment) -> None:
        api.streaming = self._rand.choice(STREAMING)
        api.cut_watches(self._kind())
        if self._rand.random() < 0.5:
            api.compact()
        self._later(now, 3.0, lambda: setattr(api, "streaming", "on"))

    def go_away(self, api: FakeApi, now: Moment) -> None:
        """And come back on the same port, with the history or without."""

        def come_back() -> None:
            if self._rand.random() < 0.5:
                api.compact()
            self._away.remove(api.port)
            api.start()

        api.stop()
        self._away.add(api.port)
        self._later(now, 2.0, come_back)

    def restart(self, api: FakeApi, now: Moment) -> None:
        """With new caches."""
        api.restart()

    def lose_caches(self, api: FakeApi, now: Moment) -> None:
        kinds = self._rand.sample(KINDS, 2)
        api.unsync(*kinds)
        self._later(now, 2.0, lambda: api.sync(*kinds))

    def send_bookmarks(self, api: FakeApi, now: Moment) -> None:
        api.bookmark()

    def limit_buffers(self, api: FakeApi, now: Moment) -> None:
        """Watches that do not follow at once are ended."""
        api.buffer = self._rand.choice([1, 5])
        self._later(now, 1.0, lambda: setattr(api, "buffer", 0))

    def forget_a_while(self, api: FakeApi, now: Moment) -> None:
        """Nobody is served, and of what happens meanwhile there is no history: all must list anew."""
        api.fail(503, times=float("inf"))
        api.cut_watches()

        def back() -> None:
            api.compact()
            api.heal()

        self._later(now, 0.6, back)

    # Helpers.

    def _kind(self) -> str:
        return self._rand.choice(["", *KINDS])

    def _verb(self) -> str:
        return self._rand.choice(["", "list", "watch"])

    def _break_off(self, api: FakeApi, kind: str = "", code: int = 410, reason: str = "Expired") -> None:
        """End watches with an error."""
        api.inject(kind, error_line(code, reason, "injected"))
        api.end_watches(kind)

    def _provoke(self, api: FakeApi) -> None:
        """Requests, for the faults that wait for some."""
        if self._rand.random() < 0.7:
            api.end_watches(self._kind())

    def _later(self, now: Moment, most: float, undo: Undo, least: float = 0.1) -> None:
        heapq.heappush(self._undo, (now + self._rand.uniform(least, most), next(self._numbers), undo))
