"""What people see: nft lists our table, reads its own listing back, and takes our text for the same table."""

from __future__ import annotations

import ipaddress
import json
import random

import pytest

from rules.diff import scratch
from rules.dump import TableState
from rules.elements import Scheduler, ServicePort, address_range, endpoint, node_port_key, service_key
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
    Options(local_interface="cni0"),
    Options(local_interface_prefix="veth"),
    Options(),
    Options(masquerade_all=True, masquerade_mark=1 << 31),
    Options(local_networks=(ipaddress.ip_network("10.0.0.1/32"), ipaddress.ip_network("::/0"))),
]


def build(options: Options) -> list[Operation]:
    """Both tables with service ports of all kinds, sizes and protocols."""
    operations: list[Operation] = []
    for family in Family:
        ports, addresses = ports_of(family)
        operations += [*create(LAYOUTS[family], options, CIDRS), *scratch(family, ports, addresses).operations]
    return operations


def ports_of(family: Family) -> tuple[list[ServicePort], frozenset[bytes]]:
    """Service ports, and the addresses that NodePorts answer on."""
    rand = random.Random(1)
    v4 = family is Family.IPV4
    prefix, pods = ("10.96.0.", "10.244.0.") if v4 else ("fd00:10:96::", "fd44::")
    pod = int(ipaddress.ip_address(f"{pods}1"))
    ports = []
    for i, count in enumerate((0, 0, 1, 2, 3, 4, 5, 17, 300)):
        address = ipaddress.ip_address(f"{prefix}{i + 1}").packed
        external = ipaddress.ip_address(f"192.0.2.{i + 1}" if v4 else f"2001:db8::{i + 1}").packed
        protocol = (6, 17, 132)[i % 3]
        endpoints = tuple(
            endpoint((pod + j).to_bytes(family.address_size), rand.randrange(1, 65536)) for j in range(count)
        )
        here, timeout = endpoints[:2], (0, 10800, 90061)[i // 3]
        hairpins = tuple(e[:-4] for e in here)
        sources = tuple(
            address_range(ipaddress.ip_network(n))
            for n in (("10.0.0.0/8", "192.168.7.9/32") if v4 else ("fd00::/8", "2001:db8::9/128"))
        )
        name = f"default/s{i}:web"
        scheduler = (Scheduler.SH, Scheduler.RR, Scheduler.RANDOM)[i % 3]
        ports += [
            ServicePort(service_key(address, protocol, 80 + i), name, endpoints, hairpins, drop=i == 1, timeout=timeout, scheduler=scheduler, identity=i + 1),
            ServicePort(
                service_key(external, protocol, 80 + i), name, endpoints, hairpins, i == 1, True, i % 2 == 1,
                here if i % 2 else (), timeout, sources if i % 4 < 2 else None, scheduler, i + 1,
            ),
            ServicePort(
                node_port_key(family, protocol, 30000 + i), name, endpoints, hairpins, i == 1, True, i % 2 == 0,
                () if i % 2 else here, timeout, None, scheduler, i + 1,
            ),
        ]  # fmt: skip
    return ports, frozenset([ipaddress.ip_address("192.168.77.2" if v4 else "fd77::2").packed])


def dump(namespace: Namespace) -> list[TableState | None]:
    return [namespace.kernel.dump(layout.table) for layout in (V4, V6)]


@pytest.mark.parametrize(
    "options", OPTIONS, ids=["cluster-cidr", "bridge", "interfaces", "plain", "masquerade-all", "odd-networks"]
)
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


@pytest.mark.parametrize(
    "options", OPTIONS, ids=["cluster-cidr", "bridge", "interfaces", "plain", "masquerade-all", "odd-networks"]
)
def test_our_text_and_our_netlink_make_the_same_table(namespace: Namespace, options: Options) -> None:
    operations = build(options)
    namespace.kernel.commit(operations)
    programmed, listing = dump(namespace), namespace.nft("list", "ruleset")
    namespace.nft("flush", "ruleset")
    namespace.nft("-c", "-f", "-", stdin=render(operations))
    namespace.nft("-f", "-", stdin=render(operations))
    assert dump(namespace) == programmed
    assert words(namespace.nft("list", "ruleset")) == words(listing)


def words(listing: str) -> list[str]:
    """Elements and groups have no order."""
    return sorted(listing.replace(",", " ").split())


def test_an_element_shows_whose_it_is(namespace: Namespace) -> None:
    namespace.kernel.commit(build(OPTIONS[0]))
    assert '10.96.0.3 . sctp . 82 comment "default/s2:web"' in namespace.nft(
        "list", "map", "ip", V4.table.name, "cluster-ip-ports"
    )
    assert "fd00:10:96::3 . sctp . 82 . 0 : fd44::1 . " in namespace.nft(
        "list", "map", "ip6", V6.table.name, "endpoints"
    )


def test_a_comment_cannot_break_out_of_its_quotes() -> None:
    key = service_key(bytes([10, 96, 0, 1]), 6, 80)
    port = ServicePort(key, 'a" }\n}; flush ruleset #', (endpoint(bytes([10, 0, 0, 1]), 80),))
    text = render([*create(V4, Options(), ()), *scratch(Family.IPV4, [port]).operations])
    assert 'comment "a\' } }; flush ruleset #"' in text
