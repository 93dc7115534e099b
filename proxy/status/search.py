"""What a reader looks for among Services: words, addresses, ports. Pure.

Each word has to fit. "web": a part of namespace/name or of a port's name; "10.96.0.10", "10.96." (what begins so),
"fd00:10:96::", "10.96.0.0/24": an address of the Service, or of one of its endpoints; "443", ":443", "443/udp", "udp": a port
(a NodePort, too); "10.96.0.10:53/udp", "[fd00::a]:443": both.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Final

from msgspec import Struct

from proxy.services import ServiceInfo
from proxy.slices import SliceInfo
from rules.objects import PROTOCOLS

_NUMBER: Final = re.compile(r":?(\d{1,5})(?:/(tcp|udp|sctp))?", re.ASCII)
_V4: Final = re.compile(r"(\d{1,3}(?:\.\d{1,3}){0,2}\.(?:\d{1,3})?)(?::(\d{1,5}))?(?:/(tcp|udp|sctp))?", re.ASCII)
_V6: Final = re.compile(r"\[?([0-9a-f:.]*:[0-9a-f:.]*)(?:\](?::(\d{1,5}))?)?(?:/(tcp|udp|sctp))?", re.ASCII)
_NETWORK: Final = re.compile(r"[0-9a-f:.]+/\d{1,3}", re.ASCII)

_ADDRESS: Final = attrgetter("address")

Range = tuple[bytes, bytes]
"""The first and the last address, packed. A word's are of one family, in order."""
Slices = Callable[[], Iterable[SliceInfo]]
"""All."""


class Word(Struct, frozen=True):
    """ranges: of addresses that fit, of which a word may mean several. port, protocol: 0: any. Where a word is nothing of
    this, its text alone counts."""

    text: str
    ranges: tuple[Range, ...] = ()
    port: int = 0
    protocol: int = 0

    def among(self, services: Iterable[ServiceInfo], slices: Slices) -> list[ServiceInfo]:
        """Those that fit. One loop over all there are for each kind of word: this is what a search takes its time for."""
        if self.ranges:  # no name has a dot or a colon, so the text need not be looked for
            led_to = {slice_.service for slice_ in self._having_address(slices()) if self._fits_slice(slice_)}
            return [service for service in services if service.name in led_to or self._fits_ports(service)]
        text = self.text
        if self.port or self.protocol:
            return [service for service in services if text in _name(service) or self._fits_ports(service)]
        return [service for service in services if text in _name(service) or _has_port_named(service, text)]

    def _having_address(self, slices: Iterable[SliceInfo]) -> list[SliceInfo]:
        """Those with an endpoint in the ranges."""
        first, last = self.ranges[0][0], self.ranges[-1][1]
        if first == last:  # a whole address: as fast as Python can look at a hundred thousand
            return [slice_ for slice_ in slices if first in map(_ADDRESS, slice_.endpoints)]
        return [
            slice_
            for slice_ in slices
            if len(first) == slice_.address_size
            and any(map(self._fits_address, [a for a in map(_ADDRESS, slice_.endpoints) if first <= a <= last]))
        ]

    def _fits_ports(self, service: ServiceInfo) -> bool:
        for port in service.ports:  # noqa: SIM110  # a generator takes twice the time
            if self._fits_address(port.key[:-8]) and self._fits_port(port.key):
                return True
        return False

    def _fits_port(self, key: bytes) -> bool:
        return (not self.protocol or key[-8] == self.protocol) and (
            not self.port or int.from_bytes(key[-4:-2]) == self.port
        )

    def _fits_address(self, address: bytes) -> bool:
        for first, last in self.ranges:
            if first <= address <= last and len(first) == len(address):
                return True
        return not self.ranges

    def _fits_slice(self, slice_: SliceInfo) -> bool:
        if self.port and not any(number == self.port for _, _, number in slice_.ports):
            return False
        return not self.protocol or any(PROTOCOLS[name] == self.protocol for _, name, _ in slice_.ports)


def find(services: Iterable[ServiceInfo], wanted: Iterable[Word], slices: Slices) -> list[ServiceInfo]:
    """Those that all words fit."""
    found = list(services)
    for word in wanted:
        found = word.among(found, slices) if found else found
    return found


def words(query: str) -> list[Word]:
    """What the reader typed."""
    return [_word(text) for text in query.lower().split()]


def _name(service: ServiceInfo) -> str:
    return "/".join(service.name).lower()


def _has_port_named(service: ServiceInfo, text: str) -> bool:
    for port in service.ports:  # noqa: SIM110  # a generator takes twice the time
        if text in port.name.lower():
            return True
    return False


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
    nexts = [(head + bytes([low]), head + bytes([high])) for low, high in _going_on(last)] if last else [(head, head)]
    return tuple((_filled(low, 0, 4), _filled(high, 255, 4)) for low, high in nexts)


def _going_on(digits: str) -> Iterator[tuple[int, int]]:
    """The numbers below 256 that begin so, as ranges: 1, 10 to 19, 100 to 199."""
    number = int(digits)
    if str(number) != digits:
        return
    for scale in (1, 10, 100) if number else (1,):
        if number * scale < 256:
            yield number * scale, min(255, number * scale + scale - 1)


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
