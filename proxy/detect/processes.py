"""Processes that are a Service proxy, have one in them, or start one: proc_pid_cmdline(5).

Only those of the calling thread's network namespace, where the rules are that they program. In a container without
`hostPID` there are only its own to be seen.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from proxy.detect.evidence import Evidence, Place, Unreadable

LARGEST: Final = 1 << 17  # bytes of a command line that are read
_ALONE: Final = frozenset(
    {
        "kube-proxy",
        "kubelet",
        "kubelite",  # microk8s: kubelet, kube-proxy and all in one
        "cilium-agent",
        "kube-router",
        "antrea-agent",
        "ovnkube",
    }
)
_WITH_WORD: Final = {
    ("k3s", "server"): "k3s",
    ("k3s", "agent"): "k3s",
    ("rke2", "server"): "rke2",
    ("rke2", "agent"): "rke2",
    ("hyperkube", "kube-proxy"): "kube-proxy",
    ("hyperkube", "proxy"): "kube-proxy",
    ("hyperkube", "kubelet"): "kubelet",
    ("calico-node", "-felix"): "calico-node",
}
_INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO of linux/proc_ns.h


class RunningProxy(Struct, frozen=True):
    """program: "kube-proxy", "k3s", "rke2", "kubelite", "kubelet", "cilium-agent", "calico-node", "kube-router",
    "antrea-agent" or "ovnkube". argv: its command line; one word only where the process has put a title there.
    root: its root directory as we see it. A symbolic link in it that begins with / leads into our own root."""

    pid: int
    program: str
    argv: tuple[str, ...]
    root: str

    @property
    def place(self) -> Place:
        return Place("process", f"{self.pid} ({self.program})")


def scan(proc: Path = Path("/proc")) -> list[RunningProxy]:
    """By process identifier. Those that end meanwhile, or are not for us to see, are left out."""
    here = _namespace(proc / "thread-self")
    found = []
    try:
        pids = sorted(int(name) for name in os.listdir(proc) if name.isdecimal())
    except OSError:
        return []
    for pid in pids:
        process = proc / str(pid)
        argv = _command(process)
        program = identify(argv)
        if program and _namespace(process) in (here, ""):
            found.append(RunningProxy(pid, program, argv, str(process / "root")))
    return found


def identify(argv: Sequence[str]) -> str:
    """The program of a command line, '' if it is none of ours. Pure."""
    # k3s puts a title in the place of its arguments, which may hold secrets: "/usr/local/bin/k3s server".
    words = argv[0].split() if len(argv) == 1 else argv
    if not words:
        return ""
    name = words[0].rpartition("/")[2]
    if name in _ALONE:
        return name
    return _WITH_WORD.get((name, words[1]), "") if len(words) > 1 else ""


def blindness(running: Sequence[RunningProxy], proc: Path = Path("/proc")) -> list[Evidence]:
    """What to say where a container hides the node's processes."""
    try:
        inside = os.readlink(proc / "self/ns/pid") != _INITIAL_PID_NAMESPACE
    except OSError:
        inside = True
    if running or not inside:
        return []
    cause = "a container sees its own processes only"
    return [Unreadable(place=Place("process", "all"), cause=cause, remedy="give the pod hostPID: true", harmless=True)]


def _command(process: Path) -> tuple[str, ...]:
    try:
        with open(process / "cmdline", "rb") as file:
            line = file.read(LARGEST)
    except OSError:
        return ()
    return tuple(word.decode(errors="replace") for word in line.rstrip(b"\0").split(b"\0")) if line else ()


def _namespace(process: Path) -> str:
    """Its network namespace, '' where that is not for us to see."""
    try:
        return os.readlink(process / "ns/net")
    except OSError:
        return ""
