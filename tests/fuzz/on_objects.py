"""Objects and where they come from: lists, watches, manifests; and what an agent makes of objects that nobody expected."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from proxy import model
from proxy.events import Delete, Event, Put, Replace
from proxy.manifest_parse import Broken, key_of, parse
from proxy.model import KINDS, BadObject, kind_of
from proxy.reading import Item, ServiceReading, SliceReading
from proxy.settings import Settings
from proxy.state import State
from proxy.trouble import RETRY_AFTER_MAX, Step, Trouble, error_event, refusal, what_next
from proxy.watch_stream import Listed, Stream, read_list
from rules.diff import scratch
from rules.errors import describe
from rules.fake import FakeKernel
from rules.layout import LAYOUTS, Options
from rules.objects import comment_text
from rules.tables import create
from rules.text import render
from tests.fuzz import corpus
from tests.fuzz.hunt import Target
from tests.fuzz.scene import NODE
from tests.fuzz.trees import JSON, LINES, YAML, dump_json
from tests.histories import Cluster, listing, remember
from tests.test_histories import SPARE, Content, content, empty, from_scratch, without_empty

JSON_TOKENS: Final = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"null", b"true", b'{"a":', b"[[", b"\\u0000", b"\\ud800", b"\xff", b"\xef\xbb\xbf",
    b"1e999", b"-", b"0x1", b'"metadata":', b'"name":', b'"namespace":', b'"spec":', b'"items":', b'"resourceVersion":',
    b'"type":"ADDED"', b'"type":"BOOKMARK"', b'"type":"ERROR"', b'"type":"DELETED"', b'"object":', b'"continue":"x"', b"\n",
    b'"code":', b'"retryAfterSeconds":', b'"causes":', b'"details":', b'"annotations":{"k8s.io/initial-events-end":"true"}',
)  # fmt: skip
YAML_TOKENS: Final = (
    b"---\n", b"...\n", b"&a ", b"*a", b"<<: ", b"!!int ", b"!!float ", b"!!bool ", b"!!null ", b"!!binary ", b"!!timestamp ",
    b"!!set ", b"!!omap ", b"!!pairs ", b"!!python/object:os.system ", b"! ", b"- ", b"? ", b": ", b"|\n", b">\n", b"|2\n", b"#",
    b"\t", b"\n", b"\r\n", b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"\xc2\x85", b"%YAML 1.1\n", b"%TAG ! x\n", b"'", b'"', b"{", b"}",
    b"[", b"]", b",", b"~", b"0o7", b"1:2:3", b"1_000", b".inf", b".nan", b"2026-13-45", b"2001-12-14t21:59:43.10-05:00", b"=",
    b"&a [*a]", b"&a [x,x]", b"&b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]", b"&a {<<: *a}", b"\\ud800", b"\\x00",
    b"kind: List\nitems:\n", b"apiVersion: v1\n", b"kind: Service\n", b"metadata: {name: a}\n",
)  # fmt: skip
BOMB: Final = b"".join(b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 10)) for c in b"bcdefghijk")
"""Ten billion values in 400 bytes."""


def bits(data: bytes) -> random.Random:
    """What else a check needs to decide: the same for the same input."""
    return random.Random(zlib.crc32(data))


# -- Decoding ----------------------------------------------------------------------------------------------------------


def _check_decode(data: bytes) -> None:
    for kind in KINDS:
        try:
            obj = model.decode(kind, data)
        except BadObject as bad:
            _says_why(bad.reason, str(bad))
            with suppress(ValueError, RecursionError):
                _same_of_plain_data(kind, json.loads(data))
            continue
        _is_sound(kind, obj)
        assert model.decode(kind, msgspec.json.encode(obj)) == obj
        assert model.convert(kind, msgspec.to_builtins(obj)) == obj


def _says_why(*texts: str) -> None:
    assert all(texts)


def _same_of_plain_data(kind: str, data: Any) -> None:
    """JSON that is no object is none as YAML either. (Python's reader of JSON takes more than msgspec's.)"""
    with suppress(BadObject):
        _is_sound(kind, model.convert(kind, data))


def _is_sound(kind: str, obj: Item) -> None:
    assert not isinstance(obj, ServiceReading | SliceReading) and kind_of(obj) == kind and obj.metadata.name
    assert bool(obj.metadata.namespace) or kind in (model.NODE, model.SERVICE_CIDR)


def _single_objects() -> list[bytes]:
    return [dump_json(item) for item in corpus.objects()]


# -- Lists and watches -------------------------------------------------------------------------------------------------


def _check_list(data: bytes) -> None:
    for kind in KINDS:
        try:
            listed = read_list(kind, data)
        except Trouble as trouble:
            _is_trouble(trouble)
            continue
        _is_listed(kind, listed)
        with suppress(ValueError, RecursionError):
            assert len(listed.objects) + len(listed.bad) == len(json.loads(data).get("items") or ())


def _is_listed(kind: str, listed: Listed) -> None:
    for obj in listed.objects:
        _is_sound(kind, obj)
    assert all(isinstance(bad, BadObject) for bad in listed.bad)
    assert isinstance(listed.version, str)


def _is_trouble(trouble: Trouble) -> None:
    assert isinstance(trouble.status, int) and 0 <= trouble.retry_after <= RETRY_AFTER_MAX
    for step in Step:
        assert 0 <= what_next(step, trouble, 3, 0.5).pause <= RETRY_AFTER_MAX


def _check_stream(data: bytes) -> None:
    rand = bits(data)
    kind, initial = rand.choice(KINDS), rand.random() < 0.5
    whole = _read_all(kind, initial, [data])
    pieces = list(_pieces(rand, data))
    assert _read_all(kind, initial, pieces) == whole, "where the pieces end makes a difference"


def _pieces(rand: random.Random, data: bytes) -> Iterator[bytes]:
    while data:
        size = rand.choice((1, 10, 1000, 10_000))
        yield data[:size]
        data = data[size:]


def _read_all(kind: str, initial: bool, pieces: Sequence[bytes]) -> tuple[Any, ...]:
    """Everything that a watch brings, as values that compare."""
    stream = Stream(kind, "" if initial else "7", initial=initial)
    found: list[Any] = []
    for piece in pieces:
        batch = stream.feed(piece)
        found += batch.found
        if batch.trouble:
            _is_trouble(batch.trouble)
            break
    else:
        batch = None
        with suppress(Trouble):
            stream.end()
    lines = b"".join(pieces).count(b"\n")
    if not initial:
        assert len(found) <= lines
    for item in found:
        match item:
            case Put(obj):
                _is_sound(kind, obj)
            case Delete():
                assert item.kind == kind
            case Listed():
                assert initial and item is found[0] and len(item.objects) + len(item.bad) < lines
                _is_listed(kind, item)
            case _:
                assert isinstance(item, BadObject)
    told = batch.trouble if batch else None
    return stream.version, stream.heard, stream.is_initial, list(map(_plain, found)), told and (told.status, told.cause)


def _plain(item: object) -> Any:
    match item:
        case BadObject():
            return item.kind, item.namespace, item.name, item.reason
        case Listed():
            return item.objects, list(map(_plain, item.bad)), item.version
        case _:
            return item


def _check_refusal(data: bytes) -> None:
    head, _, body = data.partition(b"\n")
    header, _, date = head.decode("latin-1").partition("|")
    for status in (200, 400, 404, 410, 422, 429, 500, 504):
        _is_trouble(refusal(status, header, body, date))
    _is_trouble(error_event(body))


def _refusals() -> list[bytes]:
    dates = [b"", b"5", b"Mon, 30 Nov 2026 09:00:00 GMT|Mon, 30 Nov 2026 08:59:00 GMT"]
    return [date + b"\n" + body for body in corpus.answers("other") for date in dates]


# -- Manifests ---------------------------------------------------------------------------------------------------------


def _check_manifest(data: bytes) -> None:
    for name in ("a.yaml", "a.json"):
        try:
            parsed = parse(name, data)
        except Broken as broken:
            _says_why(broken.cause, broken.remedy)
            continue
        assert all(key == key_of(obj) for key, obj in parsed.objects.items())
        assert all(bad.what and bad.reason for bad in parsed.bad)
        assert set(parsed.twice) <= parsed.objects.keys()
        assert not (parsed.empty and (parsed.objects or parsed.bad or parsed.ignored))
        items = [
            {"apiVersion": model.API_VERSIONS[kind_of(o)], "kind": kind_of(o), **msgspec.to_builtins(o)}
            for o in parsed.objects.values()
        ]
        again = parse("b.json", msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items}))
        assert again.objects == parsed.objects and not again.bad


def _manifests() -> list[bytes]:
    single = [msgspec.yaml.encode(item) for item in corpus.objects()[:30]]
    scenes = [b"---\n".join(map(msgspec.yaml.encode, scene)) for scene in corpus.scenes()[:20]]
    listed = [dump_json({"apiVersion": "v1", "kind": "List", "items": list(scene)}) for scene in corpus.scenes()[:20]]
    others = list(corpus.files("detect/plain/*", "detect/broken/*").values())
    return [*single, *scenes, *listed, *others, BOMB]


# -- The agent ---------------------------------------------------------------------------------------------------------


def _check_agent(data: bytes) -> None:
    """Whatever objects there are: nothing is raised, the table is that of a fresh start, and can be shown."""
    try:
        items = json.loads(data)
    except (ValueError, RecursionError):
        return
    rand = bits(data)
    events = list(_events(items if isinstance(items, list) else [items]))
    known: Cluster = {}
    with empty(_Kernel) as (kernel, agent):
        while events:
            batch = [events.pop() for _ in range(min(len(events), rand.choice((1, 3, 100))))]
            remember(known, *batch)
            agent.handle(batch)
        _is_as_from_scratch(kernel, known)
    if rand.random() < 0.02:
        SPARE.clear()  # groups of service ports with odd timeouts stay, and would be more and more


def _is_as_from_scratch(kernel: FakeKernel, known: Cluster) -> None:
    expected = from_scratch(known, 0)
    state = State(NODE)
    for event in listing(known):
        state.apply(event)
    ports = [port for port in state.everything().values() if port]
    addresses = Settings().nodeport_ips(state.node, ())
    for family, layout in LAYOUTS.items():
        found = without_empty(content(kernel.dump(layout.table)))
        assert found == without_empty(_as_kept(expected[family]))
        mine = [port for port in ports if port.family is family]
        whole = [*create(layout, Options(), state.service_cidrs), *scratch(family, mine, addresses[family]).operations]
        render(whole).encode()


def _as_kept(expected: Content) -> Content:
    """With comments as the kernel has them, of names that no API server would take."""
    return {
        name: {key: (one[0], comment_text(one[1])) if isinstance(one, tuple) else one for key, one in elements.items()}
        for name, elements in expected.items()
    }


class _Kernel(FakeKernel):
    """What is refused, or logged, names its operations."""

    def commit(self, operations: Any) -> int:
        for operation in operations[:: max(1, len(operations) // 50)]:
            describe(operation).encode()
        return super().commit(operations)


def _events(items: Sequence[Any]) -> Iterator[Event]:
    for item in items:
        kind = item.get("kind") if isinstance(item, dict) else None
        if kind not in KINDS:
            continue
        with suppress(BadObject):
            obj = model.decode(str(kind), dump_json(item))
            yield Put(obj)
            if len(items) % 5 == 4:
                yield Replace(str(kind), [obj])
            if len(items) % 7 == 6:
                yield Delete(str(kind), obj.metadata.namespace, obj.metadata.name)


def _scenes() -> list[bytes]:
    return [dump_json(list(scene)) for scene in corpus.scenes()]


TARGETS: Final = (
    Target("decode", _single_objects, _check_decode, JSON_TOKENS, (JSON,), 1500),
    Target("list", lambda: corpus.answers("list"), _check_list, JSON_TOKENS, (JSON,), 600),
    Target("stream", lambda: corpus.answers("watch"), _check_stream, JSON_TOKENS, (LINES,), 800),
    Target("refusal", _refusals, _check_refusal, (*JSON_TOKENS, b"GMT", b"|", b",", b"-0000"), (), 1500),
    Target("manifest", _manifests, _check_manifest, (*JSON_TOKENS, *YAML_TOKENS, BOMB), (YAML, JSON), 400),
    Target("agent", _scenes, _check_agent, JSON_TOKENS, (JSON, JSON, JSON), 80),
)
