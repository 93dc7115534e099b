"""Servers as child processes: started, waited for, stopped; when one fails, its log says why."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from proxy.errors import UserError

_TAIL = 30
_POLL = 0.05


class ServerProcess:
    """One server, whose output goes to the file `log`. It ends with the thread that started it, at the latest."""

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        self.name, self._log = Path(argv[0]).name, log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                process_group=0,
            )

    def wait_for(self, ready: Callable[[], bool], patience: float) -> None:
        """Wait until `ready()`. Raises UserError with the end of the log if the process ends, or it takes too long."""
        deadline = time.monotonic() + patience
        while not ready():
            if self._process.poll() is not None:
                raise self._failed(f"it ended with exit code {self._process.returncode}")
            if time.monotonic() > deadline:
                raise self._failed(f"it was not ready within {patience:g} s")
            time.sleep(_POLL)

    def _failed(self, cause: str) -> UserError:
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-_TAIL:])
        return UserError(self.name, cause, f"the end of {self._log}:\n{tail}")

    def stop(self, patience: float = 20.0) -> None:
        """SIGTERM, and SIGKILL when that is not enough. May be called twice."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on, outside of what the kernel gives to clients."""
    for _ in range(100):
        port = random.randrange(20000, 30000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise UserError("127.0.0.1", "there is no free port from 20000 to 30000")
