"""The sockets of this network namespace that listen: /proc/net/tcp and its like, and whose they are where that may be seen."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from proxy.migrate.facts import Listener

NET: Final = Path("/proc/thread-self/net")
PROC: Final = Path("/proc")
SECONDS: Final = 1.0
"""For the search for programs."""
MOST: Final = 5_000
"""Listeners that are kept."""
_TCP_LISTEN, _UDP_OPEN = "0A", "07"
_FILES: Final[tuple[tuple[str, Literal["TCP", "UDP"], str], ...]] = (
    ("tcp", "TCP", _TCP_LISTEN),
    ("tcp6", "TCP", _TCP_LISTEN),
    ("udp", "UDP", _UDP_OPEN),
    ("udp6", "UDP", _UDP_OPEN),
)


class _Socket(Struct, frozen=True):
    listener: Listener
    inode: int


def read(net: Path = NET, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> tuple[Listener, ...]:
    """All of them, TCP, UDP and SCTP. What is not there is no listener: a kernel may lack IPv6 or SCTP."""
    found: list[_Socket] = []
    for name, protocol, state in _FILES:
        found += parse(_lines(net / name), protocol, state)
    found += parse_sctp(_lines(net / "sctp/eps"))
    del found[MOST:]
    programs = _programs({socket.inode for socket in found if socket.inode}, proc, clock)
    named = (msgspec.structs.replace(s.listener, program=programs.get(s.inode, "")) for s in found)
    return tuple(dict.fromkeys(named))


def parse(lines: Iterable[str], protocol: Literal["TCP", "UDP"], state: str) -> Iterator[_Socket]:
    """The lines of /proc/net/tcp, after its heading."""
    for line in lines:
        words = line.split()
        if len(words) < 10 or words[3] != state:
            continue
        try:
            address, _, port = words[1].partition(":")
            listener = Listener(protocol, _address(address), int(port, 16))
            yield _Socket(listener, int(words[9]))
        except (ValueError, struct.error):
            continue


def parse_sctp(lines: Iterable[str]) -> Iterator[_Socket]:
    """The same of /proc/net/sctp/eps: one line for each endpoint, with all its addresses."""
    for line in lines:
        words = line.split()
        if len(words) < 9 or words[3] != "10":  # SCTP_SS_LISTENING
            continue
        for text in words[8:]:
            try:
                listener = Listener("SCTP", _packed(text), int(words[5]))
                yield _Socket(listener, int(words[7]))
            except ValueError:
                continue


def _packed(text: str) -> bytes:
    import ipaddress

    return ipaddress.ip_address(text).packed


def _address(text: str) -> bytes:
    """Words of 32 bits, each in the order of this machine."""
    data = bytes.fromhex(text)
    if len(data) not in (4, 16):
        raise ValueError(text)
    count = len(data) // 4
    return struct.pack(f"={count}I", *struct.unpack(f">{count}I", data))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()[1:]
    except (OSError, UnicodeDecodeError):
        return []


def _programs(inodes: set[int], proc: Path, clock: Callable[[], float]) -> dict[int, str]:
    """Inode -> name of a process that has the socket, as far as they may be seen and the time allows."""
    found: dict[int, str] = {}
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    end = clock() + SECONDS
    try:
        pids = [name for name in os.listdir(proc) if name.isdecimal()]
    except OSError:
        return found
    for pid in pids:
        if len(found) == len(inodes) or clock() > end:
            break
        try:
            descriptors = os.listdir(proc / pid / "fd")
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                inode = wanted.get(os.readlink(proc / pid / "fd" / descriptor))
            except OSError:
                continue
            if inode is not None and inode not in found:
                found[inode] = _name(proc / pid)
    return {inode: name for inode, name in found.items() if name}


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""
