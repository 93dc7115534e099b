"""A relay of TCP connections from one network namespace to another, that can break and hold them."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from contextlib import suppress

_PIECE = 256 << 10
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Relay:
    """What connects to `listener` is connected to 127.0.0.1:`port` of the namespace that start() is called in: with
    several ports to each in turn."""

    def __init__(self, listener: socket.socket, *ports: int) -> None:
        self._listener, self._ports = listener, itertools.cycle(ports)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._resetting: set[socket.socket] = set()
        self._passing = threading.Event()
        self._passing.set()

    def start(self) -> None:
        self._listener.listen(64)
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def stop(self) -> None:
        """Break what is open, and refuse new connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        self.cut()
        self._passing.set()

    def cut(self, *, reset: bool = False) -> None:
        """Break all connections that are open, with a FIN or a RST."""
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    if reset:
                        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                        self._resetting.add(each)
                    each.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)

    def hold(self) -> None:
        """Let nothing pass in either direction, and leave all connections open, until let_go()."""
        self._passing.clear()

    def let_go(self) -> None:
        self._passing.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), name="relay", daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._passing.wait()
        with near, socket.socket() as far:
            with suppress(OSError):
                far.connect(("127.0.0.1", next(self._ports)))
                with self._lock:
                    self._open |= {near, far}
                back = threading.Thread(target=self._pump, args=(far, near), name="relay", daemon=True)
                back.start()
                self._pump(near, far)
                back.join()
            with self._lock:
                self._open -= {near, far}
                self._resetting -= {near, far}

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                self._passing.wait()
                sink.sendall(piece)
        for each in () if source in self._resetting else (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
