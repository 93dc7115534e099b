"""examples/scale-from-zero: a refused packet becomes the metric that the HPA asks for, and that wakes the Deployment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from proxy import metrics
from proxy.measures import Measures
from proxy.metrics_table import Sources
from tests import promtool
from tests.monitored import series
from tests.test_no_endpoint_counts import KEY, NODE_PORT, POD, World, port

EXAMPLE: Final = Path(__file__).parent.parent / "examples" / "scale-from-zero"
KUBERNETES: Final = ("1.36", "1.37")
METRIC: Final = "kube_proxy_nft_no_endpoint_packets_total"
Object = Mapping[str, Any]


def objects(name: str) -> list[Any]:
    return list(yaml.safe_load_all((EXAMPLE / name).read_text(encoding="utf-8")))


[RULES] = objects("adapter.yaml")
[HPA] = objects("autoscaler.yaml")
SERVICE, DEPLOYMENT = objects("web.yaml")


def query(metric: Object) -> str:
    """What the adapter asks Prometheus when the HPA asks for this metric: the selector's labels, then the namespace's."""
    [rule] = [rule for rule in RULES["externalRules"] if rule["name"]["as"] == metric["name"]]
    labels = {**metric["selector"]["matchLabels"]}
    [(namespace, resource)] = rule["resources"]["overrides"].items()
    assert resource == {"resource": "namespace"}
    labels[namespace] = HPA["metadata"]["namespace"]
    matchers = ",".join(f'{label}="{value}"' for label, value in labels.items())
    made = str(rule["metricsQuery"]).replace("<<.LabelMatchers>>", matchers)
    assert "<<" not in made
    return made


WAKES, KEEPS = (metric["external"] for metric in HPA["spec"]["metrics"])


def replicas(target: Object, value: float, current: int) -> int:
    """What an HPA makes of an external metric (tolerance left aside, all pods ready)."""
    if target["type"] == "AverageValue":
        return ceil(value / float(target["averageValue"]))
    ratio = value / float(target["value"])
    return ceil(ratio * current) if current else ceil(ratio)


# The objects.


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("obj", [HPA, SERVICE, DEPLOYMENT], ids=lambda obj: obj["kind"])
def test_the_api_takes_it(obj: Object, version: str) -> None:
    kubernetes_validate.validate(obj, version, strict=True)


def test_the_objects_belong_together() -> None:
    assert {one["metadata"]["namespace"] for one in (HPA, SERVICE, DEPLOYMENT)} == {"shop"}
    target = HPA["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", DEPLOYMENT["metadata"]["name"])
    assert SERVICE["spec"]["selector"].items() <= DEPLOYMENT["spec"]["template"]["metadata"]["labels"].items()
    # What KEP-2021 asks for: an object or external metric, and a target that did not begin at zero.
    assert HPA["spec"]["minReplicas"] == 0 and DEPLOYMENT["spec"]["replicas"] == 1
    assert {metric["type"] for metric in HPA["spec"]["metrics"]} <= {"Object", "External"}
    assert "Pods" in {policy["type"] for policy in HPA["spec"]["behavior"]["scaleUp"]["policies"]}
    for metric in (WAKES, KEEPS):
        assert metric["metric"]["selector"]["matchLabels"] == {"service": SERVICE["metadata"]["name"]}


def test_every_rule_is_found_by_a_series_that_every_agent_has() -> None:
    """As the adapter finds metrics: the name of a series that is there, rewritten."""
    known = {metric.name: metric for metric in metrics.TABLE}
    names = []
    for rule in RULES["externalRules"]:
        assert known[rule["seriesQuery"]].kind.value == "gauge"
        assert re.search(rule["name"]["matches"], rule["seriesQuery"])
        names.append(rule["name"]["as"])
    assert sorted(names) == sorted(metric["metric"]["name"] for metric in (WAKES, KEEPS))
    labels = known[METRIC].labels
    assert {"namespace", "service"} <= set(labels)


def test_one_packet_wakes_one_pod() -> None:
    assert [replicas(WAKES["target"], packets, 0) for packets in (0, 1, 1.3, 900, 1001)] == [0, 1, 1, 1, 2]
    assert replicas(WAKES["target"], 0, 1) == 0  # and when it is awake, the other one decides
    assert [replicas(KEEPS["target"], requests, 1) for requests in (0, 1, 3001)] == [0, 1, 2]


# The metric.


class Scraped:
    """An agent that is asked again and again: samples by series, as promtool takes them."""

    def __init__(self) -> None:
        self.world = World()
        self.values: dict[str, list[str]] = {}
        self._scrapes = 0

    def scrape(self) -> None:
        found = {}
        for labels, count in self.world.read().items():
            names = dict(zip(LABELS, labels, strict=True))
            found[series(METRIC, **names, instance="node0")] = str(count)
        for name in {*self.values, *found}:
            missed = ["_"] * self._scrapes if name not in self.values else []
            self.values.setdefault(name, missed).append(found.get(name, "_"))
        self._scrapes += 1


LABELS: Final = next(metric.labels for metric in metrics.TABLE if metric.name == METRIC)


def _between(text: str, low: float, high: float) -> str:
    """1 if it is."""
    return f"(({text}) >= bool {low}) * (({text}) <= bool {high})"


def played(folder: Path, given: Mapping[str, str], wanted: Mapping[tuple[str, int], tuple[float, float]]) -> None:
    """At each minute, of each query: between two values. Samples are half a minute apart."""
    (folder / "none.yaml").write_text("groups: []\n")
    promtool.play(
        folder / "none.yaml",
        folder,
        [
            {
                "interval": "30s",
                "input_series": [{"series": name, "values": values} for name, values in given.items()],
                "promql_expr_test": [
                    {
                        "expr": _between(text, low, high),
                        "eval_time": f"{minute}m",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    }
                    for (text, minute), (low, high) in wanted.items()
                ],
            }
        ],
    )


@promtool.needed
def test_the_adapter_yields_what_was_refused(tmp_path: Path) -> None:
    """Four minutes of quiet, packets for a Service that sleeps, and quiet again once it is awake."""
    one, other = (port(key, name="shop/web:http") for key in (KEY, NODE_PORT))
    scraped = Scraped()
    scraped.world.put(one, other, port(bytes([10, 96, 0, 9]) + KEY[4:], name="shop/other:http"))
    for _ in range(9):
        scraped.scrape()
    scraped.world.refuse(KEY, 2)
    scraped.world.refuse(NODE_PORT, 1)
    scraped.scrape()  # at 4:30
    scraped.world.put(port(KEY, POD, name="shop/web:http"), port(NODE_PORT, POD, name="shop/web:http"))
    for _ in range(20):
        scraped.scrape()
    web = series(METRIC, namespace="shop", service="web", port="http", protocol="TCP", instance="node0")
    assert scraped.values[web] == ["0"] * 9 + ["3"] * 21
    text = query(WAKES["metric"])
    wanted = {(text, 4): (0.0, 0.0), (text, 5): (3.0, 6.0), (text, 6): (3.0, 6.0), (text, 10): (0.0, 0.0)}
    played(tmp_path, {name: " ".join(values) for name, values in scraped.values.items()}, wanted)


@promtool.needed
def test_series_that_come_and_go_are_no_trouble(tmp_path: Path) -> None:
    def of(service: str, node: str, namespace: str = "shop") -> str:
        return series(METRIC, namespace=namespace, service=service, port="http", protocol="TCP", instance=node)

    text, keeps = query(WAKES["metric"]), query(KEEPS["metric"])
    given = {
        of("web", "node0"): "_x8 5x30",  # nobody told of it before its first packets
        of("web", "node1"): "7x8 2x30",  # the rules were made anew
        of("web", "node2"): "9x40",
        of("web", "node0", "elsewhere"): "0x8 100x30",
        of("other", "node0"): "0x8 100x30",
    }
    wanted = {(text, 3): (0.0, 0.0), (text, 5): (7.0, 9.0), (text, 9): (0.0, 0.0), (text, 60): (0.0, 0.0)}
    wanted[keeps, 5] = (0.0, 0.0)  # nobody counts requests: that is no error
    played(tmp_path, given, wanted)


def test_the_table_of_metrics_reads_the_same() -> None:
    """What is scraped above is what /metrics shows."""
    world = World()
    world.put(port(name="shop/web:http"))
    world.refuse(KEY, 3)
    [metric] = [metric for metric in metrics.TABLE if metric.name == METRIC]

    tables = SimpleNamespace(programmed={world.programmed.layout.family: world.programmed})
    agent: Any = SimpleNamespace(tables=tables)
    sources = Sources(families=(), agent=agent, measures=Measures(), no_endpoints=world.packets)
    assert metric.read(sources) == {("shop", "web", "http", "TCP"): 3}
