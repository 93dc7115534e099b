"""`cleanup --kube-proxy` in network namespaces: all of kube-proxy's goes, and nothing of anybody else's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.leftovers.gather import look
from proxy.leftovers.plan import plan
from proxy.leftovers.remove import remove
from tests.dataplanes import (
    inside,
    make_counters,
    needs,
    recorded,
    restore_addresses,
    restore_ipsets,
    restore_iptables,
    restore_nftables,
    run,
)
from tests.netns import Namespace

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root"),
    needs("iptables-nft-restore", "ipset", "nft"),
]
CHECKOUT = Path(__file__).parent.parent

NEIGHBOURS = """\
table ip docker-bridges {
    chain PREROUTING { type nat hook prerouting priority dstnat; policy accept; fib daddr type local counter accept; }
}
table inet firewalld {
    chain filter_INPUT { type filter hook input priority 10; policy accept; ct state established,related accept; }
}
table ip KUBE-SERVICES {
    chain KUBE-SERVICES {
    }
}
table inet kube-proxy {
    chain mine {
    }
}
"""
IPTABLES = """\
*nat
:DOCKER - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-DN-1 - [0:0]
:cali-PREROUTING - [0:0]
-A PREROUTING -m comment --comment "cali:1" -j cali-PREROUTING
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 8080 -j CNI-DN-1
-A CNI-DN-1 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.244.0.9:80
-A DOCKER -i docker0 -j RETURN
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
COMMIT
*filter
:KUBE-ROUTER-INPUT - [0:0]
:DOCKER-USER - [0:0]
-A INPUT -m comment --comment "kube-router netpol" -j KUBE-ROUTER-INPUT
-A FORWARD -j DOCKER-USER
-A DOCKER-USER -j RETURN
-A OUTPUT -d 198.18.0.0/15 -j DROP
COMMIT
*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
COMMIT
"""


@pytest.fixture
def node() -> Iterator[Namespace]:
    made = Namespace()
    run(made, "ip", "link", "set", "lo", "up")
    yield made
    made.close()


def state(node: Namespace) -> dict[str, str]:
    """Everything there is, of everybody."""
    commands = (
        "nft -s list ruleset",
        "iptables-nft-save",
        "ip6tables-nft-save",
        "ipset save",
        "ip -o addr",
        "ip -o link",
    )
    said = {}
    for command in commands:
        done = node.run(*command.split())
        assert done.returncode == 0, done.stderr
        lines = [re.sub(r" \[\d+:\d+\]$", "", line) for line in done.stdout.splitlines() if line[:1] != "#"]
        said[command] = "\n".join(lines)
    return said


def settle(node: Namespace) -> None:
    """iptables' tables with all base chains, as kube-proxy's first call makes them; those stay."""
    for program in ("iptables", "ip6tables"):
        lines = recorded("iptables", f"{program}-save.txt").splitlines()
        empty = [line for line in lines if not line.startswith(("[", ":KUBE-"))]
        run(node, f"{program}-nft-restore", stdin="\n".join(empty) + "\n")


def neighbours(node: Namespace) -> None:
    node.nft("-f", "-", stdin=NEIGHBOURS)
    run(node, "iptables-nft-restore", "--noflush", stdin=IPTABLES)
    run(node, "ipset", "restore", stdin="create KUBE-SRC-ABC hash:ip\nadd KUBE-SRC-ABC 1.2.3.4\ncreate mine hash:net\n")


def restore_beside(node: Namespace, mode: str, variant: str = "nft") -> None:
    """kube-proxy's rules beside those that are there."""
    inside(node, lambda: make_counters("ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts"))
    for program in ("iptables", "ip6tables"):
        lines = [
            line.partition("] ")[2] if line.startswith("[") else line
            for line in recorded(mode, f"{program}-save.txt").splitlines()
        ]
        lines = [line for line in lines if not line.startswith(":") or line.startswith(":KUBE-")]
        run(node, f"{program}-{variant}-restore", "--noflush", stdin="\n".join(lines) + "\n")


def cleanup(node: Namespace, *options: str) -> subprocess.CompletedProcess[str]:
    done = node.run("env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-m", "proxy", "cleanup", "--kube-proxy", *options)
    assert "Traceback" not in done.stderr
    return done


