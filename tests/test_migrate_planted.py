"""A rule planted among those of a healthy node: whose traffic it changes, or may change, is not called the same."""

from __future__ import annotations

import re

import pytest

from proxy.migrate import nft_entries
from proxy.migrate.facts import NodeFacts
from proxy.migrate.iptables_save import parse
from proxy.migrate.judge import report
from proxy.migrate.others import Others
from proxy.migrate.report import Proof, Report
from rules.objects import Family
from tests.dataplanes import inside, needs, needs_root, recorded
from tests.migrate_facts import facts, recorded_facts, recorded_interfaces, recorded_objects, recorded_texts
from tests.netns import Namespace


def of_iptables(ip4: str) -> Report:
    return report(recorded_facts("iptables", texts=(ip4, recorded_texts("iptables")[1])), Proof("accepted"))


def changed(made: Report) -> set[str]:
    """Addresses that are not called the same."""
    return {entry.address for row in made.services for entry in row.entries if entry.result != "same"}


def services_of(made: Report, addresses: set[str]) -> set[str]:
    return {row.service for row in made.services if addresses & {entry.address for entry in row.entries}}


def plant(text: str, pattern: str, to: str) -> str:
    """to: what the first line with the pattern becomes; LINE stands for that line."""
    found = next(line for line in text.splitlines() if re.search(pattern, line))
    return text.replace(f"{found}\n", to.replace("LINE", found) + "\n", 1)


WEB, STICKY, RANGES = "10.96.30.1:80/TCP", "10.96.30.9:80/TCP", "198.51.100.31:443/TCP"
OF_NP_LOCAL = "NodePort 30103/TCP (IPv4)"
SVC_WEB, SEP_WEB = "-A KUBE-SVC-A7H36EAONPX5U2SX ", "-A KUBE-SEP-PMEYZ4IAR5OMQ35G "
ALL = 24
"""At least so many addresses are concerned."""

