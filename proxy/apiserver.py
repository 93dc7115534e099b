"""The API server as a source of objects: how to connect, and a thread for each resource that is watched.

The `kubernetes` package finds and refreshes credentials and sets up TLS and proxies; its models are not used. It is
imported when a connection is made, not with this module: who reads manifests does not pay for it (0.3 s, 20 MB).
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import structlog

from proxy.errors import SourceError
from proxy.events import Failed, Inbox
from proxy.watch import BROKEN, UNREACHABLE, Trouble, Watcher, resources

if TYPE_CHECKING:
    import urllib3
    from kubernetes.client import Configuration

CONNECT_TIMEOUT: Final = 10.0
STOP_TIMEOUT: Final = 1.0
READ_SIZE: Final = 256 << 10
USER_AGENT: Final = "kube-proxy-nft"
IN_CLUSTER: Final = "in-cluster configuration"

log = structlog.get_logger()


class Connection:
    """How to reach one API server, and with which credentials. Threads may share it.

    `kubeconfig`: path of a file whose current context is used; '' for the service account of the pod we run in.
    `server`: an address to use instead of the kubeconfig's; without a kubeconfig, no credentials are sent to it.
    Raises SourceError when the configuration cannot be used; whether the server answers is not tried.
    """

    def __init__(self, kubeconfig: str = "", server: str = "") -> None:
        self._kubeconfig, self._server = kubeconfig, server
        self._lock = threading.Lock()
        self._sockets = _Sockets()
        self._stale = False
        self._load()
        if not self._settings.verify_ssl:
            import urllib3

            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # say it once, and in our own log
            log.warning("api_certificate_not_verified", server=self.server, cause="insecure-skip-tls-verify is set")

    @property
    def server(self) -> str:
        """host:port, for people."""
        return urlsplit(self._base).netloc.rpartition("@")[2]

    @contextlib.contextmanager
    def get(self, path: str, *, read_timeout: float, compressed: bool = False) -> Iterator[Answer]:
        """GET `path` (with its query). `read_timeout`: the longest silence, in seconds. Raises Trouble(UNREACHABLE)."""
        import urllib3

        with _troubles(UNREACHABLE), self._lock:
            if self._stale:
                self._load()
            url, manager, headers = self._base + path, self._manager, self._headers()
        try:
            with _troubles(UNREACHABLE):
                response = manager.request(
                    "GET",
                    url,
                    headers=headers | {"Accept-Encoding": "gzip" if compressed else "identity"},
                    timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT, read=read_timeout),
                    retries=False,  # nor redirects: the answer comes as it is
                    preload_content=False,
                )
        except Trouble as trouble:
            self._stale |= isinstance(trouble.__cause__, urllib3.exceptions.SSLError)
            raise
        # Files with credentials are replaced while we run (tokens hourly, certificates sometimes), and the package
        # reads those that a kubeconfig names only once. A refusal is the moment to read everything again.
        self._stale |= response.status == 401
        try:
            yield Answer(response)
        finally:
            response.close()

    def close(self) -> None:
        """Break all connections, also those that a thread waits on, and allow no new ones."""
        self._sockets.close()

    def _load(self) -> None:
        from kubernetes.client.rest import RESTClientObject

        source = self._kubeconfig or IN_CLUSTER
        settings = _settings(self._kubeconfig, self._server)
        settings.keep_alive = True  # finds a dead peer in a minute or two; the read timeout of a watch takes ten
        _check_tls(source, settings)
        try:
            manager = RESTClientObject(settings).pool_manager
        except (ImportError, ValueError) as e:  # SOCKS without PySocks; a proxy URL that is none
            raise SourceError(source, f"proxy {_without_password(settings.proxy)}: {e}", "correct proxy-url") from None
        manager.pool_classes_by_scheme = {
            scheme: self._sockets.tracked(pool) for scheme, pool in manager.pool_classes_by_scheme.items()
        }
        self._settings, self._manager, self._base = settings, manager, settings.host.rstrip("/")
        self._headers()
        self._stale = False

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": USER_AGENT}
        # Asking for the key runs the package's refresh hook: token files of pods, exec plugins, when they are due.
        with _complaints() as said:
            token = self._settings.get_api_key_with_prefix("BearerToken", alias="authorization")
        if said:
            log.warning("api_credentials_not_refreshed", cause="; ".join(said))
        if token:
            headers["Authorization"] = token.strip()
            if not (token.strip().isascii() and token.strip().isprintable()):
                remedy = "write the token alone, on one line"
                raise SourceError(self._kubeconfig or IN_CLUSTER, "the token has characters that no token has", remedy)
        return headers


class Answer:
    """What the server answered: see proxy.watch.Answer."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status

    def header(self, name: str) -> str:
        return self._response.headers.get(name, "")

    def read(self) -> bytes:
        with _troubles(UNREACHABLE):
            return self._response.read()

    def pieces(self) -> Iterator[bytes]:
        with _troubles(BROKEN):
            while piece := self._response.read1(READ_SIZE):
                yield piece


class ApiSource:
    """Tells `inbox` of the Services, EndpointSlices and ServiceCIDRs of the cluster and of this Node, for ever."""

    def __init__(self, connection: Connection, inbox: Inbox, node_name: str) -> None:
        self._connection, self._inbox = connection, inbox
        self._stop = threading.Event()
        self._watchers = [Watcher(connection, resource, inbox, self._stop) for resource in resources(node_name)]
        self._threads = [
            threading.Thread(target=self._run, args=(watcher,), name=f"watch-{watcher.kind}", daemon=True)
            for watcher in self._watchers
        ]

    @property
    def left_out(self) -> int:
        """How many objects cannot be read, now."""
        return sum(len(watcher.left_out) for watcher in self._watchers)

    def start(self) -> None:
        """Begin. Returns at once, also when the server is away: then it is tried again and again."""
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


