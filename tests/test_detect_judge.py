"""The detector's judgement: evidence in, findings out, by the version table of KEP-5495 and KEP-5343."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.detect import versions
from proxy.detect.evidence import (
    ConfiguredMode,
    Evidence,
    FeatureGate,
    IpvsInterface,
    IpvsOption,
    IpvsTable,
    Kernel,
    KubeChains,
    KubeSets,
    KubeTables,
    OtherProxy,
    Place,
    PlaceKind,
    ServedMode,
    Sure,
    Unreadable,
    Version,
)
from proxy.detect.judge import judge
from proxy.detect.report import is_alarming

FILE = Place("file", "/var/lib/kube-proxy/config.conf")
PORT = Place("port", "http://127.0.0.1:10249/proxyMode", node="n1")


def configured(mode: str, place: Place = FILE, *, overridden: bool = False) -> ConfiguredMode:
    return ConfiguredMode(place=place, mode=mode, overridden=overridden)


def gate(value: bool) -> FeatureGate:
    return FeatureGate(place=FILE, name="KubeProxyIPVS", value=value)


def served(mode: str) -> ServedMode:
    return ServedMode(place=PORT, mode=mode)


def servers(services: int = 30, kube: int = 30) -> IpvsTable:
    place = Place("ipvs", "netlink", node="n1")
    return IpvsTable(place=place, services=services, destinations=50, schedulers={"rr": services}, kube=kube)


def interface(addresses: int = 20) -> IpvsInterface:
    return IpvsInterface(place=Place("interface", "kube-ipvs0", node="n1"), addresses=addresses)


def chains(mode: str, services: int = 0, *, empty: bool = False) -> KubeChains:
    place = Place("iptables", "nft", "ip", node="n1")
    return KubeChains(place=place, mode=mode, chains=9 + services, services=services, empty=empty)


def sets(entries: int = 60) -> KubeSets:
    return KubeSets(place=Place("ipset", "KUBE-*", node="n1"), sets=17, entries=entries)


def tables(owner: str = "kube-proxy", *, dormant: bool = False) -> KubeTables:
    return KubeTables(place=Place("nftables", f"ip {owner}", node="n1"), owner=owner, chains=50, dormant=dormant)


def kernel(release: str = "6.1.0-40-amd64", *, has_ipvs: bool | None = None) -> Kernel:
    ipvs = {None: "unknown", True: "present", False: "absent"}[has_ipvs]
    return Kernel(place=Place("kernel", "n1", node="n1"), release=release, ipvs=ipvs)  # type: ignore[arg-type]


def found(evidence: Sequence[Evidence], version: str = "") -> dict[str, str]:
    """check -> severity"""
    report = judge(evidence, version)
    checks = [finding.check for finding in report.findings]
    assert len(set(checks)) == len(checks), checks
    return {finding.check: finding.severity for finding in report.findings}


VERSIONS = (
    "1.34",
    "1.35",
    "1.36",
    "1.37",
    "1.39",
    "1.40",
    "1.42",
    "1.43",
    "1.45",
    "1.46",
    "",
    "v1.37.0-gke.1",
    "1.37+",
)


@pytest.mark.parametrize(
    ("evidence", "severities"),
    [
        # 1.34 1.35 1.36 1.37 1.39 1.40 1.42 1.43 1.45 1.46 unknown gke plus;  n: notice, d: deprecated, B: broken, -: none
        ([configured("ipvs")], "n d d d d B B B B B d d d"),
        ([served("ipvs")], "n d d d d B B B B B d d d"),
        ([configured("")], "n n n d d d d d d d d d d"),
        ([configured("iptables")], "- - - - - - - - - - - - -"),
        ([configured("nftables")], "- - - - - - - - - - - - -"),
        ([configured("kernelspace")], "- - - - - - - - - - - - -"),
        ([configured("userspace")], "B B B B B B B B B B B B B"),
        ([configured("IPVS")], "B B B B B B B B B B B B B"),
    ],
)
def test_the_version_table(evidence: list[Evidence], severities: str) -> None:
    letters = {"notice": "n", "deprecated": "d", "broken": "B"}
    got = []
    for version in VERSIONS:
        report = found(evidence, version)
        assert len(report) <= 1
        got.append(letters[next(iter(report.values()))] if report else "-")
    assert got == severities.split()


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (
            [configured("ipvs"), gate(True)],
            {"1.36": "B", "1.37": "d", "1.40": "d", "1.42": "d", "1.43": "B", "1.46": "B"},
        ),
        ([configured("ipvs"), gate(False)], {"1.37": "B", "1.40": "B", "1.43": "B"}),
        (
            [configured("nftables"), gate(True)],
            {"1.36": "B", "1.37": "n", "1.39": "n", "1.40": "d", "1.42": "d", "1.43": "B", "1.46": "B"},
        ),
        ([configured("nftables"), gate(False)], {"1.36": "B", "1.37": "n", "1.43": "n", "1.46": "B"}),
    ],
)
def test_the_gate(evidence: list[Evidence], expected: dict[str, str]) -> None:
    """The worst finding of each version."""
    letters = {"notice": "n", "deprecated": "d", "broken": "B"}
    assert {v: letters[judge(evidence, v).findings[0].severity] for v in expected} == expected


def test_what_happens_when_is_said() -> None:
    (finding,) = judge([configured("ipvs")], "1.36").findings
    assert (finding.kep, finding.breaks_in, finding.mode) == ("KEP-5495", "1.40", "ipvs")
    assert [m.version for m in finding.milestones] == ["1.35", "1.37", "1.40", "1.43"]
    for version in ("1.36", "1.37", "1.40", "1.43"):
        assert version in finding.explanation
    (finding,) = judge([configured("")], "1.36").findings
    assert (finding.kep, finding.breaks_in) == ("KEP-5343", "")
    assert "iptables" in finding.remedy and "nftables" in finding.remedy


def test_the_gate_puts_it_off_to_143() -> None:
    finding = judge([configured("ipvs"), gate(True)], "1.40").findings[0]
    assert finding.breaks_in == "1.43" and gate(True) in finding.evidence


@pytest.mark.parametrize(
    "text", ["1.36.2", "v1.36.2+k3s1", "v1.36.0-eks-abc1234", "1.36", " v1.36.2\n", "v1.36.2-rc.1"]
)
def test_versions(text: str) -> None:
    assert versions.parse(text) == (1, 36)


@pytest.mark.parametrize("text", ["", "latest", "1", "v1", "1.x", "one.two", "1.36 or so", "1.37garbage"])
def test_no_versions(text: str) -> None:
    assert versions.parse(text) is None
    assert judge([], text).kubernetes == ""


def test_the_version_comes_from_the_evidence() -> None:
    server = Version(place=Place("api-server", "https://a"), version="v1.34.1", of="cluster")
    proxy = Version(place=Place("daemonset", "kube-system/kube-proxy"), version="v1.40.0", of="kube-proxy")
    assert found([configured("ipvs"), server, proxy]) == {"ipvs-mode": "notice"}
    assert found([configured("ipvs"), proxy]) == {"ipvs-mode": "broken"}
    assert found([configured("ipvs"), server, proxy], "1.36") == {"ipvs-mode": "deprecated"}
    kubelets = [
        Version(place=Place("node", n, node=n), version=f"v1.{minor}.0", of="kubelet")
        for n, minor in (("a", 9), ("b", 36))
    ]
    assert judge(kubelets).kubernetes == "v1.36.0"


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        pytest.param([], {}, id="nothing"),
        pytest.param([kernel()], {}, id="a kernel alone"),
        pytest.param([chains("")], {}, id="kubelet's own chains"),
        pytest.param(
            [servers(), interface(), chains("ipvs"), sets()], {"ipvs-mode": "deprecated"}, id="IPVS live, no more"
        ),
        pytest.param([chains("iptables", 30)], {}, id="iptables live, no more"),
        pytest.param([tables()], {}, id="nftables live, no more"),
        pytest.param([servers(kube=0)], {"ipvs-servers": "notice"}, id="virtual servers of a load balancer"),
        pytest.param(
            [served("ipvs"), servers(), interface(), chains("ipvs"), sets()],
            {"ipvs-mode": "deprecated"},
            id="IPVS, whole",
        ),
        pytest.param([configured("nftables"), tables(), interface()], {"ipvs-leftover": "broken"}, id="interface left"),
        pytest.param([configured("nftables"), tables(), sets()], {"ipvs-leftover": "broken"}, id="sets left"),
        pytest.param(
            [configured("nftables"), tables(), chains("iptables", 30)],
            {"iptables-leftover": "broken"},
            id="iptables left",
        ),
        pytest.param([served("nftables"), tables(), chains("iptables", 0)], {}, id="iptables' empty frame"),
        pytest.param(
            [served("iptables"), chains("iptables", 30), tables()], {"nftables-leftover": "broken"}, id="nft left"
        ),
        pytest.param(
            [served("ipvs"), servers(), chains("ipvs"), chains("iptables", 9)],
            {"ipvs-mode": "deprecated", "iptables-leftover": "broken"},
            id="iptables left, IPVS runs",
        ),
        pytest.param(
            [configured(""), servers(), interface()],
            {"mode-unset": "deprecated", "ipvs-leftover": "broken"},
            id="unset, but IPVS live",
        ),
        pytest.param(
            [servers(), interface(), tables()],
            {"ipvs-mode": "deprecated", "two-dataplanes": "broken"},
            id="two at once, and nothing says which",
        ),
        pytest.param(
            [tables(), chains("iptables", 30)], {"two-dataplanes": "broken"}, id="two at once, nftables among them"
        ),
        pytest.param(
            [tables(), chains("iptables", 30, empty=True)],
            {"iptables-leftover": "notice"},
            id="emptied chains of iptables mode",
        ),
        pytest.param(
            [tables(), chains("ipvs", empty=True)], {"ipvs-leftover": "notice"}, id="emptied chains of IPVS mode"
        ),
        pytest.param([tables(), chains("")], {}, id="kubelet's chains beside nftables"),
        pytest.param(
            [tables(dormant=True), chains("iptables", 30)], {"nftables-leftover": "notice"}, id="a dormant table"
        ),
        pytest.param(
            [served("nftables"), tables(), chains("iptables", 30, empty=True)],
            {"iptables-leftover": "notice"},
            id="emptied chains, nftables runs",
        ),
        pytest.param(
            [served("iptables"), chains("iptables", 30, empty=True)], {}, id="emptied chains of the mode that runs"
        ),
        pytest.param(
            [tables(), chains("iptables", 30), chains("iptables", 20, empty=True)],
            {"two-dataplanes": "broken"},
            id="one variant of iptables emptied",
        ),
        pytest.param([chains("iptables", 30, empty=True)], {}, id="emptied chains alone"),
        pytest.param([chains("ipvs", empty=True)], {}, id="emptied chains of IPVS mode alone"),
        pytest.param([tables(), tables("kube-proxy-nft")], {"two-proxies": "notice"}, id="hand-over"),
        pytest.param([tables(dormant=True), tables("kube-proxy-nft")], {}, id="kube-proxy's is dormant"),
        pytest.param([tables(), tables("kube-proxy-nft", dormant=True)], {}, id="ours is dormant"),
        pytest.param(
            [served("nftables"), tables(), tables("kube-proxy-nft")], {"two-proxies": "broken"}, id="both run"
        ),
        pytest.param([tables("kube-proxy-nft")], {}, id="ours alone"),
        pytest.param(
            [configured("ipvs"), served("nftables")], {"ipvs-mode": "deprecated", "restart-pending": "notice"}
        ),
        pytest.param([configured(""), served("iptables")], {"mode-unset": "deprecated"}, id="unset is iptables"),
        pytest.param([configured("iptables", overridden=True), configured("nftables")], {}, id="overridden"),
        pytest.param([configured("iptables"), configured("nftables", Place("unit", "u"))], {"modes-differ": "notice"}),
        pytest.param(
            [configured("nftables"), IpvsOption(place=FILE, name="ipvs.strictARP", value="true")],
            {"ipvs-options": "notice"},
        ),
        pytest.param([configured("nftables"), kernel("5.10.0-28-amd64")], {"kernel-too-old": "broken"}),
        pytest.param([configured("ipvs"), kernel("5.10.0")], {"ipvs-mode": "deprecated", "kernel-too-old": "notice"}),
        pytest.param([configured("nftables"), kernel("5.13.0")], {}),
        pytest.param(
            [configured("ipvs"), kernel(has_ipvs=False)], {"ipvs-mode": "deprecated", "kernel-without-ipvs": "broken"}
        ),
        pytest.param([Unreadable(place=FILE, cause="no permission")], {"unreadable": "notice"}),
        pytest.param([Unreadable(place=FILE, cause="nobody listens", harmless=True)], {}),
    ],
)
def test_findings(evidence: list[Evidence], expected: dict[str, str]) -> None:
    assert found(evidence, "1.37") == expected


@pytest.mark.parametrize(("sure", "severity"), [("possible", "notice"), ("likely", "broken"), ("certain", "broken")])
def test_another_program_that_may_be_a_proxy(sure: Sure, severity: str) -> None:
    cilium = OtherProxy(place=Place("interface", "cilium_host", node="n1"), program="cilium", sure=sure)
    assert found([cilium]) == {}
    assert found([cilium, served("iptables")]) == {"two-proxies": severity}


def test_an_unset_mode_on_an_old_kernel_breaks_with_the_new_default() -> None:
    evidence: list[Evidence] = [configured(""), kernel("4.18.0-553.el8")]
    (finding,) = [f for f in judge(evidence, "1.37").findings if f.check == "kernel-too-old"]
    assert (finding.severity, finding.breaks_in) == ("notice", "1.40")
    assert found(evidence, "1.40")["kernel-too-old"] == "broken"


def test_nodes_are_judged_apart_with_the_clusters_configuration() -> None:
    cluster = configured("nftables", Place("configmap", "kube-system/kube-proxy", "config.conf"))
    old = Kernel(place=Place("node", "old", node="old"), release="4.18.0")
    new = Kernel(place=Place("node", "new", node="new"), release="6.12.0")
    report = judge([cluster, old, new], "1.37")
    assert report.nodes == ("new", "old")
    assert [(f.check, f.node) for f in report.findings] == [("kernel-too-old", "old")]


def test_the_worst_comes_first() -> None:
    report = judge(
        [configured("nftables"), interface(), IpvsOption(place=FILE, name="x", value="1"), configured("")], "1.37"
    )
    order = [f.severity for f in report.findings]
    assert order == sorted(order, key=["broken", "deprecated", "notice"].index)


@given(st.lists(st.sampled_from([
    configured("ipvs"), configured(""), configured("nftables"), gate(True), gate(False), served("ipvs"), served("iptables"),
    servers(), interface(), chains("iptables", 3), chains("ipvs"), sets(), tables(), tables("kube-proxy-nft"), kernel("4.9"),
    chains("iptables", 4, empty=True), chains("ipvs", empty=True), tables(dormant=True),
    kernel(has_ipvs=False), Unreadable(place=FILE, cause="x"), OtherProxy(place=PORT, program="cilium", sure="possible"),
])), st.sampled_from(VERSIONS))  # fmt: skip
def test_any_mixture_is_judged(evidence: list[Evidence], version: str) -> None:
    report = judge(evidence, version)
    for finding in report.findings:
        assert finding.title and finding.explanation and finding.remedy and finding.evidence
        assert all(item in evidence for item in finding.evidence)


@given(st.text(max_size=12))
def test_any_text_as_a_version(text: str) -> None:
    versions.parse(text)
    versions.parse_kernel(text)


def test_a_surer_mode_goes_before_a_possible_one() -> None:
    left_over = ConfiguredMode(place=Place("file", "/etc/old.yaml", node="n1"), mode="ipvs", sure="possible")
    assert "ipvs-mode" in found([left_over], "1.37")
    assert "ipvs-mode" not in found([left_over, configured("nftables")], "1.37")
    assert "ipvs-mode" not in found([left_over, served("nftables")], "1.37")


# -- kube-proxy-nft in kube-proxy's place ------------------------------------------------------------------------------

OURS = KubeTables(
    place=Place("nftables", "ip kube-proxy-nft", node="n1"), owner="kube-proxy-nft", chains=9, running=True
)


def idle(mode: str, **more: bool) -> ConfiguredMode:
    place = Place("file", "/etc/own.conf", node="n1")
    return ConfiguredMode(place=place, mode=mode, note="kube-proxy-nft reads no mode in it", idle=True, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("own", ["", "iptables", "nftables", "ipvs", None])
def test_the_agents_own_mode_is_not_in_force(own: str | None) -> None:
    """Traces of a kube-proxy are left over, of whatever mode, as long as none runs."""
    mine = [idle(own)] if own is not None else []
    own_check = {"": {"mode-unset": "deprecated"}, "ipvs": {"ipvs-mode": "deprecated"}}.get(own or "-", {})
    own_check = {"mode-unset": "deprecated"} if own == "" else own_check
    report = judge([OURS, *mine, servers(), interface(), chains("iptables", 30), tables()], "1.37")
    found_here = {f.check: f.severity for f in report.findings}
    left = {f"{mode}-leftover": "broken" for mode in ("ipvs", "iptables", "nftables")}
    assert found_here == left | own_check
    for finding in report.findings:
        if finding.check.endswith("-leftover"):
            assert finding.title.startswith("kube-proxy-nft runs, and rules of")
            assert not any(isinstance(e, ConfiguredMode) for e in finding.evidence)
    assert found([OURS, *mine], "1.37") == own_check


SHELL: list[Evidence] = [interface(0), sets(0)]
"""What is left when IPVS mode's virtual servers and addresses are gone."""


