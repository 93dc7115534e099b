"""Reports of what kube-proxy v1.36.2 left behind in each mode over one cluster: as recorded, and with one thing changed."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable

import pytest

from proxy.migrate import nft_entries
from proxy.migrate.facts import NodeFacts
from proxy.migrate.judge import report
from proxy.migrate.report import Proof, Report
from tests.dataplanes import inside, needs, needs_root, restore_nftables
from tests.migrate_facts import Object, facts, recorded_facts, recorded_interfaces, recorded_objects, recorded_texts
from tests.netns import Namespace

MODES = ["iptables", "ipvs"]
SERVICES = 14
LOCAL = ("default/lb-local", "default/np-local", "default/np-local-empty")
"""Where IPVS mode cannot do what the policy says."""


def judged(mode: str, objects: list[Object] | None = None, texts: tuple[str, str] | None = None) -> Report:
    return report(recorded_facts(mode, objects, texts), Proof("accepted"))


def unexplained(made: Report) -> dict[str, set[str]]:
    """Service -> what differs for no known reason."""
    found: dict[str, set[str]] = {}
    for row in made.services:
        for entry in row.entries:
            whats = {d.what for d in entry.differences if not d.check}
            if entry.result.startswith("only"):
                whats.add(entry.result)
            if whats:
                found.setdefault(row.service, set()).update(whats)
    return found


@pytest.mark.parametrize("mode", MODES)
def test_unchanged_every_service_is_the_same_but_for_the_mode(mode: str) -> None:
    made = judged(mode)
    assert made.compared and made.gaps == ()
    assert unexplained(made) == {}
    behaviour = {row.service for row in made.services if row.result == "behaviour"}
    assert behaviour == (set(LOCAL) if mode == "ipvs" else set())
    assert made.counts.services == SERVICES and made.counts.results["same"] == SERVICES - len(behaviour)
    checks = {d.check for row in made.services for entry in row.entries for d in entry.differences}
    assert checks == ({"ipvs-traffic-policy"} if mode == "ipvs" else set())


@needs_root
@needs("nft")
def test_unchanged_in_nftables_mode(namespace: Namespace) -> None:
    """The live tables: nothing but a missing endpoint, which is planted, is different."""
    restore_nftables(namespace)
    made = facts(
        *recorded_objects(), node=None, mode="nftables", here=NodeFacts(interfaces=recorded_interfaces("nftables"))
    )
    made.dataplanes = tuple(filter(None, [inside(namespace, nft_entries.read)]))
    written = report(made, Proof("accepted"))
    assert written.compared and unexplained(written) == {} and written.gaps == ()
    assert written.counts.results["same"] == SERVICES and written.verdict == "ready", written.reasons
    service, rule = "service-F7WZT7J3-default/np-cluster/udp/p53udp", "meta l4proto udp dnat ip to 10.244.0.2:5353"
    namespace.nft(f"flush chain ip kube-proxy {service}")
    namespace.nft(f"add rule ip kube-proxy {service} {rule}")
    made.dataplanes = tuple(filter(None, [inside(namespace, nft_entries.read)]))
    assert unexplained(report(made, Proof("accepted"))) == {"default/np-cluster": {"endpoints"}}


@pytest.mark.parametrize("mode", MODES)
def test_a_healthy_cluster_is_not_blocked(mode: str) -> None:
    made = judged(mode)
    assert made.verdict == ("ready" if mode == "ipvs" else "ready-with-changes"), made.reasons
    assert {f.check for f in made.findings if f.severity == "change"} == (
        set() if mode == "ipvs" else {"nodeport-addresses"}
    )


def drop(pattern: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        kept = [line for line in text.splitlines(keepends=True) if not re.search(pattern, line)]
        assert len(kept) < len(text.splitlines()), "nothing was planted"
        return "".join(kept)

    return change


def put(pattern: str, replacement: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        changed, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        assert count, "nothing was planted"
        return changed

    return change


IN_IPVS: list[tuple[str, int, Callable[[str], str], str, set[str]]] = [
    ("a missing Service", 0, drop(r"-[aA] -t 10\.96\.30\.8:80 "), "default/ext", {"only-here"}),
    ("a missing load balancer", 0, drop(r"-[aA] -t 198\.51\.100\.30:443 "), "default/lb", {"only-here"}),
    ("a missing NodePort", 0, drop(r"192\.168\.77\.2:30101 "), "default/np-cluster", {"only-here"}),
    ("a missing endpoint", 0, drop(r"-a -u 10\.96\.0\.10:53 -r 10\.244\.1\.2"), "default/dns", {"endpoints"}),
    ("a stale endpoint", 0, put(r"(-a -t 10\.96\.30\.1:80 -r) 10\.244\.0\.2", r"\1 10.244.0.9"), "default/web", {"endpoints"}),
    ("another port", 0, put(r"(10\.96\.0\.1:443 -r 192\.168\.77\.2):6443", r"\1:6444"), "default/kubernetes", {"endpoints"}),
    ("another scheduler", 0, put(r"^(-A -t 10\.96\.30\.5:443 -s) rr", r"\1 wlc"), "default/lb", {"scheduler"}),
    ("no affinity", 0, put(r" -p 3600$", ""), "default/sticky", {"affinity"}),
    ("another affinity", 0, put(r" -p 3600$", " -p 600"), "default/sticky", {"affinity"}),
    ("a lost source range", 1, drop(r"tcp:443,203\.0\.113\.0/24"), "default/lb-ranges", {"sources"}),
    ("no source ranges", 1, drop(r"add KUBE-LOAD-BALANCER-FW"), "default/lb-ranges", {"sources"}),
    ("another policy", 1, drop(r"add KUBE-NODE-PORT-LOCAL-TCP 30103"), "default/np-local", {"source-address"}),
    ("another policy of a load balancer", 1, drop(r"add KUBE-LOAD-BALANCER-LOCAL"), "default/lb-local", {"source-address"}),
]  # fmt: skip
IN_IPTABLES: list[tuple[str, int, Callable[[str], str], str, set[str]]] = [
    ("a missing Service", 0, drop(r"-A KUBE-SERVICES -d 10\.96\.30\.8/32"), "default/ext", {"only-here"}),
    ("a missing NodePort", 0, drop(r"-A KUBE-NODEPORTS .*--dport 30105"), "default/lb", {"only-here"}),
    ("a missing IPv6 Service", 1, drop(r"-A KUBE-SERVICES -d fd00:10:96::30"), "default/dual", {"only-here"}),
    ("no affinity", 0, drop(r"KUBE-SVC-L52EBOUUK6YX5S3L .*--rcheck"), "default/sticky", {"affinity"}),
    ("another affinity", 0, put(r"--rcheck --seconds 3600", "--rcheck --seconds 60"), "default/sticky", {"affinity"}),
    ("a lost source range", 0, drop(r"-A KUBE-FW-\S+ -s 203\.0\.113\.0/24"), "default/lb-ranges", {"sources"}),
    ("a stale endpoint", 0, put(r"to-destination 192\.168\.77\.2:6443", "to-destination 192.168.77.9:6443"),
     "default/kubernetes", {"endpoints"}),
    ("a missing endpoint", 0, drop(r"-A KUBE-SVC-UTXNM26H3HDAEBM4 .*10\.244\.0\.2"), "default/dns", {"endpoints"}),
    ("another policy", 0, put(r"(-A KUBE-EXT-55C4DQP3ZP53ZJY5 -j) KUBE-SVL-", r"\1 KUBE-SVC-"), "default/np-local",
     {"outside-endpoints"}),
    ("a refusal that is none", 0, drop(r"-A KUBE-EXTERNAL-SERVICES .*30104"), "default/np-local-empty", {"refusal"}),
]  # fmt: skip


@pytest.mark.parametrize("planted", IN_IPVS, ids=[p[0] for p in IN_IPVS])
def test_planted_in_ipvs(planted: tuple[str, int, Callable[[str], str], str, set[str]]) -> None:
    check_planted("ipvs", planted)


@pytest.mark.parametrize("planted", IN_IPTABLES, ids=[p[0] for p in IN_IPTABLES])
def test_planted_in_iptables(planted: tuple[str, int, Callable[[str], str], str, set[str]]) -> None:
    check_planted("iptables", planted)


def check_planted(mode: str, planted: tuple[str, int, Callable[[str], str], str, set[str]]) -> None:
    _, which, change, service, whats = planted
    texts = list(recorded_texts(mode))
    texts[which] = change(texts[which])
    made = judged(mode, texts=(texts[0], texts[1]))
    found = unexplained(made)
    assert list(found) == [service] and whats <= found[service], found
    expected = "only-here" if whats == {"only-here"} else "stale-rules"
    assert any(f.check == expected and f.count == 1 for f in made.findings), [f.check for f in made.findings]


def named(objects: list[Object], kind: str, name: str) -> Object:
    return next(o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name)


def gone(objects: list[Object]) -> None:
    objects.remove(named(objects, "Service", "ext"))


def less(objects: list[Object]) -> None:
    named(objects, "EndpointSlice", "web-a")["endpoints"].pop()


def not_ready(objects: list[Object]) -> None:
    named(objects, "EndpointSlice", "web-a")["endpoints"][0]["conditions"]["ready"] = False


def not_sticky(objects: list[Object]) -> None:
    named(objects, "Service", "sticky")["spec"]["sessionAffinity"] = "None"


def unguarded(objects: list[Object]) -> None:
    del named(objects, "Service", "lb-ranges")["spec"]["loadBalancerSourceRanges"]


def policy(objects: list[Object]) -> None:
    named(objects, "Service", "np-local")["spec"]["externalTrafficPolicy"] = "Cluster"


def new(objects: list[Object]) -> None:
    made = copy.deepcopy(named(objects, "Service", "ext"))
    made["metadata"]["name"] = "new"
    made["spec"] |= {"clusterIP": "10.96.30.99", "clusterIPs": ["10.96.30.99"], "externalIPs": []}
    objects.append(made)


IN_OBJECTS: list[tuple[str, Callable[[list[Object]], None], str, str]] = [
    ("a Service that went", gone, "ext", "only-there"),
    ("an endpoint that went", less, "default/web", "endpoints"),
    ("an endpoint that is not ready", not_ready, "default/web", "endpoints"),
    ("no affinity any more", not_sticky, "default/sticky", "affinity"),
    ("source ranges that went", unguarded, "default/lb-ranges", "sources"),
    ("another policy", policy, "default/np-local", "source-address"),
    ("a Service that came", new, "default/new", "only-here"),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("planted", IN_OBJECTS, ids=[p[0] for p in IN_OBJECTS])
def test_planted_in_the_objects(mode: str, planted: tuple[str, Callable[[list[Object]], None], str, str]) -> None:
    _, change, service, what = planted
    objects = recorded_objects()
    change(objects)
    found = unexplained(judged(mode, objects))
    if service == "ext":  # IPVS's rules do not know its name
        assert found and all(whats == {"only-there"} for whats in found.values()), found
        assert set(found) == ({"10.96.30.8:80/TCP", "192.0.2.30:80/TCP"} if mode == "ipvs" else {"default/ext"})
    else:
        assert list(found) == [service] and what in found[service], found
