"""deploy/monitoring: rules that fire when they should and stay silent when they should, and a dashboard, all of which ask for
nothing that the agent does not export."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs import dashboard, generate_monitoring
from docs.generate_monitoring import DASHBOARD, FOLDER, PROMETHEUS_RULE, RULES
from tests import promql, promtool
from tests.monitored import TARGET, exported, healthy, series

REPO = Path(__file__).parents[1]
MINUTES = 360
AT = f"{MINUTES - 5}m"
OTHER = TARGET | {"node": "node-2", "instance": "192.0.2.2:10249", "pod": "kube-proxy-nft-other"}
THIRD = TARGET | {"node": "node-3", "instance": "192.0.2.3:10249", "pod": "kube-proxy-nft-third"}

GROUPS = generate_monitoring.rules()["groups"]
ALERTS: dict[str, dict[str, Any]] = {r["alert"]: r for g in GROUPS for r in g["rules"] if "alert" in r}
RECORDED: dict[str, str] = {r["record"]: r["expr"] for g in GROUPS for r in g["rules"] if "record" in r}

CLUSTER_WIDE = {
    "KubeProxyNftAbsent",
    "KubeProxyNftObjectsLeftOut",
    "KubeProxyNftAddressConflicts",
    "KubeProxyNftNoEndpointPackets",
    "KubeProxyNftVersionSkew",
}
"""Alerts about no node in particular."""

Change = tuple[str, Mapping[str, str], str]
"""A metric, some of its labels, and values as promtool writes them, without their number. Replaces the series that fit; if
there is none, it is a new one."""

WORK = {"namespace": "shop", "service": "web", "port": "http", "protocol": "TCP"}
REST = {"host": "192.0.2.9:6443", "method": "GET"}

BAD: list[tuple[str, list[Change]]] = [
    ("KubeProxyNftDown", [("up", {}, "0")]),
    ("KubeProxyNftAbsent", [("kube_proxy_nft_build_info", {}, "_")]),
    ("KubeProxyNftRestarting", [("process_start_time_seconds", {}, "0+600")]),
    ("KubeProxyNftNotLive", [("kubeproxy_proxy_livez_total", {"code": "503"}, "0+6")]),
    ("KubeProxyNftNotReady", [("kubeproxy_proxy_healthz_total", {"code": "503"}, "0+6")]),
    ("KubeProxyNftSyncOverdue", [("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", {}, "9e9")]),
    ("KubeProxyNftSyncFailing", [("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", {}, "0+1")]),
    ("KubeProxyNftServicePortsRefused", [("kube_proxy_nft_refused_service_ports", {}, "2")]),
    ("KubeProxyNftRepairsRepeating", [("kube_proxy_nft_repairs_total", {}, "0+1")]),
    ("KubeProxyNftStandbyMissing", [("kube_proxy_nft_standby", {}, "0")]),
    (
        "KubeProxyNftBehindOthers",
        [("kube_proxy_nft_service_ports", {**node, "ip_family": "IPv4"}, "5") for node in (OTHER, THIRD)],
    ),
    (
        "KubeProxyNftProgrammingSlow",
        [("kubeproxy_network_programming_duration_seconds_bucket", {"le": "+Inf"}, "0+10")],
    ),
    ("KubeProxyNftCommitsSlow", [("kube_proxy_nft_commit_duration_seconds_bucket", {"le": "+Inf"}, "0+10")]),
    ("KubeProxyNftWatchStale", [("kube_proxy_nft_watch_silence_seconds", {"kind": "Service"}, "700")]),
    ("KubeProxyNftNotAllowed", [("rest_client_requests_total", {"code": "403", **REST}, "0+1")]),
    ("KubeProxyNftObjectsLeftOut", [("kube_proxy_nft_faulty_objects", {"kind": "Service"}, "3")]),
    ("KubeProxyNftObjectsLeftOut", [("kube_proxy_nft_unreadable_objects", {"kind": "Service"}, "3")]),
    ("KubeProxyNftAddressConflicts", [("kube_proxy_nft_address_conflicts", {}, "1")]),
    ("KubeProxyNftNoEndpointPackets", [("kube_proxy_nft_no_endpoint_packets_total", WORK, "0+5")]),
    ("KubeProxyNftDeprecation", [("kube_proxy_nft_deprecation", {"severity": "broken"}, "1")]),
    ("KubeProxyNftVersionSkew", [("kube_proxy_nft_build_info", {**OTHER, "version": "1.2.4"}, "1")]),
]
CALM: list[list[Change]] = [
    [],
    # What happens now and then, and is over soon: an hour before, or two.
    [
        ("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", {}, "0x300 1"),
        ("kube_proxy_nft_repairs_total", {}, "0x300 2"),
        ("kube_proxy_nft_standby", {}, "1x300 0x5 1"),
        ("process_start_time_seconds", {}, "100x300 200"),
        ("kubeproxy_proxy_healthz_total", {"code": "503"}, "0x340 0+6"),
        ("rest_client_requests_total", {"code": "403", **REST}, "0x300 1"),
        ("kube_proxy_nft_no_endpoint_packets_total", WORK, "0x300 9"),
        ("kube_proxy_nft_watch_silence_seconds", {}, "61"),
    ],
    # Much to do, all of it done at once.
    [
        ("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", {}, "0+60"),
        ("kubeproxy_sync_proxy_rules_last_timestamp_seconds", {}, "0.001+60"),
        ("kubeproxy_network_programming_duration_seconds_bucket", {}, "0+1000"),
        ("kube_proxy_nft_commit_duration_seconds_bucket", {}, "0+1000"),
        ("kubeproxy_proxy_livez_total", {"code": "200"}, "0+6"),
        ("rest_client_requests_total", {"code": "200"}, "0+60"),
    ],
    # A second node that is as the first one.
    [
        *(("kube_proxy_nft_service_ports", {**OTHER, "ip_family": family}, "1") for family in ("IPv4", "IPv6")),
        ("kube_proxy_nft_build_info", {**OTHER, "version": "1.2.3"}, "1"),
    ],
]


def played(changes: Iterable[Change]) -> dict[str, Any]:
    """What promtool is given of a node that is well but for that. Only what some rule asks for."""
    asked = {selector.name for query in queries_of_rules() for selector in promql.selectors(query)}
    found = {name: values for name, values in healthy(MINUTES).items() if name.partition("{")[0] in asked}
    for metric, labels, values in changes:
        parts = {f"{label}={json.dumps(value)}" for label, value in labels.items()}
        alike = [name for name in found if name.startswith(f"{metric}{{") and parts <= set(re.split("[{}]|, ", name))]
        for name in alike or [series(metric, **{**TARGET, **labels})]:
            found[name] = f"{values}x{MINUTES}"
    input_series = [{"series": name, "values": values} for name, values in found.items()]
    return {"interval": "1m", "input_series": input_series}


def queries_of_rules() -> Iterator[str]:
    yield from RECORDED.values()
    yield from (alert["expr"] for alert in ALERTS.values())


def known() -> dict[str, frozenset[str]]:
    """What queries may name."""
    found = {name: labels | TARGET.keys() for name, labels in exported().items()}
    return found | dict.fromkeys([*RECORDED, "up"], frozenset(TARGET))


# Rules.


def test_the_rules_are_current() -> None:
    assert PROMETHEUS_RULE.read_text() == generate_monitoring.prometheus_rule(), "python -m docs.generate_monitoring"
    made = yaml.safe_load(PROMETHEUS_RULE.read_text())
    assert (made["kind"], made["spec"]) == ("PrometheusRule", generate_monitoring.rules())


@pytest.mark.parametrize("query", list(queries_of_rules()))
def test_rules_ask_for_what_the_agent_exports(query: str) -> None:
    assert promql.unknown(query, known()) == []


def test_what_is_not_exported_is_seen() -> None:
    assert promql.unknown('sum by (zone) (kube_proxy_nft_repair{x="1"})', known())
    assert promql.unknown('kube_proxy_nft_repairs_total{kind="x"}', known())
    assert promql.unknown("max by (zone) (kube_proxy_nft_repairs_total)", known())


@promtool.needed
def test_promtool_takes_the_rules() -> None:
    assert f"{len(ALERTS) + len(RECORDED)} rules found" in promtool.run("check", "rules", str(RULES))


@promtool.needed
def test_each_alert_fires_alone_and_none_while_all_is_well(tmp_path: Path) -> None:
    tests = []
    for alert, changes in BAD:
        node = "" if alert in CLUSTER_WIDE else TARGET["node"]
        tests.append({"name": alert, **played(changes), "promql_expr_test": [promtool.firing(AT, {alert: node})]})
    for changes in CALM:
        expected = [promtool.firing(at, {}) for at in ("20m", "305m", "345m", AT)]
        tests.append({"name": "calm", **played(changes), "promql_expr_test": expected})
    promtool.play(RULES, tmp_path, tests)
    assert {alert for alert, _ in BAD} == ALERTS.keys()


@promtool.needed
def test_an_alert_that_does_not_fire_is_seen(tmp_path: Path) -> None:
    wrong = {"name": "none", **played([]), "promql_expr_test": [promtool.firing(AT, {"KubeProxyNftDown": "node-1"})]}
    with pytest.raises(AssertionError, match="FAILED"):
        promtool.play(RULES, tmp_path, [wrong])


@promtool.needed
def test_an_alert_in_words(tmp_path: Path) -> None:
    alert = ALERTS["KubeProxyNftRepairsRepeating"]
    words = alert["annotations"] | {
        "summary": "Another program on node node-1 changes the tables again and again.",
    }
    expected = {"exp_labels": {"severity": "warning", **TARGET}, "exp_annotations": words}
    test = {"alertname": "KubeProxyNftRepairsRepeating", "eval_time": AT, "exp_alerts": [expected]}
    changes: list[Change] = [("kube_proxy_nft_repairs_total", {}, "0+1")]
    promtool.play(RULES, tmp_path, [{**played(changes), "alert_rule_test": [test]}])


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_where_how_bad_and_what_to_do(alert: str) -> None:
    rule = ALERTS[alert]
    assert re.fullmatch("KubeProxyNft[A-Z][A-Za-z]+", alert)
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    said = rule["annotations"]
    assert ("{{ or $labels.node $labels.instance }}" in said["summary"]) == (alert not in CLUSTER_WIDE)
    assert said["description"].endswith(".") and said["summary"].endswith(".")
    file, _, anchor = said["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (REPO / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor == alert.lower() and alert in headings


def test_no_section_is_about_an_alert_that_there_is_not() -> None:
    text = (REPO / "docs" / "operate.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\bKubeProxyNft\w+", text)) == ALERTS.keys()


def test_targets_are_labelled_as_the_rules_expect() -> None:
    [job] = yaml.safe_load((FOLDER / "scrape.yaml").read_text())
    rules = job["relabel_configs"]
    assert {rule["target_label"] for rule in rules} - {"__address__"} | {"instance"} == TARGET.keys()
    assert next(rule["replacement"] for rule in rules if rule["target_label"] == "job") == TARGET["job"]
    by_address = [rule for rule in rules if rule["target_label"] == "__address__"]
    for address, expected in (("192.0.2.1", "192.0.2.1:10249"), ("2001:db8::1", "[2001:db8::1]:10249")):
        [found] = [
            rule["replacement"].replace("${1}", match[1])
            for rule in by_address
            if (match := re.fullmatch(rule["regex"], address))
        ]
        assert found == expected
    # Else Prometheus would rename those of the agent's own series.
    assert not {"namespace", "service", "port", "protocol", "kind"} & TARGET.keys()


# The dashboard.

BOARD = json.loads(DASHBOARD.read_text(encoding="utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def asked(query: str) -> str:
    """As Grafana sends it."""
    return query.replace("$__rate_interval", "5m").replace("$job", "kube-proxy").replace("$instance", ".*")


def test_the_dashboard_is_current() -> None:
    assert DASHBOARD.read_text(encoding="utf-8") == generate_monitoring.dashboard_json(), (
        "python -m docs.generate_monitoring"
    )


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel(panel: dict[str, Any]) -> None:
    assert panel["targets"] and panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] == "${datasource}"
    for target in panel["targets"]:
        assert promql.unknown(asked(target["expr"]), known()) == []
        assert "HERE" not in target["expr"] and 'instance=~"$instance"' in target["expr"]
        named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert named <= {
            label for found in promql.selectors(asked(target["expr"])) for label in known()[found.name or ""]
        }


def test_panels_have_their_own_numbers_names_and_places() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= dashboard.WIDTH
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_variables() -> None:
    names = [variable["name"] for variable in BOARD["templating"]["list"]]
    assert names == ["datasource", "job", "node", "instance"]
    for _, query in dashboard.VARIABLES:
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert match and match[2] in TARGET
        assert promql.unknown(match[1].replace("$job", "x").replace("$node", "x"), known()) == []


@pytest.mark.parametrize(
    "query",
    [
        'sum(up{job="kube-proxy"})',
        'sum(rate(kubeproxy_sync_proxy_rules_duration_seconds_count{job="kube-proxy", instance=~".*"}[5m]))',
        'histogram_quantile(0.99, rate(kubeproxy_sync_proxy_rules_duration_seconds_bucket{job="kube-proxy"}[5m]))',
        'sum(rate(kubeproxy_network_programming_duration_seconds_count{job="kube-proxy"}[5m]))',
        "histogram_quantile(0.99, sum by (instance, le) (rate(kubeproxy_network_programming_duration_seconds_bucket[5m])))",
        'sum(rate(rest_client_requests_total{job="kube-proxy", code=~"5.."}[5m]))',
        "histogram_quantile(0.99, sum by (verb, le) (rate(rest_client_request_duration_seconds_bucket[5m])))",
        'process_resident_memory_bytes{job="kube-proxy"}',
        'rate(process_cpu_seconds_total{job="kube-proxy"}[5m])',
    ],
)
def test_what_dashboards_for_kube_proxy_ask_for(query: str) -> None:
    """All but what is of Go's runtime."""
    assert promql.unknown(query, known()) == []
