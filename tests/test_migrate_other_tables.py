"""Other programs' nftables tables: marks, translations, and what they drop of connections to pods."""

from __future__ import annotations

import ipaddress
import struct

import pytest

from proxy.detect.kernel_support import KernelFiles
from proxy.migrate import base_chains
from proxy.migrate.facts import ForwardFilter, MarkUse, Translation
from proxy.migrate.nft_marks import used
from proxy.migrate.other_tables import OtherTables
from rules import expressions as e
from rules.netlink import u32
from tests.dataplanes import inside, needs, needs_root
from tests.netns import Namespace

pytestmark = [needs_root, needs("nft")]
PODS = (ipaddress.ip_network("10.244.0.0/16"), ipaddress.ip_network("fd44::/48"))
FORWARD = "type filter hook forward priority 0; policy {}"
ALL = 0xFFFFFFFF
NEW_ONLY = "ct state established,related accept"
FIREWALLD = """
table inet firewalld {
  chain zones { iifname "eth0" meta mark & 0x4000 == 0x4000 accept; }
  chain filter_FORWARD {
    type filter hook forward priority 10; policy accept;
    ct state { established, related } accept
    ct status dnat accept
    ct state invalid drop
    jump zones
    reject
  }
}
"""


def of(namespace: Namespace, text: str) -> OtherTables:
    namespace.nft("-f", "-", stdin=text)

    def look() -> OtherTables:
        found = OtherTables()
        found.read(base_chains.read(KernelFiles().presence)[0])
        return found

    return inside(namespace, look)


def lets(found: OtherTables) -> dict[str, str]:
    filters: list[ForwardFilter] = found.forward(PODS)
    assert all(one.apart for one in filters)
    return {one.place: one.lets_dnat for one in filters}


@pytest.mark.parametrize(
    ("policy", "rules", "wanted"),
    [
        ("drop", [NEW_ONLY], "no"),
        ("drop", [NEW_ONLY, "ip daddr 10.244.0.0/16 accept"], "yes"),
        ("drop", [NEW_ONLY, "ip daddr 10.240.0.0/12 accept"], "yes"),
        ("drop", [NEW_ONLY, "ip daddr 10.244.0.0/24 accept"], "unknown"),
        ("drop", [NEW_ONLY, "ip daddr != 10.244.0.0/16 accept"], "no"),
        ("drop", ["ct status dnat accept"], "yes"),
        ("drop", ["tcp dport 80 accept"], "unknown"),
        ("drop", ['iifname "docker0" accept', 'iifname "cali*" accept'], "no"),
        ("drop", ["ct state vmap { established : accept, invalid : drop }"], "unknown"),
        ("drop", ["jump more"], "unknown"),
        ("accept", [NEW_ONLY], None),
        ("accept", ["ip saddr 192.0.2.0/24 drop"], "unknown"),
        ("accept", [NEW_ONLY, "reject"], "no"),
        ("accept", ["ip saddr 10.244.0.0/16 drop"], None),
        ("accept", ["ip daddr 192.0.2.0/24 drop"], None),
        ("accept", ['log prefix "x" counter drop'], "no"),
        ("accept", ["goto back", "drop"], None),
        ("accept", ["jump back", "drop"], "no"),
    ],
)
def test_what_is_forwarded(namespace: Namespace, policy: str, rules: list[str], wanted: str | None) -> None:
    chains = "chain more { tcp dport 80 accept; }\nchain back { return; }\n"
    lines = "\n".join([FORWARD.format(policy), *rules])
    found = of(namespace, f"table ip mine {{\n{chains}chain passing {{\n{lines}\n}}\n}}\n")
    assert lets(found) == ({} if wanted is None else {"chain ip mine passing": wanted})
    assert not found.unread


def test_a_table_for_both_families(namespace: Namespace) -> None:
    rules = f"table inet mine {{ chain passing {{ {FORWARD.format('drop')}; ip6 daddr fd44::/48 accept; }}; }}\n"
    found = of(namespace, FIREWALLD + rules)
    assert lets(found) == {"chain inet mine passing, ip": "no", "chain inet mine passing, ip6": "yes"}
    assert found.marks == [MarkUse("chain inet firewalld zones", 0x4000, "firewalld")]


@pytest.mark.parametrize("name", ["filter", "nat", "mangle"])
def test_a_table_that_is_called_as_those_of_iptables(namespace: Namespace, name: str) -> None:
    """As in the nftables.conf that comes with Debian."""
    found = of(namespace, f"table inet {name} {{ chain forward {{ {FORWARD.format('drop')}; }}; }}\n")
    assert lets(found) == {f"chain inet {name} forward": "no"}


