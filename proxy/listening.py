"""Sockets to listen at."""

from __future__ import annotations

import socket


def listening(address: str, port: int, backlog: int) -> socket.socket:
    """One of the address's family alone, which does not block. backlog: how many may wait to be taken in. Raises OSError."""
    is_v6 = ":" in address
    sock = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_v6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, port))
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
