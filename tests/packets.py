"""What tests see of packets: those that arrive in a namespace, and nftables counters there."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.layers.sctp import SCTP, SCTPChunkInit
from scapy.packet import Packet

from integration.namespaces import Namespace
from integration.topology import Host

_ALL_PROTOCOLS: Final = 3
_OUTGOING: Final = 4
_SCTP: Final = 132


class Capture:
    """A context manager: hears the IP packets that come in on any interface of the namespace, from `with` on."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def __enter__(self) -> Self:
        self._socket = self._namespace.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ALL_PROTOCOLS))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def find(self, wanted: Callable[[Packet], bool], timeout: float) -> Packet | None:
        """The first such packet; None if none has come after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                data, (_, _, direction, *_) = self._socket.recvfrom(65536)
            except TimeoutError:
                return None
            packet = _parsed(data)
            if direction != _OUTGOING and packet is not None and wanted(packet):
                return packet
        return None


class Counters:
    """A context manager: a table of the test's own in a namespace, beside whatever is there.

    rules: the chains, in nft's language; what rules like `… counter comment "NAME"` count is told by name.
    """

    def __init__(self, namespace: Namespace, rules: str, table: str = "watched") -> None:
        self._namespace, self._rules, self._table = namespace, rules, f"inet {table}"

    def __enter__(self) -> Self:
        self._namespace.run(["nft", "-f", "-"], text_in=f"table {self._table} {{\n{self._rules}\n}}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._namespace.run(["nft", f"delete table {self._table}"])

    def text(self) -> str:
        """As nft lists it."""
        return self._namespace.run(["nft", "-s", "list", "table", *self._table.split()]).stdout

    def read(self) -> dict[str, int]:
        """Packets by name."""
        listed = json.loads(self._namespace.run(["nft", "-j", "list", "table", *self._table.split()]).stdout)
        rules = [item["rule"] for item in listed["nftables"] if "rule" in item]
        return {
            rule["comment"]: statement["counter"]["packets"]
            for rule in rules
            for statement in rule["expr"]
            if "counter" in statement and "comment" in rule
        }


def send_sctp_init(source: Host, destination: str, port: int, tag: int) -> None:
    """An SCTP INIT chunk, which opens a connection; `tag` makes it known again. Without the kernel's SCTP."""
    six = ":" in destination
    packet = bytes(SCTP(sport=40000, dport=port, tag=0) / SCTPChunkInit(init_tag=tag, a_rwnd=65536))
    with source.namespace.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_RAW, _SCTP) as raw:
        raw.bind((source.address(6 if six else 4), 0))
        raw.sendto(packet, (destination, 0))


def is_init(packet: Packet, tag: int) -> bool:
    return bool(SCTPChunkInit in packet and packet[SCTPChunkInit].init_tag == tag)


def is_unreachable(packet: Packet, tag: int) -> bool:
    """An ICMP or ICMPv6 error "port unreachable" that quotes the INIT chunk with this tag."""
    data = bytes(packet.payload)
    port_unreachable = {IP: (1, 3, 3), IPv6: (58, 1, 4)}[type(packet)]
    protocol = packet.proto if isinstance(packet, IP) else packet.nh
    return (protocol, *data[:2]) == port_unreachable and struct.pack(">I", tag) in data


def has_right_checksum(packet: Packet) -> bool:
    """Of SCTP."""
    own = SCTP(bytes(packet[SCTP]))
    stated = own.chksum
    own.chksum = None
    return bool(SCTP(bytes(own)).chksum == stated)


def _parsed(data: bytes) -> Packet | None:
    version = data[0] >> 4 if data else 0
    if version == 4:
        return IP(data)
    return IPv6(data) if version == 6 else None
