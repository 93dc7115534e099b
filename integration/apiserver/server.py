"""A stand-in for the API server: enough of it for a Service proxy, and faults on demand.

It answers as a real kube-apiserver v1.36 does (tests/data/api holds recorded exchanges; tests/test_apiserver.py
holds it to them). Objects are plain dicts. One resourceVersion counts for all kinds, as in etcd.

    with FakeApi() as api:
        api.put({"kind": "Service", "metadata": {"name": "web", "namespace": "default"}, "spec": {...}})
        connection = Connection(api.kubeconfig(tmp_path / "kubeconfig"))

By hand: python -m integration.apiserver --port 8001 --objects manifests/
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import socket
import ssl
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import yaml

Object = dict[str, Any]
Key = tuple[str, str]  # namespace, name

GZIP_FROM = 128 << 10
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class _Kind:
    path: str
    api_version: str
    empty: str  # what a bookmark of this kind holds beside its metadata


KINDS = {
    "Service": _Kind("/api/v1/services", "v1", ',"spec":{},"status":{"loadBalancer":{}}'),
    "EndpointSlice": _Kind(
        "/apis/discovery.k8s.io/v1/endpointslices",
        "discovery.k8s.io/v1",
        ',"addressType":"","endpoints":null,"ports":null',
    ),
    "ServiceCIDR": _Kind(
        "/apis/networking.k8s.io/v1/servicecidrs", "networking.k8s.io/v1", ',"spec":{"cidrs":null},"status":{}'
    ),
    "Node": _Kind("/api/v1/nodes", "v1", ',"spec":{},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":0}}}'),
}
_KIND_AT = {kind.path: name for name, kind in KINDS.items()}
_CLUSTER_WIDE = ("ServiceCIDR", "Node")


# -- Objects and selectors ---------------------------------------------------------------------------------------------


class _Stored:
    """One state of one object. `item` is its JSON as lists have it: without kind and apiVersion."""

    def __init__(self, kind: str, obj: Object) -> None:
        self.kind, self.obj = kind, obj
        meta = obj["metadata"]
        self.key: Key = (meta.get("namespace", ""), meta["name"])
        self.labels: dict[str, str] = meta.get("labels") or {}
        self.item: bytes = _encode(obj)

    def at(self, version: int) -> _Stored:
        return _Stored(self.kind, self.obj | {"metadata": self.obj["metadata"] | {"resourceVersion": str(version)}})

    def line(self, event: str) -> bytes:
        head = f'{{"type":"{event}","object":{{"kind":"{self.kind}","apiVersion":"{KINDS[self.kind].api_version}",'
        return head.encode() + self.item[1:] + b"}\n"


@dataclass(frozen=True)
class _Change:
    kind: str
    version: int
    before: _Stored | None
    after: _Stored | None

    def line(self, matches: Callable[[_Stored], bool]) -> bytes | None:
        """What a watcher with this selector sees of it: to leave the selector is to be deleted."""
        before = self.before if self.before and matches(self.before) else None
        after = self.after if self.after and matches(self.after) else None
        if after:
            return after.line("MODIFIED" if before else "ADDED")
        return before.at(self.version).line("DELETED") if before else None


def _selector(label_selector: str, field_selector: str) -> Callable[[_Stored], bool]:
    tests: list[Callable[[_Stored], bool]] = []
    for term in filter(None, label_selector.split(",")):
        name, equals, value = term.lstrip("!").partition("=")
        if equals:
            tests.append(lambda o, name=name, value=value: o.labels.get(name) == value.lstrip("="))  # type: ignore[misc]
        else:
            tests.append(lambda o, name=name, want=term[0] != "!": (name in o.labels) == want)  # type: ignore[misc]
    for term in filter(None, field_selector.split(",")):
        name, _, value = term.partition("=")
        place = {"metadata.namespace": 0, "metadata.name": 1}[name]
        tests.append(lambda o, place=place, value=value: o.key[place] == value)  # type: ignore[misc]
    return lambda o: all(test(o) for test in tests)


def _bookmark(kind: str, version: int, annotations: str = "") -> bytes:
    known = KINDS[kind]
    return (
        f'{{"type":"BOOKMARK","object":{{"kind":"{kind}","apiVersion":"{known.api_version}",'
        f'"metadata":{{"resourceVersion":"{version}"{annotations}}}{known.empty}}}}}\n'
    ).encode()


def status(code: int, reason: str, message: str, details: Object | None = None) -> bytes:
    """A Status object, as the API server answers with instead of what was asked for."""
    body: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    body["reason"] = reason
    if details is not None:
        body["details"] = details
    return _encode(body | {"code": code})


def error_line(code: int, reason: str, message: str) -> bytes:
    return b'{"type":"ERROR","object":' + status(code, reason, message) + b"}\n"


_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


# -- The server --------------------------------------------------------------------------------------------------------


@dataclass
class _Fault:
    """Answers the next `times` requests for `kind` and `verb` ('' = any) in the place of the server."""

    kind: str
    verb: str
    times: float
    code: int
    body: bytes
    headers: dict[str, str]
    stall: bool = False


@dataclass
class Request:
    verb: str  # list, watch
    kind: str
    path: str  # with the query
    query: dict[str, str]
    headers: dict[str, str]


class _Watch:
    """One running watch. Guarded by the server's lock; `wake` is on that lock."""

    def __init__(self, lock: threading.RLock, kind: str, matches: Callable[[_Stored], bool], version: int) -> None:
        self.kind, self.matches, self.version = kind, matches, version
        self.wake = threading.Condition(lock)
        self.lines: deque[bytes] = deque()
        self.bookmarks = False
        self.ending = ""  # '', 'end' (as the server does), 'cut' (the connection breaks)

    def send(self, line: bytes) -> None:
        if not self.ending:  # what happens from now on is for the client's next watch
            self.lines.append(line)
            self.wake.notify_all()

    def finish(self, how: str) -> None:
        self.ending = how
        self.wake.notify_all()


