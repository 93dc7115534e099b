"""Programs that do, or may do, kube-proxy's work: told by their processes and interfaces."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from proxy.detect import interfaces
from proxy.detect.evidence import Evidence, OtherProxy, Place, Sure
from proxy.detect.processes import RunningProxy
from proxy.detect.unreadable import because

CILIUM_SETTING: Final = "kube-proxy-replacement"
CILIUM_CONFIG: Final = "tmp/cilium/config-map"
"""Where the agent's pod has its ConfigMap: one file for each key."""


class Signs(Struct, frozen=True):
    """What shows a program. alone: how sure the interface is without the process; both: with it."""

    program: str
    process: str
    interface: str
    alone: Sure
    both: Sure


SIGNS: Final = (
    # Whether it replaces kube-proxy is a setting of Cilium's.
    Signs("cilium", "cilium-agent", "cilium_host", "possible", "possible"),
    # Felix makes it for eBPF mode, and removes it when that is switched off.
    Signs("calico-ebpf", "calico-node", "bpfin.cali", "likely", "certain"),
    # Of its service proxy alone.
    Signs("kube-router", "kube-router", "kube-dummy-if", "likely", "certain"),
    # By default only what pods send to Services; kube-proxy does the rest.
    Signs("antrea", "antrea-agent", "antrea-gw0", "possible", "possible"),
    Signs("ovn-kubernetes", "ovnkube", "ovn-k8s-mp0", "likely", "certain"),
)


def gather(running: Sequence[RunningProxy]) -> list[Evidence]:
    """running: as processes.scan gives it."""
    found: list[Evidence] = []
    there: Collection[str] = ()
    try:
        there = interfaces.indexes([signs.interface for signs in SIGNS])
    except (OSError, ValueError) as error:
        found.append(because(Place("interface", "all"), error, "allow AF_NETLINK sockets"))
    for signs in SIGNS:
        process = next((p for p in running if p.program == signs.process), None)
        shows = signs.interface in there
        sure = _sure(signs, process, shows)
        if sure:
            place = process.place if process else Place("interface", signs.interface)
            found.append(OtherProxy(place=place, sure=sure, program=signs.program))
    return found


def _sure(signs: Signs, process: RunningProxy | None, shows: bool) -> Sure | None:
    """How sure it is that the program does kube-proxy's work; None: it does not."""
    if process is None:
        return signs.alone if shows else None
    if signs.program == "cilium":
        return {True: "certain", False: None, None: "possible"}[cilium_replaces(process)]
    if signs.program == "kube-router":
        return None if "--run-service-proxy=false" in process.argv else "certain"
    if signs.program == "calico-ebpf":
        return signs.both if shows else None
    return signs.both if shows else "possible"


def cilium_replaces(process: RunningProxy) -> bool | None:
    """What Cilium's flag, else its configuration, says about replacing kube-proxy; None where that cannot be read or
    means a part of the work."""
    flag = next((w.partition("=")[2] for w in process.argv if w.startswith(f"--{CILIUM_SETTING}=")), "")
    word = flag or _first_line(Path(process.root, CILIUM_CONFIG, CILIUM_SETTING))
    if re.fullmatch("true|strict", word, re.IGNORECASE):
        return True
    return False if re.fullmatch("false|disabled", word, re.IGNORECASE) else None


def _first_line(path: Path) -> str:
    """'' if it is no file: what a container has there may be anything, such as a pipe that nobody writes to."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), errors="replace") as file:
            return file.readline(64).strip() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else ""
    except OSError:
        return ""
