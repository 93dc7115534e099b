"""What kube-proxy's iptables rules have once for all Services, and whom they masquerade: damage to it is told, by name."""

from __future__ import annotations

import re

import pytest

from proxy.migrate import ipvs_chains, legacy_chains
from proxy.migrate.entries import Beside, Dataplane
from proxy.migrate.iptables_entries import of_text
from proxy.migrate.iptables_save import parse
from proxy.migrate.ipvs_entries import of_text as of_ipvs
from proxy.migrate.others import Others
from rules.elements import endpoint, node_port_key, service_key
from rules.objects import Family
from tests.dataplanes import inside, needs, needs_root, recorded, restore_iptables, run
from tests.migrate_iptables_damage import IP4
from tests.netns import Namespace

IP6 = recorded("iptables", "ip6tables-save.txt")
IPVS4, IPVS6 = recorded("ipvs", "iptables-save.txt"), recorded("ipvs", "ip6tables-save.txt")
WEB = "KUBE-SVC-A7H36EAONPX5U2SX"
TWICE = (
    f"-A {WEB} -m statistic --mode random --probability 0.5 -j KUBE-SEP-PMEYZ4IAR5OMQ35G\n"
    f'-A {WEB} -m comment --comment "default/web:p80tcp -> 10.244.1.3:8080"'
)


def without(text: str, pattern: str) -> str:
    kept = "".join(line for line in text.splitlines(keepends=True) if not re.search(pattern, line))
    assert kept != text, pattern
    return kept


def of(ip4: str) -> Dataplane:
    found = of_text(ip4, IP6)
    assert found
    return found


def test_the_recording_has_nothing_wrong() -> None:
    found = of(IP4)
    assert found.remarks == ()
    assert found.beside == Beside(
        pods={"ip": "10.244.0.0/16", "ip6": "fd44::/48"},
        health_checks=frozenset({node_port_key(Family.IPV4, 6, 30207)}),
    )


@pytest.mark.parametrize(
    ("pattern", "what", "cause"),
    [
        ("-j KUBE-NODEPORTS$", "KUBE-SERVICES does not lead to KUBE-NODEPORTS", "reach no NodePort"),
        ("-A KUBE-POSTROUTING .*MASQUERADE", "chain KUBE-POSTROUTING", "nothing is masqueraded"),
        (f"-A {WEB} .*MARK-MASQ", "Service default/web, 10.96.30.1:80/TCP", "is not masqueraded"),
        ("-A INPUT .*KUBE-PROXY-FIREWALL", "INPUT does not lead to KUBE-PROXY-FIREWALL", "do not keep out"),
        ("-A FORWARD .*KUBE-PROXY-FIREWALL", "FORWARD does not lead to KUBE-PROXY-FIREWALL", "do not keep out"),
        ("-A KUBE-FORWARD", "chain KUBE-FORWARD", "lets nothing through"),
        ("-A KUBE-FORWARD .*--mark", "chain KUBE-FORWARD", "what is to be masqueraded"),
        ("-A FORWARD .*-j KUBE-FORWARD", "FORWARD does not lead to KUBE-FORWARD", "may not be forwarded"),
        ("-A INPUT .*-j KUBE-NODEPORTS", "INPUT does not lead to KUBE-NODEPORTS", "health checks"),
    ],
)
def test_a_rule_that_is_gone(pattern: str, what: str, cause: str) -> None:
    found = of(without(IP4, pattern))
    assert any(what in remark.what and cause in remark.cause for remark in found.remarks), found.remarks


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("--probability 0.25000000000 -j KUBE-SEP-PMEYZ4IAR5OMQ35G", "--probability 0.90000000000 -j KUBE-SEP-PMEYZ4IAR5OMQ35G",
         "not chosen evenly"),
        (" -m statistic --mode random --probability 0.25000000000 -j KUBE-SEP-PMEYZ4IAR5OMQ35G", " -j KUBE-SEP-PMEYZ4IAR5OMQ35G",
         "not chosen evenly"),
        (f'-A {WEB} -m comment --comment "default/web:p80tcp -> 10.244.1.3:8080"',
         TWICE, "more than once"),
    ],
)  # fmt: skip
def test_endpoints_that_are_not_used_evenly(old: str, new: str, cause: str) -> None:
    assert IP4.count(old) == 1
    [remark] = of(IP4.replace(old, new)).remarks
    assert remark.what == f"Service default/web, chain {WEB}" and cause in remark.cause


def test_five_digits_are_enough() -> None:
    """As versions before 1.17 write them."""
    assert of(re.sub(r"(--probability 0\.\d{5})\d+", r"\g<1>", IP4)).remarks == ()


def test_another_mark_than_the_one_that_is_masqueraded() -> None:
    old = "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000"
    causes = {remark.cause for remark in of(IP4.replace(old, old.replace("4000", "8000"))).remarks}
    assert any("0x4000" in cause and "0x8000" in cause for cause in causes), causes


def test_how_pods_are_told_and_what_is_let_in() -> None:
    assert of(IP4.replace("10.244.0.0/16", "10.245.0.0/16")).beside.pods["ip"] == "10.245.0.0/16"
    assert of(without(IP4, "30207")).beside.health_checks == frozenset()
    old = [without(text, "KUBE-NODEPORTS - |-j KUBE-NODEPORTS|-A KUBE-NODEPORTS") for text in (IP4, IP6)]
    found = of_text(*old)
    assert found and found.beside.health_checks is None