def unread(kind: PlaceKind, *, node: str = "n1", harmless: bool = False) -> Unreadable:
    return Unreadable(place=Place(kind, "it", node=node), cause="no permission", harmless=harmless)


@pytest.mark.parametrize(
    "evidence",
    [
        SHELL,
        [interface(0)],
        [sets(0)],
        [*SHELL, chains("ipvs", empty=True)],
        [*SHELL, tables()],
        [*SHELL, chains("iptables", 30)],
        [*SHELL, served("nftables")],
        [*SHELL, configured("iptables")],
        [*SHELL, OURS],
        [*SHELL, OURS, idle("nftables")],
        [*SHELL, kernel(has_ipvs=False)],
        [*SHELL, unread("port", harmless=True)],
        [sets(0), servers(2, kube=0)],  # keepalived's
    ],
)
def test_a_shell_of_ipvs_mode_is_left_over(evidence: list[Evidence]) -> None:
    report = judge(evidence, "1.37")
    (left,) = [f for f in report.findings if f.mode == "ipvs"]
    assert (left.check, left.severity) == ("ipvs-leftover", "notice")
    assert "kube-proxy-nft cleanup --kube-proxy" in left.remedy and "lead no packets" in left.explanation
    assert {f.check for f in report.findings} <= {"ipvs-leftover", "ipvs-servers"}
    assert not is_alarming(report)