# -- Configuration -----------------------------------------------------------------------------------------------------


def _settings(kubeconfig: str, server: str) -> Configuration:
    """What the kubeconfig, or the pod, says about the server and the credentials."""
    import yaml
    from kubernetes import client, config

    settings = client.Configuration(host="")
    source = kubeconfig or IN_CLUSTER
    with _complaints() as said:
        try:
            if kubeconfig:
                with open(kubeconfig, "rb"):
                    pass  # for the error: the package passes over a file that it cannot find
                config.load_kube_config(  # type: ignore[no-untyped-call]
                    kubeconfig, client_configuration=settings, persist_config=False
                )
            elif not server:
                config.load_incluster_config(settings)  # type: ignore[no-untyped-call]
        except OSError as e:
            remedy = "check the path and its permissions"
            raise SourceError(e.filename or source, e.strerror or str(e), remedy) from None
        except yaml.MarkedYAMLError as e:  # without the snippet that str() has: it may show a token
            line = f" in line {e.problem_mark.line + 1}" if e.problem_mark else ""
            raise SourceError(source, f"not YAML: {e.problem}{line}", "write a valid kubeconfig") from None
        except yaml.YAMLError:
            raise SourceError(source, "not YAML: it has bytes that no text has", "write a valid kubeconfig") from None
        except config.ConfigException as e:
            cause = _without_secrets(e)
            if kubeconfig:
                remedy = "try it with: kubectl --kubeconfig FILE get services"
            else:
                remedy = "run in a pod with a service account, or name a kubeconfig"
            raise SourceError(source, cause, remedy) from None
        except (ValueError, TypeError, KeyError, AttributeError) as e:  # what the package says of misshapen files
            cause = f"not a kubeconfig ({type(e).__name__})"
            raise SourceError(source, cause, "try it with: kubectl --kubeconfig FILE get services") from None
    if said:  # the package reports a failing exec plugin here, and would go on without credentials
        raise SourceError(source, "; ".join(said), "run the credential plugin of the current user by hand")
    if server:
        settings.host = server
    if urlsplit(settings.host).scheme not in ("http", "https") or not urlsplit(settings.host).hostname:
        shown = _without_password(settings.host) or "none"
        raise SourceError(source, f"the server's address is {shown}", "write it as https://HOST:PORT")
    return settings


def _check_tls(source: str, settings: Configuration) -> None:
    """Read the certificates now: urllib3 would find out at the first connection, and call it a network error."""
    import ssl

    if not settings.host.startswith("https:"):
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    files = settings.ssl_ca_cert
    try:
        if settings.ssl_ca_cert:
            context.load_verify_locations(settings.ssl_ca_cert)
        if settings.cert_file:
            files = f"{settings.cert_file} and {settings.key_file}"
            context.load_cert_chain(settings.cert_file, settings.key_file)
    except OSError as e:  # ssl.SSLError is one
        what = (
            "client certificate and key" if settings.cert_file and files != settings.ssl_ca_cert else "CA certificate"
        )
        raise SourceError(source, f"{what} in {files}: {_words(e)}", "they must be PEM") from None


@contextlib.contextmanager
def _complaints() -> Iterator[list[str]]:
    """What the package says through `logging`'s root while inside."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == threading.get_ident() and record.name == "root":
                said.append(" ".join(record.getMessage().split()))

    listener = Listener(logging.ERROR)
    logging.getLogger().addHandler(listener)
    try:
        yield said
    finally:
        logging.getLogger().removeHandler(listener)


# -- Connections -------------------------------------------------------------------------------------------------------


class _Sockets:
    """The sockets that urllib3 has open, to break a read that another thread waits in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._closed = False

    def tracked(self, pool: type[Any]) -> type[Any]:
        """The same kind of urllib3 connection pool, whose connections are known here."""
        sockets = self

        class TrackedConnection(pool.ConnectionCls):  # type: ignore[misc, name-defined]
            def connect(self) -> None:
                super().connect()
                sockets.add(self.sock)

        return type("TrackedPool", (pool,), {"ConnectionCls": TrackedConnection})

    def add(self, sock: socket.socket) -> None:
        with self._lock:
            if self._closed:
                sock.close()
                raise OSError("closed")
            self._open.add(sock)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for sock in self._open:
                # The plain socket's shutdown: SSLSocket's takes the TLS state away from the thread that reads with it.
                with contextlib.suppress(OSError, TypeError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)


@contextlib.contextmanager
def _troubles(status: int) -> Iterator[None]:
    """Whatever can go wrong on the way to the server, as Trouble of this status."""
    import urllib3
    from kubernetes.config import ConfigException

    try:
        yield
    except SourceError as e:
        raise Trouble(status, str(e)) from e
    except ConfigException as e:  # of the refresh hook: a token file that is empty just now
        raise Trouble(status, f"credentials: {_without_secrets(e)}") from e
    except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as e:
        raise Trouble(status, _words(e)) from e


def _words(error: BaseException) -> str:
    """The innermost cause, in a line that is the same for the same cause (urllib3's own words hold an object's id)."""
    inner = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    if isinstance(inner, TimeoutError):
        return "timed out"
    if isinstance(inner, http.client.IncompleteRead):
        return "the connection was closed in the middle of an answer"
    text = getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
    return " ".join(text.split())


def _without_secrets(error: Exception) -> str:
    """The package names a place in a kubeconfig by all that is written there, credentials too: cut that off."""
    return " ".join(str(error).split("/{")[0].split())


def _without_password(url: str | None) -> str:
    parts = urlsplit(url or "")
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
