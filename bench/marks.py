"""Addresses that nothing else in a benchmark's cluster has, by which a change is known again: as text in an event of the API
server, as four bytes in what the kernel tells of a transaction, whoever made it."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator
from typing import Final

FIRST_POD: Final = int(ipaddress.IPv4Address("11.200.0.1"))
"""Marked pods: inside of the pods' network, beyond all that clusters of the benchmarks' sizes use."""
FIRST_SERVICE: Final = int(ipaddress.IPv4Address("10.110.0.1"))
"""Marked ClusterIPs, the same for the Services' network."""
GANG: Final = "10.111.255.1"
FIRST_GANG_POD: Final = int(ipaddress.IPv4Address("11.250.0.1"))

# The lookahead finds addresses that overlap with bytes that only look like one.
_BYTES: Final = re.compile(rb"(?=(\x0b[\xc8-\xff]..|\x0a[\x6e\x6f]..))", re.DOTALL)
_TEXT: Final = re.compile(rb'"(11\.2\d\d\.\d+\.\d+|10\.11[01]\.\d+\.\d+)"')
LONGEST: Final = len('"11.255.255.255"')


def in_bytes(data: bytes | memoryview) -> Iterator[str]:
    """What may be a marked address, anywhere in a netlink message: whether it is one knows who waits for it."""
    return (socket.inet_ntoa(found) for found in _BYTES.findall(data))


def in_text(data: bytes) -> list[bytes]:
    """Marked addresses in JSON."""
    return _TEXT.findall(data)
