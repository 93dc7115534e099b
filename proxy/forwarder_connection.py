"""One forwarded TCP connection: a client, an endpoint, and what goes to and fro between them.

All that a user of TCP can tell is passed on: the end of either direction, and resets. At most one buffer a direction is
held, for a reader that is slower than its writer, who is then not read from.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import struct
from collections import Counter
from typing import Final

import structlog

from proxy.forwarder_policy import Picker
from rules.objects import Family
from rules.packed import address_text

LOG = structlog.get_logger()

TRIES: Final = 3
CONNECT_SECONDS: Final = 5.0
"""For each endpoint that is tried: time for two SYNs to get lost."""
BUFFER_SIZE: Final = 1 << 17
BATCH: Final = 256

KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""An endpoint that vanished without a word is given up after 2 minutes: the client's own keepalives end at us."""

_IN, _OUT, _HUNG = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR
_RESET = struct.pack("ii", 1, 0)
_NOTHING = memoryview(b"")
_UNWATCHED = -1


class Connections:
    """All that are open. Everything runs in the loop's thread, as callbacks that do not wait.

    asyncio cannot watch a socket for nothing but its reset, so an epoll of our own does, which asyncio watches.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.buffer = memoryview(bytearray(BUFFER_SIZE))
        self.epoll = select.epoll()
        self.ends: dict[int, _End] = {}
        self._open: dict[_Connection, None] = {}
        self._by_name: Counter[str] = Counter()
        loop.add_reader(self.epoll.fileno(), self._turn)

    def __len__(self) -> int:
        return len(self._open)

    def of(self, name: str) -> int:
        """How many were added with this name."""
        return self._by_name[name]

    def add(self, client: socket.socket, address: str, family: Family, picker: Picker, name: str) -> None:
        """Forward for a client that has just been accepted. address: the client's. name: what it is for."""
        connection = _Connection(self, client, address, family, picker, name)
        self._open[connection] = None
        self._by_name[name] += 1
        connection.start()

    def forget(self, connection: _Connection) -> None:
        del self._open[connection]
        self._by_name[connection.name] -= 1
        if not self._by_name[connection.name]:
            del self._by_name[connection.name]

    def close(self) -> None:
        """Reset all of them. No more may be added."""
        for connection in list(self._open):
            connection.close(reset=True)
        self.loop.remove_reader(self.epoll.fileno())
        self.epoll.close()

    def _turn(self) -> None:
        for descriptor, events in self.epoll.poll(0, BATCH):
            end = self.ends.get(descriptor)
            if end is None:
                continue  # closed by what came before in this turn
            try:
                end.connection.handle(end, events)
            except Exception:  # a bug ends one connection, not all
                LOG.error("forwarder_failure", exc_info=True, remedy="report this bug")
                end.connection.close(reset=True)


class _End:
    """The socket to the client or to the endpoint. unsent: what the socket has not taken yet. is_over: nothing more is
    read from it. mask: what is watched. is_hung: its reset has been seen, though maybe not read."""

    __slots__ = ("connection", "is_hung", "is_over", "mask", "sock", "unsent")

    def __init__(self, connection: _Connection, sock: socket.socket) -> None:
        self.connection, self.sock = connection, sock
        self.unsent = _NOTHING
        self.is_over = False
        self.is_hung = False
        self.mask = _UNWATCHED


