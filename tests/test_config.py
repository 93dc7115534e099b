"""KubeProxyConfiguration files: what kube-proxy accepts means the same here; what is wrong is named, all at once."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.config import ClusterCIDR, Config, HostPort, NodePortAddresses, load_config, node_name
from proxy.durations import parse_duration, show_duration
from proxy.errors import ConfigError

DATA = Path(__file__).parent / "data" / "config"
HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

Load = Callable[..., Config]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load these lines as a file with the right apiVersion and kind."""

    def load(body: str, head: str = HEAD) -> Config:
        path = tmp_path / "config.yaml"
        path.write_text(head + body)
        return load_config(str(path))

    return load


@pytest.fixture
def fault(tmp_path: Path) -> Callable[..., str]:
    """The message that this text gets, which must be a ConfigError."""

    def fault(body: str | bytes, head: str = HEAD) -> str:
        path = tmp_path / "config.yaml"
        path.write_bytes(body if isinstance(body, bytes) else (head + body).encode())
        with pytest.raises(ConfigError) as caught:
            load_config(str(path))
        assert caught.value.exit_code == 3
        message = str(caught.value)
        assert message.startswith(str(path))
        assert "\n" not in message
        return message

    return fault


# --- files that work ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(p for p in DATA.iterdir() if p.suffix != ".txt"), ids=lambda p: p.name)
def test_every_example_loads_and_knows_every_field(path: Path) -> None:
    assert load_config(str(path)).warnings == ()


def test_kubeadms_file_means_the_defaults() -> None:
    config = load_config(str(DATA / "kubeadm.yaml"))
    assert config.without_effect == ()
    assert config.client_connection.kubeconfig == "/var/lib/kube-proxy/kubeconfig.conf"
    assert config.cluster_cidr == ClusterCIDR(v4=IPv4Network("10.244.0.0/16"))
    for name in set(Config.__struct_fields__) - {"client_connection", "cluster_cidr"}:
        assert getattr(config, name) == getattr(Config(), name), name


def test_a_file_and_what_kube_proxy_made_of_it_mean_the_same() -> None:
    written = load_config(str(DATA / "nftables.json"))
    effective = load_config(str(DATA / "nftables-effective.json"))
    for name in set(Config.__struct_fields__) - {"client_connection", "logging"}:  # set by flags in that run
        assert getattr(written, name) == getattr(effective, name), name
    assert effective.without_effect == ()


def test_the_other_modes_settings_are_named_as_without_effect() -> None:
    config = load_config(str(DATA / "ipvs.json"))
    assert {name for name, _ in config.without_effect} == {"ipvs.scheduler", "ipvs.strictARP", "mode"}
    assert config.mode == "nftables"


def test_no_file_gives_the_defaults() -> None:
    config = load_config(None)
    assert config == Config()
    assert config.healthz_bind_address == HostPort("0.0.0.0", 10256)
    assert config.metrics_bind_address == HostPort("127.0.0.1", 10249)
    assert config.node_port_addresses == NodePortAddresses(primary=True)
    assert (config.nftables.sync_period, config.nftables.min_sync_period, config.nftables.masquerade_bit) == (30, 1, 14)
    assert (config.conntrack.max_per_core, config.conntrack.min, config.oom_score_adj) == (32768, 131072, -999)


