"""Base chains whose hook, priority or policy somebody has changed by hand: seen, and judged by what packets do there."""

from __future__ import annotations

import re
import socket
import threading

import pytest
from msgspec.structs import replace

from proxy.migrate import chain_places, live
from proxy.migrate.entries import Dataplane, Entry
from proxy.migrate.facts import BaseChain
from rules.elements import describe_key
from tests.dataplanes import inside, needs, needs_root, recorded, restore_iptables, run
from tests.netns import Namespace

pytestmark = [needs_root, needs("nft", "iptables-nft-save", "iptables-nft-restore")]
NFT = recorded("nftables", "nft-ruleset.txt")
WEB, EXTERNAL, RANGES, EMPTY = "10.96.30.1:80/TCP", "192.0.2.30:80/TCP", "198.51.100.31:443/TCP", "10.96.30.10:80/TCP"
NODE_PORT = "NodePort 30103/TCP (IPv4)"
SHOWN = {WEB, EXTERNAL, RANGES, EMPTY, NODE_PORT}
OTHER = "table ip other {\n chain o {\n  type nat hook HOOK priority -100;\n  ip daddr 1.2.3.4 counter\n }\n}\n"


def look(namespace: Namespace, mode: str) -> Dataplane:
    def looked() -> list[Dataplane]:
        found = live.Look()
        found.wait()
        assert found.unread == []
        return [one for one in found.dataplanes if one.mode == mode]

    [found] = inside(namespace, looked)
    return found


def damaged(found: Dataplane) -> set[str]:
    """Of some addresses of each kind, those whose traffic is not as it should be."""
    keys = {describe_key(entry.key) for entry in found.entries if entry.damaged}
    six = {key for key in keys if key.startswith("[") or key.endswith("(IPv6)")}
    assert not six, "the other family's chains are as they were"
    return keys & SHOWN


def causes(found: Dataplane) -> str:
    return "\n".join(f"{remark.what}: {remark.cause}" for remark in found.remarks)


def chain(name: str, **changes: str) -> str:
    """The recorded table with another type, hook, priority or policy of a base chain."""
    [line] = re.findall(rf"\tchain {name} {{\n(.*)\n", NFT.partition("table ip6")[0])
    found = re.fullmatch(
        r"\t\ttype (?P<type>\w+) hook (?P<hook>\w+) priority (?P<priority>[^;]+); policy (?P<policy>\w+);", line
    )
    assert found
    now = found.groupdict() | changes
    text = f"\t\ttype {now['type']} hook {now['hook']} priority {now['priority']}; policy {now['policy']};"
    return NFT.replace(f"\tchain {name} {{\n{line}", f"\tchain {name} {{\n{text}", 1)


IN_NFTABLES: dict[str, tuple[str, set[str], str]] = {
    "as it was": (NFT, set(), ""),
    # Behind nothing, and behind another program's.
    "nat, no other": (chain("nat-prerouting", priority="50"), set(), "no packet of a Service fares differently"),
    "nat, behind another": (
        chain("nat-prerouting", priority="50") + OTHER.replace("HOOK", "prerouting"),
        SHOWN,
        "prerouting 50) and not -100: behind ip other o (-100)",
    ),
    "nat, before another": (
        chain("nat-output", priority="-150") + OTHER.replace("HOOK", "output"),
        SHOWN,
        "output -150) and not -100: before ip other o (-100)",
    ),
    "nat, another elsewhere": (
        chain("nat-output", priority="-150") + OTHER.replace("HOOK", "prerouting"),
        set(),
        "no packet of a Service fares differently",
    ),
    "masquerading, behind another": (
        chain("nat-postrouting", priority="150") + OTHER.replace("HOOK priority -100", "postrouting priority 100"),
        SHOWN,
        "postrouting 150) and not 100: behind ip other o (100)",
    ),
    # Source ranges are about Services' addresses; what is left of clusterIPs, about endpoints' no more.
    "ranges behind the translation": (chain("filter-prerouting-pre-dnat", priority="-50"), {RANGES}, "source ranges keep nobody out"),
    "ranges at the translation": (chain("filter-output-pre-dnat", priority="-100"), {RANGES}, "source ranges keep nobody out"),
    "ranges before the tracking": (chain("filter-prerouting-pre-dnat", priority="-300"), {RANGES}, "before connections are tracked"),
    "clusterIPs before the translation": (chain("filter-output", priority="-150"), {WEB, EMPTY}, "connections to all clusterIPs are refused"),
    "clusterIPs at another hook": (
        chain("filter-forward", hook="prerouting", priority="-150"), {WEB, EMPTY}, "connections to all clusterIPs are refused",
    ),
    "refusals before the tracking": (chain("filter-output", priority="-250"), {EMPTY}, "before connections are tracked"),
    "forwarded ones at another priority": (chain("filter-forward", priority="50"), set(), "no packet fares differently"),
    "as 1.31 has it": (chain("filter-forward", priority="-110"), set(), ""),
    "another hook": (chain("filter-input", hook="forward"), set(), "connections to NodePorts without endpoints are not refused"),
    "the ways that are there at another hook": (chain("nat-prerouting", hook="output", priority="-100"), SHOWN - {EMPTY}, "reach no Service"),
    "nothing passes": (chain("filter-forward", policy="drop"), SHOWN, "what no rule of it accepts is dropped"),
    "nothing else passes": (chain("nat-output", policy="drop"), SHOWN, "what is led to no Service is dropped"),
}  # fmt: skip


