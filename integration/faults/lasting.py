"""Connections that are there before a fault, and should outlast it."""

from __future__ import annotations

import socket
import threading
from typing import Final

from integration.namespaces import in_thread
from integration.topology import Host
from integration.traffic import failure

PATIENCE: Final = 30.0
"""A connection that is silent for so many seconds is lost: packets that are lost are sent again long before."""
PAUSE: Final = 0.02


class Lasting:
    """`count` TCP connections to a pod that gives back what it gets; a line goes to and fro on each, until `stop`.

    broken: why those that are lost were lost. Raises OSError if one cannot be made.
    """

    def __init__(self, source: Host, address: str, port: int, count: int) -> None:
        self.broken: list[str] = []
        self._done = threading.Event()
        self._sockets: list[socket.socket] = []
        try:
            for _ in range(count):
                sock = source.namespace.socket(socket.AF_INET, socket.SOCK_STREAM)
                self._sockets.append(sock)
                sock.settimeout(PATIENCE)
                sock.connect((address, port))
                sock.recv(200)  # who answers
        except BaseException:
            self._close()
            raise
        self._threads = [in_thread(source.namespace, "lasting", lambda s=s: self._loop(s)) for s in self._sockets]  # type: ignore[misc]

    def stop(self) -> None:
        """`broken` is final then."""
        self._done.set()
        for thread in self._threads:
            thread.join()
        self._close()

    def _loop(self, sock: socket.socket) -> None:
        line = b"are you there?\n"
        try:
            while not self._done.wait(PAUSE):
                sock.sendall(line)
                got = b""
                while len(got) < len(line):
                    if not (more := sock.recv(100)):
                        raise ConnectionError("closed")
                    got += more
                if got != line:
                    raise ConnectionError(f"sent {line!r}, got {got!r}")
        except OSError as error:
            self.broken.append(failure(error))

    def _close(self) -> None:
        for sock in self._sockets:
            sock.close()
