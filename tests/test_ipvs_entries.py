"""IPVS's virtual servers and ipsets as entries of a dataplane: the recording, and what may be wrong with it."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.detect import ipset_members, ipvs_netlink
from proxy.detect.ipvs_netlink import DestinationReader
from proxy.detect.ipvs_table import UNKNOWN_TIME, Server, parse_proc, parse_saved
from proxy.migrate.entries import Entry
from proxy.migrate.ipvs_entries import of_text
from proxy.migrate.ipvs_merge import dataplane, of_kube_proxy
from rules.elements import describe_key, endpoint, service_key
from rules.netlink import attribute, nested
from tests.dataplanes import recorded

IPVSADM, IPSET = recorded("ipvs", "ipvsadm-save.txt"), recorded("ipvs", "ipset-save.txt")


def packed(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


def entries(ipvsadm: str = IPVSADM, ipset: str = IPSET) -> dict[str, Entry]:
    found = of_text(ipvsadm, ipset)
    assert found
    assert found.mode == "ipvs"
    return {describe_key(entry.key): entry for entry in found.entries}


def without(text: str, *lines: str) -> str:
    assert all(line in text for line in lines)
    return "\n".join(line for line in text.splitlines() if line not in lines) + "\n"


def test_the_recording() -> None:
    found = entries()
    assert len(found) == 30
    assert sum(name.startswith("NodePort") for name in found) == 8
    assert {entry.scheduler for entry in found.values()} == {"rr"}
    assert found["10.96.0.10:53/UDP"].endpoints == {
        endpoint(packed("10.244.0.2"), 5353),
        endpoint(packed("10.244.1.2"), 5353),
    }
    assert found["10.96.30.9:80/TCP"].affinity == 3600
    assert sum(entry.affinity for entry in found.values()) == 3600
    assert found["[fd00:10:96::30]:80/TCP"].endpoints == {
        endpoint(packed("fd44::2"), 8080),
        endpoint(packed("fd44:1::2"), 8080),
    }
    refusing = {name for name, entry in found.items() if entry.refusal}
    assert refusing == {"10.96.30.10:80/TCP", "NodePort 30108/TCP (IPv4)"}
    assert all((found[name].refusal, found[name].outside_refusal) == ("reject", "reject") for name in refusing)
    assert all(entry.outside == entry.endpoints for entry in found.values())
    keeps = {name for name, entry in found.items() if entry.keeps_source}
    assert keeps == {"198.51.100.32:443/TCP", *(f"NodePort {n}/TCP (IPv4)" for n in (30103, 30104, 30107))}
    assert {name for name, entry in found.items() if entry.keeps_source is None} == {
        name for name in found if name.startswith(("10.96.", "[fd00"))
    }


def test_who_may_use_a_load_balancer() -> None:
    found = entries()
    assert {name for name, entry in found.items() if entry.sources is not None} == {"198.51.100.31:443/TCP"}
    assert found["198.51.100.31:443/TCP"].sources == (
        (packed("192.168.77.0"), packed("192.168.77.3")),
        (packed("198.51.100.31"), packed("198.51.100.31")),  # the node's own address is in the range before
        (packed("203.0.113.0"), packed("203.0.113.255")),
    )
    lost = entries(ipset=without(IPSET, "add KUBE-LOAD-BALANCER-SOURCE-CIDR 198.51.100.31,tcp:443,203.0.113.0/24"))
    assert len(lost["198.51.100.31:443/TCP"].sources or ()) == 2
    open_ = entries(ipset=without(IPSET, "add KUBE-LOAD-BALANCER-FW 198.51.100.31,tcp:443"))
    assert open_["198.51.100.31:443/TCP"].sources is None
    everybody = "\n".join(
        f"add KUBE-LOAD-BALANCER-SOURCE-CIDR 198.51.100.31,tcp:443,{half}/1" for half in ("0.0.0.0", "128.0.0.0")
    )
    assert entries(ipset=IPSET + everybody)["198.51.100.31:443/TCP"].sources is None


def test_proc_says_the_same_but_for_the_order() -> None:
    members = ipset_members.parse_saved(IPSET)
    saved, proc = parse_saved(IPVSADM), parse_proc(recorded("ipvs", "proc-net-ip_vs.txt").splitlines(), ticks=250)
    virtual = members.addresses
    assert set(dataplane(proc, members, virtual, "").entries) == set(dataplane(saved, members, virtual, "").entries)


def test_proc_without_the_length_of_a_tick() -> None:
    proc = parse_proc(recorded("ipvs", "proc-net-ip_vs.txt").splitlines())
    assert [server.persistence for server in proc if server.persistence] == [UNKNOWN_TIME]


def test_connections_and_weights() -> None:
    text = """TCP  0A600001:0050 wlc persistent 75000 FFFFFFFF
  -> 0AF40002:1F90      Masq    1      2          3
  -> 0AF40003:1F90      Masq    0      4          0
