"""kube-proxy's flags: all are taken, in Go's spelling, and mean in the configuration what they mean there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path

import pytest

from proxy import flags
from proxy.config import ClusterCIDR, Config, HostPort, load_config
from proxy.errors import UsageError
from proxy.flags import FLAGS, GivenFlags

DATA = Path(__file__).parent / "data" / "config"
OURS = ("config", "kubeconfig", "help")


def recorded() -> dict[str, str]:
    """kube-proxy v1.36.2's flags, and its defaults."""
    lines = (DATA / "flags.txt").read_text().split()
    return {name.removeprefix("--"): text.strip('"') for name, _, text in (line.partition("=") for line in lines)}


def given(*arguments: str, beside_config: bool = False) -> GivenFlags:
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    flags.add_arguments(parser)
    return GivenFlags(parser.parse_args(flags.normalise(arguments)).flags or (), beside_config)


def config(*arguments: str) -> Config:
    return load_config(None, given(*arguments).fields)


def fault(*arguments: str) -> str:
    with pytest.raises(UsageError) as caught:
        config(*arguments)
    return str(caught.value)


def test_every_flag_of_kube_proxy_is_here_and_no_other() -> None:
    assert set(FLAGS) == set(recorded()) - set(OURS)


def test_every_flag_with_its_own_default_changes_nothing_and_is_not_worth_a_word() -> None:
    arguments = [f"--{name}={text.strip('[]')}" for name, text in recorded().items() if name not in OURS]
    made = given(*arguments)
    assert load_config(None, made.fields) == Config()
    assert not made.is_on("cleanup") and not made.is_on("init-only") and made.value("write-config-to") == ""


def test_what_the_flags_set() -> None:
    made = config(
        "--bind-address=10.0.0.1",
        "--bind-address-hard-fail",
        "--cluster-cidr=10.244.0.0/16,fd44::/48",
        "--config-sync-period=1m",
        "--conntrack-max-per-core=0",
        "--conntrack-min=7",
        "--conntrack-tcp-be-liberal=1",
        "--conntrack-tcp-timeout-close-wait=0",
        "--conntrack-tcp-timeout-established=0s",
        "--conntrack-udp-timeout=1s",
        "--conntrack-udp-timeout-stream=2s",
        "--detect-local-mode=InterfaceNamePrefix",
        "--pod-interface-name-prefix=veth",
        "--feature-gates=A=true,B=false",
        "--hostname-override=N",
        "--logging-format=json",
        "--masquerade-all",
        "--nodeport-addresses=10.0.0.0/8",
        "--oom-score-adj=0",
        "--v=4",
    )
    assert made.bind_address == (ip_address("10.0.0.1"),)
    assert made.bind_address_hard_fail and made.conntrack.tcp_be_liberal and made.nftables.masquerade_all
    assert made.cluster_cidr == ClusterCIDR(IPv4Network("10.244.0.0/16"), IPv6Network("fd44::/48"))
    assert (made.conntrack.max_per_core, made.conntrack.min) == (0, 7)
    assert (made.conntrack.tcp_close_wait_timeout, made.conntrack.tcp_established_timeout) == (0, 0)
    assert (made.conntrack.udp_timeout, made.conntrack.udp_stream_timeout) == (1, 2)
    assert (made.detect_local_mode, made.detect_local.interface_name_prefix) == ("InterfaceNamePrefix", "veth")
    assert made.feature_gates == {"A": True, "B": False}
    assert (made.hostname_override, made.oom_score_adj) == ("N", 0)
    assert (made.logging.format, made.logging.verbosity) == ("json", 4)
    assert made.node_port_addresses.cidrs == (ip_network("10.0.0.0/8"),)
    assert made.config_sync_period == 60


