"""The rules that kube-proxy's iptables mode writes for the clusters of `cluster`, as iptables-restore reads them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator

from bench.cluster import FIRST_CLUSTER_IP, FIRST_POD_IP, address

_FILTER = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-SERVICES - [0:0]
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
"""
NAT_CHAINS = """\
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
"""
NAT_RULES = """\
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
"""
_NODEPORTS = (
    '-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain"'
    " -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n"
)


def save(services: int, endpoints: int) -> str:
    """What iptables-restore reads for so many Services with so many endpoints each."""
    chains, rules, portals = [_FILTER, NAT_CHAINS], [NAT_RULES], []
    for number in range(services):
        portals.append(_service(number, endpoints, chains, rules))
    return "".join([*chains, *rules, *portals, _NODEPORTS, "COMMIT\n"])


def _service(number: int, endpoints: int, chains: list[str], rules: list[str]) -> str:
    name, ip = f"default/service-{number}:http", address(FIRST_CLUSTER_IP + number)
    chain = f"KUBE-SVC-{chain_hash(name)}"
    chains.append(f":{chain} - [0:0]\n")
    to = f'-d {ip}/32 -p tcp -m comment --comment "{name} cluster IP" -m tcp --dport 80'
    rules.append(f"-A {chain} ! -s 11.0.0.0/8 {to} -j KUBE-MARK-MASQ\n")
    pods = sorted(address(FIRST_POD_IP + number * endpoints + i) for i in range(endpoints))
    for left, (pod, probability) in enumerate(zip(pods, _probabilities(endpoints), strict=True)):
        end = f"KUBE-SEP-{chain_hash(name + pod)}"
        chains.append(f":{end} - [0:0]\n")
        comment = f'-m comment --comment "{name}'
        chance = f" -m statistic --mode random --probability {probability}" if left < endpoints - 1 else ""
        rules.append(
            f'-A {chain} {comment} -> {pod}:8080"{chance} -j {end}\n'
            f'-A {end} -s {pod}/32 {comment}" -j KUBE-MARK-MASQ\n'
            f'-A {end} -p tcp {comment}" -m tcp -j DNAT --to-destination {pod}:8080\n'
        )
    return f"-A KUBE-SERVICES {to} -j {chain}\n"


def _probabilities(count: int) -> Iterator[str]:
    return (f"{1 / left:.11f}" for left in range(count, 0, -1))


def chain_hash(text: str) -> str:
    """What kube-proxy's names of chains have of a service port's or endpoint's name."""
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode()[:16]
