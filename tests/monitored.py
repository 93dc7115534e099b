"""What Prometheus gets of an agent that is well: its own registry's answer, with the labels that deploy/monitoring adds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from proxy import metrics
from proxy.detect import watcher
from proxy.http_message import Request
from proxy.measures import Measures, Requests
from proxy.metrics_table import Sources
from proxy.model import KINDS
from rules.objects import Family
from tests.objects import endpoint_slice, service
from tests.status_world import NODE, StatusWorld

TARGET = {"job": "kube-proxy", "node": NODE, "instance": "192.0.2.1:10249", "pod": "kube-proxy-nft-abcde"}
"""Labels that Prometheus adds. tests/test_monitoring.py holds scrape.yaml to them."""


class _Watcher:
    """As proxy.watch.Watcher, with what is read of it."""

    mode, heard_at, failures, relists = "streaming", 90.0, 0, 0

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.left_out: dict[Any, str] = {}


@cache
def registry() -> CollectorRegistry:
    """As proxy.node_agent makes it, of an agent that has programmed a Service."""
    measures, requests = Measures(), Requests()
    world = StatusWorld(syncs=measures.syncs)
    world.list(service("web", "10.96.0.1", "fd00::1"), endpoint_slice("web", "10.244.0.1"))
    requests.made("192.0.2.9:6443", "GET", "200", 0.01, is_watch=False)
    for path in ("/healthz", "/livez"):
        measures.probes.add((path, "200"))
    made = metrics.registry("1.2.3")
    deprecations = metrics.Family(watcher.METRIC, watcher.ABOUT, watcher.LABELS)
    deprecations.show([{label: "deprecated" if label == "severity" else "x" for label in watcher.LABELS}])
    made.register(deprecations)
    sources = Sources(
        families=tuple(Family),
        agent=world.agent,
        measures=measures,
        requests=requests,
        watchers=[_Watcher(kind) for kind in KINDS],  # type: ignore[misc]
        clock=lambda: 100.0,
    )
    made.register(metrics.Table(sources))
    return made


def families() -> Iterator[Metric]:
    """What is scraped."""
    text = metrics.answer(Request("GET", metrics.METRICS), registry()).body.decode()
    yield from text_string_to_metric_families(text)


@cache
def exported() -> dict[str, frozenset[str]]:
    """By the names that queries use: the labels. Those of metrics that have no series just now are there, too."""
    found: dict[str, frozenset[str]] = {}
    for family in families():
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, frozenset()) | set(sample.labels)
    for metric in metrics.TABLE:
        labels = frozenset(metric.labels)
        if metric.kind.value == "histogram":
            found |= {
                f"{metric.name}_bucket": labels | {"le"},
                f"{metric.name}_sum": labels,
                f"{metric.name}_count": labels,
            }
        else:
            found[metric.name] = labels
    return found


def series(name: str, /, **labels: str) -> str:
    """As promtool and PromQL write one."""
    return f"{name}{{{', '.join(f'{label}={_quoted(value)}' for label, value in sorted(labels.items()))}}}"


def healthy(minutes: int) -> dict[str, str]:
    """By series: values for so long, as promtool writes them: nothing changes."""
    found = {
        series(sample.name, **TARGET, **sample.labels): f"{sample.value!r}x{minutes}"
        for family in families()
        for sample in family.samples
    }
    return found | {series("up", **TARGET): f"1x{minutes}"}


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
