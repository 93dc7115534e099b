"""What the detector sees in a real kernel: kube-proxy's recorded data planes in network namespaces."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from proxy.detect import interfaces, ipsets, ipvs, nft_names
from proxy.detect.evidence import (
    Evidence,
    IpvsInterface,
    Kernel,
    KubeChains,
    KubeSets,
    KubeTables,
    OtherProxy,
    Place,
    ServedMode,
    Unreadable,
)
from proxy.detect.judge import judge
from proxy.detect.live import gather
from proxy.detect.netlink import Netlink
from rules.layout import LAYOUTS, Options
from rules.objects import Family
from rules.tables import replace
from tests.dataplanes import (
    inside,
    needs,
    needs_root,
    recorded,
    recorded_chains,
    restore_addresses,
    restore_ipsets,
    restore_iptables,
    restore_nftables,
    run,
)
from tests.netns import Namespace
from tests.proxy_port import Port

pytestmark = [needs_root, pytest.mark.root]

VARIANTS = pytest.mark.parametrize("variant", ["nft", "legacy"])
with_iptables = needs("iptables-nft-restore", "iptables-legacy-restore")
with_ipset = needs("ipset")


@pytest.fixture
def node() -> Iterator[Namespace]:
    """A namespace with a loopback that is up."""
    made = Namespace()
    run(made, "ip", "link", "set", "lo", "up")
    yield made
    made.close()


def seen(node: Namespace, *, privileged: bool = True) -> list[Evidence]:
    """What gather finds in the namespace, without the kernel's own description."""
    found = inside(node, lambda: gather("n1", running=[]), privileged=privileged)
    assert all(evidence.place.node == "n1" for evidence in found)
    return [evidence for evidence in found if not isinstance(evidence, Kernel)]


def chains(found: Sequence[Evidence]) -> dict[tuple[str, str, str], tuple[int, int]]:
    """(variant, family, mode) -> (chains, services)"""
    return {(e.place.name, e.place.part, e.mode): (e.chains, e.services) for e in found if isinstance(e, KubeChains)}


def kinds(found: Sequence[Evidence]) -> set[str]:
    return {type(e).__name__ for e in found}


def test_nothing_is_there(node: Namespace) -> None:
    assert seen(node) == []


def test_nothing_is_made_by_looking(node: Namespace) -> None:
    """Legacy tables come into being when somebody asks for them, and would be in every packet's way from then on."""
    seen(node)
    assert inside(node, lambda: Path("/proc/thread-self/net/ip_tables_names").read_text()) == ""
    assert node.nft("list", "tables") == ""


def test_a_kernel_without_ipvs_is_told_so(node: Namespace) -> None:
    (kernel,) = [e for e in inside(node, lambda: gather("n1", running=[])) if isinstance(e, Kernel)]
    assert kernel.release == os.uname().release
    if not ipvs.is_loaded():
        assert kernel.ipvs != "present" or Path(f"/lib/modules/{kernel.release}").exists()


@with_iptables
@VARIANTS
def test_iptables_mode(node: Namespace, variant: str) -> None:
    restore_iptables(node, "iptables", variant)
    found = seen(node)
    assert chains(found) == {
        (variant, "ip", "iptables"): recorded_chains("iptables", "iptables"),
        (variant, "ip6", "iptables"): recorded_chains("iptables", "ip6tables"),
    }
    assert recorded_chains("iptables", "iptables") == (74, 15)
    assert kinds(found) == {"KubeChains"}


@with_iptables
@with_ipset
@VARIANTS
def test_ipvs_mode_as_far_as_iptables_and_ipsets_go(node: Namespace, variant: str) -> None:
    restore_ipsets(node)
    restore_addresses(node, ["kube-ipvs0", "eth0"])
    restore_iptables(node, "ipvs", variant)
    found = seen(node)
    assert chains(found) == {(variant, "ip", "ipvs"): (11, 0), (variant, "ip6", "ipvs"): (11, 0)}
    recorded_sets = recorded("ipvs", "ipset-save.txt").splitlines()
    sets = sum(line.startswith("create KUBE-") for line in recorded_sets)
    entries = sum(line.startswith("add KUBE-") for line in recorded_sets)
    assert KubeSets(place=Place("ipset", "KUBE-*", node="n1"), sets=sets, entries=entries) in found
    assert IpvsInterface(place=Place("interface", "kube-ipvs0", node="n1"), addresses=19) in found
    assert kinds(found) == {"KubeChains", "KubeSets", "IpvsInterface"}


