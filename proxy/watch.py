"""List and watch of one resource of the API server.

The first part is pure: bytes become events, and a table says what to do after each kind of trouble. The second part,
`Watcher`, is the loop that asks, waits and leaves events in the inbox. Sockets are elsewhere: see `Transport`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from enum import Enum
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlencode

import msgspec
import structlog
from msgspec import Raw, Struct

from proxy.events import Delete, Event, Inbox, Put, Replace
from proxy.model import (
    ENDPOINT_SLICE,
    LABEL_HEADLESS,
    LABEL_PROXY_NAME,
    NODE,
    SERVICE,
    SERVICE_CIDR,
    BadObject,
    KubeObject,
    decode,
)

# The API server stores objects of 1.5 MiB at most (etcd's limit), so a line like this is no event of a Kubernetes API.
LINE_LIMIT: Final = 64 << 20
# The server draws 30 to 60 minutes when it is not told; a shorter life spreads nodes over API servers sooner.
WATCH_SECONDS: Final = (300, 600)
# The server ends a watch by itself after timeoutSeconds; silence for this much longer means that the peer is gone.
READ_SLACK: Final = 30.0
# The server's own limit for a list is 60 s.
LIST_TIMEOUT: Final = 70.0
# Bookmarks come every minute or so, and etcd moves an idle resource's version at least every 10 minutes. When nothing
# comes for this long, our version may lie in the server's future (etcd restored from a backup): it then says nothing.
SILENCE: Final = 1800.0
# A watch that ends sooner, without a line, is no watch: asking again at once would be a loop without a pause.
SHORTEST: Final = 1.0

BACKOFF_FIRST: Final = 0.2
BACKOFF_MAX: Final = 30.0
RETRY_AFTER_MAX: Final = 60.0
ABSENT_RETRY: Final = 600.0


class Resource(Struct, frozen=True):
    """What is listed and watched. `optional`: older servers do not have it, then there are no objects of `kind`."""

    kind: str
    path: str
    selector: tuple[tuple[str, str], ...] = ()
    optional: bool = False

    @property
    def list_path(self) -> str:
        # Version 0: any that the server has in its cache. A list that asks for the newest costs a read of all of etcd.
        return f"{self.path}?{urlencode([('resourceVersion', '0'), *self.selector])}"

    def watch_path(self, version: str, seconds: int) -> str:
        query = [("watch", "1"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", str(seconds))]
        return f"{self.path}?{urlencode([*query, *self.selector, ('resourceVersion', version)])}"

    @property
    def rule(self) -> str:
        """What an RBAC rule must allow."""
        *group, _, name = self.path.removeprefix("/apis/").removeprefix("/api/").split("/")
        return f'verbs ["list", "watch"] on resource "{name}" in apiGroup "{group[0] if group else ""}"'


def resources(node_name: str) -> tuple[Resource, ...]:
    """The four resources that a proxy on `node_name` needs."""
    return (
        Resource(SERVICE, "/api/v1/services", (("labelSelector", f"!{LABEL_PROXY_NAME}"),)),
        Resource(
            ENDPOINT_SLICE,
            "/apis/discovery.k8s.io/v1/endpointslices",
            (("labelSelector", f"!{LABEL_HEADLESS},!{LABEL_PROXY_NAME}"),),
        ),
        Resource(SERVICE_CIDR, "/apis/networking.k8s.io/v1/servicecidrs", optional=True),
        Resource(NODE, "/api/v1/nodes", (("fieldSelector", f"metadata.name={node_name}"),)),
    )


# -- Trouble, and what to do about it ----------------------------------------------------------------------------------


class Step(Enum):
    LIST = "list"
    WATCH = "watch"


# Three kinds of trouble that have no HTTP status.
UNREACHABLE: Final = 0  # no answer
BROKEN: Final = 1  # the answer to a watch stopped short
NONSENSE: Final = 2  # the answer is not the Kubernetes API's


class Trouble(Exception):
    """A request failed or ended before its time. `status`: HTTP's or one of the three above. `cause`: words for people.
    `retry_after`: seconds, 0 when the server did not say."""

    def __init__(self, status: int, cause: str, retry_after: float = 0.0) -> None:
        self.status, self.cause, self.retry_after = status, cause, retry_after
        super().__init__(cause)


class Rule(NamedTuple):
    event: str  # the log event
    relist: bool = False  # the version that we have is of no use
    at_once: bool = False  # no pause, the first time
    remedy: str = ""


OTHER: Final = Rule("api_refused")
RULES: Final = {
    UNREACHABLE: Rule("api_unreachable"),
    BROKEN: Rule("watch_broken"),
    NONSENSE: Rule("api_nonsense", relist=True, remedy="is this the address of a Kubernetes API server?"),
    400: Rule("api_refused", relist=True),
    401: Rule("api_unauthorized", remedy="check the token or client certificate that the proxy uses"),
    403: Rule("api_forbidden", remedy="grant this account, in a ClusterRole: {rule}"),
    404: Rule("api_resource_missing", relist=True),
    410: Rule("watch_expired", relist=True, at_once=True),
    422: Rule("api_refused", relist=True),
}


class Next(NamedTuple):
    step: Step
    pause: float


def backoff(failures: int, rand: float) -> float:
    """Seconds to wait after so many failures in a row before this one; `rand` in [0, 1) spreads the nodes."""
    return min(BACKOFF_MAX, BACKOFF_FIRST * 2.0 ** min(failures, 16)) * (0.5 + rand / 2)


def what_next(step: Step, trouble: Trouble, failures: int, rand: float) -> Next:
    """What to do after `trouble` in `step`, and when (seconds)."""
    rule = RULES.get(trouble.status, OTHER)
    pause = 0.0 if rule.at_once and failures == 0 else max(backoff(failures, rand), trouble.retry_after)
    return Next(Step.LIST if rule.relist else step, pause)


# -- From bytes to events ----------------------------------------------------------------------------------------------


class _Meta(Struct):
    name: str = ""
    namespace: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")


class _OnlyMeta(Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _List(Struct):
    items: list[Raw] | None
    metadata: _Meta


class _Line(Struct):
    type: str
    object: Raw


class _Status(Struct):
    message: str = ""
    reason: str = ""
    code: int = 500


_DecodeErrors = (msgspec.DecodeError, UnicodeDecodeError)
_meta = msgspec.json.Decoder(_OnlyMeta)
_list = msgspec.json.Decoder(_List)
_line = msgspec.json.Decoder(_Line)
_status = msgspec.json.Decoder(_Status)


class Listed(NamedTuple):
    objects: list[KubeObject]
    bad: list[BadObject]
    version: str


def read_list(kind: str, body: bytes) -> Listed:
    """Read the answer to a list. One bad item does not spoil the others. Raises Trouble when it is no list at all."""
    try:
        answer = _list.decode(body)
    except _DecodeErrors as e:
        raise Trouble(NONSENSE, f"the answer is no list: {e}") from None
    objects: list[KubeObject] = []
    bad: list[BadObject] = []
    for item in answer.items or ():
        try:
            objects.append(decode(kind, item))
        except BadObject as e:
            bad.append(e)
    return Listed(objects, bad, answer.metadata.resource_version)


def refusal(status: int, retry_after: str, body: bytes) -> Trouble:
    """The Trouble that an answer other than 200 means. `retry_after` is the header of that name, or ''."""
    try:
        said = _status.decode(body)
        text = said.message or said.reason
    except _DecodeErrors:
        text = body[:200].decode("utf-8", "replace")  # a proxy or load balancer in between: HTML, or words
    seconds = min(float(retry_after), RETRY_AFTER_MAX) if retry_after.isascii() and retry_after.isdigit() else 0.0
    return Trouble(status, f"HTTP {status}: {' '.join(text.split())[:300]}", seconds)


class Lines:
    """Cuts a stream into lines, wherever the pieces that it arrives in end."""

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._held: list[bytes] = []  # the pieces of an unfinished line; joined once, so a long line costs no square
        self._size = 0

    @property
    def unfinished(self) -> bool:
        return self._size > 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that are complete now. Raises Trouble when one is longer than the limit."""
        first, *others = piece.split(b"\n")
        self._hold(first)
        done: list[bytes] = []
        for part in others:
            done.append(b"".join(self._held))
            self._held, self._size = [], 0
            self._hold(part)
        return done

    def _hold(self, part: bytes) -> None:
        if part:
            self._held.append(part)
            self._size += len(part)
        if self._size > self._limit:
            raise Trouble(NONSENSE, f"a line of the watch is longer than {self._limit} bytes")


