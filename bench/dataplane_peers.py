"""The rules of kube-proxy's nftables and iptables modes (1.36) for `dataplane_services`, as text for nft and iptables-restore."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bench.dataplane_services import CLUSTER_PORT, Port
from bench.dataplane_world import NODE, POD_NETWORK, POD_PORT
from bench.iptables import NAT_CHAINS, NAT_RULES, chain_hash

_NFT = f"""table ip kube-proxy {{
set hairpin-connections {{ type ipv4_addr . ipv4_addr . inet_proto . inet_service; }}
set cluster-ips {{ type ipv4_addr; }}
set nodeport-ips {{ type ipv4_addr; elements = {{ {NODE} }}; }}
map no-endpoint-services {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
map no-endpoint-nodeports {{ type inet_proto . inet_service : verdict; }}
map firewall-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
map service-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
map service-nodeports {{ type inet_proto . inet_service : verdict; }}
chain nodeport-endpoints-check {{ ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }}
chain service-endpoints-check {{ ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }}
chain firewall-check {{ ip daddr . meta l4proto . th dport vmap @firewall-ips; }}
chain services {{
ip daddr @cluster-ips ip saddr != {POD_NETWORK} meta mark set meta mark | 0x00004000
ip daddr . meta l4proto . th dport vmap @service-ips
ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
}}
chain masquerading {{
meta mark & 0x00004000 != 0x00000000 meta mark set meta mark ^ 0x00004000 masquerade fully-random
ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random
}}
chain cluster-ips-check {{
ip daddr @cluster-ips reject
ip daddr 10.96.0.0/12 drop
}}
chain filter-prerouting-pre-dnat {{ type filter hook prerouting priority -110; ct state new jump firewall-check; }}
chain filter-output-pre-dnat {{ type filter hook output priority -110; ct state new jump firewall-check; }}
chain filter-input {{
type filter hook input priority 0; ct state new jump nodeport-endpoints-check; ct state new jump service-endpoints-check;
}}
chain filter-forward {{
type filter hook forward priority 0; ct state new jump service-endpoints-check; ct state new jump cluster-ips-check;
}}
chain filter-output {{
type filter hook output priority 0; ct state new jump service-endpoints-check; ct state new jump cluster-ips-check;
}}
chain nat-prerouting {{ type nat hook prerouting priority -100; jump services; }}
chain nat-output {{ type nat hook output priority -100; jump services; }}
chain nat-postrouting {{ type nat hook postrouting priority 100; jump masquerading; }}
"""


def nftables(ports: Iterable[Port]) -> str:
    """As a file for nft -f."""
    parts, cluster_ips, services, node_ports = [_NFT], set(), [], []
    for port in ports:
        base = f"{port.name.partition(':')[0]}/{port.protocol}/{port.name.partition(':')[2]}"
        name = f"{chain_hash(base)[:8]}-{base}"
        cluster_ips.add(port.address)
        services.append(f"{port.address} . {port.protocol} . {CLUSTER_PORT} : goto service-{name}")
        parts += _sticky(port, base, name) if port.affinity else [_balanced(port, name)]
        if port.external_ip:
            parts.append(f"chain external-{name} {{\nmeta mark set meta mark | 0x00004000\ngoto service-{name}\n}}\n")
            services.append(f"{port.external_ip} . {port.protocol} . {CLUSTER_PORT} : goto external-{name}")
            node_ports.append(f"{port.protocol} . {port.node_port} : goto external-{name}")
    parts.append("}\n")
    for name, elements in (
        ("cluster-ips", sorted(cluster_ips)),
        ("service-ips", services),
        ("service-nodeports", node_ports),
    ):
        if elements:
            parts.append(f"add element ip kube-proxy {name} {{ {', '.join(elements)} }}\n")
    return "".join(parts)


def _balanced(port: Port, name: str) -> str:
    ends = ", ".join(f"{i} : {pod} . {POD_PORT}" for i, pod in enumerate(port.pods))
    number = f"numgen random mod {len(port.pods)}"
    return f"chain service-{name} {{ meta l4proto {port.protocol} dnat ip to {number} map {{ {ends} }}; }}\n"


def _sticky(port: Port, base: str, name: str) -> Iterator[str]:
    chains = [f"{chain_hash(base + pod)[:8]}-{base}__{pod}/{POD_PORT}" for pod in port.pods]
    for chain, pod in zip(chains, port.pods, strict=True):
        yield (
            f"set affinity-{chain} {{ type ipv4_addr; size 65535; flags dynamic,timeout; timeout {port.affinity}s; }}\n"
            f"chain endpoint-{chain} {{\nupdate @affinity-{chain} {{ ip saddr }}\n"
            f"meta l4proto {port.protocol} dnat to {pod}:{POD_PORT}\n}}\n"
        )
    known = "".join(f"ip saddr @affinity-{chain} goto endpoint-{chain}\n" for chain in chains)
    verdicts = ", ".join(f"{i} : goto endpoint-{chain}" for i, chain in enumerate(chains))
    yield f"chain service-{name} {{\n{known}numgen random mod {len(chains)} vmap {{ {verdicts} }}\n}}\n"


_FILTER = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A INPUT -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A FORWARD -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A OUTPUT -j KUBE-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
"""


def iptables(ports: Iterable[Port]) -> str:
    """As iptables-restore reads it. Affinity is left out; and comments on endpoints, as kube-proxy does from 1,000 of
    them on."""
    chains, rules, portals = [_FILTER, NAT_CHAINS], [NAT_RULES], []
    for port in ports:
        chain = f"KUBE-SVC-{chain_hash(port.name + port.protocol)}"
        chains.append(f":{chain} - [0:0]\n")
        to = f'-p {port.protocol} -m comment --comment "{port.name}" -m {port.protocol} --dport'
        cluster_ip = f"-d {port.address}/32 {to} {CLUSTER_PORT}"
        rules.append(f"-A {chain} ! -s {POD_NETWORK} {cluster_ip} -j KUBE-MARK-MASQ\n")
        portals.append(f"-A KUBE-SERVICES {cluster_ip} -j {chain}\n")
        if port.external_ip:
            outside = f"KUBE-EXT-{chain_hash(port.name + port.protocol)}"
            chains.append(f":{outside} - [0:0]\n")
            rules.append(f"-A {outside} -j KUBE-MARK-MASQ\n-A {outside} -j {chain}\n")
            portals.append(f"-A KUBE-SERVICES -d {port.external_ip}/32 {to} {CLUSTER_PORT} -j {outside}\n")
            rules.append(f"-A KUBE-NODEPORTS {to} {port.node_port} -j {outside}\n")
        for left, pod in zip(range(len(port.pods), 0, -1), port.pods, strict=True):
            end = f"KUBE-SEP-{chain_hash(port.name + port.protocol + pod)}"
            chains.append(f":{end} - [0:0]\n")
            chance = f" -m statistic --mode random --probability {1 / left:.11f}" if left > 1 else ""
            rules.append(
                f"-A {chain}{chance} -j {end}\n"
                f"-A {end} -s {pod}/32 -j KUBE-MARK-MASQ\n"
                f"-A {end} -p {port.protocol} -m {port.protocol} -j DNAT --to-destination {pod}:{POD_PORT}\n"
            )
    last = "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\nCOMMIT\n"
    return "".join([*chains, *rules, *portals, last])