def test_neighbours_stay_byte_for_byte(node: Namespace) -> None:
    settle(node)
    neighbours(node)
    before = state(node)
    restore_ipsets(node)
    restore_beside(node, "iptables")
    restore_beside(node, "ipvs")
    restore_nftables(node)
    restore_addresses(node, ["kube-ipvs0"])
    amid = state(node)
    assert amid != before
    listed = cleanup(node, "--dry-run")
    assert (listed.returncode, state(node)) == (0, amid), "--dry-run changes nothing"
    done = cleanup(node)
    assert done.returncode == 0, done.stderr
    after = state(node)
    # kube-proxy's jump to kubelet's KUBE-FIREWALL, whose chains are here.
    firewall = [line for line in after["iptables-nft-save"].splitlines() if "KUBE-FIREWALL" in line]
    assert len(firewall) == 4, "the chain, its rule, and the jumps from INPUT and OUTPUT"
    assert "KUBE-FIREWALL: kubelet's" in done.stdout
    for command, said in after.items():
        if "save" in command and "ipset" not in command:
            assert [line for line in said.splitlines() if "KUBE-FIREWALL" not in line] == before[command].splitlines()
        elif command != "nft -s list ruleset":
            assert said == before[command], command
    again = cleanup(node)
    assert (again.returncode, "kube-proxy has left nothing here" in again.stdout) == (0, True)
    assert state(node) == after


@pytest.mark.parametrize("mode", ["iptables", "ipvs", "nftables"])
def test_each_mode_alone(node: Namespace, mode: str) -> None:
    settle(node)
    before = state(node)
    if mode == "nftables":
        restore_nftables(node)
    else:
        if mode == "ipvs":
            restore_ipsets(node)
            restore_addresses(node, ["kube-ipvs0"])
        restore_beside(node, mode)
    assert cleanup(node).returncode == 0
    assert state(node) == before


@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_what_portmap_uses_stays(node: Namespace, variant: str) -> None:
    restore_ipsets(node)
    restore_iptables(node, "ipvs", variant)
    iptables = f"iptables-{variant}"
    run(node, iptables, "-t", "nat", "-N", "CNI-HOSTPORT-SETMARK")
    run(node, iptables, "-t", "nat", "-A", "CNI-HOSTPORT-SETMARK", "-j", "KUBE-MARK-MASQ")
    done = cleanup(node)
    assert done.returncode == 0, done.stderr
    assert "chain KUBE-MARK-MASQ: used by CNI-HOSTPORT-SETMARK" in done.stdout
    rules = [line for line in node.run(f"{iptables}-save").stdout.splitlines() if "KUBE-" in line and line[0] != ":"]
    assert len(rules) == 6, rules
    assert node.run("ipset", "list", "-n").stdout == "", "also the one that KUBE-POSTROUTING matched"


def saved_legacy(node: Namespace) -> str:
    """With counters."""
    programs = ("iptables", "ip6tables")
    return "".join(node.run(f"{program}-legacy-save", "-c").stdout for program in programs)


def rules_of(text: str) -> list[str]:
    """Without what base chains have counted: we look at the ports of this node."""
    return [line.partition(" [")[0] if line[:1] == ":" else line for line in text.splitlines() if line[:1] != "#"]


def uncounted(line: str) -> str:
    return re.sub(r"^\[\d+:\d+\] ", "", line)


@pytest.mark.parametrize("mode", ["iptables", "ipvs"])
def test_neighbours_in_legacy_tables_stay_with_their_counters(node: Namespace, mode: str) -> None:
    run(node, "ip", "link", "set", "lo", "down")  # for the same reason
    mine = IPTABLES.replace("-A ", "[7:420] -A ")
    run(node, "iptables-legacy-restore", "-c", stdin=mine)
    run(
        node,
        "ip6tables-legacy-restore",
        "-c",
        stdin="*nat\n:POSTROUTING ACCEPT [5:600]\nCOMMIT\n*filter\nCOMMIT\n*mangle\nCOMMIT\n",
    )
    before = saved_legacy(node)
    assert "[7:420] -A FORWARD -j DOCKER-USER" in before
    if mode == "ipvs":
        restore_ipsets(node)
    restore_beside(node, mode, "legacy")
    amid = saved_legacy(node)
    assert amid.count("KUBE-") > 60
    assert cleanup(node, "--dry-run").returncode == 0
    assert [uncounted(line) for line in rules_of(saved_legacy(node))] == [uncounted(line) for line in rules_of(amid)]
    done = cleanup(node)
    assert done.returncode == 0, done.stderr
    after = rules_of(saved_legacy(node))
    if mode == "iptables":
        firewall = [line for line in after if "KUBE-FIREWALL" in line]
        assert len(firewall) == 4 + 3, "kubelet's, whose other chains are here"
        after = [line for line in after if line not in firewall]
    assert after == rules_of(before)


