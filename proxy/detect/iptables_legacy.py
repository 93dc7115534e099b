"""Chains of iptables' legacy variant, read as iptables-legacy does: linux/netfilter_ipv4/ip_tables.h and the same for
IPv6. Needs CAP_NET_ADMIN.

Only tables that /proc/net/ip_tables_names lists are looked at: asking for another one would make the kernel create it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

from proxy.detect.evidence import Evidence, Place
from proxy.detect.kube_chains import Named, classify
from proxy.detect.unreadable import because

TABLES: Final = ("nat", "filter", "mangle")
GET_INFO, GET_ENTRIES = 64, 65  # IPT_SO_*, and IP6T_SO_*
TRIES: Final = 5
LARGEST: Final = 1 << 30
TARGET_HEADER: Final = 32
"""Of a target or match: size, name, revision."""
INFO: Final = struct.Struct("=32sI5I5III")
"""struct ipt_getinfo: name, valid_hooks, hook_entry of each of 5 hooks, underflow of each, num_entries, size."""

_NAME_SIZE: Final = 32
_REQUEST_SIZE: Final = 40  # ipt_get_entries before its entries: name, size, padding
_OFFSETS = struct.Struct("=HH")
_ERROR: Final = b"ERROR\0"
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Variant:
    """IPv4's or IPv6's iptables: `size` of an entry without matches and target; `offsets`: where in it are
    target_offset and next_offset."""

    def __init__(self, part: str, names: str, family: int, level: int, size: int, offsets: int) -> None:
        self.part, self.names, self.family, self.level = part, f"/proc/thread-self/net/{names}", family, level
        self.size, self.offsets = size, offsets


IPV4: Final = Variant("ip", "ip_tables_names", socket.AF_INET, socket.IPPROTO_IP, 112, 88)
IPV6: Final = Variant("ip6", "ip6_tables_names", socket.AF_INET6, socket.IPPROTO_IPV6, 168, 140)


def gather() -> list[Evidence]:
    """KUBE-* chains of both families."""
    found: list[Evidence] = []
    for variant in (IPV4, IPV6):
        place = Place("iptables", "legacy", variant.part)
        try:
            found += classify(_chains(variant), place)
        except FileNotFoundError:  # this kernel has none, or none is loaded
            pass
        except (OSError, ValueError) as error:
            found.append(because(place, error))
    return found


def _chains(variant: Variant) -> Iterator[Named]:
    found = tables(variant)
    if not found:
        return
    with socket.socket(variant.family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        for table in found:
            yield from chains(read_table(sock.fileno(), variant, table)[1], variant)


def tables(variant: Variant) -> list[str]:
    """Those of TABLES that are there. Raises OSError; FileNotFoundError where the kernel has no such iptables."""
    with open(variant.names) as lines:
        return [name for line in lines if (name := line.strip()) in TABLES]


def read_table(descriptor: int, variant: Variant, table: str) -> tuple[bytes, memoryview]:
    """struct ipt_getinfo (see INFO), and the table's rules as the kernel has them. `descriptor`: of a socket of the
    variant's family.

    Raises OSError; ValueError if it is too large."""
    name = table.encode()
    for _ in range(TRIES):
        info = ctypes.create_string_buffer(name, INFO.size)
        _getsockopt(descriptor, variant.level, GET_INFO, info)
        *_, size = INFO.unpack(info.raw)
        if size > LARGEST:
            raise ValueError(f"table {table} has {size} bytes")
        found = ctypes.create_string_buffer(_REQUEST_SIZE + size)
        struct.pack_into(f"={_NAME_SIZE}sI", found, 0, name, size)
        try:
            _getsockopt(descriptor, variant.level, GET_ENTRIES, found)
        except BlockingIOError:  # it has another size by now
            continue
        return info.raw, memoryview(found)[_REQUEST_SIZE:]
    raise OSError(errno.EAGAIN, f"table {table} changed during each of {TRIES} reads")


def _getsockopt(descriptor: int, level: int, option: int, buffer: ctypes.Array[ctypes.c_char]) -> None:
    """socket.getsockopt() hands nothing in, and takes no more than a kilobyte out."""
    size = ctypes.c_uint(len(buffer))
    if _LIBC.getsockopt(descriptor, level, option, buffer, ctypes.byref(size)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def offsets(entries: memoryview, at: int, variant: Variant) -> tuple[int, int]:
    """Where the target of the rule at `at` is, and where the next rule, counted from this one. Raises ValueError where that
    cannot be."""
    if at + variant.size > len(entries):
        raise ValueError(f"a rule at {at} of {len(entries)} bytes")
    target, following = _OFFSETS.unpack_from(entries, at + variant.offsets)
    if not variant.size <= target <= following - TARGET_HEADER or at + following > len(entries):
        raise ValueError(f"a rule at {at} of {len(entries)} bytes claims {target} and {following}")
    return target, following


def chains(entries: memoryview, variant: Variant) -> Iterator[Named]:
    """The chains that users made: each begins with a rule whose target is ERROR and holds the name, and ends with one that
    returns. The last rule of a table is such a one too, named ERROR. Raises ValueError where an offset cannot be true."""
    at, named, rules = 0, "", 0
    while at < len(entries):
        target, following = offsets(entries, at, variant)
        name = at + target + 2
        if bytes(entries[name : name + len(_ERROR)]) == _ERROR:
            if named:
                yield named, rules > 1
            label = bytes(entries[at + target + TARGET_HEADER : at + following])
            named, rules = label.partition(b"\0")[0].decode(errors="replace"), 0
        else:
            rules += 1
        at += following
    if named:
        yield named, rules > 1
