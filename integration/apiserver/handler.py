"""Reads requests and answers them, each connection in a thread of its own. No lock is held while a socket is written."""

from __future__ import annotations

import contextlib
import gzip
import json
import ssl
import time
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from integration.apiserver import access, listing, watches, writes
from integration.apiserver.kinds import Target, target
from integration.apiserver.selectors import Matches, named, selector
from integration.apiserver.status import Refused, encode, not_found, not_synced, unknown_path
from integration.apiserver.watches import Watch, bookmark
from integration.apiserver.wire import LAST_CHUNK, Broken, Wire, chunked, cut

if TYPE_CHECKING:
    from integration.apiserver.server import FakeApi

GZIP_FROM = 128 << 10
CHUNKED_FROM = 2048  # what Go's server buffers before it gives up on a Content-Length
ALWAYS = {"Cache-Control": "no-cache, private", "Content-Type": "application/json"}
VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.2",
    "gitCommit": "$Format:%H$",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "go1.27.3",
    "compiler": "gc",
    "platform": "linux/amd64",
}
WRITES = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Handler(BaseHTTPRequestHandler):
    fake: FakeApi
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def setup(self) -> None:
        if self.fake.tls:
            context = self.fake.tls_context()
            self.request = context.wrap_socket(self.request, server_side=True, do_handshake_on_connect=False)
        super().setup()
        self.fake.connected(self.connection)

    def finish(self) -> None:
        self.fake.disconnected(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def handle(self) -> None:
        release = self.fake.release
        if self.fake.silent:
            release.wait()
        with contextlib.suppress(OSError, Broken):  # the client went away; a fault broke the connection
            if isinstance(self.connection, ssl.SSLSocket):
                self.connection.do_handshake()
            super().handle()

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _serve(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.wire = Wire(self.connection, None, self.fake.release)
        try:
            self._answer_to(url.path, query, body)
        except Refused as refused:
            self._answer(refused.code, refused.body, refused.headers)

    def _answer_to(self, path: str, query: dict[str, str], body: bytes) -> None:
        fake = self.fake
        certificate = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
        user = access.who(fake.all_tokens(), self.headers.get("Authorization", ""), certificate or {})
        meant = target(path)
        kind = meant.kind.name if meant else ""
        watch = query.get("watch") in ("1", "true")
        verb = WRITES.get(self.command, "get" if meant and meant.name else "watch" if watch else "list")
        release, fault = fake.note(verb, kind, self.path, query, dict(self.headers), body)
        self.wire = Wire(self.connection, fault, release)
        self.wire.arrived()
        if fault and fault.code:
            self._answer(fault.code, fault.body, fault.headers)
        elif path in access.PUBLIC and self.command == "GET":
            self._answer_public(path)
        elif meant and kind not in fake.absent:
            name = meant.name or (named(query.get("fieldSelector", "")) if verb in ("list", "watch") else "")
            fake.authorize(user, verb, meant, name)
            if self.command != "GET":
                self._write(meant, verb, body)
            elif meant.name:
                self._get(meant)
            else:
                matches = selector(query.get("labelSelector", ""), query.get("fieldSelector", ""), meant.namespace)
                (self._watch if watch else self._list)(meant, query, matches)
        elif user == access.ANONYMOUS:
            raise access.forbidden_path(user, self.command.lower(), path)
        else:
            raise unknown_path()

    def _answer_public(self, path: str) -> None:
        if path == "/version":
            text = json.dumps(VERSION, indent=2)
            self._answer(200, text.encode())
            return
        headers = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
        if self.fake.ready:
            self._answer(200, b"ok", headers)
        else:
            self._answer(500, b"[-]poststarthook/start-kube-apiserver failed: reason withheld\n", headers)

    def _get(self, meant: Target) -> None:
        with self.fake.store.lock:
            stored = self.fake.store.objects[meant.kind.name].get((meant.namespace, meant.name))
        if not stored or meant.subresource:
            raise not_found(meant.kind, meant.name)
        self._answer(200, stored.whole + b"\n")

    def _write(self, meant: Target, verb: str, body: bytes) -> None:
        store = self.fake.store
        if (verb == "create") == bool(meant.name) or meant.subresource not in ("", "status"):
            raise Refused(405, "the server does not allow this method on the requested resource", {})
        if verb == "delete":
            gone = writes.delete(store, meant)
            details = {"name": meant.name, "kind": meant.kind.plural, "uid": gone.uid}
            done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
            self._answer(200, encode(done) + b"\n")
            return
        if verb == "create":
            stored = writes.create(store, meant, body)
        elif verb == "update":
            stored = writes.replace(store, meant, body)
        else:
            stored = writes.patch(store, meant, body, self.headers.get("Content-Type", ""))
        self._answer(201 if verb == "create" else 200, stored.whole + b"\n")

    def _list(self, meant: Target, query: dict[str, str], matches: Matches) -> None:
        fake = self.fake
        cache = fake.cache(meant.kind.name)
        listing.check(query)
        if not cache.synced:
            raise not_synced()
        if query.get("resourceVersionMatch") != "Exact" and not query.get("continue"):
            fake.wait_until_fresh(cache, listing.asked_version(query))
        self._answer(200, listing.answer(meant.kind, cache, fake.store, query, matches))

    def _watch(self, meant: Target, query: dict[str, str], matches: Matches) -> None:
        fake = self.fake
        cache = fake.cache(meant.kind.name)
        watches.check(query, fake.streaming)
        if not cache.synced:
            raise not_synced()
        version = listing.asked_version(query)
        seconds = fake.watch_seconds or listing.seconds(query, 1800.0)
        watch = Watch(fake.store.lock, meant.kind, matches, query, fake.streaming)

        def begin() -> None:
            try:
                if watch.initial or not query.get("resourceVersion"):
                    fake.wait_until_fresh(cache, version if query.get("resourceVersion") else fake.store.version)
                watch.begin(cache, version, fake.streaming)
            except Refused as refused:
                watch.lines.append(refused.line)
                watch.ending = "end"

        with fake.watching_with(watch, begin, self.connection):
            self.wire.head(200, ALWAYS | {"Transfer-Encoding": "chunked"})
            self._stream(watch, seconds)

    def _stream(self, watch: Watch, seconds: float) -> None:
        fake, began = self.fake, time.monotonic()
        end = began + seconds
        last = end - 2.0  # the last bookmark comes two seconds before the end
        due = min(began + fake.bookmark_seconds, last) if watch.bookmarks and last > began else end
        while True:
            with watch.wake:
                watch.wake.wait_for(lambda: watch.busy, max(0.0, min(due, end) - time.monotonic()))
                watch.wake.wait_for(lambda: watch.busy or not watch.frozen)
                data = b"".join(watch.lines)
                watch.lines.clear()
                ending = watch.ending
                now = time.monotonic()
                if now >= due < end and not ending:  # it would say that events were sent which go to the next watch
                    cache = fake.cache(watch.kind.name)
                    cache.progress()
                    if cache.version >= watch.version:
                        data += bookmark(watch.kind, cache.version)
                    due = min(now + fake.bookmark_seconds, last) if now < last else end
            if data:
                self.wire.lines(data)
            if ending in ("cut", "reset"):
                cut(self.connection, reset=ending == "reset")
                raise Broken
            if ending or now >= end:
                self.wire.whole(LAST_CHUNK)
                return

    def _answer(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        headers = ALWAYS | (headers or {})
        if code == 200 and len(body) > GZIP_FROM and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 1)
            headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding", "Transfer-Encoding": "chunked"}
        elif code == 200 and len(body) > CHUNKED_FROM:
            headers["Transfer-Encoding"] = "chunked"
        else:
            headers["Content-Length"] = str(len(body))
        self.wire.head(code, headers)
        self.wire.whole(chunked(body) if "Transfer-Encoding" in headers else body)
