"""The kernel's table of UDP flows over netlink: read those to one destination, or all, and forget single ones.

linux/netfilter/nfnetlink_conntrack.h. pyroute2 sends the same requests, but takes half a millisecond to read an entry:
a comparison with 100,000 would keep the interpreter busy for most of a minute.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Final, Self

from msgspec import Struct

from rules.netlink import (
    HEADER_SIZE,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    NLMSG_ERROR,
    Message,
    attribute,
    attributes,
    error_of,
    messages,
    nested,
)
from rules.netlink_socket import RECEIVE_SIZE, Replies, open_socket
from rules.objects import PROTOCOLS, Family

SUBSYSTEM: Final = 1  # NFNL_SUBSYS_CTNETLINK
CT_NEW, CT_GET, CT_DELETE = 0, 1, 2
TUPLE_ORIG, TUPLE_REPLY, ID, ZONE, FILTER = 1, 2, 12, 18, 25
TUPLE_IP, TUPLE_PROTO, TUPLE_ZONE = 1, 2, 3
SOURCE: Final = {Family.IPV4: 1, Family.IPV6: 3}
DESTINATION: Final = {Family.IPV4: 2, Family.IPV6: 4}
PROTO_NUM, SOURCE_PORT, DESTINATION_PORT = 1, 2, 3
FILTER_ORIG_FLAGS: Final = 1
BY_ADDRESS, BY_PROTOCOL, BY_PORT = 1 << 1, 1 << 3, 1 << 5  # CTA_FILTER_F_*: not in the kernel's public headers
UDP: Final = PROTOCOLS["UDP"]
DELETES_AT_ONCE: Final = 64
"""Each may be answered by an error, and all errors must fit the receive buffer."""

_MESSAGE = struct.Struct("=IHHIIBBH")


class Flow(Struct, frozen=True, gc=False):
    """A UDP flow. Both ends packed as rules.elements.endpoint does.

    to: where the sender sends to. leads_to: who gets it, and whose answers belong to it; the same without NAT.
    tuple, id: what the kernel knows it by.
    """

    family: Family
    to: bytes
    leads_to: bytes
    tuple: bytes
    id: bytes

    @property
    def is_natted(self) -> bool:
        return self.leads_to != self.to


class FlowTable:
    """A context manager. Of the network namespace of the thread that makes it, and for one thread. Raises OSError.

    Only entries of conntrack zone 0, which is where our rules work: what uses other zones has its own.
    """

    def __init__(self) -> None:
        self._socket = open_socket()
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def flows(self, family: Family, address: bytes = b"", port: bytes = b"") -> Iterator[Flow]:
        """UDP flows to this packed address and port, where given. Take all before the next call."""
        self._sequence += 1
        for piece in Replies(self._socket, dump_request(self._sequence, family, address, port)):
            for flow in map(read_flow, piece):
                if flow and flow.to.startswith(address) and flow.to.endswith(port):
                    yield flow

    def forget(self, flows: Sequence[Flow]) -> int:
        """Remove these very entries. Returns how many were still there."""
        forgotten = 0
        for start in range(0, len(flows), DELETES_AT_ONCE):
            chunk = flows[start : start + DELETES_AT_ONCE]
            first = self._sequence + 1
            self._sequence += len(chunk)
            # The last one is acknowledged; of the others the kernel only tells errors.
            requests = [
                delete_request(first + i, flow, NLM_F_ACK if i == len(chunk) - 1 else 0) for i, flow in enumerate(chunk)
            ]
            self._socket.send(b"".join(requests))
            forgotten += len(chunk) - self._vanished(first)
        return forgotten

    def _vanished(self, first: int) -> int:
        """Of the deletes from `first` up to the current one: how many entries were gone already. (Not Replies: each of them
        may be refused.)"""
        vanished, failed = 0, 0
        while True:
            for reply in messages(self._socket.recv(RECEIVE_SIZE)):
                if reply.kind != NLMSG_ERROR or reply.sequence < first:
                    continue
                code, _ = error_of(reply)
                if code == errno.ENOENT:
                    vanished += 1
                else:
                    failed = failed or code
                if reply.sequence == self._sequence:
                    if failed:
                        raise OSError(failed, os.strerror(failed))
                    return vanished


def message(kind: int, flags: int, sequence: int, family: Family, *body: bytes) -> bytes:
    """nlmsghdr, nfgenmsg and attributes."""
    attached = b"".join(body)
    size = HEADER_SIZE + len(attached)
    return _MESSAGE.pack(size, SUBSYSTEM << 8 | kind, flags | NLM_F_REQUEST, sequence, 0, family, 0, 0) + attached


def dump_request(sequence: int, family: Family, address: bytes, port: bytes) -> bytes:
    """The kernel chooses (since Linux 5.8). An IPv6 address is not asked for: the kernel then gives all flows but those
    that go there (ctnetlink_filter_match_tuple, still so in 6.18)."""
    flags = BY_PROTOCOL
    parts = []
    protocol = [attribute(PROTO_NUM, bytes([UDP]))]
    if address and family is Family.IPV4:
        flags |= BY_ADDRESS
        parts.append(nested(TUPLE_IP, attribute(DESTINATION[family], address)))
    if port:
        flags |= BY_PORT
        protocol.append(attribute(DESTINATION_PORT, port[:2]))
    parts.append(nested(TUPLE_PROTO, *protocol))
    chosen = nested(FILTER, attribute(FILTER_ORIG_FLAGS, struct.pack("=I", flags)))
    return message(CT_GET, NLM_F_DUMP, sequence, family, nested(TUPLE_ORIG, *parts), chosen)


def delete_request(sequence: int, flow: Flow, flags: int) -> bytes:
    return message(CT_DELETE, flags, sequence, flow.family, nested(TUPLE_ORIG, flow.tuple), attribute(ID, flow.id))


def read_flow(reply: Message) -> Flow | None:
    """None for what is no UDP flow of zone 0. Raises ValueError where the message is damaged."""
    family = Family(reply.body[0])
    found = dict(attributes(reply.body[4:]))
    if ZONE in found or not {TUPLE_ORIG, TUPLE_REPLY, ID} <= found.keys():
        return None
    to = _end(found[TUPLE_ORIG], DESTINATION[family], DESTINATION_PORT)
    leads_to = _end(found[TUPLE_REPLY], SOURCE[family], SOURCE_PORT)
    if not to or not leads_to:
        return None
    return Flow(family, to, leads_to, bytes(found[TUPLE_ORIG]), bytes(found[ID]))


def _end(tuple_: memoryview, address: int, port: int) -> bytes:
    """One end of a tuple, b"" if it is not of UDP or is in a zone."""
    parts = dict(attributes(tuple_))
    if TUPLE_ZONE in parts or TUPLE_IP not in parts or TUPLE_PROTO not in parts:
        return b""
    protocol = dict(attributes(parts[TUPLE_PROTO]))
    addresses = dict(attributes(parts[TUPLE_IP]))
    if bytes(protocol.get(PROTO_NUM, b"")) != bytes([UDP]) or address not in addresses or port not in protocol:
        return b""
    return bytes(addresses[address]) + bytes(protocol[port]) + b"\0\0"
