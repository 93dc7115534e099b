"""A running agent's metrics against what kube-proxy v1.36.2 said of itself."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from integration.apiserver.certificates import Authority
from integration.apiserver.server import FakeApi
from proxy.metrics import TABLE
from proxy.metrics_table import Kind
from proxy.reading import TRIGGER_TIME
from tests.dataplanes import recorded
from tests.netns import Namespace
from tests.objects import endpoint_slice, service
from tests.test_end_to_end import Node, api, eventually, node
from tests.test_metrics_tls import ask, client, is_kept_out

__all__ = ["api", "node"]

pytestmark = pytest.mark.root

GOS = re.compile(
    "rest_client_(exec_plugin|transport|rate_limiter|request_size|response_size)|process_network|process_virtual_memory_max"
)
"""What client-go and Go's runtime say of themselves, and of limits that they set themselves."""
LOCAL = [
    service("local", "10.96.0.5", internalTrafficPolicy="Local"),
    endpoint_slice("local", "10.244.9.9"),
]


def fetch(node: Node, path: str, accept: str = "") -> tuple[int, str, str]:
    """Status, content type, body."""
    found: list[tuple[int, str, str]] = []

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", 10249, timeout=10)
        connection.request("GET", path, headers={"Accept": accept} if accept else {})
        said = connection.getresponse()
        found.append((said.status, said.headers["Content-Type"], said.read().decode()))
        connection.close()

    node.namespace.inside(ask)
    return found[0]


def scrape(node: Node) -> dict[str, Metric]:
    return by_name(parse_text(fetch(node, "/metrics")[2]))


def by_name(metrics: Iterable[Metric]) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


def value(metrics: dict[str, Metric], name: str, **labels: str) -> float:
    """A sample's, by its own name."""
    return next(
        (s.value for m in metrics.values() for s in m.samples if s.name == name and labels.items() <= s.labels.items()),
        -1.0,
    )


def shape(metric: Metric) -> tuple[str, set[frozenset[str]], set[str]]:
    """Type, names of labels, bounds."""
    labels = {frozenset(sample.labels) for sample in metric.samples}
    return metric.type, labels, {sample.labels["le"] for sample in metric.samples if "le" in sample.labels}


@pytest.fixture
def running(node: Node, api: FakeApi, namespace: Namespace, tmp_path: Path) -> Node:
    for obj in (service("web", "10.96.0.1"), endpoint_slice("web", "10.244.0.1", "10.244.0.2"), *LOCAL):
        api.put(obj)
    namespace.inside(api.start)
    node.start("--kubeconfig", api.kubeconfig(tmp_path / "kubeconfig"))
    node.logged("programmed")
    node.logged("udp_flows_compared")
    return node


def changed(api: FakeApi, address: str) -> None:
    """The slice has another endpoint since now."""
    obj = endpoint_slice("web", address)
    at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    obj["metadata"].setdefault("annotations", {})[TRIGGER_TIME] = at
    api.put(obj)


def test_names_types_labels_and_bounds(running: Node, api: FakeApi) -> None:
    eventually(lambda: "rest_client_request_duration_seconds" in scrape(running), "an Event was sent")
    ours = scrape(running)
    theirs = by_name(parse_text(recorded("nftables", "metrics.txt")))
    # It was asked for /healthz there, and not here.
    missing = {name for name in theirs if not GOS.match(name)} - set(ours) - {"kubeproxy_proxy_healthz"}
    assert missing == set()
    for name in set(theirs) & set(ours):
        assert shape(ours[name]) == shape(theirs[name]), name


def test_values(running: Node, api: FakeApi) -> None:
    before = scrape(running)
    assert value(before, "kubeproxy_sync_proxy_rules_no_local_endpoints_total", traffic_policy="internal") == 1
    assert value(before, "kubeproxy_sync_full_proxy_rules_duration_seconds_count", ip_family="IPv4") == 1
    assert value(before, "kubeproxy_network_programming_duration_seconds_count", ip_family="IPv4") == 0
    assert value(before, "kubeproxy_sync_proxy_rules_endpoint_changes_total") == 2
    assert value(before, "kubeproxy_sync_proxy_rules_endpoint_changes_pending") == 0
    assert value(before, "kube_proxy_nft_elements", ip_family="IPv4", set="cluster-ips") == 2
    assert value(before, "kube_proxy_nft_service_ports", ip_family="IPv4") == 2
    changed(api, "10.244.0.3")
    name = "kubeproxy_network_programming_duration_seconds"
    eventually(lambda: value(scrape(running), f"{name}_count", ip_family="IPv4") == 1, "the change is counted")
    after = scrape(running)
    assert 0 < value(after, f"{name}_sum", ip_family="IPv4") < 30
    assert value(after, f"{name}_count", ip_family="IPv6") == 0
    assert value(after, "kubeproxy_sync_proxy_rules_endpoint_changes_total") == 3
    partial = "kubeproxy_sync_partial_proxy_rules_duration_seconds_count"
    assert value(after, partial, ip_family="IPv4") > value(before, partial, ip_family="IPv4")
    assert value(after, "kube_proxy_nft_watch_mode", kind="Service", mode="streaming") == 1
    last = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
    assert value(after, last, ip_family="IPv6") > value(before, last, ip_family="IPv6") > 1.7e9
    assert value(after, "rest_client_requests_total", method="GET", code="200") >= 4


