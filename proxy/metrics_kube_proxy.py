"""kube-proxy's metrics, as v1.36 has them in nftables mode: what dashboards and alerts read. The same names, types, labels,
buckets and meanings; where ours cannot be quite the same, `about` says so.

One transaction programs both IP families: what is said of a sync is said of each.
"""

from __future__ import annotations

import platform
import sys
from typing import Final

from proxy.feature_gates import GATES
from proxy.measures import IP_FAMILIES, Counts, Histogram
from proxy.metrics_table import Kind, Metric, Sources, Values, one, single

REFERENCE: Final = "v1.36.2"
"""The kube-proxy whose behaviour this one has."""

_STAGES: Final = {
    "AllAlpha": "ALPHA",
    "AllBeta": "BETA",
    "ComponentFlagz": "BETA",
    "ComponentStatusz": "BETA",
    "ContextualLogging": "BETA",
    "LoggingAlphaOptions": "ALPHA",
    "LoggingBetaOptions": "BETA",
    "MultiCIDRServiceAllocator": "",
    "NFTablesProxyMode": "",
    "NativeHistograms": "ALPHA",
    "PreferSameTrafficDistribution": "",
    "WatchListClient": "BETA",
    "WinDSR": "",
    "WinOverlay": "",
}
"""Of the gates that this release of kube-proxy has; '': generally available."""


