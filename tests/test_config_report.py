"""The effective configuration: what kube-proxy made of the same file, and a file that means the same again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import Config, Given, HostPort, load_config, parse_config
from proxy.config_fields import FIELDS
from proxy.config_report import FORMATS, effective, fields, show
from proxy.errors import ConfigError

DATA = Path(__file__).parent / "data" / "config"
OF_ANOTHER_MODE = ("mode", "nftables.syncPeriod", "nftables.minSyncPeriod", "nodePortAddresses")
"""Where kube-proxy's nftables mode has other values than its other modes."""


def at(data: Any, name: str) -> Any:
    for part in name.split("."):
        data = data.get(part)
    return data


def settings_of(config: Config) -> Config:
    return msgspec.structs.replace(config, warnings=(), without_effect=())


@pytest.mark.parametrize("mode", ["nftables", "iptables", "ipvs"])
def test_kube_proxys_own_effective_configuration(mode: str) -> None:
    flags = [
        Given("logging.verbosity", 2, "-v", "2", is_flag=True),
        Given("clientConnection.kubeconfig", "/var/lib/kube-proxy/kubeconfig", "", "", is_flag=True),
    ]
    ours = fields(load_config(str(DATA / f"{mode}.json"), flags))
    theirs = json.loads((DATA / f"{mode}-effective.json").read_text())
    for name, value in ours.items():
        if name == "featureGates":
            assert value == {} and "featureGates" not in theirs
        elif mode == "nftables" or name not in OF_ANOTHER_MODE:
            assert value == at(theirs, name), name


def test_every_field_that_is_kept_is_in_it() -> None:
    assert set(fields(Config())) == {name for name, field in FIELDS.items() if field.stored} | {"mode"}
    kept = {name for name in Config.__struct_fields__ if name not in ("warnings", "without_effect")}
    assert len(effective(Config())) == 2 + len(kept)


def test_addresses_and_names_that_yaml_would_take_for_something_else() -> None:
    config = Config(healthz_bind_address=HostPort("fd00::1", 1), metrics_bind_address=None, hostname_override="007")
    assert effective(config)["healthzBindAddress"] == "[fd00::1]:1"
    assert effective(config)["metricsBindAddress"] == ""
    assert parse_config(show(config).encode(), "").hostname_override == "007"


_names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20)
_v4 = st.ip_addresses(v=4).map(str)
_v6 = st.ip_addresses(v=6).map(str)
_cidrs = st.one_of(
    st.tuples(_v4, st.integers(0, 32)).map(lambda pair: f"{pair[0]}/{pair[1]}"),
    st.tuples(_v6, st.integers(0, 128)).map(lambda pair: f"{pair[0]}/{pair[1]}"),
)
_ports = st.integers(1, 65535)
_listeners = st.one_of(
    st.just(""),
    _v4,
    st.tuples(_v4, _ports).map(lambda pair: f"{pair[0]}:{pair[1]}"),
    st.tuples(_v6, _ports).map(lambda pair: f"[{pair[0]}]:{pair[1]}"),
)
_durations = st.integers(0, 10**15).map(lambda n: f"{n}ns") | st.sampled_from(["0s", "1h30m", "1.5s", "300ms"])
_counts = st.none() | st.integers(0, 2**31 - 1)


def _section(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=values)


_files = _section(
    clientConnection=_section(kubeconfig=_names, qps=st.floats(0, 100), burst=st.integers(0, 100)),
    hostnameOverride=_names,
    bindAddress=st.one_of(_v4, _v6, st.just("")),
    bindAddressHardFail=st.booleans(),
    healthzBindAddress=_listeners,
    metricsBindAddress=_listeners,
    mode=st.sampled_from(["", "nftables", "iptables", "ipvs"]),
    detectLocalMode=st.sampled_from(["", "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"]),
    detectLocal=_section(bridgeInterface=_names, interfaceNamePrefix=_names),
    clusterCIDR=st.just("") | st.lists(_cidrs, min_size=1, max_size=2).map(",".join),
    nodePortAddresses=st.none() | st.lists(_cidrs | st.sampled_from(["primary", "localhost", "all"]), max_size=4),
    nftables=_section(
        masqueradeAll=st.booleans(),
        masqueradeBit=st.none() | st.integers(0, 31),
        syncPeriod=_durations,
        minSyncPeriod=_durations,
    ),
    conntrack=_section(
        maxPerCore=_counts,
        min=_counts,
        tcpEstablishedTimeout=st.none() | _durations,
        tcpCloseWaitTimeout=st.none() | _durations,
        tcpBeLiberal=st.booleans(),
        udpTimeout=_durations,
        udpStreamTimeout=_durations,
    ),
    logging=_section(format=st.sampled_from(["", "text", "json"]), verbosity=st.integers(0, 9)),
    oomScoreAdj=st.none() | st.integers(-1000, 1000),
    configSyncPeriod=_durations,
    featureGates=st.dictionaries(_names, st.booleans(), max_size=3),
    ipvs=_section(scheduler=_names, strictARP=st.booleans()),
)


@given(_files, st.sampled_from(FORMATS))
def test_what_is_printed_means_the_same_again(data: dict[str, Any], format: str) -> None:
    head = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}
    try:
        config = parse_config(json.dumps(head | data).encode(), "file")
    except ConfigError:
        return  # what goes together and what not is tested elsewhere
    printed = show(config, format)
    again = parse_config(printed.encode(), "printed")
    assert settings_of(again) == settings_of(config)
    assert again.warnings == ()
    assert show(again, format) == printed