UDP  0A600001:0035 rr ops
  -> 0AF40002:1F90      Tunnel  1      0          0
"""
    first, second = parse_proc(text.splitlines(), ticks=250)
    assert (first.persistence, first.connections, first.active, first.destinations) == (300, 9, 6, 2)
    assert first.endpoints == [endpoint(packed("10.244.0.2"), 8080)], "weight 0: it gets no new connection"
    assert (first.translates, second.translates) == (True, False)


def test_a_node_port_that_differs_between_addresses() -> None:
    """The recording has one address of the node; here it gets others, one with a stale endpoint, one without a server."""
    lines = [line for line in IPVSADM.splitlines() if "192.168.77.2:3010" in line]
    more = "\n".join(
        line.replace("192.168.77.2", other) for other in ("192.168.78.2", "192.168.79.2") for line in lines
    )
    same = entries(IPVSADM + more)
    assert len(same) == 30
    assert of_text(IPVSADM + more, IPSET).nodeport_addresses == tuple(  # type: ignore[union-attr]
        packed(a) for a in ("192.168.77.2", "192.168.78.2", "192.168.79.2")
    )
    stale = entries(IPVSADM + more + "\n-a -t 192.168.79.2:30101 -r 10.244.9.9:8080 -m -w 1\n")
    assert set(stale) - set(same) == {"192.168.79.2:30101/TCP"}
    assert endpoint(packed("10.244.9.9"), 8080) in stale["192.168.79.2:30101/TCP"].endpoints
    assert stale["NodePort 30101/TCP (IPv4)"] == same["NodePort 30101/TCP (IPv4)"]
    missing = entries(without(IPVSADM + more, *(line for line in more.splitlines() if "192.168.79.2:30103" in line)))
    assert set(missing) - set(same) == {"192.168.79.2:30103/TCP"}
    assert missing["192.168.79.2:30103/TCP"].refusal == "reject"


def test_of_two_addresses_that_differ_the_one_with_more_endpoints_is_compared() -> None:
    lines = [line for line in IPVSADM.splitlines() if "192.168.77.2:3010" in line]
    other = "\n".join(line.replace("192.168.77.2", "192.168.78.2") for line in lines)
    stale = entries(IPVSADM + other + "\n-a -t 192.168.77.2:30101 -r 10.244.9.9:8080 -m -w 1\n")
    assert endpoint(packed("10.244.9.9"), 8080) in stale["NodePort 30101/TCP (IPv4)"].endpoints
    assert "192.168.78.2:30101/TCP" in stale


def test_what_a_damaged_ipset_does() -> None:
    refused = entries(ipset=without(IPSET, "add KUBE-CLUSTER-IP 10.96.30.3,tcp:80"))["10.96.30.3:80/TCP"]
    assert (bool(refused.endpoints), refused.outside, refused.outside_refusal) == (True, frozenset(), "reject")
    unmarked = entries(ipset=without(IPSET, "add KUBE-NODE-PORT-TCP 30101"))["NodePort 30101/TCP (IPv4)"]
    assert unmarked.keeps_source is True
    lost_policy = entries(ipset=without(IPSET, "add KUBE-LOAD-BALANCER-LOCAL 198.51.100.32,tcp:443"))
    assert lost_policy["198.51.100.32:443/TCP"].keeps_source is False


def test_ipsets_that_could_not_be_read() -> None:
    servers = parse_saved(IPVSADM)
    virtual = ipset_members.parse_saved(IPSET).addresses
    found = dataplane(servers, None, virtual, "netlink")
    assert len(found.entries) == 30
    assert all(entry.keeps_source is None and entry.sources is None for entry in found.entries)


def test_whose_virtual_servers_they_are() -> None:
    members = ipset_members.parse_saved(IPSET)
    virtual, node = {packed("10.96.0.1")}, {packed("192.168.77.2")}

    def server(address: str, port: int, **more: bool) -> Server:
        return replace(Server(6, packed(address), port, "rr"), **more)

    assert of_kube_proxy(server("10.96.0.1", 7), virtual, node, members)
    assert of_kube_proxy(server("192.168.77.2", 30101), virtual, node, members)
    assert of_kube_proxy(server("192.168.77.2", 30999), virtual, node, members), "stale, and in nobody's ipset"
    assert not of_kube_proxy(server("192.168.77.2", 443), virtual, node, members), "keepalived's"
    assert not of_kube_proxy(server("192.168.77.2", 30101, translates=False), virtual, node, members)
    assert not of_kube_proxy(server("192.168.77.9", 30101), virtual, node, members)
    assert of_kube_proxy(server("192.168.77.2", 443), virtual, node, None)
    custom = ipset_members.parse_saved(
        IPSET + "add KUBE-NODE-PORT-TCP 9000\nadd KUBE-NODE-PORT-SCTP-HASH 192.168.77.2,sctp:9001\n"
    )
    assert of_kube_proxy(server("192.168.77.2", 9000), virtual, node, custom)
    assert of_kube_proxy(Server(132, packed("192.168.77.2"), 9001, "rr"), virtual, node, custom)


def test_names_that_are_cut_to_31_letters() -> None:
    text = """create KUBE-6-LOAD-BALANCER-SOURCE-CID hash:ip,port,net family inet6
