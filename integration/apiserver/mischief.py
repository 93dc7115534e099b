"""What can be made to go wrong with a server, and with its running watches: the part of FakeApi that does not behave."""

from __future__ import annotations

import threading
from collections.abc import Callable

from integration.apiserver.cache import Cache
from integration.apiserver.faults import Fault, Faults, Place
from integration.apiserver.kinds import ALL
from integration.apiserver.status import REASONS, status
from integration.apiserver.watches import Watch, bookmark


class Mischief:
    """Faults for requests to come, running watches that end badly, caches that lag.

    Of all methods: `kind` '' is any. `verb` '' is lists and watches, 'any' all, else list, watch, get, create, update,
    patch or delete. `times`: for so many requests; inf: until heal(). `at`: see faults.Place.
    """

    silent: bool = False  # take connections and say nothing on them, not even of TLS; until heal()
    _lock: threading.RLock
    _caches: dict[str, Cache]

    def __init__(self) -> None:
        self._watches: list[Watch] = []
        self._faults = Faults()
        self._forbidden: set[tuple[str, str]] = set()
        self.release = threading.Event()

    def fail(
        self,
        code: int,
        *,
        kind: str = "",
        verb: str = "",
        times: float = 1,
        message: str = "injected",
        retry_after: int | None = None,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        when: Callable[[str], bool] | None = None,
    ) -> None:
        """Answer with this status, and a Status object unless there is a `body`."""
        headers = (headers or {}) | ({} if retry_after is None else {"Retry-After": str(retry_after)})
        answer = status(code, REASONS.get(code, ""), message) if body is None else body
        self._fault(Fault(kind, verb, times, code, answer, headers, when=when))

    def stall(self, *, at: Place = "start", kind: str = "", verb: str = "", times: float = 1) -> None:
        """Say nothing more from this place of the answer on, until heal() or stop(): see faults.Place."""
        self._fault(Fault(kind, verb, times, how="stall", place=at))

    def reset(self, *, at: Place = "start", kind: str = "", verb: str = "", times: float = 1) -> None:
        """Break the connection with a RST at this place of the answer."""
        self._fault(Fault(kind, verb, times, how="reset", place=at))

    def hang_up(self, *, at: Place = "start", kind: str = "", verb: str = "", times: float = 1) -> None:
        """Close the connection at this place of the answer."""
        self._fault(Fault(kind, verb, times, how="hang_up", place=at))

    def trickle(self, rate: float, *, at: Place = 0, kind: str = "", verb: str = "", times: float = 1) -> None:
        """Send so many bytes a second from this place of the answer on, until heal(); of a watch, its next lines."""
        self._fault(Fault(kind, verb, times, how="trickle", place=at, rate=rate))

    def _fault(self, fault: Fault) -> None:
        with self._lock:
            self._faults.add(fault)

    def heal(self) -> None:
        """No more faults; what stalls, trickles or is frozen goes on."""
        with self._lock:
            self.silent = False
            self._faults.clear()
            self._set_free()
            self._each("", lambda watch: watch.freeze(False))

    def _set_free(self) -> None:
        self.release.set()
        self.release = threading.Event()

    # Running watches. `kind` '': all.

    def inject(self, kind: str, data: bytes) -> None:
        """Send raw bytes into the running watches of `kind`: an error_line(), half a line, what no API server says."""
        self._each(kind, lambda watch: watch.send(data))

    def replay(self, kind: str, changes: int) -> None:
        """Send the last changes of `kind` again."""
        with self._lock:
            for change in self._caches[kind].history[-changes:] if changes else ():
                self._each(kind, lambda watch, change=change: watch.send(change.line(watch.matches) or b""))  # type: ignore[misc]

    def bookmark(self, kind: str = "") -> None:
        """Send a bookmark of the newest version now."""
        with self._lock:
            for cache in self._caches.values():
                cache.progress()
            self._each(kind, self._send_bookmark)

    def _send_bookmark(self, watch: Watch) -> None:
        if watch.bookmarks:
            watch.send(bookmark(watch.kind, self._caches[watch.kind.name].version))

    def end_watches(self, kind: str = "") -> None:
        """End them, as the server does after timeoutSeconds."""
        self._each(kind, lambda watch: watch.finish("end"))

    def cut_watches(self, kind: str = "", *, reset: bool = False) -> None:
        """Break their connections."""
        self._each(kind, lambda watch: watch.finish("reset" if reset else "cut"))

    def freeze_watches(self, kind: str = "") -> None:
        """Leave them open and say nothing more, not even the end, until heal(): a peer that is half gone."""
        self._each(kind, lambda watch: watch.freeze(True))

    def _each(self, kind: str, do: Callable[[Watch], object]) -> None:
        with self._lock:
            for watch in self._watches:
                if kind in ("", watch.kind.name):
                    do(watch)

    # The state of this server among several

    def lag(self, *kinds: str) -> None:
        """Serve these kinds (none named: all) from what is known now, until catch_up()."""
        with self._lock:
            for kind in kinds or ALL:
                self._caches[kind].lag()

    def catch_up(self, *kinds: str, changes: int | None = None) -> None:
        """Learn what happened since lag(): all, or so many changes of each kind and lag on."""
        with self._lock:
            for kind in kinds or ALL:
                self._caches[kind].catch_up(changes)

    def unsync(self, *kinds: str) -> None:
        """Lose the watch caches: running watches end, and lists and watches get 429, until sync()."""
        with self._lock:
            for kind in kinds or ALL:
                self._caches[kind].synced = False
                self.end_watches(kind)

    def sync(self, *kinds: str) -> None:
        """Have them again, without their history."""
        with self._lock:
            for kind in kinds or ALL:
                self._caches[kind].synced = True
                self._caches[kind].restart()

    def forbid(self, resource: str, *verbs: str) -> None:
        """Answer these verbs (none named: all) on this resource ('services') with 403, whoever asks; until allow()."""
        self._forbidden |= {(resource, verb) for verb in verbs or ("*",)}

    def allow(self) -> None:
        """Take back all forbid()."""
        self._forbidden = set()
