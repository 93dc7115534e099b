"""A stand-in for the API server: enough of it for a Service proxy, and faults on demand.

It answers as a real kube-apiserver v1.36 does: tests/test_standin_recorded.py holds it to recorded exchanges, and
test_standin_lists, _watches, _access and _events to a running one. Objects are plain dicts.

    with FakeApi() as api:
        api.put({"kind": "Service", "metadata": {"name": "web", "namespace": "default"}, "spec": {...}})
        connection = Connection(api.kubeconfig(tmp_path / "kubeconfig"))

Several of them may share one `store`, as API servers share etcd. By hand: python -m integration.apiserver --help
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from integration.apiserver import access
from integration.apiserver.cache import Cache
from integration.apiserver.faults import FOLLOWED, Fault
from integration.apiserver.handler import Handler
from integration.apiserver.hangups import Hangups
from integration.apiserver.kinds import ALL, KINDS, Target
from integration.apiserver.load import load
from integration.apiserver.mischief import Mischief
from integration.apiserver.status import Object, error_line, status, too_large
from integration.apiserver.store import Change, Store
from integration.apiserver.watches import Watch

__all__ = ["KINDS", "FakeApi", "Object", "Request", "Store", "error_line", "load", "status"]


@dataclass
class Request:
    verb: str  # list, watch, get
    kind: str
    path: str  # with the query
    query: dict[str, str]
    headers: dict[str, str]


@dataclass
class FakeApi(Mischief):
    """The server. Start it with `with` or start(); methods may be called from any thread, also before the start."""

    port: int = 0
    token: str = ""  # of the user 'admin'. No token at all: anybody may do anything
    tls: tuple[str, str] | None = None  # certificate and key, paths of PEM files; read anew for each connection
    client_ca: str = ""  # with tls: clients need a certificate of this authority; its CN is the user
    watch_seconds: float = 0.0  # ends watches after so long, whatever they ask for; 0 = as they ask
    bookmark_seconds: float = 60.0
    absent: set[str] = field(default_factory=set)  # kinds that this server does not know: 404

    requests: list[Request] = field(default_factory=list, repr=False)  # GETs, but for those refused with 401
    posted: list[tuple[str, Object]] = field(default_factory=list)  # path and object of each POST, whatever came of it
    patched: list[tuple[str, Object]] = field(default_factory=list)

    tokens: dict[str, str] = field(default_factory=dict)  # further tokens, and whose they are
    rules: dict[str, list[Object]] = field(default_factory=dict)  # user -> rules as in a ClusterRole; not here: all
    ca: str = ""  # what kubeconfig() names as the authority; '' = the certificate itself
    streaming: str = "on"  # what sendInitialEvents does: see watches.STREAMING
    patience: float = 0.1  # how long a version is waited for that the cache does not have; a real server's is 3 s
    buffer: int = 0  # lines that a watch may be behind before it is ended; 0 = any number
    ready: bool = True  # what /readyz says
    store: Store = field(default_factory=Store, repr=False)
    host: str = "127.0.0.1"  # the address to listen on

    def __post_init__(self) -> None:
        Mischief.__init__(self)
        self._lock = self.store.lock
        self._asked = threading.Condition(self._lock)
        self._moved = threading.Condition(self._lock)
        self._server: ThreadingHTTPServer | None = None
        self._hangups: Hangups | None = None
        self._connections: set[socket.socket] = set()
        with self._lock:
            self._caches = {kind: Cache(self.store, kind, self._tell) for kind in ALL}
            self.store.followers.append(lambda change: self._caches[change.kind].feed(change))

    # Objects

    @property
    def version(self) -> int:
        """The newest resourceVersion. To set it is to have had changes of other kinds."""
        return self.store.version

    @version.setter
    def version(self, version: int) -> None:
        with self._lock:
            self.store.version = version
            for cache in self._caches.values():
                cache.progress()

    def put(self, obj: Object) -> int:
        """Create or change an object; its kind is in it. Returns its new resourceVersion."""
        return self.store.put(obj).version

    def put_all(self, objects: Iterable[Object]) -> int:
        """Put them in one go: no client sees some of them. Returns the last resourceVersion."""
        with self._lock:
            for obj in objects:
                self.store.put(obj)
            return self.store.version

    def delete(self, kind: str, namespace: str, name: str) -> int:
        """Delete an object ('' is the namespace of Nodes and ServiceCIDRs). KeyError when there is none."""
        return self.store.delete(kind, (namespace, name))

    def objects(self, kind: str) -> list[Object]:
        """Those that there are now, Events too."""
        with self._lock:
            return [stored.read() for stored in self.store.objects[kind].values()]

    def held(self) -> contextlib.AbstractContextManager[object]:
        """Nothing is answered while inside, and clients see what happened there as one."""
        return self._lock

    def compact(self) -> None:
        """Forget the history: a watch from an older version gets 410 in its stream."""
        with self._lock:
            self.store.compact()
            for cache in self._caches.values():
                cache.progress()
                cache.forget()

    # To wait for what the other side does

    def wait_for(self, done: Callable[[], bool], timeout: float = 10.0) -> None:
        """Wait until `done()`; it is asked whenever a request arrives or a watch begins or ends."""
        with self._asked:
            if not self._asked.wait_for(done, timeout):
                raise AssertionError("the client did not do what was waited for: " + repr(self.asked()[-8:]))

    def watching(self, *kinds: str) -> bool:
        """Whether there is a running watch of each of these kinds (none named: of all four)."""
        with self._lock:
            return {watch.kind.name for watch in self._watches if not watch.ending} >= set(kinds or KINDS)

    def asked(self, kind: str = "") -> list[str]:
        """The lists and watches so far, in order: 'list' or 'watch' for each."""
        with self._lock:
            return [r.verb for r in self.requests if kind in ("", r.kind) and r.verb in FOLLOWED]

    # Life

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    def kubeconfig(self, path: Path, **user: str) -> str:
        """Write a kubeconfig for this server to `path`; `user` adds to the user's entries, '_' for '-'."""
        cluster = {"server": self.url} | ({"certificate-authority": self.ca or self.tls[0]} if self.tls else {})
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
        """Begin to answer; after stop(), again on the same port. Sockets are of the calling thread's namespace."""
        handler = type("BoundHandler", (Handler,), {"fake": self})
        server = _Server((self.host, self.port), handler)
        self.port = server.server_address[1]
        self._hangups = Hangups()
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.02,), name="fakeapi", daemon=True).start()
        return self

    def stop(self) -> None:
        """Break all connections and refuse new ones. The objects stay, and the history."""
        if not self._server:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        self.cut_watches()
        with self._lock:
            self._set_free()
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
        if self._hangups:
            self._hangups.stop()
            self._hangups = None

    def restart(self) -> None:
        """Stop, and start with new caches: a watch from a version before now gets 410, as from a real server."""
        self.stop()
        with self._lock:
            for cache in self._caches.values():
                cache.restart()
        self.start()

    def __enter__(self) -> FakeApi:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # For the handler

    def cache(self, kind: str) -> Cache:
        return self._caches[kind]

    def _tell(self, change: Change) -> None:
        for watch in self._watches:
            if watch.kind.name == change.kind:
                watch.offer(change)
                if self.buffer and len(watch.lines) > self.buffer:
                    watch.finish("end")
        self._moved.notify_all()

    def wait_until_fresh(self, cache: Cache, version: int) -> None:
        """Wait for the cache to have this version. Raises Refused(504) if it does not come."""
        with self._lock:
            if cache.version < version:
                cache.progress()
                if not self._moved.wait_for(lambda: cache.version >= version, self.patience):
                    raise too_large(version, cache.version)

    def note(
        self, verb: str, kind: str, path: str, query: dict[str, str], headers: dict[str, str], body: bytes
    ) -> tuple[threading.Event, Fault | None]:
        """Remember a request. Returns what releases it, and the fault that meets it."""
        with self._lock:
            if verb in ("create", "patch"):
                with contextlib.suppress(ValueError):
                    (self.posted if verb == "create" else self.patched).append((path, json.loads(body)))
            elif verb in ("list", "watch", "get"):
                self.requests.append(Request(verb, kind, path, query, headers))
            self._asked.notify_all()
            return self.release, self._faults.take(kind, verb, path)

    def all_tokens(self) -> dict[str, str]:
        return ({self.token: "admin"} if self.token else {}) | self.tokens

    def authorize(self, user: str, verb: str, target: Target, name: str) -> None:
        """Raise Refused(403) for what this user may not do."""
        plural = target.kind.plural
        open_to_all = user != access.ANONYMOUS and user not in self.rules
        if (
            (plural, verb) in self._forbidden
            or (plural, "*") in self._forbidden
            or not (open_to_all or access.allowed(self.rules.get(user, []), verb, target.kind, name))
        ):
            raise access.forbidden(user, verb, target.kind, target.namespace, name)

    @contextlib.contextmanager
    def watching_with(self, watch: Watch, begin: Callable[[], None], connection: socket.socket) -> Iterator[None]:
        """The watch is known from its beginning to its end, which comes when its client closes the connection, too."""
        hangups = self._hangups
        with self._lock:
            begin()
            self._watches.append(watch)
            self._asked.notify_all()
        try:
            with contextlib.ExitStack() as stack:
                if hangups:
                    stack.enter_context(hangups.watched(connection, lambda: self._gone(watch)))
                yield
        finally:
            with self._lock:
                self._watches.remove(watch)
                self._asked.notify_all()

    def _gone(self, watch: Watch) -> None:
        with self._lock:
            watch.finish("cut")
            self._asked.notify_all()

    def connected(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)

    def disconnected(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)

    def tls_context(self) -> ssl.SSLContext:
        assert self.tls
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.tls)
        if self.client_ca:
            context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a handshake that failed, a client that went: they know
            super().handle_error(request, client_address)
