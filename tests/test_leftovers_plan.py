"""What of kube-proxy's leftovers goes, what stays and why; and in which words."""

from __future__ import annotations

import json

import msgspec
import pytest

from proxy.detect.evidence import Place, ServedMode
from proxy.detect.ipvs_table import Server
from proxy.detect.processes import RunningProxy
from proxy.leftovers import running, words
from proxy.leftovers.found import Found, Rule, Unread, XTable
from proxy.leftovers.plan import Kept, Plan, TableRemoval, of_table, plan
from proxy.leftovers.remove import Failed


def nat(**more: list[Rule]) -> XTable:
    """As kube-proxy leaves it, in a few chains; and what others have."""
    chains = {
        "PREROUTING": [Rule(1, "KUBE-SERVICES"), Rule(2)],
        "OUTPUT": [Rule(3, "KUBE-SERVICES")],
        "POSTROUTING": [Rule(4, "KUBE-POSTROUTING"), Rule(5, "CNI-1")],
        "KUBE-SERVICES": [],
        "KUBE-SVC-7M2CZMFBLGOCYHRN": [],
        "KUBE-MARK-MASQ": [Rule(6)],
        "KUBE-POSTROUTING": [Rule(7, uses_set=True), Rule(8)],
        "CNI-1": [Rule(9)],
    }
    policies = dict.fromkeys(("PREROUTING", "OUTPUT", "POSTROUTING"), "accept")
    return XTable(
        "nft", "ip", "nat", chains | {name.replace("_", "-"): rules for name, rules in more.items()}, policies
    )


def removal(table: XTable, *, is_kubelets: bool = False) -> tuple[TableRemoval, list[Kept]]:
    kept: list[Kept] = []
    return of_table(table, is_kubelets, kept), kept


def test_chains_and_the_jumps_to_them() -> None:
    found, kept = removal(nat())
    assert found.chains == ["KUBE-MARK-MASQ", "KUBE-POSTROUTING", "KUBE-SERVICES", "KUBE-SVC-7M2CZMFBLGOCYHRN"]
    assert [rule.handle for _, rule in found.rules] == [1, 3, 4]
    assert (found.emptied, kept) == ([], [])


def test_what_others_use_stays_with_what_makes_it_work() -> None:
    found, kept = removal(nat(CNI_HOSTPORT_SETMARK=[Rule(20, "KUBE-MARK-MASQ")]))
    assert found.chains == ["KUBE-SERVICES", "KUBE-SVC-7M2CZMFBLGOCYHRN"]
    assert [rule.handle for _, rule in found.rules] == [1, 3, 7], "the jump to KUBE-POSTROUTING stays; its ipset goes"
    assert [item.what for item in kept] == [
        "iptables-nft ip nat chain KUBE-MARK-MASQ",
        "iptables-nft ip nat chain KUBE-POSTROUTING",
    ]
    assert all(item.why == "used by CNI-HOSTPORT-SETMARK" for item in kept)


def test_a_base_chains_jump_to_what_is_no_entrance_is_somebody_elses() -> None:
    table = nat()
    table.chains["OUTPUT"].append(Rule(21, "KUBE-MARK-MASQ"))
    found, kept = removal(table)
    assert "KUBE-MARK-MASQ" not in found.chains
    assert 21 not in [rule.handle for _, rule in found.rules]
    assert kept[0].why == "used by OUTPUT"


def test_a_chain_of_services_that_another_program_jumps_to_is_emptied() -> None:
    found, kept = removal(nat(MINE=[Rule(22, "KUBE-SERVICES")]))
    assert found.emptied == ["KUBE-SERVICES"]
    assert "KUBE-SERVICES" not in found.chains
    assert kept == [Kept("iptables-nft ip nat chain KUBE-SERVICES", "used by MINE: emptied")]
    table = nat(MINE=[Rule(22, "KUBE-SERVICES")])
    table.bare = {"KUBE-SERVICES"}
    assert removal(table)[0].emptied == []


