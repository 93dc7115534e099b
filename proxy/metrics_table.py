"""Metrics as tables say them: name, type, labels, words, and where the values are. Nothing here knows prometheus_client.

The tables are proxy.metrics_kube_proxy and proxy.metrics_ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

from proxy.measures import Histogram, Measures, Requests
from rules.objects import Family

if TYPE_CHECKING:
    from proxy.agent import Agent
    from proxy.no_endpoint_packets import NoEndpointPackets
    from proxy.watch import Watcher


class Kind(Enum):
    """Prometheus' types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Sources(Struct, frozen=True, kw_only=True):
    """Whom to ask for values. All of it may be read while others write.

    families: those that are programmed. requests and watchers: of the API server, if that is where objects come from.
    clock: the watchers'. no_endpoints: None where no kernel can be asked.
    """

    families: Collection[Family]
    agent: Agent
    measures: Measures
    requests: Requests | None = None
    watchers: Sequence[Watcher] = ()
    clock: Callable[[], float] = time.monotonic
    no_endpoints: NoEndpointPackets | None = None


Values = Mapping[tuple[str, ...], float | Histogram]
"""By the values of the labels, in their order."""


class Metric(Struct, frozen=True):
    """about: one sentence. labels: their names. read: the values now; where there are none, the metric is not shown."""

    name: str
    kind: Kind
    about: str
    labels: tuple[str, ...]
    read: Callable[[Sources], Values]


def one(value: float | Histogram) -> Values:
    """Of a metric without labels."""
    return {(): value}


def single(pairs: Iterable[tuple[str, float | Histogram]]) -> Values:
    """Of a metric with one label."""
    return {(label,): value for label, value in pairs}
