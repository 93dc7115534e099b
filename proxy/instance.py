"""One agent in a network namespace: the first holds a name that a second cannot have, and says who it is.

The name is an abstract Unix socket (unix(7)): it belongs to the network namespace, as the tables do, whatever files and
process identifiers two pods of a node can see of each other, and it is gone with its holder, however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import socket
import struct
import threading
import time
from typing import Final

import structlog

from proxy.errors import AlreadyRunning

LOG = structlog.get_logger()

NAME: Final = "\0kube-proxy-nft"
ANSWER_SECONDS: Final = 1.0
ANSWER_LIMIT: Final = 4096
TRIES: Final = 10
PAUSE_SECONDS: Final = 0.05
"""For one that has just ended, or has the name and does not listen yet."""

_UCRED = struct.Struct("=iII")  # pid, uid, gid: see SO_PEERCRED in unix(7)


class Instance:
    """Holds the name from `__init__` to `close`. Raises AlreadyRunning, which names the holder.

    node: for a second agent's message.
    """

    def __init__(self, node: str = "", name: str = NAME) -> None:
        who = {"pid": os.getpid(), "host": platform.node(), "node": node, "pod": os.environ.get("POD_NAME", "")}
        self._answer = json.dumps({key: value for key, value in who.items() if value}).encode()
        self._socket = _bind(name)
        if self._socket:
            self._socket.listen()
            self._thread = threading.Thread(target=self._tell, args=(self._socket,), name="instance", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Let the name go."""
        if self._socket:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closing does not
            self._thread.join(ANSWER_SECONDS)
            self._socket.close()

    def _tell(self, listener: socket.socket) -> None:
        """Say who we are to all that ask. Nobody is waited for: the answer fits into the socket's buffer."""
        while True:
            try:
                asker, _ = listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED):
                    threading.Event().wait(ANSWER_SECONDS)
                    continue
                return
            with asker, contextlib.suppress(OSError):
                asker.setblocking(False)
                asker.send(self._answer)


def check(name: str = NAME) -> None:
    """Raise AlreadyRunning if somebody holds the name."""
    if sock := _bind(name):
        sock.close()


def _bind(name: str) -> socket.socket | None:
    """The name is ours; None: somebody has it who cannot be an agent."""
    for _ in range(TRIES):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(name)
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return sock
        try:
            holder, uid = _ask(name)
        except ConnectionRefusedError:
            time.sleep(PAUSE_SECONDS)
            continue
        if uid in (0, os.geteuid()):
            raise AlreadyRunning(
                "another agent",
                f"{holder} programs this network namespace already",
                "stop it first: two agents would undo each other's changes",
            )
        # Anybody may take a name. Who is not root programs nothing here, and is not to keep us from it.
        LOG.warning("instance_name_taken", holder=holder, uid=uid, then="start without it", remedy="stop that process")
        return None
    raise AlreadyRunning("another agent", "it has begun to start, and got no further", "stop it first")


def _ask(name: str) -> tuple[str, int]:
    """Who holds the name, in words, and its user."""
    said = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(ANSWER_SECONDS)
        try:
            sock.connect(name)
            pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
            with contextlib.suppress(OSError):
                while len(said) < ANSWER_LIMIT and (piece := sock.recv(ANSWER_LIMIT)):
                    said += piece
        except (BlockingIOError, TimeoutError):
            return "a process that does not answer", 0
    return _describe(said, pid), uid


def _describe(said: bytes, pid: int) -> str:
    """`pid` is 0 where its process is in another pid namespace: then only its own word is left."""
    try:
        who = json.loads(said)
        own, host, node, pod = int(who["pid"]), *(str(who.get(key, "")) for key in ("host", "node", "pod"))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return f"process {pid}" if pid else "a process of another container"
    text = f"process {pid}" if pid else f"process {own} of another container"
    details = [f"{what} {name}" for what, name in (("pod", pod), ("host", host), ("node", node)) if name]
    return f"{text} ({', '.join(details)})" if details else text