def test_nftables_mode(node: Namespace) -> None:
    restore_nftables(node)
    assert seen(node) == [
        KubeTables(place=Place("nftables", "ip kube-proxy", node="n1"), owner="kube-proxy", chains=45),
        KubeTables(place=Place("nftables", "ip6 kube-proxy", node="n1"), owner="kube-proxy", chains=16),
    ]


def test_our_own_tables(node: Namespace) -> None:
    node.kernel.commit(replace(LAYOUTS[Family.IPV6], Options(), ()))
    (found,) = seen(node)
    assert isinstance(found, KubeTables)
    assert (found.owner, found.place.name) == ("kube-proxy-nft", "ip6 kube-proxy-nft")
    assert found.chains == node.nft("list", "chains", "ip6").count("\tchain ") > 5


@with_iptables
@with_ipset
def test_leftovers_of_all_modes_beside_each_other(node: Namespace) -> None:
    restore_ipsets(node)
    restore_addresses(node, ["kube-ipvs0"])
    restore_iptables(node, "ipvs", "legacy")
    restore_iptables(node, "iptables", "nft")
    restore_nftables(node)
    found = seen(node)
    assert set(chains(found)) == {
        ("legacy", "ip", "ipvs"),
        ("legacy", "ip6", "ipvs"),
        ("nft", "ip", "iptables"),
        ("nft", "ip6", "iptables"),
    }
    assert kinds(found) == {"KubeChains", "KubeSets", "IpvsInterface", "KubeTables"}


@with_iptables
@VARIANTS
def test_both_modes_chains_in_the_same_tables(node: Namespace, variant: str) -> None:
    restore_iptables(node, "iptables", variant)
    for chain in ("KUBE-NODE-PORT", "KUBE-LOAD-BALANCER"):
        run(node, f"iptables-{variant}", "-t", "nat", "-N", chain)
    found = chains(seen(node))
    assert found[variant, "ip", "ipvs"] == (2 + 7, 0)  # 7 have names that both modes use
    assert found[variant, "ip", "iptables"][1] == 15


def checks(found: Sequence[Evidence]) -> dict[str, str]:
    return {finding.check: finding.severity for finding in judge(found).findings}


@with_iptables
@with_ipset
@VARIANTS
@pytest.mark.parametrize("mode", ["iptables", "ipvs"])
def test_emptied_chains_are_no_second_data_plane(node: Namespace, variant: str, mode: str) -> None:
    """After `iptables -F`, which leaves the chains there; kubelet puts its own rules back."""
    restore_ipsets(node)
    restore_iptables(node, mode, variant)
    restore_nftables(node)
    programs = [f"{program}-{variant}" for program in ("iptables", "ip6tables")]
    for program in programs if mode == "ipvs" else ():
        run(node, program, "-N", "KUBE-FIREWALL")
    before = chains(seen(node))
    assert "two-dataplanes" in checks(seen(node))
    for program in programs:
        for table in ("nat", "filter", "mangle"):
            run(node, program, "-t", table, "-F")
        run(node, program, "-A", "KUBE-FIREWALL", "-p", "sctp", "-j", "DROP")
        run(node, program, "-I", "OUTPUT", "-j", "KUBE-FIREWALL")
    run(node, "ipset", "destroy")
    found = seen(node)
    assert chains(found) == before
    assert all(e.empty for e in found if isinstance(e, KubeChains))
    assert checks(found) == {f"{mode}-leftover": "notice"}


@with_iptables
@pytest.mark.parametrize("program", ["iptables", "ip6tables"])
def test_chains_of_one_family_are_enough_for_two(node: Namespace, program: str) -> None:
    restore_iptables(node, "iptables", "nft")
    restore_nftables(node)
    run(node, f"{program}-nft", "-t", "nat", "-F")
    assert {e.place.part: e.empty for e in seen(node) if isinstance(e, KubeChains)} == {
        "ip": program == "iptables",
        "ip6": program == "ip6tables",
    }
    assert "two-dataplanes" in checks(seen(node))


@with_iptables
def test_dormant_tables_lead_nothing(node: Namespace) -> None:
    restore_iptables(node, "iptables", "nft")
    restore_nftables(node)
    for family in ("ip", "ip6"):
        node.nft(f"add table {family} kube-proxy {{ flags dormant; }}")
    found = seen(node)
    assert [e.dormant for e in found if isinstance(e, KubeTables)] == [True, True]
    assert checks(found) == {"nftables-leftover": "notice"}
    for family in ("ip", "ip6"):
        node.nft(f"add table {family} kube-proxy")
        node.nft(f"add table {family} nat {{ flags dormant; }}")
    found = seen(node)
    assert not any(e.dormant for e in found if isinstance(e, KubeTables))
    assert checks(found) == {"iptables-leftover": "notice"}


