"""Service ports that something concerns which was not read, or is damaged: they cannot be called the same. Pure."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from typing import Final

from proxy.migrate.wording import address_text, service_of
from proxy.unread import Unread
from rules.elements import ServicePort, address_of, describe_key, is_node_port
from rules.objects import PROTOCOL_NAMES

_SERVICE: Final = "Service "
_OF_PORT: Final = re.compile("chain KUBE-(SVC|SVL|EXT|FW)-")
_WORD: Final = re.compile(r"[^\s\"',;()]+")
_ADDRESS: Final = re.compile(r"\[([0-9a-f:]+)\](?::\d+(?:/\w+)?)?|([0-9.]+):\d+(?:/\w+)?")
"""As wording.key_text writes it."""


class Doubtful:
    """By the names and addresses in what was not read: a rule with its comment, a chain of nftables mode, a key."""

    def __init__(self, unread: Iterable[Unread]) -> None:
        self._words: set[str] = set()
        for one in unread:
            for word in _WORD.findall(one.what):
                self._words |= _readings(word)

    def concerns(self, port: ServicePort) -> bool:
        if not self._words:
            return False
        if port.name in self._words or service_of(port.name) in self._words:
            return True
        return not is_node_port(port.key) and address_text(address_of(port.key)) in self._words


class Damaged:
    """By what remarks are about: "Service default/web, 10.96.0.1:80/TCP", "Service default/web, chain KUBE-SVC-..."."""

    def __init__(self, remarks: Iterable[Unread]) -> None:
        self._places: dict[str, set[str]] = {}
        for remark in remarks:
            if remark.what.startswith(_SERVICE):
                service, _, place = remark.what.removeprefix(_SERVICE).partition(", ")
                self._places.setdefault(service, set()).add(place)

    def concerns(self, port: ServicePort) -> bool:
        return any(_is_about(place, port) for place in self._places.get(service_of(port.name), ()))


def _is_about(place: str, port: ServicePort) -> bool:
    """Whether this place in the rules of a Service is its port's."""
    if place.startswith("NodePort ") or _ADDRESS.fullmatch(place):
        return place == describe_key(port.key)
    protocol = PROTOCOL_NAMES.get(port.key[-8], "").lower()
    service, _, name = port.name.partition(":")
    if f"{service}/" in place:  # nftables mode: service-ZXGTDUEP-default/web/tcp/http
        return f"{service}/{protocol}/{name}" in place
    if _OF_PORT.match(place):  # iptables mode: KUBE-SVC-, and a hash of the port's name
        digest = hashlib.sha256(f"{port.name}{protocol}".encode()).digest()
        return place.endswith(base64.b32encode(digest)[:16].decode())
    return True


def _readings(word: str) -> set[str]:
    """The word; without a prefix length, a port; "default/web" of service-ZXGTDUEP-default/web/tcp/http."""
    found = {word, word.removesuffix("/32").removesuffix("/128")}
    if address := _ADDRESS.fullmatch(word):
        found.add(address[1] or address[2])
    if word.count("/") == 3:
        namespace, name, _, _ = word.split("/")
        found.add(f"{namespace.split('-', 2)[-1]}/{name}")
    return found
