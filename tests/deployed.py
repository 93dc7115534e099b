"""The agent as deploy/ runs it: a process in the container of the DaemonSet, and what it logs."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from tests import container
from tests.container import PROGRAM, Mount
from tests.kustomize import Object
from tests.netns import Namespace

ADDRESS = "192.0.2.1"
"""The node's."""
WAIT = 20.0

_LIBC = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")


class Agent:
    """The agent in its container. `events`: what it has logged so far."""

    def __init__(self, engine: subprocess.Popen[str]) -> None:
        self.engine = engine
        self.events: list[Object] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.engine.stderr
        for line in self.engine.stderr:
            is_event = line.startswith("{")
            self.events.append(
                json.loads(line) if is_event else {"event": "other_words", "level": "error", "text": line}
            )

    def wait_for(self, event: str) -> Object:
        wait_until(lambda: bool(self.of(event)) or not self._reader.is_alive(), self.events)
        assert self.of(event), self.events
        return self.of(event)[0]

    def of(self, *names: str) -> list[Object]:
        return [event for event in list(self.events) if event["event"] in names]

    @property
    def complaints(self) -> list[Object]:
        return [event for event in list(self.events) if event["level"] in ("warning", "error", "critical")]

    def terminate(self) -> int:
        """As a kubelet ends it. Returns the exit code."""
        os.kill(container.first_process(self.engine), signal.SIGTERM)
        return self.end()

    def end(self) -> int:
        """What is left of it is in `events` after this. Returns the exit code."""
        code = self.engine.wait(timeout=WAIT)
        self._reader.join()
        return code


def wait_until(done: Callable[[], bool], what: object) -> None:
    deadline = time.monotonic() + WAIT
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@contextlib.contextmanager
def running(namespace: Namespace, daemonset: Object, mounts: list[Mount], *more: str) -> Iterator[Agent]:
    """more: arguments that the DaemonSet does not have."""
    for change in (["link", "set", "lo", "up"], ["address", "replace", f"{ADDRESS}/32", "dev", "lo"]):
        assert namespace.run("ip", *change).returncode == 0
    command = [*PROGRAM, *container.arguments(daemonset), *more]
    engine = container.start(namespace, daemonset, mounts, command)
    try:
        yield Agent(engine)
    finally:
        engine.kill()
        engine.wait()


def get(namespace: Namespace, port: int, path: str = "/") -> int:
    """The status of the answer at the node's address, as a kubelet or a load balancer asks; 0: nobody listens."""
    program = f"""
import http.client
connection = http.client.HTTPConnection("{ADDRESS}", {port}, timeout=5)
try:
    connection.request("GET", "{path}")
except ConnectionRefusedError:
    print(0)
else:
    print(connection.getresponse().status)
"""
    done = namespace.run(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def probe(namespace: Namespace, daemonset: Object, name: str) -> int:
    """What a kubelet gets; 0: nobody listens."""
    where = container.container(daemonset)[name]["httpGet"]
    return get(namespace, where["port"], where["path"])
