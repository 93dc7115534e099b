"""Echo servers for pods: TCP and UDP, both families, all served by one thread of this process.

A server says who it is and whom it sees: 'own-address own-port peer-address' and a newline. TCP says so once per
connection and sends back whatever comes after; UDP answers every datagram so.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from integration.namespaces import Namespace

PORTS: Final = (8080, 8081, 9090, 5353)
_BACKLOG: Final = 1024


class EchoServers:
    """`serve` addresses first, then `start`; `stop` closes everything."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread: threading.Thread | None = None

    def serve(self, namespace: Namespace, *addresses: str) -> None:
        """Answer on these addresses of a namespace, on all PORTS."""
        with namespace.entered():
            for address in addresses:
                for port in PORTS:
                    self._add(_bound(socket.SOCK_STREAM, address, port), self._accept)
                    self._add(_bound(socket.SOCK_DGRAM, address, port), _answer)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="echo servers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close all sockets. May be called twice."""
        if self._selector.get_map() is None:
            return
        os.write(self._wake_write, b"x")
        if self._thread:
            self._thread.join()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _loop(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._wake_read:
                    return
                with suppress(OSError):  # one peer that went away is no reason to fail the others
                    key.data(key.fileobj)

    def _add(self, sock: socket.socket, handler: Callable[[socket.socket], None]) -> None:
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, handler)

    def _accept(self, server: socket.socket) -> None:
        connection, peer = server.accept()
        self._add(connection, self._echo)
        connection.sendall(_greeting(connection, peer[0]))

    def _echo(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(65536)
        except OSError:
            data = b""
        if data:
            connection.sendall(data)
        else:
            self._selector.unregister(connection)
            connection.close()


def _answer(server: socket.socket) -> None:
    _, peer = server.recvfrom(65536)
    server.sendto(_greeting(server, peer[0]), peer)


def _greeting(sock: socket.socket, peer: str) -> bytes:
    address, port = sock.getsockname()[:2]
    return f"{address} {port} {peer}\n".encode()


def _bound(kind: int, address: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    if kind == socket.SOCK_STREAM:
        sock.listen(_BACKLOG)
    return sock