@with_iptables
@VARIANTS
def test_what_kubelet_has_is_no_mode(node: Namespace, variant: str) -> None:
    for table, chain in (
        ("mangle", "KUBE-IPTABLES-HINT"),
        ("mangle", "KUBE-KUBELET-CANARY"),
        ("filter", "KUBE-FIREWALL"),
    ):
        run(node, f"iptables-{variant}", "-t", table, "-N", chain)
    assert chains(seen(node)) == {(variant, "ip", ""): (3, 0)}


@with_iptables
@with_ipset
@VARIANTS
def test_network_policies_of_kube_router_are_none_of_kube_proxys(node: Namespace, variant: str) -> None:
    for chain in ("KUBE-ROUTER-INPUT", "KUBE-NWPLCY-DEFAULT", "KUBE-POD-FW-ABCDEFGHIJKLMNOP", "DOCKER-USER"):
        run(node, f"iptables-{variant}", "-N", chain)
    for name in ("KUBE-SRC-ABCDEFGHIJKLMNOP", "KUBE-DST-ABCDEFGHIJKLMNOP", "cali40all-ipam-pools"):
        run(node, "ipset", "create", name, "hash:ip")
    assert seen(node) == []


def test_tables_of_others_with_chains_of_these_names(node: Namespace) -> None:
    for table in ("inet nat", "ip mine"):
        node.nft(f"add table {table}; add chain {table} KUBE-SVC-ABCDEFGHIJKLMNOP")
    assert seen(node) == []


@with_iptables
def test_a_running_kube_proxy_beside_leftovers(node: Namespace) -> None:
    """Told apart from a running iptables mode by what kube-proxy itself says."""
    restore_iptables(node, "iptables", "legacy")
    restore_nftables(node)
    with inside(node, lambda: Port.of_mode("nftables")):
        found = seen(node)
    served = [e for e in found if isinstance(e, ServedMode)]
    assert [(e.mode, e.place.name) for e in served] == [("nftables", "http://127.0.0.1:10249/proxyMode")]
    assert kinds(found) == {"ServedMode", "KubeChains", "KubeTables"}


@with_iptables
@with_ipset
def test_without_permission_what_cannot_be_read_is_named(node: Namespace) -> None:
    restore_ipsets(node)
    restore_iptables(node, "ipvs", "nft")
    restore_addresses(node, ["kube-ipvs0"])
    found = seen(node, privileged=False)
    assert IpvsInterface(place=Place("interface", "kube-ipvs0", node="n1"), addresses=19) in found
    unreadable = [e for e in found if isinstance(e, Unreadable)]
    assert len(found) == len(unreadable) + 1
    assert {(e.place.kind, e.place.name, e.place.part) for e in unreadable} == {
        ("nftables", "all", ""),
        ("iptables", "legacy", "ip"),
        ("iptables", "legacy", "ip6"),
        ("ipset", "KUBE-*", ""),
    }
    assert all(e.cause == "no permission" and "CAP_NET_ADMIN" in e.remedy for e in unreadable)


def test_interfaces_of_other_proxies(node: Namespace) -> None:
    for name in ("cilium_host", "bpfin.cali", "kube-dummy-if", "antrea-gw0", "ovn-k8s-mp0"):
        run(node, "ip", "link", "add", name, "type", "bridge")
    found = seen(node)
    assert [(e.program, e.sure) for e in found if isinstance(e, OtherProxy)] == [
        ("cilium", "possible"),
        ("calico-ebpf", "likely"),
        ("kube-router", "likely"),
        ("antrea", "possible"),
        ("ovn-kubernetes", "likely"),
    ]


def test_an_address_counts_for_kube_only_beside_kube_ipvs0(node: Namespace) -> None:
    """keepalived's virtual servers have addresses of the node too, and so have kube-router's."""
    run(node, "ip", "link", "add", "kube-dummy-if", "type", "bridge")
    run(node, "ip", "addr", "add", "10.96.0.99/32", "dev", "kube-dummy-if")
    assert inside(node, ipvs.kube_addresses) == set()
    restore_addresses(node, ["kube-ipvs0", "eth0"])
    addresses = inside(node, ipvs.kube_addresses)
    assert {bytes([10, 96, 0, 1]), bytes([192, 168, 77, 2]), bytes([127, 0, 0, 1])} <= addresses
    assert bytes([10, 96, 0, 99]) not in addresses
    assert sum(len(address) == 16 for address in addresses) >= 2


