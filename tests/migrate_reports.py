"""Migration reports as they might be, of any size: for tests of how they are written down."""

from __future__ import annotations

from collections import Counter

import msgspec

from proxy.migrate.report import (
    EXIT_CODES,
    Counts,
    Difference,
    EntryRow,
    Finding,
    Gap,
    Plan,
    Present,
    Proof,
    Report,
    Result,
    ServiceRow,
    Step,
    Verdict,
)

PROGRAMS = ("web", "api", "db", "cache", "queue", "login", "search", "mail")
TEAMS = ("default", "shop", "billing", "kube-system", "monitoring")
WORST: tuple[Result, ...] = ("only-here", "only-there", "endpoints", "behaviour", "same")

FINDINGS = (
    Finding(
        "nodeport-localhost",
        "notice",
        "NodePorts do not answer on localhost any more",
        "In iptables mode a NodePort answers at 127.0.0.1 of every node. 1,482 packets took that way since the node booted.",
        "Let those clients use the node's address, or name localhost in nodePortAddresses.",
        tuple(f"NodePort {30000 + number}/TCP" for number in range(40)),
        40,
        "KEP-3866",
    ),
    Finding(
        "ipvs-scheduler",
        "change",
        "The scheduler wlc has no counterpart",
        "IPVS sends a new connection to the endpoint with the fewest connections; nftables picks one at random.",
        "Decide Service by Service: with kube-proxy-nft/scheduler: rr endpoints take turns; most Services need nothing.",
        tuple(f"Service {TEAMS[number % 5]}/{PROGRAMS[number % 8]}-{number}" for number in range(33, 10_000, 10)),
        1250,
        "KEP-5495",
    ),
    Finding(
        "ipvs-connections",
        "change",
        "384 connections would be cut",
        "IPVS tracks them itself. When its virtual servers go, they end.",
        "Drain the node before you switch it.",
        ("Service default/db", "Service shop/queue"),
        2,
    ),
    Finding(
        "stale-rules",
        "change",
        "The rules of 2 Services are stale",
        "They are not what the cluster's objects ask for.",
        "Run this again in a minute.",
        (),
        2,
    ),
    Finding(
        "external-ips",
        "info",
        "externalIPs are deprecated",
        "spec.externalIPs will be ignored by default in a later release.",
        "Use a load balancer's addresses.",
        ("Service shop/web",),
        1,
        "KEP-5707",
    ),
)
BLOCKER = Finding(
    "forward-drop",
    "blocker",
    "A firewall would drop traffic to pods",
    "The chain FORWARD of table ip filter has the policy drop, and no rule lets DNATed packets to pods through without"
    " kube-proxy's own KUBE-FORWARD.",
    "Accept what goes to and comes from 10.244.0.0/16 there before you switch.",
    ("chain ip filter FORWARD",),
    1,
)
GAPS = (
    Gap(
        "EndpointSlices of namespace billing",
        "HTTP 403: forbidden",
        'add {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: ["list"]} to the ClusterRole',
    ),
    Gap("iptables-legacy", "its modules are not loaded, and nothing is loaded here"),
)
PLAN = Plan(
    "kubeadm",
    (
        Step(
            "Decide about what changes",
            "Each of these wants something done, or somebody's word that it may be so.",
            {"any": tuple(f"# {one.title}: {one.remedy}" for one in FINDINGS if one.severity == "change")},
        ),
        Step(
            "Keep kube-proxy off nodes that kube-proxy-nft serves",
            "So that the two never run on one node. Its pods restart once; its rules stay.",
            {
                "kubeadm": (
                    "kubectl --namespace kube-system patch daemonset kube-proxy --patch-file kube-proxy-patch.yaml",
                    "kubectl --namespace kube-system rollout status daemonset kube-proxy",
                ),
                "k3s": ("echo 'disable-kube-proxy: true' >> /etc/rancher/k3s/config.yaml",),
                "daemonset": ("kubectl --namespace NAMESPACE edit daemonset kube-proxy",),
            },
        ),
    ),
    (
        Step("Cordon and drain the node", "Connections through IPVS end.", {"any": ("kubectl drain NODE",)}),
        Step(
            "Start kube-proxy-nft",
            "It takes over once its rules are in place.",
            {"any": ("kubectl label node NODE kube-proxy-nft/enabled=true",)},
        ),
        Step("Verify", "Each Service answers.", {"any": ("kube-proxy-nft migrate --dry-run --node NODE",)}),
        Step("Let pods come back", "", {"any": ("kubectl uncordon NODE",)}),
    ),
    (
        Step(
            "Remove kube-proxy",
            "Nothing uses it any more.",
            {"kubeadm": ("kubectl -n kube-system delete ds kube-proxy",)},
        ),
    ),
    (Step("Let kube-proxy have the node again", "", {"any": ("kubectl label node NODE kube-proxy-nft/enabled-",)}),),
)