IN_IPTABLES: list[tuple[str, str, str, set[str] | None]] = [
    # A chain of one endpoint, of one Service: rules without a comment that would name it.
    ("an endpoint's chain drops", SEP_WEB, f"{SEP_WEB}-j DROP\nLINE", {WEB}),
    ("an endpoint's chain returns", SEP_WEB, f"{SEP_WEB}-s 10.9.0.0/16 -j RETURN\nLINE", {WEB}),
    ("a second translation", SEP_WEB + ".*DNAT", f"{SEP_WEB}-p tcp -j DNAT --to-destination 10.9.9.9:1\nLINE", {WEB}),
    ("another protocol", SEP_WEB + ".*DNAT", f"{SEP_WEB}-p udp -m udp -j DNAT --to-destination 10.244.0.2:8080", {WEB}),
    ("a Service's chain returns", SVC_WEB, f"{SVC_WEB}-j RETURN\nLINE", {WEB}),
    ("a Service's chain returns for pods", SVC_WEB, f"{SVC_WEB}-s 10.244.0.0/16 -j RETURN\nLINE", {WEB}),
    ("pods are masqueraded", SVC_WEB + ".*MARK-MASQ", f"{SVC_WEB}-d 10.96.30.1/32 -p tcp --dport 80 -j KUBE-MARK-MASQ", {WEB}),
    ("masqueraded at another port", SVC_WEB + ".*MARK-MASQ",
     f"{SVC_WEB}! -s 10.244.0.0/16 -d 10.96.30.1/32 -p tcp --dport 81 -j KUBE-MARK-MASQ", {WEB}),
    ("masqueraded now and then", SVC_WEB + ".*MARK-MASQ",
     f"{SVC_WEB}! -s 10.244.0.0/16 -d 10.96.30.1/32 -p tcp --dport 80 -m limit --limit 5/sec -j KUBE-MARK-MASQ", {WEB}),
    ("affinity by network", "-A KUBE-SEP-.*--set .*10.244.1.3:8080", "SUB --mask 255.255.255.255=--mask 255.255.0.0", {STICKY}),
    # A rule in a chain of all Services, about some packets only: of one port, of those behind it.
    ("one port of an address", "-A KUBE-SERVICES .*-j KUBE-(SVC|EXT|FW)", "-A KUBE-SERVICES -d 10.96.30.1/32 -p tcp -m tcp --dport 80 -j DROP\nLINE", {WEB}),
    ("another port of an address", "-A KUBE-SERVICES .*-j KUBE-(SVC|EXT|FW)", "-A KUBE-SERVICES -d 10.96.30.1/32 -p tcp -m tcp --dport 81 -j DROP\nLINE", set()),
    ("several ports", "-A KUBE-SERVICES .*-j KUBE-(SVC|EXT|FW)", "-A KUBE-SERVICES -d 10.96.30.1/32 -p tcp -m multiport --dports 70:90,443 -j DROP\nLINE", {WEB}),
    ("one protocol", "-A KUBE-SERVICES .*-j KUBE-(SVC|EXT|FW)", "-A KUBE-SERVICES ! -p tcp -d 10.96.30.1/32 -j ACCEPT\nLINE", {"10.96.30.1:53/UDP"}),
    ("behind the Service's own rule", "-A KUBE-SERVICES -d 10.96.30.1/32 -p tcp", "LINE\n-A KUBE-SERVICES -d 10.96.30.1/32 -j DROP", set()),
    ("one NodePort", "-A KUBE-NODEPORTS -p tcp .*30103", "-A KUBE-NODEPORTS -p tcp -m tcp --dport 30103 -j ACCEPT\nLINE", {OF_NP_LOCAL}),
    ("behind the NodePort's own rule", "-A KUBE-NODEPORTS -p tcp .*30103", "LINE\n-A KUBE-NODEPORTS -p tcp -m tcp --dport 30103 -j ACCEPT", set()),
    ("pods in the table filter", "-A KUBE-SERVICES .*has no endpoints", "-A KUBE-SERVICES -d 10.244.1.3/32 -p udp -m udp --dport 5353 -j DROP\nLINE", {"10.96.30.1:53/UDP"}),
    ("refused ones", "-A KUBE-SERVICES .*has no endpoints", "-A KUBE-SERVICES -d 10.96.30.0/24 -j RETURN\nLINE", {"10.96.30.10:80/TCP"}),
    # A chain of somebody's before kube-proxy's; KUBE-FORWARD, which all that is forwarded passes.
    ("a chain before all accepts", "-A PREROUTING .*-j KUBE-SERVICES", "-A PREROUTING -j EVIL\n-A EVIL -p tcp -j FURTHER\n-A EVIL -j RETURN\n-A FURTHER -d 10.96.30.1/32 -j ACCEPT\nLINE", {WEB}),
    ("a host port that is a NodePort", "-A OUTPUT -m comment .*-j KUBE-SERVICES", "-A OUTPUT -m addrtype --dst-type LOCAL -j EVIL\n-A EVIL -p tcp -m tcp --dport 30103 -j DNAT --to-destination 10.9.9.9:1\nLINE", {OF_NP_LOCAL}),
    ("one user's connections", "-A OUTPUT -m comment .*-j KUBE-SERVICES", "-A OUTPUT -d 10.96.30.1/32 -p tcp -m owner --uid-owner 7 -j RETURN\nLINE", {WEB}),
    ("nothing is forwarded", "-A KUBE-FORWARD", "-A KUBE-FORWARD -j DROP\nLINE", None),
    ("not forwarded to one endpoint", "-A KUBE-FORWARD", "-A KUBE-FORWARD -d 10.244.1.3/32 -p udp -m udp --dport 5353 -j REJECT --reject-with icmp-port-unreachable\nLINE", {"10.96.30.1:53/UDP"}),
    ("masqueraded to few ports", "-A KUBE-POSTROUTING .*MASQUERADE", "-A KUBE-POSTROUTING -p tcp -j MASQUERADE --to-ports 7", None),
    ("the mark goes again", "-A KUBE-MARK-MASQ", "LINE\n-A KUBE-MARK-MASQ -j MARK --set-xmark 0x0/0x4000", None),
    ("who is marked goes nowhere", "-A KUBE-MARK-MASQ", "LINE\n-A KUBE-MARK-MASQ -j ACCEPT", None),
    ("masqueraded without other marks", "-A KUBE-POSTROUTING .*RETURN", "SUB 0x4000/0x4000=0x4000/0xffff", set()),
    ("forwarded without other marks", "-A KUBE-FORWARD .*--mark", "SUB 0x4000/0x4000=0x4000/0xffff", set()),
    ("all other marks go", "-A KUBE-MARK-MASQ", "SUB 0x4000/0x4000=0x4000/0xffffffff", set()),
    # External addresses.
    ("the node is not masqueraded", '"masquerade LOCAL traffic for default/np-local:', "", {OF_NP_LOCAL}),
    ("one address only", "-A KUBE-NODEPORTS -p tcp .*30103", "SUB -A KUBE-NODEPORTS=-A KUBE-NODEPORTS -d 10.1.1.1/32", {OF_NP_LOCAL}),
    ("drops before the ranges", "-A KUBE-FW-XNSRSQRUMO72ZEPB", "-A KUBE-FW-XNSRSQRUMO72ZEPB -j DROP\nLINE", {RANGES}),
    ("ranges are not enforced", "-A KUBE-PROXY-FIREWALL", "-A KUBE-PROXY-FIREWALL -j RETURN\nLINE", {RANGES}),
    # What everybody passes.
    ("an address range before all", "-A KUBE-SERVICES .*-j KUBE-(SVC|EXT|FW)", "-A KUBE-SERVICES -d 10.96.30.0/30 -j ACCEPT\nLINE",
     {WEB, "10.96.30.1:53/UDP", "10.96.30.2:80/TCP", "10.96.30.2:53/UDP", "10.96.30.3:80/TCP"}),
    ("everything returns", "-A KUBE-SERVICES -d 10.96.30.1/32 -p tcp", "-A KUBE-SERVICES -j RETURN\nLINE", None),
    ("a narrow jump", "-A PREROUTING .*-j KUBE-SERVICES", "-A PREROUTING -s 10.9.9.9/32 -j KUBE-SERVICES", None),
    ("accepted before the jump", "-A PREROUTING .*-j KUBE-SERVICES", "-A PREROUTING -j ACCEPT\nLINE", None),
    ("nothing is marked", "-A KUBE-MARK-MASQ", "-A KUBE-MARK-MASQ -j RETURN\nLINE", None),
    ("marked for one client", "-A KUBE-MARK-MASQ", "-A KUBE-MARK-MASQ -s 10.9.9.9/32 -j MARK --set-xmark 0x4000/0x4000", None),
    ("everything is masqueraded", "-A KUBE-POSTROUTING .*RETURN", "", None),
    ("nothing is masqueraded", "-A KUBE-POSTROUTING .*RETURN", "-A KUBE-POSTROUTING -j RETURN", None),
    ("the unmarked are dropped", "-A KUBE-POSTROUTING .*RETURN", "SUB -j RETURN=-j DROP", set()),
    ("only what is not marked is forwarded", "-A KUBE-FORWARD .*--mark", "SUB --mark=! --mark", set()),
    ("answers are not forwarded", "-A KUBE-FORWARD .*ESTABLISHED", "", set()),
]  # fmt: skip


