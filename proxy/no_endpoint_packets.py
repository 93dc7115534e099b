"""Packets for service ports without endpoints, as the kernel counts them, told by namespace, Service, port and protocol.

The kernel has a counter for each address and NodePort (rules.service_ports.Ports.no_endpoints), and it is the truth: it goes on
when this process does not. What is kept here is what makes sums of those counters only grow while service ports
lose addresses, or somebody else's doing makes counters begin anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Final

import structlog
from msgspec import Struct

from proxy.measures import Labels
from rules.diff import Programmed
from rules.elements import ServicePort, family_of
from rules.entry import Entry
from rules.errors import KernelUnreachable
from rules.netlink_socket import DAMAGED
from rules.objects import MAX_COMMENT, PROTOCOL_NAMES, Family, comment_text
from rules.packet_counts import Counted
from rules.table_reader import Reader

LOG = structlog.get_logger()

MOST_ZEROS: Final = 1000
"""Where more service ports without endpoints have had no packets, those are not told: 0.01 ms each."""


class _Seen(Struct):
    """comment: the element's, which names the service port. packets: since the element was made."""

    comment: str
    labels: Labels
    packets: int


class NoEndpointPackets:
    """For one thread, which need not be the agent's. open_reader: called there when it is needed."""

    def __init__(self, open_reader: Callable[[], Reader]) -> None:
        self._open = open_reader
        self._reader: Reader | None = None
        self._seen: dict[bytes, _Seen] = {}
        self._gone: dict[Labels, int] = {}
        self._places: dict[Labels, bytes] = {}
        self._idle: dict[Family, dict[bytes, Entry]] = {}
        self._failing: set[Family] = set()

    def read(self, tables: Mapping[Family, Programmed]) -> dict[Labels, int]:
        """The numbers now; if the kernel cannot be read, those of the last time.

        By (namespace, Service, port's name, protocol): of service ports that have had such packets, and of those that have
        no endpoints now.
        """
        for programmed in tables.values():
            found = self._found(programmed)
            if found is not None:
                self._note(programmed, found)
                programmed.unused = self._unused(programmed, found)
        totals = self._carried_over(tables)
        for seen in self._seen.values():
            if seen.packets:
                totals[seen.labels] = totals.get(seen.labels, 0) + seen.packets
        return totals | self._zeros(tables, totals)

    def _carried_over(self, tables: Mapping[Family, Programmed]) -> dict[Labels, int]:
        """What service ports that are still there have of counters that are gone."""
        silent = self._gone.keys() - {seen.labels for seen in self._seen.values()} if self._gone else set()
        if silent and tables:  # none: not known just now
            self._places = self._find(silent, tables)
            for labels in silent - self._places.keys():
                del self._gone[labels]
        return dict(self._gone)

    def _find(self, wanted: Set[Labels], tables: Mapping[Family, Programmed]) -> dict[Labels, bytes]:
        """One key of each of these service ports that is there, counted or not. Looks at all only when one has moved."""
        found = {
            labels: key
            for labels in wanted
            if (key := self._places.get(labels)) and (entry := _entry(tables, key)) and _labels(entry.port) == labels
        }
        if missing := wanted - found.keys():
            names = {f"{namespace}/{service}:{name}".removesuffix(":") for namespace, service, name, _ in missing}
            for programmed in tables.values():
                for key, entry in programmed.entries.copy().items():
                    if entry.port.name in names and (labels := _labels(entry.port)) in missing:
                        found[labels] = key
        return found

    def _zeros(self, tables: Mapping[Family, Programmed], totals: Mapping[Labels, int]) -> dict[Labels, int]:
        zeros: dict[Labels, int] = {}
        for key, seen in self._seen.items():
            if not seen.packets and _is_refused(tables, key) and seen.labels not in totals:
                zeros[seen.labels] = 0
                if len(zeros) > MOST_ZEROS:
                    return {}
        return zeros

    def _found(self, programmed: Programmed) -> dict[bytes, Counted] | None:
        """By service key; None: it cannot be read."""
        layout = programmed.layout
        try:
            self._reader = self._reader or self._open()
            found = self._reader.packets(layout.addresses.no_endpoints)
            node_ports = self._reader.packets(layout.node_ports.no_endpoints)
        except FileNotFoundError:
            return None  # others have taken the table away: it is put back, which the agent tells
        except (KernelUnreachable, OSError, *DAMAGED) as error:
            if self._reader:
                self._reader.close()
                self._reader = None
            if layout.family not in self._failing:
                self._failing.add(layout.family)
                LOG.warning(
                    "no_endpoint_packets_unreadable",
                    cause=str(error),
                    then="the metric stays as it is, and the next scrape tries again",
                )
            return None
        self._failing.discard(layout.family)
        family = bytes((layout.family,))
        return found | {family + key: counted for key, counted in node_ports.items()}

    def _note(self, programmed: Programmed, found: Mapping[bytes, Counted]) -> None:
        for key, (packets, comment) in found.items():
            seen = self._seen.get(key)
            if seen is None or seen.comment != comment or len(comment) >= MAX_COMMENT:
                entry = programmed.entries.get(key)
                if entry is None or comment_text(entry.port.name) != comment:
                    continue  # it is another one's by now, or nobody's
                labels = _labels(entry.port)
                if seen is None or seen.labels != labels:  # comments of long names are cut off
                    self._forget(key)
                    seen = self._seen[key] = _Seen(comment, labels, packets)
            if packets < seen.packets:  # the element was made anew
                self._carry_over(seen)
            seen.packets = packets
        family = programmed.layout.family
        for key in [key for key in self._seen.keys() - found.keys() if family_of(key) is family]:
            # While the kernel makes room for more elements, it leaves some out.
            entry = programmed.entries.get(key)
            if entry is None or not entry.is_counted or comment_text(entry.port.name) != self._seen[key].comment:
                self._forget(key)

    def _forget(self, key: bytes) -> None:
        seen = self._seen.pop(key, None)
        if seen:
            self._carry_over(seen)

    def _carry_over(self, seen: _Seen) -> None:
        if seen.packets:
            self._gone[seen.labels] = self._gone.get(seen.labels, 0) + seen.packets

    def _unused(self, programmed: Programmed, found: Mapping[bytes, Counted]) -> dict[bytes, Entry]:
        """Those that have endpoints, and had them at the last look, too, and no packet was refused before."""
        idle: dict[bytes, Entry] = {}
        for key, (packets, _) in found.items():
            entry = None if packets else programmed.entries.get(key)
            if entry and entry.is_counted and not entry.port.is_refused:
                idle[key] = entry
        before = self._idle.get(programmed.layout.family, {})
        self._idle[programmed.layout.family] = idle
        return {key: entry for key, entry in idle.items() if before.get(key) is entry}


def _is_refused(tables: Mapping[Family, Programmed], key: bytes) -> bool:
    entry = _entry(tables, key)
    return entry is not None and entry.port.is_refused


def _entry(tables: Mapping[Family, Programmed], key: bytes) -> Entry | None:
    programmed = tables.get(family_of(key))
    return programmed.entries.get(key) if programmed else None


def _labels(port: ServicePort) -> Labels:
    namespace, _, rest = port.name.partition("/")
    service, _, name = rest.partition(":")
    return namespace, service, name, PROTOCOL_NAMES.get(port.key[-8], str(port.key[-8]))
