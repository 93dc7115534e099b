"""Every address of every Service: what the live rules do with it, and what ours would. Pure.

Three ways: what the kernel has of a mode is compared with ours, and what of that is the mode's own way of doing it is known
by comparing with what the mode makes of the same objects. What is left is rules that are stale, or damaged.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from proxy.addresses import Network
from proxy.config_values import BadValue, cidrs
from proxy.migrate.differences import Known, differences, result_of
from proxy.migrate.entries import Dataplane, Entry
from proxy.migrate.facts import Facts, PresentProxy
from proxy.migrate.modes import There, made, name_of
from proxy.migrate.ours import Ours, node_addresses
from proxy.migrate.report import Difference, EntryRow, Result, ServiceRow
from proxy.migrate.wording import endpoint_text, key_text, label, service_of
from proxy.model import ENDPOINT_SLICE, SERVICE
from rules.elements import ServicePort, address_of, family_of, is_node_port, node_port_key
from rules.objects import Family

WORST_FIRST: Final[tuple[Result, ...]] = ("only-here", "only-there", "endpoints", "behaviour", "not-compared", "same")
_RANK: Final = {result: rank for rank, result in enumerate(WORST_FIRST)}
DEFAULT_SCHEDULER: Final = "rr"
UNEVEN: Final = "uneven-endpoints"
_WEIGHTS: Final = Difference("weights", "not the same for all", "the same for all", UNEVEN)
_DAMAGED: Final = Difference("rules", "damaged", "as the objects ask", "rules-damaged")


class Comparison(Struct):
    """compared: there was something to compare with: `dataplane`. others: further live dataplanes, of a switch that is
    not finished. rows: the worst first, then by name. explained: check -> service ports that it is about. drift: what
    differs without a reason, by its kind, and where. connections: Service -> how many the dataplane tracks itself.
    schedulers: of the live rules -> service ports. unknown: addresses that may be there, in a part that was not read.
    expected: addresses that the live rules should have. blind: dataplanes of which nothing could be read.
    """

    dataplane: Dataplane | None = None
    others: tuple[Dataplane, ...] = ()
    rows: tuple[ServiceRow, ...] = ()
    explained: dict[str, list[str]] = {}
    drift: dict[str, list[str]] = {}
    connections: dict[str, int] = {}
    schedulers: dict[str, int] = {}
    unknown: int = 0
    expected: int = 0
    blind: tuple[Dataplane, ...] = ()

    @property
    def compared(self) -> bool:
        return self.dataplane is not None

    @property
    def mode(self) -> str:
        return self.dataplane.mode if self.dataplane else ""


def compare(facts: Facts, ours: Ours) -> Comparison:
    """With the dataplane of the mode in force; if none is known to be, with the one that has most in it."""
    dataplane, others = choose(facts)
    if SERVICE in ours.unread and not ours.ports:
        dataplane = None  # nothing to compare it with
    found = Comparison(dataplane, others, blind=tuple(d for d in facts.dataplanes if is_blind(d)))
    rows: dict[str, list[EntryRow]] = {}
    if dataplane is None:
        for port in ours.ports.values():
            rows.setdefault(service_of(port.name), []).append(_row(port, "not-compared", ()))
    else:
        _compare(facts, ours, dataplane, found, rows)
    found.rows = _sorted(rows, ours)
    return found


def choose(facts: Facts) -> tuple[Dataplane | None, tuple[Dataplane, ...]]:
    """The live dataplane that counts, and the others. None: there is none, or nothing of it could be read."""
    if any(is_blind(d) and d.mode == facts.present.mode for d in facts.dataplanes):
        return None, ()
    ranked = sorted(
        (d for d in facts.dataplanes if not is_blind(d)),
        key=lambda d: (d.mode == facts.present.mode, d.mode != "kube-proxy-nft", len(d.entries)),
        reverse=True,
    )
    others = tuple(d for d in ranked[1:] if d.entries and d.mode != "kube-proxy-nft")
    return (ranked[0], others) if ranked else (None, ())


def is_blind(dataplane: Dataplane) -> bool:
    """Nothing of it could be read: it says nothing, not even that there is nothing."""
    return bool(dataplane.unread) and not dataplane.entries


def proxy_there(facts: Facts, dataplane: Dataplane, ours: Ours) -> There:
    """How the proxy that runs is set, as its configuration and its rules tell."""
    return There(dataplane.mode, _scheduler(facts.present, dataplane), _node_port_families(facts, dataplane, ours))


def mute_families(dataplane: Dataplane, ours: Ours) -> frozenset[Family]:
    """Families in which NodePorts answer nowhere, though the node has addresses for them: a set of nftables mode that is
    empty. (iptables mode has a rule for each address, and misses it.)"""
    if dataplane.mode != "nftables" or dataplane.nodeport_addresses is None or dataplane.unread:
        return frozenset()
    there = {Family.of(address) for address in dataplane.nodeport_addresses}
    return frozenset(family for family, found in ours.node_ports.items() if found and family not in there)


def excluded(present: PresentProxy) -> tuple[Network, ...]:
    """ipvs.excludeCIDRs."""
    section = present.document.get("ipvs")
    try:
        return cidrs(section.get("excludeCIDRs") or []) if isinstance(section, dict) else ()
    except BadValue:
        return ()


def _compare(
    facts: Facts, ours: Ours, dataplane: Dataplane, found: Comparison, rows: dict[str, list[EntryRow]]
) -> None:
    there = proxy_there(facts, dataplane, ours)
    whole, slices = not dataplane.unread, ENDPOINT_SLICE not in ours.unread
    live = {entry.key: entry for entry in dataplane.entries}
    connections: Counter[str] = Counter()
    schedulers: Counter[str] = Counter()
    texts: dict[bytes, str] = {}
    uneven, mute = _uneven(dataplane, ours), mute_families(dataplane, ours)
    for key, port in ours.ports.items():
        both = made(port, ours.services.get(name_of(port)), there, ours)
        entry = live.pop(key, None)
        service = service_of(port.name)
        if entry is None:
            result: Result = "same" if both.there is None else "only-here" if whole else "not-compared"
            found.expected += both.there is not None
            found.unknown += result == "not-compared"
            rows.setdefault(service, []).append(_row(port, result, (), texts))
            if result == "only-here":
                found.drift.setdefault("only-here", []).append(label(port.name, key))
            continue
        found.expected += 1
        if entry.connections:
            connections[service] += entry.connections
        schedulers[entry.scheduler] += 1
        endpoints = slices and name_of(port) not in ours.hinted
        known = Known(dataplane.mode, endpoints, whole, ours.knows_node, key in ours.rivals)
        differs = () if entry == both.here == both.there else tuple(differences(entry, both, known))
        differs = (*differs, _WEIGHTS) if key in uneven else differs
        is_mute = is_node_port(key) and family_of(key) in mute
        differs = differs or ((_DAMAGED,) if entry.damaged or is_mute else ())
        _remember(port.name, differs, found)
        result = result_of(differs)
        if result == "same" and (not endpoints or entry.doubtful):
            result = "not-compared"
        rows.setdefault(service, []).append(_row(port, result, differs, texts))
    for entry in _theirs(live.values(), facts, ours):
        node_port = _at_one_address(entry.key, dataplane, ours)
        if node_port:  # that is another one at this address of the node
            both = made(node_port, ours.services.get(name_of(node_port)), there, ours)
            differs = tuple(differences(entry, both, Known(dataplane.mode, slices, whole)))
            _remember(node_port.name, differs, found)
            rows[service_of(node_port.name)].append(_row(node_port, result_of(differs), differs, texts, entry.key))
            continue
        found.drift.setdefault("only-there", []).append(label(entry.name, entry.key))
        name = service_of(entry.name) or key_text(entry.key)
        connections[name] += entry.connections
        schedulers[entry.scheduler] += 1
        rows.setdefault(name, []).append(_their_row(entry))
    found.connections = {service: number for service, number in connections.most_common() if number}
    found.schedulers = dict(schedulers.most_common())


def _uneven(dataplane: Dataplane, ours: Ours) -> set[bytes]:
    """Keys of our service ports whose live endpoints have weights of their own."""
    ports = {key: ours.ports.get(key) or _at_one_address(key, dataplane, ours) for key in dataplane.beside.uneven}
    return {port.key for port in ports.values() if port}


def _at_one_address(key: bytes, dataplane: Dataplane, ours: Ours) -> ServicePort | None:
    """The NodePort that this is at one of the node's addresses."""
    if is_node_port(key) or (address := address_of(key)) not in (dataplane.nodeport_addresses or ()):
        return None
    port = int.from_bytes(key[-4:-2])
    return ours.ports.get(node_port_key(Family.of(address), key[-8], port))


