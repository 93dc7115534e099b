"""The fields of KubeProxyConfiguration (v1alpha1) in one table: how each is read, and what it does here or why nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from proxy import config_values as values

IPTABLES: Final = "iptables is not used"
IPVS: Final = "IPVS is not used"
WINDOWS: Final = "it is for Windows"
_JSON: Final = "the API server is asked for JSON"
_UNLIMITED: Final = "requests are few, and each failure makes the next wait longer"
_UNBUFFERED: Final = "each event is written to standard error at once"
_AT_ONCE: Final = "a change is programmed as soon as it is known"


class Field(NamedTuple):
    """about: what it does here; when it does nothing (`used` False), why."""

    parse: Callable[[object], Any]
    about: str
    used: bool = True
    stored: bool = True
    """It is a field of proxy.config.Config too."""
    zero_counts: bool = False
    """0 is a value, not "unset": the fields that are pointers in kube-proxy's Go types."""
    zero_counts_in_flag: bool = False
    """The same when it comes from the command line, where kube-proxy applies no defaults to it."""
    positive: bool = False
    """0 is a fault, where it counts."""
    silent: tuple[object, ...] = ()
    """Without effect: values that are not worth a word, besides zero; the first is the default."""
    local_mode: str = ""
    """Counts in this detectLocalMode only."""


def _idle(parse: Callable[[object], Any], why: str, *silent: object) -> Field:
    return Field(parse, why, used=False, stored=False, silent=silent)


def _kept(parse: Callable[[object], Any], why: str, *silent: object, **more: Any) -> Field:
    """Without effect, but checked, kept and shown with the others."""
    return Field(parse, why, used=False, silent=silent, **more)


def _instead(field: str) -> str:
    return f"the field that counts is nftables.{field}"


