"""What a reader looks for among Services: words, addresses, ports. Pure.

Each word has to fit. "web": a part of namespace/name or of a port's name; "10.96.0.10", "10.96." (what begins so),
"fd00:10:96::", "10.96.0.0/24": an address of the Service, or of one of its endpoints; "443", ":443", "443/udp", "udp": a port
(a NodePort, too); "10.96.0.10:53/udp", "[fd00::a]:443": both.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct

from proxy.services import ServiceInfo
from proxy.slices import SliceInfo
from rules.elements import address_of
from rules.objects import PROTOCOLS

_NUMBER: Final = re.compile(r":?(\d{1,5})(?:/(tcp|udp|sctp))?", re.ASCII)
_V4: Final = re.compile(r"(\d{1,3}(?:\.\d{1,3}){0,2}\.(?:\d{1,3})?)(?::(\d{1,5}))?(?:/(tcp|udp|sctp))?", re.ASCII)
_V6: Final = re.compile(r"\[?([0-9a-f:.]*:[0-9a-f:.]*)(?:\](?::(\d{1,5}))?)?(?:/(tcp|udp|sctp))?", re.ASCII)
_NETWORK: Final = re.compile(r"[0-9a-f:.]+/\d{1,3}", re.ASCII)

Range = tuple[bytes, bytes]
"""The first and the last address, packed."""


class Word(Struct, frozen=True):
    """ranges: of addresses that fit, of which a word may mean several. port, protocol: 0: any. Where a word is nothing of
    this, its text alone counts."""

    text: str
    ranges: tuple[Range, ...] = ()
    port: int = 0
    protocol: int = 0

    @property
    def is_text_only(self) -> bool:
        return not (self.ranges or self.port or self.protocol)

    def fits(self, service: ServiceInfo, name: str, slices: Collection[SliceInfo]) -> bool:
        """name: namespace/name in small letters."""
        if self.text in name:
            return True
        if self.is_text_only:
            return any(self.text in port.name.lower() for port in service.ports if port.name)
        for port in service.ports:
            if (not self.ranges or self._fits_address(address_of(port.key))) and self._fits_port(port.key):
                return True
        return bool(self.ranges) and any(self._fits_slice(slice_) for slice_ in slices)

    def _fits_port(self, key: bytes) -> bool:
        return (not self.protocol or key[-8] == self.protocol) and (
            not self.port or int.from_bytes(key[-4:-2]) == self.port
        )

    def _fits_address(self, address: bytes) -> bool:
        for first, last in self.ranges:  # noqa: SIM110  # a generator takes twice the time
            if first <= address <= last and len(first) == len(address):
                return True
        return False

    def _fits_slice(self, slice_: SliceInfo) -> bool:
        if self.port and not any(number == self.port for _, _, number in slice_.ports):
            return False
        if self.protocol and not any(PROTOCOLS[name] == self.protocol for _, name, _ in slice_.ports):
            return False
        for first, last in self.ranges:
            if len(first) != slice_.address_size:
                continue
            addresses = [endpoint.address for endpoint in slice_.endpoints]
            if first in addresses or (first != last and any(first <= address <= last for address in addresses)):
                return True
        return False


def words(query: str) -> list[Word]:
    """What the reader typed."""
    return [_word(text) for text in query.lower().split()]


def fit(service: ServiceInfo, wanted: Iterable[Word], slices: Collection[SliceInfo]) -> bool:
    """Whether all words do."""
    name = "/".join(service.name).lower()
    return all(word.fits(service, name, slices) for word in wanted)


def _word(text: str) -> Word:
    if text in ("tcp", "udp", "sctp"):
        return Word(text, protocol=PROTOCOLS[text.upper()])
    if match := _NUMBER.fullmatch(text):
        return Word(text, port=int(match[1]), protocol=_protocol(match[2]))
    if _NETWORK.fullmatch(text) and (found := _network(text)):
        return Word(text, (found,))
    for pattern, ranges_of in ((_V4, _v4), (_V6, _v6)):
        if (match := pattern.fullmatch(text)) and (ranges := ranges_of(match[1])):
            return Word(text, ranges, int(match[2] or 0), _protocol(match[3]))
    return Word(text)


def _protocol(text: str | None) -> int:
    return PROTOCOLS[text.upper()] if text else 0


def _network(text: str) -> Range | None:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
    return network.network_address.packed, network.broadcast_address.packed


def _v4(text: str) -> tuple[Range, ...]:
    """A whole address, or its beginning: then the last number may go on, if no dot ends it."""
    *whole, last = text.split(".")
    try:
        head = bytes(map(int, whole))
    except ValueError:
        return ()
    if len(head) == 3 and last:
        return ((head + bytes([int(last)]),) * 2,) if int(last) < 256 else ()
    nexts = [bytes([n]) for n in range(256) if str(n).startswith(last)] if last else [b""]
    return tuple((_filled(head + n, 0, 4), _filled(head + n, 255, 4)) for n in nexts)


def _v6(text: str) -> tuple[Range, ...]:
    """A whole address; or its beginning, which ends with a colon."""
    if not text.endswith(":") or text == "::":
        try:
            return ((socket.inet_pton(socket.AF_INET6, text),) * 2,)
        except OSError:
            return ()
    groups = text.rstrip(":").split(":")
    try:
        head = b"".join(int(group, 16).to_bytes(2) for group in groups)
    except (ValueError, OverflowError):
        return ()
    return ((_filled(head, 0, 16), _filled(head, 255, 16)),) if len(head) < 16 else ()


def _filled(head: bytes, byte: int, size: int) -> bytes:
    return head + bytes([byte]) * (size - len(head))