def test_the_words_of_a_shell() -> None:
    def title(*evidence: Evidence) -> str:
        return judge(evidence, "1.37").findings[0].title

    assert title(interface(0)) == "kube-ipvs0 of ipvs mode is left in the kernel"
    assert title(sets(0)) == "empty ipsets of ipvs mode are left in the kernel"
    both = judge([*SHELL, chains("ipvs", empty=True)], "1.37").findings[0]
    assert both.title == "kube-ipvs0, empty ipsets and idle chains of ipvs mode are left in the kernel"
    assert "kube-ipvs0 with 0 addresses, 17 empty KUBE-* ipsets, 9 KUBE-* chains" in both.explanation
    assert "17 KUBE-* ipsets" in judge([served("nftables"), sets()], "1.37").findings[0].explanation


@pytest.mark.parametrize(
    "evidence",
    [
        [interface(1), sets(0)],
        [interface(0), sets(1)],
        [*SHELL, servers(1, 1)],
        [interface(0), servers(1, 0)],  # at which address of the node's they are does not matter
        [*SHELL, chains("ipvs")],
        [*SHELL, unread("ipvs")],
        [interface(0), unread("ipset")],
        [sets(0), unread("interface")],
        [*SHELL, unread("iptables")],
        [*SHELL, unread("file")],  # a kube-proxy's configuration
        [*SHELL, unread("api-server", node="")],
    ],
)
def test_what_may_be_at_work_is_no_shell(evidence: list[Evidence]) -> None:
    """Of IPVS mode something is there, or could not be read."""
    assert found(evidence, "1.37")["ipvs-mode"] == "deprecated"
    assert found([*evidence, served("nftables")], "1.37")["ipvs-leftover"] == "broken"
    assert found([*evidence, OURS], "1.37")["ipvs-leftover"] == "broken"


