"""The tables of docs/metrics.md from the code that they describe: python -m docs.generate_metrics."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from docs.tables import filled, table
from proxy import metrics_kube_proxy, metrics_ours
from proxy.metrics_table import Metric

FILE: Final = Path(__file__).with_name("metrics.md")


def current(text: str) -> str:
    """The document with its tables made anew."""
    tables = {"kube-proxy's metrics": metrics_kube_proxy.METRICS, "our metrics": metrics_ours.METRICS}
    return filled(text, {name: _table(metrics) for name, metrics in tables.items()})


def _table(metrics: Iterable[Metric]) -> str:
    rows = ((f"`{m.name}`", m.kind.value, ", ".join(f"`{label}`" for label in m.labels), m.about) for m in metrics)
    return table(("metric", "type", "labels", "meaning"), rows)


if __name__ == "__main__":
    FILE.write_text(current(FILE.read_text(encoding="utf-8")), encoding="utf-8")
