"""Notices when clients close connections on which nothing is being sent."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator


class Hangups:
    """Calls `gone` for a connection when its client has closed it; in a thread of its own, from start to stop()."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._waiting: dict[int, Callable[[], None]] = {}
        self._lock = threading.Lock()
        self._end, self._stopper = os.pipe()
        self._poll.register(self._end, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="fakeapi-hangups", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def watched(self, sock: socket.socket, gone: Callable[[], None]) -> Iterator[None]:
        descriptor = sock.fileno()
        with self._lock:
            self._waiting[descriptor] = gone
            if not self._poll.closed:
                self._poll.register(descriptor, select.EPOLLRDHUP | select.EPOLLONESHOT)
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[descriptor]
                with contextlib.suppress(OSError):  # a reset has closed it
                    if not self._poll.closed:
                        self._poll.unregister(descriptor)

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._end:
                    return
                with self._lock:
                    gone = self._waiting.get(descriptor)
                if gone:
                    gone()

    def stop(self) -> None:
        os.close(self._stopper)  # the other end is readable then
        self._thread.join()
        os.close(self._end)
        with self._lock:
            self._poll.close()