class Batch(NamedTuple):
    """What one piece of the stream brought: in order, a BadObject in the place of an event that could not be read.
    `trouble` comes after all of them and ends the watch."""

    found: list[Event | BadObject]
    trouble: Trouble | None


class Stream:
    """The answer to one watch: bytes in, events out. `version` is where the next watch starts."""

    def __init__(self, kind: str, version: str, limit: int = LINE_LIMIT) -> None:
        self.kind, self.version = kind, version
        self.heard = False  # anything at all but an error
        self._lines = Lines(limit)

    def feed(self, piece: bytes) -> Batch:
        found: list[Event | BadObject] = []
        try:
            for line in self._lines.feed(piece):
                if line:
                    found.extend(self._read(line))
                    self.heard = True
        except Trouble as trouble:
            return Batch(found, trouble)
        return Batch(found, None)

    def end(self) -> None:
        """The server ended the answer. Raises Trouble if that was in the middle of a line."""
        if self._lines.unfinished:
            raise Trouble(BROKEN, "the answer ended in the middle of a line")

    def _read(self, text: bytes) -> Iterator[Event | BadObject]:
        try:
            line = _line.decode(text)
        except _DecodeErrors as e:
            raise Trouble(NONSENSE, f"a line of the watch is no event: {e}") from None
        if line.type == "ERROR":
            raise self._error(line.object)
        try:
            meta = _meta.decode(line.object).metadata
        except _DecodeErrors:
            meta = _Meta()  # decode() below says what is wrong
        match line.type:
            case "ADDED" | "MODIFIED":
                try:
                    yield Put(decode(self.kind, line.object))
                except BadObject as e:
                    yield e
            case "DELETED":
                yield Delete(self.kind, meta.namespace, meta.name)
            case "BOOKMARK":
                pass
            case other:
                raise Trouble(NONSENSE, f"the watch has an event of unknown type {other[:40]!r}")
        self.version = meta.resource_version or self.version

    def _error(self, obj: Raw) -> Trouble:
        try:
            status = _status.decode(obj)
        except _DecodeErrors as e:
            return Trouble(NONSENSE, f"an ERROR event has no Status: {e}")
        return Trouble(status.code, f"{status.code} in the watch: {status.message or status.reason}"[:300])