def test_the_flags_of_other_modes_are_named_with_the_reason() -> None:
    arguments = (
        "--proxy-mode=ipvs",
        "--ipvs-scheduler=rr",
        "--ipvs-strict-arp",
        "--ipvs-exclude-cidrs=10.0.0.0/8",
        "--iptables-masquerade-bit=15",
        "--iptables-sync-period=1m",
        "--kube-api-qps=50",
        "--vmodule=proxier=4,server*=2",
        "--profiling",
    )
    notes = dict(config(*arguments).without_effect)
    assert set(notes) == {argument.partition("=")[0] for argument in arguments}
    assert "always uses nftables" in notes["--proxy-mode"]
    assert given("--boot-id-file=x").without_effect == [("--boot-id-file", "no effect here: nothing here reads it")]


@pytest.mark.parametrize(
    "spelling",
    [
        ("--conntrack-min=7",),
        ("--conntrack-min", "7"),
        ("--conntrack_min=7",),
        ("--conntrack_min", "0x7"),
        ("--conntrack-min=1", "--conntrack-min=7"),
    ],
)
def test_spellings_of_a_number(spelling: Sequence[str]) -> None:
    assert config(*spelling).conntrack.min == 7


@pytest.mark.parametrize("spelling", [("-v", "4"), ("-v=4",), ("-v4",), ("--v=4",), ("--v", "4")])
def test_spellings_of_v(spelling: Sequence[str]) -> None:
    assert config(*spelling).logging.verbosity == 4


def test_a_negative_number_apart_from_its_flag() -> None:
    assert config("--oom-score-adj", "-5").oom_score_adj == -5


@pytest.mark.parametrize(
    ("spelling", "on"),
    [
        ("--masquerade-all", True),
        ("--masquerade_all", True),
        ("--masquerade-all=T", True),
        ("--masquerade-all=0", False),
    ],
)
def test_spellings_of_a_boolean(spelling: str, on: bool) -> None:
    assert config(spelling, "--oom-score-adj=1").nftables.masquerade_all is on


def test_a_boolean_takes_no_word_after_it() -> None:
    with pytest.raises((SystemExit, argparse.ArgumentError)):
        given("--masquerade-all", "false")


def test_a_value_keeps_its_underscores_and_dashes() -> None:
    assert config("--hostname-override=a_b--c=d").hostname_override == "a_b--c=d"