@pytest.mark.parametrize("planted", IN_IPTABLES, ids=[one[0] for one in IN_IPTABLES])
def test_in_iptables(planted: tuple[str, str, str, set[str] | None]) -> None:
    _, pattern, to, wanted = planted
    text = recorded("iptables", "iptables-save.txt")
    if to.startswith("SUB "):
        old, _, new = to[4:].partition("=")
        found = next(line for line in text.splitlines() if re.search(pattern, line))
        assert old in found
        to = found.replace(old, new, 1)
    strange = plant(text, pattern, to)
    if "EVIL" in to:  # iptables-save declares all chains of a table
        strange = strange.replace("*nat\n", "*nat\n:EVIL - [0:0]\n:FURTHER - [0:0]\n")
    made, healthy = of_iptables(strange), of_iptables(text)
    assert changed(healthy) == set()
    if wanted is None:
        assert len(changed(made)) >= ALL
    else:
        assert changed(made) == wanted
    fresh = {f.check for f in made.findings} - {f.check for f in healthy.findings}
    assert fresh & {"rules-damaged", "rules-unread", "stale-rules"}, fresh


def test_more_of_them_than_are_named() -> None:
    """A cause is named a hundred times at most; no Service is the same for that."""
    chains = re.findall(r"^:(KUBE-SEP-\S+)", recorded("iptables", "iptables-save.txt"), re.MULTILINE)
    text = recorded("iptables", "iptables-save.txt")
    for chain in chains:
        text = plant(text, f"-A {chain} ", "\n".join(f"-A {chain} -s 10.9.0.{i} -j DROP" for i in range(8)) + "\nLINE")
    made = of_iptables(text)
    assert any("more" in gap.what for gap in made.gaps)
    same = {
        entry.address for row in made.services for entry in row.entries if entry.result == "same" and entry.endpoints
    }
    assert not {address for address in same if not address.startswith("[") and "IPv6" not in address}


