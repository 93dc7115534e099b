"""List and watch of one resource of the API server: the loop that asks, waits and leaves events in the inbox.

What the answers say is read in `watch_stream`, what to do about trouble is decided in `trouble`; both are pure. Sockets
are elsewhere: see `Transport`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Final, Protocol

import structlog

from proxy.events import Delete, Event, Inbox, Put, Replace
from proxy.model import BadObject
from proxy.reading import name_of
from proxy.resources import ANY, NEWEST, Resource
from proxy.trouble import (
    BROKEN,
    NO_STREAMING,
    SILENT,
    UNREACHABLE,
    Next,
    Step,
    Trouble,
    refusal,
    rule_of,
    what_next,
)
from proxy.watch_stream import Listed, Prepare, Stream, as_it_is, read_list

__all__ = ["UNREACHABLE", "Answer", "Transport", "Trouble", "Watcher"]

# The server draws 30 to 60 minutes when it is not told; a shorter life spreads nodes over API servers sooner.
WATCH_SECONDS: Final = (300, 600)
# A server sends the head of a watch's answer at once, unless it lets requests queue.
HEAD_TIMEOUT: Final = 30.0
# Bookmarks come every minute or so. Where nothing at all happens some servers send none: to begin anew costs little, and
# a server that is stuck, or a connection that is dead and does not know it, is found out.
WATCH_SILENCE: Final = 150.0
# The server's own limit for a list is 60 s. Once its answer has begun, it comes in one go.
LIST_TIMEOUT: Final = 70.0
LIST_SILENCE: Final = 30.0
# A streaming list comes in one go, too. A server older than 1.27 knows nothing of them: it sends the objects, or does
# not, and then waits for changes.
STREAM_SILENCE: Final = 10.0
STREAM_SECONDS: Final = 60.0
# How long a server that does not stream lists is asked for plain ones: it may be upgraded.
NO_STREAMING_SECONDS: Final = 1800.0
# So many streaming lists in a row may break before a plain one is tried.
STREAM_TRIES: Final = 3
# etcd moves an idle resource's version at least every 10 minutes. When nothing comes for this long, our version may lie
# in the server's future (etcd restored from a backup): it then says nothing.
SILENCE: Final = 1800.0
# A watch that ends sooner, without a line, is no watch: asking again at once would be a loop without a pause.
SHORTEST: Final = 1.0
# About so often all is listed again, which commits nothing: a storage that was restored from an older backup, and has
# caught up with our version since, would else leave objects here that it does not have, for ever.
LIST_AGAIN: Final = 6 * 3600.0
ABSENT_RETRY: Final = 600.0


class Answer(Protocol):
    """An HTTP answer whose body has not been read."""

    @property
    def status(self) -> int: ...
    @property
    def server(self) -> str: ...  # which one of several it is from
    def header(self, name: str) -> str: ...  # '' when there is none
    def read(self) -> bytes: ...  # all; raises Trouble(UNREACHABLE)
    def pieces(self) -> Iterator[bytes]: ...  # whatever has arrived, as it arrives; raises Trouble(BROKEN or SILENT)
    def wait_up_to(self, seconds: float) -> None: ...  # from now on, the longest silence
    def avoid(self) -> None: ...  # ask another server next time, if there is one


class Transport(Protocol):
    @property
    def server(self) -> str: ...  # the one that is asked next

    def get(self, path: str, *, read_timeout: float, compressed: bool = False) -> AbstractContextManager[Answer]:
        """Ask. `read_timeout` is the longest silence, in seconds. Raises Trouble(UNREACHABLE)."""


class Watcher:
    """Keeps the inbox told of one resource, for ever, whatever the server does.

    To look at, from any thread: mode: how the last list came, 'streaming' or 'list', '' before the first. heard_at: when
    the server last said something that is news or a sign of life (`clock`), 0 before the first list. failures: all since
    the start. relists: lists after the first. left_out: (namespace, name) -> reason, of objects that cannot be read.
    """

    def __init__(
        self,
        transport: Transport,
        resource: Resource,
        inbox: Inbox,
        stop: threading.Event,
        *,
        prepare: Prepare = as_it_is,
        clock: Callable[[], float] = time.monotonic,
        rand: Callable[[], float] = random.random,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._transport, self._resource, self._inbox, self._stop = transport, resource, inbox, stop
        self._prepare = prepare
        self._clock, self._rand, self._sleep = clock, rand, sleep or stop.wait
        self._log = structlog.get_logger().bind(kind=resource.kind)
        self.kind = resource.kind
        self.mode = ""
        self.heard_at = 0.0
        self.failures = 0
        self.relists = 0
        self.left_out: dict[tuple[str, str], str] = {}
        self._step = Step.LIST
        self._version = ""  # the newest that was seen; no list may be older
        self._is_version_lost = False  # the server cannot start from it
        self._in_a_row = 0  # failures
        self._breaks = 0  # of streaming lists, in a row
        self._plain_until: dict[str, float] = {}  # server -> when streaming lists may be tried again
        self._told: tuple[str, str] | None = None  # the trouble that was logged last and is not over
        self._absent = False
        self._list_again_at = 0.0

    def run(self) -> None:
        """List, then watch from there, until `stop` is set."""
        while not self._stop.is_set():
            try:
                if self._step is Step.WATCH:
                    self._watch()
                elif self._clock() >= self._plain_until.get(self._transport.server, 0.0):
                    self._stream()
                else:
                    self._list()
            except Trouble as trouble:
                if self._stop.is_set():
                    return
                self._sleep(self._fail(trouble))

    # -- Three ways to ask ---------------------------------------------------------------------------------------------

    def _list(self) -> None:
        began = self._clock()
        path = self._resource.list_path(self._wanted(ANY))
        with self._transport.get(path, read_timeout=LIST_TIMEOUT, compressed=True) as answer:
            self._check(answer)
            answer.wait_up_to(LIST_SILENCE)
            body = answer.read()
        self._replace(read_list(self.kind, body, self._prepare), "list", began)

    def _stream(self) -> None:
        """A list as a stream, which then goes on as the watch."""
        began = self._clock()
        path = self._resource.stream_path(self._wanted(NEWEST), self._watch_seconds())
        with self._transport.get(path, read_timeout=HEAD_TIMEOUT) as answer:
            try:
                self._check(answer)
                answer.wait_up_to(STREAM_SILENCE)
                self._follow(answer, Stream(self.kind, "", initial=True, prepare=self._prepare), began)
            except Trouble as trouble:
                if self._step is Step.LIST and self._is_vain(trouble):
                    self._plain_until[answer.server] = self._clock() + NO_STREAMING_SECONDS
                    self._log.info("no_streaming_list", server=answer.server, cause=trouble.cause, then="list")
                    return
                raise

    def _watch(self) -> None:
        path = self._resource.watch_path(self._version, self._watch_seconds())
        with self._transport.get(path, read_timeout=HEAD_TIMEOUT) as answer:
            self._check(answer)
            answer.wait_up_to(WATCH_SILENCE)
            self._follow(answer, Stream(self.kind, self._version, prepare=self._prepare), self._clock())

    def _wanted(self, first: str) -> str:
        """The version to list at: never older than what was seen, as one of several servers may be behind the others."""
        return NEWEST if self._is_version_lost else self._version or first

    def _watch_seconds(self) -> int:
        shortest, longest = WATCH_SECONDS
        return shortest + int(self._rand() * (longest - shortest))

    def _check(self, answer: Answer) -> None:
        """Raises what an answer other than 200 means."""
        if answer.status == 404 and self._resource.optional:
            self._leave_empty()
        if answer.status != 200:
            raise refusal(answer.status, answer.header("Retry-After"), answer.read(), answer.header("Date"))

    def _is_vain(self, trouble: Trouble) -> bool:
        """Whether a list that is no stream is worth a try, after this."""
        if trouble.status == BROKEN:
            self._breaks += 1
        return trouble.status in (NO_STREAMING, SILENT, 400, 422) or self._breaks >= STREAM_TRIES

    # -- What comes ----------------------------------------------------------------------------------------------------

    def _follow(self, answer: Answer, stream: Stream, began: float) -> None:
        """Read a stream to its end."""
        try:
            for piece in answer.pieces():
                was_initial = stream.is_initial
                self._digest(stream, piece, began)
                if was_initial and not stream.is_initial:
                    began = self._clock()
                    answer.wait_up_to(WATCH_SILENCE)
            stream.end()
        except Trouble as trouble:
            if trouble.status >= 500:
                answer.avoid()
            if trouble.status != SILENT or stream.is_initial:
                raise
            self._log.debug("watch_silent", seconds=WATCH_SILENCE)
        finally:
            lasted = self._clock() - began
            if lasted >= SHORTEST and not stream.is_initial and not self._stop.is_set():
                self._works(heard=stream.heard)
        if lasted < SHORTEST and not stream.heard:
            raise Trouble(BROKEN, "the server ended the watch at once")
        now = self._clock()
        if now - self.heard_at > SILENCE or now >= self._list_again_at:
            self._step = Step.LIST

    def _digest(self, stream: Stream, piece: bytes, began: float) -> None:
        """One piece. (Not in the loop, where its objects would live until the next one comes.)"""
        found, trouble = stream.feed(piece)
        self._take(found, began)
        if stream.is_initial and not trouble and self._clock() - began > STREAM_SECONDS:
            trouble = Trouble(NO_STREAMING, f"the end of the initial events did not come in {STREAM_SECONDS:g} s")
        if not stream.is_initial:
            self._version = stream.version
        if trouble:
            raise trouble
        if stream.heard:
            self._works()

    def _take(self, found: Iterable[Event | BadObject | Listed], began: float) -> None:
        events: list[Event] = []
        for item in found:
            if isinstance(item, Listed):  # before it, nothing is found
                self._replace(item, "streaming", began)
                continue
            if isinstance(item, BadObject):
                self._leave_out(item, self.left_out)
                item = Delete(item.kind, item.namespace, item.name)
            elif isinstance(item, Put):
                self.left_out.pop(name_of(item.obj), None)
            elif isinstance(item, Delete):
                self.left_out.pop((item.namespace, item.name), None)
            events.append(item)
        if events:
            self._inbox.put(*events)

    def _replace(self, listed: Listed, mode: str, began: float) -> None:
        """All objects are known."""
        self.relists += bool(self.mode)
        self.mode, self.heard_at = mode, self._clock()
        self._step, self._version, self._is_version_lost = Step.WATCH, listed.version, False
        self._list_again_at = self.heard_at + LIST_AGAIN * (0.75 + self._rand() / 2)
        self._absent, self._breaks = False, 0
        known, self.left_out = self.left_out, {}
        for bad in listed.bad:
            self._leave_out(bad, known)
        self._inbox.put(Replace(self.kind, listed.objects))
        seconds = round(self.heard_at - began, 3)
        count, left_out = len(listed.objects), len(listed.bad)
        self._log.info("api_list_done", mode=mode, count=count, left_out=left_out, seconds=seconds)

    def _leave_out(self, bad: BadObject, known: dict[tuple[str, str], str]) -> None:
        key = (bad.namespace, bad.name)
        if known.get(key) != bad.reason:
            name = f"{bad.namespace}/{bad.name}" if bad.namespace else bad.name
            remedy = "mend the object; it is read again when it changes"
            self._log.warning("object_left_out", object=f"{bad.kind} {name}", reason=bad.reason, remedy=remedy)
        self.left_out[key] = bad.reason

    def _leave_empty(self) -> None:
        if not self._absent:
            self._inbox.put(Replace(self.kind, ()))
            self._absent = True
        raise Trouble(404, "this API server does not have the resource", ABSENT_RETRY)

    # -- How it goes ---------------------------------------------------------------------------------------------------

    def _works(self, heard: bool = True) -> None:
        if heard:
            self.heard_at = self._clock()
        self._in_a_row = 0
        if self._told:
            self._log.info("watch_works_again")
            self._told = None

    def _fail(self, trouble: Trouble) -> float:
        """Say it, and decide what follows. Returns the seconds to wait before."""
        if self._step is Step.LIST and (trouble.is_of_version or trouble.status == 400):
            self._is_version_lost = True
        following = what_next(self._step, trouble, self._in_a_row, self._rand())
        self._tell(trouble, following)
        self.failures += 1
        self._in_a_row += 1
        self._step = following.step
        return following.pause

    def _tell(self, trouble: Trouble, following: Next) -> None:
        rule = rule_of(trouble)
        if self._told == (rule.event, trouble.cause):
            return
        self._told = (rule.event, trouble.cause)
        remedy = {"remedy": rule.remedy.format(rule=self._resource.rule)} if rule.remedy else {}
        pause = round(following.pause, 1)
        self._log.warning(rule.event, cause=trouble.cause, then=following.step.value, pause=pause, **remedy)