@pytest.mark.parametrize("change", IN_NFTABLES)
def test_of_kube_proxys_nftables_tables(change: str, namespace: Namespace) -> None:
    text, concerned, said = IN_NFTABLES[change]
    namespace.nft("-f", "-", stdin=text)
    found = look(namespace, "nftables")
    assert damaged(found) == concerned, causes(found)
    assert said in causes(found)
    assert bool(found.remarks) is bool(said)


IN_IPTABLES: dict[str, tuple[str, str, str, set[str], str]] = {
    "as it was": ("nat", "OUTPUT", "type nat hook output priority -100", set(), ""),
    "nat, no other": ("nat", "OUTPUT", "type nat hook output priority 50", set(), "no packet of a Service fares differently"),
    "nat, behind another": ("nat", "PREROUTING", "type nat hook prerouting priority 50", SHOWN, "behind ip other o (-100)"),
    "nat, another hook": ("nat", "PREROUTING", "type nat hook output priority -100", SHOWN, "reach no Service"),
    "no base chain": ("nat", "OUTPUT", "", SHOWN, "OUTPUT is no base chain"),
    "nothing else passes": ("nat", "OUTPUT", "type nat hook output priority -100; policy drop", SHOWN, "its policy is drop"),
    "ranges before the translation": ("filter", "OUTPUT", "type filter hook output priority -150", {RANGES}, "what source ranges let in is dropped"),
    "before the tracking": ("filter", "OUTPUT", "type filter hook output priority -250", {RANGES, EMPTY}, "are not refused"),
    "forwarded ones at another hook": ("filter", "FORWARD", "type filter hook input priority 0", {RANGES, EMPTY}, "may not be forwarded"),
    "forwarded ones at another priority": ("filter", "FORWARD", "type filter hook forward priority 50", set(), "fares differently"),
    "what a firewall does": ("filter", "FORWARD", "type filter hook forward priority 0; policy drop", set(), ""),
}  # fmt: skip
JUMPS = {
    ("nat", "PREROUTING"): ["KUBE-SERVICES"],
    ("nat", "OUTPUT"): ["KUBE-SERVICES"],
    ("filter", "OUTPUT"): ["KUBE-PROXY-FIREWALL", "KUBE-SERVICES"],
    ("filter", "FORWARD"): ["KUBE-PROXY-FIREWALL", "KUBE-FORWARD", "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"],
}


@pytest.mark.parametrize("change", IN_IPTABLES)
def test_of_iptables_nft(change: str, namespace: Namespace) -> None:
    table, name, place, concerned, said = IN_IPTABLES[change]
    restore_iptables(namespace, "iptables", "nft")
    namespace.nft("-f", "-", stdin=OTHER.replace("HOOK", "prerouting"))
    rules = [f"flush chain ip {table} {name}", f"delete chain ip {table} {name}"]
    rules.append(f"add chain ip {table} {name} {{ {place}; }}" if place else f"add chain ip {table} {name}")
    for to in JUMPS[table, name]:
        # For all packets: iptables' own match of states cannot be written with nft.
        rules.append(f"add rule ip {table} {name} counter jump {to}")
    namespace.nft("-f", "-", stdin="\n".join(rules))
    found = look(namespace, "iptables")
    assert found.entries and found.unread == ()
    assert damaged(found) == concerned, causes(found)
    assert said in causes(found)
    assert bool(found.remarks) is bool(said)


