"""What machine it is that measures, and of what: without it no figure means anything."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

from proxy.command_line import version

CHECKOUT: Final = Path(__file__).resolve().parent.parent


def describe() -> dict[str, Any]:
    """All strings are '' where they are not known. load: the averages of 1, 5 and 15 minutes. memory: MB."""
    return {
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text()),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", "") if _has_os_release() else "",
        "virtual": _said("systemd-detect-virt"),
        "python": platform.python_version(),
        "nft": _said("nft", "--version"),
        "iptables": _said("iptables", "--version"),
        "load": list(os.getloadavg()),
        "version": version(),
        "commit": _said("git", "-C", str(CHECKOUT), "rev-parse", "HEAD"),
        "changed": bool(_said("git", "-C", str(CHECKOUT), "status", "--porcelain", "--untracked-files=no")),
    }


def busy(load: float, cores: int) -> str:
    """A warning, if the machine has other things to do; ''."""
    if load <= 1.0:
        return ""
    return (
        f"the load average is {load:.1f} at the start, on {cores} cores: others use this machine, "
        "and the figures are worse than they should be"
    )


def cpu_model(cpuinfo: str) -> str:
    """From /proc/cpuinfo; '' where it does not say."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return " ".join(value.split())
    return ""


def _has_os_release() -> bool:
    return any(Path(path).exists() for path in ("/etc/os-release", "/usr/lib/os-release"))


def _said(*argv: str) -> str:
    if not shutil.which(argv[0]):
        return ""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