IPVS = recorded("ipvs", "iptables-save.txt")
IN_IPVS = [
    ("-A KUBE-SERVICES .*CLUSTER-IP dst,dst -j ACCEPT", "-A KUBE-SERVICES -j RETURN\nLINE", "not a rule that kube-proxy writes"),
    ("-A KUBE-IPVS-FILTER .*CLUSTER-IP", "", "what goes to such addresses is refused"),
    ("-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ", "", "load balancers' addresses is not masqueraded"),
    ("-A KUBE-NODE-PORT .*NODE-PORT-UDP", "", "NodePorts is not masqueraded"),
    ("-A KUBE-PROXY-FIREWALL", "", "source ranges keep nobody out"),
    ("-A KUBE-SOURCE-RANGES-FIREWALL -j DROP", "", "source ranges keep nobody out"),
    ("-A KUBE-SOURCE-RANGES-FIREWALL", "-A KUBE-SOURCE-RANGES-FIREWALL -j DROP\nLINE", "not a rule that kube-proxy writes"),
    ("-A KUBE-MARK-MASQ", "-A KUBE-MARK-MASQ -s 10.9.9.9/32 -j MARK --set-xmark 0x4000/0x4000", "it sets no mark"),
    ("-A KUBE-POSTROUTING .*--mark", "", "everything is masqueraded"),
]  # fmt: skip


def of_ipvs(ip4: str, ipvsadm: str = "") -> Report:
    servers, sets = recorded_texts("ipvs")
    made = recorded_facts("ipvs", texts=(ipvsadm or servers, sets))
    others = Others()
    for family, text in ((Family.IPV4, ip4), (Family.IPV6, recorded("ipvs", "ip6tables-save.txt"))):
        others.take("nft", family, parse(text))
    made.dataplanes = (others.with_chains(made.dataplanes[0], is_all=True),)
    return report(made, Proof("accepted"))


@pytest.mark.parametrize("planted", IN_IPVS, ids=[f"{i}-{one[2]}" for i, one in enumerate(IN_IPVS)])
def test_in_the_chains_of_ipvs_mode(planted: tuple[str, str, str]) -> None:
    pattern, to, cause = planted
    assert not [f for f in of_ipvs(IPVS).findings if f.check == "rules-damaged"]
    made = of_ipvs(plant(IPVS, pattern, to))
    assert any(cause.lower() in f.why.lower() for f in made.findings if f.check == "rules-damaged")
    results = {entry.address: entry.result for row in made.services for entry in row.entries}
    assert results["10.96.30.1:80/TCP"] == "behaviour" and results["[fd00:10:96::30]:80/TCP"] == "same"


@pytest.mark.parametrize(
    ("old", "new", "address"),
    [
        ("-a -t 10.96.30.1:80 -r 10.244.0.2:8080 -m", "-a -t 10.96.30.1:80 -r 10.244.0.2:8080 -g", WEB),
        ("-A -t 10.96.30.9:80 -s rr -p 3600", "-A -t 10.96.30.9:80 -s rr -p 3600 -M 255.255.0.0", STICKY),
        ("-A -u 10.96.30.1:53 -s rr", "-A -u 10.96.30.1:53 -s rr -o", "10.96.30.1:53/UDP"),
    ],
)
def test_an_ipvs_server_as_kube_proxy_makes_none(old: str, new: str, address: str) -> None:
    servers = recorded_texts("ipvs")[0]
    assert old in servers
    usual = changed(of_ipvs(IPVS))
    assert changed(of_ipvs(IPVS, servers.replace(old, new))) - usual == {address}