def test_fields_that_are_set(load: Load) -> None:
    config = load("""
hostnameOverride: node-1
bindAddress: fd00::1
bindAddressHardFail: true
healthzBindAddress: 10.0.0.1
metricsBindAddress: "[fd00::1]:9"
detectLocalMode: BridgeInterface
detectLocal: {bridgeInterface: cni0}
nftables: {masqueradeAll: true, masqueradeBit: 0, syncPeriod: 1h}
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpBeLiberal: true, udpTimeout: 1m30s}
logging: {format: json, verbosity: 4}
oomScoreAdj: 0
featureGates: {KubeProxyNFTablesLocalhostNodePorts: true}
""")
    assert config.hostname_override == "node-1"
    assert config.bind_address == (ip_address("fd00::1"),)
    assert config.bind_address_hard_fail
    assert config.healthz_bind_address == HostPort("10.0.0.1", 10256)
    assert config.metrics_bind_address == HostPort("fd00::1", 9)
    assert config.detect_local_mode == "BridgeInterface"
    assert config.detect_local.bridge_interface == "cni0"
    assert config.nftables.masquerade_all
    assert config.nftables.masquerade_bit == 0
    assert config.nftables.sync_period == 3600
    assert (config.conntrack.max_per_core, config.conntrack.min) == (0, 131072)
    assert (config.conntrack.tcp_established_timeout, config.conntrack.tcp_close_wait_timeout) == (0, 3600)
    assert (config.conntrack.tcp_be_liberal, config.conntrack.udp_timeout) == (True, 90)
    assert (config.logging.format, config.logging.verbosity) == ("json", 4)
    assert config.oom_score_adj == 0
    assert config.feature_gates == {"KubeProxyNFTablesLocalhostNodePorts": True}
    assert config.warnings == ()
    assert [name for name, _ in config.without_effect] == []


@pytest.mark.parametrize("mode", ["NodeCIDR", "ClusterCIDR"])
def test_detect_local_modes_that_need_nothing_else(load: Load, mode: str) -> None:
    assert load(f"detectLocalMode: {mode}").detect_local_mode == mode


def test_an_ipv6_bind_address_moves_the_default_listeners(load: Load) -> None:
    config = load('bindAddress: "::"')
    assert config.healthz_bind_address == HostPort("::", 10256)
    assert config.metrics_bind_address == HostPort("::1", 10249)
    assert load('bindAddress: "::"\nhealthzBindAddress: "1.2.3.4:5"').healthz_bind_address == HostPort("1.2.3.4", 5)


@pytest.mark.parametrize(
    ("text", "v4", "v6"),
    [
        ("10.244.0.0/16,fd44::/48", "10.244.0.0/16", "fd44::/48"),
        ("fd44::/48, 10.244.0.0/16", "10.244.0.0/16", "fd44::/48"),
        ("10.244.7.9/16", "10.244.0.0/16", None),
        ("010.0244.0.0/16", "10.244.0.0/16", None),
        ("fd44::1/48", None, "fd44::/48"),
        ("", None, None),
    ],
)
def test_cluster_cidr(load: Load, text: str, v4: str | None, v6: str | None) -> None:
    expected = ClusterCIDR(IPv4Network(v4) if v4 else None, IPv6Network(v6) if v6 else None)
    assert load(f'clusterCIDR: "{text}"').cluster_cidr == expected


@pytest.mark.parametrize(
    ("text", "primary", "cidrs"),
    [
        ("[]", True, []),
        ("[primary]", True, []),
        ("[192.168.78.5/24]", False, ["192.168.78.0/24"]),
        ('["0.0.0.0/0", "::/0"]', False, ["0.0.0.0/0", "::/0"]),
        ("[all]", False, ["0.0.0.0/0", "::/0"]),
        ('[primary, localhost, "::1/128"]', True, ["127.0.0.0/8", "::1/128"]),
    ],
)
def test_node_port_addresses(load: Load, text: str, primary: bool, cidrs: list[str]) -> None:
    expected = NodePortAddresses(primary, tuple(ip_network(cidr) for cidr in cidrs))
    assert load(f"nodePortAddresses: {text}").node_port_addresses == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.2.3.4", HostPort("1.2.3.4", 10249)),
        ("01.02.3.004:7", HostPort("1.2.3.4", 7)),
        ("[1.2.3.4]:9", HostPort("1.2.3.4", 9)),
        ("[::ffff:1.2.3.4]:9", HostPort("1.2.3.4", 9)),
        ("fd00::1", HostPort("fd00::1", 10249)),
        ("[fd00::1]:09", HostPort("fd00::1", 9)),
        ("", HostPort("127.0.0.1", 10249)),
    ],
)
def test_where_to_listen(load: Load, text: str, expected: HostPort) -> None:
    assert load(f'metricsBindAddress: "{text}"').metrics_bind_address == expected


