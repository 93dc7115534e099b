"""What a node is like: its firewalls' answers, marks, chains, listeners, pod network; from texts, and from the kernel."""

from __future__ import annotations

import socket
from ipaddress import ip_network
from pathlib import Path

import pytest

from proxy.detect.host_files import HostFiles
from proxy.detect.kernel_support import KernelFiles
from proxy.detect.processes import RunningProxy
from proxy.migrate import accounting, base_chains, cni, iptables_facts, listeners, node_facts, others
from proxy.migrate.facts import Listener, MarkUse, NodeFacts
from proxy.migrate.iptables_save import Saved, parse
from proxy.migrate.node_facts import platform, sysctls
from proxy.migrate.others import Others
from proxy.unread import Unread
from rules.objects import Family
from tests import migrate_nodes as nodes
from tests.dataplanes import inside, needs, recorded
from tests.netns import Namespace

PODS = [ip_network("10.244.0.0/16"), ip_network("fd44::/48")]


def table(rules: str, policy: str = "DROP", name: str = "filter") -> Saved:
    lines = [line.strip() for line in rules.strip().splitlines()]
    chains = {line.split()[1] for line in lines} - {"FORWARD"}
    declared = [f":FORWARD {policy} [0:0]", *(f":{chain} - [0:0]" for chain in sorted(chains))]
    return parse("\n".join([f"*{name}", *declared, *lines, "COMMIT", ""]))


