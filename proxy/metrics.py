"""What is served on metricsBindAddress: /metrics for Prometheus, and /proxyMode as kube-proxy has it.

prometheus_client takes 20 ms to be imported: only who serves metrics imports this module.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from proxy.http_message import Request, Response, only_reads, text

METRICS: Final = "/metrics"
PROXY_MODE: Final = "/proxyMode"
MODE: Final = "nftables"
OPENMETRICS: Final = "application/openmetrics-text"
SERVER: Final = {"Server": "kube-proxy-nft", "X-Content-Type-Options": "nosniff"}
"""kube-proxy sends no Server: so whoever asks for /proxyMode can tell us from it."""

Labels = Mapping[str, str]


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


class _Build(Collector):
    def __init__(self, version: str) -> None:
        labels = {"version": version, "python": platform.python_version()}
        self._metric = InfoMetricFamily("kube_proxy_nft_build", "What runs here.", value=labels)

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def registry(version: str) -> CollectorRegistry:
    """One that has the info about this program (kube_proxy_nft_build_info), and nothing of the process's default one."""
    made = CollectorRegistry()
    made.register(_Build(version))
    return made


def pages(metrics: CollectorRegistry) -> Callable[[Request], Response]:
    """What a proxy.page_server.PageServer answers."""
    return lambda request: answer(request, metrics, request.accept)


def answer(request: Request, metrics: CollectorRegistry, accept: str = "") -> Response:
    """accept: the request's header; OpenMetrics is sent to whoever asks for it, else Prometheus' text."""
    refused = only_reads(request)
    if refused or request.path not in (METRICS, PROXY_MODE):
        return refused or text(HTTPStatus.NOT_FOUND)
    if request.path == PROXY_MODE:
        return Response(HTTPStatus.OK, MODE.encode(), SERVER | {"Content-Type": "text/plain; charset=utf-8"})
    # The library believes the header: it fails for some versions, and promises others that there are not.
    wants_openmetrics = any(kind.partition(";")[0].strip().lower() == OPENMETRICS for kind in accept.split(","))
    encode, content_type = choose_encoder(f"{OPENMETRICS};version=1.0.0" if wants_openmetrics else "")
    return Response(HTTPStatus.OK, encode(metrics), SERVER | {"Content-Type": content_type})