NFT = recorded("nftables", "nft-ruleset.txt")
AT_LAST_POD = {
    *("10.96.30.1:53/UDP", WEB, "10.96.30.5:443/TCP", "198.51.100.30:443/TCP", "NodePort 30105/TCP (IPv4)"),
    *("10.96.30.7:443/TCP", "198.51.100.32:443/TCP", "NodePort 30107/TCP (IPv4)", STICKY),
}
SERVICE_WEB = "chain service-ZXGTDUEP-default/web/tcp/p80tcp {"
IN_NFTABLES: list[tuple[str, str, set[str] | None]] = [
    ("chain services {", "LINE\nip saddr 10.9.0.0/16 return", None),
    ("chain services {", "LINE\ndrop", None),
    ("chain nat-prerouting {", "LINE\naccept", None),
    ("chain masquerading {", "LINE\nreturn", None),
    ("chain firewall-check {", "LINE\nreturn", None),
    ("type nat hook postrouting", "type nat hook postrouting priority srcnat; policy drop;", None),
    ("th dport vmap @service-ips", "tcp flags syn ip daddr . meta l4proto . th dport vmap @service-ips", None),
    ("th dport vmap @firewall-ips", "ip saddr 10.9.9.9 ip daddr . meta l4proto . th dport vmap @firewall-ips", None),
    ("ip daddr @cluster-ips ip saddr != 10.244", "ip daddr @cluster-ips ip saddr != 10.250.0.0/16 meta mark set meta mark | 0x4000", None),
    ("ip daddr @cluster-ips ip saddr != 10.244", "ip daddr @cluster-ips ip saddr != 10.244.0.0/16 meta mark set meta mark | 0x100", None),
    # About some packets only.
    ("chain services {", "LINE\nip daddr 10.96.30.1 tcp dport 80 drop", {WEB}),
    ("chain services {", "LINE\nip daddr 10.96.30.1 drop", {WEB, "10.96.30.1:53/UDP"}),
    ("chain services {", "LINE\nip daddr 10.96.30.1 tcp dport 81 drop", set()),
    ("ip daddr . meta l4proto . th dport vmap @service-ips", "LINE\nip daddr 10.96.30.1 tcp dport 80 drop", set()),
    ("ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports", "tcp dport 30103 drop\nLINE", {OF_NP_LOCAL}),
    ("ct state new jump cluster-ips-check", "ip daddr 10.244.1.3 udp dport 5353 drop\nLINE", {"10.96.30.1:53/UDP"}),
    ("ip daddr 10.96.0.0/12 drop", "ip daddr 10.244.1.3 drop\nLINE", AT_LAST_POD),
    ("elements = { 198.51.100.31 . tcp . 443 : goto firewall", "elements = { 198.51.100.31 . tcp . 443 : accept }", {RANGES}),
    # Statements without a verdict, and conditions that nearly are kube-proxy's.
    ("chain services {", "LINE\nip daddr set 10.96.30.9", None),
    ("chain services {", "LINE\nlog limit rate 5/second", set()),
    ("type filter hook prerouting", "LINE\nnotrack", None),
    ("\t\tip daddr . meta l4proto . th dport vmap @service-ips", "ip saddr . meta l4proto . th dport vmap @service-ips", None),
    ("meta mark & 0x00004000 != 0x00000000", "meta mark & 0x4000 != 0x4000 meta mark set meta mark ^ 0x4000 masquerade", None),
    ("\t\tmeta l4proto tcp dnat ip to numgen random mod 4 map", "SUB 3 : =9 : ", {WEB}),
    ("\t\tmeta l4proto tcp dnat ip to numgen random mod 4 map", "SUB mod 4=mod 4 offset 2", {WEB}),
    ("update @affinity-2EXGB2NP", "SUB { ip saddr }={ ip daddr }", {STICKY}),
    ("\t\tgoto service-F7WZT7J3-default/np-cluster/udp/p53udp", "meta l4proto tcp goto service-F7WZT7J3-default/np-cluster/udp/p53udp", {"NodePort 30102/UDP (IPv4)"}),
    ("\t\tgoto service-F7WZT7J3-default/np-cluster/udp/p53udp", "meta l4proto != sctp goto service-F7WZT7J3-default/np-cluster/udp/p53udp", {"NodePort 30102/UDP (IPv4)"}),
    ("\t\treject", "meta l4proto udp reject", {"10.96.30.10:80/TCP", "NodePort 30108/TCP (IPv4)"}),
    ("ct status dnat ip saddr . ip daddr", "SUB @hairpin=!= @hairpin", None),
    ("ct status dnat ip saddr . ip daddr", "SUB ct status dnat=ct status & dnat == 0", None),
    ("10.96.30.1, 10.96.30.2,", "SUB 10.96.30.1,=10.244.1.3, 10.96.30.1,", AT_LAST_POD),
    ('elements = { 10.96.30.10 . tcp . 80 comment "default/empty:p80tcp"', "SUB { 10.96={ 10.96.30.1 . tcp . 80 : drop, 10.96", {WEB}),
    ("meta mark & 0x00004000 != 0x00000000", "SUB masquerade fully-random=meta l4proto { tcp, udp } masquerade to :7", None),
    (SERVICE_WEB, "LINE\nip saddr 10.244.0.0/16 return", {WEB}),
    (SERVICE_WEB, "LINE\nmeta mark set meta mark | 0x4000", {WEB}),
    (SERVICE_WEB, "LINE\nmeta length 77 drop", {WEB}),
    ("chain endpoint-2EXGB2NP-default/sticky/tcp/p80tcp__10.244.1.3/8080 {", "LINE\nmeta length 77 return", {STICKY}),
]  # fmt: skip


