"""kube-proxy's configuration file: KubeProxyConfiguration, kubeproxy.config.k8s.io/v1alpha1, YAML or JSON.

The fields that mean something to an nftables proxy, under the API's names in snake case and with kube-proxy's defaults.
Durations are seconds. What is absent, null or empty has its default, as in kube-proxy: a file that kubeadm writes, with
every field present and most of them empty, means the defaults.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import yaml
from msgspec import Struct

from proxy import config_values as values
from proxy.config_values import Address, ClusterCIDR, HostPort, Network, NodePortAddresses
from proxy.errors import ConfigError

__all__ = [
    "API_VERSION",
    "FEATURES",
    "KIND",
    "Address",
    "ClientConnection",
    "ClusterCIDR",
    "Config",
    "Conntrack",
    "DetectLocal",
    "DetectLocalMode",
    "HostPort",
    "Logging",
    "NFTables",
    "Network",
    "NodePortAddresses",
    "Note",
    "load_config",
    "node_name",
]

API_VERSION: Final = "kubeproxy.config.k8s.io/v1alpha1"
KIND: Final = "KubeProxyConfiguration"
FEATURES: Final = ("KubeProxyNFTablesLocalhostNodePorts",)
"""The feature gates that change something here."""

DetectLocalMode = Literal["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"]
Note = tuple[str, str]
"""A field's full dotted path, and what is to be said about it."""


class ClientConnection(Struct, frozen=True):
    kubeconfig: str = ""


class DetectLocal(Struct, frozen=True):
    bridge_interface: str = ""
    interface_name_prefix: str = ""


class NFTables(Struct, frozen=True):
    masquerade_all: bool = False
    masquerade_bit: int = 14
    sync_period: float = 30.0
    min_sync_period: float = 1.0


class Conntrack(Struct, frozen=True):
    """Kernel settings; 0 (False) leaves the kernel's value as it is."""

    max_per_core: int = 32 * 1024
    min: int = 128 * 1024
    tcp_established_timeout: float = 24 * 3600.0
    tcp_close_wait_timeout: float = 3600.0
    tcp_be_liberal: bool = False
    udp_timeout: float = 0.0
    udp_stream_timeout: float = 0.0


class Logging(Struct, frozen=True):
    format: Literal["text", "json"] = "text"
    verbosity: int = 0


class Config(Struct, frozen=True, kw_only=True):
    """The effective configuration. `bind_address` has one or two addresses; an unspecified one overrides nothing."""

    client_connection: ClientConnection = ClientConnection()
    hostname_override: str = ""
    bind_address: tuple[Address, ...] = (IPv4Address("0.0.0.0"),)
    bind_address_hard_fail: bool = False
    healthz_bind_address: HostPort = HostPort("0.0.0.0", 10256)
    metrics_bind_address: HostPort = HostPort("127.0.0.1", 10249)
    mode: Literal["", "nftables", "iptables", "ipvs"] = ""
    detect_local_mode: DetectLocalMode = "ClusterCIDR"
    detect_local: DetectLocal = DetectLocal()
    cluster_cidr: ClusterCIDR = ClusterCIDR()
    node_port_addresses: NodePortAddresses = NodePortAddresses(primary=True)
    nftables: NFTables = NFTables()
    conntrack: Conntrack = Conntrack()
    logging: Logging = Logging()
    oom_score_adj: int = -999
    config_sync_period: float = 900.0
    feature_gates: dict[str, bool] = {}

    warnings: tuple[Note, ...] = ()
    """Fields that KubeProxyConfiguration does not have, and keys given twice."""
    without_effect: tuple[Note, ...] = ()
    """Known fields that are set to something and change nothing in this proxy."""