@pytest.mark.parametrize("prefix", ["---\n", "\ufeff", "# a comment\n"])
@pytest.mark.parametrize("suffix", ["", "\n---\n", "\n...\n"])
def test_yaml_around_the_one_document(tmp_path: Path, prefix: str, suffix: str) -> None:
    path = tmp_path / "config"
    path.write_text(prefix + HEAD + "hostnameOverride: n" + suffix, encoding="utf-8")
    assert load_config(str(path)).hostname_override == "n"


def test_json_with_tabs_is_json(load: Load) -> None:
    data = json.dumps({"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}, indent="\t")
    assert load(data, "") == Config()


# --- fields that are reported ---------------------------------------------------------------------------------------


def test_unknown_fields_are_named_by_their_full_path(load: Load) -> None:
    config = load("""
nope: 1
nftables: {masqueradeALL: true, foo: {bar: 1}}
logging: {options: {text: {deep: 1}}}
7: x
""")
    notes = dict(config.warnings)
    assert set(notes) == {"nope", "nftables.masqueradeALL", "nftables.foo", "logging.options.text.deep", "7"}
    assert notes["nope"] == "unknown field"
    assert "did you mean nftables.masqueradeAll?" in notes["nftables.masqueradeALL"]


@pytest.mark.parametrize("text", ["mode: iptables\nmode: nftables\n", '"mode": "iptables"\n"mode": "nftables"\n'])
def test_a_key_given_twice_is_reported_and_the_last_counts(load: Load, text: str) -> None:
    config = load(text)
    assert config.mode == "nftables"
    assert config.warnings == (("mode", "given twice (line 4); the last one counts"),)


def test_a_key_given_twice_in_json(load: Load) -> None:
    head = '{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", '
    config = load('"oomScoreAdj": 1, "oomScoreAdj": 2}', head)
    assert config.oom_score_adj == 2
    assert [name for name, _ in config.warnings] == ["oomScoreAdj"]


def test_settings_of_other_modes_that_are_not_the_default(load: Load) -> None:
    config = load("""
iptables: {masqueradeAll: true, masqueradeBit: 14, localhostNodePorts: true, syncPeriod: 30s}
ipvs: {scheduler: rr, syncPeriod: 0s}
winkernel: {enableDSR: false, networkName: net}
clientConnection: {qps: 5, burst: 100}
featureGates: {SomeGate: false}
""")
    notes = dict(config.without_effect)
    assert set(notes) == {
        "iptables.masqueradeAll",
        "ipvs.scheduler",
        "winkernel.networkName",
        "clientConnection.burst",
        "featureGates.SomeGate",
    }
    assert "nftables.masqueradeAll" in notes["iptables.masqueradeAll"]
    assert config.warnings == ()


# --- files that do not work -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "field", "must"),
    [
        ("clusterCIDR: 10.244.0.0", "clusterCIDR", "must be a CIDR"),
        ("clusterCIDR: 10.244.0.0/33", "clusterCIDR", "must be a CIDR"),
        ("clusterCIDR: 10.244.0.0/16,", "clusterCIDR", "must be a CIDR"),
        ("clusterCIDR: 10.244.0.0/255.255.0.0", "clusterCIDR", "must be a CIDR"),
        ("clusterCIDR: '::ffff:10.0.0.0/104'", "clusterCIDR", "must be a CIDR"),
        ("clusterCIDR: 10.0.0.0/16,10.1.0.0/16", "clusterCIDR", "at most one CIDR per IP family"),
        ("clusterCIDR: '10.0.0.0/16,fd00::/48,fd01::/48'", "clusterCIDR", "at most one CIDR per IP family"),
        ("clusterCIDR: [10.0.0.0/16]", "clusterCIDR", "must be text"),
        ("nftables: {masqueradeBit: 32}", "nftables.masqueradeBit", "from 0 to 31"),
        ("nftables: {masqueradeBit: -1}", "nftables.masqueradeBit", "from 0 to 31"),
        ("nftables: {masqueradeBit: '14'}", "nftables.masqueradeBit", "without quotes"),
        ("iptables: {masqueradeBit: 32}", "iptables.masqueradeBit", "from 0 to 31"),
        ("nftables: {masqueradeBit: true}", "nftables.masqueradeBit", "from 0 to 31"),
        ("nftables: {masqueradeAll: 'true'}", "nftables.masqueradeAll", "must be true or false"),
        ("nftables: {syncPeriod: 30}", "nftables.syncPeriod", "must be a duration"),
        ("nftables: {syncPeriod: 30 s}", "nftables.syncPeriod", "must be a duration"),
        ("nftables: {syncPeriod: -1s}", "nftables.syncPeriod", "must not be negative"),
        ("nftables: {syncPeriod: 1s, minSyncPeriod: 2s}", "nftables.minSyncPeriod", "longer than nftables.syncPeriod"),
        ("nftables: {syncPeriod: 500ms}", "nftables.minSyncPeriod", "longer than nftables.syncPeriod"),
        ("mode: ipvs\nipvs: {syncPeriod: -1s}", "ipvs.syncPeriod", "greater than 0"),
        ("mode: ipvs\nipvs: {minSyncPeriod: -1s}", "ipvs.minSyncPeriod", "not be negative"),
        ("mode: ipvs\nipvs: {syncPeriod: 1s, minSyncPeriod: 2s}", "ipvs.minSyncPeriod", "longer than ipvs.syncPeriod"),
        ("mode: ipvs\nipvs: {udpTimeout: -1s}", "ipvs.udpTimeout", "not be negative"),
        ("mode: ipvs\nipvs: {excludeCIDRs: [10.0.0.1]}", "ipvs.excludeCIDRs", "list of CIDRs"),
        ("iptables: {syncPeriod: 500ms}", "iptables.minSyncPeriod", "longer than iptables.syncPeriod"),
        ("iptables: {minSyncPeriod: -1s}", "iptables.minSyncPeriod", "not be negative"),
        ("nftables: true", "nftables", "must be a mapping"),
        ("configSyncPeriod: 1d", "configSyncPeriod", "must be a duration"),
        ("detectLocalMode: Cluster", "detectLocalMode", "NodeCIDR"),
        ("detectLocalMode: BridgeInterface", "detectLocalMode", "needs detectLocal.bridgeInterface"),
        ("detectLocalMode: InterfaceNamePrefix", "detectLocalMode", "needs detectLocal.interfaceNamePrefix"),
        (
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: a-name-too-long-for-linux}",
            "detectLocal.bridgeInterface",
            "15 bytes",
        ),
        ("detectLocalMode: NodeCIDR\nclusterCIDR: [x]", "clusterCIDR", "must be text"),
        ("mode: userspace", "mode", "nftables, iptables, ipvs"),
        ("mode: [nftables]", "mode", "nftables, iptables, ipvs"),
        ("hostnameOverride: on", "hostnameOverride", "put it in quotes"),
        ("hostnameOverride: 007", "hostnameOverride", "put it in quotes"),
        ("bindAddress: localhost", "bindAddress", "must be an IP address"),
        ("bindAddress: '1.1.1.1,fd00::1'", "bindAddress", "must be an IP address"),
        ("bindAddress: 1.1.1.256", "bindAddress", "must be an IP address"),
        ("bindAddress: 1.1.1.1:80", "bindAddress", "must be an IP address"),
        ("healthzBindAddress: localhost:1", "healthzBindAddress", "must be an IP address and a port"),
        ("healthzBindAddress: '1.2.3.4:0'", "healthzBindAddress", "1 to 65535"),
        ("healthzBindAddress: '1.2.3.4:99999'", "healthzBindAddress", "1 to 65535"),
        ("metricsBindAddress: '[fd00::1]'", "metricsBindAddress", "must be an IP address and a port"),
        ("metricsBindAddress: 'fe80::1%eth0'", "metricsBindAddress", "must be an IP address and a port"),
        ("nodePortAddresses: 10.0.0.0/8", "nodePortAddresses", "must be a list"),
        ("nodePortAddresses: [10.0.0.1]", "nodePortAddresses", "'10.0.0.1' is none of these"),
        ("nodePortAddresses: [7]", "nodePortAddresses", "7 (a number) is none of these"),
        ("nodePortAddresses: [[primary]]", "nodePortAddresses", "is none of these"),
        ("conntrack: {maxPerCore: -1}", "conntrack.maxPerCore", "from 0"),
        ("conntrack: {min: 2147483648}", "conntrack.min", "to 2147483647"),
        ("logging: {format: xml}", "logging.format", "text, json"),
        ("logging: {verbosity: 1.5}", "logging.verbosity", "whole number"),
        ("logging: {verbosity: 2147483648}", "logging.verbosity", "to 2147483647"),
        ("logging: {vmodule: [{filePattern: 'a=b', verbosity: 1}]}", "logging.vmodule", "no '='"),
        ("logging: {vmodule: [{filePattern: a, verbosity: -1}]}", "logging.vmodule", "from 0"),
        ("logging: {format: json, vmodule: [{filePattern: a}]}", "logging.vmodule", "needs logging.format text"),
        ("logging: {options: {json: {splitStream: true}}}", "logging.options.json.splitStream", "LoggingAlphaOptions"),
        ("portRange: 5-3", "portRange", "must be a range"),
        ("portRange: 1-70000", "portRange", "must be a range"),
        ("oomScoreAdj: 1001", "oomScoreAdj", "from -1000 to 1000"),
        ("featureGates: {A: 'true'}", "featureGates", "true or false"),
        ("iptables: {syncPeriod: often}", "iptables.syncPeriod", "must be a duration"),
        ("clientConnection: {qps: many}", "clientConnection.qps", "must be a number"),
    ],
)
def test_impossible_values(fault: Callable[..., str], line: str, field: str, must: str) -> None:
    message = fault(line)
    assert f" {field} is " in message
    assert must in message
    assert "left out gets its default" in message


