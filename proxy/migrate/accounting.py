"""A counter of netfilter's accounting (nfacct): linux/netfilter/nfnetlink_acct.h. Needs CAP_NET_ADMIN; nothing is reset."""

from __future__ import annotations

import errno
import struct
from typing import Final

from proxy.detect.kernel_support import Support, could_be_there
from proxy.detect.netlink import Netlink
from rules.netlink import NETLINK_NETFILTER, attribute, attributes

SUBSYSTEM: Final = 7
GET: Final = 1
NAME, PACKETS = 1, 2
_NFGENMSG = struct.Struct(">BBH")
_BE64 = struct.Struct(">Q")


def packets(name: str, support: Support) -> int | None:
    """What it has counted; None: there is no such counter, or it may not be read."""
    if not could_be_there(support("nfnetlink_acct", "CONFIG_NETFILTER_NETLINK_ACCT")):
        return None
    body = _NFGENMSG.pack(0, 0, 0) + attribute(NAME, name.encode() + b"\0")
    try:
        with Netlink(NETLINK_NETFILTER) as netlink:
            return netlink.get(SUBSYSTEM << 8 | GET, body, read)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP):
            return None
        raise
    except ValueError:
        return None


def read(body: memoryview) -> int:
    """Raises ValueError, LookupError, struct.error."""
    count: int
    (count,) = _BE64.unpack(dict(attributes(body[_NFGENMSG.size :]))[PACKETS])
    return count