def test_who_is_masqueraded_when_all_are() -> None:
    """As with masqueradeAll; one that is not as the others is named."""
    every = IP4.replace("! -s 10.244.0.0/16 -d", "-d")
    found = of(every)
    assert found.beside.pods["ip"] == "all" and found.remarks == ()
    rule = f"-A {WEB} -d 10.96.30.1/32"
    assert every.count(rule) == 1
    [remark] = of(every.replace(rule, rule.replace("-d", "! -s 10.244.0.0/16 -d"))).remarks
    assert remark.what == "Service default/web, 10.96.30.1:80/TCP" and "as it is for others" in remark.cause


# -- IPVS ----------------------------------------------------------------------------------------------------------------


def ipvs(ip4: str) -> Dataplane:
    others = Others()
    for family, text in ((Family.IPV4, ip4), (Family.IPV6, IPVS6)):
        others.take("nft", family, parse(text))
    return others.with_chains(ipvs_servers(), is_all=True)


def ipvs_servers(ipvsadm: str = "", ipset: str = "") -> Dataplane:
    texts = recorded("ipvs", "ipvsadm-save.txt") + ipvsadm, ipset or recorded("ipvs", "ipset-save.txt")
    found = of_ipvs(*texts)
    assert found
    return found


def test_the_recording_of_ipvs_mode_has_nothing_wrong() -> None:
    found = ipvs(IPVS4)
    assert found.remarks == () and found.masquerade_mark == 0x4000
    assert found.beside.pods == {"ip": "10.244.0.0/16", "ip6": "fd44::/48"}
    assert found.beside.health_checks == {node_port_key(Family.IPV4, 6, 30207)}
    assert found.beside.hairpins and len(found.beside.hairpins) == 6
    assert bytes((17,)) + endpoint(bytes((10, 244, 0, 2)), 5353) in found.beside.hairpins
    assert (found.beside.strays, found.beside.uneven) == ((), ())
    assert not any(ipvs_chains.are_there(parse(text)) for text in (IP4, IP6))


@pytest.mark.parametrize(
    ("pattern", "what", "cause"),
    [
        ("-A PREROUTING", "PREROUTING does not lead to KUBE-SERVICES", "is not masqueraded"),
        ("-A OUTPUT .*-j KUBE-SERVICES", "OUTPUT does not lead to KUBE-SERVICES", "is not masqueraded"),
        ("-A POSTROUTING", "POSTROUTING does not lead to KUBE-POSTROUTING", "nothing is masqueraded"),
        ("MASQUERADE --random-fully", "chain KUBE-POSTROUTING", "nothing is masqueraded"),
        ("KUBE-LOOP-BACK", "chain KUBE-POSTROUTING", "connects to itself"),
        ("KUBE-MARK-MASQ -j MARK", "chain KUBE-MARK-MASQ", "sets no mark"),
        ("-j KUBE-LOAD-BALANCER$", "chain KUBE-SERVICES", "load balancers' addresses"),
        ("KUBE-EXTERNAL-IP dst,dst -j KUBE-MARK-MASQ", "chain KUBE-SERVICES", "external addresses"),
        ("-j KUBE-NODE-PORT$", "KUBE-SERVICES does not lead to KUBE-NODE-PORT", "NodePorts"),
        ("-A KUBE-FORWARD", "chain KUBE-FORWARD", "lets nothing through"),
    ],
)
def test_a_rule_of_ipvs_mode_that_is_gone(pattern: str, what: str, cause: str) -> None:
    found = ipvs(without(IPVS4, pattern))
    assert any(what in remark.what and cause in remark.cause for remark in found.remarks), found.remarks


def test_no_chains_of_ipvs_mode_at_all() -> None:
    assert "nothing is masqueraded" in Others().with_chains(ipvs_servers(), is_all=True).remarks[0].cause
    assert Others().with_chains(ipvs_servers(), is_all=False).remarks == ()


def test_members_weights_and_servers_of_nobody() -> None:
    ipset = without(recorded("ipvs", "ipset-save.txt"), "add KUBE-LOOP-BACK 10.244.0.2,tcp:8080")
    hairpins = ipvs_servers(ipset=ipset).beside.hairpins
    assert hairpins is not None and bytes((6,)) + endpoint(bytes((10, 244, 0, 2)), 8080) not in hairpins
    server = "-A -t 10.96.77.8:80 -s rr\n-a -t 10.96.30.5:443 -r 10.244.9.9:8080 -m -w 5\n"
    assert ipvs_servers(server).beside.uneven == (service_key(bytes((10, 96, 30, 5)), 6, 443),)


# -- The legacy variant --------------------------------------------------------------------------------------------------


@needs_root
@needs("iptables-legacy-restore")
def test_built_in_chains_as_printed_are_those_of_the_kernel(namespace: Namespace) -> None:
    if namespace.run("iptables-legacy", "-t", "nat", "-S").returncode:
        pytest.skip("this kernel has no legacy iptables")
    restore_iptables(namespace, "iptables", "legacy")
    run(namespace, "iptables-legacy", "-P", "FORWARD", "DROP")
    for family, variant in ((Family.IPV4, legacy_chains.legacy.IPV4), (Family.IPV6, legacy_chains.legacy.IPV6)):
        saved = namespace.run(f"{'ip' if family is Family.IPV4 else 'ip6'}tables-legacy-save")
        printed = set(legacy_chains.of_saved(family.nft, parse(saved.stdout)))
        assert printed == set(inside(namespace, lambda variant=variant: list(legacy_chains.read(variant))))
        assert len(printed) > 10
