"""The detector and a kernel that has IPVS: Debian's 6.1, with what kube-proxy in IPVS mode left there (make test-vm)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from integration.vm import IN_VM
from proxy.detect import ipvs, ipvs_netlink
from proxy.detect.evidence import Evidence, IpvsInterface, IpvsTable, Kernel, KubeChains, KubeSets, Place, Unreadable
from proxy.detect.live import gather
from tests.dataplanes import inside, recorded, restore_addresses, restore_ipsets, restore_iptables, run
from tests.netns import Namespace

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(IN_VM not in os.environ, reason="loads kernel modules, in a virtual machine: make test-vm"),
]
SERVICES = recorded("ipvs", "ipvsadm-save.txt").count("-A ")
DESTINATIONS = recorded("ipvs", "ipvsadm-save.txt").count("-a ")
E = TypeVar("E", bound=Evidence)


def modules() -> set[str]:
    return {line.split()[0] for line in Path("/proc/modules").read_text().splitlines()}


@pytest.fixture
def node() -> Iterator[Namespace]:
    made = Namespace()
    run(made, "ip", "link", "set", "lo", "up")
    yield made
    made.close()


@pytest.fixture
def ipvs_node(node: Namespace) -> Namespace:
    """With IPVS's part of the recording."""
    subprocess.run(["modprobe", "--all", "ip_vs", "ip_vs_rr", "dummy"], check=True)
    restore_addresses(node, ["kube-ipvs0", "eth0"], kind="dummy")
    run(node, "ipvsadm", "-R", stdin=recorded("ipvs", "ipvsadm-save.txt"))
    return node


def seen(node: Namespace, *, privileged: bool = True) -> list[Evidence]:
    return inside(node, lambda: gather("n1", running=[]), privileged=privileged)


def only(found: Sequence[Evidence], kind: type[E]) -> E:
    (one,) = (e for e in found if isinstance(e, kind))
    return one


def test_a_kernel_whose_modules_are_not_loaded_shows_nothing_and_loads_nothing(node: Namespace) -> None:
    before = modules()
    (kernel,) = seen(node)
    assert modules() == before
    assert not {"ip_vs", "nf_tables", "ip_set", "ip_tables"} & before, "this is the first test of a new machine"
    assert isinstance(kernel, Kernel)
    assert (kernel.release, kernel.ipvs) == (os.uname().release, "present")


def test_ipvs_without_a_virtual_server_is_nothing(node: Namespace) -> None:
    subprocess.run(["modprobe", "ip_vs"], check=True)
    assert inside(node, ipvs.gather) == []


def test_virtual_servers_over_netlink(ipvs_node: Namespace) -> None:
    found = seen(ipvs_node)
    assert only(found, IpvsTable) == IpvsTable(
        place=Place("ipvs", "netlink", node="n1"),
        services=SERVICES,
        destinations=DESTINATIONS,
        schedulers={"rr": SERVICES},
        kube=SERVICES,
    )
    assert only(found, IpvsInterface).addresses == 19
    assert only(found, Kernel).ipvs == "present"


def test_virtual_servers_from_proc_are_the_same(ipvs_node: Namespace) -> None:
    over_netlink = inside(ipvs_node, ipvs_netlink.read)
    assert len(over_netlink) == SERVICES == 30
    assert sorted(map(str, inside(ipvs_node, ipvs.read_proc))) == sorted(map(str, over_netlink))


def test_without_permission_they_are_read_from_proc(ipvs_node: Namespace) -> None:
    found = only(seen(ipvs_node, privileged=False), IpvsTable)
    assert found.place.name == "/proc/net/ip_vs"
    assert (found.services, found.destinations, found.kube) == (SERVICES, DESTINATIONS, SERVICES)


def test_schedulers_marks_and_what_is_not_kube_proxys(ipvs_node: Namespace) -> None:
    subprocess.run(["modprobe", "--all", "ip_vs_wlc", "ip_vs_sh"], check=True)
    for rule in (
        "-A -f 7 -s wlc",
        "-a -f 7 -r 10.0.0.9:0 -g",
        "-A -u 203.0.113.7:53 -s sh",
        "-A -u [2001:db8::7]:53 -s sh",
    ):
        run(ipvs_node, "ipvsadm", *rule.split())
    for found in (only(seen(ipvs_node), IpvsTable), only(seen(ipvs_node, privileged=False), IpvsTable)):
        assert found.schedulers == {"rr": SERVICES, "sh": 2, "wlc": 1}
        assert (found.services, found.destinations, found.kube) == (SERVICES + 3, DESTINATIONS + 1, SERVICES)


def test_more_than_one_datagram_of_services_and_destinations(node: Namespace) -> None:
    subprocess.run(["modprobe", "--all", "ip_vs", "ip_vs_rr"], check=True)
    rules = [f"-A -t 10.96.{i >> 8}.{i & 255}:80 -s rr" for i in range(500)]
    rules += [f"-a -t 10.96.0.7:80 -r 10.244.{i >> 8}.{i & 255}:80 -m" for i in range(300)]
    run(node, "ipvsadm", "-R", stdin="\n".join(rules) + "\n")
    found = only(seen(node), IpvsTable)
    assert (found.services, found.destinations, found.kube) == (500, 300, 0)
    assert sorted(map(str, inside(node, ipvs.read_proc))) == sorted(map(str, inside(node, ipvs_netlink.read)))


def test_clean_once_they_are_removed(ipvs_node: Namespace) -> None:
    run(ipvs_node, "ipvsadm", "-C")
    run(ipvs_node, "ip", "link", "delete", "kube-ipvs0")
    (kernel,) = seen(ipvs_node)
    assert isinstance(kernel, Kernel)


def test_kube_ipvs0_alone_is_left(ipvs_node: Namespace) -> None:
    run(ipvs_node, "ipvsadm", "-C")
    found = seen(ipvs_node)
    assert not [e for e in found if isinstance(e, IpvsTable)]
    assert only(found, IpvsInterface).addresses == 19


@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_the_whole_recording(ipvs_node: Namespace, variant: str) -> None:
    restore_ipsets(ipvs_node)
    restore_iptables(ipvs_node, "ipvs", variant)
    found = seen(ipvs_node)
    assert not [e for e in found if isinstance(e, Unreadable)]
    assert only(found, IpvsTable).kube == SERVICES
    assert only(found, KubeSets).sets == 34
    chains = {(e.place.name, e.place.part, e.mode) for e in found if isinstance(e, KubeChains)}
    assert chains == {(variant, "ip", "ipvs"), (variant, "ip6", "ipvs")}