_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""By Linux' names, Go's."""


def _each(of: Sources, value: float | Histogram) -> Values:
    """The same for each IP family that is programmed."""
    return single((IP_FAMILIES[family], value) for family in sorted(of.families))


def _network(of: Sources) -> Values:
    return single((IP_FAMILIES[family], of.measures.syncs.network[family]) for family in sorted(of.families))


def _probes(counts: Counts, path: str) -> Values:
    return single((code, count) for (asked, code), count in counts.read().items() if asked == path)


def _build(of: Sources) -> Values:
    major, minor, _ = REFERENCE.removeprefix("v").split(".")
    version = f"python{platform.python_version()}"
    where = f"{sys.platform}/{_MACHINES.get(platform.machine(), platform.machine())}"
    return {("", sys.implementation.name, "", "", REFERENCE, version, major, minor, where): 1}


METRICS: Final = (
    Metric(
        "kubeproxy_sync_proxy_rules_duration_seconds",
        Kind.HISTOGRAM,
        "How long a sync took: from events that were taken to the kernel's acknowledgement.",
        ("ip_family",),
        lambda of: _each(of, of.measures.syncs.all),
    ),
    Metric(
        "kubeproxy_sync_full_proxy_rules_duration_seconds",
        Kind.HISTOGRAM,
        "How long a sync of everything took: at the start, and when a table had to be compared as a whole.",
        ("ip_family",),
        lambda of: _each(of, of.measures.syncs.full),
    ),
    Metric(
        "kubeproxy_sync_partial_proxy_rules_duration_seconds",
        Kind.HISTOGRAM,
        "How long a sync of what changed took.",
        ("ip_family",),
        lambda of: _each(of, of.measures.syncs.partial),
    ),
    Metric(
        "kubeproxy_network_programming_duration_seconds",
        Kind.HISTOGRAM,
        "From the change of a pod or Service (the EndpointSlice's annotation endpoints.kubernetes.io/last-change-trigger-time, "
        "by the control plane's clock) to the kernel's acknowledgement; of changes since this process started.",
        ("ip_family",),
        _network,
    ),
    Metric(
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
        Kind.GAUGE,
        "When the rules were synced last, in seconds since 1970; 0: never.",
        ("ip_family",),
        lambda of: _each(of, of.measures.syncs.synced_at),
    ),
    Metric(
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        Kind.GAUGE,
        "When there was something to sync last, in seconds since 1970; 0: never.",
        ("ip_family",),
        lambda of: _each(of, of.measures.syncs.queued_at),
    ),
    Metric(
        "kubeproxy_sync_proxy_rules_endpoint_changes_total",
        Kind.COUNTER,
        "Changes of EndpointSlices that matter to a proxy.",
        (),
        lambda of: one(of.agent.state.slice_changes),
    ),
    Metric(
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
        Kind.GAUGE,
        "Changes of EndpointSlices that are not in the kernel yet.",
        (),
        lambda of: one(max(0, of.agent.state.slice_changes - of.measures.syncs.programmed_slices)),
    ),
    Metric(
        "kubeproxy_sync_proxy_rules_service_changes_total",
        Kind.COUNTER,
        "Changes of Services that matter to a proxy.",
        (),
        lambda of: one(of.agent.state.service_changes),
    ),
    Metric(
        "kubeproxy_sync_proxy_rules_service_changes_pending",
        Kind.GAUGE,
        "Changes of Services that are not in the kernel yet.",
        (),
        lambda of: one(max(0, of.agent.state.service_changes - of.measures.syncs.programmed_services)),
    ),
    Metric(
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        Kind.GAUGE,
        "Service ports with endpoints whose traffic policy is Local and that have none on this node: traffic is dropped.",
        ("ip_family", "traffic_policy"),
        lambda of: of.measures.local_policies.read(of.families),
    ),
    Metric(
        "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
        Kind.COUNTER,
        "Transactions that the kernel refused and that no single service port was to blame for.",
        ("ip_family",),
        lambda of: _each(of, of.agent.sync_failures),
    ),
    Metric(
        "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
        Kind.COUNTER,
        "Always 0: what is not needed any more goes with the transaction that replaces it.",
        ("ip_family",),
        lambda of: _each(of, 0),
    ),
    Metric(
        "kubeproxy_proxy_healthz_total",
        Kind.COUNTER,
        "Answers of /healthz (healthzBindAddress), by HTTP status.",
        ("code",),
        lambda of: _probes(of.measures.probes, "/healthz"),
    ),
    Metric(
        "kubeproxy_proxy_livez_total",
        Kind.COUNTER,
        "Answers of /livez (healthzBindAddress), by HTTP status.",
        ("code",),
        lambda of: _probes(of.measures.probes, "/livez"),
    ),
    Metric(
        "kubeproxy_conntrack_reconciler_sync_duration_seconds",
        Kind.HISTOGRAM,
        "How long it took to find and remove UDP flows that lead where they should not any more.",
        ("ip_family",),
        lambda of: dict(of.measures.reconciles.seconds.read()),
    ),
    Metric(
        "kubeproxy_conntrack_reconciler_deleted_entries_total",
        Kind.COUNTER,
        "Entries of conntrack that were removed.",
        ("ip_family",),
        lambda of: dict(of.measures.reconciles.deleted.read()),
    ),
    Metric(
        "kubernetes_build_info",
        Kind.GAUGE,
        "1. git_version, major and minor are of the kube-proxy whose behaviour this one has; what runs here is in "
        "kube_proxy_nft_build_info.",
        (
            *("build_date", "compiler", "git_commit", "git_tree_state", "git_version"),
            *("go_version", "major", "minor", "platform"),
        ),
        _build,
    ),
    Metric(
        "kubernetes_feature_enabled",
        Kind.GAUGE,
        "Feature gates that kube-proxy asks about, and whether what they switch is here; whatever featureGates says.",
        ("name", "stage"),
        lambda of: {(name, stage): int(GATES[name].default) for name, stage in _STAGES.items()},
    ),
    Metric(
        "rest_client_requests_total",
        Kind.COUNTER,
        'Requests to API servers, by HTTP status; "<error>": there was no answer.',
        ("code", "host", "method"),
        lambda of: dict(of.requests.counts.read()) if of.requests else {},
    ),
    Metric(
        "rest_client_request_duration_seconds",
        Kind.HISTOGRAM,
        "How long API servers took to answer; watches are not counted.",
        ("host", "verb"),
        lambda of: dict(of.requests.seconds.read()) if of.requests else {},
    ),
)
