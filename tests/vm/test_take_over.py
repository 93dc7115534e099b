"""From IPVS and iptables-legacy to ours under traffic, on Debian's kernel 6.1 in a virtual machine (make test-vm).

Its processor is emulated, so there is less traffic here than in tests/test_take_over_traffic.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration import privileges
from integration.topology import Bed
from integration.traffic import until
from integration.vm import IN_VM
from tests import takeover
from tests.dataplanes import recorded
from tests.takeover import Traffic

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(IN_VM not in os.environ, reason="loads kernel modules, in a virtual machine: make test-vm"),
]
MODULES = "ip_vs ip_vs_rr dummy ip_set xt_set iptable_nat iptable_filter ip6table_nat ip6table_filter"
CONNECTIONS = 3
SECONDS = 900.0
"""For a start of the agent: its modules are read through the emulation."""


@pytest.fixture
def bed() -> Iterator[Bed]:
    subprocess.run(["modprobe", "--all", *MODULES.split()], check=True)
    privileges.acquire()
    with Bed() as it:
        yield it


def restore_ipvs(bed: Bed, variant: str) -> None:
    """With the sysctls that kube-proxy sets."""
    node = bed.node.namespace
    commands = ["link add kube-ipvs0 type dummy"]
    (interface,) = (i for i in json.loads(recorded("ipvs", "ip-addr.json")) if i["ifname"] == "kube-ipvs0")
    for address in interface["addr_info"]:
        if address["scope"] == "global":
            commands.append(f"addr add {address['local']}/{address['prefixlen']} dev kube-ipvs0")
    node.ip(commands)
    node.run(["ipvsadm", "-R"], text_in=recorded("ipvs", "ipvsadm-save.txt"))
    node.run(["ipset", "restore"], text_in=recorded("ipvs", "ipset-save.txt"))
    takeover.restore_iptables(bed, "ipvs", variant)
    node.sysctl(ipv4__vs__conntrack=1, ipv4__vs__expire_nodest_conn=1, ipv4__vs__conn_reuse_mode=0)
    node.sysctl(ipv4__conf__all__arp_ignore=1, ipv4__conf__all__arp_announce=2)


def left(bed: Bed) -> list[str]:
    """What of kube-proxy's is in the kernel."""
    node = bed.node.namespace
    found = []
    for program in ("iptables-legacy-save", "ip6tables-legacy-save", "iptables-nft-save"):
        found += [line for line in node.run([program]).stdout.splitlines() if "KUBE-" in line]
    found += node.run(["ipset", "list", "-n"]).stdout.split()
    found += node.run(["ipvsadm", "-Sn"]).stdout.splitlines()
    return found + [w for w in node.run(["ip", "-o", "link"]).stdout.splitlines() if "kube-ipvs0" in w]


def test_from_ipvs_and_iptables_legacy(bed: Bed, tmp_path: Path) -> None:
    restore_ipvs(bed, "legacy")
    takeover.works(bed)
    with Traffic(bed, pause=1.0, old=1, patience=60.0) as traffic:
        assert until(lambda: traffic.count > CONNECTIONS, SECONDS)
        agent = takeover.start_agent(bed, tmp_path, "--take-over")
        drains = agent.wait("take_over_drains", timeout=SECONDS)
        assert drains["connections"] >= len(traffic.old)
        so_far = traffic.count
        assert until(lambda: traffic.count > so_far + CONNECTIONS, SECONDS)
        assert not [line for line in left(bed) if "-A KUBE" in line], "rules are gone at once"
        for each in traffic.old:
            each.stop()  # then IPVS has nothing more to do
        done = agent.wait("took_over", timeout=SECONDS)
        so_far = traffic.count
        assert until(lambda: traffic.count > so_far + CONNECTIONS, SECONDS)
    assert traffic.failures() == []
    assert [each.broken for each in traffic.old] == [[]] * len(traffic.old)
    assert (done["virtual_servers"], done["ipsets"], done["interfaces"], done["failed"]) == (30, 34, 1, 0)
    assert left(bed) == []


def test_what_the_cleanup_does_to_connections_that_ipvs_carries(bed: Bed, tmp_path: Path) -> None:
    """A TCP connection is told that it is gone; UDP goes on."""
    restore_ipvs(bed, "nft")
    agent = takeover.start_agent(bed, tmp_path)
    with bed.pod1.namespace.entered():
        stream = socket.create_connection(takeover.CLUSTER_IP, 10)
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.settimeout(10)
        datagrams.connect((takeover.CLUSTER_IP[0], 53))
    with stream, datagrams:
        stream.settimeout(10)
        assert stream.recv(100)
        datagrams.send(b"before")
        assert datagrams.recv(100)
        agent.wait("programmed", timeout=SECONDS)
        stream.send(b"still there?\n")
        assert stream.recv(100) == b"still there?\n"
        done = bed.node.namespace.run([sys.executable, "-m", "proxy", "cleanup", "--kube-proxy"])
        assert "connection, which this cuts" in done.stdout or "connections, which this cuts" in done.stdout
        with contextlib.suppress(ConnectionResetError):  # unless, by chance, it is led to the endpoint that it had
            stream.send(b"and now?\n")
            assert stream.recv(100) == b"and now?\n"
        datagrams.send(b"after")
        assert datagrams.recv(100)
    assert left(bed) == []
