"""Entries of a kernel that has IPVS (Debian's 6.1), and what the clean-up leaves there (make test-vm)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from integration.vm import IN_VM
from proxy.detect import ipvs_netlink
from proxy.migrate import ipvs_entries, live
from proxy.migrate.entries import Dataplane
from rules.elements import describe_key
from tests.dataplanes import inside, recorded, restore_addresses, restore_ipsets, restore_iptables, run
from tests.netns import Namespace

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(900),
    pytest.mark.skipif(IN_VM not in os.environ, reason="loads kernel modules, in a virtual machine: make test-vm"),
]
CHECKOUT = Path(__file__).parent.parent.parent


@pytest.fixture
def node() -> Iterator[Namespace]:
    subprocess.run(["modprobe", "--all", "ip_vs", "ip_vs_rr", "ip_vs_wlc", "dummy", "ip_set"], check=True)
    made = Namespace()
    run(made, "ip", "link", "set", "lo", "up")
    restore_addresses(made, ["kube-ipvs0", "eth0"], kind="dummy")
    run(made, "ipvsadm", "-R", stdin=recorded("ipvs", "ipvsadm-save.txt"))
    restore_ipsets(made)
    yield made
    made.close()


def read(node: Namespace) -> Dataplane:
    found = inside(node, ipvs_entries.read)
    assert found
    return found


def test_over_netlink_from_proc_and_from_texts(node: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ipvs_entries.of_text(recorded("ipvs", "ipvsadm-save.txt"), recorded("ipvs", "ipset-save.txt"))
    assert text
    live = read(node)
    assert (live.source, live.unread, live.nodeport_addresses) == ("netlink", (), text.nodeport_addresses)
    assert set(live.entries) == set(text.entries)

    def refused() -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(ipvs_netlink, "read_table", refused)
    proc = read(node)
    assert proc.source == "/proc/net/ip_vs"
    assert set(proc.entries) == set(text.entries)


def looked(node: Namespace) -> Dataplane:
    def look() -> list[Dataplane]:
        looking = live.Look()
        looking.wait()
        return [found for found in looking.dataplanes if found.mode == "ipvs"]

    [found] = inside(node, look)
    return found


def test_what_stands_beside_the_servers(node: Namespace) -> None:
    assert "they are not there" in looked(node).remarks[0].cause
    restore_iptables(node, "ipvs", "nft")
    found = looked(node)
    text = ipvs_entries.of_text(recorded("ipvs", "ipvsadm-save.txt"), recorded("ipvs", "ipset-save.txt"))
    assert text and found.remarks == () and found.masquerade_mark == 0x4000
    assert found.beside == replace(text.beside, pods={"ip": "10.244.0.0/16", "ip6": "fd44::/48"})
    for rule in (
        "-A -t 10.96.77.7:80 -s rr",
        "-a -t 10.96.77.7:80 -r 10.244.9.9:80 -m",
        "-e -t 10.96.30.5:443 -r 10.244.1.3:8080 -m -w 5",
        "-E -t 10.96.30.9:80 -s rr -p 3600 -M 255.255.0.0",
        "-E -u 10.96.30.1:53 -s rr -o",
    ):
        run(node, "ipvsadm", *rule.split())
    run(node, "ipset", "del", "KUBE-LOOP-BACK", "10.244.0.2,tcp:8080,10.244.0.2")
    run(node, "iptables-nft", "-t", "nat", "-D", "PREROUTING", "1")
    changed = looked(node)
    assert [describe_key(key) for key in changed.beside.strays] == ["10.96.77.7:80/TCP"]
    assert [describe_key(key) for key in changed.beside.uneven] == ["10.96.30.5:443/TCP"]
    assert len(found.beside.hairpins or ()) == 1 + len(changed.beside.hairpins or ())
    first, second, third = sorted(remark.what for remark in changed.remarks)
    assert (first, second) == ("10.96.30.1:53/UDP", "10.96.30.9:80/TCP") and "PREROUTING does not lead" in third


def test_weights_schedulers_and_what_is_not_kube_proxys(node: Namespace) -> None:
    for rule in (
        "-e -t 10.96.30.1:80 -r 10.244.0.2:8080 -m -w 0",
        "-E -t 10.96.30.2:80 -s wlc",
        "-A -t 192.168.77.2:443 -s wlc",  # keepalived's: at an address of the node
        "-a -t 192.168.77.2:443 -r 10.0.0.9:443 -g",
        "-A -f 7 -s rr",
        "-A -u 203.0.113.7:53 -s rr",
    ):
        run(node, "ipvsadm", *rule.split())
    found = {describe_key(entry.key): entry for entry in read(node).entries}
    assert len(found) == 30
    assert len(found["10.96.30.1:80/TCP"].endpoints) == 3
    assert found["10.96.30.2:80/TCP"].scheduler == "wlc"
    restore_iptables(node, "ipvs", "nft")
    done = node.run("env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-m", "proxy", "cleanup", "--kube-proxy")
    assert done.returncode == 0, done.stderr
    assert "3 IPVS virtual servers: not kube-proxy's" in done.stdout
    assert sorted(node.run("ipvsadm", "-Sn").stdout.split("\n")[:-1]) == [
        "-A -f 7 -s rr",
        "-A -t 192.168.77.2:443 -s wlc",
        "-A -u 203.0.113.7:53 -s rr",
        "-a -t 192.168.77.2:443 -r 10.0.0.9:443 -g -w 1",
    ]
    assert "kube-ipvs0" not in node.run("ip", "link").stdout
    assert node.run("ipset", "list", "-n").stdout == ""
    assert inside(node, ipvs_entries.read) is None