@pytest.mark.parametrize(
    ("rules", "lets"),
    [
        ("", "no"),
        ("-A FORWARD -j ACCEPT", "yes"),
        ("-A FORWARD -d 10.244.0.0/16 -j ACCEPT", "yes"),
        ("-A FORWARD -d 10.0.0.0/8 -j ACCEPT", "yes"),
        ("-A FORWARD -d 10.244.1.0/24 -j ACCEPT", "unknown"),
        ("-A FORWARD -d 192.168.0.0/16 -j ACCEPT", "no"),
        ("-A FORWARD ! -d 192.168.0.0/16 -j ACCEPT", "yes"),
        ("-A FORWARD -s 10.244.0.0/16 -j ACCEPT", "no"),  # it comes from outside
        ("-A FORWARD -s 203.0.113.0/24 -j ACCEPT", "unknown"),
        ("-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "no"),
        ("-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT", "yes"),
        ("-A FORWARD -m conntrack ! --ctstate INVALID -j ACCEPT", "yes"),
        ("-A FORWARD -p tcp -j ACCEPT", "unknown"),
        ("-A FORWARD -i cali+ -j ACCEPT", "no"),
        ("-A FORWARD -o cali+ -j ACCEPT", "unknown"),
        ("-A FORWARD -o docker0 -j ACCEPT", "no"),
        ("-A FORWARD -i eth1 -j DROP\n-A FORWARD -j ACCEPT", "unknown"),
        ("-A FORWARD -j REJECT\n-A FORWARD -j ACCEPT", "no"),
        ("-A FORWARD -j X\n-A X -j ACCEPT", "yes"),
        ("-A FORWARD -j X\n-A X -j RETURN\n-A X -j ACCEPT", "no"),
        ("-A FORWARD -j X\n-A FORWARD -j ACCEPT\n-A X -p tcp -j RETURN", "yes"),
        ("-A FORWARD -j X\n-A X -j X", "no"),
        ("-A FORWARD -j LOG\n-A FORWARD -j ACCEPT", "yes"),
        ("-A FORWARD -j NFQUEUE", "unknown"),
        ("-A FORWARD -j A-CHAIN-THAT-IS-NOT-LISTED", "unknown"),
        # What kube-proxy's own rules let through does not count: they go.
        ("-A FORWARD -j KUBE-FORWARD\n-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT", "no"),
        ("-A FORWARD -j KUBE-FORWARD\n-A KUBE-FORWARD -j ACCEPT", "no"),
        # flannel's, as it writes them
        ("-A FORWARD -j FLANNEL-FWD\n-A FLANNEL-FWD -s 10.244.0.0/16 -j ACCEPT\n-A FLANNEL-FWD -d 10.244.0.0/16 -j ACCEPT", "yes"),
        # Docker's on a node without a pod network's own
        (
            "-A FORWARD -j DOCKER-USER\n-A FORWARD -i docker0 ! -o docker0 -j ACCEPT\n-A DOCKER-USER -j RETURN",
            "no",
        ),
    ],
)  # fmt: skip
def test_what_a_forward_policy_of_drop_lets_through(rules: str, lets: str) -> None:
    found = iptables_facts.forward(table(rules), "ip", PODS)
    assert found is not None and found.lets_dnat == lets
    assert found.place == "chain ip filter FORWARD"


def test_a_policy_of_accept_is_nothing_to_tell() -> None:
    assert iptables_facts.forward(table("", "ACCEPT"), "ip", PODS) is None
    assert iptables_facts.forward(table("-A FORWARD -s 10.244.0.0/16 -j DROP", "ACCEPT"), "ip", PODS) is None
    assert iptables_facts.forward(parse(""), "ip", PODS) is None


def test_a_last_rule_that_drops_is_as_a_policy() -> None:
    found = iptables_facts.forward(table("-A FORWARD -p udp -j ACCEPT\n-A FORWARD -j DROP", "ACCEPT"), "ip", PODS)
    assert found is not None and found.lets_dnat == "unknown"
    assert found.accepts == ("-p udp -j ACCEPT",)


def test_without_pod_ranges_nothing_is_sure() -> None:
    found = iptables_facts.forward(table("-A FORWARD -d 10.244.0.0/16 -j ACCEPT"), "ip", [])
    assert found is not None and found.lets_dnat == "unknown"


def test_marks_of_others() -> None:
    saved = table(
        """
        -A FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT
        -A cali-FORWARD -j MARK --set-xmark 0x0/0xe0000
        -A X -j MARK --set-mark 0x5
        -A X -j MARK --or-mark 0x200
        -A X -j CONNMARK --set-xmark 0x1/0xff
        -A X -j CONNMARK --save-mark --nfmask 0xf0 --ctmask 0xf
        -A X -m comment --comment "a mark --mark 0x7" -j ACCEPT
        -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
        -A KUBE-ROUTER-INPUT -m mark --mark 0x20000/0x20000 -j RETURN
        """,
        name="mangle",
    )
    found = list(iptables_facts.marks(saved, "ip6"))
    assert MarkUse("chain ip6 mangle cali-FORWARD", 0xE0000, "calico") in found
    assert MarkUse("chain ip6 mangle FORWARD", 0x10000) in found
    assert MarkUse("chain ip6 mangle KUBE-ROUTER-INPUT", 0x20000, "kube-router") in found
    marked = [(one.mask, one.of_connections) for one in found if one.place.endswith(" X")]
    assert marked == [(0xFFFFFFFF, False), (0x200, False), (0xFF, True), (0xF0, False), (0xF, True)]
    assert not any("KUBE-MARK-MASQ" in one.place for one in found)


@pytest.mark.parametrize("mode", ["iptables", "ipvs"])
@pytest.mark.parametrize("program", ["iptables", "ip6tables"])
def test_kube_proxy_s_own_rules_are_nobody_else_s(mode: str, program: str) -> None:
    saved = parse(recorded(mode, f"{program}-save.txt"))
    assert list(iptables_facts.marks(saved, "ip")) == []
    assert iptables_facts.forward(saved, "ip", PODS) is None


# -- CNI ---------------------------------------------------------------------------------------------------------------


def test_the_pod_network(tmp_path: Path) -> None:
    directory = tmp_path / "etc/cni/net.d"
    directory.mkdir(parents=True)
    (directory / "00-broken.conflist").write_text("{")
    (directory / "10-calico.conflist").write_text('{"plugins": [{"type": "calico"}, {"type": "portmap"}, 5]}')
    (directory / "99-loopback.conf").write_text('{"type": "loopback"}')
    found = cni.names(HostFiles(tmp_path), ["lo", "eth0", "cali123", "flannel.1"])
    assert found == ("calico", "portmap", "flannel")
    assert [mark.mask for mark in cni.marks(found)] == [0xFFFF0000, 0x2000]


def test_defaults_are_not_told_where_rules_were_seen(tmp_path: Path) -> None:
    assert node_facts._defaults(("calico", "portmap"), {"calico"}) == cni.marks(["portmap"])


@pytest.mark.parametrize(
    ("paths", "program", "name"),
    [
        ([], "", ""),
        (["var/lib/kubelet/kubeadm-flags.env"], "kube-proxy", "kubeadm"),
        (["etc/rancher/k3s/config.yaml"], "", "k3s"),
        ([], "rke2", "rke2"),
        (["etc/rancher/rke2/config.yaml", "var/lib/rancher/rke2/x", "var/lib/kubelet/kubeadm-flags.env"], "", "rke2"),
    ],
)
def test_platforms(tmp_path: Path, paths: list[str], program: str, name: str) -> None:
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    running = [RunningProxy(1, program, (program,), "/")] if program else []
    assert platform(HostFiles(tmp_path), running) == name


# -- From /proc --------------------------------------------------------------------------------------------------------


def test_listeners(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as udp:
        udp.bind(("::1", 0))
        found = listeners.read()
        port, other = tcp.getsockname()[1], udp.getsockname()[1]
    [one] = [each for each in found if each.port == port and each.protocol == "TCP"]
    assert one.address == bytes([127, 0, 0, 1])
    assert one.program  # ours may be seen
    assert Listener("UDP", bytes(15) + b"\1", other, one.program) in found


def test_listeners_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "tcp").write_text(
        "heading\n nonsense\n 0: 0100:XX 0:0 0A 1 1 1 1 1 1 5\n 0: 0100007F:0016 0:0 0A 0 0 0 0 0 x 5\n"
    )
    assert listeners.read(tmp_path) == ()
    assert listeners.read(tmp_path / "none") == ()


def test_sctp_listeners(tmp_path: Path) -> None:
    (tmp_path / "sctp").mkdir()
    line = "ffff8880 ffff8881 2   10  29   9999    0 12345 10.0.0.1 fd00::1\n"
    (tmp_path / "sctp/eps").write_text(
        " ENDPT SOCK STY SST HBKT LPORT UID INODE LADDRS\n" + line + line.replace("10  29", "7   29")
    )
    found = listeners.read(tmp_path, proc=tmp_path)
    assert [(one.protocol, len(one.address), one.port) for one in found] == [("SCTP", 4, 9999), ("SCTP", 16, 9999)]


def test_the_search_for_programs_ends(tmp_path: Path) -> None:
    ticks = iter([0.0, 0.5, *[2.0] * 100])
    with socket.create_server(("127.0.0.1", 0)):
        found = listeners.read(clock=lambda: next(ticks))
    assert found


def test_sysctls(tmp_path: Path) -> None:
    assert sysctls(tmp_path) == {}
    assert sysctls()["net/ipv4/ip_forward"] in ("0", "1")


def here() -> tuple[NodeFacts, list[Unread]]:
    """What is read in this thread's network namespace."""
    chains, unread = base_chains.read(KernelFiles().presence)
    seen = Others()
    hidden = seen.read_rest(chains)
    facts, more = node_facts.read(HostFiles(Path("/nonexistent")), [], chains, seen, PODS)
    return facts, [*unread, *hidden, *more]


# -- From the kernel ---------------------------------------------------------------------------------------------------

RULESET = """
table inet firewalld {
  chain filter_FORWARD { type filter hook forward priority 10; policy accept; }
}
table inet mine {
  chain forward { type filter hook forward priority 0; policy drop; ip daddr 10.244.0.0/16 accept; }
  chain other { counter; }
}
table ip6 mine {
  chain out { type route hook output priority -150; }
}
table netdev mine {
  chain in { type filter hook ingress device "lo" priority 0; }
}
table arp mine {
  chain in { type filter hook input priority 0; }
}
"""


@pytest.mark.root
@needs("nft")
def test_base_chains_of_nftables(namespace: Namespace) -> None:
    namespace.nft("-f", "-", stdin=RULESET)
    found, unread = inside(namespace, lambda: base_chains.read(KernelFiles().presence))
    assert not unread
    shown = {(c.family, c.table, c.name, c.kind, c.hook, c.priority, c.policy, c.rules, c.program) for c in found}
    assert shown == {
        ("inet", "firewalld", "filter_FORWARD", "filter", "forward", 10, "accept", 0, "firewalld"),
        ("inet", "mine", "forward", "filter", "forward", 0, "drop", 1, ""),
        ("ip6", "mine", "out", "route", "output", -150, "accept", 0, ""),
        ("netdev", "mine", "in", "filter", "ingress", 0, "accept", 0, ""),
    }
    facts, _ = inside(namespace, here)
    assert {(one.place, one.lets_dnat, one.apart) for one in facts.forward} == {
        ("chain inet mine forward, ip", "yes", True),
        ("chain inet mine forward, ip6", "no", True),
    }


@pytest.mark.root
@needs("iptables-legacy-restore", "iptables-nft-restore")
@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_base_chains_of_iptables(namespace: Namespace, variant: str) -> None:
    rules = "*filter\n:INPUT DROP\n:FORWARD DROP\n:OUTPUT ACCEPT\n:MINE -\n-A INPUT -j MINE\n-A INPUT -j ACCEPT\n-A FORWARD -d 10.244.0.0/16 -j ACCEPT\nCOMMIT\n"
    done = namespace.run(f"iptables-{variant}-restore", stdin=rules)
    assert done.returncode == 0, done.stderr
    chains, _ = inside(namespace, lambda: base_chains.read(KernelFiles().presence))
    program = "iptables" if variant == "nft" else "iptables-legacy"
    shown = {(c.name, c.hook, c.policy, c.rules) for c in chains if c.program == program and c.table == "filter"}
    assert shown == {
        ("INPUT", "input", "drop", 2),
        ("FORWARD", "forward", "drop", 1),
        ("OUTPUT", "output", "accept", 0),
    }
    facts, unread = inside(namespace, here)
    assert not unread
    assert [(one.place, one.lets_dnat) for one in facts.forward] == [("chain ip filter FORWARD", "yes")]


@pytest.mark.root
@needs("iptables-nft-restore", "iptables-legacy-restore")
@pytest.mark.parametrize(("variant", "lets"), [("nft", "yes"), ("legacy", "unknown")])
def test_without_the_program(namespace: Namespace, monkeypatch: pytest.MonkeyPatch, variant: str, lets: str) -> None:
    """As in an image without iptables: nft's are read all the same."""
    rules = "*filter\n:FORWARD DROP\n-A FORWARD -d 10.244.0.0/16 -j ACCEPT\nCOMMIT\n"
    namespace.run(f"iptables-{variant}-restore", stdin=rules)
    monkeypatch.setattr("proxy.migrate.iptables_programs.PATH", "/nonexistent")
    facts, unread = inside(namespace, here)
    assert [(one.place, one.lets_dnat) for one in facts.forward] == [("chain ip filter FORWARD", lets)]
    if variant == "legacy":
        [told] = unread
        assert told.what == "iptables rules (legacy, ip)" and "not installed" in told.cause and told.remedy
    else:
        assert not unread


@pytest.mark.root
def test_localhost_packets(namespace: Namespace) -> None:
    support = KernelFiles().presence
    name = iptables_facts.LOCALHOST_COUNTER
    assert inside(namespace, lambda: accounting.packets(name, support)) is None
    with_rules = nodes.make("iptables")
    assert inside(with_rules, lambda: accounting.packets(name, support)) == 0
    rule = ["-I", "OUTPUT", "-d", "127.0.0.1", "-m", "nfacct", "--nfacct-name", name]
    done = with_rules.run("iptables-nft", *rule)
    assert done.returncode == 0, done.stderr

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"hello", ("127.0.0.1", 9))

    inside(with_rules, send)
    found = inside(with_rules, lambda: accounting.packets(name, support))
    with_rules.close()
    assert found is not None and found >= 1
    assert inside(namespace, lambda: accounting.packets(name, lambda module, option: "loadable")) is None


@pytest.mark.root
def test_interfaces(namespace: Namespace) -> None:
    namespace.run("ip", "link", "add", "br7", "type", "bridge")
    namespace.run("ip", "addr", "add", "10.7.0.1/24", "dev", "br7")
    facts, unread = inside(namespace, here)
    assert not unread
    assert {one.name: one.addresses for one in facts.interfaces} == {"lo": (), "br7": (bytes([10, 7, 0, 1]),)}
    assert facts.conntrack_max and facts.conntrack_count == 0


def test_programs_are_known_by_their_variant() -> None:
    assert set(others.VARIANTS.values()) == {"nft", "legacy"} and Family.IPV4.nft == "ip"
