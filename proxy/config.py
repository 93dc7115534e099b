"""kube-proxy's configuration: KubeProxyConfiguration, kubeproxy.config.k8s.io/v1alpha1, from a file, from flags, or both.

The fields that mean something to an nftables proxy, under the API's names in snake case and with kube-proxy's defaults.
Durations are seconds. In a file, what is absent, null or empty has its default, as in kube-proxy: a file that kubeadm
writes, with every field present and most of them empty, means the defaults.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address
from typing import Any, Final, Literal

from msgspec import Struct

from proxy import config_file
from proxy import config_values as values
from proxy.config_fields import FIELDS, SECTIONS, attribute
from proxy.config_file import API_VERSION, KIND, Note
from proxy.config_reader import Given, Reading
from proxy.config_values import Address, ClusterCIDR, HostPort, Network, NodePortAddresses
from proxy.errors import ConfigError, UsageError

__all__ = [
    "API_VERSION",
    "KIND",
    "Address",
    "ClientConnection",
    "ClusterCIDR",
    "Config",
    "Conntrack",
    "DetectLocal",
    "DetectLocalMode",
    "Given",
    "HostPort",
    "Logging",
    "NFTables",
    "Network",
    "NodePortAddresses",
    "Note",
    "load_config",
    "node_name",
    "parse_config",
]

DetectLocalMode = Literal["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"]


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
    """The effective configuration. `bind_address` has one address; an unspecified one overrides nothing. Healthz or
    metrics None: not to be served, which only a flag can ask for."""

    client_connection: ClientConnection = ClientConnection()
    hostname_override: str = ""
    bind_address: tuple[Address, ...] = (IPv4Address("0.0.0.0"),)
    bind_address_hard_fail: bool = False
    healthz_bind_address: HostPort | None = HostPort("0.0.0.0", 10256)
    metrics_bind_address: HostPort | None = HostPort("127.0.0.1", 10249)
    mode: Literal["nftables"] = "nftables"
    """What this proxy does, whatever was asked for."""
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
    """Known fields and flags that are set to something and change nothing in this proxy."""


def load_config(path: str | None, flags: Sequence[Given] = ()) -> Config:
    """Read the file, and what flags say besides; None: flags only. Raises ConfigError or UsageError, which name every
    fault of the file or of the flags."""
    if path is None:
        return _config(Reading(flags), [], [], "")
    return parse_config(config_file.read(path), path, flags)


def parse_config(data: bytes, source: str, flags: Sequence[Given] = ()) -> Config:
    """The same from the file's content; `source` is what errors call the file."""
    document, repeated = config_file.parse(data, source)
    leaves = config_file.Leaves(document, FIELDS, SECTIONS)
    given = [Given(name, raw, name, values.show(raw)) for name, raw in leaves.found]
    return _config(Reading([*given, *flags]), [*repeated, *leaves.unknown], leaves.faults, source)


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
    remedy = "give the Node's name with --node"
    if not name.strip():
        raise ConfigError("node name", f"{source} is {name!r}: empty", remedy)
    if "$(" in name:
        raise ConfigError("node name", f"{source} is {name!r}: the pod has no such environment variable", remedy)
    return name.strip().lower()


def _config(reading: Reading, warnings: Sequence[Note], faults: Sequence[str], source: str) -> Config:
    if faults := [*faults, *reading.faults]:
        remedy = "correct the file; a field that is left out gets its default"
        raise ConfigError(source, "; ".join(faults), remedy)
    if reading.flag_faults:
        raise UsageError("command line", "; ".join(reading.flag_faults), "correct the flags")
    arguments: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {section: {} for section in _STRUCTS}
    for name, value in reading.values.items():
        if FIELDS[name].stored:
            section, dot, field = attribute(name).rpartition(".")
            (inside[section] if dot else arguments)[field] = value
    for section, struct in _STRUCTS.items():
        arguments[section] = struct(**inside[section])
    # A flag does not move them: kube-proxy has their defaults before it looks at its flags.
    if not reading.is_flag("bindAddress") and arguments.get("bind_address", Config().bind_address)[0].version == 6:
        arguments.setdefault("healthz_bind_address", HostPort("::", 10256))
        arguments.setdefault("metrics_bind_address", HostPort("::1", 10249))
    return Config(**arguments, warnings=tuple(warnings), without_effect=tuple(reading.notes))


_STRUCTS: Final[dict[str, Callable[..., Any]]] = {
    "client_connection": ClientConnection,
    "logging": Logging,
    "nftables": NFTables,
    "detect_local": DetectLocal,
    "conntrack": Conntrack,
}
