"""When nftables is committed in this network namespace, from a process of its own: see `Generations`.

It asks the kernel for the number of the generation, again and again: that costs a commit nothing, where a listener on the
multicast group is told of every element of a first load. This file is the program too.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from typing import Final, NamedTuple

from rules.netlink import GETGEN, NETLINK_NETFILTER, attributes, message, messages

EVERY: Final = 0.0005
"""Seconds between two questions: so late a commit may be known."""


class Commits(NamedTuple):
    """So many (`number`) that were seen together, the last of them at `at` (seconds, time.monotonic())."""

    at: float
    number: int


class Generations:
    """Asks from now until `stop`."""

    def __init__(self) -> None:
        argv = [sys.executable, "-m", "bench.generations"]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout
        self._output = self._process.stdout.fileno()
        self._rest = b""
        self.next(60.0)

    def next(self, timeout: float) -> list[Commits]:
        """Those since the last call; waits up to `timeout` seconds for one."""
        if not select.select([self._output], [], [], max(0.0, timeout))[0]:
            return []
        data = os.read(self._output, 1 << 16)
        if not data:
            raise RuntimeError("the process that asks nftables for its generation has ended")
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = [line.split() for line in lines]
        return [Commits(int(at) / 1e9, int(number)) for at, number in found]

    def forget(self) -> None:
        """What there was until now."""
        time.sleep(4 * EVERY)
        while self.next(0):
            pass

    def stop(self) -> None:
        """May be called twice."""
        if self._process.poll() is None:
            self._process.communicate()


def current(kernel: socket.socket) -> int:
    kernel.send(message(GETGEN, 0, 1, 0, b""))
    [reply] = messages(kernel.recv(1 << 16))
    return int.from_bytes(dict(attributes(reply.body[4:]))[1])


def main() -> None:
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    kernel.bind((0, 0))
    before = current(kernel)
    print("0 0", flush=True)
    while not select.select([0], [], [], EVERY)[0]:
        if (now := current(kernel)) != before:
            print(time.monotonic_ns(), (now - before) & 0xFFFFFFFF, flush=True)
            before = now


if __name__ == "__main__":
    main()