def test_all_faults_at_once_with_their_values(fault: Callable[..., str]) -> None:
    message = fault("mode: userspace\nnftables: {masqueradeBit: 99, syncPeriod: x}\nclusterCIDR: 10.0.0.0\n")
    for part in ("mode is 'userspace'", "nftables.masqueradeBit is 99", "nftables.syncPeriod is 'x'", "'10.0.0.0'"):
        assert part in message


def test_a_long_value_is_cut(fault: Callable[..., str]) -> None:
    assert len(fault(f"mode: {'x' * 100_000}")) < 500


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("---\n---\n", "is empty"),
        ("- a\n", "holds a list, not a mapping"),
        ("just text", "holds text, not a mapping"),
        ("a: [1, 2", "is not YAML"),
        ("a: 2026-13-45", "is not YAML"),
        ("a: {[1]: 2}", "is not YAML"),
        ("a: !!python/object/apply:os.system [true]", "is not YAML"),
        ("{" * 5000, "nested too deeply"),
        (HEAD + "---\n" + HEAD, "holds 2 YAML documents"),
        (HEAD.replace("v1alpha1", "v1beta1"), "expected: kind KubeProxyConfiguration, apiVersion kubeproxy.config"),
        ("mode: nftables", "kind is missing and apiVersion is missing"),
        ("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1", "expected: kind KubeProxyConf"),
        ("kind: ConfigMap\napiVersion: v1\ndata: {config.conf: x}", "its key config.conf"),
        ("kind: [KubeProxyConfiguration]", "expected: kind"),
    ],
)
def test_files_that_are_no_configuration(fault: Callable[..., str], text: str, says: str) -> None:
    assert says in fault(text, "")


