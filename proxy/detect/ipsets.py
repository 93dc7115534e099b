"""ipsets named as IPVS mode names its own: linux/netfilter/ipset/ip_set.h. Needs CAP_NET_ADMIN.

Of all others only the names are read, and of these only the headers.
"""

from __future__ import annotations

import errno
import re
import struct
from typing import Final

from proxy.detect.evidence import Evidence, KubeSets, Place
from proxy.detect.kernel_support import Support, could_be_there
from proxy.detect.netlink import Netlink
from proxy.detect.unreadable import because
from rules.netlink import NETLINK_NETFILTER, attribute, attributes, read_text, u32

NAMES: Final = re.compile(
    r"KUBE-(6-)?(CLUSTER-IP|LOOP-BACK|EXTERNAL-IP|LOAD-BALANCER|NODE-PORT|HEALTH-CHECK-NODE-PORT|IPVS-IPS)(-.*)?"
)
"""kube-router's network policies have KUBE-SRC-* and KUBE-DST-*, on every node of k3s: not these."""

SUBSYSTEM: Final = 6  # NFNL_SUBSYS_IPSET
CMD_LIST: Final = 7
ATTR_PROTOCOL, ATTR_SETNAME, ATTR_FLAGS, ATTR_DATA, ATTR_ADT = 1, 2, 6, 7, 8
DATA_ELEMENTS: Final = 24
FLAG_LIST_SETNAME, FLAG_LIST_HEADER = 1 << 1, 1 << 2
PROTOCOL: Final = b"\x06"  # the oldest that today's kernels take
_NFGENMSG = struct.Struct(">BBH")
_NOT_THERE: Final = (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.EINVAL, errno.EOPNOTSUPP)


def gather(support: Support) -> list[Evidence]:
    """One piece of evidence for all of them, both families."""
    place = Place("ipset", "KUBE-*")
    if not could_be_there(support("ip_set", "CONFIG_IP_SET")):
        return []
    try:
        with Netlink(NETLINK_NETFILTER) as netlink:
            ours = [name for name in read_names(netlink) if NAMES.fullmatch(name)]
            entries = sum(_entries(netlink, name) for name in ours)
    except OSError as error:
        return [] if error.errno in _NOT_THERE else [because(place, error)]
    except ValueError as error:
        return [because(place, error)]
    return [KubeSets(place=place, sets=len(ours), entries=entries)] if ours else []


def read_names(netlink: Netlink) -> list[str]:
    """Of all sets. Raises OSError, ValueError."""
    return netlink.dump(SUBSYSTEM << 8 | CMD_LIST, request(FLAG_LIST_SETNAME), read_name)


def _entries(netlink: Netlink, name: str) -> int:
    named = attribute(ATTR_SETNAME, name.encode() + b"\0")
    kind = SUBSYSTEM << 8 | CMD_LIST
    try:
        told = netlink.dump(kind, request(FLAG_LIST_HEADER, named), read_entries)
        if None in told:  # as of old kernels
            return sum(netlink.dump(kind, request(0, named), count_members))
        return sum(entries or 0 for entries in told)
    except FileNotFoundError:  # it has just gone
        return 0


def request(flags: int, named: bytes = b"") -> bytes:
    """The body of a CMD_LIST. named: an ATTR_SETNAME, for one set."""
    return _NFGENMSG.pack(0, 0, 0) + attribute(ATTR_PROTOCOL, PROTOCOL) + named + u32(ATTR_FLAGS, flags)


def read_name(body: memoryview) -> str:
    """Raises ValueError, KeyError."""
    return read_text(dict(attributes(body[_NFGENMSG.size :]))[ATTR_SETNAME])


def read_entries(body: memoryview) -> int | None:
    """How many a set has; None where its kernel does not tell. Raises ValueError, KeyError."""
    data = dict(attributes(dict(attributes(body[_NFGENMSG.size :]))[ATTR_DATA]))
    return int.from_bytes(data[DATA_ELEMENTS]) if DATA_ELEMENTS in data else None


def count_members(body: memoryview) -> int:
    """How many a piece of a set has. Raises ValueError."""
    parts = dict(attributes(body[_NFGENMSG.size :]))
    return sum(1 for _ in attributes(parts.get(ATTR_ADT, b"")))
