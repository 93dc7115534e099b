"""IPVS's virtual servers over generic netlink: linux/ip_vs.h, linux/genetlink.h. Needs CAP_NET_ADMIN.

pyroute2 has the same requests and takes half a millisecond for each; destinations are asked for service by service, and
there may be tens of thousands of these.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable
from typing import ClassVar, Final

from proxy.detect.ipvs_servers import VirtualServer
from proxy.detect.ipvs_table import Server
from proxy.detect.netlink import NETLINK_GENERIC, Netlink
from rules.netlink import attribute, attributes, nested, read_text

GENL_ID_CTRL: Final = 16
CTRL_CMD_GETFAMILY: Final = 3
CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 1, 2
FAMILY_NAME: Final = b"IPVS\0"
VERSION: Final = 1
CMD_DEL_SERVICE, CMD_GET_SERVICE, CMD_GET_DEST = 3, 4, 8
CMD_ATTR_SERVICE, CMD_ATTR_DEST = 1, 2
SVC_AF, SVC_PROTOCOL, SVC_ADDRESS, SVC_PORT, SVC_FWMARK, SVC_SCHEDULER, SVC_FLAGS, SVC_TIMEOUT, SVC_NETMASK = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
)
SVC_F_PERSISTENT, SVC_F_ONEPACKET = 1, 4
ONE_ADDRESS: Final = (b"\xff" * 4, struct.pack("=I", 128))
"""Masks of one client: of IPv4, and of IPv6 a length."""
DEST_ADDRESS, DEST_PORT, DEST_WAY, DEST_WEIGHT, DEST_ACTIVE, DEST_INACTIVE, DEST_FAMILY = 1, 2, 3, 4, 7, 8, 11
WAY_MASK, WAYS_TRANSLATING = 7, (0, 1)  # IP_VS_CONN_F_MASQ, IP_VS_CONN_F_LOCALNODE
ADDRESS_SIZES: Final[dict[int, int]] = {socket.AF_INET: 4, socket.AF_INET6: 16}

_GENL = struct.Struct("=BBH")
_U16, _U32, _BE16 = struct.Struct("=H"), struct.Struct("=I"), struct.Struct(">H")
_FLAGS = struct.Struct("=II")  # struct ip_vs_flags: flags, mask
_ATTRIBUTE = struct.Struct("=HH")


def read() -> list[VirtualServer]:
    """All of this network namespace. Raises OSError, ValueError.

    To be asked only where IPVS is: the question itself makes the kernel load the module.
    """
    with Netlink(NETLINK_GENERIC) as netlink:
        kind = family(netlink)
        servers = []
        for server, key in netlink.dump(kind, _GENL.pack(CMD_GET_SERVICE, VERSION, 0), read_service):
            server.destinations = len(netlink.dump(kind, _about(CMD_GET_DEST, key), lambda _: None))
            servers.append(server)
    return servers


def read_table() -> list[Server]:
    """The same with all that there is to know of them."""
    with Netlink(NETLINK_GENERIC) as netlink:
        kind = family(netlink)
        servers = []
        for server, key in netlink.dump(kind, _GENL.pack(CMD_GET_SERVICE, VERSION, 0), read_server):
            netlink.dump(kind, _about(CMD_GET_DEST, key), DestinationReader(server))
            servers.append(server)
    return servers


def remove(servers: Iterable[Server]) -> list[tuple[Server, OSError]]:
    """Those that could not be removed, and why. One that is not there is no failure. Raises OSError, ValueError."""
    failed: list[tuple[Server, OSError]] = []
    with Netlink(NETLINK_GENERIC) as netlink:
        kind = family(netlink)
        for server in servers:
            try:
                netlink.do(kind, _about(CMD_DEL_SERVICE, key_of(server)))
            except OSError as error:
                if error.errno not in (errno.ESRCH, errno.ENOENT):
                    failed.append((server, error))
    return failed


def family(netlink: Netlink) -> int:
    """IPVS's number as a generic netlink family. Raises OSError, ValueError."""
    named = attribute(CTRL_ATTR_FAMILY_NAME, FAMILY_NAME)
    return netlink.get(GENL_ID_CTRL, _GENL.pack(CTRL_CMD_GETFAMILY, VERSION, 0) + named, read_family)


def _about(command: int, key: bytes) -> bytes:
    return _GENL.pack(command, VERSION, 0) + nested(CMD_ATTR_SERVICE, key)


def key_of(server: Server) -> bytes:
    """The attributes that name it in a request. (A firewall mark's family is taken to be IPv4.)"""
    if not server.address:
        return attribute(SVC_AF, _U16.pack(socket.AF_INET)) + attribute(SVC_FWMARK, _U32.pack(server.mark))
    version = socket.AF_INET if len(server.address) == 4 else socket.AF_INET6
    return (
        attribute(SVC_AF, _U16.pack(version))
        + attribute(SVC_PROTOCOL, _U16.pack(server.protocol))
        + attribute(SVC_ADDRESS, server.address.ljust(16, b"\0"))
        + attribute(SVC_PORT, _BE16.pack(server.port))
    )


