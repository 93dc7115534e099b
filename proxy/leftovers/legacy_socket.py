"""Tables of iptables-legacy, read from the kernel and replaced there, each atomically, as iptables does it.

Needs CAP_NET_ADMIN. Only tables that are there are looked at: asking for another one makes the kernel create it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from proxy.detect.iptables_legacy import INFO, IPV4, IPV6, Variant, read_table, tables
from proxy.leftovers.found import XTable
from proxy.leftovers.legacy_blob import Blob, Info, Replacement, parse, table_of, without
from proxy.leftovers.plan import TableRemoval

SET_REPLACE, SET_ADD_COUNTERS = 64, 65  # IPT_SO_*, and IP6T_SO_*
TRIES: Final = 5
_HOOKS: Final = 5
_REPLACE = struct.Struct("@32sIII5I5IIP")  # struct ipt_replace before its entries
_COUNTER = struct.Struct("=QQ")
_ADD_COUNTERS = struct.Struct("@32sI4x")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
VARIANTS: Final = {"ip": IPV4, "ip6": IPV6}


def read() -> list[XTable]:
    """Those that have a chain of kube-proxy's or kubelet's. Raises OSError, ValueError."""
    found: list[XTable] = []
    for variant in VARIANTS.values():
        for name, blob in _blobs(variant):
            if any(chain.startswith("KUBE-") for chain in blob.chains):
                found.append(table_of(blob, name))
    return found


def _blobs(variant: Variant) -> Iterator[tuple[str, Blob]]:
    try:
        names = tables(variant)
    except FileNotFoundError:  # this kernel has none, or none is loaded
        return
    if not names:
        return
    with _socket(variant) as sock:
        for name in names:
            yield name, _blob(sock.fileno(), variant, name)


def _socket(variant: Variant) -> socket.socket:
    return socket.socket(variant.family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)


def _blob(descriptor: int, variant: Variant, name: str) -> Blob:
    raw, entries = read_table(descriptor, variant, name)
    title, valid, *rest = INFO.unpack(raw)
    hooks, underflows = tuple(rest[:_HOOKS]), tuple(rest[_HOOKS : 2 * _HOOKS])
    count, size = rest[-2:]
    return parse(Info(title, valid, hooks, underflows, count, size), entries, variant)


def remove(removal: TableRemoval) -> None:
    """All of it in one step. Raises OSError; EAGAIN where the table is another one by now: plan anew."""
    variant, name = VARIANTS[removal.table.family], removal.table.name
    with _socket(variant) as sock:
        blob = _blob(sock.fileno(), variant, name)
        if table_of(blob, name) != removal.table:
            raise OSError(errno.EAGAIN, f"{removal.table.place} has just changed")
        new = without(blob, set(removal.chains), set(removal.emptied), {rule.handle for _, rule in removal.rules})
        counters = _replace(sock.fileno(), variant, blob.info.name, new)
        _add_counters(sock.fileno(), variant, blob.info.name, counters)


def _replace(descriptor: int, variant: Variant, name: bytes, new: Replacement) -> list[bytes]:
    """The counters of the rules that are left, as they were."""
    counters = ctypes.create_string_buffer(_COUNTER.size * new.old_count)
    head = _REPLACE.pack(
        name,
        new.valid_hooks,
        len(new.kept),
        len(new.entries),
        *new.hooks,
        *new.underflows,
        new.old_count,
        ctypes.addressof(counters),
    )
    # The structure ends with a flexible array, which must be aligned as the pointer before it is: it is.
    _setsockopt(descriptor, variant.level, SET_REPLACE, head + new.entries)
    raw = counters.raw
    return [raw[number * _COUNTER.size : (number + 1) * _COUNTER.size] for number in new.kept]


def _add_counters(descriptor: int, variant: Variant, name: bytes, counters: Sequence[bytes]) -> None:
    """What the rules have counted goes on."""
    data = _ADD_COUNTERS.pack(name, len(counters)) + b"".join(counters)
    _setsockopt(descriptor, variant.level, SET_ADD_COUNTERS, data)


def _setsockopt(descriptor: int, level: int, option: int, data: bytes) -> None:
    """socket.setsockopt() takes that much, too, but says no more than this about errors."""
    if _LIBC.setsockopt(descriptor, level, option, data, ctypes.c_uint(len(data))):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
