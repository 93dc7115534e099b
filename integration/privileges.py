"""Enough privileges to make network namespaces: root has them, anybody else gets them in a user namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final, NoReturn

from integration.namespaces import DIRECTORY, require
from proxy.errors import NoPermission

_CAP_NET_ADMIN: Final = 12
_CAP_SYS_ADMIN: Final = 21
_UNSHARE: Final = ("unshare", "--user", "--map-root-user", "--net", "--mount")
_SWITCHES: Final = (  # sysctls that forbid user namespaces to ordinary users: file, the value that forbids, what to set
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"),
    ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
)


def acquire() -> None:
    """Return if this process may make network namespaces; otherwise start the same command again in a user namespace.

    Call it first thing in a command: the restart keeps process id, arguments and environment, and nothing else.
    Raises NoPermission where user namespaces are not allowed, with the remedy.
    """
    if not _privileged():
        _restart()
    _need_writable_directory()


def rootless() -> bool:
    """True inside a user namespace: uid 0 is not the machine's root."""
    return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]


def refusal() -> str:
    """Why this user cannot make a user namespace with a network, or ''."""
    probe = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
    return "" if probe.returncode == 0 else probe.stderr.strip() or f"exit code {probe.returncode}"


def _privileged() -> bool:
    status = Path("/proc/self/status").read_text()
    effective = int(status.split("CapEff:")[1].split()[0], 16)
    return all(effective >> cap & 1 for cap in (_CAP_NET_ADMIN, _CAP_SYS_ADMIN))


def _restart() -> NoReturn:
    require("unshare")
    if why := refusal():
        raise NoPermission("network namespaces", f"not root, and no user namespace to be had: {why}", _remedy())
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(_UNSHARE[0], [*_UNSHARE, sys.executable, *sys.orig_argv[1:]])


def _remedy() -> str:
    wanted = [
        setting
        for file, forbids, setting in _SWITCHES
        if (path := Path("/proc/sys", file)).exists() and path.read_text().strip() == forbids
    ]
    by_sysctl = f", or allow user namespaces: sysctl -w {' '.join(wanted)}" if wanted else ""
    return f"run it as root (in a container, with --privileged){by_sysctl}"


def _need_writable_directory() -> None:
    """In a user namespace the machine's /run is not ours: put a file system of our own over it, seen by us alone."""
    if os.access(DIRECTORY if DIRECTORY.is_dir() else DIRECTORY.parent, os.W_OK):
        return
    over = DIRECTORY if DIRECTORY.is_dir() else DIRECTORY.parent
    require("mount")
    done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(over)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoPermission(
            str(over), f"not writable, and nothing can be mounted there: {done.stderr.strip()}", "run it as root"
        )