def report(
    services: int, verdict: Verdict = "ready-with-changes", endpoints: int = 10, compared: bool = True
) -> Report:
    """With so many Services of three addresses each. One of ten differs, and all kinds of differences come up."""
    rows = tuple(service(number, endpoints if number % 7 else 0, compared) for number in range(services))
    findings = () if verdict == "ready" else FINDINGS if verdict == "ready-with-changes" else (*FINDINGS, BLOCKER)
    return Report(
        verdict,
        EXIT_CODES[verdict],
        tuple(finding.title for finding in findings if finding.severity in ("blocker", "change")),
        "worker-1",
        "2026-11-30T12:00:00Z",
        "kube-proxy-nft 0.1.0",
        "v1.36.2",
        "https://192.0.2.1:6443",
        Present("ipvs", True, "v1.36.2", "ConfigMap kube-system/kube-proxy", ("ipvs",) if compared else ()),
        compared,
        Counts(
            services,
            services * 2,
            services * endpoints,
            services * 3,
            dict(Counter(row.result for row in rows)),
            dict(Counter(finding.severity for finding in findings)),
        ),
        Proof("accepted", "", "6.1.0-44-amd64", services * 43, services * 2100, services / 9)
        if verdict != "blocked"
        else Proof("not-tried", "unshare: Operation not permitted (give it CAP_SYS_ADMIN, or allow user namespaces)"),
        findings,
        rows,
        PLAN,
        GAPS if verdict != "ready" else (),
    )


def service(number: int, endpoints: int, compared: bool = True) -> ServiceRow:
    usual: Result = "same" if compared else "not-compared"
    result: Result = WORST[number // 10 % 4] if compared and number % 10 == 3 else usual
    name = f"{TEAMS[number % 5]}/{PROGRAMS[number % 8]}-{number}"
    kind = ("ClusterIP", "NodePort", "LoadBalancer")[number % 3]
    reached = tuple(f"10.{number >> 8 & 255}.{number & 255}.{last}:8080" for last in range(1, endpoints + 1))
    middle = f"{number >> 8}.{number & 255}"
    addresses = (f"10.96.{middle}:80/TCP", f"[fd00:96::{number:x}]:80/TCP", f"10.96.{middle}:9090/TCP")
    if kind != "ClusterIP":
        addresses = (*addresses[:2], f"NodePort {30000 + number % 2768}/TCP (IPv4)")
    entries = tuple(
        entry(
            address,
            f"{name}:{'metrics' if address.endswith('9090/TCP') else 'http'}",
            result if place == 0 else usual,
            reached,
        )
        for place, address in enumerate(addresses)
    )
    return ServiceRow(name, kind if result != "only-there" else "", result, entries)


def entry(address: str, port: str, result: Result, endpoints: tuple[str, ...]) -> EntryRow:
    differences: tuple[Difference, ...] = ()
    if result == "behaviour":
        differences = (
            Difference("scheduler", "wlc", "random", "ipvs-scheduler"),
            Difference("source-address", "replaced by the node's", "kept", ""),
        )
    elif result == "endpoints":
        differences = (Difference("endpoints", "10.9.9.9:8080", ""),)
    return EntryRow(address, port, result, endpoints, differences)


def with_texts(found: Report, text: str) -> Report:
    """The same report with every text that comes from outside replaced."""
    difference = Difference(text, text, text, text)
    row = ServiceRow(text, text, "behaviour", (EntryRow(text, text, "behaviour", (text,), (difference,)),))
    step = Step(text, text, {"any": (text,), "kubeadm": (text,)})
    return msgspec.structs.replace(
        found,
        reasons=(text,),
        node=text,
        made=text,
        made_by=text,
        cluster_version=text,
        source=text,
        present=Present(text, True, text, text, (text,)),
        compared=True,
        counts=Counts(1, 1, 1, 1, {"behaviour": 1}, {"change": 1}),
        proof=Proof("refused", text, text),
        findings=(Finding(text, "change", text, text, text, (text,), 1, text),),
        services=(row,),
        plan=Plan("kubeadm", (step,), (step,), (step,), (step,)),
        gaps=(Gap(text, text, text),),
    )
