"""What is put on the node to be measured: our table, those of others, and what shows how much of it is the kernel's own.

Each is loaded into the namespace of a World's node.
"""

from __future__ import annotations

import ipaddress
import shutil
from collections.abc import Callable, Iterable
from functools import partial

from bench.dataplane_peers import iptables, nftables
from bench.dataplane_services import CLUSTER_PORT, Port
from bench.dataplane_world import NODE, POD_NETWORK, POD_PORT, Trouble
from rules.diff import scratch
from rules.elements import ServicePort, endpoint, node_port_key, service_key
from rules.layout import LAYOUTS, Options
from rules.objects import PROTOCOLS, Family
from rules.tables import create
from tests.netns import Namespace

OURS, HERE, CONNTRACK, HOOKS, ONE_RULE = "ours", "ours, here", "conntrack", "hooks", "one rule"
NFTABLES, IPTABLES_NFT, IPTABLES_LEGACY = "kube-proxy nftables", "iptables-nft", "iptables-legacy"
DESCRIPTIONS = {
    OURS: "our table; the endpoints are on other nodes",
    HERE: "our table; the endpoints are on this node, so that each may be its own client",
    CONNTRACK: "no nat: connections are tracked, nothing else",
    HOOKS: "the same, and nat chains without a rule",
    ONE_RULE: "the least that nftables can do it with: one rule, one map, one endpoint for a Service",
    NFTABLES: "kube-proxy's nftables mode: its layout",
    IPTABLES_NFT: "kube-proxy's iptables mode: its layout, by iptables-nft",
    IPTABLES_LEGACY: "kube-proxy's iptables mode: its layout, by iptables-legacy",
}
_TRACKED = "chain unused { ct state new; }\n"
OPTIONS = Options(local_networks=(ipaddress.ip_network(POD_NETWORK),))
SERVICE_CIDR = ipaddress.ip_network("10.96.0.0/12")

Loader = Callable[[Namespace, Iterable[Port]], None]


def service_ports(ports: Iterable[Port], *, here: bool = False) -> Iterable[ServicePort]:
    """As `rules` wants them. here: the endpoints are on this node."""
    for identity, port in enumerate(ports, 1):
        protocol = PROTOCOLS[port.protocol.upper()]
        ends = tuple(endpoint(_packed(pod), POD_PORT) for pod in port.pods)
        hairpins = tuple(_packed(pod) for pod in port.pods) if here else ()
        keys = [(service_key(_packed(port.address), protocol, CLUSTER_PORT), False)]
        if port.external_ip:
            keys.append((service_key(_packed(port.external_ip), protocol, CLUSTER_PORT), True))
            keys.append((node_port_key(Family.IPV4, protocol, port.node_port), True))
        for key, external in keys:
            yield ServicePort(
                key, port.name, ends, hairpins, external=external, timeout=port.affinity, identity=identity
            )


def _packed(address: str) -> bytes:
    return ipaddress.IPv4Address(address).packed


def ours(node: Namespace, ports: Iterable[Port], *, here: bool = False) -> None:
    plan = scratch(Family.IPV4, service_ports(ports, here=here), frozenset({_packed(NODE)}))
    node.kernel.commit([*create(LAYOUTS[Family.IPV4], OPTIONS, [SERVICE_CIDR]), *plan.operations])


def conntrack(node: Namespace, ports: Iterable[Port]) -> None:
    # The chain has no hook: that a rule asks for a connection's state is enough to have connections tracked.
    node.nft("-f", "-", stdin=f"table ip tracked {{\n{_TRACKED}}}\n")


def hooks(node: Namespace, ports: Iterable[Port]) -> None:
    node.nft("-f", "-", stdin=f"table ip empty {{\n{_TRACKED}{_hooks('', '', '')}}}\n")


def one_rule(node: Namespace, ports: Iterable[Port]) -> None:
    # Only those that are connected to: it is not meant to be a proxy.
    services, node_ports = [], []
    for port in ports:
        to = f"{port.pods[0]} . {POD_PORT}"
        if port.external_ip or port.protocol == "udp":
            services.append(f"{port.address} . {port.protocol} . {CLUSTER_PORT} : {to}")
        if port.external_ip:
            services.append(f"{port.external_ip} . {port.protocol} . {CLUSTER_PORT} : {to}")
            node_ports.append(f"{port.protocol} . {port.node_port} : {to}")
    data = "ip daddr . th dport"
    maps = (
        f"map services {{ typeof ip daddr . meta l4proto . th dport : {data}; elements = {{ {', '.join(services)} }} }}\n"
        f"map node-ports {{ typeof meta l4proto . th dport : {data}; elements = {{ {', '.join(node_ports)} }} }}\n"
    )
    lead = (
        "dnat ip to ip daddr . ip protocol . th dport map @services\n"
        f"ip daddr {NODE} dnat ip to meta l4proto . th dport map @node-ports"
    )
    # As much masquerading as kube-proxy does.
    masquerade = f"ct status dnat ip saddr != {POD_NETWORK} masquerade fully-random"
    node.nft("-f", "-", stdin=f"table ip one {{\n{maps}{_hooks(lead, lead, masquerade)}}}\n")


def _hooks(prerouting: str, output: str, postrouting: str) -> str:
    return (
        f"chain prerouting {{ type nat hook prerouting priority -100;\n{prerouting}\n}}\n"
        f"chain output {{ type nat hook output priority -100;\n{output}\n}}\n"
        f"chain postrouting {{ type nat hook postrouting priority 100;\n{postrouting}\n}}\n"
    )


def kube_proxy_nftables(node: Namespace, ports: Iterable[Port]) -> None:
    node.nft("-f", "-", stdin=nftables(ports))


def kube_proxy_iptables(program: str) -> Loader:
    def load(node: Namespace, ports: Iterable[Port]) -> None:
        done = node.run(f"{program}-restore", stdin=iptables(ports))
        if done.returncode:
            raise Trouble(f"{program}-restore: {done.stderr.strip()[:500]}")

    return load


LOADERS: dict[str, Loader] = {
    OURS: ours,
    HERE: partial(ours, here=True),
    CONNTRACK: conntrack,
    HOOKS: hooks,
    ONE_RULE: one_rule,
    NFTABLES: kube_proxy_nftables,
    IPTABLES_NFT: kube_proxy_iptables("iptables-nft"),
    IPTABLES_LEGACY: kube_proxy_iptables("iptables-legacy"),
}


def available(name: str) -> bool:
    """Whether this machine has the program that loads it."""
    program = {
        OURS: "",
        HERE: "",
        IPTABLES_NFT: "iptables-nft-restore",
        IPTABLES_LEGACY: "iptables-legacy-restore",
    }.get(name, "nft")
    return not program or shutil.which(program) is not None
