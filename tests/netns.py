"""A network namespace of a test's own, with an nftables socket in it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable
from typing import TypeVar

from rules.kernel import Kernel

CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")


def in_new_namespace(action: Callable[[], T]) -> T:
    """Run `action` in a thread that has just moved into a new network namespace. Needs CAP_SYS_ADMIN."""
    return _in_thread(lambda: _LIBC.unshare(CLONE_NEWNET), action)


def _in_thread(move: Callable[[], int], action: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            if move():
                raise OSError(ctypes.get_errno(), "entering a network namespace: run the tests as root")
            results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


class Namespace:
    """Lives as long as it is open. `kernel` is connected to it."""

    def __init__(self) -> None:
        def enter() -> tuple[int, Kernel]:
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC), Kernel()

        self.descriptor, self.kernel = in_new_namespace(enter)

    def inside(self, action: Callable[[], T]) -> T:
        """Run `action` in a thread in it. Sockets that it makes stay there, and so do threads that it starts."""
        return _in_thread(lambda: _LIBC.setns(self.descriptor, CLONE_NEWNET), action)

    def close(self) -> None:
        self.kernel.close()
        os.close(self.descriptor)

    def run(self, *command: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command in it."""
        path = f"/proc/{os.getpid()}/fd/{self.descriptor}"
        return subprocess.run(
            ["nsenter", f"--net={path}", *command], input=stdin, capture_output=True, text=True, timeout=120
        )

    def nft(self, *arguments: str, stdin: str | None = None) -> str:
        """Run nft in it; raises AssertionError with what it said if it fails."""
        done = self.run("nft", *arguments, stdin=stdin)
        assert done.returncode == 0, f"nft {' '.join(arguments)}: {done.returncode}\n{done.stderr[:2000]}"
        return done.stdout