@pytest.mark.parametrize(
    "said", [served("ipvs"), configured("ipvs"), ConfiguredMode(place=Place("configmap", "kube-system/x"), mode="ipvs")]
)
def test_a_kube_proxy_in_ipvs_mode_that_begins_has_no_more_than_a_shell(said: ServedMode | ConfiguredMode) -> None:
    report = judge([said, *SHELL], "1.37")
    assert {f.check: f.severity for f in report.findings} == {"ipvs-mode": "deprecated"}
    assert found([said, *SHELL, tables()], "1.37")["ipvs-mode"] == "deprecated"
    if isinstance(said, ServedMode) or said.place.node == "n1":
        assert {type(e) for e in report.findings[0].evidence} == {type(said), IpvsInterface, KubeSets}


def test_a_kube_proxy_that_runs_beside_ours_has_the_mode_in_force() -> None:
    evidence: list[Evidence] = [OURS, idle("iptables"), served("ipvs"), servers(), chains("iptables", 3)]
    assert found(evidence, "1.37") == {
        "ipvs-mode": "deprecated", "iptables-leftover": "broken", "two-proxies": "broken",
    }  # fmt: skip


def test_what_a_kube_proxy_would_do_with_our_file_is_said_so() -> None:
    for mode in ("ipvs", ""):
        (finding,) = judge([OURS, idle(mode)], "1.37").findings
        assert finding.explanation.startswith("a kube-proxy that is started with this configuration: ")
        assert "kube-proxy-nft" in finding.title
    assert found([OURS, idle("ipvs"), kernel(has_ipvs=False)], "1.37") == {"ipvs-mode": "deprecated"}
    own_gate = FeatureGate(place=Place("file", "/etc/own.conf", node="n1"), name="KubeProxyIPVS", value=True)
    assert found([OURS, idle("ipvs"), own_gate], "1.40") == {"ipvs-mode": "deprecated"}
    assert found([OURS, idle("ipvs"), own_gate, served("ipvs")], "1.40")["ipvs-mode"] == "broken"


