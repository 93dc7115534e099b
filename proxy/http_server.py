"""Small HTTP servers: one thread listens on any number of addresses, whoever may ask and however slowly."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import math
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import structlog
from msgspec import Struct

from proxy.http_connections import Answer, Connections, Spot, Wrap
from proxy.listening import listening
from rules.objects import Family

LOG = structlog.get_logger()

BACKLOG: Final = 1024
"""How many may wait to be taken in. Who finds no room tries again after a second, or gives up: more is better."""
RECEIVE_BUFFER: Final = 1 << 14
"""Of each that waits, or is taken in: requests are small, and what is in the kernel is our memory, too."""
ACCEPT_AT_ONCE: Final = 128
"""Then those that are taken in have their turn."""
ACCEPT_PAUSE: Final = 1.0
FULL_TOLD_SECONDS: Final = 60.0
"""Between two warnings that nobody can be taken in."""
RETRY_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Waits between tries to listen where it was not possible (another program has the port, the address is not there)."""

_CAUSES: Final = {
    errno.EADDRINUSE: "another program listens on this port",
    errno.EADDRNOTAVAIL: "no interface of this node has this address (yet)",
    errno.EMFILE: "too many files are open",
    errno.EACCES: "permission denied",
    errno.EAFNOSUPPORT: "this kernel does not have this IP family",
}
_REMEDIES: Final = {
    errno.EMFILE: "raise the limit of open files",
    errno.EACCES: "give CAP_NET_BIND_SERVICE, or a port above 1023",
}


class Site(Struct, frozen=True):
    """What is served. `name` begins its log events (NAME_listening ...). `answer` is called in the server's thread, must
    not block, and returns None where nobody is (any more): the client is hung up on. `remedies`: what to do when it is
    not possible to listen, by errno. `details`: what a log event about a port says besides its number. `wrap`: for TLS.
    """

    name: str
    answer: Answer
    remedies: Mapping[int, str] = {}
    details: Callable[[int], Mapping[str, str]] = lambda _port: {}
    wrap: Wrap | None = None


def spots(host: str, port: int, families: Collection[Family]) -> frozenset[Spot]:
    """Where a server listens that is to listen on `host`: an unspecified one, of either family, means every address of
    all `families`, as in Go's programs."""
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        return frozenset((bytes(family.address_size), port) for family in families)
    return frozenset([(address.packed, port)])


class HttpServer:
    """A thread from `start` to `stop`. Sockets are of the network namespace of the thread that starts it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread, Listeners] | None = None

    def start(self) -> Listeners:
        """Returns what is to be used in the server's thread only: see `call`."""
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(self._report)
        name = f"{self._site.name.replace('_', '-')}-server"
        thread = threading.Thread(target=loop.run_forever, name=name, daemon=True)
        listeners = Listeners(loop, self._site)
        self._running = loop, thread, listeners
        thread.start()
        return listeners

    def call(self, action: Callable[..., None], *arguments: object) -> None:
        """Call it in the server's thread, after all that was to be called before; returns at once."""
        if self._running:
            self._running[0].call_soon_threadsafe(action, *arguments)

    def stop(self) -> None:
        """Close all ports and connections, end the thread and wait for it. Does nothing if there is none."""
        if self._running:
            loop, thread, listeners = self._running
            loop.call_soon_threadsafe(listeners.close)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
            self._running = None

    def _report(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback failed; the loop goes on."""
        LOG.error(f"{self._site.name}_failure", exc_info=context.get("exception"), remedy="report this bug")


class Listeners:
    """The sockets. Everything runs in the loop's thread, as callbacks that do not wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop, site: Site) -> None:
        self.loop, self.site = loop, site
        self.connections = Connections(loop, site.answer, site.wrap)
        self._sockets: dict[Spot, socket.socket] = {}
        self._retries: dict[Spot, asyncio.TimerHandle] = {}
        self._full_told = -math.inf

    def listen(self, wanted: Collection[Spot], ready: Mapping[Spot, socket.socket] | None = None) -> None:
        """Listen there and nowhere else. `ready`: sockets that listen already, and are ours from now on."""
        # The old ones first: a socket for all addresses cannot be where there is one for some.
        for spot in (self._sockets.keys() | self._retries.keys()) - set(wanted):
            self._close(spot)
        for spot, sock in (ready or {}).items():
            self._take(spot, sock)
        for spot in set(wanted) - self._sockets.keys() - self._retries.keys():
            self._listen(spot)

    def close(self) -> None:
        self.listen(())
        self.connections.close()

    def _close(self, spot: Spot) -> None:
        if sock := self._sockets.pop(spot, None):
            self.loop.remove_reader(sock)
            sock.close()
        if retry := self._retries.pop(spot, None):
            retry.cancel()

    def _listen(self, spot: Spot, tries: int = 0) -> None:
        """Listen; if that is not possible, say so once and try it again later."""
        self._retries.pop(spot, None)
        address, port = str(ipaddress.ip_address(spot[0])), spot[1]
        try:
            sock = listen_at(spot)
        except OSError as error:
            if not tries:
                cause, remedy = explain(error, self.site)
                then = f"{remedy}; it is tried again and again"
                details = self.site.details(port)
                LOG.warning(
                    f"{self.site.name}_not_listening", **details, address=address, port=port, cause=cause, remedy=then
                )
            wait = RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
            self._retries[spot] = self.loop.call_later(wait, self._listen, spot, tries + 1)
            return
        if tries:
            LOG.info(f"{self.site.name}_listening", address=address, port=port, tries=tries + 1)
        self._take(spot, sock)

    def _take(self, spot: Spot, sock: socket.socket) -> None:
        self._sockets[spot] = sock
        self.loop.add_reader(sock, self._accept, spot)

    def _accept(self, spot: Spot) -> None:
        """Take in those that wait, but not too many at once."""
        sock = self._sockets[spot]
        for _ in range(ACCEPT_AT_ONCE):
            try:
                accepted, peer = sock.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it is gone again
            except OSError as error:
                # No descriptors or no memory. To be called again at once would not help.
                self._report_full(spot, error)
                self.loop.remove_reader(sock)
                self.loop.call_later(ACCEPT_PAUSE, self._accept_again, spot)
                return
            self.connections.add(accepted, peer[0], spot)

    def _report_full(self, spot: Spot, error: OSError) -> None:
        now = self.loop.time()
        if now - self._full_told > FULL_TOLD_SECONDS:
            self._full_told = now
            cause, remedy = explain(error, self.site)
            event = f"{self.site.name}_not_accepted"
            LOG.warning(event, port=spot[1], cause=cause, then="clients wait", remedy=remedy)

    def _accept_again(self, spot: Spot) -> None:
        if sock := self._sockets.get(spot):
            self.loop.add_reader(sock, self._accept, spot)


def listen_at(spot: Spot) -> socket.socket:
    """A socket that listens there and does not block. Raises OSError."""
    sock = listening(str(ipaddress.ip_address(spot[0])), spot[1], BACKLOG)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)  # those that it accepts have it, too
    return sock


def explain(error: OSError, site: Site) -> tuple[str, str]:
    """Why it is not possible to listen, and what to do."""
    code = error.errno or 0
    cause = _CAUSES.get(code, error.strerror or str(error))
    return cause, site.remedies.get(code) or _REMEDIES.get(code, "see the cause")