@pytest.mark.parametrize("mode", ["iptables", "ipvs"])
def test_legacy_alone(node: Namespace, mode: str) -> None:
    if mode == "ipvs":
        restore_ipsets(node)
    restore_iptables(node, mode, "legacy")
    assert cleanup(node).returncode == 0
    assert "KUBE" not in saved_legacy(node)
    run(node, "iptables-legacy", "-t", "nat", "-A", "OUTPUT", "-j", "ACCEPT")  # the table is a table still


def test_a_legacy_chain_of_services_that_another_program_jumps_to_is_emptied(node: Namespace) -> None:
    restore_iptables(node, "iptables", "legacy")
    run(node, "iptables-legacy", "-t", "nat", "-N", "MINE")
    run(node, "iptables-legacy", "-t", "nat", "-A", "MINE", "-j", "KUBE-SERVICES")
    run(node, "iptables-legacy", "-t", "nat", "-A", "MINE", "-d", "192.0.2.7", "-j", "RETURN")
    assert cleanup(node).returncode == 0
    assert "removed" not in cleanup(node).stdout  # what is empty is not emptied again
    rules = [line for line in saved_legacy(node).splitlines() if "KUBE" in line or "MINE" in line]
    assert [line.partition("] ")[2] for line in rules if line[0] == "["] == [
        "-A MINE -j KUBE-SERVICES",
        "-A MINE -d 192.0.2.7/32 -j RETURN",
    ]


def test_it_refuses_while_kube_proxy_runs(node: Namespace, tmp_path: Path) -> None:
    restore_iptables(node, "iptables", "nft")
    before = state(node)
    program = tmp_path / "kube-proxy"
    program.symlink_to("/bin/sleep")
    path = f"/proc/{os.getpid()}/fd/{node.descriptor}"
    kube_proxy = subprocess.Popen(["nsenter", f"--net={path}", str(program), "600"])
    try:
        # nsenter becomes the program, with the same process identifier, in a moment.
        while Path(f"/proc/{kube_proxy.pid}/cmdline").read_bytes().split(b"\0")[0] != os.fsencode(program):
            assert kube_proxy.poll() is None
        refused = cleanup(node)
        assert refused.returncode == 9
        assert f"process {kube_proxy.pid} (kube-proxy)" in refused.stderr
        assert state(node) == before
        assert cleanup(node, "--dry-run").returncode == 0
        assert state(node) == before
        assert cleanup(node, "--force").returncode == 0
        assert state(node) != before
    finally:
        kube_proxy.kill()
        kube_proxy.wait()


def test_for_programs(node: Namespace) -> None:
    restore_iptables(node, "iptables", "nft")
    made = json.loads(cleanup(node, "--dry-run", "-o", "json").stdout)
    assert [len(table["chains"]) for table in made["iptables"]] == [1, 7, 66, 1, 7, 8]
    assert made["failed"] == made["unread"] == []


def test_an_ipset_that_somebody_uses_is_a_partial_failure(node: Namespace) -> None:
    restore_ipsets(node)
    run(node, "iptables-nft", "-A", "OUTPUT", "-m", "set", "--match-set", "KUBE-CLUSTER-IP", "dst,dst", "-j", "ACCEPT")
    done = cleanup(node)
    assert done.returncode == 12
    assert "ipset KUBE-CLUSTER-IP: a rule uses it" in done.stdout
    assert node.run("ipset", "list", "-n").stdout.split() == ["KUBE-CLUSTER-IP"]


def test_without_permission(node: Namespace) -> None:
    restore_iptables(node, "iptables", "nft")
    found = inside(node, look, privileged=False)
    assert [unread.is_permission for unread in found.unread]
    assert all(unread.is_permission for unread in found.unread)
    assert not found.tables


def test_its_options_mean_nothing_without_it(node: Namespace) -> None:
    done = node.run("env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-m", "proxy", "cleanup", "--dry-run")
    assert (done.returncode, "--kube-proxy" in done.stderr) == (2, True)


def test_a_rule_that_came_between_the_look_and_the_removal(node: Namespace) -> None:
    restore_iptables(node, "iptables", "nft")
    planned = inside(node, lambda: plan(look()))
    run(node, "iptables-nft", "-t", "nat", "-N", "MINE")
    run(node, "iptables-nft", "-t", "nat", "-A", "MINE", "-j", "KUBE-MARK-MASQ")
    before = state(node)["iptables-nft-save"].partition("*nat")[2]
    (failed,) = inside(node, lambda: remove(planned))
    assert (failed.what, failed.has_changed) == ("iptables-nft ip nat", True)
    assert "KUBE-MARK-MASQ: something jumps to it" in failed.cause
    rest, _, after = state(node)["iptables-nft-save"].partition("*nat")
    assert after == before, "a table goes whole, or not at all"
    assert "KUBE" not in rest
    assert inside(node, lambda: remove(plan(look()))) == []
