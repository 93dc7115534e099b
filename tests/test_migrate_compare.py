"""The comparison: what a mode makes of any cluster is no drift, and what is planted is found, and nothing else."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.migrate import ours
from proxy.migrate.compare import WORST_FIRST, Comparison, choose, compare
from proxy.migrate.differences import merged
from proxy.migrate.entries import Dataplane, Entry, ModeName
from proxy.migrate.facts import Facts
from proxy.migrate.judge import report
from proxy.migrate.report import Proof, Result
from proxy.model import KINDS, kind_of
from proxy.unread import Unread
from rules.elements import endpoint, node_port_key, service_key
from rules.objects import Family
from tests import histories
from tests.migrate_facts import NODE, changed, facts, live
from tests.objects import endpoint_slice, service

PROXY_MODES: list[ModeName] = ["iptables", "ipvs", "nftables", "kube-proxy-nft"]


def packed(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


def at(address: str, port: int, protocol: int = 6) -> bytes:
    return service_key(packed(address), protocol, port)


def to(address: str, port: int = 8080) -> bytes:
    return endpoint(packed(address), port)


def compared(facts_: Facts) -> Comparison:
    return compare(facts_, ours.read(facts_))


def results(comparison: Comparison) -> dict[str, str]:
    return {row.service: row.result for row in comparison.rows}


CLUSTER = (
    service("web", "10.96.0.1"),
    endpoint_slice("web", "10.244.0.2", "10.244.1.2"),
    service("sticky", "10.96.0.2", sessionAffinity="ClientIP"),
    endpoint_slice("sticky", "10.244.0.3", "10.244.1.3"),
    service(
        "lb", "10.96.0.3", type="LoadBalancer", ports=[{"name": "http", "port": 80, "nodePort": 30080}],
        loadBalancerSourceRanges=["203.0.113.0/24"],
    ) | {"status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}}},
    endpoint_slice("lb", "10.244.0.4"),
    service("empty", "10.96.0.5"),
)  # fmt: skip
LOCAL = (
    service("here", "10.96.1.1", type="NodePort", externalTrafficPolicy="Local",
            ports=[{"name": "http", "port": 80, "nodePort": 30081}]),
    endpoint_slice("here", {"addresses": ["10.244.0.2"], "nodeName": "node0"},
                   {"addresses": ["10.244.1.2"], "nodeName": "node1"}),
    service("elsewhere", "10.96.1.2", type="NodePort", externalTrafficPolicy="Local",
            ports=[{"name": "http", "port": 80, "nodePort": 30082}]),
    endpoint_slice("elsewhere", {"addresses": ["10.244.1.3"], "nodeName": "node1"}),
    service("inside", "10.96.1.3", internalTrafficPolicy="Local"),
    endpoint_slice("inside", {"addresses": ["10.244.1.4"], "nodeName": "node1"}),
)  # fmt: skip


@pytest.mark.parametrize("mode", PROXY_MODES)
def test_a_mode_as_it_should_be_is_no_drift(mode: ModeName) -> None:
    made = facts(*CLUSTER, *LOCAL, mode=mode)
    made.dataplanes = (live(made, mode),)
    found = compared(made)
    assert found.drift == {} and found.compared
    differs = {"ipvs-traffic-policy": ["default/here:http", "default/elsewhere:http", "default/inside:http"]}
    assert found.explained == (differs if mode == "ipvs" else {})


RANDOM_OBJECTS = st.lists(
    st.one_of(
        histories.SERVICES,
        histories.slices("IPv4"),
        histories.slices("IPv6"),
        histories.NODES,
        histories.SERVICE_CIDRS,
    ),
    max_size=14,
)


@settings(max_examples=100, deadline=None)
@given(RANDOM_OBJECTS, st.sampled_from(PROXY_MODES), st.sampled_from(["rr", "wlc", "sh"]))
def test_random_clusters_never_drift(objects: list[Any], mode: ModeName, scheduler: str) -> None:
    """Whatever the objects are, each mode's own idea of them, fed back as what is live, is in order; every difference has
    a check, and every check that is named a finding."""
    by_kind: dict[str, list[msgspec.Raw]] = {kind: [] for kind in KINDS}
    for obj in objects:
        by_kind[kind_of(obj)].append(msgspec.Raw(msgspec.json.encode(obj)))
    made = facts(mode=mode, config={"ipvs": {"scheduler": scheduler}}, node=None)
    made.objects = by_kind
    made.dataplanes = (live(made, mode, scheduler),)
    written = report(made, Proof("accepted"))
    found = compared(made)
    assert found.drift == {}
    differences = [d for row in written.services for entry in row.entries for d in entry.differences]
    assert {d.check for d in differences} <= {finding.check for finding in written.findings}
    assert {row.result for row in written.services} <= {"same", "behaviour", "not-compared"}  # without the Node's zone
    if mode == "kube-proxy-nft":
        assert not differences


def drop_endpoint(entry: Entry) -> Entry:
    one = sorted(entry.endpoints)[0]
    return replace(entry, endpoints=entry.endpoints - {one}, outside=entry.outside - {one})


def stale_endpoint(entry: Entry) -> Entry:
    extra = {to("10.244.9.9")}
    return replace(entry, endpoints=entry.endpoints | extra, outside=entry.outside | extra)


WEB, STICKY, LB = at("10.96.0.1", 80), at("10.96.0.2", 80), at("198.51.100.1", 80)
NODE_PORT = node_port_key(Family.IPV4, 6, 30080)
RANGES = ((packed("203.0.113.0"), packed("203.0.113.255")),)

PLANTED: list[tuple[str, bytes, Callable[[Entry], Entry | None], str, str]] = [
    ("a missing Service", WEB, lambda e: None, "only-here", "only-here"),
    ("an endpoint that is gone", WEB, stale_endpoint, "endpoints", "endpoints"),
    ("an endpoint that is missing", STICKY, drop_endpoint, "endpoints", "endpoints"),
    ("no affinity", STICKY, lambda e: replace(e, affinity=0), "behaviour", "affinity"),
    ("another affinity", STICKY, lambda e: replace(e, affinity=60), "behaviour", "affinity"),
    ("a lost source range", LB, lambda e: replace(e, sources=None), "behaviour", "sources"),
    ("another source range", LB, lambda e: replace(e, sources=(*RANGES, (bytes(4), bytes(4)))), "behaviour", "sources"),
    ("another policy", NODE_PORT, lambda e: replace(e, keeps_source=True), "behaviour", "source-address"),
    ("a missing NodePort", NODE_PORT, lambda e: None, "only-here", "only-here"),
]  # fmt: skip


@pytest.mark.parametrize("mode", PROXY_MODES)
@pytest.mark.parametrize("planted", PLANTED, ids=[p[0] for p in PLANTED])
def test_what_is_planted_is_found_and_nothing_else(
    mode: ModeName, planted: tuple[str, bytes, Callable[[Entry], Entry | None], str, str]
) -> None:
    _, key, change, result, what = planted
    made = facts(*CLUSTER, mode=mode)
    whole = live(made, mode)
    entry = next(e for e in whole.entries if e.key == key)
    made.dataplanes = (changed(whole, [(entry, change(entry))]),)
    found = compared(made)
    assert list(found.drift) == [what] and len(found.drift[what]) == 1
    assert found.explained == {}
    service_ = found.drift[what][0].partition(":")[0]
    assert results(found) == {f"default/{n}": "same" for n in ("web", "sticky", "lb", "empty")} | {service_: result}


def test_another_scheduler_of_one_server() -> None:
    made = facts(*CLUSTER, mode="ipvs", config={"ipvs": {"scheduler": "rr"}})
    whole = live(made, "ipvs")
    entry = next(e for e in whole.entries if e.key == WEB)
    made.dataplanes = (changed(whole, [(entry, replace(entry, scheduler="lc"))]),)
    found = compared(made)
    assert found.drift == {"scheduler": ["default/web:http"]} and found.explained == {}
    row = next(row for row in found.rows if row.service == "default/web")
    assert [(d.what, d.there, d.here, d.check) for d in row.entries[0].differences] == [
        ("scheduler", "lc", "random", "")
    ]


def test_an_even_scheduler_that_was_not_asked_for() -> None:
    """rr is as good as random, but the configuration says lc."""
    made = facts(*CLUSTER, mode="ipvs", config={"ipvs": {"scheduler": "lc"}})
    whole = live(made, "ipvs", "lc")
    entry = next(e for e in whole.entries if e.key == WEB)
    made.dataplanes = (changed(whole, [(entry, replace(entry, scheduler="rr"))]),)
    found = compared(made)
    assert found.drift == {"scheduler": ["default/web:http"]}
    assert len(found.explained["ipvs-scheduler"]) == 3  # the other Services, as configured


def test_what_no_object_asks_for() -> None:
    made = facts(*CLUSTER, mode="iptables")
    whole = live(made, "iptables")
    gone = Entry(at("10.96.0.99", 80), "default/gone:http", frozenset({to("10.244.7.7")}))
    nameless = Entry(at("10.96.0.98", 53, 17))
    made.dataplanes = (replace(whole, entries=(*whole.entries, gone, nameless)),)
    found = compared(made)
    assert found.drift == {"only-there": ["default/gone:http at 10.96.0.99:80/TCP", "10.96.0.98:53/UDP"]}
    row = found.rows[0]
    assert (row.service, row.type, row.result) == ("10.96.0.98:53/UDP", "", "only-there")
    assert found.rows[1].entries[0].endpoints == ("10.244.7.7:8080",)


def test_servers_of_excluded_ranges_are_others() -> None:
    made = facts(*CLUSTER, mode="ipvs", config={"ipvs": {"excludeCIDRs": ["10.97.0.0/16"]}})
    whole = live(made, "ipvs")
    other = Entry(at("10.97.1.1", 80), scheduler="wlc")
    made.dataplanes = (replace(whole, entries=(*whole.entries, other)),)
    assert compared(made).drift == {}
    made.present.document["ipvs"] = {}
    assert compared(made).drift == {"only-there": ["10.97.1.1:80/TCP"]}


def test_a_node_port_that_is_another_one_at_one_address() -> None:
    made = facts(*CLUSTER, mode="ipvs")
    whole = live(made, "ipvs", nodeport_addresses=(packed("192.168.77.2"), packed("192.168.78.2")))
    entry = next(e for e in whole.entries if e.key == NODE_PORT)
    other = stale_endpoint(replace(entry, key=at("192.168.78.2", 30080)))
    made.dataplanes = (replace(whole, entries=(*whole.entries, other)),)
    found = compared(made)
    assert found.drift == {"endpoints": ["default/lb:http"]}
    row = next(row for row in found.rows if row.service == "default/lb")
    assert [(e.address, e.result) for e in row.entries if e.result != "same"] == [
        ("192.168.78.2:30080/TCP", "endpoints")
    ]


def test_what_was_not_read_is_not_missing() -> None:
    made = facts(*CLUSTER, mode="ipvs")
    whole = live(made, "ipvs")
    part = tuple(replace(e, sources=None, keeps_source=None, affinity=0) for e in whole.entries if e.key != WEB)
    unread = (Unread("ipsets", "no permission", "run as root"),)
    made.dataplanes = (replace(whole, entries=part, unread=unread),)
    found = compared(made)
    assert found.drift == {} and found.unknown == 1
    gaps = {gap.what for gap in report(made, Proof("accepted")).gaps}
    assert gaps == {"ipsets", "1 address of Services"}


def test_without_endpoint_slices_endpoints_are_not_compared() -> None:
    made = facts(*CLUSTER, mode="ipvs")
    whole = live(made, "ipvs")
    made.dataplanes = (whole,)
    made.objects["EndpointSlice"] = []
    assert compared(made).drift != {}
    made.unread = (Unread("EndpointSlices", "HTTP 403"),)
    assert compared(made).drift == {}


def test_without_services_nothing_is_only_there() -> None:
    made = facts(*CLUSTER, mode="ipvs")
    made.dataplanes = (live(made, "ipvs"),)
    made.objects["Service"] = made.objects["Service"][:1]
    assert list(compared(made).drift) == ["only-there"]
    made.unread = (Unread("Services", "HTTP 403, after 1 of them"),)
    found = compared(made)
    assert found.drift == {} and [row.service for row in found.rows] == ["default/web"]
    made.objects["Service"] = []
    assert not compared(made).compared


def test_without_the_node_hints_and_its_addresses_are_not_known() -> None:
    """Which endpoints its zone chooses cannot be said, and no drift is made of it."""
    near = {"addresses": ["10.244.0.2"], "hints": {"forZones": [{"name": "z1"}]}}
    far = {"addresses": ["10.244.1.2"], "hints": {"forZones": [{"name": "z2"}]}}
    ranges = ["192.168.77.0/24"]
    balanced = service("lb", "10.96.0.3", type="LoadBalancer", loadBalancerSourceRanges=ranges) | {
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}}
    }
    cluster = (
        service("web", "10.96.0.1"),
        endpoint_slice("web", near, far),
        balanced,
        endpoint_slice("lb", "10.244.0.4"),
    )
    made = facts(*cluster, mode="iptables")
    whole = live(made, "iptables")
    made.dataplanes = (whole,)
    assert compared(made).drift == {}
    node, made.objects["Node"] = made.objects["Node"], []
    assert compared(made).drift == {}
    made.objects["Node"] = node
    web = next(e for e in whole.entries if e.key == WEB)
    made.dataplanes = (changed(whole, [(web, stale_endpoint(web))]),)
    assert compared(made).drift == {"endpoints": ["default/web:http"]}


def test_iptables_tells_nothing_of_affinity_without_endpoints() -> None:
    made = facts(service("web", "10.96.0.1", sessionAffinity="ClientIP"), mode="iptables")
    whole = live(made, "iptables")
    made.dataplanes = (replace(whole, entries=(Entry(WEB, "", refusal="reject", outside_refusal="reject"),)),)
    assert compared(made).drift == {}


def test_claimed_twice_is_compared_leniently() -> None:
    """kube-proxy may have programmed the other one."""
    cluster = (
        service("a", "10.96.0.1", externalIPs=["192.0.2.1"]) | {"metadata": {"name": "a", "namespace": "default",
                                                                "creationTimestamp": "2026-01-01T00:00:00Z"}},
        service("b", "10.96.0.2", externalIPs=["192.0.2.1"]),
        endpoint_slice("a", "10.244.0.2"),
        endpoint_slice("b", "10.244.0.3"),
    )  # fmt: skip
    made = facts(*cluster, mode="iptables")
    whole = live(made, "iptables")
    entry = next(e for e in whole.entries if e.key == at("192.0.2.1", 80))
    other = frozenset({to("10.244.0.3")})
    made.dataplanes = (changed(whole, [(entry, replace(entry, endpoints=other, outside=other))]),)
    found = compared(made)
    assert found.drift == {} and found.explained == {"claimed-twice": ["default/a:http"]}


def test_ipvs_without_addresses_of_a_family_has_no_node_ports_there() -> None:
    dual = service(
        "web", "10.96.0.1", "fd00::1", type="NodePort", ports=[{"name": "http", "port": 80, "nodePort": 30080}]
    )
    node = {**NODE, "status": {"addresses": [{"type": "InternalIP", "address": "192.168.77.2"}]}}
    made = facts(dual, endpoint_slice("web", "10.244.0.2"), node=node, mode="ipvs")
    made.here = replace(made.here, interfaces=(replace(made.here.interfaces[0], addresses=(packed("192.168.77.2"),)),))
    whole = live(made, "ipvs")
    v6 = node_port_key(Family.IPV6, 6, 30080)
    made.dataplanes = (replace(whole, entries=tuple(e for e in whole.entries if e.key != v6)),)
    assert compared(made).drift == {}
    v4 = node_port_key(Family.IPV4, 6, 30080)
    made.dataplanes = (replace(whole, entries=tuple(e for e in whole.entries if e.key not in (v4, v6))),)
    assert compared(made).drift == {"only-here": ["default/web:http at NodePort 30080/TCP (IPv4)"]}


def test_ipvs_with_a_local_policy_and_external_addresses() -> None:
    """internalTrafficPolicy Local without an endpoint here: IPVS leads elsewhere if the Service has external addresses."""
    cluster = (
        service("web", "10.96.0.1", type="NodePort", internalTrafficPolicy="Local",
                ports=[{"name": "http", "port": 80, "nodePort": 30080}]),
        endpoint_slice("web", {"addresses": ["10.244.1.2"], "nodeName": "node1"}),
    )  # fmt: skip
    made = facts(*cluster, mode="ipvs")
    entry = next(e for e in live(made, "ipvs").entries if e.key == WEB)
    assert entry.endpoints == {to("10.244.1.2")} and entry.refusal == ""
    entry = next(e for e in live(made, "iptables").entries if e.key == WEB)
    assert entry.endpoints == frozenset() and entry.refusal == "drop"


def test_ipvs_source_ranges_of_several_addresses() -> None:
    """The node's address is in a range: IPVS lets in a load balancer's address as a source for itself only."""
    balanced = service("lb", "10.96.0.3", type="LoadBalancer", loadBalancerSourceRanges=["192.168.77.0/24"]) | {
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}, {"ip": "198.51.100.9"}]}}
    }
    made = facts(balanced, endpoint_slice("lb", "10.244.0.4"), mode="ipvs")
    of_ipvs = next(e for e in live(made, "ipvs").entries if e.key == LB)
    of_iptables = next(e for e in live(made, "iptables").entries if e.key == LB)
    assert len(of_ipvs.sources or ()) == 2 and len(of_iptables.sources or ()) == 3
    made.dataplanes = (live(made, "ipvs"),)
    found = compared(made)
    assert found.drift == {} and list(found.explained) == ["source-ranges"]


def test_ranges_that_cannot_be_read() -> None:
    balanced = service("lb", "10.96.0.3", type="LoadBalancer", loadBalancerSourceRanges=["nonsense"]) | {
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}}
    }
    made = facts(balanced, endpoint_slice("lb", "10.244.0.4"), mode="iptables")
    made.dataplanes = (live(made, "iptables"),)
    entry = next(e for e in made.dataplanes[0].entries if e.key == LB)
    assert entry.sources is None
    found = compared(made)
    assert found.drift == {} and found.explained == {"source-ranges": ["default/lb:http"]}


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        (None, None),
        ((), ()),
        (((b"\0\0\0\0", b"\xff\xff\xff\xff"),), None),
        (((b"\x0a\0\0\0", b"\x0a\0\0\x07"), (b"\x0a\0\0\x08", b"\x0a\0\0\x09")), ((b"\x0a\0\0\0", b"\x0a\0\0\x09"),)),
        (((b"\x0a\0\0\0", b"\x0a\0\0\x07"), (b"\x0a\0\0\x09", b"\x0a\0\0\x09")),) * 2,
    ],
)
def test_ranges_that_touch_are_one(ranges: Any, expected: Any) -> None:
    assert merged(ranges) == expected


def test_connections_are_counted_by_service() -> None:
    made = facts(*CLUSTER, mode="ipvs")
    whole = live(made, "ipvs")
    made.dataplanes = (
        replace(
            whole, entries=tuple(replace(e, connections=3 if e.key in (LB, NODE_PORT) else 0) for e in whole.entries)
        ),
    )
    found = compared(made)
    assert found.connections == {"default/lb": 6} and found.drift == {}


def test_which_dataplane_counts() -> None:
    made = facts(*CLUSTER, mode="ipvs")
    ipvs, iptables = live(made, "ipvs"), live(made, "iptables")
    ours_ = Dataplane("kube-proxy-nft", live(made, "kube-proxy-nft").entries)
    made.dataplanes = (iptables, ours_, ipvs)
    assert choose(made) == (ipvs, (iptables,))
    made.present = replace(made.present, mode="")
    made.dataplanes = (ours_, replace(ipvs, entries=ipvs.entries[:1]), iptables)
    chosen, others = choose(made)
    assert chosen is iptables and [d.mode for d in others] == ["ipvs"]
    made.dataplanes = ()
    assert choose(made) == (None, ())


def test_rows_are_ordered_worst_first_then_by_name() -> None:
    made = facts(*CLUSTER, mode="iptables")
    whole = live(made, "iptables")
    by_key = {e.key: e for e in whole.entries}
    made.dataplanes = (
        changed(whole, [(by_key[WEB], None), (by_key[STICKY], stale_endpoint(by_key[STICKY])),
                        (by_key[LB], replace(by_key[LB], sources=None))]),
    )  # fmt: skip
    assert [(row.service, row.result) for row in compared(made).rows] == [
        ("default/web", "only-here"),
        ("default/sticky", "endpoints"),
        ("default/lb", "behaviour"),
        ("default/empty", "same"),
    ]
    assert set(WORST_FIRST) == set(get_args(Result))
