"""The node's own connections to Services, which have one of kube-ipvs0's addresses as their source. IPv4.

The kernel gives a connection to an address of its own that address as its source, too. When kube-ipvs0 goes, such a
connection is lost. So, before: new ones get another source, and it is waited until the old ones have ended. (An IPv6
address of an interface that is down, as kube-ipvs0 is, is nobody's source.) linux/rtnetlink.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Set
from contextlib import suppress
from typing import Final

from proxy.detect import interfaces
from proxy.detect.netlink import NETLINK_ROUTE, Netlink
from rules.netlink import NLM_F_CREATE, attribute

RTM_NEWROUTE: Final = 24
NLM_F_REPLACE: Final = 0x100
DESTINATION, OUT_INTERFACE, PREFERRED_SOURCE = 1, 4, 7  # RTA_*
TABLE_LOCAL, BY_KERNEL, SCOPE_HOST, TYPE_LOCAL = 255, 2, 254, 2
SOMEWHERE: Final = ("203.0.113.1", 9)
"""Nobody's address: what the kernel would take as a source to the world. Nothing is sent."""
TCP: Final = "/proc/thread-self/net/tcp"
_RTMSG = struct.Struct("=BBBBBBBBI")
_U32 = struct.Struct("=I")
_GONE: Final = ("06", "07", "0A")  # TIME_WAIT, CLOSE, LISTEN


def change() -> int:
    """Give new connections another source. Returns for how many addresses. Raises OSError, ValueError."""
    index = interfaces.indexes([interfaces.KUBE_IPVS]).get(interfaces.KUBE_IPVS)
    if index is None:
        return 0
    found = interfaces.addresses()
    virtual = {address for address in found.pop(index, set()) if len(address) == 4}
    source = _source(virtual, set().union(*found.values()))
    if source is None:
        return 0
    with Netlink(NETLINK_ROUTE) as netlink:
        for address in virtual:
            netlink.do(RTM_NEWROUTE, _route(address, index, source), NLM_F_REPLACE | NLM_F_CREATE)
    return len(virtual)


def _route(address: bytes, index: int, source: bytes) -> bytes:
    """The one that the kernel made with the address, but for the source."""
    return (
        _RTMSG.pack(socket.AF_INET, 32, 0, 0, TABLE_LOCAL, BY_KERNEL, SCOPE_HOST, TYPE_LOCAL, 0)
        + attribute(DESTINATION, address)
        + attribute(OUT_INTERFACE, _U32.pack(index))
        + attribute(PREFERRED_SOURCE, source)
    )


def _source(virtual: Set[bytes], others: Set[bytes]) -> bytes | None:
    """Towards the default route; else any that is not loopback's."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(SOMEWHERE)
        own = socket.inet_aton(sock.getsockname()[0])
        if own not in virtual and own[0] != 127:
            return own
    return min((address for address in others if len(address) == 4 and address[0] != 127), default=None)


def in_use() -> int:
    """How many TCP connections of this node have one of kube-ipvs0's addresses as their source. Raises OSError, ValueError."""
    index = interfaces.indexes([interfaces.KUBE_IPVS]).get(interfaces.KUBE_IPVS)
    virtual = interfaces.addresses().get(index, set()) if index is not None else set()
    if not virtual:
        return 0
    with open(TCP) as lines:
        return count(lines, virtual)


def count(lines: Iterable[str], addresses: Set[bytes]) -> int:
    """The same of /proc/net/tcp. Pure."""
    wanted = {f"{_U32.unpack(address)[0]:08X}" for address in addresses if len(address) == 4}
    found = 0
    for line in lines:
        fields = line.split(maxsplit=4)
        found += len(fields) > 4 and fields[1].partition(":")[0] in wanted and fields[3] not in _GONE
    return found