def test_what_is_counted_is_what_the_kernel_has(running: Node) -> None:
    found = scrape(running)
    for table, family in zip(running.tables(), ("IPv4", "IPv6"), strict=True):
        assert table
        for name, state in table.sets.items():
            told = value(found, "kube_proxy_nft_elements", ip_family=family, set=name)
            if told >= 0:
                assert told == len(state.elements), name
        assert value(found, "kube_proxy_nft_chains", ip_family=family) == len(table.chains)


def test_a_restart_takes_the_elements_over(running: Node, api: FakeApi, tmp_path: Path) -> None:
    elements = sum(
        s.value for s in scrape(running)["kube_proxy_nft_elements"].samples if s.labels["ip_family"] == "IPv4"
    )
    assert running.stop() == 0
    running.start("--kubeconfig", api.kubeconfig(tmp_path / "again"))
    running.logged("programmed", 2)
    eventually(lambda: "kube_proxy_nft_adopted_elements" in scrape(running), "it is told")
    assert value(scrape(running), "kube_proxy_nft_adopted_elements", ip_family="IPv4") == elements
    assert value(scrape(running), "kube_proxy_nft_adopted_differences", ip_family="IPv4") == 0


def test_the_formats(running: Node) -> None:
    _, kind, text = fetch(running, "/metrics")
    assert kind.startswith("text/plain; version=0.0.4")
    assert 'kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="1"}' in text  # as Go's
    _, kind, text = fetch(running, "/metrics", "application/openmetrics-text;version=1.0.0")
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    found = by_name(parse_openmetrics(text))  # type: ignore[no-untyped-call]
    shown = {m.name.removesuffix("_total") if m.kind is Kind.COUNTER else m.name for m in TABLE}
    quiet = {"kubeproxy_proxy_healthz", "kubeproxy_proxy_livez", "rest_client_request_duration_seconds"}
    quiet |= {"kube_proxy_nft_no_endpoint_packets", "kube_proxy_nft_standby"}  # all have some, and there is none
    assert shown - set(found) - quiet == {"kube_proxy_nft_adopted_elements", "kube_proxy_nft_adopted_differences"}


def test_the_other_pages(running: Node) -> None:
    assert fetch(running, "/healthz")[::2] == (200, "ok")
    assert fetch(running, "/proxyMode")[::2] == (200, "nftables")
    configz = json.loads(fetch(running, "/configz")[2])
    assert configz["kubeproxy.config.k8s.io"]["mode"] == "nftables"
    assert "\nkubeconfig=" in fetch(running, "/flagz")[2]
    assert "Paths: / /configz /flagz /healthz /metrics /proxyMode /statusz" in fetch(running, "/statusz")[2]


def test_over_tls(node: Node, api: FakeApi, namespace: Namespace, tmp_path: Path, authority: Authority) -> None:
    namespace.inside(api.start)
    certificate, key = authority.server()
    flags = (
        "--metrics-tls-cert-file",
        certificate,
        "--metrics-tls-key-file",
        key,
        "--metrics-client-ca-file",
        authority.ca,
    )
    node.start("--kubeconfig", api.kubeconfig(tmp_path / "kubeconfig"), *flags)
    node.logged("programmed")
    answers: list[bytes] = []
    namespace.inside(lambda: answers.append(ask(10249, client(authority, authority.client("prometheus")))))
    assert b"kubeproxy_sync_proxy_rules_duration_seconds_bucket" in answers[0]
    kept_out: list[bool] = []
    namespace.inside(lambda: kept_out.append(is_kept_out(10249, client(authority, None))))
    assert kept_out == [True]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--metrics-tls-cert-file=/nonexistent", "--metrics-tls-key-file=/nonexistent"), "/nonexistent: No such file"),
        (("--metrics-client-ca-file=/nonexistent",), "--metrics-tls-cert-file: it is missing"),
    ],
)
def test_tls_that_cannot_be(node: Node, tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    node.start("--manifests", tmp_path, *flags)
    assert node.process
    assert node.process.wait(20) == 3
    node.process = None
    assert said in node.events("failed")[-1]["error"]
