"""Sends UDP datagrams from many source addresses and ports, each of them a new connection, as fast as one thread can.

    python blast.py DESTINATION PORT SOURCE [SOURCE …]       (until it is killed)

Standard library only, so that it starts at once. Sources must be addresses of this network namespace.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterable

_UDP = 17
_IPV6_CHECKSUM = 7
_LENGTH = 12


def datagrams(source: str, destination: str, port: int, source_ports: Iterable[int], priority: int = 0) -> None:
    """One datagram from each of these ports of `source`, with SO_PRIORITY."""
    six = ":" in destination
    # A raw socket sends from any port without binding one. IPv6 needs a checksum, which the kernel fills in.
    with socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_RAW, _UDP) as raw:
        if six:
            raw.setsockopt(socket.IPPROTO_IPV6, _IPV6_CHECKSUM, 6)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, priority)
        raw.bind((source, 0))
        raw.connect((destination, 0))
        rest = struct.pack(">HHH4x", port, _LENGTH, 0)
        for each in source_ports:
            raw.send(each.to_bytes(2) + rest)


def main() -> None:
    destination, port, *sources = sys.argv[1:]
    for source in sources:
        datagrams(source, destination, int(port), range(1024, 65536))


if __name__ == "__main__":
    main()
