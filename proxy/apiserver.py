"""The API server as a source of objects: requests to it, and a thread for each resource that is watched.

urllib3 is imported when a connection is made, not with this module: who reads manifests does not pay for it.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import structlog

from proxy.connection_errors import words
from proxy.connections import CONNECT_TIMEOUT, Sockets, manager
from proxy.credentials import Credentials
from proxy.errors import SourceError
from proxy.events import Failed, Inbox
from proxy.kubeconfig import read_access
from proxy.measures import Requests
from proxy.memory import return_large_blocks
from proxy.reading import read
from proxy.resources import resources
from proxy.trouble import BROKEN, SILENT, UNREACHABLE, Trouble, retry_after
from proxy.watch import Watcher
from proxy.watch_stream import Prepare

if TYPE_CHECKING:
    import urllib3

STOP_TIMEOUT: Final = 1.0
READ_SIZE: Final = 256 << 10
USER_AGENT: Final = "kube-proxy-nft"

log = structlog.get_logger()


class Reply(NamedTuple):
    """The answer to `Connection.send`. retry_after: seconds, 0 when the server did not say."""

    status: int
    body: bytes
    retry_after: float


class Connection:
    """How to reach the API server, and with which credentials. Threads may share it.

    kubeconfig: path of a file whose current context is used; '' for the service account of the pod we run in.
    server: a URL to use instead of the kubeconfig's, or several with commas between them; one of them is used until it
    fails, which one at first is left to chance. Without a kubeconfig, no credentials are sent there.
    Raises SourceError when the configuration cannot be used; whether a server answers is not tried.
    `requests` counts what was asked.
    """

    def __init__(
        self,
        kubeconfig: str = "",
        server: str = "",
        *,
        environment: Mapping[str, str] = os.environ,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self.requests = Requests()
        self._environment = environment
        self._lock = threading.Lock()
        self._sockets = Sockets()
        self._refused = False
        self._credentials = Credentials(lambda: read_access(kubeconfig, server, environment), kubeconfig)
        servers = self._credentials.access.servers
        self._server = servers[int(rand() * len(servers))]  # so that not all nodes come to the first
        self._answering = self._server  # the last that did
        self._managers: dict[str, urllib3.PoolManager] = {}
        self._managers_of = 0
        self._renew()
        if not self._credentials.access.verify:
            import urllib3

            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # say it once, and in our own log
            remedy = "set certificate-authority instead"
            cause = "insecure-skip-tls-verify is set"
            log.warning("api_certificate_not_verified", server=self.server, cause=cause, remedy=remedy)

    @property
    def files(self) -> list[str]:
        """Those that are read again while we run."""
        return self._credentials.files

    @property
    def server(self) -> str:
        """host:port of the one in use, for people."""
        return _host(self._server)

    @contextlib.contextmanager
    def get(self, path: str, *, read_timeout: float, compressed: bool = False) -> Iterator[Answer]:
        """GET `path` (with its query). `read_timeout`: the longest silence, in seconds. Raises Trouble(UNREACHABLE)."""
        answer = self._request("GET", path, read_timeout, {"Accept-Encoding": "gzip" if compressed else "identity"})
        with contextlib.closing(answer):
            yield answer

    def send(
        self, method: str, path: str, body: bytes, *, content_type: str = "application/json", read_timeout: float = 10.0
    ) -> Reply:
        """Make a request with a body, and read the answer. Raises Trouble(UNREACHABLE) when there is none."""
        with contextlib.closing(
            self._request(method, path, read_timeout, {"Content-Type": content_type}, body)
        ) as answer:
            seconds = retry_after(answer.header("Retry-After"), answer.header("Date"))
            return Reply(answer.status, answer.read(), seconds)

    def close(self) -> None:
        """Break all connections, also those that a thread waits on, and allow no new ones."""
        self._sockets.close()

    def _request(
        self, method: str, path: str, read_timeout: float, headers: dict[str, str], body: bytes | None = None
    ) -> Answer:
        """What the first server says that can; what the last one says if none can. Raises Trouble(UNREACHABLE)."""
        import urllib3

        timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT, read=read_timeout)
        tried: set[str] = set()
        while True:
            with _troubles(UNREACHABLE), self._lock:
                server, pool, always = self._prepare()
                tried.add(server)
                is_last = tried >= set(self._managers)
            code, began = "<error>", time.perf_counter()
            try:
                with _troubles(UNREACHABLE):
                    response = pool.request(
                        method,
                        server + path,
                        body=body,
                        headers=always | headers,
                        timeout=timeout,
                        retries=False,  # nor redirects: the answer comes as it is
                        preload_content=False,
                    )
                code = str(response.status)
            except Trouble:
                self._avoid(server)
                if is_last:
                    raise
                continue
            finally:
                seconds = time.perf_counter() - began
                self.requests.made(_host(server), method, code, seconds, is_watch="watch=" in path)
            if response.status == 401:
                self._refused = True
            if response.status >= 500:
                self._avoid(server)
                if not is_last:
                    response.close()
                    continue
            elif server != self._answering:
                log.info("api_server_changed", server=_host(server), before=_host(self._answering))
                self._answering = server
            return Answer(response, _host(server), partial(self._avoid, server))

    def _prepare(self) -> tuple[str, urllib3.PoolManager, dict[str, str]]:
        """What a request needs, as the files say now."""
        refused, self._refused = self._refused, False
        authorization = self._credentials.refresh(refused)
        self._renew()
        headers = {"Accept": "application/json", "User-Agent": USER_AGENT} | authorization
        return self._server, self._managers[self._server], headers

    def _renew(self) -> None:
        """Connections with new credentials, if there are any. Those that are in use live on until they end."""
        credentials = self._credentials
        if self._managers_of == credentials.version:
            return
        access = credentials.access
        made = {
            url: manager(url, access, credentials.context, self._sockets, self._environment) for url in access.servers
        }
        for old in self._managers.values():
            old.clear()
        self._managers, self._managers_of = made, credentials.version
        if self._server not in made:
            self._server = access.servers[0]

    def _avoid(self, server: str) -> None:
        with self._lock:
            servers = list(self._managers)
            if server == self._server and len(servers) > 1:
                self._server = servers[(servers.index(server) + 1) % len(servers)]


class Answer:
    """What a server answered: see proxy.watch.Answer."""

    def __init__(self, response: urllib3.BaseHTTPResponse, server: str, avoid: Callable[[], None]) -> None:
        self._response, self._socket = response, getattr(response.connection, "socket", None)
        self.server, self.avoid = server, avoid

    @property
    def status(self) -> int:
        return self._response.status

    def header(self, name: str) -> str:
        return self._response.headers.get(name, "")

    def wait_up_to(self, seconds: float) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it is closed: reading will say so
                self._socket.settimeout(seconds)

    def read(self) -> bytes:
        with self._reading(UNREACHABLE, UNREACHABLE):
            return self._response.read()

    def pieces(self) -> Iterator[bytes]:
        with self._reading(BROKEN, SILENT):
            while piece := self._response.read1(READ_SIZE):
                yield piece

    def close(self) -> None:
        self._response.close()

    @contextlib.contextmanager
    def _reading(self, broken: int, silent: int) -> Iterator[None]:
        try:
            with _troubles(broken, silent):
                yield
        except Trouble:
            self.avoid()
            raise


class ApiSource:
    """Tells `inbox` of the Services, EndpointSlices and ServiceCIDRs of the cluster and of this Node, for ever.

    watchers: one for each resource, to look at.
    """

    def __init__(self, connection: Connection, inbox: Inbox, node_name: str, prepare: Prepare = read) -> None:
        self._connection, self._inbox = connection, inbox
        self._stop = threading.Event()
        self.watchers = tuple(
            Watcher(connection, resource, inbox, self._stop, prepare=prepare) for resource in resources(node_name)
        )
        self._threads = [
            threading.Thread(target=self._run, args=(watcher,), name=f"watch-{watcher.kind}", daemon=True)
            for watcher in self.watchers
        ]

    @property
    def left_out(self) -> int:
        """How many objects cannot be read, now."""
        return sum(len(watcher.left_out) for watcher in self.watchers)

    def start(self) -> None:
        """Begin. Returns at once, also when the server is away: then it is tried again and again."""
        return_large_blocks()
        log.info("api_source_started", server=self._connection.server)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads and close the connection. Takes a second at most."""
        self._stop.set()
        self._connection.close()
        deadline = time.monotonic() + STOP_TIMEOUT
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, watcher: Watcher) -> None:
        try:
            watcher.run()
        except Exception as e:  # a bug: without this the agent would go on with objects that grow old
            self._inbox.put(Failed(e))


@contextlib.contextmanager
def _troubles(status: int, silent: int | None = None) -> Iterator[None]:
    """Whatever can go wrong on the way to the server, as Trouble of this status; a time-out as one of its own."""
    import urllib3

    try:
        yield
    except SourceError as e:
        raise Trouble(status, str(e)) from e
    except (urllib3.exceptions.TimeoutError, TimeoutError) as e:
        raise Trouble(status if silent is None else silent, words(e)) from e
    except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as e:
        raise Trouble(status, words(e)) from e


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]