def test_files_that_are_no_text(fault: Callable[..., str]) -> None:
    assert "not UTF-8" in fault(b"mode: \xff")
    assert "is not YAML" in fault(b"mode: \x00")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(str(tmp_path))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=5,
)
_names = st.sampled_from(
    [
        "mode",
        "clusterCIDR",
        "nodePortAddresses",
        "bindAddress",
        "healthzBindAddress",
        "featureGates",
        "oomScoreAdj",
        "hostnameOverride",
        "nftables",
        "logging",
        "conntrack",
        "detectLocal",
        "iptables",
        "configSyncPeriod",
    ]
)
_sections = st.dictionaries(st.sampled_from(["syncPeriod", "options", "bridgeInterface", "min", "verbosity"]), _json)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(_names, _json | _sections, max_size=4))
def test_any_value_anywhere_loads_or_is_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, body: dict[str, object]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    data = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}
    path.write_text(json.dumps(data | body))
    with contextlib.suppress(ConfigError):
        load_config(str(path))


# --- what kube-proxy takes, because its mode makes nothing of it ------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "mode: nftables\nipvs: {syncPeriod: -1s, excludeCIDRs: [nonsense], udpTimeout: -1s}",
        "mode: nftables\niptables: {syncPeriod: 1s, minSyncPeriod: 2s}",
        "mode: ipvs\niptables: {minSyncPeriod: -1s}",
        "detectLocalMode: NodeCIDR\nclusterCIDR: 10.0.0.0/16,10.1.0.0/16",
        "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth, bridgeInterface: a/b}",
        "logging: {vmodule: [{filePattern: a, verbosity: 1}]}",
        "logging: {options: {json: {splitStream: true}}}\nfeatureGates: {LoggingAlphaOptions: true}",
        "portRange: 30000+100",
        'portRange: "80"',
        "nodePortAddresses: [010.0.0.0/8]",
        "nftables: {syncPeriod: 0s, minSyncPeriod: 0s}\nconfigSyncPeriod: 0s",
    ],
)
def test_what_kube_proxy_takes_is_taken(load: Load, body: str) -> None:
    assert load(body).warnings == ()


