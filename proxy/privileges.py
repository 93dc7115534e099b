"""What the running agent gives up of its privileges, so that who takes it over has no more than it needs.

capabilities(7), prctl(2), linux/capability.h, linux/prctl.h. All of it only ever takes away, and where the kernel refuses
a step, the agent runs without that step.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Collection, Iterable
from typing import Final

import structlog

LOG = structlog.get_logger()

DAC_READ_SEARCH, SETPCAP, NET_BIND_SERVICE, NET_ADMIN = 2, 8, 10, 12

NEEDED: Final = {
    NET_ADMIN: "nftables, conntrack and its settings, sizes of netlink's buffers",
    NET_BIND_SERVICE: "healthCheckNodePorts and NodePorts of localhost below 1024, which a Service may bring at any time",
}
"""Kept, if they are there, and why."""

_NAMES: Final = {
    DAC_READ_SEARCH: "CAP_DAC_READ_SEARCH",
    NET_BIND_SERVICE: "CAP_NET_BIND_SERVICE",
    NET_ADMIN: "CAP_NET_ADMIN",
}
_VERSION: Final = 0x20080522  # _LINUX_CAPABILITY_VERSION_3: sets of 64 bits, in two halves
_HEADER = struct.Struct("=Ii")
_SETS = struct.Struct("=6I")
_PR_SET_DUMPABLE, _PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 4, 23, 24, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def drop(reads: Iterable[str] = ()) -> None:
    """Give up, for ever, what `NEEDED` does not name: of this thread, and of threads and programs that it starts from now
    on. So call it before there are other threads. Never raises.

    reads: files and directories of the configuration that are read again later. Where this user may not read them without
    CAP_DAC_READ_SEARCH (root reads a user's files), that is kept, too.
    """
    refused: dict[str, str] = {}
    kept: frozenset[int] = frozenset()
    try:
        # Nothing that is executed gets more than we have, be it setuid or root's.
        _try(refused, "no_new_privileges", _PR_SET_NO_NEW_PRIVS, 1)
        _try(refused, "ambient", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
        kept = _drop_capabilities(refused, reads)
        # Nobody without CAP_SYS_PTRACE looks into our memory, where the account's token is, nor is it in a core dump.
        _try(refused, "dumpable", _PR_SET_DUMPABLE, 0)
    except (OSError, AttributeError) as error:  # AttributeError: a C library without capset
        refused["capabilities"] = str(error)
    for what, cause in refused.items():
        LOG.debug("privilege_not_dropped", what=what, cause=cause)
    LOG.debug("privileges_dropped", kept=[_NAMES[number] for number in sorted(kept)])


def _drop_capabilities(refused: dict[str, str], reads: Iterable[str]) -> frozenset[int]:
    """Returns those that are left. Raises OSError."""
    permitted = _permitted()
    kept = frozenset(permitted & NEEDED.keys())
    _set(kept | (permitted & {SETPCAP}), permitted)  # as if the others were gone already
    modules = (__file__, *sys.path)  # not all have been imported
    if DAC_READ_SEARCH in permitted and (any(map(_is_closed, modules)) or any(map(_may_be_closed, reads))):
        kept |= {DAC_READ_SEARCH}
    number = 0
    while _prctl(_PR_CAPBSET_READ, number) >= 0:
        if number not in kept and not _try(refused, "bounding set", _PR_CAPBSET_DROP, number):
            break  # without CAP_SETPCAP, none of them
        number += 1
    _set(kept, kept)
    return kept


def _is_closed(path: str) -> bool:
    """Whether it takes privileges to read this file or directory."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return isinstance(error, PermissionError)  # if it is not there, no privilege helps
    return False


def _may_be_closed(path: str) -> bool:
    """The same; of a directory: or for what is in it, or will be put into it by its owner."""
    if _is_closed(path):
        return True
    try:
        if not os.path.isdir(path):
            return False
        inside = (os.path.join(path, name) for name in os.listdir(path))
        return os.stat(path).st_uid != os.geteuid() or any(map(_is_closed, inside))
    except OSError:
        return False


def _permitted() -> frozenset[int]:
    """Of this thread."""
    sets = ctypes.create_string_buffer(_SETS.size)
    _check(_LIBC.capget(_header(), sets))
    _, low, _, _, high, _ = _SETS.unpack(sets.raw)
    return frozenset(number for number in range(64) if (low | high << 32) >> number & 1)


def _set(effective: Collection[int], permitted: Collection[int]) -> None:
    """Of this thread. None is inheritable: that would be for programs that it executes."""
    e, p = (sum(1 << number for number in each) for each in (effective, permitted))
    half = 0xFFFFFFFF
    _check(_LIBC.capset(_header(), _SETS.pack(e & half, p & half, 0, e >> 32, p >> 32, 0)))


def _header() -> ctypes.Array[ctypes.c_char]:
    # The kernel writes into it, if it does not like the version. pid 0: this thread.
    return ctypes.create_string_buffer(_HEADER.pack(_VERSION, 0), _HEADER.size)


def _try(refused: dict[str, str], what: str, option: int, value: int) -> bool:
    if _prctl(option, value) == 0:
        return True
    refused[what] = os.strerror(ctypes.get_errno())
    return False


def _prctl(option: int, value: int) -> int:
    return int(_LIBC.prctl(option, *(ctypes.c_ulong(number) for number in (value, 0, 0, 0))))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