def test_of_a_family_that_is_legacys(namespace: Namespace) -> None:
    """Chains of iptables-nft are nobody's then."""
    entry = Entry(bytes((10, 96, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0)))
    chains = BaseChain("ip", "nat", "OUTPUT", "nat", "output", 50, "drop", 3, "iptables")
    for source, number in (("iptables-legacy-save", 0), ("iptables-nft-save, iptables-legacy-save", 2), ("netlink", 2)):
        one = Dataplane("iptables", (entry,), source=source)
        assert len(chain_places.judged(one, [chains]).remarks) == number


def test_of_ipvs_mode() -> None:
    """IPVS leads; these chains masquerade and guard."""
    entry = Entry(bytes((10, 96, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0)))
    guarded = Entry(bytes((10, 96, 0, 2, 6, 0, 0, 0, 0, 80, 0, 0)), sources=())
    one = Dataplane("ipvs", (entry, guarded), source="netlink")
    usual = BaseChain("ip", "nat", "OUTPUT", "nat", "output", -100, "accept", 3, "iptables")
    assert chain_places.judged(one, [usual]) == one
    for chain_, concerned in (
        (replace(usual, hook="prerouting"), [True, True]),
        (replace(usual, family="ip6", hook="prerouting"), [False, False]),
        (replace(usual, table="filter", name="INPUT", kind="filter", hook="output", priority=0), [False, True]),
        (replace(usual, table="filter", name="INPUT", kind="filter", hook="input", priority=7), [False, False]),
    ):
        found = chain_places.judged(one, [chain_])
        assert [entry.damaged for entry in found.entries] == concerned
        assert bool(found.remarks) is (chain_.family == "ip")


# -- What packets do ---------------------------------------------------------------------------------------------------

TABLE = """
table ip kube-proxy {
 set cluster-ips { type ipv4_addr; elements = { 10.96.30.1, 10.96.30.2 } }
 chain guard { type filter hook output priority GUARD; ct state new ip daddr 10.96.30.2 drop
 }
 chain nat { type nat hook output priority NAT; policy POLICY; tcp dport 80 ip daddr @cluster-ips dnat to 127.0.0.1:PORT
 }
 chain rest { type filter hook output priority REST; ct state new ip daddr @cluster-ips drop
 }
}
table ip other {
 chain o { type nat hook output priority -100; tcp dport 80 ip daddr 10.96.30.1 dnat to 127.0.0.1:9
 }
}
"""


@pytest.mark.parametrize(
    ("places", "led", "guarded"),
    [
        ({"NAT": "-101"}, True, True),
        ({"NAT": "50"}, False, True),
        ({"NAT": "-101", "POLICY": "drop"}, True, True),
        ({"NAT": "-101", "REST": "-150"}, False, True),
        ({"NAT": "-101", "REST": "-250"}, True, True),
        ({"NAT": "-101", "GUARD": "-50"}, True, False),
        ({"NAT": "-101", "GUARD": "-250"}, True, False),
    ],
)
def test_that_packets_do_so(places: dict[str, str], led: bool, guarded: bool, namespace: Namespace) -> None:
    run(namespace, "ip", "link", "set", "lo", "up")
    run(namespace, "ip", "route", "add", "default", "dev", "lo")
    listener = inside(namespace, lambda: socket.create_server(("127.0.0.1", 0)))
    text = TABLE.replace("PORT", str(listener.getsockname()[1]))
    for word, usual in (("GUARD", "-110"), ("NAT", "-100"), ("POLICY", "accept"), ("REST", "0")):
        text = text.replace(word, places.get(word, usual))
    namespace.nft("-f", "-", stdin=text)

    def connects(address: str) -> bool:
        try:
            socket.create_connection((address, 80), 0.3).close()
        except OSError:
            return False
        return True

    with listener:
        results: dict[str, bool] = {}
        threads = [
            threading.Thread(target=lambda a=a: results.update({a: inside(namespace, lambda: connects(a))}))
            for a in ("10.96.30.1", "10.96.30.2")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {"10.96.30.1": led, "10.96.30.2": not guarded}