# -- The loop ----------------------------------------------------------------------------------------------------------


class Answer(Protocol):
    """An HTTP answer whose body has not been read."""

    @property
    def status(self) -> int: ...
    def header(self, name: str) -> str: ...  # '' when there is none
    def read(self) -> bytes: ...  # all; raises Trouble(UNREACHABLE)
    def pieces(self) -> Iterator[bytes]: ...  # whatever has arrived, as it arrives; raises Trouble(BROKEN)


class Transport(Protocol):
    def get(self, path: str, *, read_timeout: float, compressed: bool = False) -> AbstractContextManager[Answer]:
        """Ask. `read_timeout` is the longest silence, in seconds. Raises Trouble(UNREACHABLE)."""


class Watcher:
    """Keeps the inbox told of one resource, for ever, whatever the server does."""

    def __init__(
        self,
        transport: Transport,
        resource: Resource,
        inbox: Inbox,
        stop: threading.Event,
        *,
        clock: Callable[[], float] = time.monotonic,
        rand: Callable[[], float] = random.random,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._transport, self._resource, self._inbox, self._stop = transport, resource, inbox, stop
        self._clock, self._rand, self._sleep = clock, rand, sleep or stop.wait
        self._log = structlog.get_logger().bind(kind=resource.kind)
        self.kind = resource.kind
        self._version = ""
        self._failures = 0  # in a row
        self._told: tuple[str, str] | None = None  # the trouble that was logged last and is not over
        self._absent = False
        self._heard_at = 0.0
        self.left_out: dict[tuple[str, str], str] = {}  # (namespace, name) -> reason, of objects that cannot be read

    def run(self) -> None:
        """List, then watch from there, until `stop` is set."""
        step = Step.LIST
        while not self._stop.is_set():
            try:
                step = self._list() if step is Step.LIST else self._watch()
            except Trouble as trouble:
                if self._stop.is_set():
                    return
                following = what_next(step, trouble, self._failures, self._rand())
                self._tell(trouble, following)
                self._failures += 1
                step = following.step
                self._sleep(following.pause)

    def _list(self) -> Step:
        began = self._clock()
        with self._transport.get(self._resource.list_path, read_timeout=LIST_TIMEOUT, compressed=True) as answer:
            if answer.status == 404 and self._resource.optional:
                self._leave_empty()
            body = _body(answer)
        listed = read_list(self._resource.kind, body)
        self._inbox.put(Replace(self._resource.kind, listed.objects))
        self._version, self._absent, self._heard_at = listed.version, False, self._clock()
        known, self.left_out = self.left_out, {}
        for bad in listed.bad:
            self._leave_out(bad, known)
        seconds = round(self._clock() - began, 3)
        self._log.info("api_list_done", count=len(listed.objects), left_out=len(listed.bad), seconds=seconds)
        return Step.WATCH

    def _watch(self) -> Step:
        shortest, longest = WATCH_SECONDS
        seconds = shortest + int(self._rand() * (longest - shortest))
        path = self._resource.watch_path(self._version, seconds)
        with self._transport.get(path, read_timeout=seconds + READ_SLACK) as answer:
            if answer.status != 200:
                _body(answer)
            began = self._clock()
            stream = Stream(self._resource.kind, self._version)
            try:
                for piece in answer.pieces():
                    found, trouble = stream.feed(piece)
                    self._take(found)
                    self._version = stream.version
                    if trouble:
                        raise trouble
                    if stream.heard:
                        self._works()
                stream.end()
            finally:
                lasted = self._clock() - began
                if lasted >= SHORTEST and not self._stop.is_set():
                    self._works(heard=stream.heard)
        if lasted < SHORTEST and not stream.heard:
            raise Trouble(BROKEN, "the server ended the watch at once")
        return Step.LIST if self._clock() - self._heard_at > SILENCE else Step.WATCH

    def _take(self, found: Iterable[Event | BadObject]) -> None:
        events: list[Event] = []
        for item in found:
            if isinstance(item, BadObject):
                self._leave_out(item, self.left_out)
                item = Delete(item.kind, item.namespace, item.name)
            elif isinstance(item, Put):
                self.left_out.pop((item.obj.metadata.namespace, item.obj.metadata.name), None)
            elif isinstance(item, Delete):
                self.left_out.pop((item.namespace, item.name), None)
            events.append(item)
        if events:
            self._inbox.put(*events)

    def _leave_out(self, bad: BadObject, known: dict[tuple[str, str], str]) -> None:
        key = (bad.namespace, bad.name)
        if known.get(key) != bad.reason:
            self._log.warning("object_left_out", namespace=bad.namespace, name=bad.name, reason=bad.reason)
        self.left_out[key] = bad.reason

    def _leave_empty(self) -> None:
        if not self._absent:
            self._inbox.put(Replace(self._resource.kind, ()))
            self._absent = True
        raise Trouble(404, "this API server does not have the resource", ABSENT_RETRY)

    def _works(self, heard: bool = True) -> None:
        if heard:
            self._heard_at = self._clock()
        self._failures = 0
        if self._told:
            self._log.info("watch_works_again")
            self._told = None

    def _tell(self, trouble: Trouble, following: Next) -> None:
        rule = RULES.get(trouble.status, OTHER)
        if self._told == (rule.event, trouble.cause):
            return
        self._told = (rule.event, trouble.cause)
        remedy = {"remedy": rule.remedy.format(rule=self._resource.rule)} if rule.remedy else {}
        pause = round(following.pause, 1)
        self._log.warning(rule.event, cause=trouble.cause, then=following.step.value, pause=pause, **remedy)


def _body(answer: Answer) -> bytes:
    """The body of a 200; anything else is raised as Trouble."""
    body = answer.read()
    if answer.status != 200:
        raise refusal(answer.status, answer.header("Retry-After"), body)
    return body
