"""Metrics that kube-proxy has no like of: what is in the kernel, what was left out, how the API server is followed."""

from __future__ import annotations

from functools import cache
from typing import Final

from proxy.measures import IP_FAMILIES
from proxy.metrics_table import Kind, Metric, Sources, Values, one, single
from proxy.model import KINDS
from rules.diff import Programmed
from rules.layout import LAYOUTS, Options
from rules.objects import Family


@cache
def _chains(family: Family) -> int:
    """Those that are always there."""
    return sum(1 for _ in LAYOUTS[family].rules(Options(), ()))


@cache
def _endpoint_sets(family: Family) -> tuple[str, ...]:
    layout = LAYOUTS[family]
    return tuple(
        name for ports in (layout.addresses, layout.node_ports) for name in (ports.endpoints.name, ports.sticky_endpoints.name)
    )  # fmt: skip


def _tables(of: Sources) -> list[tuple[Family, Programmed]]:
    return sorted(of.agent.tables.programmed.items())


def _elements(of: Sources) -> Values:
    return {
        (IP_FAMILIES[family], name): count
        for family, programmed in _tables(of)
        for name, count in sorted(dict(programmed.sizes).items())
    }


def _endpoints(of: Sources) -> Values:
    return single(
        (IP_FAMILIES[family], sum(programmed.sizes.get(name, 0) for name in _endpoint_sets(family)))
        for family, programmed in _tables(of)
    )


def _by_table(found: dict[str, int]) -> Values:
    """From nft's names of the families."""
    return single((IP_FAMILIES[family], found[family.nft]) for family in Family if family.nft in found)


def _silence(of: Sources) -> Values:
    now = of.clock()
    return single((watcher.kind, max(0.0, now - watcher.heard_at)) for watcher in of.watchers if watcher.heard_at)


def _no_endpoint_packets(of: Sources) -> Values:
    return of.no_endpoints.read(dict(_tables(of))) if of.no_endpoints else {}


METRICS: Final = (
    Metric(
        "kube_proxy_nft_service_ports",
        Kind.GAUGE,
        "Service ports in the kernel: one for each address or NodePort, protocol and port.",
        ("ip_family",),
        lambda of: single((IP_FAMILIES[family], len(programmed.entries)) for family, programmed in _tables(of)),
    ),
    Metric(
        "kube_proxy_nft_endpoints",
        Kind.GAUGE,
        "Endpoints in the kernel, each once for every service port that leads to it, and once more for its Local policy.",
        ("ip_family",),
        _endpoints,
    ),
    Metric(
        "kube_proxy_nft_elements",
        Kind.GAUGE,
        "Elements of the table's sets and maps that this proxy has programmed.",
        ("ip_family", "set"),
        _elements,
    ),
    Metric(
        "kube_proxy_nft_chains",
        Kind.GAUGE,
        "Chains of the table that are in use.",
        ("ip_family",),
        lambda of: single((IP_FAMILIES[f], _chains(f) + programmed.chains) for f, programmed in _tables(of)),
    ),
    Metric(
        "kube_proxy_nft_commit_duration_seconds",
        Kind.HISTOGRAM,
        "From events that were taken to the acknowledged transaction, of those that had something to change.",
        (),
        lambda of: one(of.measures.syncs.commits),
    ),
    Metric(
        "kube_proxy_nft_commit_operations_total",
        Kind.COUNTER,
        "Operations in acknowledged transactions: elements, rules, chains and sets that were added or deleted.",
        (),
        lambda of: one(of.measures.syncs.operations),
    ),
    Metric(
        "kube_proxy_nft_commit_bytes_total",
        Kind.COUNTER,
        "Bytes of acknowledged transactions.",
        (),
        lambda of: one(of.measures.syncs.bytes),
    ),
    Metric(
        "kube_proxy_nft_repairs_total",
        Kind.COUNTER,
        "How often changes that others made to our tables were undone.",
        (),
        lambda of: one(of.agent.repairs),
    ),
    Metric(
        "kube_proxy_nft_standby",
        Kind.GAUGE,
        "Whether the table that others cannot change stands beside ours: 1; 0: it is being built. Not there where none is kept.",
        (),
        lambda of: one(of.agent.standby.is_ready) if of.agent.standby else {},
    ),
    Metric(
        "kube_proxy_nft_adopted_elements",
        Kind.GAUGE,
        "Elements of a table that was there when this process started, or that had to be compared as a whole, and that stayed "
        "as they were.",
        ("ip_family",),
        lambda of: _by_table(of.measures.syncs.adopted),
    ),
    Metric(
        "kube_proxy_nft_adopted_differences",
        Kind.GAUGE,
        "What was not as it should be in such a table: elements, sets, and chains.",
        ("ip_family",),
        lambda of: _by_table(of.measures.syncs.differences),
    ),
    Metric(
        "kube_proxy_nft_refused_service_ports",
        Kind.GAUGE,
        "Service ports that are left out, because the kernel does not take them.",
        (),
        lambda of: one(of.agent.refused),
    ),
    Metric(
        "kube_proxy_nft_no_endpoint_packets_total",
        Kind.COUNTER,
        "Packets that were refused because their service port had no endpoints anywhere, whatever address they came for.",
        ("namespace", "service", "port", "protocol"),
        _no_endpoint_packets,
    ),
    Metric(
        "kube_proxy_nft_faulty_objects",
        Kind.GAUGE,
        "Objects with something that had to be left out, or that are left out as a whole; the log names them.",
        ("kind",),
        lambda of: single((kind, of.agent.state.faults.objects[kind]) for kind in KINDS),
    ),
    Metric(
        "kube_proxy_nft_unreadable_objects",
        Kind.GAUGE,
        "Objects of the API server that do not have the shape of their kind; the log names them.",
        ("kind",),
        lambda of: single((watcher.kind, len(watcher.left_out)) for watcher in of.watchers),
    ),
    Metric(
        "kube_proxy_nft_address_conflicts",
        Kind.GAUGE,
        "Service ports that an older Service has the address, protocol and port of.",
        (),
        lambda of: one(len(of.agent.state.faults.conflicts)),
    ),
    Metric(
        "kube_proxy_nft_queued_events",
        Kind.GAUGE,
        "Events that wait to be taken in.",
        (),
        lambda of: one(of.agent.inbox.waiting),
    ),
    Metric(
        "kube_proxy_nft_watch_silence_seconds",
        Kind.GAUGE,
        "Since when the API server has said nothing of this kind, neither news nor a sign of life, which comes every minute.",
        ("kind",),
        _silence,
    ),
    Metric(
        "kube_proxy_nft_watch_mode",
        Kind.GAUGE,
        "1: how the last list came, as a stream or in one piece.",
        ("kind", "mode"),
        lambda of: {(watcher.kind, watcher.mode): 1 for watcher in of.watchers if watcher.mode},
    ),
    Metric(
        "kube_proxy_nft_watch_relists_total",
        Kind.COUNTER,
        "Lists after the first.",
        ("kind",),
        lambda of: single((watcher.kind, watcher.relists) for watcher in of.watchers),
    ),
    Metric(
        "kube_proxy_nft_watch_failures_total",
        Kind.COUNTER,
        "Requests that failed, and watches that broke; the log says why.",
        ("kind",),
        lambda of: single((watcher.kind, watcher.failures) for watcher in of.watchers),
    ),
)
