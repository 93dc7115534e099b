"""The agent as a process to be measured, and the kernel's count of commits."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from bench.api_objects import NODE
from rules.netlink import GETGEN, NETLINK_NETFILTER, attributes, message, messages

PATIENCE: Final = 120.0


class Agent:
    """`kube-proxy-nft run` in this namespace, since `started` (time.monotonic()). Its log goes to the file `log`."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        argv = [sys.executable, "-m", "proxy", "run", "--kubeconfig", str(kubeconfig), "--node", NODE]
        hidden = ("PYTHONUNBUFFERED", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
        variables = {name: value for name, value in os.environ.items() if name not in hidden}
        self._log = log
        with log.open("wb") as output:
            self.started = time.monotonic()
            self._process = subprocess.Popen(argv, stderr=output, env=variables)

    def committed(self, generations: Generations, before: int) -> float:
        """Wait for a commit after generation `before`. Returns the seconds since the start."""
        while generations.current() == before:
            seconds = time.monotonic() - self.started
            if self._process.poll() is not None or seconds > PATIENCE:
                raise SystemExit(f"the agent did not program anything:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.0005)
        return time.monotonic() - self.started

    def memory(self, what: str) -> float:
        """VmHWM (peak) or VmRSS (now), in MB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(what)) / 1024

    def cpu(self) -> float:
        """Seconds of CPU so far: the user's and the system's."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """May be called twice."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE)


class Generations:
    """Asks the kernel how often nftables has been committed in this namespace. Asking costs a commit nothing, as a
    listener does that wants to be told of every element."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self._socket.bind((0, 0))

    def current(self) -> int:
        self._socket.send(message(GETGEN, 0, 1, 0, b""))
        [reply] = messages(self._socket.recv(1 << 16))
        return int.from_bytes(dict(attributes(reply.body[4:]))[1])
