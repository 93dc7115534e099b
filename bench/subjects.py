"""Proxies to be measured, ours and others', as processes: what they are started with, what they use, what they say last.

Each is a program that takes `--config FILE` with a KubeProxyConfiguration, and is asked for nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

OURS: Final = "kube-proxy-nft"
PATIENCE: Final = 8.0
"""Seconds that a proxy has to end."""
TAIL: Final = 12
_HIDDEN: Final = (
    "PYTHONUNBUFFERED",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "http_proxy",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
)


@dataclass(frozen=True)
class Subject:
    """name: in tables. argv: without `--config FILE`. mode: what its configuration says."""

    name: str
    argv: tuple[str, ...]
    mode: str = "nftables"


def ours() -> Subject:
    return Subject(OURS, (sys.executable, "-m", "proxy", "run"))


def peers(paths: Sequence[str], mode: str) -> list[Subject]:
    """Named after their files; those of one name get a number."""
    found: list[Subject] = []
    for path in paths:
        name = Path(path).name
        taken = {OURS, *(subject.name for subject in found)}
        number = 2
        unique = name
        while unique in taken:
            unique, number = f"{name} ({number})", number + 1
        found.append(Subject(unique, (str(Path(path).resolve()),), mode))
    return found


def configuration(mode: str, kubeconfig: Path, node: str) -> dict[str, Any]:
    """The same for all. JSON, as the stand-in for the API server speaks nothing else. minSyncPeriod: as short as it can be,
    where kube-proxy's default would hold back each change for up to a second."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "hostnameOverride": node,
        "clusterCIDR": "11.0.0.0/8",
        "clientConnection": {
            "kubeconfig": str(kubeconfig),
            "acceptContentTypes": "application/json",
            "contentType": "application/json",
        },
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        mode: {"minSyncPeriod": "1ms"},
    }


class Ended(Exception):
    """A proxy is gone, and should not be."""


class Running:
    """One that runs since `started` (time.monotonic()), in this namespace, in a session of its own. It does not outlive the
    thread that starts it."""

    def __init__(self, subject: Subject, config: Path, log: Path) -> None:
        self._log = log
        argv = ["setpriv", "--pdeathsig", "KILL", "--", *subject.argv, "--config", str(config)]
        variables = {name: value for name, value in os.environ.items() if name not in _HIDDEN}
        with log.open("wb") as output:
            self.started = time.monotonic()
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raises Ended."""
        if (code := self._process.poll()) is not None:
            raise Ended(f"it ended by itself, with {f'exit code {code}' if code >= 0 else f'signal {-code}'}")

    def memory(self, what: str) -> float:
        """VmHWM (peak) or VmRSS (now), in MB, of it and its children."""
        return sum(_status(pid, what) for pid in self._processes()) / 1024

    def cpu(self) -> float:
        """Seconds of CPU so far, its children's too: those that run now, and those that it has waited for."""
        return sum(_cpu(pid) for pid in self._processes())

    def tail(self) -> list[str]:
        """The end of its log."""
        return self._log.read_text(errors="replace").splitlines()[-TAIL:]

    def stop(self) -> None:
        """May be called twice."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _processes(self) -> list[int]:
        """Those of its session."""
        found = []
        for each in Path("/proc").iterdir():
            if each.name.isdigit():
                with contextlib.suppress(OSError):
                    if _stat(int(each.name))[3] == str(self._process.pid):
                        found.append(int(each.name))
        return found


def _stat(pid: int) -> list[str]:
    """From the state on: proc_pid_stat(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _status(pid: int, what: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{what}:"):
                return int(line.split()[1])
    return 0


def _cpu(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = _stat(pid)
        children = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        # A process's clock counts nanoseconds, where /proc counts hundredths of a second: MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED).
        return children + time.clock_gettime(~pid << 3 | 2)
    return 0.0
