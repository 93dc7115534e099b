"""Checks of IPVS, NodePorts and the live rules: what makes each speak, and the nearest case in which it is silent."""

from __future__ import annotations

from msgspec.structs import replace

from proxy.migrate.entries import Dataplane
from proxy.migrate.facts import Interface, Listener, NodeFacts, Translation
from proxy.unread import Unread
from rules.elements import endpoint, node_port_key, service_key
from rules.objects import Family
from tests.migrate_cases import (
    ALL_PORTS,
    EIGHTY,
    KUBE_IPVS,
    NODE_PORT,
    NODE_PORT_UDP,
    SECOND,
    WEB,
    Row,
    another,
    balanced,
    beside,
    blind,
    connected,
    fewer_addresses,
    here,
    nothing_there,
    packed,
    remarked,
    running,
    unlisted,
    without_object,
)
from tests.migrate_facts import facts, live
from tests.objects import endpoint_slice

BRIDGE = {"detectLocalMode": "BridgeInterface", "detectLocal": {"bridgeInterface": "cbr0"}}
HOME = (WEB[0], endpoint_slice("web", {"addresses": ["10.244.0.2"], "nodeName": "node0"}))
TO_WEB = Translation("chain ip nat PREROUTING", "10.96.0.1/32", "TCP", "80", "10.244.9.9:1")
HAIRPIN = b"\x06" + endpoint(*packed("10.244.0.2"), 8080)
HEALTH = balanced(externalTrafficPolicy="Local", healthCheckNodePort=32000)
HEALTH_PORT = node_port_key(Family.IPV4, 6, 32000)
CIDR = {"kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16"]}}
WEB_KEY = service_key(*packed("10.96.0.1"), 6, 80)
STRAY = service_key(*packed("10.96.0.77"), 6, 80)
NO_LOCALNET = {"net/ipv4/conf/all/route_localnet": "0"}
RULE_ROWS: list[Row] = [
    Row(
        "rules-damaged",
        "change",
        "A jump is gone",
        lambda: remarked(running(*WEB, mode="iptables"), Unread("chain nat PREROUTING", "a jump is gone")),
        lambda: running(*WEB, mode="iptables"),
    ),
    Row(
        "masquerade-source",
        "change",
        "all are masqueraded",
        lambda: beside(running(*WEB, mode="iptables"), pods={"ip": "all"}),
        lambda: beside(
            running(*WEB, mode="iptables", config={"iptables": {"masqueradeAll": True}}), pods={"ip": "all"}
        ),
    ),
    Row(
        "masquerade-source",
        "change",
        "now 10.245.0.0/16, then 10.244.0.0/16",
        lambda: beside(running(*WEB, mode="iptables"), pods={"ip": "10.245.0.0/16", "ip6": "fd44::/48"}),
        lambda: beside(running(*WEB, mode="iptables"), pods={"ip": "10.244.0.0/16", "ip6": "fd44::/48"}),
    ),
    Row(
        "masquerade-source",
        "change",
        "now 10.244.0.0/16, then not at all",
        lambda: beside(running(*WEB, mode="iptables", config={}), pods={"ip": "10.244.0.0/16"}),
        lambda: beside(running(*WEB, mode="iptables", config={}), pods={"ip": "", "ip6": ""}),
    ),
    Row(
        "masquerade-source",
        "change",
        "now cbr1, then cbr0",
        lambda: beside(running(*WEB, mode="iptables", config=BRIDGE), pods={"ip": "cbr1"}),
        lambda: beside(running(*WEB, mode="iptables", config=BRIDGE), pods={"ip": "cbr0"}),
    ),
    Row(
        "hairpin-rules",
        "change",
        "default/web:http: 10.244.0.2:8080",
        lambda: beside(running(*HOME, mode="nftables"), hairpins=frozenset()),
        lambda: beside(running(*HOME, mode="nftables"), hairpins=frozenset([HAIRPIN])),
    ),
    Row(
        "hairpin-rules",
        "change",
        "10.244.0.2:8080",
        lambda: beside(running(*HOME, mode="nftables"), hairpins=frozenset()),
        lambda: beside(running(*WEB, mode="nftables"), hairpins=frozenset()),  # nobody knows on which node they are
    ),
    Row(
        "health-check-rules",
        "change",
        "Service default/lb: NodePort 32000/TCP (IPv4) is not let in",
        lambda: beside(running(HEALTH, mode="iptables"), health_checks=frozenset()),
        lambda: beside(running(HEALTH, mode="iptables"), health_checks=frozenset([HEALTH_PORT])),
    ),
    Row(
        "health-check-rules",
        "change",
        "NodePort 32000/TCP (IPv4) is let in, and is no Service's",
        lambda: beside(running(*WEB, mode="iptables"), health_checks=frozenset([HEALTH_PORT])),
        lambda: running(*WEB, mode="iptables"),
    ),
    Row(
        "unallocated-ranges",
        "change",
        "now none, then 10.96.0.0/16",
        lambda: beside(running(*WEB, CIDR, mode="nftables"), dropped=()),
        lambda: beside(running(*WEB, CIDR, mode="nftables"), dropped=(packed("10.96.0.0", "10.96.255.255"),)),
    ),
    Row(
        "uneven-endpoints",
        "change",
        "Service default/web",
        lambda: beside(running(*WEB), uneven=(WEB_KEY,)),
        lambda: running(*WEB),
    ),
    Row(
        "ipvs-other-servers",
        "change",
        "10.96.0.77:80/TCP",
        lambda: beside(running(*WEB), strays=(STRAY,)),
        lambda: beside(running(*WEB, config={"ipvs": {"excludeCIDRs": ["10.96.0.64/26"]}}), strays=(STRAY,)),
    ),
    Row(
        "only-here",
        "change",
        "All addresses of Services are missing",
        lambda: nothing_there(running(*WEB, *NODE_PORT, mode="iptables")),
        lambda: running(*WEB, *NODE_PORT, mode="iptables"),
    ),
    Row(
        "rules-unread",
        "change",
        "no permission",
        lambda: blind(running(*WEB, mode="iptables")),
        lambda: running(*WEB, mode="iptables"),
    ),
    Row(
        "no-rules",
        "change",
        "There are no rules of iptables mode",
        lambda: facts(*WEB, mode="iptables"),
        lambda: facts(*WEB, mode="iptables", here=NodeFacts(is_this_node=False)),
    ),
    Row(
        "no-rules",
        "change",
        "There are no rules of iptables mode",
        lambda: facts(*WEB, mode="iptables"),
        lambda: blind(running(*WEB, mode="iptables")),
    ),
    Row(
        "foreign-nat",
        "change",
        "default/web:http at 10.96.0.1:80/TCP: chain ip nat PREROUTING leads 10.96.0.1/32 to 10.244.9.9:1",
        lambda: running(*WEB, mode="iptables", here=here(translations=(TO_WEB,))),
        lambda: running(*WEB, mode="iptables", here=here(translations=(replace(TO_WEB, ports="81"),))),
    ),
    Row(
        "foreign-nat",
        "change",
        "leads 10.96.0.0/24 to this node",
        lambda: running(
            *WEB, mode="iptables", here=here(translations=(Translation("chain ip nat OUTPUT", "10.96.0.0/24"),))
        ),
        lambda: running(*WEB, mode="iptables", here=here(translations=(replace(TO_WEB, protocol="UDP"),))),
    ),
    # IPVS.
    Row(
        "ipvs-scheduler",
        "change",
        "wlc",
        lambda: running(*WEB, scheduler="wlc", config={"ipvs": {"scheduler": "wlc"}}),
        lambda: running(*WEB, mode="iptables", config={"ipvs": {"scheduler": "wlc"}}),
    ),
    Row(
        "ipvs-scheduler",
        "change",
        "kube-proxy-nft/scheduler: sh",
        lambda: running(*WEB, scheduler="sh", config={"ipvs": {"scheduler": "sh"}}),
        lambda: facts(*WEB),
    ),
    Row(
        "ipvs-scheduler",
        "change",
        "lc",
        lambda: facts(*WEB, mode="ipvs", config={"ipvs": {"scheduler": "lc"}}),
        lambda: facts(*WEB, mode="nftables", config={"ipvs": {"scheduler": "lc"}}),
    ),
    Row("ipvs-scheduler", "info", "turns", lambda: running(*WEB), lambda: running(*WEB, mode="nftables")),
    Row(
        "ipvs-connections",
        "change",
        "Service default/web: 2 connections",
        lambda: running(*WEB, change=connected),
        lambda: running(*WEB),
    ),
    Row(
        "ipvs-traffic-policy",
        "notice",
        "Service default/lb",
        lambda: running(balanced(externalTrafficPolicy="Local"), endpoint_slice("lb", "10.244.1.9")),
        lambda: running(balanced(externalTrafficPolicy="Cluster"), endpoint_slice("lb", "10.244.1.9")),
    ),
    Row(
        "ipvs-addresses",
        "info",
        "10.96.0.10",
        lambda: facts(*WEB, mode="ipvs", here=here(KUBE_IPVS)),
        lambda: facts(*WEB, mode="ipvs"),
    ),
    Row(
        "ipvs-addresses",
        "notice",
        "ping",
        lambda: facts(*WEB, mode="ipvs", here=here(KUBE_IPVS), version="v1.25.3"),
        lambda: facts(*WEB, mode="iptables", version="v1.25.3"),
    ),
    Row(
        "ipvs-host-services",
        "notice",
        "sshd at 22/TCP",
        lambda: facts(*WEB, mode="ipvs", here=here(KUBE_IPVS, listeners=tuple(ALL_PORTS)), version="v1.25.3"),
        lambda: facts(
            *WEB,
            mode="ipvs",
            here=here(KUBE_IPVS, listeners=(Listener("TCP", packed("192.168.77.2")[0], 22, "sshd"),)),
            version="v1.25.3",
        ),
    ),
    Row(
        "ipvs-host-services",
        "info",
        "sshd at 22/TCP",
        lambda: facts(*WEB, mode="ipvs", here=here(KUBE_IPVS, listeners=tuple(ALL_PORTS))),
        lambda: facts(*WEB, mode="ipvs", here=here(listeners=tuple(ALL_PORTS))),
    ),
    Row(
        "ipvs-host-services",
        "info",
        "nginx at 80/TCP",
        lambda: facts(*WEB, mode="ipvs", here=here(KUBE_IPVS, listeners=tuple(EIGHTY))),
        lambda: facts(
            *WEB, mode="ipvs", here=here(Interface("kube-ipvs0", packed("10.96.0.1")), listeners=tuple(EIGHTY))
        ),
    ),
    Row(
        "ipvs-strict-arp",
        "info",
        "MetalLB",
        lambda: facts(mode="ipvs", config={"ipvs": {"strictARP": True}}),
        lambda: facts(mode="ipvs", config={"ipvs": {"strictARP": False}}),
    ),
    Row(
        "ipvs-exclude-cidrs",
        "notice",
        "10.9.0.0/16",
        lambda: facts(mode="ipvs", config={"ipvs": {"excludeCIDRs": ["10.9.0.0/16"]}}),
        lambda: facts(mode="ipvs", config={"ipvs": {"excludeCIDRs": []}}),
    ),
    Row(
        "ipvs-timeouts",
        "change",
        "ipvs.tcpTimeout: 15m",
        lambda: facts(mode="ipvs", config={"ipvs": {"tcpTimeout": "15m"}}),
        lambda: facts(mode="ipvs", config={"ipvs": {"tcpTimeout": "0s", "udpTimeout": None}}),
    ),
    Row(
        "ipvs-timeouts",
        "change",
        "udpStreamTimeout",
        lambda: facts(mode="ipvs", config={"ipvs": {"udpTimeout": "30s"}}),
        lambda: facts(mode="iptables", config={"ipvs": {"udpTimeout": "30s"}}),
    ),
    Row(
        "source-ranges",
        "change",
        "Service default/lb",
        lambda: facts(balanced(loadBalancerSourceRanges=["x", "10.0.0.0/8"])),
        lambda: facts(balanced(loadBalancerSourceRanges=["10.0.0.0/8"])),
    ),
    Row(
        "source-ranges-node",
        "notice",
        "Service default/lb",
        lambda: facts(balanced(loadBalancerSourceRanges=["10.0.0.0/8"]), mode="ipvs"),
        lambda: facts(balanced(loadBalancerSourceRanges=["10.0.0.0/8"]), mode="iptables"),
    ),
    # NodePorts.
    Row(
        "nodeport-addresses",
        "change",
        "192.168.78.2",
        lambda: running(*NODE_PORT, mode="iptables", all_addresses=True, here=here(SECOND)),
        lambda: running(*WEB, mode="iptables", all_addresses=True, here=here(SECOND)),
    ),
    Row(
        "nodeport-addresses",
        "change",
        "192.168.78.2",
        lambda: running(*NODE_PORT, all_addresses=True, here=here(SECOND, KUBE_IPVS)),
        lambda: running(
            *NODE_PORT,
            all_addresses=True,
            here=here(SECOND, KUBE_IPVS),
            config={"nodePortAddresses": ["0.0.0.0/0", "::/0"]},
        ),
    ),
    Row(
        "nodeport-addresses",
        "notice",
        "192.168.78.2",
        lambda: fewer_addresses(),
        lambda: running(*NODE_PORT, mode="iptables", here=here(SECOND)),
    ),
    Row(
        "nodeport-addresses",
        "notice",
        "primary",
        lambda: facts(*NODE_PORT, mode="ipvs", here=NodeFacts()),
        lambda: facts(*NODE_PORT, mode="ipvs", here=NodeFacts(), config={"nodePortAddresses": ["primary"]}),
    ),
    Row(
        "nodeport-addresses",
        "notice",
        "10.244.0.1",
        lambda: running(*NODE_PORT, all_addresses=True, here=here(Interface("cni0", packed("10.244.0.1")))),
        lambda: running(*NODE_PORT, all_addresses=True, here=here(Interface("bond1", packed("10.244.0.1")))),
    ),
    Row(
        "localhost-nodeports",
        "change",
        "7 connections",
        lambda: running(*NODE_PORT, mode="iptables", localhost=True, here=here(localhost_packets=7)),
        lambda: running(*NODE_PORT, mode="iptables", localhost=False, here=here(localhost_packets=7)),
    ),
    Row(
        "localhost-nodeports",
        "notice",
        "NodePort 30080/TCP (IPv4)",
        lambda: running(*NODE_PORT, mode="iptables", localhost=True, here=here(localhost_packets=0)),
        lambda: running(*NODE_PORT, mode="ipvs", localhost=True, here=here(localhost_packets=0)),
    ),
    Row(
        "localhost-nodeports",
        "notice",
        "not known",
        lambda: facts(*NODE_PORT, mode="iptables"),
        lambda: facts(*NODE_PORT, mode="iptables", config={"iptables": {"localhostNodePorts": False}}),
    ),
    Row(
        "localhost-nodeports",
        "info",
        "route_localnet",
        lambda: running(
            *NODE_PORT, mode="iptables", localhost=True, here=here(sysctls=NO_LOCALNET, localhost_packets=0)
        ),
        lambda: running(
            *NODE_PORT, mode="iptables", localhost=True, here=here(sysctls=NO_LOCALNET, localhost_packets=1)
        ),
    ),
    Row(
        "localhost-nodeports",
        "notice",
        "TCP only",
        lambda: facts(*NODE_PORT_UDP, mode="iptables", config={"nodePortAddresses": ["primary", "127.0.0.0/8"]}),
        lambda: facts(*NODE_PORT, mode="iptables", config={"nodePortAddresses": ["primary", "127.0.0.0/8"]}),
    ),
    # The live rules.
    Row(
        "stale-rules",
        "change",
        "Service default/web",
        lambda: running(*WEB, mode="iptables", change=lambda e: replace(e, affinity=1)),
        lambda: running(*WEB, mode="iptables"),
    ),
    Row(
        "only-there",
        "change",
        "default/web:http",
        lambda: without_object(running(*WEB, mode="iptables"), "Service"),
        lambda: unlisted(running(*WEB, mode="iptables"), "Service"),
    ),
    Row(
        "only-here",
        "notice",
        "default/web:http",
        lambda: running(
            *WEB, mode="iptables", change=lambda e: replace(e, key=e.key[:-8] + e.key[-8:-4] + b"\0\1\0\0")
        ),
        lambda: running(*WEB, mode="iptables"),
    ),
    Row(
        "two-dataplanes",
        "change",
        "ipvs and iptables",
        lambda: another(running(*WEB), live(facts(*WEB), "iptables")),
        lambda: another(running(*WEB), Dataplane("iptables", ())),
    ),
    Row(
        "rules-of-another-mode",
        "change",
        "of iptables mode",
        lambda: another(facts(*WEB, mode="ipvs"), live(facts(*WEB), "iptables")),
        lambda: another(facts(*WEB, mode="ipvs"), live(facts(*WEB), "ipvs")),
    ),
    Row(
        "already-here",
        "info",
        "tables",
        lambda: another(running(*WEB), Dataplane("kube-proxy-nft", ())),
        lambda: running(*WEB),
    ),
]
