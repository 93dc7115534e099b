"""What is read of kube-proxy's own nftables tables, against what the same objects ask for."""

from __future__ import annotations

import ipaddress
import re

import pytest

from proxy.migrate.entries import Dataplane
from proxy.migrate.nft_chains import name_of
from proxy.migrate.nft_entries import of_tables, read
from proxy.migrate.nft_table import NftTable, read_table
from rules.elements import address_range, endpoint
from rules.foreign import Changed, Reader
from rules.objects import Family
from tests.dataplane_model import read_rows, recorded_world, rows
from tests.dataplanes import inside, needs, needs_root, recorded, restore_nftables
from tests.netns import Namespace

pytestmark = [needs_root, needs("nft")]
TEXT = recorded("nftables", "nft-ruleset.txt")
EXPECTED = rows(recorded_world())
WEB, LOCAL, RANGES = "10.96.30.1:80/TCP", "NodePort 30103/TCP IPv4", "198.51.100.31:443/TCP"
STICKY, EMPTY = "10.96.30.9:80/TCP", "10.96.30.10:80/TCP"


def of(namespace: Namespace, text: str) -> Dataplane:
    namespace.nft("-f", "-", stdin=text)
    found = inside(namespace, read)
    assert found is not None
    return found


def changed(found: Dataplane) -> set[str]:
    there = read_rows(found)
    return {key for key in there.keys() | EXPECTED.keys() if there.get(key) != EXPECTED.get(key)}


def once(old: str, new: str, *, text: str = TEXT) -> str:
    assert text.count(old) == 1, (text.count(old), old)
    return text.replace(old, new)


def test_recording_is_what_its_objects_ask_for(namespace: Namespace) -> None:
    restore_nftables(namespace)
    found = inside(namespace, read)
    assert found is not None
    assert read_rows(found) == EXPECTED
    assert (found.unread, found.remarks) == ((), ())
    assert (found.mode, found.source, found.masquerade_mark) == ("nftables", "netlink", 0x4000)
    assert found.nodeport_addresses == (bytes((192, 168, 77, 2)), bytes.fromhex("fd770000000000000000000000000002"))


def test_nothing_there(namespace: Namespace) -> None:
    assert inside(namespace, read) is None
    namespace.nft("add", "table", "inet", "kube-proxy")
    namespace.nft("add", "table", "ip", "kube-proxy-nft")
    assert inside(namespace, read) is None
    assert inside(namespace, lambda: read(lambda *_: "loadable")) is None


def test_one_family_alone(namespace: Namespace) -> None:
    restore_nftables(namespace)
    namespace.nft("delete", "table", "ip", "kube-proxy")
    found = inside(namespace, read)
    assert found is not None
    assert set(read_rows(found)) == {key for key in EXPECTED if key.startswith("[") or key.endswith("IPv6")}


CHAIN_WEB = "chain service-ZXGTDUEP-default/web/tcp/p80tcp {"
ENDS = ("10.244.0.2 . 8080", "10.244.0.3 . 8080", "10.244.1.2 . 8080", "10.244.1.3 . 8080")


def balance(*ends: str) -> str:
    numbered = ", ".join(f"{number} : {end}" for number, end in enumerate(ends))
    return f"\t\tmeta l4proto tcp dnat ip to numgen random mod {len(ends)} map {{ {numbered} }}\n" if ends else ""


def web(*ends: str) -> str:
    """Other endpoints in one Service's chain."""
    return once(f"\t{CHAIN_WEB}\n{balance(*ENDS)}", f"\t{CHAIN_WEB}\n{balance(*ends)}")