def of_nftables(namespace: Namespace, text: str) -> Report:
    namespace.nft("-f", "-", stdin="flush ruleset\n" + text)
    made = facts(
        *recorded_objects(), node=None, mode="nftables", here=NodeFacts(interfaces=recorded_interfaces("nftables"))
    )
    made.dataplanes = tuple(filter(None, [inside(namespace, nft_entries.read)]))
    return report(made, Proof("accepted"))


@needs_root
@needs("nft")
@pytest.mark.parametrize("planted", IN_NFTABLES, ids=[f"{i}-{one[0][:25]}" for i, one in enumerate(IN_NFTABLES)])
def test_in_nftables(namespace: Namespace, planted: tuple[str, str, set[str] | None]) -> None:
    pattern, to, wanted = planted
    if to.startswith("SUB "):
        old, _, new = to[4:].partition("=")
        line = next(line for line in NFT.splitlines() if pattern in line)
        assert old in line
        to = line.replace(old, new, 1)
    made = of_nftables(namespace, plant(NFT, re.escape(pattern), to))
    found = changed(made)
    assert made.verdict == "ready-with-changes"
    if wanted is None:
        passing = {RANGES} if "firewall" in pattern else {WEB} if "@cluster-ips" in pattern else {WEB, RANGES}
        assert found & {WEB, RANGES} == passing
    else:
        assert found == wanted


@needs_root
@needs("nft")
def test_nodeports_without_addresses(namespace: Namespace) -> None:
    line = "\t\telements = { 192.168.77.2 }\n"
    assert line in NFT
    made = of_nftables(namespace, NFT.replace(line, "", 1))
    found = changed(made)
    assert OF_NP_LOCAL in found and all("IPv4" in address for address in found)
    [told] = [f for f in made.findings if f.check == "nodeport-addresses"]
    assert (told.severity, "no IPv4 address" in told.title, made.verdict) == ("change", True, "ready-with-changes")


@needs_root
@needs("nft")
def test_a_map_of_verdicts_that_drops_some(namespace: Namespace) -> None:
    """Which no reader of the others' trips over."""
    name = "service-RGK6XW73-default/sticky/tcp/p80tcp"
    last = next(line for line in NFT.splitlines() if "numgen random mod 3 vmap" in line)
    to = re.sub(r"0 : goto \S+?,", "0 : drop,", last)
    assert to != last
    made = of_nftables(namespace, NFT.replace(last, to, 1))
    assert made.compared and changed(made) == {STICKY}, name
