"""Too little of something: disk, buffers, memory, a clock that can be trusted. Each does it once and returns the seconds
until all was right again."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from integration.faults.stage import NODE, Stage, Wrong, by_hand

MEMORY: Final = 160 << 20
JUMPS: Final = (86_400, -86_400, 10 * 365 * 86_400, 0)
"""Seconds that the clock is off, one after the other."""
_NUMBERS: Final = itertools.count(1)
_CONTROLLER_2, _CONTROLLER_1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")
# A file system of 64 KiB that is full, seen by the agent alone, with its log and its configuration.
_FULL_DISK: Final = (
    'mount -t tmpfs -o size=64k tmpfs "$0" && echo "$CONFIGURATION" >"$0/config.yaml" && '
    '{ cat /dev/zero >"$0/zeros" 2>&1; TMPDIR="$0" exec "$@" 2>"$0/log"; }'
)


class Unavailable(Exception):
    """It cannot be done on this machine."""


def no_log(stage: Stage) -> float:
    """Standard error is a device that is full."""
    with _agent(stage, wrap=["sh", "-c", 'exec "$@" 2>/dev/full', "sh"]):
        return _change_and_mend(stage)


def full_disk(stage: Stage) -> float:
    """Log, configuration and temporary files are on a file system that is full; a new configuration cannot be written."""
    directory = Path(tempfile.mkdtemp(dir=stage.directory))
    kind = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}
    config = json.dumps(kind | {"hostnameOverride": NODE, "clientConnection": {"kubeconfig": stage.kubeconfig}})
    wrap = ["env", f"CONFIGURATION={config}", "unshare", "--mount", "sh", "-c", _FULL_DISK, str(directory)]
    with _agent(stage, wrap=wrap, options=["--config", str(directory / "config.yaml")]):
        seen = Path(f"/proc/{stage.agent.process.pid}/root{directory}")
        try:
            (seen / "new.yaml").write_text(config * 10)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        else:
            raise Wrong(f"{directory} is not full")
        with suppress(OSError):
            (seen / "config.yaml").write_text("")  # by somebody who does not write beside and rename
        return _change_and_mend(stage)


def clock(stage: Stage) -> float:
    """The wall clock jumps, forward and back, by years: the longest time to be right after any of it."""
    file = stage.directory / f"clock-{next(_NUMBERS)}"
    file.write_text("0")
    with _agent(stage, shims=[f"clock={file}"]):
        seconds = []
        for jump in JUMPS:
            beside = file.with_suffix(".new")
            beside.write_text(str(jump))
            beside.rename(file)
            seconds.append(_change_and_mend(stage))
        return max(seconds)


def buffers(stage: Stage) -> float:
    """Netlink's receive buffers are as small as can be: for all of nftables' changes, and for the kernel's answers."""
    with _agent(stage, shims=["buffers=small"]):
        elements = ", ".join(f"10.0.{i >> 8}.{i & 255}" for i in range(2000))
        stage.nft(
            "add table ip foreign; add set ip foreign many { type ipv4_addr; }; "
            f"add element ip foreign many {{ {elements} }}; delete table ip foreign"
        )
        changed = stage.right_since(stage.change(stage.services))
        return max(changed, stage.right_since(stage.nft(by_hand("flush chain T4 services; flush chain T6 services"))))


def memory(stage: Stage) -> float:
    """No more than MEMORY, of which the kernel takes what it needs for the rules: to take them over, to change them (all at
    once, too) and mend them, and to replace them all."""
    with limited(MEMORY) as limit:
        with _agent(stage, wrap=limit.wrap):
            seconds = _change_and_mend(stage)
            stage.right_since(stage.change(stage.services))
            stage.kill()
            stage.nft(by_hand("add chain T4 foreign; add chain T6 foreign"))
            stage.start(wrap=limit.wrap)
        if limit.kills():
            raise Wrong(f"the kernel killed {limit.kills()} processes for want of memory")
        return seconds


def _change_and_mend(stage: Stage) -> float:
    changed = stage.right_since(stage.change(min(100, stage.services)))
    return max(changed, stage.right_since(stage.nft(by_hand("flush chain T4 services"))))


@contextmanager
def _agent(
    stage: Stage, *, shims: Sequence[str] = (), options: Sequence[str] = (), wrap: Sequence[str] = ()
) -> Iterator[None]:
    """One that is started in a special way inside the block, and an ordinary one again after it."""
    stage.kill(signal.SIGTERM)
    stage.start(shims=shims, options=options, wrap=wrap)
    stage.right_since(stage.change(1))  # so it has come so far, whether its log can be read or not
    yield
    stage.need_agent()
    stage.kill(signal.SIGTERM)
    stage.start()


class Limit:
    """A control group for memory, of either version. wrap: a command that starts what follows it inside."""

    def __init__(self, directory: Path, size: int) -> None:
        self._directory = directory
        self._is_old = (directory / "memory.limit_in_bytes").exists()
        (directory / ("memory.limit_in_bytes" if self._is_old else "memory.max")).write_text(str(size))
        self.wrap = ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(directory)]

    def kills(self) -> int:
        """How many processes the kernel has killed."""
        name = "memory.oom_control" if self._is_old else "memory.events"
        fields = dict(line.split() for line in (self._directory / name).read_text().splitlines())
        return int(fields.get("oom_kill", 0))

    def peak(self) -> float:
        """The most that was used, in MB, page cache and all. (0.0: version 2 before Linux 5.19.)"""
        file = self._directory / ("memory.max_usage_in_bytes" if self._is_old else "memory.peak")
        return int(file.read_text()) / (1 << 20) if file.exists() else 0.0


@contextmanager
def limited(size: int) -> Iterator[Limit]:
    """Raises Unavailable where control groups for memory cannot be made."""
    name = f"kpn-{os.getpid()}-{next(_NUMBERS)}"
    controllers = _CONTROLLER_2 / "cgroup.controllers"
    try:
        if controllers.exists():
            if "memory" not in (_CONTROLLER_2 / "cgroup.subtree_control").read_text().split():
                (_CONTROLLER_2 / "cgroup.subtree_control").write_text("+memory")
            directory = _CONTROLLER_2 / name
        else:
            directory = _CONTROLLER_1 / name
        directory.mkdir()
    except OSError as error:
        raise Unavailable(f"no control groups for memory: {error}") from None
    try:
        yield Limit(directory, size)
    finally:
        with suppress(OSError):
            directory.rmdir()
