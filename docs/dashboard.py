"""deploy/monitoring/dashboard.json, for Grafana 10 and newer: what docs/dashboard.yaml says, in Grafana's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

PANELS: Final = Path(__file__).with_name("dashboard.yaml")
WIDTH: Final = 24
"""Of the dashboard, in Grafana's units."""
SELECTED: Final = 'job=~"$job", instance=~"$instance"'
"""What stands for HERE in a query."""
QUANTILES: Final = (0.5, 0.9, 0.99)
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

VARIABLES: Final = (
    ("job", "label_values(kubeproxy_sync_proxy_rules_duration_seconds_count, job)"),
    ("node", 'label_values(kubeproxy_sync_proxy_rules_duration_seconds_count{job=~"$job"}, node)'),
    (
        "instance",
        'label_values(kubeproxy_sync_proxy_rules_duration_seconds_count{job=~"$job", node=~"$node"}, instance)',
    ),
)
"""Names, and where their values are. All of `node` fits instances without that label, too."""


def dashboard() -> dict[str, Any]:
    """As Grafana imports it."""
    return {
        "uid": "kube-proxy-nft",
        "title": "kube-proxy-nft",
        "description": "Service traffic in nftables: kube-proxy's metrics and those of kube-proxy-nft.",
        "tags": ["kubernetes", "kube-proxy", "nftables"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "graphTooltip": 1,
        "templating": {"list": [_DATASOURCE, *(_variable(name, query) for name, query in VARIABLES)]},
        "annotations": {"list": []},
        "links": [],
        "panels": [{"id": number} | panel for number, panel in enumerate(_panels(), 1)],
    }


def _panels() -> Iterator[dict[str, Any]]:
    """In their places, row by row."""
    top = 0
    for row in yaml.safe_load(PANELS.read_text(encoding="utf-8")):
        yield {
            "type": "row",
            "title": row["row"],
            "collapsed": False,
            "panels": [],
            "gridPos": _place(0, top, WIDTH, 1),
        }
        top += 1
        width, height = (4, 4) if "latest" in row["panels"][0] else (8, 7)
        across = WIDTH // width
        for i, panel in enumerate(row["panels"]):
            yield _panel(panel) | {"gridPos": _place(i % across * width, top + i // across * height, width, height)}
        top += -(-len(row["panels"]) // across) * height


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _queries(panel: Mapping[str, Any]) -> dict[str, str]:
    """By legend."""
    if "latest" in panel:
        return {"__auto": panel["latest"]}
    if metric := panel.get("quantiles"):
        rate = f"sum by (le) (rate({metric}_bucket{{HERE}}[$__rate_interval]))"
        return {f"p{q * 100:g}": f"histogram_quantile({q}, {rate})" for q in QUANTILES}
    queries: dict[str, str] = panel["queries"]
    return queries


def _panel(panel: Mapping[str, Any]) -> dict[str, Any]:
    is_stat = "latest" in panel
    return {
        "type": "stat" if is_stat else "timeseries",
        "title": panel["title"],
        "description": panel["about"],
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel["unit"], "min": 0}, "overrides": []},
        "options": {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
        if is_stat
        else {
            "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + i),
                "datasource": _SOURCE,
                "expr": query.replace("HERE", SELECTED),
                "legendFormat": legend,
                "instant": is_stat,
                "range": not is_stat,
            }
            for i, (legend, query) in enumerate(_queries(panel).items())
        ],
    }


_DATASOURCE: Final = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
    "current": {},
    "hide": 0,
}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "hide": 0,
    }
