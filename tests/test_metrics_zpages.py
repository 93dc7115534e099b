"""/healthz, /configz, /statusz and /flagz on the metrics port."""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from proxy.config import Config, parse_config
from proxy.http_message import Request, Response
from proxy.metrics_zpages import flag_values, pages
from tests.dataplanes import recorded

STARTED = datetime(2026, 11, 30, 4, 36, 31, tzinfo=UTC)
CONFIG = parse_config(
    b"""{"kind": "KubeProxyConfiguration", "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "mode": "nftables",
    "clusterCIDR": "10.244.0.0/16,fd44::/48", "nodePortAddresses": ["primary"], "hostnameOverride": "node0",
    "clientConnection": {"kubeconfig": "/var/lib/kube-proxy/kubeconfig"}, "nftables": {"syncPeriod": "30s"}}""",
    "test",
)


def page(path: str, accept: str = "", config: Config = CONFIG) -> Response:
    made = pages(config, "1.2.3", STARTED, paths=("/metrics", "/proxyMode"), now=lambda: STARTED + timedelta(hours=25))
    return made[path](Request("GET", path, accept=accept))


def structured(path: str, kind: str, version: str = "v1beta1") -> Any:
    said = page(path, f"application/json;v={version};g=config.k8s.io;as={kind}")
    assert said.headers["Content-Type"] == "application/json"
    return json.loads(said.body)


def test_healthz() -> None:
    said = page("/healthz")
    assert (said.status, said.body, said.headers["Content-Type"]) == (200, b"ok", "text/plain; charset=utf-8")


def test_configz_is_as_kube_proxys() -> None:
    said = page("/configz")
    assert (said.headers["Content-Type"], said.headers["X-Content-Type-Options"]) == ("application/json", "nosniff")
    (group,) = theirs = json.loads(recorded("nftables", "configz.txt"))
    ours = json.loads(said.body)
    assert list(ours) == [group]

    def compare(our: dict[str, Any], their: dict[str, Any]) -> None:
        """What is there has their name and type; and where this test gave a value, their value."""
        for name, value in our.items():
            assert name in their or name == "featureGates", name
            if isinstance(value, dict) and name in their:
                compare(value, their[name])
            elif name in their and their[name] is not None:
                assert type(value) is type(their[name]), name

    compare(ours[group], theirs[group])
    for name in (
        "kind",
        "apiVersion",
        "mode",
        "clusterCIDR",
        "nodePortAddresses",
        "hostnameOverride",
        "clientConnection",
    ):
        if isinstance(ours[group][name], dict):
            assert ours[group][name].items() <= theirs[group][name].items()
        else:
            assert ours[group][name] == theirs[group][name]
    assert ours[group]["nftables"]["syncPeriod"] == "30s"


def test_statusz() -> None:
    said = page("/statusz")
    assert said.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert said.body.decode() == (
        "\nkube-proxy-nft statusz\n"
        "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for "
        "debugging purposes only.\n\n"
        "Started: Mon Nov 30 04:36:31 UTC 2026\n"
        "Up: 25 hr 00 min 00 sec\n"
        f"Python version: {platform.python_version()}\n"
        "Binary version: 1.2.3\n"
        "Emulation version: 1.36\n"
        "Paths: /configz /flagz /healthz /metrics /proxyMode /statusz\n"
    )
    assert structured("/statusz", "Statusz") == {
        "kind": "Statusz",
        "apiVersion": "config.k8s.io/v1beta1",
        "metadata": {"name": "kube-proxy-nft"},
        "startTime": "2026-11-30T04:36:31Z",
        "uptimeSeconds": 90000,
        "goVersion": f"python{platform.python_version()}",
        "binaryVersion": "1.2.3",
        "emulationVersion": "1.36",
        "paths": ["/configz", "/flagz", "/healthz", "/metrics", "/proxyMode", "/statusz"],
    }


def test_flagz() -> None:
    lines = page("/flagz").body.decode().splitlines()
    assert lines[:2] == ["", "kube-proxy-nft flagz"] and lines[3] == ""
    said = dict(line.split("=", 1) for line in lines[4:])
    assert list(said) == sorted(said)
    expected = {
        "bind-address": "0.0.0.0",
        "cluster-cidr": "10.244.0.0/16,fd44::/48",
        "conntrack-min": "131072",
        "conntrack-tcp-timeout-established": "24h0m0s",
        "masquerade-all": "false",
        "metrics-bind-address": "127.0.0.1:10249",
        "nodeport-addresses": "[primary]",
    }
    assert expected.items() <= said.items()
    found = structured("/flagz", "Flagz", "v1alpha1")
    assert (found["kind"], found["apiVersion"], found["flags"]) == ("Flagz", "config.k8s.io/v1alpha1", said)


def test_flags_that_are_no_fields() -> None:
    assert flag_values(Config(), {"config": "/c.yaml"})["config"] == "/c.yaml"


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("", 200),
        ("*/*", 200),
        ("text/plain", 200),
        ("text/*;q=0.8", 200),
        ("application/json, text/plain", 200),
        ("application/json", 406),
        ("application/json;v=v1;g=config.k8s.io;as=Flagz", 406),
        ("application/json;v=v1beta1;g=config.k8s.io;as=Statusz", 406),
        ("text/html", 406),
        (";=;,", 406),
    ],
)
def test_what_is_acceptable(accept: str, status: int) -> None:
    assert page("/flagz", accept).status == status