def test_lists_add_up() -> None:
    made = config("--nodeport-addresses=primary,10.0.0.0/8", "--nodeport-addresses", "fd00::/8")
    assert made.node_port_addresses.primary
    assert made.node_port_addresses.cidrs == (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
    gates = config("--feature-gates=A=true, B=true", "--feature-gates=B=false").feature_gates
    assert gates == {"A": True, "B": False}


@pytest.mark.parametrize(
    "name", ["cluster-cidr", "nodeport-addresses", "bind-address", "proxy-mode", "detect-local-mode", "feature-gates"]
)
def test_an_empty_value_means_the_default(name: str) -> None:
    assert config(f"--{name}=") == Config()


@pytest.mark.parametrize(
    ("arguments", "healthz", "metrics"),
    [
        ((), HostPort("0.0.0.0", 10256), HostPort("127.0.0.1", 10249)),
        (("--healthz-bind-address=", "--metrics-bind-address="), None, None),
        (("--healthz-port=0", "--metrics-port=0"), None, None),
        (("--healthz-port=1", "--metrics-port=2"), HostPort("0.0.0.0", 1), HostPort("127.0.0.1", 2)),
        (
            ("--healthz-bind-address=1.2.3.4", "--healthz-port=1", "--metrics-bind-address=::1", "--metrics-port=2"),
            HostPort("1.2.3.4", 1),
            HostPort("::1", 2),
        ),
        (
            ("--healthz-bind-address=1.2.3.4:5", "--healthz-port=1", "--metrics-bind-address=[::1]:6"),
            HostPort("1.2.3.4", 5),
            HostPort("::1", 6),
        ),
        (("--healthz-bind-address=1.2.3.4:5", "--healthz-port=0"), None, HostPort("127.0.0.1", 10249)),
        (("--healthz-bind-address=", "--healthz-port=1"), None, HostPort("127.0.0.1", 10249)),
        # Unlike in a file, an IPv6 address does not move the listeners: they have their defaults before.
        (("--bind-address=::",), HostPort("0.0.0.0", 10256), HostPort("127.0.0.1", 10249)),
    ],
)
def test_where_to_listen(arguments: Sequence[str], healthz: HostPort | None, metrics: HostPort | None) -> None:
    made = config(*arguments)
    assert (made.healthz_bind_address, made.metrics_bind_address) == (healthz, metrics)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--oom-score-adj=x"], ["--oom-score-adj is 'x': must be a whole number"]),
        (["--oom-score-adj=2000"], ["--oom-score-adj is '2000': must be a whole number from -1000 to 1000 ("]),
        (["--masquerade-all=maybe"], ["--masquerade-all is 'maybe': must be true or false"]),
        (["--config-sync-period=0"], ["--config-sync-period is '0': must be greater than 0"]),
        (["--conntrack-udp-timeout=-1s"], ["--conntrack-udp-timeout is '-1s': must not be negative"]),
        (["--kube-api-qps=many"], ["--kube-api-qps is 'many': must be a number"]),
        (["--feature-gates=A"], ["--feature-gates is 'A': must be pairs"]),
        (["--feature-gates=A=maybe"], ["must be true or false"]),
        (["--healthz-port=x"], ["--healthz-port is 'x': must be a whole number"]),
        (["--healthz-port=70000"], ["--healthz-port is '70000': must be an IP address and a port from 1 to 65535"]),
        (["--detect-local-mode=BridgeInterface"], ["--detect-local-mode is 'BridgeInterface' and needs"]),
        (["--cluster-cidr=x", "--proxy-mode=y"], ["--cluster-cidr is 'x'", "--proxy-mode is 'y'"]),
        (["--iptables-sync-period=1s", "--iptables-min-sync-period=2s"], ["--iptables-min-sync-period is 2 s"]),
    ],
)
def test_impossible_values(arguments: Sequence[str], says: Sequence[str]) -> None:
    message = fault(*arguments)
    assert message.startswith("command line: ")
    assert all(part in message for part in says)


def test_a_switch_that_is_none() -> None:
    with pytest.raises(UsageError, match="--cleanup: is 'maybe': must be true or false"):
        given("--cleanup=maybe").is_on("cleanup")


def test_beside_a_file_only_some_count(tmp_path: Path) -> None:
    path = tmp_path / "config"
    head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
    path.write_text(head + "hostnameOverride: file\nclusterCIDR: 10.0.0.0/8\nlogging: {verbosity: 5}\n")
    made = given(
        "--hostname-override=Flag",
        "-v=0",
        "--cluster-cidr=nonsense",
        "--healthz-port=nonsense",
        "--masquerade-all=nonsense",
        "--logging-format=json",
        beside_config=True,
    )
    assert made.ignored == ["--cluster-cidr", "--healthz-port", "--masquerade-all"]
    loaded = load_config(str(path), made.fields)
    assert loaded.cluster_cidr == ClusterCIDR(IPv4Network("10.0.0.0/8"))
    assert (loaded.hostname_override, loaded.logging.verbosity, loaded.logging.format) == ("Flag", 0, "json")
    assert not loaded.nftables.masquerade_all
    with pytest.raises(UsageError, match="--logging-format is 'xml'"):
        load_config(str(path), given("--logging-format=xml", beside_config=True).fields)


def test_what_counts_beside_a_file_is_what_kube_proxy_lets_count() -> None:
    settings = {flag.name for flag in FLAGS.values() if flag.beside_config and flag.field}
    logs = {name for name in recorded() if name.startswith(("log-", "logging-"))} | {"v", "vmodule"}
    assert settings == {"hostname-override", *logs}
