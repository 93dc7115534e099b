"""The servers of proxy.health_checks: one thread listens on all ports, whoever may ask and however slowly."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from proxy.health_checks import MAX_REQUEST, HealthCheck, HealthChecks, answer
from proxy.services import Name
from rules.objects import Family

LOG = structlog.get_logger()

REQUEST_SECONDS: Final = 5.0
"""How long a client may take for its request and for our answer together."""
MAX_CONNECTIONS: Final = 256
"""When more are open, the one that is open longest is dropped: an honest client is done in milliseconds."""
MAX_ADDRESSES: Final = 64
"""Where more than so many addresses of a family are wanted, one socket listens on all that the node has."""
BACKLOG: Final = 128
ACCEPT_PAUSE: Final = 1.0
RETRY_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Waits between tries to listen where it was not possible (another program has the port, the address is not there)."""

Addresses = Mapping[Family, frozenset[bytes]]
Spot = tuple[bytes, int]
"""Where to listen: a packed address and a port."""

_CAUSES: Final = {
    errno.EADDRINUSE: ("another program listens on this port", "stop it, or give the Service another port"),
    errno.EADDRNOTAVAIL: ("no interface of this node has this address (yet)", "check nodePortAddresses"),
    errno.EMFILE: ("too many files are open", "raise the limit of open files"),
    errno.EACCES: ("permission denied", "give CAP_NET_BIND_SERVICE, or the Service a port above 1023"),
}


class HealthServer:
    """Answers health checks from a thread, which is there from the first one on until `stop`.

    healthy: whether this proxy does its work; it is called in that thread, and must not block.
    Sockets are of the network namespace of the thread that makes the first `update` with a check.
    """

    def __init__(self, healthy: Callable[[], bool]) -> None:
        self._healthy = healthy
        self._addresses: Addresses = {}
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread, _Listeners] | None = None

    def update(self, changes: Mapping[Name, HealthCheck | None], addresses: Addresses) -> None:
        """changes: of the Services whose check may have changed since the last call, None where there is none.
        addresses: all on which to answer. Returns at once."""
        if self._running is None:
            if not any(changes.values()):
                return
            self._running = self._start()
        elif not changes and addresses == self._addresses:
            return
        self._addresses = addresses
        loop, _, listeners = self._running
        loop.call_soon_threadsafe(listeners.update, dict(changes), addresses)

    def stop(self) -> None:
        """Close all ports and connections, end the thread and wait for it. Does nothing if there is none."""
        if self._running:
            loop, thread, listeners = self._running
            loop.call_soon_threadsafe(listeners.close)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
            self._running = None

    def _start(self) -> tuple[asyncio.AbstractEventLoop, threading.Thread, _Listeners]:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(_report)
        thread = threading.Thread(target=loop.run_forever, name="health-checks", daemon=True)
        thread.start()
        return loop, thread, _Listeners(loop, self._healthy)