def _theirs(entries: Iterable[Entry], facts: Facts, ours: Ours) -> Iterator[Entry]:
    """What is only there, unless it is others' (excludeCIDRs), or what is here is not known."""
    if SERVICE in ours.unread:
        return
    ranges = excluded(facts.present)
    for entry in entries:
        if ranges and not is_node_port(entry.key):
            address = ipaddress.ip_address(address_of(entry.key))
            if any(address in network for network in ranges):
                continue
        yield entry


def _remember(name: str, differs: tuple[Difference, ...], found: Comparison) -> None:
    for difference in differs:
        where = found.explained if difference.check else found.drift
        names = where.setdefault(difference.check or difference.what, [])
        if not names or names[-1] != name:
            names.append(name)


def _row(
    port: ServicePort,
    result: Result,
    differs: tuple[Difference, ...],
    texts: dict[bytes, str] | None = None,
    key: bytes = b"",
) -> EntryRow:
    """texts: of endpoints, to be shared. key: where the rules have it, if that is not the port's own."""
    texts = {} if texts is None else texts
    endpoints = tuple(texts.get(e) or texts.setdefault(e, endpoint_text(e)) for e in sorted(port.endpoints))
    return EntryRow(key_text(key or port.key), port.name, result, endpoints, differs)


def _their_row(entry: Entry) -> EntryRow:
    endpoints = tuple(endpoint_text(e) for e in sorted(entry.endpoints or entry.outside))
    return EntryRow(key_text(entry.key), entry.name, "only-there", endpoints)


