"""urllib3's connections to one API server, with what a watch needs: a dead peer is noticed, and a read can be broken."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from proxy.errors import SourceError
from proxy.http_proxy import proxy_for
from proxy.kubeconfig import Access, without_password

if TYPE_CHECKING:
    import urllib3

CONNECT_TIMEOUT: Final = 5.0
"""For each of the addresses that a server's name has."""

# A peer that is gone without a word is noticed after a minute, whether we wait or send. (Go's client asks over HTTP/2.)
SOCKET_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
)


class Sockets:
    """The sockets that are open, to break a read that another thread waits in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._closed = False

    def tracked(self, pool: type[Any]) -> type[Any]:
        """The same kind of urllib3 connection pool, whose connections are known here, and keep their `socket`."""
        sockets = self

        class TrackedConnection(pool.ConnectionCls):  # type: ignore[misc, name-defined]
            def connect(self) -> None:
                super().connect()
                self.socket = self.sock  # http.client forgets it when the server says that it will close
                sockets.add(self.sock)

        return type("TrackedPool", (pool,), {"ConnectionCls": TrackedConnection})

    def add(self, sock: socket.socket) -> None:
        with self._lock:
            if self._closed:
                sock.close()
                raise OSError("closed")
            self._open.add(sock)

    def close(self) -> None:
        """Break all, and allow no new ones."""
        with self._lock:
            self._closed = True
            for sock in self._open:
                # The plain socket's shutdown: SSLSocket's takes the TLS state away from the thread that reads with it.
                with contextlib.suppress(OSError, TypeError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)


def manager(
    url: str, access: Access, context: ssl.SSLContext | None, sockets: Sockets, environment: Mapping[str, str]
) -> urllib3.PoolManager:
    """For this server, perhaps by way of a proxy. Raises SourceError for a proxy that cannot be used."""
    import urllib3

    options: dict[str, Any] = {"maxsize": 8, "socket_options": SOCKET_OPTIONS, "ssl_context": context}
    if access.server_name:
        options["server_hostname"] = access.server_name
    # urllib3 compares the names, not OpenSSL: its error says which names the certificate has.
    options["assert_hostname"] = access.verify and (access.server_name or urlsplit(url).hostname)
    proxy = access.proxy or proxy_for(url, environment)
    try:
        made = _through(proxy, options) if proxy else urllib3.PoolManager(**options)
    except (ImportError, ValueError, urllib3.exceptions.HTTPError) as e:  # SOCKS without PySocks; no URL
        cause = f"proxy {without_password(proxy)}: {e}"
        raise SourceError(access.source, cause, "correct proxy-url, or HTTPS_PROXY") from None
    classes = made.pool_classes_by_scheme
    made.pool_classes_by_scheme = {scheme: sockets.tracked(pool) for scheme, pool in classes.items()}
    return made


def _through(proxy: str, options: dict[str, Any]) -> urllib3.PoolManager:
    import urllib3

    parts = urlsplit(proxy)
    if parts.scheme.startswith("socks"):
        from urllib3.contrib.socks import SOCKSProxyManager

        return SOCKSProxyManager(proxy, **options)
    headers = {}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers = urllib3.make_headers(proxy_basic_auth=pair)
    return urllib3.ProxyManager(proxy, proxy_headers=headers, **options)