def read_family(body: memoryview) -> int:
    """The number of a generic netlink family. Raises ValueError, KeyError, struct.error."""
    number: int
    (number,) = _U16.unpack(dict(attributes(body[_GENL.size :]))[CTRL_ATTR_FAMILY_ID])
    return number


def read_service(body: memoryview) -> tuple[VirtualServer, bytes]:
    """A virtual server, and the attributes that name it in a request. Raises ValueError, KeyError, struct.error."""
    parts = dict(attributes(dict(attributes(body[_GENL.size :]))[CMD_ATTR_SERVICE]))
    (family,) = _U16.unpack(parts[SVC_AF])
    scheduler = read_text(parts[SVC_SCHEDULER])
    if SVC_FWMARK in parts:
        address, named_by = b"", [SVC_AF, SVC_FWMARK]
    else:
        named_by = [SVC_AF, SVC_PROTOCOL, SVC_ADDRESS, SVC_PORT]
        address = bytes(parts[SVC_ADDRESS][: ADDRESS_SIZES[family]])
    return VirtualServer(address, scheduler), b"".join(attribute(number, bytes(parts[number])) for number in named_by)


def read_server(body: memoryview) -> tuple[Server, bytes]:
    """The same with all that there is, but for destinations. Raises ValueError, KeyError, struct.error."""
    known, key = read_service(body)
    parts = dict(attributes(dict(attributes(body[_GENL.size :]))[CMD_ATTR_SERVICE]))
    if known.address:
        (protocol,) = _U16.unpack(parts[SVC_PROTOCOL])
        (port,) = _BE16.unpack(parts[SVC_PORT])
        server = Server(protocol, known.address, port, known.scheduler)
    else:
        server = Server(0, b"", 0, known.scheduler, *_U32.unpack(parts[SVC_FWMARK]))
    flags, _ = _FLAGS.unpack(parts[SVC_FLAGS])
    server.by_packets = bool(flags & SVC_F_ONEPACKET)
    if flags & SVC_F_PERSISTENT:
        server.by_networks = SVC_NETMASK in parts and bytes(parts[SVC_NETMASK]) not in ONE_ADDRESS
        (server.persistence,) = _U32.unpack(parts[SVC_TIMEOUT])
    return server, key


class DestinationReader:
    """Adds the destination of each reply's body to a server. Raises ValueError, KeyError, struct.error.

    The kernel lays out all of them alike: where the values stand is learned once, and only checked from then on.
    """

    _layouts: ClassVar[dict[int, _Layout]] = {}

    def __init__(self, server: Server) -> None:
        self._server = server

    def __call__(self, body: memoryview) -> None:
        layout = self._layouts.get(len(body))
        values = layout.read(body) if layout else None
        if values is None:
            layout = self._layouts[len(body)] = _Layout(body)
            values = layout.read(body)
            if values is None:
                raise ValueError("a destination without some of its parts")
        address, port, way, weight, active, inactive, version = values
        self._server.add(
            address[: ADDRESS_SIZES[version]],
            int.from_bytes(port),
            weight,
            masquerades=way & WAY_MASK in WAYS_TRANSLATING,
            active=active,
            inactive=inactive,
        )


class _Layout:
    """Where in a reply's body a destination's values stand."""

    _FORMATS: ClassVar = {
        DEST_ADDRESS: "16s",
        DEST_PORT: "2s2x",
        DEST_WAY: "I",
        DEST_WEIGHT: "I",
        DEST_ACTIVE: "I",
        DEST_INACTIVE: "I",
        DEST_FAMILY: "H2x",
    }

    def __init__(self, body: memoryview) -> None:
        form = f"={_GENL.size + _ATTRIBUTE.size}x"
        headers: list[int] = []
        for number, value in attributes(dict(attributes(body[_GENL.size :]))[CMD_ATTR_DEST]):
            size = _ATTRIBUTE.size + len(value)
            if number in self._FORMATS:
                form += "HH" + self._FORMATS[number]
                headers += [size, number]
            else:
                form += f"{size + 3 & ~3}x"
            if number == DEST_FAMILY:  # what follows is of no interest
                break
        self._struct, self._sizes, self._numbers = struct.Struct(form), tuple(headers[0::2]), tuple(headers[1::2])

    def read(self, body: memoryview) -> tuple[bytes, bytes, int, int, int, int, int] | None:
        """None: this one is laid out otherwise, or lacks something."""
        if self._numbers != tuple(self._FORMATS) or len(body) < self._struct.size:
            return None
        found = self._struct.unpack_from(body)
        if found[0::3] != self._sizes or found[1::3] != self._numbers:
            return None
        address, port, way, weight, active, inactive, version = found[2::3]
        return address, port, way, weight, active, inactive, version
