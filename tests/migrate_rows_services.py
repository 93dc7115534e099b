"""Checks of Services: what makes each speak, and the nearest case in which it is silent."""

from __future__ import annotations

from proxy.unread import Unread
from tests.migrate_cases import NODE_PORT, STICKY, WEB, Row, raw, running, unlisted
from tests.migrate_facts import facts
from tests.objects import endpoint_slice, service

SERVICE_ROWS: list[Row] = [
    Row(
        "manifests-unread",
        "change",
        "/m/a.yaml: it is a pipe",
        lambda: facts(*WEB, unread=[Unread("manifest /m/a.yaml", "it is a pipe")]),
        lambda: facts(*WEB, unread=[Unread("Service default/x", "no object")]),
    ),
    Row("no-services", "blocker", "default/kubernetes", lambda: facts(), lambda: facts(*WEB)),
    Row("no-services", "blocker", "default/kubernetes", lambda: facts(), lambda: unlisted(facts(), "Service")),
    # Services.
    Row(
        "external-ips",
        "notice",
        "KEP-5707",
        lambda: facts(service("web", "10.96.0.1", externalIPs=["192.0.2.1"])),
        lambda: facts(*WEB),
    ),
    Row(
        "address-conflict",
        "notice",
        "is an address of this node",
        lambda: facts(service("web", "10.96.0.1", externalIPs=["192.168.77.2"])),
        lambda: facts(service("web", "10.96.0.1", externalIPs=["192.168.77.3"])),
    ),
    Row(
        "address-conflict",
        "notice",
        "is the clusterIP of Service default/other",
        lambda: facts(
            service("web", "10.96.0.1", externalIPs=["10.96.0.9"]),
            service("other", "10.96.0.9", ports=[{"name": "x", "port": 81}]),
        ),
        lambda: facts(service("web", "10.96.0.1", externalIPs=["10.96.0.8"]), service("other", "10.96.0.9")),
    ),
    Row(
        "claimed-twice",
        "change",
        "NodePort 30080/TCP (IPv4)",
        lambda: facts(*NODE_PORT, service("b", "10.96.0.9", type="NodePort", ports=[{"port": 80, "nodePort": 30080}])),
        lambda: facts(*NODE_PORT, service("b", "10.96.0.9", type="NodePort", ports=[{"port": 80, "nodePort": 30081}])),
    ),
    Row(
        "claimed-twice",
        "change",
        "here: default/web",
        lambda: facts(
            service("web", "10.96.0.1", externalIPs=["192.0.2.1"])
            | {"metadata": {"name": "web", "creationTimestamp": "2026-01-01T00:00:00Z"}},
            service("x", "10.96.0.9", externalIPs=["192.0.2.1"]),
        ),
        lambda: facts(
            service("web", "10.96.0.1", externalIPs=["192.0.2.1"]),
            service("x", "10.96.0.9", ports=[{"port": 81}], externalIPs=["192.0.2.1"]),
        ),
    ),
    Row(
        "objects-left-out",
        "change",
        "Service default/web",
        lambda: facts(service("web", "10.96.0.1", externalIPs=["nonsense"])),
        lambda: facts(*WEB),
    ),
    Row(
        "objects-left-out",
        "change",
        "EndpointSlice default/bad",
        lambda: raw(
            facts(*WEB), "EndpointSlice", b'{"metadata": {"name": "bad", "namespace": "default"}, "addressType": 7}'
        ),
        lambda: facts(*WEB),
    ),
    Row(
        "orphan-slices",
        "info",
        "Service default/gone",
        lambda: facts(*WEB, endpoint_slice("gone", "10.244.0.9")),
        lambda: unlisted(facts(*WEB, endpoint_slice("gone", "10.244.0.9")), "Service"),
    ),
    Row(
        "no-endpoints",
        "info",
        "Service default/web",
        lambda: facts(WEB[0], mode="ipvs"),
        lambda: unlisted(facts(WEB[0], mode="ipvs"), "EndpointSlice"),
    ),
    Row(
        "terminating-endpoints",
        "info",
        "Service default/web",
        lambda: facts(
            WEB[0],
            endpoint_slice(
                "web",
                {"addresses": ["10.244.0.2"], "conditions": {"ready": False, "serving": True, "terminating": True}},
            ),
        ),
        lambda: facts(
            WEB[0],
            endpoint_slice(
                "web",
                {"addresses": ["10.244.0.2"], "conditions": {"ready": False, "serving": True, "terminating": True}},
                "10.244.0.3",
            ),
        ),
    ),
    Row(
        "unallocated-cluster-ips",
        "info",
        "10.96.0.0/12",
        lambda: facts(
            {"kind": "ServiceCIDR", "metadata": {"name": "k"}, "spec": {"cidrs": ["10.96.0.0/12"]}}, mode="iptables"
        ),
        lambda: facts(
            {"kind": "ServiceCIDR", "metadata": {"name": "k"}, "spec": {"cidrs": ["10.96.0.0/12"]}}, mode="nftables"
        ),
    ),
    Row("session-affinity", "info", "SO_PRIORITY", lambda: facts(*STICKY), lambda: facts(*WEB)),
    Row(
        "scheduler-annotation",
        "info",
        "Service default/web",
        lambda: running(
            {**WEB[0], "metadata": {**WEB[0]["metadata"], "annotations": {"kube-proxy-nft/scheduler": "sh"}}},
            WEB[1],
            mode="nftables",
        ),
        lambda: running(*WEB, mode="nftables"),
    ),
]