@pytest.mark.parametrize("sign", ["process", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"])
def test_kubelets_chains_stay(sign: str) -> None:
    chains = {"INPUT": [Rule(1, "KUBE-FIREWALL")], "KUBE-FIREWALL": [Rule(2)], "KUBE-FORWARD": []}
    table = XTable("nft", "ip", "filter", chains, {"INPUT": "accept"})
    mangle = XTable("nft", "ip6", "mangle", {} if sign == "process" else {sign: []})
    made = plan(Found(tables=[table, mangle], kubelet=sign == "process"))
    assert [each.chains for each in made.tables] == [["KUBE-FORWARD"]]
    assert made.tables[0].rules == []
    assert made.kept == [Kept("iptables-nft ip filter chain KUBE-FIREWALL", "kubelet's")]
    alone = plan(Found(tables=[table]))
    assert alone.tables[0].chains == ["KUBE-FIREWALL", "KUBE-FORWARD"]


def test_names_that_only_look_so() -> None:
    others = [
        "KUBE-ROUTER-INPUT",
        "KUBE-POD-FW-ABC",
        "KUBE-NWPLCY-DEFAULT",
        "KUBE-SVC-mine",
        "KUBE-IPTABLES-HINT",
        "KUBE-X",
    ]
    table = XTable("legacy", "ip", "filter", {name: [] for name in others} | {"INPUT": [Rule(1, "KUBE-ROUTER-INPUT")]})
    assert plan(Found(tables=[table])).is_empty


def test_a_firewall_that_drops_what_it_does_not_know() -> None:
    table = XTable(
        "nft", "ip", "filter", {"FORWARD": [Rule(1, "KUBE-FORWARD")], "KUBE-FORWARD": []}, {"FORWARD": "drop"}
    )
    (note,) = plan(Found(tables=[table])).notes
    assert note.what == "iptables-nft ip filter FORWARD has the policy drop"
    table.policies["FORWARD"] = "accept"
    assert plan(Found(tables=[table])).notes == []


FOUND = Found(
    tables=[nat(), msgspec.structs.replace(nat(), variant="legacy")],
    nft_tables=[("ip", "kube-proxy")],
    servers=[Server(6, bytes([10, 96, 0, 1]), 443, "rr", destinations=2, active=3)],
    other_servers=1,
    interface=19,
    sets=["KUBE-CLUSTER-IP"],
    sysctls={"net/ipv4/conf/all/route_localnet": "1"},
    unread=[Unread("ipsets", "Operation not permitted", is_permission=True)],
)


def test_in_words() -> None:
    text = words.text(plan(FOUND), [Failed("ipset KUBE-CLUSTER-IP", "a rule uses it")], dry_run=False)
    for piece in (
        "removed, but for what failed:",
        "iptables-nft ip nat: 3 rules (PREROUTING -> KUBE-SERVICES",
        "nftables table ip kube-proxy",
        "1 IPVS virtual server, with 3 connections, which this cuts",
        "interface kube-ipvs0 with 19 addresses",
        "1 IPVS virtual server: not kube-proxy's",
        "net/ipv4/conf/all/route_localnet = 1: ",
        "ipsets: Operation not permitted",
        "ipset KUBE-CLUSTER-IP: a rule uses it",
    ):
        assert piece in text
    assert words.text(Plan(), [], dry_run=True) == "kube-proxy has left nothing here\n"
    assert words.text(plan(FOUND), [], dry_run=True).startswith("to remove:\n")


def test_for_programs() -> None:
    made = json.loads(msgspec.json.encode(words.data(plan(FOUND), [], dry_run=True)))
    assert (made["apiVersion"], made["dryRun"]) == ("kube-proxy-nft/cleanup/v1", True)
    assert made["iptables"][0]["chains"] == [
        "KUBE-MARK-MASQ",
        "KUBE-POSTROUTING",
        "KUBE-SERVICES",
        "KUBE-SVC-7M2CZMFBLGOCYHRN",
    ]
    assert made["ipvsVirtualServers"] == [{"address": "10.96.0.1:443/TCP", "destinations": 2, "connections": 3}]
    assert made["unread"] == [{"what": "ipsets", "cause": "Operation not permitted"}]


# ------------------------------------------------------- whether kube-proxy runs


def process(pid: int, program: str) -> RunningProxy:
    return RunningProxy(pid, program, (program,), "/")


def test_who_would_put_it_back() -> None:
    def nobody() -> list[str]:
        return []

    served = [ServedMode(place=Place("port", "http://127.0.0.1:10249/proxyMode"), mode="ipvs")]
    told = running.told
    assert told([process(7, "kube-proxy"), process(8, "kubelet")], nobody, list) == [
        running.Running("process 7 (kube-proxy)", 7)
    ]
    assert told([process(9, "k3s")], nobody, list) == [], "k3s with its kube-proxy switched off"
    (embedded,) = told([process(9, "k3s")], lambda: ["k3s-server (pid 9)"], list)
    assert (embedded.pid, "k3s" in embedded.what) == (9, True)
    (unseen,) = told([], nobody, lambda: served)
    assert (unseen.pid, unseen.may_run) == (0, False)
    assert told([process(8, "kubelet")], nobody, list) == []