FIELDS: Final[dict[str, Field]] = {
    "featureGates": Field(values.feature_gates, "none of them changes anything here, and the log says why"),
    "clientConnection.kubeconfig": Field(
        values.text, "how to reach the API server; empty: the service account of the pod", zero_counts_in_flag=True
    ),
    "clientConnection.acceptContentTypes": _idle(values.text, _JSON),
    "clientConnection.contentType": _idle(values.text, _JSON, "application/vnd.kubernetes.protobuf"),
    "clientConnection.qps": _idle(values.number, _UNLIMITED, 5),
    "clientConnection.burst": _idle(values.integer(), _UNLIMITED, 10),
    "logging.format": Field(
        values.choice("text", "json"),
        "`json`: also on a terminal; `text` is the default there, and JSON elsewhere (`--logging-format=text`: text anyway)",
    ),
    "logging.verbosity": Field(values.integer(), "4 and above: `--log-level debug`", zero_counts_in_flag=True),
    "logging.flushFrequency": _idle(values.text_or_number, _UNBUFFERED, "5s", 5 * 10**9),
    "logging.vmodule": _idle(values.vmodule, "levels are the same for all of the program"),
    "logging.options.text.splitStream": _idle(values.boolean, _UNBUFFERED),
    "logging.options.text.infoBufferSize": _idle(values.text_or_number, _UNBUFFERED),
    "logging.options.json.splitStream": _idle(values.boolean, _UNBUFFERED),
    "logging.options.json.infoBufferSize": _idle(values.text_or_number, _UNBUFFERED),
    "hostnameOverride": Field(values.text, "this node's name; empty: the host's, in lower case"),
    "bindAddress": Field(
        values.addresses, "this node's first IP address; with `0.0.0.0` and `::` it is what the Node says"
    ),
    "bindAddressHardFail": Field(values.boolean, "end when healthz cannot be served, instead of trying again"),
    "healthzBindAddress": Field(
        values.host_port(10256), "where /healthz and /livez are served", zero_counts_in_flag=True
    ),
    "metricsBindAddress": Field(
        values.host_port(10249), "where /metrics and /proxyMode are served", zero_counts_in_flag=True
    ),
    "enableProfiling": _idle(values.boolean, "there is no profiler to serve"),
    "showHiddenMetricsForVersion": _idle(values.text, "no metric is hidden"),
    "mode": _idle(values.choice("nftables", "iptables", "ipvs"), "this proxy always uses nftables", "nftables"),
    "nftables.masqueradeBit": Field(
        values.integer(high=31),
        "the bit of the mark of packets that are to be masqueraded, and of connections that may be",
        zero_counts=True,
    ),
    "nftables.masqueradeAll": Field(values.boolean, "masquerade all that goes to clusterIPs"),
    "nftables.syncPeriod": Field(values.duration, "/livez fails when a change waits for twice this time"),
    "nftables.minSyncPeriod": _kept(values.duration, _AT_ONCE, 1.0),
    "iptables.masqueradeBit": _idle(values.integer(high=31), _instead("masqueradeBit"), 14),
    "iptables.masqueradeAll": _idle(values.boolean, _instead("masqueradeAll")),
    "iptables.localhostNodePorts": _idle(values.boolean, "list localhost in nodePortAddresses", True),
    "iptables.syncPeriod": _idle(values.any_duration, IPTABLES, 30.0),
    "iptables.minSyncPeriod": _idle(values.any_duration, IPTABLES, 1.0),
    "ipvs.syncPeriod": _idle(values.any_duration, IPVS, 30.0),
    "ipvs.minSyncPeriod": _idle(values.any_duration, IPVS, 0.0, 1.0),
    "ipvs.scheduler": _idle(values.text, "each Service has its own: its annotation kube-proxy-nft/scheduler"),
    "ipvs.excludeCIDRs": _idle(values.list_, IPVS),
    "ipvs.strictARP": _idle(values.boolean, "no interface gets a Service's address, so none answers ARP for it"),
    "ipvs.tcpTimeout": _idle(values.any_duration, IPVS),
    "ipvs.tcpFinTimeout": _idle(values.any_duration, IPVS),
    "ipvs.udpTimeout": _idle(values.any_duration, IPVS),
    "winkernel.networkName": _idle(values.text, WINDOWS),
    "winkernel.sourceVip": _idle(values.text, WINDOWS),
    "winkernel.enableDSR": _idle(values.boolean, WINDOWS),
    "winkernel.rootHnsEndpointName": _idle(values.text, WINDOWS),
    "winkernel.forwardHealthCheckVip": _idle(values.boolean, WINDOWS),
    "detectLocalMode": Field(
        values.choice("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"),
        "how local pods are known: `ClusterCIDR`, `NodeCIDR`, `BridgeInterface`, `InterfaceNamePrefix`",
    ),
    "detectLocal.bridgeInterface": Field(
        values.text, "the bridge that local pods' packets come from", local_mode="BridgeInterface"
    ),
    "detectLocal.interfaceNamePrefix": Field(
        values.text,
        "how the interfaces' names begin that local pods' packets come from",
        local_mode="InterfaceNamePrefix",
    ),
    "clusterCIDR": Field(
        values.cluster_cidr, "the pods' addresses, one range for each IP family at most", local_mode="ClusterCIDR"
    ),
    "nodePortAddresses": Field(
        values.node_port_addresses,
        "where NodePorts answer: `primary` (the Node's InternalIPs), CIDRs, `localhost`, `all`; also several of them",
    ),
    "oomScoreAdj": Field(
        values.integer(-1000, 1000), "the kernel's /proc/self/oom_score_adj of this process", zero_counts=True
    ),
    "conntrack.maxPerCore": Field(
        values.integer(),
        "how many connections are tracked for each core; 0: the kernel's limit stays",
        zero_counts=True,
    ),
    "conntrack.min": Field(
        values.integer(), "how many connections are tracked at least, if maxPerCore is not 0", zero_counts=True
    ),
    "conntrack.tcpEstablishedTimeout": Field(
        values.duration, "how long idle TCP connections are tracked; 0: the kernel's time stays", zero_counts=True
    ),
    "conntrack.tcpCloseWaitTimeout": Field(
        values.duration,
        "how long half-closed TCP connections are tracked; 0: the kernel's time stays",
        zero_counts=True,
    ),
    "conntrack.tcpBeLiberal": Field(values.boolean, "TCP packets out of window are not taken for invalid"),
    "conntrack.udpTimeout": Field(values.duration, "how long unanswered UDP is tracked; 0: the kernel's time stays"),
    "conntrack.udpStreamTimeout": Field(
        values.duration, "how long answered UDP is tracked; 0: the kernel's time stays"
    ),
    "configSyncPeriod": _kept(
        values.duration,
        "watches stay open, and what was missed is listed anew",
        900.0,
        positive=True,
        zero_counts_in_flag=True,
    ),
    "portRange": _idle(values.port_range, "kube-proxy itself does not use it"),
    "windowsRunAsService": _idle(values.boolean, WINDOWS),
}
SECTIONS: Final = {
    ".".join(parts[:depth]) for parts in (name.split(".") for name in FIELDS) for depth in range(1, len(parts))
}


def attribute(name: str) -> str:
    """The name of a field in proxy.config.Config, or of one of its sections, from the API's: clusterCIDR, cluster_cidr."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
