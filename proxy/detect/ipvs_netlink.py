"""IPVS's virtual servers over generic netlink: linux/ip_vs.h, linux/genetlink.h. Needs CAP_NET_ADMIN.

pyroute2 has the same requests and takes half a millisecond for each; destinations are asked for service by service, and
there may be tens of thousands of these.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from proxy.detect.ipvs_servers import VirtualServer
from proxy.detect.netlink import NETLINK_GENERIC, Netlink
from rules.netlink import attribute, attributes, nested

GENL_ID_CTRL: Final = 16
CTRL_CMD_GETFAMILY: Final = 3
CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 1, 2
FAMILY_NAME: Final = b"IPVS\0"
VERSION: Final = 1
CMD_GET_SERVICE, CMD_GET_DEST = 4, 8
CMD_ATTR_SERVICE: Final = 1
SVC_AF, SVC_PROTOCOL, SVC_ADDRESS, SVC_PORT, SVC_FWMARK, SVC_SCHEDULER = 1, 2, 3, 4, 5, 6
ADDRESS_SIZES: Final = {socket.AF_INET: 4, socket.AF_INET6: 16}

_GENL = struct.Struct("=BBH")
_U16 = struct.Struct("=H")


def read() -> list[VirtualServer]:
    """All of this network namespace. Raises OSError, ValueError.

    To be asked only where IPVS is: the question itself makes the kernel load the module.
    """
    with Netlink(NETLINK_GENERIC) as netlink:
        named = attribute(CTRL_ATTR_FAMILY_NAME, FAMILY_NAME)
        kind = netlink.get(GENL_ID_CTRL, _GENL.pack(CTRL_CMD_GETFAMILY, VERSION, 0) + named, read_family)
        found = netlink.dump(kind, _GENL.pack(CMD_GET_SERVICE, VERSION, 0), read_service)
        servers = []
        for server, key in found:
            body = _GENL.pack(CMD_GET_DEST, VERSION, 0) + nested(CMD_ATTR_SERVICE, key)
            server.destinations = len(netlink.dump(kind, body, lambda _: None))
            servers.append(server)
    return servers


def read_family(body: memoryview) -> int:
    """The number of a generic netlink family. Raises ValueError, KeyError, struct.error."""
    number: int
    (number,) = _U16.unpack(dict(attributes(body[_GENL.size :]))[CTRL_ATTR_FAMILY_ID])
    return number


def read_service(body: memoryview) -> tuple[VirtualServer, bytes]:
    """A virtual server, and the attributes that name it in a request. Raises ValueError, KeyError, struct.error."""
    parts = dict(attributes(dict(attributes(body[_GENL.size :]))[CMD_ATTR_SERVICE]))
    (family,) = _U16.unpack(parts[SVC_AF])
    scheduler = bytes(parts[SVC_SCHEDULER]).rstrip(b"\0").decode(errors="replace")
    if SVC_FWMARK in parts:
        address, named_by = b"", [SVC_AF, SVC_FWMARK]
    else:
        named_by = [SVC_AF, SVC_PROTOCOL, SVC_ADDRESS, SVC_PORT]
        address = bytes(parts[SVC_ADDRESS][: ADDRESS_SIZES[family]])
    return VirtualServer(address, scheduler), b"".join(attribute(number, bytes(parts[number])) for number in named_by)