def _report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A callback failed; the loop goes on."""
    LOG.error("health_check_failure", exc_info=context.get("exception"), remedy="report this bug")


class _Listeners:
    """The sockets. Everything runs in the loop's thread, as callbacks that do not wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop, healthy: Callable[[], bool]) -> None:
        self.loop, self.healthy = loop, healthy
        self.checks = HealthChecks()
        self.connections: dict[_Connection, None] = {}
        self._addresses: Addresses = {}
        self._sockets: dict[Spot, socket.socket] = {}
        self._retries: dict[Spot, asyncio.TimerHandle] = {}

    def update(self, changes: Mapping[Name, HealthCheck | None], addresses: Addresses) -> None:
        moved, conflicts = self.checks.update(changes)
        for conflict in conflicts:
            LOG.warning(
                "health_check_port_taken",
                port=conflict.port,
                service="/".join(conflict.loser),
                cause=f"Service {'/'.join(conflict.holder)}, which is older, has the same healthCheckNodePort",
                remedy="give one of them another port",
            )
        if moved or addresses != self._addresses:
            self._addresses = addresses
            self._settle()

    def close(self) -> None:
        for spot in [*self._sockets, *self._retries]:
            self._close(spot)
        for connection in list(self.connections):
            connection.close()

    def _settle(self) -> None:
        """Listen where it is wanted and nowhere else."""
        hosts = {family: _hosts(family, self._addresses.get(family, frozenset())) for family in Family}
        wanted = {(host, port) for family, port in self.checks.ports() for host in hosts[family]}
        # The old ones first: a socket for all addresses cannot be where there is one for some.
        for spot in (self._sockets.keys() | self._retries.keys()) - wanted:
            self._close(spot)
        for spot in wanted - self._sockets.keys() - self._retries.keys():
            self._listen(spot)

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
            sock = _listening(Family.of(spot[0]), address, port)
        except OSError as error:
            if not tries:
                cause, remedy = _CAUSES.get(error.errno or 0, (error.strerror or str(error), "see the cause"))
                LOG.warning(
                    "health_check_not_listening",
                    service="/".join(self.checks.holder(port) or ()),
                    address=address,
                    port=port,
                    cause=cause,
                    remedy=f"{remedy}; it is tried again and again",
                )
            wait = RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
            self._retries[spot] = self.loop.call_later(wait, self._listen, spot, tries + 1)
            return
        if tries:
            LOG.info("health_check_listening", address=address, port=port, tries=tries + 1)
        self._sockets[spot] = sock
        self.loop.add_reader(sock, self._accept, spot)

    def _accept(self, spot: Spot) -> None:
        """Take in those that wait, but no more than can wait at once."""
        sock = self._sockets[spot]
        for _ in range(BACKLOG):
            try:
                accepted, _peer = sock.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it is gone again
            except OSError as error:
                # No descriptors or no memory. To be called again at once would not help.
                LOG.warning("health_check_not_accepted", port=spot[1], cause=error.strerror, next="wait a second")
                self.loop.remove_reader(sock)
                self.loop.call_later(ACCEPT_PAUSE, self._accept_again, spot)
                return
            if len(self.connections) >= MAX_CONNECTIONS:
                next(iter(self.connections)).close()
            self.connections[_Connection(self, accepted, spot)] = None

    def _accept_again(self, spot: Spot) -> None:
        if sock := self._sockets.get(spot):
            self.loop.add_reader(sock, self._accept, spot)


class _Connection:
    """One client: a request, an answer, the end."""

    def __init__(self, listeners: _Listeners, sock: socket.socket, spot: Spot) -> None:
        self._listeners, self._socket, self._spot = listeners, sock, spot
        self._request = b""
        sock.setblocking(False)
        listeners.loop.add_reader(sock, self._read)
        self._timer = listeners.loop.call_later(REQUEST_SECONDS, self.close)

    def _read(self) -> None:
        said: bytes | None = b""  # nothing, and the end
        try:
            data = self._socket.recv(MAX_REQUEST + 1)
            self._request += data
            found = self._listeners.checks.endpoints(self._spot[1], Family.of(self._spot[0]))
            if data and found:  # else the client, or the Service, went
                said = answer(self._request, *found, self._listeners.healthy())
            if said:
                self._socket.send(said)  # the buffer of a new connection takes more than this
        except OSError:
            pass  # the client went
        finally:
            if said is not None:
                self.close()

    def close(self) -> None:
        self._timer.cancel()
        self._listeners.connections.pop(self, None)
        self._listeners.loop.remove_reader(self._socket)
        self._socket.close()


def _hosts(family: Family, addresses: frozenset[bytes]) -> frozenset[bytes]:
    """The addresses to listen on for these."""
    if len(addresses) > MAX_ADDRESSES:
        return frozenset([bytes(family.address_size)])
    # A link-local IPv6 address means nothing without its link, and nobody asks a node there.
    return frozenset(a for a in addresses if len(a) == 4 or not ipaddress.IPv6Address(a).is_link_local)


def _listening(family: Family, host: str, port: int) -> socket.socket:
    """Raises OSError."""
    sock = socket.socket(socket.AF_INET if family is Family.IPV4 else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is Family.IPV6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
