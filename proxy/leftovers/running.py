"""Whether a kube-proxy runs in this network namespace: it would put back what is removed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from proxy.detect import processes, proxy_ports
from proxy.detect.evidence import Evidence, ServedMode
from proxy.detect.processes import RunningProxy
from proxy.port_holders import holders

EMBEDDING: Final = ("k3s", "rke2", "kubelite")
"""Programs that have a kube-proxy in them, which may be switched off."""
SPOTS: Final = frozenset((host, port) for host in ("127.0.0.1", "::1") for port in (10249, 10256))
"""Where a kube-proxy listens: metrics and health checks."""


class Running(Struct, frozen=True):
    """what: for people. pid: 0 if its process is not to be seen."""

    what: str
    pid: int = 0

    @property
    def may_run(self) -> bool:
        """Whether the process is still there; False where it was never to be seen."""
        return bool(self.pid) and os.path.exists(f"/proc/{self.pid}")


def find(running: Sequence[RunningProxy] | None = None) -> list[Running]:
    """Kube-proxies of the calling thread's network namespace. running: what processes.scan gave, if it has been called.

    In a container that sees no processes but its own, the port tells: /proxyMode.
    """
    return told(processes.scan() if running is None else running, lambda: holders(SPOTS).values(), proxy_ports.gather)


def told(
    running: Sequence[RunningProxy], holding: Callable[[], Iterable[str]], served: Callable[[], Iterable[Evidence]]
) -> list[Running]:
    """holding: who listens on SPOTS, as "name (pid 1)". served: what answers at /proxyMode. Pure, but for these two."""
    found = [Running(f"process {p.pid} (kube-proxy)", p.pid) for p in running if p.program == "kube-proxy"]
    embedding = [p for p in running if p.program in EMBEDDING]
    if embedding:
        pids = {int(name.rpartition("(pid ")[2].rstrip(")")) for name in holding()}
        found += [
            Running(f"process {p.pid} ({p.program}, with a kube-proxy in it)", p.pid)
            for p in embedding
            if p.pid in pids
        ]
    if not found:
        found = [
            Running(f"what answers at {e.place.name} (mode {e.mode})") for e in served() if isinstance(e, ServedMode)
        ]
    return found