# -- What is refused, unknown or elsewhere -----------------------------------------------------------------------------


def test_what_kube_proxy_refuses_is_broken_and_once_for_a_file() -> None:
    faults = [Unreadable(place=FILE, cause=c, remedy=f"write {c}", effect="refused") for c in ("kind", "apiVersion")]
    (finding,) = judge(faults).findings
    assert (finding.check, finding.severity) == ("config-refused", "broken")
    assert finding.explanation == "kind; apiVersion" and "could not be read" not in finding.title
    maybe = [Unreadable(place=FILE, sure="possible", cause="x", effect="refused")]
    assert found(maybe) == {"config-refused": "notice"}
    (finding,) = judge([Unreadable(place=FILE, cause="mode is given twice", effect="passed-over")]).findings
    assert finding.severity == "notice" and finding.explanation == "mode is given twice"
    assert "could not be read" not in finding.title


def test_a_version_that_is_not_known_is_said_with_each_finding() -> None:
    for mode in ("ipvs", ""):
        (finding,) = judge([configured(mode)]).findings
        assert finding.explanation.startswith("the cluster's version is not known; with Kubernetes 1.37, ")
        (finding,) = judge([configured(mode)], "1.37").findings
        assert finding.explanation.startswith("with Kubernetes 1.37, ")


