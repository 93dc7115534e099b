"""A throw-away network namespace, in a child process, whose nftables may be changed: nothing of it is this machine's.

It goes with the child. (Like any program that uses nftables, the child may make the kernel load modules of nf_tables.)
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from proxy.migrate.sandbox_child import FRAME
from rules import wire
from rules.errors import Failure, TransactionError
from rules.objects import Set
from rules.transaction import Operation

MODULE: Final = "proxy.migrate.sandbox_child"
PATIENCE: Final = 60.0
"""Seconds for one answer of the child."""
COUNTS: Final = 10
LIMIT: Final = "/proc/sys/user/max_user_namespaces"


class NotAllowed(Exception):
    """There is no such namespace to be had. `str()` says why."""


class Sandbox:
    """Implements rules.rehearsal.Kernel. Raises NotAllowed.

    how: "a network namespace", "a user and network namespace". parts: transactions so far. sent: bytes of them.
    """

    def __init__(self, child: Sequence[str] = (sys.executable, "-P", "-m", MODULE)) -> None:
        self.parts = self.sent = 0
        root = str(Path(__file__).parents[2])
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        try:
            self._child = subprocess.Popen(
                child,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
            )
        except OSError as error:
            raise NotAllowed(f"no process can be started: {error.strerror}") from None
        self._waiting = b""
        try:
            hello = self._answer()
            if "errno" in hello:
                raise NotAllowed(_why(hello["errno"], hello["step"]))
        except BaseException:
            self.close()
            raise
        self.how = "a network namespace" if hello["how"] == "network" else "a user and network namespace"
        self._buffer = int(hello["buffer"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The namespace goes."""
        for stream in (self._child.stdin, self._child.stdout):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()
        self._child.kill()
        self._child.wait()

    def commit(self, operations: Sequence[Operation]) -> int:
        """Apply the operations, or raise TransactionError; the bytes sent. One transaction, or several where the socket
        takes no more: then those before the one that is refused stay."""
        batch = wire.encode(operations)
        if len(batch.data) + 4096 > self._buffer and len(operations) > 1:
            half = len(operations) // 2
            return self.commit(operations[:half]) + self.commit(operations[half:])
        self.parts += 1
        self.sent += len(batch.data)
        failures = []
        for sequence, code, offset in self._ask(b"C", batch.data):
            operation, detail = batch.at(sequence, offset)
            failures.append(Failure(operation, code, detail))
        if failures:
            raise TransactionError(tuple(failures))
        return len(batch.data)

    def count(self, set_: Set, expected: int) -> int:
        """A set's elements. The kernel may miss some while it still spreads a new hash table: then it is asked again."""
        named = bytes([set_.table.family]) + f"{set_.table.name}\0{set_.name}".encode()
        found = 0
        for _ in range(COUNTS):
            found = int(self._ask(b"N", named))
            if found == expected:
                break
        return found

    def _ask(self, kind: bytes, data: bytes) -> Any:
        try:
            assert self._child.stdin
            self._child.stdin.write(FRAME.pack(kind, len(data)))
            self._child.stdin.write(data)
            self._child.stdin.flush()
        except OSError:
            raise NotAllowed("the process in the namespace has ended") from None
        return self._answer()

    def _answer(self) -> Any:
        assert self._child.stdout
        descriptor = self._child.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        end = time.monotonic() + PATIENCE
        while b"\n" not in self._waiting:
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                raise NotAllowed(f"the process in the namespace has not answered for {PATIENCE:g} s")
            data = os.read(descriptor, 1 << 20)
            if not data:
                raise NotAllowed("the process in the namespace has ended")
            self._waiting += data
        line, _, self._waiting = self._waiting.partition(b"\n")
        return json.loads(line)


def _why(code: int, step: str) -> str:
    words = os.strerror(code)
    if step != "unshare":
        return f"nftables cannot be reached in a new network namespace: {words}"
    if code in (errno.ENOSPC, errno.EUSERS):
        return f"no network namespace can be made: {words} (see the sysctls user.max_{{user,net}}_namespaces)"
    if code == errno.EINVAL:
        return f"no network namespace can be made: {words} (the kernel lacks CONFIG_NET_NS or CONFIG_USER_NS)"
    with contextlib.suppress(OSError, ValueError):
        if int(Path(LIMIT).read_text()) == 0:
            return "no network namespace can be made: user.max_user_namespaces is 0"
    return (
        f"no network namespace can be made: {words} (a seccomp profile or a security module forbids it; as root, with"
        " CAP_SYS_ADMIN, it needs no user namespace)"
    )
