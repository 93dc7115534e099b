"""The kernel's conntrack settings that the configuration asks for, set once.

Where they may not be written, everything else works: that is a warning that says what to do, never a failed start.

A container that is not privileged has /proc/sys read-only. It can be given the node's directory elsewhere, writable:
then KUBE_PROXY_NFT_SYSCTLS names what stands for /proc/sys there.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

import structlog

from proxy.config import Conntrack

LOG = structlog.get_logger()

ROOT: Final = Path("/proc/sys")
ROOT_VARIABLE: Final = "KUBE_PROXY_NFT_SYSCTLS"
DIRECTORY: Final = "net/netfilter"
"""All of them are in it."""

MAX: Final = "net.netfilter.nf_conntrack_max"
BUCKETS: Final = "net.netfilter.nf_conntrack_buckets"
"""The same as the parameter hashsize of the module nf_conntrack."""
RAISED: Final = frozenset({MAX, BUCKETS})
"""Those that are only ever raised: a limit of the whole node that somebody made higher stays."""

SCALED_LIMIT: Final = 1 << 20
"""What maxPerCore yields at most, however many cores there are; each entry takes 320 bytes when it is used."""

_OF_INIT: Final = "set it in the node's own network namespace: it can be written there only"
_REMEDIES: Final = {
    errno.ENOENT: "load the kernel module nf_conntrack before the start"
    f" (and where {ROOT_VARIABLE} is set, mount the node's /proc/sys/{DIRECTORY} below what it names)",
    errno.EROFS: f"mount the node's /proc/sys/{DIRECTORY} writable and set {ROOT_VARIABLE}: see docs/install.md;"
    " or set it on the node",
    errno.EINVAL: "set a value that the kernel takes",
}
_DENIED: Final = "run as root in the node's network namespace with /proc/sys writable, or set it on the node"


def wanted(conntrack: Conntrack, cores: int) -> dict[str, int]:
    """What the configuration asks for; what it leaves as it is, is not there."""
    found: dict[str, int] = {}
    if conntrack.max_per_core > 0:
        entries = max(min(conntrack.max_per_core * cores, SCALED_LIMIT), conntrack.min)
        found[MAX] = entries
        found[BUCKETS] = entries // 4
    for name, seconds in (
        ("tcp_timeout_established", conntrack.tcp_established_timeout),
        ("tcp_timeout_close_wait", conntrack.tcp_close_wait_timeout),
        ("udp_timeout", conntrack.udp_timeout),
        ("udp_timeout_stream", conntrack.udp_stream_timeout),
    ):
        if seconds > 0:
            found[f"net.netfilter.nf_conntrack_{name}"] = max(1, int(seconds))
    if conntrack.tcp_be_liberal:
        found["net.netfilter.nf_conntrack_tcp_be_liberal"] = 1
    return found


def apply(conntrack: Conntrack, root: Path | None = None) -> None:
    """Write what differs, in the network namespace of this thread. The module nf_conntrack must be there already, which
    it is when a table with nat chains is. Logs what it sets, and warns of what it cannot.

    root: what stands for /proc/sys; None: the environment says."""
    root = root or Path(os.environ.get(ROOT_VARIABLE) or ROOT)
    for name, value in wanted(conntrack, os.cpu_count() or 1).items():
        _set(root, name, value)


def _set(root: Path, name: str, value: int) -> None:
    path = root / name.replace(".", "/")
    found: int | None = None
    try:
        found = int(path.read_text())
        if found == value or (name in RAISED and found > value):
            return
        path.write_text(str(value))
    except (OSError, ValueError) as error:
        cause, remedy = _explain(error, name)
        LOG.warning("sysctl_not_set", name=name, wanted=value, found=found, cause=cause, remedy=remedy)
    else:
        LOG.info("sysctl_set", name=name, value=value, before=found)


def _explain(error: OSError | ValueError, name: str) -> tuple[str, str]:
    """Cause and remedy."""
    if not isinstance(error, OSError):
        return str(error), _DENIED
    denied = error.errno in (errno.EACCES, errno.EPERM)
    remedy = _OF_INIT if denied and name in RAISED else _REMEDIES.get(error.errno or 0, _DENIED)
    return error.strerror or str(error), remedy
