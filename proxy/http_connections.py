"""The clients of an HTTP server: a request, an answer, the end.

Whatever they do, each takes a bounded time, memory and work, and so do all together. None can keep others out: who has
asked when he is taken in is answered at once, and waiting is bounded for all of a source together.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from proxy.http_message import MAX_REQUEST, Request, Response, ends_there, parse, render

REQUEST_SECONDS: Final = 5.0
"""How long a client may take for its request and for our answer together."""
MAX_CONNECTIONS: Final = 128
"""An honest client is done in milliseconds: more than a few at a time are an attack."""
SHARE: Final = 32
"""Of one source: beyond these, its next takes the place of its oldest."""
GRACE_SECONDS: Final = 0.05
"""But not so soon from one that has not asked yet, to one that has not either: he is dropped himself, which costs next to
nothing. So it goes in a flood, and in a flood an honest client has asked before it is his turn."""
MAX_READS: Final = 64
"""How many pieces a request may come in. Each is work, and is looked at with all that came before."""
SMALL: Final = 4096
"""Bytes of an answer that may be left to the kernel when the connection is closed; a bigger one might stay there."""
MAX_EXTRA: Final = 1 << 20
"""Bytes that are read after the request. A connection that is closed over unread bytes is reset, and its client may
never see the answer."""

_RESET: Final = struct.pack("ii", 1, 0)

Spot = tuple[bytes, int]
"""Where somebody listens: a packed address and a port."""

Answer = Callable[[Request, Spot], Response | None]

Wrap = Callable[[socket.socket], socket.socket]
"""Makes of an accepted socket, which does not block, one that speaks TLS and does not block either: proxy.tls.TlsSocket.
Raises OSError."""


class Connections:
    """All that are open. Everything runs in the loop's thread, as callbacks that do not wait. answer and wrap: see Site."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: Answer, wrap: Wrap | None = None) -> None:
        self.loop, self.answer, self._wrap = loop, answer, wrap
        self._by_source: dict[bytes, OrderedDict[_Connection, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, sock: socket.socket, peer: str, spot: Spot) -> None:
        """Serve a client that has just been accepted. peer: its address."""
        sock.setblocking(False)
        if self._wrap:
            try:
                sock = self._wrap(sock)
            except OSError:  # the client went
                sock.close()
                return
        _Connection(self, sock, _source(peer), spot).read()  # mostly the request is there, and that was it

    def admit(self, connection: _Connection, *, has_asked: bool) -> bool:
        """Whether it may stay until there is more to do."""
        own = self._by_source.get(connection.source, ())
        now = self.loop.time()
        if len(own) >= SHARE:
            oldest = next(iter(own))
            if not has_asked and now - oldest.since < GRACE_SECONDS:
                return False
            oldest.drop()
        elif self._count >= MAX_CONNECTIONS:
            most = max(self._by_source.values(), key=len)
            next(iter(most)).drop()
        connection.since = now
        self._by_source.setdefault(connection.source, OrderedDict())[connection] = None
        self._count += 1
        return True

    def close(self) -> None:
        for connections in list(self._by_source.values()):
            for connection in list(connections):
                connection.close()

    def answered(self, connection: _Connection) -> None:
        """It would be no loss any more: the first that is dropped."""
        connection.since = -math.inf
        self._by_source[connection.source].move_to_end(connection, last=False)

    def forget(self, connection: _Connection) -> None:
        own = self._by_source[connection.source]
        del own[connection]
        self._count -= 1
        if not own:
            del self._by_source[connection.source]


def _source(peer: str) -> bytes:
    """Who it is: an IPv4 address, or the link of an IPv6 address, on which anybody has as many as he likes."""
    if ":" not in peer:
        return socket.inet_aton(peer)
    return socket.inet_pton(socket.AF_INET6, peer.partition("%")[0])[:8]


class _Connection:
    """since: when it was taken in."""

    __slots__ = (
        "_all",
        "_extra",
        "_reads",
        "_request",
        "_socket",
        "_spot",
        "_timer",
        "_unsent",
        "since",
        "source",
    )

    def __init__(self, all_: Connections, sock: socket.socket, source: bytes, spot: Spot) -> None:
        self._all, self._socket, self.source, self._spot = all_, sock, source, spot
        self._request = b""
        self._reads = 0
        self._unsent = memoryview(b"")
        self._extra = MAX_EXTRA
        self.since = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    def read(self) -> None:
        """Take what there is of the request; answer it, or wait for the rest."""
        data = self._receive(MAX_REQUEST + 1)
        if data is None:
            return
        self._request += data
        self._reads += 1
        said = parse(self._request)
        if said is None:
            if self._reads > MAX_READS:
                self.drop()
            else:
                self._watch(self.read, has_asked=False)
            return
        head_only = isinstance(said, Request) and said.method == "HEAD"
        is_all = isinstance(said, Request) and said.method in ("GET", "HEAD") and ends_there(self._request)
        if isinstance(said, Request):
            try:
                answer = self._all.answer(said, self._spot)
            except BaseException:
                self.close()
                raise
            if answer is None:
                self.close()
                return
            said = answer
        self._request = b""
        self._unsent = memoryview(render(said, time.time(), head_only=head_only))
        if is_all and len(self._unsent) <= SMALL:
            self._extra = 0
        self._write()

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()  # the client went
            return
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._watch(None, self._write)
            return
        if not self._extra:  # nothing else is expected: the kernel sends what it has, then the end
            self.close()
            return
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
            return
        if self._watch(self._wait_for_end):
            self._all.answered(self)

    def _wait_for_end(self) -> None:
        """Until the client has read it all, and says so by closing."""
        data = self._receive(1 << 16)
        if data is not None:
            self._extra -= len(data)
            if self._extra <= 0:
                self.close()

    def _receive(self, size: int) -> bytes | None:
        """b"": nothing there; None: the client went, and so did the connection."""
        try:
            data = self._socket.recv(size)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self.close()
            return None
        return data

    def _watch(
        self, read: Callable[[], None] | None, write: Callable[[], None] | None = None, *, has_asked: bool = True
    ) -> bool:
        """Call these when there is something to read or room to write, until the time is over. False: it may not stay."""
        loop = self._all.loop
        if not self._timer:
            if not self._all.admit(self, has_asked=has_asked):
                self.drop()
                return False
            self._timer = loop.call_later(REQUEST_SECONDS, self.drop)
        if read:
            loop.add_reader(self._socket, read)
        else:
            loop.remove_reader(self._socket)
        if write:
            loop.add_writer(self._socket, write)
        else:
            loop.remove_writer(self._socket)
        return True

    def drop(self) -> None:
        """Its time is over, or its place is needed. What the client has not read yet is not kept for it."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close()

    def close(self) -> None:
        if self._timer:  # it was admitted
            self._timer.cancel()
            self._timer = None
            self._all.forget(self)
            self._all.loop.remove_reader(self._socket)
            self._all.loop.remove_writer(self._socket)
        self._socket.close()