@pytest.mark.parametrize(
    ("mode", "system", "has_kernel", "check"),
    [
        ("kernelspace", "linux", False, "mode-unknown"),
        ("kernelspace", "", True, "mode-unknown"),
        ("kernelspace", "", False, ""),
        ("kernelspace", "windows", False, ""),
        ("ipvs", "windows", False, "mode-unknown"),
        ("nftables", "windows", False, "mode-unknown"),
        ("nftables", "linux", True, ""),
    ],
)
def test_modes_of_another_operating_system(mode: str, system: str, has_kernel: bool, check: str) -> None:
    place = Place("file", "/config.conf", node="n1")
    item = ConfiguredMode(place=place, mode=mode, os=system)  # type: ignore[arg-type]
    evidence: list[Evidence] = [item, *([kernel()] if has_kernel else []), chains("iptables", 3)]
    result = {c: s for c, s in found(evidence, "1.37").items() if not c.endswith("-leftover")}
    assert result == ({check: "broken"} if check else {})
    if check:
        assert "Windows" in judge([item, *evidence], "1.37").findings[0].explanation


@pytest.mark.parametrize("mode", ["${MODE}", "{{ kube_proxy_mode }}", "%i", "$(PROXY_MODE)"])
def test_a_template_is_not_judged(mode: str) -> None:
    assert found([configured(mode)], "1.40") == {"mode-unknown": "notice"}


