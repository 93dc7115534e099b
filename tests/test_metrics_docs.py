"""docs/metrics.md has every metric that the code makes."""

from __future__ import annotations

from docs import generate_metrics
from proxy.metrics import TABLE


def test_the_tables_are_current() -> None:
    text = generate_metrics.FILE.read_text(encoding="utf-8")
    assert text == generate_metrics.current(text), "run: python -m docs.generate_metrics"
    assert all(f"| `{metric.name}` | {metric.kind.value} |" in text for metric in TABLE)


def test_names_are_as_prometheus_wants_them() -> None:
    names = [metric.name for metric in TABLE]
    assert len(set(names)) == len(names)
    for metric in TABLE:
        if metric.name.startswith("kube_proxy_nft_"):
            assert metric.name.endswith("_total") == (metric.kind.value == "counter"), metric.name
        assert metric.about.endswith(".") or metric.about.endswith("now"), metric.name