STICKY_GOTO = re.search(r"\t\tip saddr @affinity-CLQKDMNA\S+ goto \S+\n", TEXT)
assert STICKY_GOTO
UPDATE = re.search(r"\t\tupdate @affinity-CLQKDMNA.*\n", TEXT)
assert UPDATE
OF_LOCAL = "goto service-LA6KMCD6-default/np-local/tcp/p80tcp"
DAMAGES: dict[str, tuple[str, set[str]]] = {
    "endpoint goes": (web(*ENDS[:3]), {WEB}),
    "stale endpoint": (web(*ENDS[:3], "10.244.9.9 . 8080"), {WEB}),
    "endpoint added": (web(*ENDS, "10.244.9.9 . 8080"), {WEB}),
    "another port": (web(*ENDS[:3], "10.244.1.3 . 8081"), {WEB}),
    "empty chain": (web(), {WEB}),
    "Service goes": (once("\t\t\t     10.96.30.1 . tcp . 80 : goto service-ZXGTDUEP-default/web/tcp/p80tcp,\n", ""), {WEB}),
    "unknown Service": (
        once(
            "10.96.30.1 . tcp . 80 : goto service-ZXGTDUEP-default/web/tcp/p80tcp,",
            "10.96.30.1 . tcp . 80 : goto service-ZXGTDUEP-default/web/tcp/p80tcp,"
            "10.96.77.7 . tcp . 80 : goto service-ZXGTDUEP-default/web/tcp/p80tcp,",
        ),
        {"10.96.77.7:80/TCP"},
    ),
    "swapped chain": (
        once("10.96.30.1 . tcp . 80 : goto service-ZXGTDUEP-default/web/tcp/p80tcp,", "10.96.30.1 . tcp . 80 : goto service-KZT63BFC-default/ext/tcp/p80tcp,"),
        {WEB},
    ),
    "refusal goes": (once('elements = { 10.96.30.10 . tcp . 80 comment "default/empty:p80tcp" : goto reject-chain }', ""), {EMPTY}),
    "refused otherwise": (once('10.96.30.10 . tcp . 80 comment "default/empty:p80tcp" : goto reject-chain', '10.96.30.10 . tcp . 80 comment "default/empty:p80tcp" : drop'), {EMPTY}),
    "NodePort's refusal goes": (once('tcp . 30104 comment "default/np-local-empty:p80tcp" : drop,', ""), {"NodePort 30104/TCP IPv4"}),
    "NodePort goes": (once("\t\t\t     tcp . 30103 : goto external-LA6KMCD6-default/np-local/tcp/p80tcp,\n", ""), {LOCAL}),
    "affinity goes": (re.sub(r"\t\tip saddr @affinity-.*\n", "", TEXT), {STICKY}),
    "affinity of one endpoint goes": (once(STICKY_GOTO[0], ""), {STICKY}),
    "affinity is not remembered": (once(UPDATE[0], ""), {STICKY}),
    "another timeout": (TEXT.replace("timeout 1h", "timeout 1m"), {STICKY}),
    "source range goes": (once("{ 192.168.77.0/30, 198.51.100.31, 203.0.113.0/24 }", "{ 192.168.77.0/30, 198.51.100.31 }"), {RANGES}),
    "source range grows": (once("203.0.113.0/24 }", "203.0.112.0/23 }"), {RANGES}),
    "one source range": (once("{ 192.168.77.0/30, 198.51.100.31, 203.0.113.0/24 }", "192.168.77.0/30"), {RANGES}),
    "a plain source range": (once("{ 192.168.77.0/30, 198.51.100.31, 203.0.113.0/24 }", "192.168.77.1-192.168.77.9"), {RANGES}),
    "source ranges go": (once("elements = { 198.51.100.31 . tcp . 443 : goto firewall-BNHWY6Q2-default/lb-ranges/tcp/p443tcp }", ""), {RANGES}),
    "policy becomes Cluster": (once("\t\tgoto local-LA6KMCD6-default/np-local/tcp/p80tcp\n", f"\t\t{OF_LOCAL}\n"), {LOCAL}),
    "pods do not get all": (once(f'\t\tip saddr 10.244.0.0/16 {OF_LOCAL} comment "short-circuit pod traffic"\n', ""), {LOCAL}),
    "other pods are meant": (once(f"ip saddr 10.244.0.0/16 {OF_LOCAL}", f"ip saddr 10.0.0.0/8 {OF_LOCAL}"), {LOCAL}),
    "the node does not get all": (once(f'\t\tfib saddr type local {OF_LOCAL} comment "short-circuit local traffic"\n', ""), {LOCAL}),
    "masquerading goes": (
        once('\t\tmeta mark set meta mark | 0x00004000 comment "masquerade"\n\t\tgoto service-VQMSGQ5R-default/lb/tcp/p443tcp\n', "\t\tgoto service-VQMSGQ5R-default/lb/tcp/p443tcp\n"),
        {"198.51.100.30:443/TCP", "NodePort 30105/TCP IPv4"},
    ),
    "everything is masqueraded": (
        once(f'fib saddr type local meta mark set meta mark | 0x00004000 comment "masquerade local traffic"\n\t\tfib saddr type local {OF_LOCAL}', f"meta mark set meta mark | 0x00004000\n\t\tfib saddr type local {OF_LOCAL}"),
        {LOCAL},
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_changes_the_entries_concerned_and_no_other(damage: str, namespace: Namespace) -> None:
    text, concerned = DAMAGES[damage]
    assert text != TEXT
    assert changed(of(namespace, text)) == concerned


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("\t\tgoto local-LA6KMCD6-default/np-local/tcp/p80tcp\n", "\t\tlimit rate 5/second goto local-LA6KMCD6-default/np-local/tcp/p80tcp\n", "expressions that kube-proxy does not use: limit"),
        ("\t\tgoto local-LA6KMCD6-default/np-local/tcp/p80tcp\n", "\t\tip daddr 1.2.3.4 goto local-LA6KMCD6-default/np-local/tcp/p80tcp\n", "not a rule that"),
        ("hook prerouting priority dstnat; policy accept;\n\t\tjump services", "hook prerouting priority dstnat; policy accept;", "reach no Service"),
        ("hook output priority -100; policy accept;\n\t\tjump services", "hook output priority -100; policy accept;", "from this node reach no Service"),
        ("hook prerouting priority dstnat - 10; policy accept;\n\t\tct state new jump firewall-check", "hook prerouting priority dstnat - 10; policy accept;", "keep nobody out"),
        ("hook postrouting priority srcnat; policy accept;\n\t\tjump masquerading", "hook postrouting priority srcnat; policy accept;", "nothing is masqueraded"),
        ("\t\tmeta mark & 0x00004000 != 0x00000000 meta mark set meta mark ^ 0x00004000 masquerade fully-random\n", "", "nothing is masqueraded but hairpin"),
        ("\t\tct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random\n", "", "connects to itself is not masqueraded"),
        (re.search("\t\tip daddr @cluster-ips ip saddr != .*\n", TEXT)[0], "", "what comes to clusterIPs from elsewhere"),  # type: ignore[index]
        ("10.96.30.1, 10.96.30.2,", "10.96.30.2,", "its address is not in the set cluster-ips"),
        ('\t\tip daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"\n', "", "a clusterIP's other ports is not refused"),
        ("3 : 10.244.1.3 . 8080", "3 : 10.244.1.2 . 8080", "more than once"),
        ("table ip kube-proxy {", "table ip kube-proxy {\n flags dormant;", "it is dormant"),
        ("10.96.30.1 . tcp . 80 : goto service-ZXGTDUEP-default/web/tcp/p80tcp,", "10.96.30.1 . tcp . 80 : accept,", "a verdict that kube-proxy does not use"),
        ("\t\tmeta l4proto tcp dnat ip to numgen random mod 2 map { 0 : 10.244.0.2 . 8080, 1 : 10.244.1.3 . 8080 }", "\t\tmeta l4proto tcp dnat ip to numgen random mod 5 map { 0 : 10.244.0.2 . 8080, 1 : 10.244.1.3 . 8080 }", "a number below 5 for a map of 2"),
    ],
)  # fmt: skip
def test_what_is_not_understood_or_missing_is_named(old: str, new: str, words: str, namespace: Namespace) -> None:
    found = of(namespace, TEXT.replace(old, new, 1))
    assert old in TEXT
    told = (*found.unread, *found.remarks)
    assert any(words in unread.cause for unread in told), told
    assert all("kube-proxy" in unread.remedy for unread in told)