@dataclass
class FakeApi:
    """The server. Start it with `with` or start(); methods may be called from any thread, also before the start."""

    port: int = 0
    token: str = ""  # '' = anybody may do anything
    tls: tuple[str, str] | None = None  # certificate and key, paths of PEM files
    client_ca: str = ""  # with tls: clients need a certificate of this authority
    watch_seconds: float = 0.0  # ends watches after so long, whatever they ask for; 0 = as they ask
    bookmark_seconds: float = 60.0
    absent: set[str] = field(default_factory=set)  # kinds that this server does not know: 404

    requests: list[Request] = field(default_factory=list, repr=False)
    posted: list[tuple[str, Object]] = field(default_factory=list)  # path and object of each POST

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._asked = threading.Condition(self._lock)
        self._objects: dict[str, dict[Key, _Stored]] = {kind: {} for kind in KINDS}
        self._history: list[_Change] = []
        self._compacted = 0
        self.version = 1
        self._watches: list[_Watch] = []
        self._faults: list[_Fault] = []
        self._release = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self._connections: set[socket.socket] = set()

    # Objects

    def put(self, obj: Object) -> int:
        """Create or change an object; its kind is in it. Returns its new resourceVersion."""
        kind = obj["kind"]
        with self._lock:
            version = self.version = self.version + 1
            meta = dict(obj["metadata"])
            if kind not in _CLUSTER_WIDE:
                meta.setdefault("namespace", "default")
            old = self._objects[kind].get((meta.get("namespace", ""), meta["name"]))
            born = old.obj["metadata"] if old else {}
            meta.setdefault("uid", born.get("uid") or str(uuid.UUID(int=version)))
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            meta.setdefault("creationTimestamp", born.get("creationTimestamp", now))
            meta["resourceVersion"] = str(version)
            rest = {key: value for key, value in obj.items() if key not in ("kind", "apiVersion", "metadata")}
            new = _Stored(kind, {"metadata": meta} | rest)
            self._objects[kind][new.key] = new
            self._changed(_Change(kind, version, old, new))
            return version

    def delete(self, kind: str, namespace: str, name: str) -> int:
        """Delete an object ('' is the namespace of Nodes and ServiceCIDRs). KeyError when there is none."""
        with self._lock:
            old = self._objects[kind].pop((namespace, name))
            self.version += 1
            self._changed(_Change(kind, self.version, old, None))
            return self.version

    def _changed(self, change: _Change) -> None:
        self._history.append(change)
        for watch in self._watches:
            if watch.kind == change.kind and change.version > watch.version and (line := change.line(watch.matches)):
                watch.send(line)

    def compact(self) -> None:
        """Forget the history: a watch from an older version gets 410 in its stream."""
        with self._lock:
            self._compacted = self.version
            self._history.clear()

    # Faults

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
    ) -> None:
        """Answer the next `times` requests with this status (inf: until heal). `verb`: 'list', 'watch', '' for both."""
        headers = (headers or {}) | ({} if retry_after is None else {"Retry-After": str(retry_after)})
        answer = status(code, _REASONS.get(code, ""), message) if body is None else body
        with self._lock:
            self._faults.append(_Fault(kind, verb, times, code, answer, headers))

    def stall(self, *, kind: str = "", verb: str = "", times: float = 1) -> None:
        """Leave the next `times` requests without an answer, until heal() or stop()."""
        with self._lock:
            self._faults.append(_Fault(kind, verb, times, 0, b"", {}, stall=True))

    def heal(self) -> None:
        """No more faults; stalled requests are answered."""
        with self._lock:
            self._faults.clear()
            self._release.set()
            self._release = threading.Event()

    def inject(self, kind: str, data: bytes) -> None:
        """Send raw bytes into the running watches of `kind`: an error_line(), half a line, what no API server says."""
        self._each(kind, lambda watch: watch.send(data))

    def bookmark(self, kind: str = "") -> None:
        self._each(kind, lambda watch: watch.send(_bookmark(watch.kind, self.version)) if watch.bookmarks else None)

    def end_watches(self, kind: str = "") -> None:
        """End the running watches, as the server does after timeoutSeconds."""
        self._each(kind, lambda watch: watch.finish("end"))

    def cut_watches(self, kind: str = "") -> None:
        """Break the connections of the running watches."""
        self._each(kind, lambda watch: watch.finish("cut"))

    def _each(self, kind: str, do: Callable[[_Watch], object]) -> None:
        with self._lock:
            for watch in self._watches:
                if kind in ("", watch.kind):
                    do(watch)

    # To wait for what the other side does

    def wait_for(self, done: Callable[[], bool], timeout: float = 10.0) -> None:
        """Wait until `done()`; it is asked whenever a request arrives or a watch begins or ends."""
        with self._asked:
            if not self._asked.wait_for(done, timeout):
                raise AssertionError("the client did not do what was waited for: " + repr(self.asked()[-8:]))

    def watching(self, *kinds: str) -> bool:
        """Whether there is a running watch of each of these kinds (none named: of all four)."""
        with self._lock:
            return {watch.kind for watch in self._watches if not watch.ending} >= set(kinds or KINDS)

    def asked(self, kind: str = "") -> list[str]:
        """The verbs of the requests so far, in order."""
        with self._lock:
            return [request.verb for request in self.requests if kind in ("", request.kind)]

    # Life

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def kubeconfig(self, path: Path, **user: str) -> str:
        """Write a kubeconfig for this server to `path`; `user` adds to the user's entries, '_' for '-'."""
        cluster = {"server": self.url} | ({"certificate-authority": self.tls[0]} if self.tls else {})
        entries = {key.replace("_", "-"): value for key, value in user.items()}
        if self.token and not entries:
            entries["token"] = self.token
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": cluster}],
            "users": [{"name": "me", "user": entries}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
            "current-context": "fake",
        }
        path.write_text(yaml.safe_dump(config))
        return str(path)

    def start(self) -> FakeApi:
        """Begin to answer; after stop(), again on the same port."""
        api = self

        class Handler(_Handler):
            fake = api

        server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler, bind_and_activate=False)
        server.daemon_threads = True
        server.request_queue_size = 128
        server.server_bind()
        server.server_activate()
        self.port = server.server_address[1]
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.tls)
            if self.client_ca:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.02,), name="fakeapi", daemon=True).start()
        return self

    def stop(self) -> None:
        """Break all connections and refuse new ones. The objects stay."""
        if not self._server:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        self.cut_watches()
        with self._lock:
            self._release.set()
            self._release = threading.Event()
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def __enter__(self) -> FakeApi:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Refused(Exception):
    def __init__(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.code, self.body, self.headers = code, body, headers or {}


class _Handler(BaseHTTPRequestHandler):
    fake: FakeApi
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        with self.fake._lock:
            self.fake._connections.add(self.connection)

    def finish(self) -> None:
        with self.fake._lock:
            self.fake._connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the client went away
            super().handle()

    def do_GET(self) -> None:
        try:
            self._authenticate()
            self._get()
        except _Refused as refused:
            self._answer(refused.code, refused.body, refused.headers)

    def do_POST(self) -> None:
        obj = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            self._authenticate()
        except _Refused as refused:
            self._answer(refused.code, refused.body, refused.headers)
            return
        with self.fake._lock:
            self.fake.posted.append((self.path, obj))
            self.fake._asked.notify_all()
        self._answer(201, _encode(obj))

    def _authenticate(self) -> None:
        token = self.fake.token
        given = self.headers.get("Authorization", "")
        if not token or given.lower() == f"bearer {token}".lower():
            return
        if given:
            raise _Refused(401, status(401, "Unauthorized", "Unauthorized"))
        resource = urlsplit(self.path).path.rpartition("/")[2]
        group = (
            "discovery.k8s.io" if "discovery" in self.path else "networking.k8s.io" if "networking" in self.path else ""
        )
        message = f'{resource} is forbidden: User "system:anonymous" cannot list resource "{resource}" in API group '
        body = status(403, "Forbidden", message + f'"{group}" at the cluster scope', {"kind": resource})
        raise _Refused(403, body, {"X-Content-Type-Options": "nosniff"})

    def _get(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        kind = _KIND_AT.get(url.path, "")
        verb = "watch" if query.get("watch") in ("1", "true") else "list"
        fake = self.fake
        with fake._lock:
            fake.requests.append(Request(verb, kind, self.path, query, dict(self.headers)))
            fake._asked.notify_all()
            fault = self._fault(kind, verb)
            release = fake._release
        if fault and fault.stall:
            release.wait()
        elif fault:
            raise _Refused(fault.code, fault.body, fault.headers)
        if not kind or kind in fake.absent:
            raise _Refused(404, status(404, "NotFound", "the server could not find the requested resource", {}))
        matches = _selector(query.get("labelSelector", ""), query.get("fieldSelector", ""))
        if verb == "watch":
            self._watch(kind, query, matches)
        else:
            self._list(kind, query, matches)

    def _fault(self, kind: str, verb: str) -> _Fault | None:
        for fault in self.fake._faults:
            if fault.kind in ("", kind) and fault.verb in ("", verb):
                fault.times -= 1
                if fault.times <= 0:
                    self.fake._faults.remove(fault)
                return fault
        return None

    def _list(self, kind: str, query: dict[str, str], matches: Callable[[_Stored], bool]) -> None:
        fake = self.fake
        with fake._lock:
            version, compacted = fake.version, fake._compacted
            objects = sorted((o for o in fake._objects[kind].values() if matches(o)), key=lambda o: o.key)
        asked = query.get("resourceVersion", "")
        if asked and int(asked) > version:
            details = {
                "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
                "retryAfterSeconds": 1,
            }
            message = f"Timeout: Too large resource version: {asked}, current: {version}"
            raise _Refused(504, status(504, "Timeout", message, details), {"Retry-After": "1"})
        expired = "The resourceVersion for the provided list is too old."
        if query.get("resourceVersionMatch") == "Exact" and int(asked) < compacted:
            raise _Refused(410, status(410, "Expired", expired))
        page = ""
        if (limit := int(query.get("limit", "0"))) and asked != "0":  # the cache answers in one piece
            if "continue" in query:
                start, version = _read_token(query["continue"])
                if version < compacted:
                    raise _Refused(410, status(410, "Expired", expired))
                objects = [o for o in objects if o.key > start]
            if left := len(objects) - limit if len(objects) > limit else 0:
                objects = objects[:limit]
                page = f',"continue":"{_token(objects[-1].key, version)}","remainingItemCount":{left}'
        head = (
            f'{{"kind":"{kind}List","apiVersion":"{KINDS[kind].api_version}","metadata":{{"resourceVersion":"{version}"'
        )
        self._answer(200, f'{head}{page}}},"items":['.encode() + b",".join(o.item for o in objects) + b"]}\n")

    def _watch(self, kind: str, query: dict[str, str], matches: Callable[[_Stored], bool]) -> None:
        fake = self.fake
        if query.get("sendInitialEvents") == "true":
            if query.get("resourceVersionMatch") != "NotOlderThan":
                why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
                cause = {"reason": "FieldValueForbidden", "message": why, "field": "resourceVersionMatch"}
                details = {"group": "meta.k8s.io", "kind": "ListOptions", "causes": [cause]}
                message = f'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: {why}'
                raise _Refused(422, status(422, "Invalid", message, details))
        version = int(query.get("resourceVersion") or "0")
        seconds = fake.watch_seconds or float(query.get("timeoutSeconds", "1800"))
        watch = _Watch(fake._lock, kind, matches, version)
        watch.bookmarks = query.get("allowWatchBookmarks") in ("1", "true")
        self._send_headers(200, {"Transfer-Encoding": "chunked"})
        with fake._lock:
            for line in self._first_lines(watch, query):
                watch.lines.append(line)
            fake._watches.append(watch)
            fake._asked.notify_all()
        try:
            self._stream(watch, seconds)
        finally:
            with fake._lock:
                fake._watches.remove(watch)
                fake._asked.notify_all()

    def _first_lines(self, watch: _Watch, query: dict[str, str]) -> Iterator[bytes]:
        fake = self.fake
        if query.get("sendInitialEvents") == "true" or watch.version == 0:
            for stored in sorted(fake._objects[watch.kind].values(), key=lambda o: o.key):
                if watch.matches(stored):
                    yield stored.line("ADDED")
            watch.version = fake.version
            if query.get("sendInitialEvents") == "true" and watch.bookmarks:
                end = ',"annotations":{"k8s.io/initial-events-end":"true"}'
                yield _bookmark(watch.kind, fake.version, end)
        elif watch.version < fake._compacted:
            message = f"too old resource version: {watch.version} ({fake._compacted})"
            yield error_line(410, "Expired", message)
            watch.ending = "end"
        else:
            for change in fake._history:
                if change.kind == watch.kind and change.version > watch.version:
                    if line := change.line(watch.matches):
                        yield line

    def _stream(self, watch: _Watch, seconds: float) -> None:
        now = time.monotonic()
        end = now + seconds
        last = end - 2.0  # the last bookmark comes two seconds before the end
        due = min(now + self.fake.bookmark_seconds, last) if watch.bookmarks and last > now else end
        while True:
            with watch.wake:
                watch.wake.wait_for(lambda: watch.lines or watch.ending, max(0.0, min(due, end) - time.monotonic()))
                data = b"".join(watch.lines)
                watch.lines.clear()
                ending = watch.ending
                now = time.monotonic()
                if now >= due < end:
                    if self.fake.version >= watch.version:
                        data += _bookmark(watch.kind, self.fake.version)
                    due = min(now + self.fake.bookmark_seconds, last) if now < last else end
            if data:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            if ending == "cut":
                socket.socket.shutdown(self.connection, socket.SHUT_RDWR)
                self.close_connection = True
                return
            if ending or now >= end:
                self.wfile.write(b"0\r\n\r\n")
                return

    def _answer(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        headers = dict(headers or {})
        if code == 200 and len(body) > GZIP_FROM and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 1)
            headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        self._send_headers(code, headers | {"Content-Length": str(len(body))})
        self.wfile.write(body)

    def _send_headers(self, code: int, headers: dict[str, str]) -> None:
        self.send_response_only(code)
        always = {"Cache-Control": "no-cache, private", "Content-Type": "application/json"}
        for name, value in (always | headers).items():
            self.send_header(name, value)
        self.end_headers()


def _token(key: Key, version: int) -> str:
    start = "/" + "/".join(filter(None, key)) + "\0"
    raw = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": start}, separators=(",", ":"))
    return base64.urlsafe_b64encode(raw.encode()).decode().rstrip("=")


def _read_token(token: str) -> tuple[Key, int]:
    try:
        data = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except ValueError:
        message = (
            "invalid continue token: continue key is not valid: invalid character 'i' looking for beginning of value"
        )
        raise _Refused(400, status(400, "BadRequest", message)) from None
    namespace, _, name = data["start"].strip("/\0").rpartition("/")
    return (namespace, name), data["rv"]


def load(paths: Iterable[Path]) -> Iterator[Object]:
    """The objects in YAML or JSON files, of the kinds that are known here; directories are searched."""
    for path in paths:
        files = sorted(path.rglob("*.[yj][as][mo][ln]")) if path.is_dir() else [path]
        for file in files:
            for document in yaml.safe_load_all(file.read_text()):
                for obj in document.get("items", [document]) if document else ():
                    if obj.get("kind") in KINDS:
                        yield obj


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m integration.apiserver", description="A stand-in for the API server."
    )
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--objects", type=Path, nargs="*", default=[], help="YAML or JSON files, or directories")
    parser.add_argument("--kubeconfig", type=Path, help="write a kubeconfig here")
    options = parser.parse_args()
    api = FakeApi(port=options.port)
    for obj in load(options.objects):
        api.put(obj)
    with api:
        if options.kubeconfig:
            api.kubeconfig(options.kubeconfig)
        print(f"{api.url} with {api.version - 1} objects; end with ^C")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
