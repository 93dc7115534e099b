"""Which programs listen on TCP ports of this node, as far as /proc shows it (proc_pid_net(5))."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Set
from contextlib import suppress
from pathlib import Path
from typing import Final

_TABLES: Final = ("/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6")
_LISTENS: Final = "0A"
_ANY_4: Final = ("0.0.0.0", "::", "::ffff:0.0.0.0")
_ANY_6: Final = ("::",)


def holders(spots: Set[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """spots: addresses and ports. For those whose listener is found, also one on all addresses: "name (pid 1)".

    In the network namespace of the calling thread. Looks at the open files of every process: slow.
    """
    at: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for host, port in spots:
        for address in (host, *(_ANY_6 if ":" in host else _ANY_4)):
            at.setdefault((_hex(address), port), []).append((host, port))
    found: dict[str, list[tuple[str, int]]] = {}
    for address, port, inode in _listeners():
        if (address, port) in at:
            found[inode] = at[address, port]
    named: dict[tuple[str, int], str] = {}
    if found:
        for inode, name in _owners(found.keys()):
            for spot in found[inode]:
                named.setdefault(spot, name)
    return named


def _listeners() -> Iterator[tuple[str, int, str]]:
    """Address as the tables have it, port, inode of the socket."""
    for table in _TABLES:
        with suppress(OSError), open(table) as lines:
            next(lines, "")
            for line in lines:
                fields = line.split()
                if fields[3] == _LISTENS:
                    address, port = fields[1].split(":")
                    yield address, int(port, 16), fields[9]


def _owners(inodes: Set[str]) -> Iterator[tuple[str, str]]:
    links = {f"socket:[{inode}]": inode for inode in inodes}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is not for us to see
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    if inode := links.get(str(descriptor.readlink())):
                        yield inode, f"{(process / 'comm').read_text().strip()} (pid {process.name})"


def _hex(host: str) -> str:
    """As the kernel prints it: 32-bit words of this machine's byte order."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed))