def test_what_stands_beside_the_entries(namespace: Namespace) -> None:
    beside = of(namespace, TEXT).beside
    assert beside.pods == {"ip": "10.244.0.0/16", "ip6": "fd44::/48"}
    assert beside.hairpins is not None and len(beside.hairpins) == 6
    assert bytes((17,)) + endpoint(bytes((10, 244, 0, 2)), 5353) in beside.hairpins
    networks = [ipaddress.ip_network(text) for text in ("10.96.0.0/12", "fd00:10:96::/112")]
    assert beside.dropped == tuple(map(address_range, networks))


def test_a_hairpin_and_a_range_that_are_gone(namespace: Namespace) -> None:
    text = once("10.244.0.2 . 10.244.0.2 . tcp . 8080,", "").replace("10.244.0.0/16", "10.245.0.0/16")
    dropping = re.search("\t\tip daddr 10.96.0.0/12 drop .*\n", text)
    assert dropping
    beside = of(namespace, text.replace(dropping[0], "")).beside
    assert beside.pods["ip"] == "10.245.0.0/16"
    assert beside.hairpins is not None and bytes((6,)) + endpoint(bytes((10, 244, 0, 2)), 8080) not in beside.hairpins
    assert beside.dropped == (address_range(ipaddress.ip_network("fd00:10:96::/112")),)