class _Connection:
    __slots__ = (
        "_address",
        "_all",
        "_client",
        "_failed",
        "_family",
        "_is_broken",
        "_is_closed",
        "_is_connected",
        "_picker",
        "_server",
        "_timer",
        "_trying",
        "name",
    )

    def __init__(
        self, all_: Connections, client: socket.socket, address: str, family: Family, picker: Picker, name: str
    ) -> None:
        self._all, self._address, self._family, self._picker, self.name = all_, address, family, picker, name
        self._client = _End(self, client)
        self._server: _End | None = None
        self._trying = b""
        self._failed: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_connected = False
        self._is_broken = False
        self._is_closed = False

    def start(self) -> None:
        client = self._client.sock
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch(self._client, 0)  # it may give up while we connect
        self._connect()

    def close(self, reset: bool = False) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._stop_timer()
        self._all.forget(self)
        for end in (self._client, self._server):
            if end:
                if reset:
                    end.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                self._close(end)

    def handle(self, end: _End, events: int) -> None:
        """Something happened to one of the two sockets."""
        if not self._is_connected:
            if end is self._client:
                self.close(reset=True)
            else:
                self._connected(end)
            return
        if end.unsent and events & ~_IN:
            self._send(end)
        if self._reads(end) and events & ~_OUT:
            self._receive(end)
        elif events & _HUNG:  # it is reset, or at its end in both directions
            if end.is_over:
                self.close(reset=True)
            end.is_hung = True  # if not, what it sent before is read when the other side has room
        if not self._is_closed:
            self._settle()

    # Until there is a connection to an endpoint.

    def _connect(self) -> None:
        if self._is_closed:
            return
        endpoint = self._picker.pick(self._address, self._all.loop.time(), self._failed)
        if endpoint is None or len(self._failed) >= TRIES:
            self.close(reset=True)
            return
        self._trying = endpoint
        try:
            sock = _socket(self._family)
        except OSError as error:
            LOG.debug("localhost_connection_lost", service=self.name, cause=error.strerror)
            self.close(reset=True)
            return
        self._server = _End(self, sock)
        code = sock.connect_ex((_host(endpoint), _port(endpoint)))
        if code in (0, errno.EINPROGRESS):
            self._watch(self._server, _OUT)
            self._timer = self._all.loop.call_later(CONNECT_SECONDS, self._try_another, errno.ETIMEDOUT)
        else:
            self._try_another(code)

    def _connected(self, server: _End) -> None:
        code = server.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._try_another(code)
            return
        self._stop_timer()
        self._is_connected = True
        self._settle()

    def _try_another(self, code: int) -> None:
        self._stop_timer()
        if self._server:
            self._close(self._server)
            self._server = None
        self._failed.append(self._trying)
        LOG.debug(
            "endpoint_not_reached",
            service=self.name,
            endpoint=f"{_host(self._trying)} port {_port(self._trying)}",
            cause=os.strerror(code),
        )
        # Not in this turn: events of the socket that was closed must not be taken for the next one's.
        self._all.loop.call_soon(self._connect)

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    # To and fro.

    def _other(self, end: _End) -> _End:
        assert self._server
        return self._server if end is self._client else self._client

    def _reads(self, end: _End) -> bool:
        return not end.is_over and not self._other(end).unsent

    def _receive(self, end: _End) -> None:
        buffer, other = self._all.buffer, self._other(end)
        try:
            size = end.sock.recv_into(buffer)
        except BlockingIOError:
            return
        except OSError:
            self.close(reset=True)
            return
        if size:
            other.unsent = buffer[:size]
            self._send(other)
            if other.unsent:
                other.unsent = memoryview(bytes(other.unsent))  # the buffer is everybody's
        else:
            end.is_over = True  # and all that came before has been sent
            self._end(other)

    def _send(self, end: _End) -> None:
        try:
            sent = end.sock.send(end.unsent)
        except BlockingIOError:
            return
        except OSError:
            # It is gone. What it had sent before is still there for the other side.
            end.unsent = _NOTHING
            self._other(end).is_over = True
            self._is_broken = True
            return
        end.unsent = end.unsent[sent:]

    def _end(self, end: _End) -> None:
        """Nothing will be sent to it any more."""
        if not self._is_broken:
            try:
                end.sock.shutdown(socket.SHUT_WR)
            except OSError:
                self._is_broken = True

    def _settle(self) -> None:
        """Watch for what can go on now; close when both directions are at their end."""
        client, server = self._client, self._other(self._client)
        if client.is_over and server.is_over and not client.unsent and not server.unsent:
            self.close(reset=self._is_broken)
            return
        for end in (client, server):
            self._watch(end, (_IN if self._reads(end) else 0) | (_OUT if end.unsent else 0))

    def _watch(self, end: _End, mask: int) -> None:
        if not mask and end.is_hung:
            mask = _UNWATCHED  # else it would be told again and again
        if mask == end.mask:
            return
        descriptor = end.sock.fileno()
        if mask == _UNWATCHED:
            self._all.epoll.unregister(descriptor)
            del self._all.ends[descriptor]
        elif end.mask == _UNWATCHED:
            self._all.epoll.register(descriptor, mask)
            self._all.ends[descriptor] = end
        else:
            self._all.epoll.modify(descriptor, mask)
        end.mask = mask

    def _close(self, end: _End) -> None:
        if end.mask != _UNWATCHED:
            self._all.ends.pop(end.sock.fileno(), None)
            end.mask = _UNWATCHED
        end.sock.close()  # and out of the epoll


def _host(endpoint: bytes) -> str:
    """See rules.elements.endpoint."""
    return address_text(endpoint[:-4])


def _port(endpoint: bytes) -> int:
    return int.from_bytes(endpoint[-4:-2])


def _socket(family: Family) -> socket.socket:
    """To connect to an endpoint with. Raises OSError."""
    sock = socket.socket(socket.AF_INET if family is Family.IPV4 else socket.AF_INET6, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return sock