def load_config(path: str | None) -> Config:
    """Read the file; None gives the defaults. Raises ConfigError, which names every fault of the file."""
    if path is None:
        return Config()
    data, warnings = _parse(path, _read(path))
    _check_kind(path, data)
    faults: list[str] = []
    given: dict[str, Any] = {}
    idle: list[Note] = []
    for name, raw in _leaves(data, "", warnings, faults):
        field = _FIELDS[name]
        try:
            value = field.parse(raw)
        except values.BadValue as e:
            faults.append(f"{name} is {values.show(raw)}: {e}")
            continue
        if not field.used:
            if value and value != field.default:
                idle.append((name, _why_idle(name)))
        elif value or field.zero_counts:
            given[name] = value
    config = _build(given, warnings, idle)
    if faults := faults or _contradictions(config):
        raise ConfigError(path, "; ".join(faults), "correct the file; a field that is left out gets its default")
    return config


def node_name(config: Config, override: str | None = None) -> str:
    """This node's name, lower case: `override` (the command line's), else hostnameOverride, else the host's name.

    Raises ConfigError when nothing is left of it.
    """
    sources = (
        ("--node", override or ""),
        ("hostnameOverride", config.hostname_override),
        ("the host's name", os.uname().nodename),
    )
    source, name = next((pair for pair in sources if pair[1]), sources[-1])
    if not name.strip():
        raise ConfigError("node name", f"{source} is {name!r}: empty", "give the Node's name with --node")
    return name.strip().lower()


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except OSError as e:
        raise ConfigError(path, f"cannot be read: {e.strerror}", "check the path and its permissions") from None
    except UnicodeDecodeError as e:
        raise ConfigError(path, f"is not UTF-8 text (byte {e.start})", "save it as UTF-8") from None


class _Loader(yaml.SafeLoader):
    """SafeLoader that remembers keys which a mapping has twice: YAML forbids them, PyYAML silently takes the last."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.repeated: list[Note] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                line = key.start_mark.line + 1
                self.repeated.append((str(key.value), f"given twice (line {line}); the last one counts"))
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _parse(path: str, text: str) -> tuple[dict[Any, Any], list[Note]]:
    documents, repeated = _documents(path, text)
    documents = [document for document in documents if document is not None]
    if not documents:
        raise ConfigError(path, "is empty", f"it must hold a {KIND} ({API_VERSION})")
    if len(documents) > 1:
        raise ConfigError(
            path, f"holds {len(documents)} YAML documents", f"keep only the {KIND}, without '---' between documents"
        )
    if not isinstance(documents[0], dict):
        raise ConfigError(path, f"holds {values.kind_of(documents[0])}, not a mapping", f"it must hold a {KIND}")
    return documents[0], repeated


def _documents(path: str, text: str) -> tuple[list[Any], list[Note]]:
    repeated: list[Note] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        repeated.extend((n, "given twice; the last one counts") for n in dict.fromkeys(names) if names.count(n) > 1)
        return dict(items)

    try:
        if text.lstrip().startswith("{"):
            try:
                return [json.loads(text, object_pairs_hook=pairs)], repeated
            except ValueError:
                repeated.clear()  # YAML's own {braces}, then
        loader = _Loader(text)
        documents = []
        while loader.check_data():  # type: ignore[no-untyped-call]  # types-PyYAML leaves it out
            documents.append(loader.get_data())
        return documents, loader.repeated
    except yaml.YAMLError as e:
        raise ConfigError(path, f"is not YAML: {' '.join(str(e).split())}", "correct the syntax") from None
    except ValueError as e:  # a number or a date that looks right and is not, such as 2026-13-45
        raise ConfigError(path, f"is not YAML: {e}", "put text into quotes") from None
    except RecursionError:
        raise ConfigError(path, "is not a configuration: nested too deeply", "correct the file") from None


def _check_kind(path: str, data: dict[Any, Any]) -> None:
    kind, version = data.get("kind"), data.get("apiVersion")
    if kind == KIND and version == API_VERSION:
        return
    found = f"kind is {values.show(kind)} and apiVersion is {values.show(version)}"
    remedy = f"expected: kind {KIND}, apiVersion {API_VERSION}"
    if kind == "ConfigMap":
        remedy += "; for kubeadm's ConfigMap, give the text under its key config.conf"
    raise ConfigError(path, found, remedy)


def _leaves(data: dict[Any, Any], prefix: str, warnings: list[Note], faults: list[str]) -> Iterator[tuple[str, Any]]:
    """Every known field that has a value, by its dotted path."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if name in ("apiVersion", "kind"):
            continue
        if name not in _FIELDS and name not in _SECTIONS:
            close = difflib.get_close_matches(name, [*_FIELDS, *_SECTIONS], n=1, cutoff=0.8)
            warnings.append((name, "unknown field" + (f"; did you mean {close[0]}?" if close else "")))
        elif value is None:
            continue
        elif name in _FIELDS:
            yield name, value
        elif isinstance(value, dict):
            yield from _leaves(value, f"{name}.", warnings, faults)
        else:
            faults.append(f"{name} is {values.show(value)}: must be a mapping of fields")