def test_foreign_counters_do_no_harm(namespace: Namespace) -> None:
    text = TEXT.replace("\t\tgoto local-LA6KMCD6", "\t\tcounter goto local-LA6KMCD6")
    found = of(namespace, text)
    assert (changed(found), found.unread) == (set(), ())


def test_without_permission(namespace: Namespace) -> None:
    restore_nftables(namespace)
    found = inside(namespace, read, privileged=False)
    assert found is not None
    assert found.entries == ()
    assert "permission" in found.unread[0].cause
    assert "root" in found.unread[0].remedy


def test_a_table_that_never_stands_still(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    restore_nftables(namespace)

    def restless(*_: object) -> None:
        raise Changed

    monkeypatch.setattr(Reader, "sets", restless)
    found = inside(namespace, read)
    assert found is not None
    assert [unread.what for unread in found.unread] == ["nftables table ip kube-proxy", "nftables table ip6 kube-proxy"]
    assert found.entries == ()


def test_replies_that_cannot_be(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    restore_nftables(namespace)
    monkeypatch.setattr(Reader, "rules", lambda *_: [b"\1\0\0\0"])
    found = inside(namespace, read)
    assert found is not None
    assert "cannot be understood" in found.unread[0].cause


def test_reading_changes_nothing(namespace: Namespace) -> None:
    restore_nftables(namespace)
    before = namespace.nft("list", "ruleset")
    inside(namespace, read)
    assert namespace.nft("list", "ruleset") == before


def test_a_table_that_was_read_is_judged_without_the_kernel(namespace: Namespace) -> None:
    restore_nftables(namespace)

    def tables() -> list[NftTable]:
        with Reader() as reader:
            return [table for family in Family if (table := read_table(reader, family))]

    assert read_rows(of_tables(*inside(namespace, tables))) == EXPECTED


@pytest.mark.parametrize(
    ("chain", "name"),
    [
        ("service-ZXGTDUEP-default/web/tcp/p80tcp", "default/web:p80tcp"),
        ("external-P6J77WGM-riset/hellopod-np-svc/tcp/", "riset/hellopod-np-svc"),
        ("endpoint-VNXJG24O-a/b/udp/c__fd00.10..2/8080", "a/b:c"),
        ("nat-prerouting", ""),
    ],
)
def test_names(chain: str, name: str) -> None:
    assert name_of(chain) == name
