"""Interfaces by name and the addresses that they have: linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h.

Needs no permission. Names are asked for over rtnetlink because the ioctl would make the kernel look for a module of
that name.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable
from typing import Final

from proxy.detect.evidence import Evidence, IpvsInterface, Place
from proxy.detect.netlink import NETLINK_ROUTE, Netlink
from proxy.detect.unreadable import because
from rules.netlink import attribute, attributes

KUBE_IPVS: Final = "kube-ipvs0"

RTM_DELLINK, RTM_GETLINK, RTM_GETADDR = 17, 18, 22
IFLA_IFNAME: Final = 3
IFA_ADDRESS, IFA_LOCAL = 1, 2
_IFINFOMSG = struct.Struct("=BxHiII")
_IFADDRMSG = struct.Struct("=BBBBI")
_REMEDY: Final = "allow AF_NETLINK sockets"


def gather() -> list[Evidence]:
    """kube-ipvs0, if it is there."""
    place = Place("interface", KUBE_IPVS)
    try:
        index = indexes([KUBE_IPVS]).get(KUBE_IPVS)
        if index is None:
            return []
        return [IpvsInterface(place=place, addresses=len(addresses().get(index, ())))]
    except (OSError, ValueError) as error:
        return [because(place, error, _REMEDY)]


def indexes(names: Iterable[str]) -> dict[str, int]:
    """Those of these interfaces that there are. Raises OSError, ValueError."""
    found = {}
    with Netlink(NETLINK_ROUTE) as netlink:
        for name in names:
            body = _IFINFOMSG.pack(0, 0, 0, 0, 0) + attribute(IFLA_IFNAME, name.encode() + b"\0")
            try:
                found[name] = netlink.get(RTM_GETLINK, body, read_index)
            except OSError as error:
                if error.errno != errno.ENODEV:
                    raise
    return found


def addresses() -> dict[int, set[bytes]]:
    """Packed addresses by the index of their interface. Raises OSError, ValueError."""
    found: dict[int, set[bytes]] = {}
    with Netlink(NETLINK_ROUTE) as netlink:
        for index, address in netlink.dump(RTM_GETADDR, _IFADDRMSG.pack(0, 0, 0, 0, 0), read_address):
            found.setdefault(index, set()).add(address)
    return found


def by_index(index: int) -> bytes:
    """The body of a request about one interface."""
    return _IFINFOMSG.pack(0, 0, index, 0, 0)


def read_index(body: memoryview) -> int:
    """Raises struct.error."""
    index: int = _IFINFOMSG.unpack_from(body)[2]
    return index


def read_address(body: memoryview) -> tuple[int, bytes]:
    """The interface's index and the address. Raises ValueError, KeyError, struct.error."""
    *_, index = _IFADDRMSG.unpack_from(body)
    found = dict(attributes(body[_IFADDRMSG.size :]))
    # Of a point-to-point link IFA_ADDRESS is the other end's; otherwise IPv6 has nothing else.
    return index, bytes(found[IFA_LOCAL] if IFA_LOCAL in found else found[IFA_ADDRESS])
