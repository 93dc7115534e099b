"""An answer's way to its socket, in which a fault may lie in wait."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from dataclasses import replace
from http.client import responses

from integration.apiserver.faults import Fault

CHUNK = 4096
"""A real server's chunks of a list are of this order; they are sent many at a time."""
AT_ONCE = 256 << 10
LAST_CHUNK = b"0\r\n\r\n"
TICK = 0.05
_NO_LINGER = struct.pack("ii", 1, 0)


class Broken(Exception):
    """The connection has been broken: nothing can be answered on it any more."""


class Wire:
    """One answer. `release` ends stalls and trickles: what was held back follows."""

    def __init__(self, sock: socket.socket, fault: Fault | None, release: threading.Event) -> None:
        self._socket, self._release = sock, release
        self._fault = replace(fault) if fault and fault.how else None

    def arrived(self) -> None:
        """The request has been read."""
        if self._fault and self._fault.place == "start":
            self._strike()

    def head(self, code: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {code} {responses.get(code, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        data = "\r\n".join([*lines, "\r\n"]).encode("latin-1")
        if self._fault and self._fault.place == "headers":
            self._send(data[: len(data) // 2])
            data = data[len(data) // 2 :]
            data = self._strike(data)
        self._send(data)

    def whole(self, body: bytes) -> None:
        """The body of an answer that is no watch."""
        if self._fault and isinstance(self._fault.place, float):
            self._fault.place = int(len(body) * self._fault.place)
        self._body(body)

    def lines(self, data: bytes) -> None:
        """Some lines of a watch."""
        head = b"%x\r\n" % len(data)
        if self._fault and self._fault.place == "line":
            self._fault.place = len(head) + (data.index(b"\n") + 1) // 2
        self._body(b"%b%b\r\n" % (head, data))

    def _body(self, data: bytes) -> None:
        fault = self._fault
        if fault and isinstance(fault.place, int):
            if len(data) < fault.place:
                fault.place -= len(data)
            else:
                self._send(data[: fault.place])
                data = self._strike(data[fault.place :])
        self._send(data)

    def _strike(self, rest: bytes = b"") -> bytes:
        """The fault's moment. Returns what of the rest is still to be sent."""
        fault, self._fault = self._fault, None
        assert fault
        if fault.how == "stall":
            self._release.wait()
        elif fault.how == "trickle":
            step = max(1, int(fault.rate * TICK))
            while rest and not self._release.wait(TICK):
                self._send(rest[:step])
                rest = rest[step:]
            if not self._release.is_set():
                self._fault = replace(fault, place=0)
        else:
            cut(self._socket, reset=fault.how == "reset")
            raise Broken
        return rest

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(view), AT_ONCE):
            self._socket.sendall(view[start : start + AT_ONCE])


def cut(sock: socket.socket, *, reset: bool) -> None:
    """Break a connection: with a FIN, or with a RST as from a host that knows nothing of it."""
    with contextlib.suppress(OSError):
        if not reset:
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        # Only the last close() resets, and without a FIN before it. The descriptor stays taken: others still hold it.
        nowhere = os.open(os.devnull, os.O_RDWR)
        try:
            os.dup2(nowhere, sock.fileno(), inheritable=False)
        finally:
            os.close(nowhere)


def chunked(body: bytes) -> bytes:
    """A whole body in chunks."""
    view = memoryview(body)
    pieces: list[bytes | memoryview] = []
    for start in range(0, len(body), CHUNK):
        piece = view[start : start + CHUNK]
        pieces += (b"%x\r\n" % len(piece), piece, b"\r\n")
    return b"".join([*pieces, LAST_CHUNK])
