"""Network namespaces with names, things that run inside them, and what a killed run left behind.

Names are `kpn-<pid of the run>-<number>-<host>`, so runs do not meet, and one whose process is gone can be told.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from proxy.errors import NoPermission, UserError

PREFIX: Final = "kpn-"
DIRECTORY: Final = Path("/var/run/netns").resolve()  # where iproute2 keeps them
CLONE_NEWNET: Final = 0x40000000
_OURS: Final = re.compile(rf"{PREFIX}(\d+)-\d+-")
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """One network namespace, by name. It exists between `create` and `delete`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._started: list[subprocess.Popen[str]] = []

    def __repr__(self) -> str:
        return f"Namespace({self.name!r})"

    def join(self) -> None:
        """Move the calling thread, and no other, into the namespace for good. New threads and processes follow it."""
        with (DIRECTORY / self.name).open() as target:
            enter(target)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread is in the namespace inside the `with` block. Sockets made there stay there."""
        with Path("/proc/thread-self/ns/net").open() as home:
            try:
                self.join()
                yield
            finally:
                enter(home)

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A socket of this namespace, usable from any thread."""
        with self.entered():
            return socket.socket(family, kind, protocol)

    def run(self, argv: Sequence[str], *, text_in: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command inside and wait. With `check`, an exit code other than 0 raises UserError with its output."""
        with self.entered():
            return _run(argv, text_in, check)

    def popen(
        self, argv: Sequence[str], *, stderr: int | IO[str] | None = None, env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command inside, in a process group of its own.

        It is killed when the calling *thread* ends, so that nothing outlives a run that was killed: call it from a
        thread that stays. `stop` ends it in order, `end` all of the namespace.
        """
        # The shell looks whether we are still there: a parent that died before prctl() sends no signal any more.
        alive = ["sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"', str(os.getpid())]
        dies_with_us = ["setpriv", "--pdeathsig", "KILL", "--", *alive]
        with self.entered():
            process = subprocess.Popen(
                [*dies_with_us, *argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=env,
                text=True,
                process_group=0,
            )
        self._started.append(process)
        return process

    def end(self) -> None:
        """Stop every process of `popen`. May be called twice."""
        for process in self._started:
            stop(process)

    def ip(self, commands: Iterable[str]) -> None:
        """Run iproute2 commands inside, one a line without the word `ip`, with one process for all."""
        _run(["ip", "-n", self.name, "-batch", "-"], "\n".join(commands))

    def sysctl(self, **values: str | int) -> None:
        """Set `net.*` sysctls of the namespace; `__` stands for the dots: `ipv4__ip_forward=1`."""
        with self.entered():
            for name, value in values.items():
                path = Path("/proc/sys/net", *name.split("__"))
                try:
                    path.write_text(f"{value}\n")
                except OSError as e:
                    what = f"sysctl net.{name.replace('__', '.')}"
                    raise NoPermission(
                        what, str(e.strerror), "in a container, /proc/sys must be writable: run it --privileged"
                    ) from None


def require(*programs: str) -> None:
    """Raise UserError for the first of these programs that is not installed."""
    packages = {
        "ip": "iproute2",
        "nft": "nftables",
        "unshare": "util-linux",
        "setpriv": "util-linux",
        "nsenter": "util-linux",
    }
    for program in programs:
        if shutil.which(program) is None:
            package = packages.get(program, program)
            raise UserError(f"program {program!r}", "it is not installed", f"install the package {package}")


def create(namespaces: Iterable[Namespace]) -> None:
    """Create them, each with its loopback interface up."""
    names = [n.name for n in namespaces]
    _run(["ip", "-batch", "-"], "\n".join(f"netns add {name}" for name in names))
    for name in names:
        _run(["ip", "-n", name, "link", "set", "lo", "up"])


def delete(names: Iterable[str]) -> None:
    """Delete those of these namespaces that exist. Processes inside live on, and keep them alive: end them first."""
    there = [name for name in names if (DIRECTORY / name).exists()]
    if there:
        _run(["ip", "-force", "-batch", "-"], "\n".join(f"netns del {name}" for name in there), check=False)


def stop(process: subprocess.Popen[str], patience: float = 5.0) -> None:
    """End a process of `Namespace.popen` and its children: SIGTERM, and SIGKILL after `patience` seconds."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def of_run(pid: int) -> list[str]:
    """Names of the namespaces that the run with this process id has now."""
    return sorted(p.name for p in DIRECTORY.glob(f"{PREFIX}{pid}-*"))


def remove_leftovers() -> list[str]:
    """End the processes and delete the namespaces of runs that were killed. Returns the names of the namespaces."""
    names = [p.name for p in DIRECTORY.glob(f"{PREFIX}*")]
    dead = [n for n in names if (m := _OURS.match(n)) and not Path("/proc", m[1]).exists()]
    for name in dead:
        for pid in _run(["ip", "netns", "pids", name], check=False).stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    delete(dead)
    return dead


def in_thread(namespace: Namespace, name: str, work: Callable[[], None]) -> threading.Thread:
    """Start a thread that lives in the namespace and does `work`."""

    def inside() -> None:
        namespace.join()
        work()

    thread = threading.Thread(target=inside, name=name, daemon=True)
    thread.start()
    return thread


def enter(target: IO[str]) -> None:
    """Move the calling thread into the network namespace that this file is. Raises NoPermission."""
    if _libc.setns(target.fileno(), CLONE_NEWNET):
        code = ctypes.get_errno()
        raise NoPermission("entering a network namespace", os.strerror(code), "CAP_SYS_ADMIN is needed")


def _run(argv: Sequence[str], text_in: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, input=text_in, capture_output=True, text=True, check=False, process_group=0)
    if check and done.returncode:
        output = " ".join((done.stderr + done.stdout).split()) or f"exit code {done.returncode}"
        raise UserError(" ".join(argv), output)
    return done
