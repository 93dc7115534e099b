"""What is read of kube-proxy's iptables rules, against what the same objects ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.migrate import iptables_netlink, iptables_programs
from proxy.migrate.entries import Dataplane
from proxy.migrate.iptables_entries import both, of_text, read
from rules.objects import Family
from tests.dataplane_model import read_rows, recorded_world, rows
from tests.dataplanes import inside, make_counters, needs, needs_root, recorded, restore_iptables, run
from tests.kube_proxy_iptables import iptables
from tests.migrate_iptables_damage import DAMAGES, IP4, NOT_UNDERSTOOD, RANGES, line_with
from tests.migrate_worlds import odd
from tests.netns import Namespace
from tests.test_migrate_iptables_programs import write_program

IP6 = recorded("iptables", "ip6tables-save.txt")
EXPECTED = rows(recorded_world())
NFT = needs("iptables-nft-restore", "iptables-nft-save")


def of(ip4: str, ip6: str = IP6) -> Dataplane:
    found = of_text(ip4, ip6)
    assert found is not None
    return found


def changed(ip4: str, ip6: str = IP6) -> tuple[set[str], tuple[str, ...]]:
    """Keys that are not as they should be, and what is told beside them."""
    found = of(ip4, ip6)
    there = read_rows(found)
    return {key for key in there.keys() | EXPECTED.keys() if there.get(key) != EXPECTED.get(key)}, told(found)


def told(found: Dataplane) -> tuple[str, ...]:
    return tuple(f"{unread.what}: {unread.cause}" for unread in (*found.unread, *found.remarks))


def test_recording_is_what_its_objects_ask_for() -> None:
    found = of(IP4)
    assert read_rows(found) == EXPECTED
    assert (found.unread, found.remarks) == ((), ())
    assert (found.mode, found.masquerade_mark, found.nodeport_addresses) == ("iptables", 0x4000, None)
    assert found.localhost_nodeports
    assert {entry.scheduler for entry in found.entries} == {"random"}


@needs_root
@pytest.mark.parametrize(
    "variant", [pytest.param("nft", marks=NFT), pytest.param("legacy", marks=needs("iptables-legacy-restore"))]
)
def test_restored_in_a_namespace(namespace: Namespace, variant: str) -> None:
    if variant == "legacy" and namespace.run("iptables-legacy", "-t", "nat", "-S").returncode:
        pytest.skip("this kernel has no legacy iptables")
    restore_iptables(namespace, "iptables", variant)
    found = inside(namespace, read)
    assert found is not None
    assert read_rows(found) == EXPECTED
    assert (found.unread, found.source) == ((), f"iptables-{variant}-save, ip6tables-{variant}-save")


def test_other_modes_chains_are_no_dataplane_of_this_one() -> None:
    assert of_text(recorded("ipvs", "iptables-save.txt"), recorded("ipvs", "ip6tables-save.txt")) is None
    assert of_text("", "") is None
    kubelet = "*filter\n:INPUT ACCEPT [0:0]\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\nCOMMIT\n"
    assert of_text(kubelet, "") is None


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__[7:])
def test_damage_changes_the_entries_concerned_and_no_other(damage: object) -> None:
    text, concerned = damage()  # type: ignore[operator]
    assert text != IP4
    assert changed(text)[0] == concerned
    assert bool(of(text).unread) == (damage in NOT_UNDERSTOOD)


@needs_root
@NFT
@pytest.mark.parametrize("damage", DAMAGES[::5], ids=lambda damage: damage.__name__[7:])
def test_the_same_in_the_kernel(namespace: Namespace, damage: object) -> None:
    restore_iptables(namespace, "iptables", "nft")
    text, concerned = damage()  # type: ignore[operator]
    run(namespace, "iptables-nft-restore", "--counters", stdin=text)
    found = inside(namespace, read)
    assert found is not None
    there = read_rows(found)
    assert {key for key in there.keys() | EXPECTED.keys() if there.get(key) != EXPECTED.get(key)} == concerned


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (line_with("-A PREROUTING"), "", ("PREROUTING does not lead to KUBE-SERVICES", "reach no Service")),
        (line_with("-A POSTROUTING"), "", ("nothing is masqueraded",)),
        (line_with("KUBE-MARK-MASQ -j MARK"), "", ("it sets no mark",)),
        (line_with("-A KUBE-PROXY-FIREWALL"), "", (RANGES, "is not dropped")),
        (line_with("-A KUBE-SEP-", "-s 10.244.0.2/32", "default/np-local:p80tcp"), "", ("an endpoint that connects to itself",)),
        ("-j KUBE-SVL-55C4DQP3ZP53ZJY5", "-m u32 --u32 0x0=0x0 -j KUBE-SVL-55C4DQP3ZP53ZJY5", ("--u32 0x0=0x0", "not a rule that")),
        ('"default/web:p80tcp cluster IP" -m tcp --dport 80 -j KUBE-SVC', '"x" -m tcp --dport 80 -j LOG --log-prefix "KUBE-SVC', ("LOG", "not a rule that")),
        ("-A KUBE-SEP-27YESSXFREEVN2B4 -p tcp", "-A KUBE-SEP-27YESSXFREEVN2B4 -m u32 --u32 0x0=0x0 -p tcp", ("it leads to no endpoint",)),
    ],
)  # fmt: skip
def test_what_is_not_understood_or_missing_is_named(old: str, new: str, words: tuple[str, ...]) -> None:
    assert old in IP4
    _, notes = changed(IP4.replace(old, new, 1) if "LOG" not in new else _one_quote(IP4.replace(old, new, 1)))
    assert all(any(word in note for note in notes) for word in words), notes


def _one_quote(text: str) -> str:
    """Ends the quote that the replacement opened."""
    at = text.index('--log-prefix "KUBE-SVC')
    end = text.index("\n", at)
    return text[:end] + '"' + text[end:]


def test_broken_text_is_named_and_the_other_family_is_read() -> None:
    found = of(IP4[: len(IP4) // 2])
    assert set(read_rows(found)) == {key for key in EXPECTED if key.startswith("[") or key.endswith("IPv6")}
    assert "iptables-save" in found.unread[0].what


def test_many_strange_rules_are_counted() -> None:
    strange = "".join(f"[0:0] -A KUBE-SERVICES -d 10.0.{i // 256}.{i % 256}/32 -j ACCEPT\n" for i in range(1000))
    line = line_with("-A KUBE-SERVICES", "default/web:p80tcp cluster IP")
    keys, notes = changed(IP4.replace(line, strange + line))
    assert keys == set()
    assert len(notes) == 101
    assert "900 more" in notes[-1]


@pytest.mark.parametrize(
    ("four", "six", "addresses", "localhost"),
    [
        ("-m addrtype --dst-type LOCAL", "", None, True),
        ("! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL", "", None, False),
        ("-d 192.168.77.2/32", "", ("00000000000000000000000000000000", "c0a84d02"), False),
        ("-d 127.0.0.1/32", "-d fd77::2/128", ("7f000001", "fd770000000000000000000000000002"), True),
    ],
)
def test_node_port_addresses(four: str, six: str, addresses: tuple[str, ...] | None, localhost: bool) -> None:
    tail = "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"
    start = "-A KUBE-SERVICES "
    last4 = next(line for line in IP4.splitlines() if line.endswith(tail))
    last6 = next(line for line in IP6.splitlines() if line.endswith(tail))
    ip4 = IP4.replace(last4, f"[0:0] {start}{four} -j KUBE-NODEPORTS")
    ip6 = IP6.replace(last6, f"[0:0] {start}{six} -j KUBE-NODEPORTS") if six else IP6
    found = of(ip4, ip6)
    assert found.nodeport_addresses == (tuple(map(bytes.fromhex, addresses)) if addresses is not None else None)
    assert (found.localhost_nodeports, found.unread) == (localhost, ())


def test_no_way_to_the_node_ports() -> None:
    tail = "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n"
    without = [
        "".join(line for line in text.splitlines(keepends=True) if not line.endswith(tail)) for text in (IP4, IP6)
    ]
    assert of(*without).nodeport_addresses == ()


@needs_root
@NFT
def test_both_variants_are_told(namespace: Namespace) -> None:
    if namespace.run("iptables-legacy", "-t", "nat", "-S").returncode:
        pytest.skip("this kernel has no legacy iptables")
    restore_iptables(namespace, "iptables", "nft")
    restore_iptables(namespace, "iptables", "legacy")
    found = inside(namespace, read)
    assert found is not None
    assert read_rows(found) == EXPECTED
    assert found.unread == ()
    assert "both variants" in found.remarks[0].what
    assert "0 of them in both and different" in found.remarks[0].cause


@needs_root
@NFT
def test_without_programs_the_nft_variant_is_read_over_netlink(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    restore_iptables(namespace, "iptables", "nft")
    monkeypatch.setattr(iptables_programs, "PATH", str(tmp_path))
    found = inside(namespace, read)
    assert found is not None
    assert read_rows(found) == EXPECTED
    assert (found.source, found.unread, found.masquerade_mark) == ("netlink", (), 0x4000)
    assert found.localhost_nodeports


@needs_root
@NFT
def test_a_table_that_the_program_leaves_out(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    restore_iptables(namespace, "iptables", "nft")
    write_program(tmp_path, "iptables-nft-save", "echo \"# Table \\`nat' is incompatible, use 'nft' tool.\"")
    monkeypatch.setattr(iptables_programs, "PATH", f"{tmp_path}:{iptables_programs.PATH}")
    found = inside(namespace, read)
    assert found is not None
    assert read_rows(found) == EXPECTED
    assert (found.source, found.unread) == ("netlink, ip6tables-nft-save", ())


@needs_root
@NFT
def test_a_program_that_fails_is_done_without(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    restore_iptables(namespace, "iptables", "nft")
    write_program(tmp_path, "iptables-nft-save", "exit 1")
    write_program(tmp_path, "ip6tables-nft-save", "exit 1")
    monkeypatch.setattr(iptables_programs, "PATH", str(tmp_path))
    found = inside(namespace, read)
    assert found is not None
    assert (read_rows(found), found.unread) == (EXPECTED, ())


@needs_root
@pytest.mark.parametrize("layout", ["1.36", "1.26", "1.23"])
@pytest.mark.parametrize("detector", ["-s 10.244.0.0/15", "-i veth+", "-i cni0"])
@NFT
def test_netlink_says_what_the_program_says(namespace: Namespace, layout: str, detector: str) -> None:
    inside(namespace, lambda: make_counters("localhost_nps_accepted_pkts"))
    for version, program, family in ((4, "iptables", Family.IPV4), (6, "ip6tables", Family.IPV6)):
        how = detector if version == 4 else detector.replace("10.244.0.0/15", "fd44::/47")
        run(namespace, f"{program}-nft-restore", stdin=iptables(odd(), version, layout=layout, detector=how))
        run(namespace, f"{program}-nft", "-t", "nat", "-A", "KUBE-SERVICES", *STRANGE)
        said = namespace.run(f"{program}-nft-save").stdout
        read_back = bytes(inside(namespace, lambda family=family: iptables_netlink.save(family))).decode()  # type: ignore[misc]
        assert comparable(read_back) == comparable(said)


STRANGE = [
    "-m",
    "physdev",
    "!",
    "--physdev-is-in",
    "-p",
    "udp",
    "!",
    "--sport",
    "5:7",
    "-m",
    "mark",
    "!",
    "--mark",
    "0x4/0x6",
    "-m",
    "comment",
    "--comment",
    "plain",
    "-j",
    "ACCEPT",
]


def comparable(text: str) -> list[str]:
    """The rules, in one order."""
    return sorted(line.replace("--nfacct-name  ", "--nfacct-name ") for line in text.splitlines() if line[:2] == "-A")


@needs_root
@NFT
def test_netlink_says_what_the_program_says_of_the_recording(namespace: Namespace) -> None:
    restore_iptables(namespace, "iptables", "nft")
    run(namespace, "iptables-nft", "-A", "INPUT", "-m", "conntrack", "!", "--ctstate", "INVALID,SNAT,UNTRACKED", "-j", "KUBE-FORWARD")  # fmt: skip
    for program, family in (("iptables", Family.IPV4), ("ip6tables", Family.IPV6)):
        said = namespace.run(f"{program}-nft-save").stdout
        read_back = bytes(inside(namespace, lambda family=family: iptables_netlink.save(family))).decode()  # type: ignore[misc]
        assert comparable(read_back) == comparable(said)
        assert of_text(read_back, "") == of_text(said, "")


@needs_root
@NFT
def test_what_is_not_understood_over_netlink_is_named(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    restore_iptables(namespace, "iptables", "nft")
    for rule in (
        "-m length --length 9",
        "-p tcp --tcp-flags SYN SYN",
        "-m statistic --mode nth --every 3 --packet 0",
        "-m limit --limit 5/min",
    ):
        run(
            namespace,
            "iptables-nft",
            "-t",
            "nat",
            "-I",
            "KUBE-EXT-G5FMGV3KWLWQECAD",
            *rule.split(),
            "-j",
            "KUBE-MARK-MASQ",
        )
    monkeypatch.setattr(iptables_programs, "PATH", str(tmp_path))
    found = inside(namespace, read)
    assert found is not None
    assert read_rows(found) == EXPECTED
    assert len(found.unread) == 4
    assert all("KUBE-EXT-G5FMGV3KWLWQECAD" in unread.what for unread in found.unread)


@needs_root
def test_without_the_legacy_program_the_remedy_is_told(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if namespace.run("iptables-legacy", "-t", "nat", "-S").returncode:
        pytest.skip("this kernel has no legacy iptables")
    restore_iptables(namespace, "iptables", "legacy")
    monkeypatch.setattr(iptables_programs, "PATH", str(tmp_path))
    found = inside(namespace, read)
    assert found is not None
    assert found.entries == ()
    assert "not installed" in found.unread[0].cause
    assert "on the node" in found.unread[0].remedy


@needs_root
def test_an_empty_namespace_has_none_and_keeps_none(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iptables_programs, "run", lambda *_: pytest.fail("a program was run"))
    assert inside(namespace, read) is None
    assert namespace.nft("list", "tables") == ""


@needs_root
@NFT
def test_a_program_that_hangs_is_done_without(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Over netlink, where that can be; what iptables-legacy has is not known then."""
    if namespace.run("iptables-legacy", "-t", "nat", "-S").returncode:
        pytest.skip("this kernel has no legacy iptables")
    restore_iptables(namespace, "iptables", "nft")
    restore_iptables(namespace, "iptables", "legacy")
    for name in ("iptables", "ip6tables"):
        for variant in ("nft", "legacy"):
            write_program(tmp_path, f"{name}-{variant}-save", "exec sleep 60")
    monkeypatch.setattr(iptables_programs, "PATH", str(tmp_path))
    monkeypatch.setattr(iptables_programs, "LEAST", 0.1)
    found = inside(namespace, lambda: read(patience=iptables_programs.Patience(0.5)))
    assert found is not None
    assert read_rows(found) == EXPECTED
    assert [unread.what for unread in found.unread] == ["iptables rules (legacy, ip)", "iptables rules (legacy, ip6)"]
    assert all("did not end" in unread.cause for unread in found.unread)


def test_what_differs_between_both_variants_is_doubtful() -> None:
    changed_text = IP4.replace("--to-destination 10.244.0.2:8080", "--to-destination 10.244.9.9:8080")
    found = both(of(IP4), of(changed_text))
    doubtful = {key for key, entry in zip(read_rows(found), found.entries, strict=True) if entry.doubtful}
    assert doubtful and len(doubtful) < len(found.entries)
