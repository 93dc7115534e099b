"""Facts as a bundle has them: addresses, ports and keys as text that people can read, and back. Pure."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct

from proxy.detect.evidence import Evidence
from proxy.migrate.entries import Beside, Dataplane, Entry, ModeName, Refusal
from proxy.migrate.facts import Facts, Interface, Listener, NodeFacts, PresentProxy
from proxy.migrate.report import Proof
from proxy.unread import Unread
from rules.elements import Sources, describe_key, endpoint, node_port_key, service_key
from rules.objects import PROTOCOL_NAMES, PROTOCOLS, Family
from rules.packed import address_text

_NODE_PORT: Final = re.compile(r"NodePort (\d{1,5})/(\w+) \(IPv([46])\)")
_SERVICE: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+)):(\d{1,5})/(\w+)")
_ENDPOINT: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+)):(\d{1,5})")


class TextEntry(Struct, rename="camel", omit_defaults=True):
    """outside: None: as `endpoints`. sources: "first-last"; None: everybody."""

    address: str
    name: str = ""
    endpoints: list[str] = []
    outside: list[str] | None = None
    refusal: Refusal = ""
    outside_refusal: Refusal = ""
    keeps_source: bool | None = None
    affinity: int = 0
    sources: list[str] | None = None
    scheduler: str = "random"
    connections: int = 0
    doubtful: bool = False
    damaged: bool = False


class TextBeside(Struct, rename="camel", omit_defaults=True, frozen=True):
    """hairpins: "10.244.0.2:8080/TCP". dropped: as TextEntry.sources."""

    pods: dict[str, str] = {}
    hairpins: list[str] | None = None
    health_checks: list[str] | None = None
    dropped: list[str] | None = None
    strays: list[str] = []
    uneven: list[str] = []


class TextDataplane(Struct, rename="camel", omit_defaults=True):
    mode: ModeName
    entries: list[TextEntry]
    nodeport_addresses: list[str] | None = None
    masquerade_mark: int = 0
    source: str = ""
    unread: tuple[Unread, ...] = ()
    localhost_nodeports: bool = False
    remarks: tuple[Unread, ...] = ()
    beside: TextBeside = TextBeside()


class TextInterface(Struct):
    name: str
    addresses: list[str] = []


class TextListener(Struct, omit_defaults=True):
    """address: "10.0.0.1:22/TCP"."""

    address: str
    program: str = ""


class Bundle(Struct, rename="camel"):
    """A Facts. here: without interfaces and listeners, which stand beside it."""

    format: str
    node: str
    made: str
    made_by: str
    source: str
    cluster_version: str
    present: PresentProxy
    here: NodeFacts
    interfaces: list[TextInterface]
    listeners: list[TextListener]
    unread: tuple[Unread, ...]
    evidence: tuple[Evidence, ...]
    proof: Proof | None
    dataplanes: list[TextDataplane]
    objects: dict[str, list[msgspec.Raw]]


def to_text(facts: Facts) -> Bundle:
    return Bundle(
        facts.format,
        facts.node,
        facts.made,
        facts.made_by,
        facts.source,
        facts.cluster_version,
        facts.present,
        msgspec.structs.replace(facts.here, interfaces=(), listeners=()),
        [TextInterface(one.name, list(map(address_text, one.addresses))) for one in facts.here.interfaces],
        [TextListener(f"{_host(one.address)}:{one.port}/{one.protocol}", one.program) for one in facts.here.listeners],
        facts.unread,
        facts.evidence,
        facts.proof,
        list(map(_dataplane_to_text, facts.dataplanes)),
        facts.objects,
    )


def to_facts(bundle: Bundle) -> Facts:
    """Raises ValueError, which names what cannot be."""
    here = msgspec.structs.replace(
        bundle.here,
        interfaces=tuple(Interface(one.name, tuple(map(_packed, one.addresses))) for one in bundle.interfaces),
        listeners=tuple(map(_listener, bundle.listeners)),
    )
    return Facts(
        bundle.node,
        bundle.made,
        bundle.made_by,
        bundle.present,
        bundle.objects,
        here,
        tuple(map(_dataplane, bundle.dataplanes)),
        bundle.evidence,
        bundle.unread,
        bundle.cluster_version,
        bundle.source,
        bundle.format,
        bundle.proof,
    )


def _dataplane_to_text(found: Dataplane) -> TextDataplane:
    addresses = found.nodeport_addresses
    return TextDataplane(
        found.mode,
        list(map(_entry_to_text, found.entries)),
        None if addresses is None else list(map(address_text, addresses)),
        found.masquerade_mark,
        found.source,
        found.unread,
        found.localhost_nodeports,
        found.remarks,
        _beside_to_text(found.beside),
    )


def _dataplane(text: TextDataplane) -> Dataplane:
    addresses = text.nodeport_addresses
    return Dataplane(
        text.mode,
        tuple(map(_entry, text.entries)),
        None if addresses is None else tuple(map(_packed, addresses)),
        text.masquerade_mark,
        text.source,
        text.unread,
        text.localhost_nodeports,
        text.remarks,
        _beside(text.beside),
    )


def _beside_to_text(found: Beside) -> TextBeside:
    return TextBeside(
        found.pods,
        None if found.hairpins is None else list(map(_hairpin_to_text, sorted(found.hairpins))),
        None if found.health_checks is None else list(map(describe_key, sorted(found.health_checks))),
        _sources_to_text(found.dropped),
        list(map(describe_key, found.strays)),
        list(map(describe_key, found.uneven)),
    )


def _beside(text: TextBeside) -> Beside:
    return Beside(
        text.pods,
        None if text.hairpins is None else frozenset(map(_hairpin, text.hairpins)),
        None if text.health_checks is None else frozenset(map(parse_key, text.health_checks)),
        _sources(text.dropped),
        tuple(map(parse_key, text.strays)),
        tuple(map(parse_key, text.uneven)),
    )


def _hairpin_to_text(one: bytes) -> str:
    return f"{_host(one[1:-4])}:{int.from_bytes(one[-4:-2])}/{PROTOCOL_NAMES.get(one[0], one[0])}"


def _hairpin(text: str) -> bytes:
    address, _, protocol = text.rpartition("/")
    return bytes((_protocol(protocol),)) + _endpoint(address)


def _sources_to_text(sources: Sources | None) -> list[str] | None:
    return None if sources is None else [f"{address_text(first)}-{address_text(last)}" for first, last in sources]


def _entry_to_text(entry: Entry) -> TextEntry:
    return TextEntry(
        describe_key(entry.key),
        entry.name,
        _endpoints_to_text(entry.endpoints),
        None if entry.outside == entry.endpoints else _endpoints_to_text(entry.outside),
        entry.refusal,
        entry.outside_refusal,
        entry.keeps_source,
        entry.affinity,
        _sources_to_text(entry.sources),
        entry.scheduler,
        entry.connections,
        entry.doubtful,
        entry.damaged,
    )


def _entry(text: TextEntry) -> Entry:
    endpoints = frozenset(map(_endpoint, text.endpoints))
    outside = endpoints if text.outside is None else frozenset(map(_endpoint, text.outside))
    return Entry(
        parse_key(text.address),
        text.name,
        endpoints,
        outside,
        text.refusal,
        text.outside_refusal,
        text.keeps_source,
        text.affinity,
        _sources(text.sources),
        text.scheduler,
        text.connections,
        text.doubtful,
        text.damaged,
    )


def parse_key(text: str) -> bytes:
    """The key that rules.elements.describe_key has described. Raises ValueError."""
    if found := _NODE_PORT.fullmatch(text):
        family = Family.IPV4 if found[3] == "4" else Family.IPV6
        return node_port_key(family, _protocol(found[2]), _port(found[1]))
    if found := _SERVICE.fullmatch(text):
        return service_key(_packed(found[1] or found[2]), _protocol(found[4]), _port(found[3]))
    raise ValueError(f"{text[:100]!r} is no address of a Service")


def _listener(text: TextListener) -> Listener:
    found = _SERVICE.fullmatch(text.address)
    if not found or found[4] not in PROTOCOLS:
        raise ValueError(f"{text.address[:100]!r} is no address, port and protocol")
    return Listener(found[4], _packed(found[1] or found[2]), _port(found[3]), text.program)  # type: ignore[arg-type]


def _sources(texts: list[str] | None) -> Sources | None:
    if texts is None:
        return None
    pairs = (text.partition("-") for text in texts)
    return tuple((_packed(first), _packed(last)) for first, _, last in pairs)


def _endpoints_to_text(endpoints: Iterable[bytes]) -> list[str]:
    return [f"{_host(one[:-4])}:{int.from_bytes(one[-4:-2])}" for one in sorted(endpoints)]


def _endpoint(text: str) -> bytes:
    found = _ENDPOINT.fullmatch(text)
    if not found:
        raise ValueError(f"{text[:100]!r} is no endpoint")
    return endpoint(_packed(found[1] or found[2]), _port(found[3]))


def _host(packed: bytes) -> str:
    return address_text(packed) if len(packed) == 4 else f"[{address_text(packed)}]"


def _packed(text: str) -> bytes:
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)
    except (OSError, ValueError):
        raise ValueError(f"{text[:100]!r} is no IP address") from None


@lru_cache(maxsize=1024)
def _protocol(text: str) -> int:
    number = PROTOCOLS.get(text) or (int(text) if text.isdecimal() else 0)
    if not 0 < number < 256:
        raise ValueError(f"{text!r} is no protocol")
    return number


def _port(text: str) -> int:
    number = int(text)
    if number > 65535:
        raise ValueError(f"{text} is no port")
    return number
