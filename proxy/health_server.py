"""The servers of proxy.health_checks: one thread listens on all ports, whoever may ask and however slowly."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, cast

import structlog

from proxy.health_checks import HealthCheck, HealthChecks, answer
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
        future = asyncio.run_coroutine_threadsafe(listeners.update(dict(changes), addresses), loop)
        future.add_done_callback(_report_exception)

    def stop(self) -> None:
        """Close all ports and connections, end the thread and wait for it. Does nothing if there is none."""
        if self._running:
            loop, thread, listeners = self._running
            asyncio.run_coroutine_threadsafe(listeners.close(), loop)
            thread.join()
            self._running = None

    def _start(self) -> tuple[asyncio.AbstractEventLoop, threading.Thread, _Listeners]:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(_report)
        thread = threading.Thread(target=_run, args=(loop,), name="health-checks", daemon=True)
        thread.start()
        return loop, thread, _Listeners(loop, self._healthy)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _report_exception(future: Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()):
        LOG.error("health_check_failure", exc_info=error, remedy="report this bug")


def _report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What went wrong where nobody waits for the result; asyncio goes on."""
    LOG.error("health_check_failure", problem=context["message"], error=repr(context.get("exception")))


class _Listeners:
    """The sockets. Everything runs in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, healthy: Callable[[], bool]) -> None:
        self.loop, self.healthy = loop, healthy
        self.checks = HealthChecks()
        self.connections: dict[_Connection, None] = {}
        self._addresses: Addresses = {}
        self._servers: dict[Spot, asyncio.Server] = {}
        self._retries: dict[Spot, asyncio.TimerHandle] = {}
        self._lock = asyncio.Lock()

    async def update(self, changes: Mapping[Name, HealthCheck | None], addresses: Addresses) -> None:
        async with self._lock:
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
                await self._settle()

    async def close(self) -> None:
        async with self._lock:
            for spot in [*self._servers, *self._retries]:
                self._close(spot)
            for connection in list(self.connections):
                connection.drop()
            # After what the dropped connections have still to do.
            self.loop.call_soon(self.loop.stop)

    async def _settle(self) -> None:
        """Listen where it is wanted and nowhere else."""
        hosts = {family: _hosts(family, self._addresses.get(family, frozenset())) for family in Family}
        wanted = {(host, port) for family, port in self.checks.ports() for host in hosts[family]}
        # The old ones first: a socket for all addresses cannot be where there is one for some.
        for spot in (self._servers.keys() | self._retries.keys()) - wanted:
            self._close(spot)
        for spot in wanted - self._servers.keys() - self._retries.keys():
            await self._listen(spot)

    def _close(self, spot: Spot) -> None:
        if server := self._servers.pop(spot, None):
            server.close()
        if retry := self._retries.pop(spot, None):
            retry.cancel()

    async def _listen(self, spot: Spot, tries: int = 0) -> None:
        """Listen; if that is not possible, say so once and try it again later."""
        address, port = ipaddress.ip_address(spot[0]), spot[1]
        family = Family.IPV4 if address.version == 4 else Family.IPV6
        try:
            sock = _bound(family, str(address), port)
            self._servers[spot] = await self.loop.create_server(
                lambda: _Connection(self, family, port), sock=sock, backlog=BACKLOG
            )
        except OSError as error:
            if not tries:
                cause, remedy = _CAUSES.get(error.errno or 0, (error.strerror or str(error), "see the cause"))
                LOG.warning(
                    "health_check_not_listening",
                    service="/".join(self.checks.holder(port) or ()),
                    address=str(address),
                    port=port,
                    cause=cause,
                    remedy=f"{remedy}; it is tried again and again",
                )
            wait = RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
            self._retries[spot] = self.loop.call_later(wait, self._retry, spot, tries + 1)
        else:
            if tries:
                LOG.info("health_check_listening", address=str(address), port=port, tries=tries + 1)

    def _retry(self, spot: Spot, tries: int) -> None:
        async def listen() -> None:
            async with self._lock:
                if self._retries.pop(spot, None):
                    await self._listen(spot, tries)

        self._retrying = self.loop.create_task(listen())


class _Connection(asyncio.Protocol):
    """One client: a request, an answer, the end."""

    def __init__(self, listeners: _Listeners, family: Family, port: int) -> None:
        self._listeners, self._family, self._port = listeners, family, port
        self._request = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = self._listeners.loop.call_later(REQUEST_SECONDS, self.drop)
        connections = self._listeners.connections
        if len(connections) >= MAX_CONNECTIONS:
            next(iter(connections)).drop()
        connections[self] = None

    def data_received(self, data: bytes) -> None:
        self._request += data
        found = self._listeners.checks.endpoints(self._port, self._family)
        if found is None:
            self.drop()  # the Service went after the client came
            return
        said = answer(self._request, *found, self._listeners.healthy())
        if said:
            self._transport.write(said)
            self._transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        self._timer.cancel()
        self._listeners.connections.pop(self, None)

    def drop(self) -> None:
        """End it, whatever is still to be said."""
        self._listeners.connections.pop(self, None)
        self._transport.abort()


def _hosts(family: Family, addresses: frozenset[bytes]) -> frozenset[bytes]:
    if len(addresses) > MAX_ADDRESSES:
        return frozenset([bytes(family.address_size)])
    # A link-local address belongs to one link, and nobody asks a node there.
    return frozenset(a for a in addresses if not ipaddress.ip_address(a).is_link_local or family is Family.IPV4)


def _bound(family: Family, host: str, port: int) -> socket.socket:
    """Raises OSError."""
    sock = socket.socket(socket.AF_INET if family is Family.IPV4 else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is Family.IPV6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
