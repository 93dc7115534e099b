"""A stand-in for kube-proxy's metrics port."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from tests.dataplanes import recorded

PORT = 10249


class Port:
    """Listens in the network namespace of the thread that makes it, and gives everybody the same answer.

    hangs: keeps the connection open after the answer, saying nothing more.
    """

    def __init__(self, answer: bytes, address: str = "127.0.0.1", port: int = PORT, *, hangs: bool = False) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.answer, self.requests = answer, list[bytes]()
        self._hangs, self._open = hangs, list[socket.socket]()
        self._listener = socket.create_server((address, port), family=family)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="proxy-port", daemon=True)
        self._thread.start()

    @classmethod
    def of_mode(cls, mode: str, address: str = "127.0.0.1", port: int = PORT, headers: str = "") -> Self:
        """Answers as kube-proxy in this mode did."""
        body = recorded(mode, "proxyMode.txt")
        head = f"HTTP/1.0 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        return cls((head + body).encode(), address, port)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with contextlib.suppress(OSError):
                    self.requests.append(connection.recv(4096))
                    connection.sendall(self.answer)
                if self._hangs:
                    self._open.append(connection)
                else:
                    connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self._open:
            connection.close()