def test_marks_and_translations(namespace: Namespace) -> None:
    found = of(
        namespace,
        """
table inet mine {
  chain pre {
    type filter hook prerouting priority -150;
    meta mark set meta mark | 0x4000
    meta mark & 0xff00 == 0x100 accept
    ct mark set meta mark
  }
  chain whole { type filter hook output priority -150; meta mark set 0x1; }
  chain nat {
    type nat hook prerouting priority -110;
    ip daddr 10.96.0.1 tcp dport 80 dnat ip to 10.9.9.9:81
    ip6 daddr fd00::/112 udp dport 53 redirect to :5353
    ip saddr 10.96.0.1 masquerade
  }
}
table ip kube-proxy { chain x { type filter hook output priority 0; meta mark set 0x4000; }; }
""".replace("ip saddr 10.96.0.1 masquerade\n", "ip saddr 10.96.0.1 accept\n"),
    )
    assert {(use.place, use.mask, use.of_connections) for use in found.marks} == {
        ("chain inet mine pre", 0x4000, False),
        ("chain inet mine pre", 0xFF00, False),
        ("chain inet mine pre", ALL, False),
        ("chain inet mine pre", ALL, True),
        ("chain inet mine whole", ALL, False),
    }
    assert found.translations == [
        Translation("chain inet mine nat", "10.96.0.1/32", "TCP", "80", "another address"),
        Translation("chain inet mine nat", "fd00::/112", "UDP", "53", "another address"),
    ]


@pytest.mark.parametrize(
    ("rule", "packet", "connection"),
    [
        ("ct mark set 0x1", 0, ALL),
        ("ct mark set ct mark | 0x100", 0, 0x100),
        ("ct mark set ct mark & 0xffffbfff", 0, 0x4000),
        ("ct mark set ct mark & 0xffffff00 | 0x1", 0, 0xFF),
        ("ct mark set ct mark ^ 0x4000", 0, 0x4000),
        ("ct mark set numgen inc mod 4", 0, ALL),
        ("ct mark set ip saddr map { 192.0.2.1 : 0x1 }", 0, ALL),
        ("ct mark set ct mark & 0xff map { 0x1 : 0x2 }", 0, ALL),
        ("ct mark & 0x4000 == 0x4000", 0, 0x4000),
        ("ct mark & 0xff == 0x1 ct mark & 0xff00 != 0", 0, 0xFFFF),
        ("ct mark 0x1 accept", 0, ALL),
        ("ct mark != 0", 0, ALL),
        ("ct mark 1-5", 0, ALL),
        ("ct mark != 1-5", 0, ALL),
        ("ct mark { 1, 2 }", 0, ALL),
        ("ct mark != { 1, 2 }", 0, ALL),
        ("ct mark & 0xf0 vmap { 0x10 : accept }", 0, 0xF0),
        ("ip saddr . ct mark { 192.0.2.1 . 0x1 }", 0, ALL),
        ("update @seen { ct mark }", 0, ALL),
        ("ct mark set meta mark", ALL, ALL),
        ("ct mark set meta mark & 0xff00", 0xFF00, ALL),
        ("meta mark set ct mark", ALL, ALL),
        ("meta mark set ct mark & 0xff", ALL, 0xFF),
        ("meta mark set meta mark & 0xffffff00 | 0x2", 0xFF, 0),
        ("ct mark & 0xff == 0x1 meta mark set meta mark | 0x80", 0x80, 0xFF),
        ("ct original ip saddr 192.0.2.1 ct state new meta priority set 3", 0, 0),
        ("ct label 3 ct zone set 3", 0, 0),
    ],
)
def test_marks_of_packets_and_of_connections(namespace: Namespace, rule: str, packet: int, connection: int) -> None:
    chain = f"chain pre {{ type filter hook prerouting priority -150; {rule}; }}"
    seen = "set seen { typeof ct mark; flags dynamic; timeout 1m; }"
    found = of(namespace, f"table ip mine {{ {seen}; {chain}; }}\n")
    place = "chain ip mine pre"
    assert set(found.marks) == {
        MarkUse(place, bits, "", of_connections)
        for bits, of_connections in ((packet, False), (connection, True))
        if bits
    }
    assert not found.unread


@pytest.mark.parametrize(
    ("op", "packet", "connection"),
    [(4, 0xFF00, 0xFF00), (5, 0xFF00, 0xFF00), (3, 0xFF00, ALL)],
    ids=["or", "xor", "and"],
)
def test_a_copy_that_newer_nft_writes_with_masks(op: int, packet: int, connection: int) -> None:
    """`ct mark set ct mark & 0xffff00ff | meta mark & 0xff00`, which the nft that is here cannot write."""
    first, second = e.WORD, e.WORD + 1
    two_registers = u32(1, first) + u32(2, first) + u32(3, 4) + u32(6, op) + u32(8, second)
    rule = (
        e.Conntrack(e.Conntrack.MARK, register=first),
        e.Bitwise(struct.pack("=I", 0xFFFF00FF), bytes(4), 4, first, first),
        e.Meta(e.Meta.MARK, register=second),
        e.Bitwise(struct.pack("=I", 0xFF00), bytes(4), 4, second, second),
        e.Unknown("bitwise", two_registers),
        e.Unknown("ct", u32(2, e.Conntrack.MARK) + u32(4, first)),
    )
    assert used(rule) == (packet, connection)