def test_what_belongs_to_another_way_to_know_local_pods(load: Load) -> None:
    config = load("""
detectLocalMode: BridgeInterface
detectLocal: {bridgeInterface: cni0, interfaceNamePrefix: veth}
clusterCIDR: 10.0.0.0/16
""")
    why = "no effect here: detectLocalMode is BridgeInterface"
    assert dict(config.without_effect) == {"detectLocal.interfaceNamePrefix": why, "clusterCIDR": why}
    assert config.cluster_cidr == ClusterCIDR(v4=IPv4Network("10.0.0.0/16"))
    config = load("detectLocalMode: NodeCIDR\nclusterCIDR: nonsense")
    assert dict(config.without_effect) == {"clusterCIDR": "no effect here: detectLocalMode is NodeCIDR"}
    assert config.cluster_cidr == ClusterCIDR()


def test_what_has_no_effect_is_said_once_with_the_reason(load: Load) -> None:
    config = load("""
mode: iptables
configSyncPeriod: 1m
ipvs: {scheduler: wrr}
nftables: {minSyncPeriod: 2s}
""")
    notes = dict(config.without_effect)
    assert len(notes) == len(config.without_effect) == 4
    assert "always uses nftables" in notes["mode"]
    assert "annotation" in notes["ipvs.scheduler"]
    assert "as soon as" in notes["nftables.minSyncPeriod"]
    assert (config.config_sync_period, config.nftables.min_sync_period) == (60, 2)


