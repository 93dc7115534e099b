"""What is served on metricsBindAddress: /metrics for Prometheus, and the other pages that it is given.

prometheus_client takes 20 ms to be imported: only who serves metrics imports this module.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from proxy import metrics_kube_proxy, metrics_ours
from proxy.http_message import Request, Response, only_reads, text
from proxy.measures import Histogram
from proxy.metrics_table import Kind, Sources
from proxy.metrics_table import Metric as Definition

METRICS: Final = "/metrics"
PROXY_MODE: Final = "/proxyMode"
MODE: Final = "nftables"
OPENMETRICS: Final = "application/openmetrics-text"
SERVER: Final = {"Server": "kube-proxy-nft", "X-Content-Type-Options": "nosniff"}
"""kube-proxy sends no Server: so whoever asks for /proxyMode can tell us from it."""

TABLE: Final = (*metrics_kube_proxy.METRICS, *metrics_ours.METRICS)

Labels = Mapping[str, str]
Page = Callable[[Request], Response]


class Family(Collector):
    """A metric whose series are replaced as a whole: a scrape sees the old ones or the new ones, and no mixture.

    labels: the names, the same for every series.
    """

    def __init__(self, name: str, about: str, labels: Iterable[str]) -> None:
        self._name, self._about, self._labels = name, about, tuple(labels)
        self._series: tuple[tuple[str, ...], ...] = ()

    def show(self, series: Iterable[Labels]) -> None:
        """These, each with the value 1; for any thread. Those that are alike are one."""
        values = (tuple(one[label] for label in self._labels) for one in series)
        self._series = tuple(dict.fromkeys(values))

    def describe(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(self._name, self._about, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self._name, self._about, labels=self._labels)
        for values in self._series:
            family.add_metric(values, 1)
        yield family


class Table(Collector):
    """All metrics of TABLE that have values. The cost of a scrape does not depend on how many Services there are, but for
    those without endpoints."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def describe(self) -> Iterator[Metric]:
        for definition in TABLE:
            yield _family(definition)

    def collect(self) -> Iterator[Metric]:
        for definition in TABLE:
            values = definition.read(self._sources)
            if values:
                family = _family(definition)
                for labels, value in values.items():
                    if isinstance(value, Histogram):
                        counts, total = value.read()
                        bounds = [*(f"{bound:g}" for bound in value.bounds), "+Inf"]  # as Go writes them
                        family.add_metric(labels, list(zip(bounds, counts, strict=True)), total)
                    else:
                        family.add_metric(labels, value)
                yield family


class _Build(Collector):
    def __init__(self, version: str) -> None:
        labels = {"version": version, "python": platform.python_version()}
        self._metric = InfoMetricFamily("kube_proxy_nft_build", "What runs here.", value=labels)

    def collect(self) -> Iterator[Metric]:
        yield self._metric


class _Canonical(Collector):
    """The same metrics as OpenMetrics writes them: a bucket's bound is a float."""

    def __init__(self, metrics: Collector) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        for family in self._metrics.collect():
            if family.type == "histogram":
                family.samples = [_canonical(sample) for sample in family.samples]
            yield family


def _canonical(sample: Sample) -> Sample:
    bound = sample.labels.get("le")
    if bound is None:
        return sample
    return sample._replace(labels={**sample.labels, "le": floatToGoString(bound)})  # type: ignore[no-untyped-call]


def registry(version: str) -> CollectorRegistry:
    """One that has the info about this program (kube_proxy_nft_build_info) and its process, and nothing of the library's
    default one. proxy.metrics.Table is registered when there is something to be told."""
    made = CollectorRegistry()
    made.register(_Build(version))
    ProcessCollector(registry=made)
    return made


def pages(metrics: CollectorRegistry, others: Mapping[str, Page] = {}) -> Page:
    """What a proxy.page_server.PageServer answers. others: by path, more pages; they need only know GET."""
    return lambda request: answer(request, metrics, request.accept, others)


def answer(request: Request, metrics: CollectorRegistry, accept: str = "", others: Mapping[str, Page] = {}) -> Response:
    """accept: the request's header; OpenMetrics is sent to whoever asks for it, else Prometheus' text."""
    refused = only_reads(request)
    if refused:
        return refused
    if request.path == METRICS:
        return _metrics(metrics, accept)
    if request.path == PROXY_MODE:
        return Response(HTTPStatus.OK, MODE.encode(), SERVER | {"Content-Type": "text/plain; charset=utf-8"})
    page = others.get(request.path)
    return page(request) if page else text(HTTPStatus.NOT_FOUND)


def _metrics(metrics: CollectorRegistry, accept: str) -> Response:
    # The library believes the header: it fails for some versions, and promises others that there are not.
    if any(kind.partition(";")[0].strip().lower() == OPENMETRICS for kind in accept.split(",")):
        encode, content_type = choose_encoder(f"{OPENMETRICS};version=1.0.0")
        body = encode(_Canonical(metrics))
    else:
        encode, content_type = choose_encoder("")
        body = encode(metrics)
    return Response(HTTPStatus.OK, body, SERVER | {"Content-Type": content_type})


_FAMILIES: Final = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


def _family(definition: Definition) -> Any:
    return _FAMILIES[definition.kind](definition.name, definition.about, labels=definition.labels)