def test_the_namespace_is_the_threads_own(node: Namespace) -> None:
    restore_nftables(node)
    other = Namespace()
    try:
        assert inside(other, lambda: nft_names.gather(lambda *_: "unknown")) == []
        assert len(inside(node, lambda: nft_names.gather(lambda *_: "unknown"))) == 2
    finally:
        other.close()


def test_what_is_not_loaded_is_not_asked(node: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Netlink, protocol: int) -> None:
        raise AssertionError(f"a netlink socket of protocol {protocol}")

    monkeypatch.setattr(Netlink, "__init__", refuse)
    assert nft_names.gather(lambda *_: "loadable") == []
    assert ipsets.gather(lambda *_: "absent") == []
    if not ipvs.is_loaded():
        assert ipvs.gather() == []


def test_a_listing_that_a_change_disturbs_is_read_again(node: Namespace) -> None:
    """The chains of a busy iptables mode: whatever happens meanwhile, there is an answer."""
    node.nft("-f", "-", stdin="table ip nat {\n" + "\n".join(f"chain C{i} {{ }}" for i in range(3000)) + "\n}")
    node.nft("add", "chain", "ip", "nat", "KUBE-SVC-ABCDEFGHIJKLMNOP")
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            node.nft("add chain ip nat MOVING; delete chain ip nat MOVING")

    changer = threading.Thread(target=change)
    changer.start()
    try:
        for _ in range(10):
            assert chains(seen(node)) == {("nft", "ip", "iptables"): (1, 1)}
    finally:
        done.set()
        changer.join()


@with_iptables
@with_ipset
def test_what_is_left_when_ipvs_mode_has_been_emptied(node: Namespace) -> None:
    restore_ipsets(node)
    restore_iptables(node, "ipvs", "nft")
    restore_addresses(node, ["kube-ipvs0"])
    judged = [(f.check, f.severity) for f in judge(seen(node), "1.37").findings]
    assert judged == [("ipvs-mode", "deprecated")]
    run(node, "ip", "address", "flush", "dev", "kube-ipvs0")
    for program in ("iptables", "ip6tables"):
        for table in ("nat", "filter", "mangle"):
            run(node, f"{program}-nft", "-t", table, "-F")
            run(node, f"{program}-nft", "-t", table, "-X")
    assert [f.severity for f in judge(seen(node), "1.37").findings] == ["deprecated"]  # the ipsets have entries
    run(node, "ipset", "flush")
    found = seen(node)
    assert {type(e): e.place for e in found}.keys() == {IpvsInterface, KubeSets}
    (left,) = judge(found, "1.37").findings
    assert (left.check, left.severity, len(left.evidence)) == ("ipvs-leftover", "notice", 2)
    blind = inside(node, lambda: gather("n1", running=[]), privileged=False)
    assert "deprecated" in {f.severity for f in judge(blind, "1.37").findings}, "the ipsets cannot be seen"


def test_many_addresses(node: Namespace) -> None:
    """More than fit one datagram, in both families."""
    commands = ["link add kube-ipvs0 type bridge"]
    commands += [f"addr add 10.96.{i >> 8}.{i & 255}/32 dev kube-ipvs0" for i in range(3000)]
    commands += [f"addr add fd00::{i:x}/128 dev kube-ipvs0 nodad" for i in range(1, 2001)]
    run(node, "ip", "-batch", "-", stdin="\n".join(commands))
    assert inside(node, interfaces.gather) == [IpvsInterface(place=Place("interface", "kube-ipvs0"), addresses=5000)]


@with_ipset
def test_of_large_sets_only_the_headers_are_read(node: Namespace) -> None:
    commands = ["create KUBE-CLUSTER-IP hash:ip,port", "create OTHER hash:ip,port"]
    commands += [
        f"add {name} 10.96.{i >> 8}.{i & 255},tcp:80" for name in ("KUBE-CLUSTER-IP", "OTHER") for i in range(3000)
    ]
    run(node, "ipset", "restore", stdin="\n".join(commands) + "\n")
    assert inside(node, lambda: ipsets.gather(lambda *_: "there")) == [
        KubeSets(place=Place("ipset", "KUBE-*"), sets=1, entries=3000)
    ]