@pytest.mark.parametrize(
    ("gate", "value", "says"),
    [
        ("KubeProxyIPVS", True, None),
        ("KubeProxyIPVS", False, "no such mode"),
        ("NFTablesProxyMode", True, None),
        ("KubeProxyNFTablesLocalhostNodePorts", True, None),
        ("KubeProxyNFTablesLocalhostNodePorts", False, "where nodePortAddresses lists them"),
        ("GangScheduling", True, "nothing in this proxy depends on it"),
        ("KubeProxyIPSV", True, "did you mean KubeProxyIPVS?"),
    ],
)
def test_feature_gates(load: Load, gate: str, value: bool, says: str | None) -> None:
    config = load(f"featureGates: {{{gate}: {str(value).lower()}}}")
    assert config.feature_gates == {gate: value}
    assert config.warnings == ()
    notes = dict(config.without_effect)
    assert set(notes) == ({f"featureGates.{gate}"} if says else set())
    assert all(says and says in note for note in notes.values())


# --- durations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("1h0m0s", 3600),
        ("15m0s", 900),
        ("1.5h", 5400),
        ("300ms", 0.3),
        (".5s", 0.5),
        ("1.s", 1),
        ("2h45m30.5s", 9930.5),
        ("-1m", -60),
        ("+1m", 60),
        ("5us", 5e-6),
        ("5µs", 5e-6),
        ("5\u03bcs", 5e-6),
        ("7ns", 7e-9),
        ("1s1h", 3601),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "1", "s", ".s", "1d", "1S", "1 s", " 1s", "1s ", "--1s", "1e3s", "9999999h", "١s"]
)
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a duration|292 years"):
        parse_duration(text)


@given(st.integers(0, 10**5), st.integers(0, 59), st.integers(0, 59_999))
def test_a_duration_is_the_sum_of_its_parts(hours: int, minutes: int, milliseconds: int) -> None:
    text = f"{hours}h{minutes}m{milliseconds // 1000}.{milliseconds % 1000:03}s"
    assert parse_duration(text) == (hours * 3_600_000 + minutes * 60_000 + milliseconds) / 1000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (3600, "1h0m0s"),
        (900, "15m0s"),
        (5400.25, "1h30m0.25s"),
        (61.5, "1m1.5s"),
        (1, "1s"),
        (0.3, "300ms"),
        (0.0015, "1.5ms"),
        (5e-6, "5µs"),
        (7e-9, "7ns"),
        (-90, "-1m30s"),
        (100 * 3600, "100h0m0s"),
    ],
)
def test_durations_are_written_as_go_writes_them(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_a_duration_is_read_as_it_is_written(nanoseconds: int) -> None:
    seconds = nanoseconds / 10**9
    try:
        assert parse_duration(show_duration(seconds)) == seconds
    except ValueError:
        assert abs(nanoseconds) > 2**63 - 1024  # rounded up to what Go does not have any more


# --- the node's name ------------------------------------------------------------------------------------------------


def test_node_name_comes_from_the_flag_then_the_file_then_the_host() -> None:
    host = os.uname().nodename.strip().lower()
    assert node_name(Config(hostname_override="From-File"), " From-Flag\n") == "from-flag"
    assert node_name(Config(hostname_override="From-File "), "") == "from-file"
    assert node_name(Config(hostname_override="From-File"), None) == "from-file"
    assert node_name(Config()) == host


def test_a_blank_node_name_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"hostnameOverride is '  ': empty.*--node"):
        node_name(Config(hostname_override="  "))
    with pytest.raises(ConfigError, match="--node is ' '"):
        node_name(Config(hostname_override="n"), " ")


def test_a_variable_that_the_pod_does_not_have_is_no_node_name() -> None:
    with pytest.raises(ConfigError, match="no such environment variable"):
        node_name(Config(hostname_override="$(NODE_NAME)"))