add KUBE-6-LOAD-BALANCER-SOURCE-CID fd00:10:96::30,tcp:80,fd66::/64
add KUBE-6-NODE-PORT-LOCAL-SCTP-HAS fd77::2,sctp:30999
"""
    members = ipset_members.parse_saved(text)
    assert members.ranges == {
        service_key(packed("fd00:10:96::30"), 6, 80): [(packed("fd66::"), packed("fd66::ffff:ffff:ffff:ffff"))]
    }
    assert members.has("NODE-PORT-LOCAL-SCTP-HASH", service_key(packed("fd77::2"), 132, 30999))


def test_nothing_of_kube_proxys() -> None:
    assert of_text("", "") is None
    assert of_text("-A -t 192.0.2.1:80 -s rr\n", "create other hash:ip family inet\nadd other 1.2.3.4\n") is None


@given(st.text(), st.text())
def test_whatever_the_texts_are(ipvsadm: str, ipset: str) -> None:
    for parse, text in ((parse_saved, ipvsadm), (ipset_members.parse_saved, ipset)):
        try:
            parse(text)
        except ValueError:
            pass


@given(st.sampled_from(IPVSADM.splitlines() + IPSET.splitlines()), st.integers(0, 80), st.text(max_size=4))
def test_whatever_is_wrong_with_a_line(line: str, at: int, put: str) -> None:
    for parse in (parse_saved, ipset_members.parse_saved):
        try:
            parse(line[:at] + put + line[at + 1 :])
        except ValueError:
            pass


# ---------------------------------------------------------------- netlink


def destination(
    address: str, port: int, weight: int = 1, active: int = 0, *, version: int = 2, stats: int = 40
) -> bytes:
    """A reply's body as the kernel lays it out (ip_vs_genl_fill_dest)."""
    return bytes(4) + nested(
        ipvs_netlink.CMD_ATTR_DEST,
        attribute(1, packed(address).ljust(16, b"\0")),
        attribute(2, struct.pack(">H", port)),
        attribute(3, struct.pack("=I", 0)),
        attribute(4, struct.pack("=i", weight)),
        attribute(13, b"\0"),
        attribute(5, bytes(4)),
        attribute(6, bytes(4)),
        attribute(7, struct.pack("=I", active)),
        attribute(8, struct.pack("=I", 7)),
        attribute(9, bytes(4)),
        attribute(11, struct.pack("=H", version)),
        nested(10, attribute(1, bytes(stats))),
    )


def test_destinations_over_netlink() -> None:
    server = Server(6, packed("10.96.0.1"), 80, "rr")
    read = DestinationReader(server)
    read(memoryview(destination("10.244.0.2", 8080)))
    read(memoryview(destination("10.244.0.3", 8081, weight=0, active=5)))
    read(memoryview(destination("fd44::3", 8080, version=10)))
    read(memoryview(destination("10.244.0.4", 80, stats=200)))
    assert server.endpoints == [
        endpoint(packed("10.244.0.2"), 8080),
        endpoint(packed("fd44::3"), 8080),
        endpoint(packed("10.244.0.4"), 80),
    ]
    assert (server.destinations, server.active, server.inactive, server.translates) == (4, 5, 28, True)


def test_a_destination_that_is_laid_out_otherwise_although_it_is_as_long() -> None:
    server = Server(6, packed("10.96.0.1"), 80, "rr")
    read = DestinationReader(server)
    one = destination("10.244.0.2", 8080)
    read(memoryview(one))
    with pytest.raises((ValueError, KeyError, struct.error)):
        read(memoryview(one[:8] + struct.pack("=HH", 20, 99) + one[12:]))
    read(memoryview(one))
    assert server.destinations == 2


@given(st.binary(max_size=200))
def test_whatever_a_destination_is(body: bytes) -> None:
    try:
        DestinationReader(Server(6, packed("10.96.0.1"), 80, "rr"))(memoryview(body))
    except (ValueError, LookupError, struct.error):
        pass
