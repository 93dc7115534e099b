"""Answers to lists and watches: bytes in, events out. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from proxy.events import Delete, Event, Put
from proxy.model import DECODE_ERRORS, NODE, SERVICE_CIDR, TYPES, BadObject, KubeObject, decode
from proxy.reading import Item
from proxy.trouble import BROKEN, NO_STREAMING, NONSENSE, Trouble, error_event

# The API server stores objects of 1.5 MiB at most (etcd's limit), so a line like this is no event of a Kubernetes API.
LINE_LIMIT: Final = 8 << 20
INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"

Prepare = Callable[[KubeObject], Item]
"""What is kept of an object that was decoded; the rest of it is gone before the next one is read."""


def as_it_is(obj: KubeObject) -> Item:
    return obj


class _Meta(Struct):
    name: str = ""
    namespace: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    annotations: dict[str, str] | None = None


class _OnlyMeta(Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _ListMeta(Struct):
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    page: str = msgspec.field(name="continue", default="")


class _List(Struct):
    items: list[Raw] | None
    metadata: _ListMeta


class _Line(Struct):
    type: str
    object: Raw


_meta = msgspec.json.Decoder(_OnlyMeta)
_list = msgspec.json.Decoder(_List)
_line = msgspec.json.Decoder(_Line)
_EVENTS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(msgspec.defstruct("Event", [("type", str), ("object", struct)]))
    for kind, struct in TYPES.items()
}
"""A whole line at once, which all but a few are fit for: one pass over its bytes instead of three."""


class Listed(NamedTuple):
    """All objects that there are, those that cannot be read, and the resourceVersion of that."""

    objects: list[Item]
    bad: list[BadObject]
    version: str


def read_list(kind: str, body: bytes, prepare: Prepare = as_it_is) -> Listed:
    """Read the answer to a list. One bad item does not spoil the others. Raises Trouble when it is no list at all."""
    try:
        answer = _list.decode(body)
    except DECODE_ERRORS as e:
        raise Trouble(NONSENSE, f"the answer is no list: {e}") from None
    if answer.metadata.page:
        raise Trouble(NONSENSE, "the answer is only a part of the list, which was not asked for")
    objects: list[Item] = []
    bad: list[BadObject] = []
    for item in answer.items or ():
        try:
            objects.append(prepare(decode(kind, item)))
        except BadObject as e:
            bad.append(e)
    return Listed(objects, bad, answer.metadata.resource_version)


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

    found: list[Event | BadObject | Listed]
    trouble: Trouble | None


class Stream:
    """The answer to one watch: bytes in, events out.

    version: where the next watch starts. heard: the server knows what we know, and said so, after the list if there
    was one.
    initial: it is the answer to a streaming list. Then nothing is found until its end mark brings a `Listed`, and
    what follows is a watch like any other.

    A watch tells everything that happens to its resource, in the order of the resourceVersions, which are numbers that
    can be compared (KEP-5504). So one number is enough to know an event that comes late or again: it is older than
    where the watch has got to, and whatever it says is known already, or was undone. A version for each object would
    cost a megabyte for 10,000 of them and find no more.
    """

    def __init__(
        self,
        kind: str,
        version: str,
        *,
        initial: bool = False,
        prepare: Prepare = as_it_is,
        limit: int = LINE_LIMIT,
    ) -> None:
        self.kind, self.version = kind, version
        self.heard = False
        self._number = _number(version)
        self._prepare = prepare
        self._decoder = _EVENTS[kind]
        self._is_namespaced = kind not in (NODE, SERVICE_CIDR)
        self._initial: dict[tuple[str, str], Item | BadObject] | None = {} if initial else None
        self._lines = Lines(limit)

    @property
    def is_initial(self) -> bool:
        """A streaming list whose end mark has not come."""
        return self._initial is not None

    def feed(self, piece: bytes) -> Batch:
        found: list[Event | BadObject | Listed] = []
        try:
            for line in self._lines.feed(piece):
                if line:
                    self._read(line, found)
        except Trouble as trouble:
            return Batch(found, trouble)
        return Batch(found, None)

    def end(self) -> None:
        """The server ended the answer. Raises Trouble if that was in the middle of something."""
        if self._lines.unfinished:
            raise Trouble(BROKEN, "the answer ended in the middle of a line")
        if self.is_initial:
            raise Trouble(BROKEN, "the answer ended in the middle of the list")

    def _read(self, text: bytes, found: list[Event | BadObject | Listed]) -> None:
        event, meta, obj = self._decode(text)
        if event == "BOOKMARK":
            self._bookmark(meta, found)
            return
        key = (meta.namespace, meta.name)
        if self._initial is not None:
            # Here they come by name, not by version, and among them may be changes that happened meanwhile.
            if obj is None:
                self._initial.pop(key, None)
            else:
                self._initial[key] = obj
            return
        if not self._moves_on(meta.resource_version):
            return
        if obj is None:
            found.append(Delete(self.kind, *key))
        else:
            found.append(obj if isinstance(obj, BadObject) else Put(obj))

    def _decode(self, text: bytes) -> tuple[str, Any, Item | BadObject | None]:
        """Kind of event, metadata, and the object if there is one now. Raises Trouble for an ERROR and for nonsense."""
        try:
            line = self._decoder.decode(text)
            meta = line.object.metadata
            if line.type in ("ADDED", "MODIFIED"):
                if meta.name and (meta.namespace or not self._is_namespaced):
                    return line.type, meta, self._prepare(line.object)
            elif line.type in ("DELETED", "BOOKMARK"):
                return line.type, meta, None
        except DECODE_ERRORS:
            pass
        return self._decode_slowly(text)

    def _decode_slowly(self, text: bytes) -> tuple[str, Any, Item | BadObject | None]:
        try:
            line = _line.decode(text)
        except DECODE_ERRORS as e:
            raise Trouble(NONSENSE, f"a line of the watch is no event: {e}") from None
        if line.type == "ERROR":
            trouble = error_event(line.object)
            if self.is_initial and trouble.status in (400, 422, 500):
                raise Trouble(NO_STREAMING, trouble.cause)
            raise trouble
        if line.type not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            raise Trouble(NONSENSE, f"the watch has an event of unknown type {line.type[:40]!r}")
        try:
            meta = _meta.decode(line.object).metadata
        except DECODE_ERRORS:
            meta = _Meta()  # decode() below says what is wrong
        if line.type in ("DELETED", "BOOKMARK"):
            return line.type, meta, None
        try:
            return line.type, meta, self._prepare(decode(self.kind, line.object))
        except BadObject as e:
            return line.type, meta, e

    def _bookmark(self, meta: Any, found: list[Event | BadObject | Listed]) -> None:
        if self._initial is not None:
            if (meta.annotations or {}).get(INITIAL_EVENTS_END) != "true":
                raise Trouble(NO_STREAMING, "it does not mark the end of the initial events")
            everything, self._initial = self._initial, None
            objects = [obj for obj in everything.values() if not isinstance(obj, BadObject)]
            bad = [obj for obj in everything.values() if isinstance(obj, BadObject)]
            found.append(Listed(objects, bad, meta.resource_version))
            self.version, self._number = meta.resource_version, _number(meta.resource_version)
        else:
            self._moves_on(meta.resource_version)

    def _moves_on(self, version: str) -> bool:
        """Take the version of an event as the one that we are at; False if we are further already."""
        number = _number(version)
        if number is not None and self._number is not None and number < self._number:
            return False
        self.version, self._number = (version, number) if version else (self.version, self._number)
        self.heard = True
        return True


def _number(version: str) -> int | None:
    return int(version) if version.isascii() and version.isdigit() and len(version) <= 20 else None