class _Field(NamedTuple):
    parse: Callable[[object], Any]
    zero_counts: bool = False
    """0 is a value, not "unset": the fields that are pointers in kube-proxy's Go types."""
    used: bool = True
    default: object = None
    """Of a field without effect: what is not worth a word, besides zero."""


def _idle(parse: Callable[[object], Any], default: object = None) -> _Field:
    return _Field(parse, used=False, default=default)


_FIELDS: Final[dict[str, _Field]] = {
    "featureGates": _Field(values.feature_gates),
    "clientConnection.kubeconfig": _Field(values.text),
    "clientConnection.acceptContentTypes": _idle(values.text),
    "clientConnection.contentType": _idle(values.text, "application/vnd.kubernetes.protobuf"),
    "clientConnection.qps": _idle(values.number, 5),
    "clientConnection.burst": _idle(values.integer(), 10),
    "logging.format": _Field(values.choice("text", "json")),
    "logging.verbosity": _Field(values.integer(high=2**32 - 1)),
    "logging.flushFrequency": _idle(values.text_or_number, "5s"),
    "logging.vmodule": _idle(values.list_),
    "logging.options.text.splitStream": _idle(values.boolean),
    "logging.options.text.infoBufferSize": _idle(values.text_or_number),
    "logging.options.json.splitStream": _idle(values.boolean),
    "logging.options.json.infoBufferSize": _idle(values.text_or_number),
    "hostnameOverride": _Field(values.text),
    "bindAddress": _Field(values.addresses),
    "bindAddressHardFail": _Field(values.boolean),
    "healthzBindAddress": _Field(values.host_port(10256)),
    "metricsBindAddress": _Field(values.host_port(10249)),
    "enableProfiling": _idle(values.boolean),
    "showHiddenMetricsForVersion": _idle(values.text),
    "mode": _Field(values.choice("nftables", "iptables", "ipvs")),
    "nftables.masqueradeBit": _Field(values.integer(high=31), zero_counts=True),
    "nftables.masqueradeAll": _Field(values.boolean),
    "nftables.syncPeriod": _Field(values.duration),
    "nftables.minSyncPeriod": _Field(values.duration),
    "iptables.masqueradeBit": _idle(values.integer(high=31), 14),
    "iptables.masqueradeAll": _idle(values.boolean),
    "iptables.localhostNodePorts": _idle(values.boolean, True),
    "iptables.snatNodeInternalIP": _idle(values.boolean),
    "iptables.syncPeriod": _idle(values.duration, 30.0),
    "iptables.minSyncPeriod": _idle(values.duration, 1.0),
    "ipvs.syncPeriod": _idle(values.duration, 30.0),
    "ipvs.minSyncPeriod": _idle(values.duration),
    "ipvs.scheduler": _idle(values.text),
    "ipvs.excludeCIDRs": _idle(values.list_),
    "ipvs.strictARP": _idle(values.boolean),
    "ipvs.tcpTimeout": _idle(values.duration),
    "ipvs.tcpFinTimeout": _idle(values.duration),
    "ipvs.udpTimeout": _idle(values.duration),
    "winkernel.networkName": _idle(values.text),
    "winkernel.sourceVip": _idle(values.text),
    "winkernel.enableDSR": _idle(values.boolean),
    "winkernel.rootHnsEndpointName": _idle(values.text),
    "winkernel.forwardHealthCheckVip": _idle(values.boolean),
    "detectLocalMode": _Field(values.choice("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix")),
    "detectLocal.bridgeInterface": _Field(values.interface),
    "detectLocal.interfaceNamePrefix": _Field(values.interface),
    "clusterCIDR": _Field(values.cluster_cidr),
    "nodePortAddresses": _Field(values.node_port_addresses),
    "oomScoreAdj": _Field(values.integer(-1000, 1000), zero_counts=True),
    "conntrack.maxPerCore": _Field(values.integer(), zero_counts=True),
    "conntrack.min": _Field(values.integer(), zero_counts=True),
    "conntrack.tcpEstablishedTimeout": _Field(values.duration, zero_counts=True),
    "conntrack.tcpCloseWaitTimeout": _Field(values.duration, zero_counts=True),
    "conntrack.tcpBeLiberal": _Field(values.boolean),
    "conntrack.udpTimeout": _Field(values.duration),
    "conntrack.udpStreamTimeout": _Field(values.duration),
    "configSyncPeriod": _Field(values.duration),
    "portRange": _idle(values.text),
    "windowsRunAsService": _idle(values.boolean),
}
_SECTIONS: Final = {
    ".".join(parts[:depth]) for parts in (name.split(".") for name in _FIELDS) for depth in range(1, len(parts))
}
_STRUCTS: Final[dict[str, Callable[..., Any]]] = {
    "clientConnection": ClientConnection,
    "logging": Logging,
    "nftables": NFTables,
    "detectLocal": DetectLocal,
    "conntrack": Conntrack,
}


