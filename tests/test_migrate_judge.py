"""The report as a whole: verdict, reasons, plan, counts, gaps; and our own tables for the proof."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.cli import main
from proxy.migrate import ours
from proxy.migrate.entries import Dataplane
from proxy.migrate.facts import Facts, ForwardFilter, NodeFacts, Translation
from proxy.migrate.iptables_nat import translations
from proxy.migrate.iptables_save import parse
from proxy.migrate.judge import report
from proxy.migrate.output_words import present_proxy
from proxy.migrate.plan import plan
from proxy.migrate.report import EXIT_CODES, Proof, Report
from proxy.unread import Unread
from rules.fake import FakeKernel
from rules.layout import LAYOUTS
from rules.objects import Family
from tests.migrate_cases import NODE_PORT, STICKY, WEB, balanced, connected, here, running
from tests.migrate_facts import NODE, facts
from tests.objects import endpoint_slice, list_of, service

ACCEPTED = Proof("accepted")
DENIED = "HTTP 403: forbidden"


def judged(made: Facts, proof: Proof = ACCEPTED) -> Report:
    return report(made, proof)


def test_ready() -> None:
    made = judged(running(*WEB, *STICKY))
    assert (made.verdict, made.exit_code, made.reasons) == ("ready", 0, ())


def test_ready_with_changes() -> None:
    made = judged(running(*WEB, change=connected))
    assert (made.verdict, made.exit_code) == ("ready-with-changes", 10)
    assert made.reasons == ("2 connections of 1 Service would be cut",)


def test_blocked() -> None:
    made = judged(running(*WEB, change=connected, here=here(forward=(ForwardFilter("chain ip filter FORWARD", "no"),))))
    assert (made.verdict, made.exit_code) == ("blocked", 11)
    assert made.reasons == ("A firewall would drop connections to pods",)


@pytest.mark.parametrize("what", ["Services", "EndpointSlices"])
def test_never_ready_without_the_objects(what: str) -> None:
    made = judged(running(*WEB, unread=[Unread(what, DENIED, "grant it")]))
    assert made.verdict == "blocked" and what in made.reasons[0]
    assert [gap.what for gap in made.gaps] == [what]


def test_other_objects_may_be_missing() -> None:
    """The report is on the rest, and says so."""
    made = judged(running(*WEB, unread=[Unread("ServiceCIDRs", DENIED)]))
    assert made.verdict == "ready" and [gap.what for gap in made.gaps] == ["ServiceCIDRs"]
    made = judged(running(*WEB, unread=[Unread("Service default/x", "no object")]))
    assert made.verdict == "ready"


def test_what_was_not_tried_or_compared_is_a_reason() -> None:
    made = judged(facts(*WEB), Proof("not-tried", "no permission"))
    assert made.verdict == "ready-with-changes" and not made.compared
    assert [reason.partition(":")[0] for reason in made.reasons] == [
        "It was not tried whether the kernel accepts our tables",
        "not compared",
    ]
    assert {row.result for row in made.services} == {"not-compared"} and made.counts.results["same"] == 0


BLIND = Unread("nftables tables kube-proxy", "no permission", "run it as root")


def test_rules_that_could_not_be_read_are_never_the_same() -> None:
    """A dataplane without entries of which something is unread says nothing, not even that there is nothing."""
    made = facts(*WEB, mode="nftables", dataplanes=[Dataplane("nftables", (), unread=(BLIND,))])
    written = judged(made)
    assert (written.verdict, written.exit_code, written.compared) == ("unknown", 11, False)
    assert written.present.dataplanes == ()
    assert written.reasons[0].startswith("not compared: ")
    assert "The rules that are there now could not be read" in written.reasons
    assert written.counts.results["not-compared"] == 1 and written.counts.results["same"] == 0
    (found,) = [f for f in written.findings if f.check in ("rules-unread", "no-rules", "only-here")]
    assert found.check == "rules-unread" and "no permission" in found.why and found.objects == (BLIND.what,)


def test_rules_of_another_mode_do_not_stand_in_for_those_that_could_not_be_read() -> None:
    made = running(*WEB, mode="iptables")
    made.present = msgspec.structs.replace(made.present, mode="nftables")
    made.dataplanes = (*made.dataplanes, Dataplane("nftables", (), unread=(BLIND,)))
    assert not judged(made).compared


def test_a_part_that_was_not_read_is_no_same() -> None:
    """What is missing may be in it; what passes it is not known well enough, its reader says."""
    made = running(*WEB, *STICKY, mode="iptables")
    rule = Unread('ip nat: -A KUBE-SEP-X -m comment --comment "default/web:http" -j DNAT', "a match that is not known")
    entries = tuple(replace(e, doubtful=e.name == "default/web:http") for e in made.dataplanes[0].entries)
    made.dataplanes = (replace(made.dataplanes[0], unread=(rule,), entries=entries),)
    written = judged(made)
    assert {row.service: row.result for row in written.services} == {
        "default/web": "not-compared",
        "default/sticky": "same",
    }
    assert written.compared and written.verdict == "ready-with-changes"
    missing = tuple(entry for entry in made.dataplanes[0].entries if not entry.name.startswith("default/sticky"))
    made.dataplanes = (replace(made.dataplanes[0], entries=missing),)
    assert {row.result for row in judged(made).services} == {"not-compared"}


def test_a_service_whose_rules_are_damaged_is_not_the_same() -> None:
    made = running(*WEB, *STICKY, *NODE_PORT, mode="iptables")
    entries = tuple(
        replace(e, damaged=e.key[:4] in (bytes((10, 96, 0, 1)), bytes((10, 96, 0, 2))))
        for e in made.dataplanes[0].entries
    )
    made.dataplanes = (replace(made.dataplanes[0], entries=entries),)
    written = judged(made)
    assert {entry.address: entry.result for row in written.services for entry in row.entries} == {
        "10.96.0.1:80/TCP": "behaviour",
        "10.96.0.2:80/TCP": "behaviour",
        "NodePort 30080/TCP (IPv4)": "same",
        "10.96.0.4:80/TCP": "same",
    }
    differences = {d for row in written.services for entry in row.entries for d in entry.differences}
    assert {(d.what, d.check) for d in differences} == {("rules", "rules-damaged")}


def test_rules_that_lead_an_address_elsewhere_are_read() -> None:
    text = (
        b"*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:CNI-X - [0:0]\n"
        b"-A PREROUTING -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.9.9:1\n"
        b"-A PREROUTING ! -d 10.96.0.2/32 -j REDIRECT\n"
        b"-A KUBE-SERVICES -d 10.96.0.3/32 -p tcp -j DNAT --to-destination 10.0.0.1:1\n"
        b"-A CNI-X -d 10.0.0.4/32 -p udp -m multiport --dports 1,2 -j REDIRECT --to-ports 5\nCOMMIT\n"
    )
    assert translations(parse(text), "ip") == (
        Translation("chain ip nat PREROUTING", "10.96.0.1/32", "TCP", "80", "10.244.9.9:1"),
        Translation("chain ip nat CNI-X", "10.0.0.4/32", "UDP", "1,2", "5"),
    )


def test_a_node_without_any_rules_is_not_ready() -> None:
    written = judged(facts(*WEB, mode="iptables"))
    assert (
        written.verdict == "ready-with-changes"
        and "There are no rules of iptables mode on this node" in written.reasons
    )
    elsewhere = judged(facts(*WEB, mode="iptables", here=NodeFacts(is_this_node=False)))
    assert not [f for f in elsewhere.findings if f.check == "no-rules"]


def test_a_node_seen_from_elsewhere_is_not_known_to_be_ready() -> None:
    elsewhere = NodeFacts(is_this_node=False, kernel="6.1.0")
    made = judged(facts(*WEB, mode="iptables", config={"nodePortAddresses": ["primary"]}, here=elsewhere))
    assert (made.verdict, made.exit_code, made.compared) == ("unknown", 11, False)
    assert made.reasons[0].startswith("not compared: ") and "Node node0 itself was not looked at" in made.reasons
    made = judged(facts(*WEB, here=elsewhere), Proof("refused", "EINVAL"))
    assert made.verdict == "blocked"


def test_a_rule_on_the_way_that_was_not_understood_or_is_damaged() -> None:
    """Whatever their comments say, and however many there are."""
    for flag, result in (("doubtful", "not-compared"), ("damaged", "behaviour")):
        made = running(*WEB, *STICKY, mode="iptables", change=lambda e, of=flag: replace(e, **{of: "web" in e.name}))
        written = {row.service: row.result for row in judged(made).services}
        assert written == {"default/web": result, "default/sticky": "same"}


def test_manifests_that_could_not_be_read_are_no_ready() -> None:
    made = judged(running(*WEB, unread=[Unread("manifest /m/a.yaml", "it is a pipe, and no file", "take it away")]))
    assert made.verdict == "ready-with-changes" and made.reasons == ("1 manifest could not be read",)


def test_endpoints_that_are_not_known_are_not_the_same() -> None:
    written = judged(running(*WEB, unread=[Unread("EndpointSlices", DENIED)]))
    assert {row.result for row in written.services} == {"not-compared"} and written.verdict == "blocked"


def test_a_configuration_that_is_refused_blocks() -> None:
    made = running(*WEB)
    made.present = msgspec.structs.replace(made.present, refused="clusterCIDR is 'nonsense'")
    written = judged(made)
    assert written.verdict == "blocked"
    (found,) = [f for f in written.findings if f.check == "config-refused"]
    assert "clusterCIDR is 'nonsense'" in found.why


def test_misspelt_fields_are_a_change_and_unknown_ones_a_notice() -> None:
    made = running(*WEB)
    unknown = (("clusterCidr", "unknown field; did you mean clusterCIDR?"), ("x", "unknown field"))
    made.present = msgspec.structs.replace(made.present, unknown=unknown)
    found = [f for f in judged(made).findings if f.check == "config-unknown-fields"]
    assert [(f.severity, f.objects) for f in found] == [
        ("change", ("clusterCidr: unknown field; did you mean clusterCIDR?",)),
        ("notice", ("x: unknown field",)),
    ]


def test_a_refused_proof_blocks() -> None:
    assert judged(running(*WEB), Proof("refused", "EINVAL")).verdict == "blocked"


def test_gaps_of_the_rules_are_told_once() -> None:
    unread = Unread("ipsets", "no permission", "run as root")
    made = running(*WEB, unread=[unread])
    made.dataplanes = (msgspec.structs.replace(made.dataplanes[0], unread=(unread,)),)
    assert [gap.what for gap in judged(made).gaps] == ["ipsets"]


def test_counts() -> None:
    dual = service("dual", "10.96.0.9", "fd00::9")
    made = judged(
        running(
            *WEB, *NODE_PORT, dual, endpoint_slice("dual", "10.244.0.8"), endpoint_slice("dual", "fd44::8", name="six")
        )
    )
    counts = made.counts
    assert (counts.services, counts.service_ports, counts.entries) == (3, 3, 5)
    assert counts.endpoints == 2 + 1 + 2
    assert counts.results == {
        "same": 3,
        "not-compared": 0,
        "behaviour": 0,
        "endpoints": 0,
        "only-there": 0,
        "only-here": 0,
    }
    assert sum(counts.severities.values()) == len(made.findings)


def test_the_present_proxy() -> None:
    made = judged(running(*WEB))
    assert (made.present.mode, made.present.mode_is_set, made.present.version) == ("ipvs", True, "v1.36.2")
    assert made.present.dataplanes == ("ipvs",)


def test_a_bundle_gives_the_same_report() -> None:
    made = running(*WEB, *NODE_PORT, *STICKY, balanced(externalTrafficPolicy="Local"), change=connected)
    again = msgspec.json.decode(msgspec.json.encode(made), type=Facts)
    assert msgspec.json.encode(judged(again)) == msgspec.json.encode(judged(made))
    assert msgspec.json.encode(judged(made)) == msgspec.json.encode(report(made, ACCEPTED, ours.read(made)))


DOCUMENTS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 70000), st.text(max_size=5), st.sampled_from(["rr", "primary", "0s"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["ipvs", "iptables", "nftables", "scheduler", "excludeCIDRs", "tcpTimeout", "masqueradeBit",
                             "nodePortAddresses", "clusterCIDR", "strictARP", "healthzBindAddress", "mode"]),
            inner, max_size=4,
        ),
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["ipvs", "iptables", "nodePortAddresses", "clusterCIDR", "mode", "kind"]), DOCUMENTS
    )
)
def test_any_configuration_gives_a_report(document: dict[str, Any]) -> None:
    made = running(*WEB, *NODE_PORT)
    made.present = msgspec.structs.replace(made.present, document=document)
    written = judged(made)
    assert written.exit_code == EXIT_CODES[written.verdict]
    read = ours.read(made)
    assert bool(read.config_error) == any(f.check == "config-refused" for f in written.findings)


def test_our_tables_are_those_that_render_prints(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    objects = (*WEB, *NODE_PORT, *STICKY, balanced(loadBalancerSourceRanges=["192.168.77.0/24"]))
    (tmp_path / "config.yaml").write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16,fd44::/48\n"
    )
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "all.json").write_text(list_of(*objects, NODE))
    arguments = ["render", "--manifests", str(manifests), "--config", str(tmp_path / "config.yaml"), "--node", "node0"]
    assert main(arguments) == 0
    assert ours.ruleset(ours.read(facts(*objects))) == capsys.readouterr().out


def test_our_tables_load() -> None:
    made = ours.read(facts(*WEB, *NODE_PORT, *STICKY))
    kernel = FakeKernel()
    kernel.commit(ours.operations(made))
    assert all(kernel.dump(LAYOUTS[family].table) for family in Family)


@pytest.mark.parametrize("mode", ["ipvs", "iptables", "nftables", ""])
@pytest.mark.parametrize("platform", ["kubeadm", "k3s", "rke2", "daemonset", ""])
def test_the_plan(platform: str, mode: str) -> None:
    made = plan(platform, mode, ())
    assert made.platform == {"rke2": "k3s"}.get(platform, platform)
    text = {part: str(getattr(made, part)) for part in ("before", "node", "after", "back")}
    assert ("kubectl drain NODE" in text["node"]) == ("kubectl uncordon NODE" in text["node"]) == (mode in ("ipvs", ""))
    for words in ("cleanup --kube-proxy", "--take-over", "nft list tables"):
        assert words in text["node"]
    order = [text["node"].index(words) for words in ("enabled=true", "cleanup --kube-proxy", "nft list tables")]
    assert order == sorted(order)
    assert "kube-proxy-nft cleanup" in text["back"] and "kube-proxy-nft/enabled-" in text["back"]
    for part in (made.before, made.node, made.after, made.back):
        for step in part:
            assert not step.commands or set(step.commands) in ({"any"}, {"kubeadm", "k3s", "daemonset"})


def test_the_plan_begins_with_what_is_to_be_decided() -> None:
    made = judged(running(*WEB, change=connected, here=here(forward=(ForwardFilter("chain ip filter FORWARD", "no"),))))
    titles = [step.title for step in made.plan.before]
    assert titles[0] == "Take out of the way: A firewall would drop connections to pods"
    assert titles[1] == "Do, or decide: 2 connections of 1 Service would be cut"


def test_rules_that_were_not_looked_at_are_not_none() -> None:
    for made, said in (
        (facts(*WEB, mode="iptables", here=NodeFacts(is_this_node=False)), "they could not be read"),
        (facts(*WEB, mode="iptables"), "none were found"),
    ):
        assert present_proxy(judged(made)).endswith(f"rules in the kernel: {said}")