def _sorted(rows: dict[str, list[EntryRow]], ours: Ours) -> tuple[ServiceRow, ...]:
    found = []
    for service, entries in rows.items():
        entries.sort(key=lambda row: _RANK[row.result])
        namespace, _, name = service.partition("/")
        type_ = ours.types.get((namespace, name), "")
        found.append(ServiceRow(service, type_, entries[0].result, tuple(entries)))
    found.sort(key=lambda row: (_RANK[row.result], row.service))
    return tuple(found)


def _scheduler(present: PresentProxy, dataplane: Dataplane) -> str:
    """Of IPVS: configured; without a configuration, what most servers have."""
    if dataplane.mode != "ipvs" or present.document:
        section = present.document.get("ipvs")
        said = section.get("scheduler") if isinstance(section, dict) else None
        return str(said or DEFAULT_SCHEDULER)
    common = Counter(entry.scheduler for entry in dataplane.entries).most_common(1)
    return common[0][0] if common else DEFAULT_SCHEDULER


def _node_port_families(facts: Facts, dataplane: Dataplane, ours: Ours) -> frozenset[Family]:
    """Families in which NodePorts answer in IPVS mode; where the node's addresses are not known, what the rules tell."""
    if facts.present.document.get("nodePortAddresses"):
        found = frozenset(family for family, addresses in ours.node_ports.items() if addresses)
    else:
        found = frozenset(Family.of(a) for a in node_addresses(facts.here.interfaces) if not _is_own_link(a))
    return found or frozenset(map(Family.of, dataplane.nodeport_addresses or ())) or frozenset(Family)


def _is_own_link(address: bytes) -> bool:
    """Loopback, and IPv6 link-local: no NodePort of IPVS mode answers there."""
    parsed = ipaddress.ip_address(address)
    return parsed.is_loopback or (parsed.version == 6 and parsed.is_link_local)
