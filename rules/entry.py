"""Where a service port stands in its family's table. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from msgspec import Struct

from rules.elements import Scheduler, ServicePort, element_key, index, is_node_port
from rules.endpoint_numbers import LOCAL, TICKET, band, shown
from rules.groups import Group
from rules.layout import Layout
from rules.numbering import Slots, dense
from rules.objects import Set
from rules.service_ports import Ports
from rules.transaction import AddElement


class Entry(Struct, frozen=True, gc=False):
    """A service port as it was wanted, and the numbers that its endpoints (and its local ones) have got.

    is_counted: whether it has, or has had, no endpoints, so that packets that are refused for that are counted."""

    port: ServicePort
    slots: Slots
    local: Slots
    is_counted: bool = False


def ports_of(layout: Layout, key: bytes) -> Ports:
    """The sets and maps for service keys of this kind."""
    return layout.node_ports if is_node_port(key) else layout.addresses


def homes(layout: Layout, ports: Ports, entry: Entry) -> Iterator[tuple[object, Set, bytes]]:
    """The sets and maps that the service port is in, each under something that compares fast, and its data there."""
    port = entry.port
    is_external = port.external or is_node_port(port.key)
    if is_external:
        gate = ports.external_local if port.local_policy else ports.external
        yield gate.name, gate, b""
    for local, slots in ((False, entry.slots), (True, entry.local)):
        if not slots:
            continue
        if port.timeout or port.scheduler is Scheduler.SH:
            group = Group(ports, local, band(dense(slots)), port.timeout)
            yield group, group.services, b""
        elif port.scheduler is Scheduler.RR:
            continue
        else:
            numbers = ports.services(local) if is_external else layout.cluster_ip_ports
            number = shown(len(slots), here=bool(port.hairpins))
            yield (numbers.name, number), numbers, number
    if port.drop:
        yield ports.dropped.name, ports.dropped, b""
    if entry.is_counted:
        yield ports.no_endpoints.name, ports.no_endpoints, b""
    if port.sources is not None:
        yield layout.guarded.name, layout.guarded, b""


def identity(entry: Entry | None) -> int:
    return entry.port.identity if entry and entry.port.timeout else 0


def in_turn(entry: Entry | None, local: bool) -> int:
    """How many endpoints are chosen from in turn, 0: not so."""
    if entry is None or entry.port.timeout or entry.port.scheduler is not Scheduler.RR:
        return 0
    return len(entry.local if local else entry.slots)


def lists(ports: Ports, entry: Entry | None) -> dict[tuple[str, int], tuple[Set, int, Slots]]:
    """Both lists of endpoints, by where they are: (map, first number, endpoints)."""
    found = {}
    if entry:
        sticky = entry.port.timeout
        store, base = (ports.sticky_endpoints, TICKET) if sticky else (ports.endpoints, 0)
        for first, slots in ((base, entry.slots), (base | LOCAL, entry.local)):
            if slots:
                found[store.name, first] = store, first, slots
    return found


def elements(layout: Layout, entry: Entry) -> Iterator[AddElement]:
    """All elements that are the service port's own, but for those of round robin."""
    port, ports = entry.port, ports_of(layout, entry.port.key)
    key = element_key(port.key)
    for store, first, slots in lists(ports, entry).values():
        for i, endpoint in enumerate(slots):
            if endpoint is not None:
                yield AddElement(store, key + index(first + i), endpoint)
    for _, set_, data in homes(layout, ports, entry):
        yield AddElement(set_, key, data, comment=port.name)
    if port.timeout:
        yield AddElement(ports.affinity, key, index(port.identity))
    for first_source, last_source in port.sources or ():
        yield AddElement(layout.allowed_sources, key + first_source, end=key + last_source)


def element(layout: Layout, entry: Entry, name: str, key: bytes) -> AddElement | None:
    """Of `elements`, the one of this key in the set `name`; None: there is none."""
    port, ports = entry.port, ports_of(layout, entry.port.key)
    service_key = element_key(port.key)
    rest = key[len(service_key) :]
    if name == layout.allowed_sources.name:
        ends = dict(port.sources or ())
        return AddElement(layout.allowed_sources, key, end=service_key + ends[rest]) if rest in ends else None
    if rest:
        number = int.from_bytes(rest, sys.byteorder)
        for store, first, slots in lists(ports, entry).values():
            if store.name == name and 0 <= number - first < len(slots):
                endpoint = slots[number - first]
                return AddElement(store, key, endpoint) if endpoint else None
        return None
    if name == ports.affinity.name:
        return AddElement(ports.affinity, key, index(port.identity)) if port.timeout else None
    for _, set_, data in homes(layout, ports, entry):
        if set_.name == name:
            return AddElement(set_, key, data, comment=port.name)
    return None