def _why_idle(name: str) -> str:
    section, _, field = name.partition(".")
    if section in ("iptables", "ipvs") and f"nftables.{field}" in _FIELDS:
        return f"no effect here; the field that counts is nftables.{field}"
    return "no effect here"


def _attribute(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _build(given: dict[str, Any], warnings: list[Note], idle: list[Note]) -> Config:
    arguments: dict[str, Any] = {_attribute(name): value for name, value in given.items() if "." not in name}
    for section, struct in _STRUCTS.items():
        inside = {_attribute(n.partition(".")[2]): v for n, v in given.items() if n.startswith(f"{section}.")}
        arguments[_attribute(section)] = struct(**inside)
    if arguments.get("bind_address", Config().bind_address)[0].version == 6:
        arguments.setdefault("healthz_bind_address", HostPort("::", 10256))
        arguments.setdefault("metrics_bind_address", HostPort("::1", 10249))
    if (mode := arguments.get("mode", "nftables")) != "nftables":
        idle.append(("mode", f"{mode!r} has no effect here: this proxy always uses nftables"))
    unknown_gates = [gate for gate in arguments.get("feature_gates", {}) if gate not in FEATURES]
    idle += [(f"featureGates.{gate}", "no effect here: no such feature") for gate in unknown_gates]
    return Config(**arguments, warnings=tuple(warnings), without_effect=tuple(idle))


def _contradictions(config: Config) -> list[str]:
    """Faults that only show when fields are seen together."""
    faults = []
    period, least = config.nftables.sync_period, config.nftables.min_sync_period
    if least > period:
        faults.append(
            f"nftables.minSyncPeriod is {least:g} s: must not be longer than syncPeriod, which is {period:g} s"
        )
    for mode, field, value in (
        ("BridgeInterface", "bridgeInterface", config.detect_local.bridge_interface),
        ("InterfaceNamePrefix", "interfaceNamePrefix", config.detect_local.interface_name_prefix),
    ):
        if config.detect_local_mode == mode and not value:
            faults.append(f"detectLocalMode is {mode!r} and needs detectLocal.{field}, which is empty")
    return faults
