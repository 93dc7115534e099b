"""What people see: nft lists our table, reads its own listing back, and takes our text for the same table."""

from __future__ import annotations

import ipaddress
import json
import random

import pytest

from rules.diff import scratch
from rules.dump import TableState
from rules.elements import ServicePort, endpoint, service_key
from rules.layout import LAYOUTS, Options
from rules.objects import Family
from rules.tables import create
from rules.text import render
from rules.transaction import Operation
from tests.netns import Namespace

V4, V6 = LAYOUTS[Family.IPV4], LAYOUTS[Family.IPV6]
NETWORKS = (ipaddress.ip_network("10.244.0.0/16"), ipaddress.ip_network("fd44::/48"))
CIDRS = (ipaddress.ip_network("10.96.0.0/12"), ipaddress.ip_network("fd00:10:96::/112"))
OPTIONS = [
    Options(local_networks=NETWORKS),
    Options(),
    Options(masquerade_all=True, masquerade_mark=1 << 31),
    Options(local_networks=(ipaddress.ip_network("10.0.0.1/32"), ipaddress.ip_network("::/0"))),
]


def build(options: Options) -> list[Operation]:
    """Both tables with service ports of all sizes and protocols."""
    rand = random.Random(1)
    operations: list[Operation] = []
    for family, prefix, pods in ((Family.IPV4, "10.96.0.", "10.244.0."), (Family.IPV6, "fd00:10:96::", "fd44::")):
        ports = []
        for i, count in enumerate((0, 0, 1, 2, 3, 4, 5, 17, 300)):
            address = ipaddress.ip_address(f"{prefix}{i + 1}").packed
            pod = int(ipaddress.ip_address(f"{pods}1"))
            size = family.address_size
            endpoints = tuple(endpoint((pod + j).to_bytes(size), rand.randrange(1, 65536)) for j in range(count))
            key = service_key(address, (6, 17, 132)[i % 3], 80 + i)
            local = tuple(e[:-4] for e in endpoints[:2])
            ports.append(ServicePort(key, f"default/s{i}:web", endpoints, local, drop=i == 1))
        operations += [*create(LAYOUTS[family], options, CIDRS), *scratch(family, ports).operations]
    return operations


def dump(namespace: Namespace) -> list[TableState | None]:
    return [namespace.kernel.dump(layout.table) for layout in (V4, V6)]


@pytest.mark.parametrize("options", OPTIONS, ids=["cluster-cidr", "plain", "masquerade-all", "odd-networks"])
def test_nft_lists_our_tables_and_reads_its_listing_back(namespace: Namespace, options: Options) -> None:
    namespace.kernel.commit(build(options))
    before = dump(namespace)
    listing = namespace.nft("list", "ruleset")
    as_json = json.loads(namespace.nft("-j", "list", "ruleset"))
    assert {entry["table"]["name"] for entry in as_json["nftables"] if "table" in entry} == {"kube-proxy-nft"}
    for layout in (V4, V6):
        assert listing.count(layout.table.comment) == 2
        namespace.nft("delete", "table", layout.family.nft, layout.table.name)
    assert dump(namespace) == [None, None]
    namespace.nft("-f", "-", stdin=listing)
    assert namespace.nft("list", "ruleset") == listing
    assert dump(namespace) == before


@pytest.mark.parametrize("options", OPTIONS, ids=["cluster-cidr", "plain", "masquerade-all", "odd-networks"])
def test_our_text_and_our_netlink_make_the_same_table(namespace: Namespace, options: Options) -> None:
    operations = build(options)
    namespace.kernel.commit(operations)
    programmed, listing = dump(namespace), namespace.nft("list", "ruleset")
    namespace.nft("flush", "ruleset")
    namespace.nft("-c", "-f", "-", stdin=render(operations))
    namespace.nft("-f", "-", stdin=render(operations))
    assert dump(namespace) == programmed
    assert sorted(namespace.nft("list", "ruleset").split()) == sorted(listing.split())


def test_an_element_shows_whose_it_is(namespace: Namespace) -> None:
    namespace.kernel.commit(build(OPTIONS[0]))
    assert '10.96.0.3 . sctp . 82 comment "default/s2:web"' in namespace.nft(
        "list", "set", "ip", V4.table.name, "services-1"
    )
    assert "fd00:10:96::4 . tcp . 83 . 1 : fd44::2 . " in namespace.nft(
        "list", "map", "ip6", V6.table.name, "endpoints"
    )


def test_a_comment_cannot_break_out_of_its_quotes() -> None:
    key = service_key(bytes([10, 96, 0, 1]), 6, 80)
    port = ServicePort(key, 'a" }\n}; flush ruleset #', (endpoint(bytes([10, 0, 0, 1]), 80),))
    text = render([*create(V4, Options(), ()), *scratch(Family.IPV4, [port]).operations])
    assert 'comment "a\' } }; flush ruleset #"' in text