def test_a_tool_that_sets_a_mode_from_a_version_on() -> None:
    item = ConfiguredMode(place=FILE, mode="", sets_from="1.37")
    assert found([item], "1.36") == {"mode-unset": "notice"}
    assert found([item], "1.37") == found([item], "1.40") == {}
    assert found([item, kernel("5.10.0"), chains("iptables", 3)], "1.40") == {"kernel-too-old": "notice"}


def test_the_words_of_leftovers_remedies_and_guesses() -> None:
    one = judge([served("nftables"), interface(), servers(1, 1)], "1.37").findings[0]
    assert one.title.startswith("an nftables kube-proxy") and "1 IPVS virtual server," in one.explanation
    (late,) = judge([configured("")], "1.40").findings
    assert "what ran before" in late.remedy
    guess = ConfiguredMode(place=FILE, mode="nftables", sure="possible")
    (pending,) = [f for f in judge([guess, served("iptables")], "1.37").findings if f.check == "restart-pending"]
    assert pending.remedy.startswith("see first which configuration it uses")


def test_the_gate_beside_the_mode_in_force_counts() -> None:
    other = FeatureGate(place=Place("file", "/other.conf"), name="KubeProxyIPVS", value=True)
    report = judge([configured("ipvs"), other, gate(False)], "1.37")
    assert report.findings[0].check == "ipvs-mode" and report.findings[0].severity == "broken"
    assert report.findings[0].evidence[-1] == gate(False)
