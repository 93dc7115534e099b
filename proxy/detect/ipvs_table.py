"""IPVS's virtual servers with all that a comparison or a removal needs, and the two texts that list them. Pure."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field

from rules.elements import endpoint
from rules.objects import PROTOCOLS

UNKNOWN_TIME: Final = -1
_WHOLE, _ALL = "FFFFFFFF", "255.255.255.255"
_WHOLE_IPV6: Final = f"{128:08X}"
"""Masks of one address; that of IPv6 is its length."""
_OPTIONS: Final = {"-t": "TCP", "-u": "UDP", "--sctp-service": "SCTP"}


class Server(Struct, gc=False):
    """A virtual server.

    address: packed; b"" where a firewall mark names it (`mark`). protocol: 6, 17, 132. persistence: seconds; 0: none;
    UNKNOWN_TIME: some. endpoints: destinations that get new connections, packed as rules.elements.endpoint does.
    destinations: how many there are, with those that get none (weight 0). connections: active and inactive ones.
    translates: no destination is reached by another way than masquerading. weighted: some have another weight than 1.
    by_networks: persistence is not by clients' addresses, but by networks of them. by_packets: each packet is led anew.
    """

    protocol: int
    address: bytes
    port: int
    scheduler: str
    mark: int = 0
    persistence: int = 0
    endpoints: list[bytes] = field(default_factory=list)
    destinations: int = 0
    active: int = 0
    inactive: int = 0
    translates: bool = True
    weighted: bool = False
    by_networks: bool = False
    by_packets: bool = False

    @property
    def connections(self) -> int:
        return self.active + self.inactive

    def add(self, address: bytes, port: int, weight: int, *, masquerades: bool, active: int, inactive: int) -> None:
        """One more destination."""
        if weight > 0:
            self.endpoints.append(endpoint(address, port))
        self.destinations += 1
        self.weighted |= weight > 1
        self.active += active
        self.inactive += inactive
        self.translates &= masquerades


def parse_proc(lines: Iterable[str], ticks: int = 0) -> list[Server]:
    """Of /proc/net/ip_vs. Its numbers are hexadecimal, but for those of destinations:

        TCP  0A601E02:0050 rr persistent 900000 FFFFFFFF
          -> 0AF40002:1F90      Masq    1      0          0
        TCP  [fd00:0010:0096:0000:0000:0000:0000:0030]:0050 rr
        FWM  00000001 wlc

    ticks: of the kernel in a second (CONFIG_HZ), in which persistence is told; 0: not known. Raises ValueError where a
    line is none of these.
    """
    servers: list[Server] = []
    for line in lines:
        match line.split():
            case ["->", "RemoteAddress:Port", *_] | [] | ["IP", "Virtual", *_] | ["Prot", *_]:
                pass
            case ["->", remote, *rest]:
                if servers:
                    _destination(servers[-1], *_hexadecimal(remote), rest)
            case ["TCP" | "UDP" | "SCTP" as name, local, scheduler, *flags]:
                servers.append(Server(PROTOCOLS[name], *_hexadecimal(local), scheduler))
                servers[-1].persistence = _persistence(flags, ticks)
                servers[-1].by_packets = "ops" in flags
                servers[-1].by_networks = "persistent" in flags and flags[-1] not in (_WHOLE, _WHOLE_IPV6)
            case ["FWM", mark, scheduler, *flags]:
                servers.append(Server(0, b"", 0, scheduler, int(mark, 16), _persistence(flags, ticks)))
            case _:
                raise ValueError(f"/proc/net/ip_vs has a line {line.strip()[:60]!r}")
    return servers


def _destination(server: Server, address: bytes, port: int, rest: list[str]) -> None:
    way, weight, active, inactive = rest[:4]
    masquerades = way in ("Masq", "Local")
    try:
        server.add(address, port, int(weight), masquerades=masquerades, active=int(active), inactive=int(inactive))
    except struct.error as error:
        raise ValueError(f"/proc/net/ip_vs has a destination with port {port}") from error


def _persistence(flags: list[str], ticks: int) -> int:
    """Also of flags "ops persistent 900000 FFFFFFFF"."""
    if "persistent" not in flags:
        return 0
    try:
        jiffies = int(flags[flags.index("persistent") + 1])
    except (ValueError, IndexError):
        return UNKNOWN_TIME
    return jiffies // ticks if ticks else UNKNOWN_TIME


def _hexadecimal(local: str) -> tuple[bytes, int]:
    address, _, port = local.rpartition(":")
    return bytes.fromhex("".join(address.strip("[]").split(":"))), int(port, 16)


def parse_saved(text: str) -> list[Server]:
    """Of `ipvsadm -Sn`:

        -A -t 10.96.30.9:80 -s rr -p 3600
        -a -t 10.96.30.9:80 -r 10.244.0.2:8080 -m -w 1

    Raises ValueError where a line is none of these.
    """
    servers: dict[tuple[str, str], Server] = {}
    for line in text.splitlines():
        words = line.split()
        try:
            _saved(servers, words)
        except (IndexError, KeyError, ValueError, struct.error) as error:
            raise ValueError(f"what ipvsadm -Sn has written has a line {line.strip()[:60]!r}") from error
    return list(servers.values())


def _saved(servers: dict[tuple[str, str], Server], words: list[str]) -> None:
    if not words:
        return
    verb, kind, where = words[:3]
    given = _options(words[3:])
    if verb == "-A":
        scheduler = given.get("-s", "wlc")
        if kind == "-f":
            server = Server(0, b"", 0, scheduler, int(where))
        else:
            server = Server(PROTOCOLS[_OPTIONS[kind]], *_decimal(where), scheduler)
        server.persistence = int(given.get("-p", "0"))
        server.by_packets, server.by_networks = "-o" in given, given.get("-M", _ALL) not in (_ALL, "128")
        servers[kind, where] = server
    elif verb == "-a":
        masquerades = "-g" not in given and "-i" not in given
        address, port = _decimal(given["-r"])
        weight = int(given.get("-w", "1"))
        servers[kind, where].add(address, port, weight, masquerades=masquerades, active=0, inactive=0)
    else:
        raise ValueError(verb)


def _options(words: list[str]) -> dict[str, str]:
    """Option -> its value, "" for none."""
    found: dict[str, str] = {}
    last = ""
    for word in words:
        if word.startswith("-"):
            last = word
            found[last] = ""
        elif last:
            found[last] = word
    return found


def _decimal(where: str) -> tuple[bytes, int]:
    address, _, port = where.rpartition(":")
    return ipaddress.ip_address(address.strip("[]")).packed, int(port)
