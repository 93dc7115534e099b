"""Random clusters and random histories of them, small enough that objects meet: addresses are claimed twice, slices
move between Services, endpoints between slices. As Hypothesis strategies."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from proxy.events import Delete, Event, Put, Replace
from proxy.model import ENDPOINT_SLICE, KINDS, NODE, SERVICE, SERVICE_CIDR, KubeObject, convert, kind_of

NODE_NAME = "node0"
NAMES = st.sampled_from(["a", "b", "c", "d"])
SLICE_NAMES = st.sampled_from([f"{name}-{i}" for name in "abc" for i in range(2)])
PORT_NAMES = st.sampled_from(["", "web", "dns"])
PROTOCOLS = st.sampled_from(["TCP", "UDP", "SCTP"])
FLAG = st.sampled_from([True, True, True, False, None])
HOSTS = {
    "IPv4": st.sampled_from([f"10.244.0.{i}" for i in range(1, 7)] + ["10.244.0.256", "127.0.0.1"]),
    "IPv6": st.sampled_from([f"fd44::{i}" for i in range(1, 7)] + ["fe80::1", "::ffff:10.0.0.1"]),
}


def metadata(name: st.SearchStrategy[str], labels: st.SearchStrategy[dict[str, str]]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"name": name, "namespace": st.just("default"), "labels": labels},
        optional={
            "annotations": st.sampled_from(["rr", "rr", "sh", "wlc"]).map(lambda s: {"kube-proxy-nft/scheduler": s}),
            "creationTimestamp": st.sampled_from(["2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"]),
        },
    )


SERVICE_PORTS = st.lists(
    st.fixed_dictionaries(
        {"name": PORT_NAMES, "port": st.sampled_from([80, 81, 53, 53, 0]), "protocol": PROTOCOLS},
        optional={"nodePort": st.sampled_from([30080, 30081])},
    ),
    min_size=1,
    max_size=3,
)
CLUSTER_IPS = st.sampled_from(
    [
        ["10.96.0.1"],
        ["10.96.0.2"],
        ["10.96.0.2", "fd00::2"],
        ["fd00::3"],
        ["fd00::2", "10.96.0.3"],
        ["None"],
        [""],
        ["x"],
    ]
)
POLICIES = st.sampled_from(["Cluster", "Cluster", "Local"])
EXTERNAL = st.sampled_from(["192.0.2.1", "192.0.2.2", "2001:db8::1", "10.96.0.1", "nonsense"])
SPEC_EXTRAS = st.fixed_dictionaries(
    {"internalTrafficPolicy": POLICIES, "externalTrafficPolicy": POLICIES},
    optional={
        "externalIPs": st.lists(EXTERNAL, max_size=2),
        "sessionAffinity": st.just("ClientIP"),
        "sessionAffinityConfig": st.fixed_dictionaries(
            {"clientIP": st.fixed_dictionaries({"timeoutSeconds": st.sampled_from([60, 3600])})}
        ),
        "loadBalancerSourceRanges": st.lists(
            st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", " 192.168.0.1/32 ", "0.0.0.0/0", "fd00::/8", "x"]), max_size=3
        ),
    },
)
STATUS = st.fixed_dictionaries(
    {"loadBalancer": st.fixed_dictionaries({"ingress": st.lists(
        st.fixed_dictionaries({"ip": EXTERNAL}, optional={"ipMode": st.sampled_from(["VIP", "Proxy"])}), max_size=2
    )})}
)  # fmt: skip
SERVICES = st.builds(
    lambda meta, ips, ports, extras, status: convert(
        SERVICE,
        {
            "metadata": meta,
            "spec": {"clusterIP": ips[0], "clusterIPs": ips, "ports": ports, **extras},
            "status": status,
        },
    ),
    metadata(NAMES, st.sampled_from([{}, {}, {}, {"service.kubernetes.io/service-proxy-name": "x"}])),
    CLUSTER_IPS,
    SERVICE_PORTS,
    SPEC_EXTRAS,
    st.one_of(st.just({}), STATUS),
)


def endpoints(family: str) -> st.SearchStrategy[Any]:
    hints = st.fixed_dictionaries({}, optional={
        "forZones": st.lists(st.fixed_dictionaries({"name": st.sampled_from(["z1", "z2"])}), max_size=2),
        "forNodes": st.lists(st.fixed_dictionaries({"name": st.sampled_from([NODE_NAME, "node1"])}), max_size=1),
    })  # fmt: skip
    return st.lists(
        st.fixed_dictionaries(
            {"addresses": st.lists(HOSTS[family], min_size=0, max_size=2)},
            optional={
                "conditions": st.fixed_dictionaries({"ready": FLAG, "serving": FLAG, "terminating": FLAG}),
                "nodeName": st.sampled_from([NODE_NAME, "node1"]),
                "hints": hints,
            },
        ),
        max_size=8,
    )


def slices(family: str) -> st.SearchStrategy[KubeObject]:
    port = st.fixed_dictionaries(
        {"name": PORT_NAMES, "protocol": PROTOCOLS}, optional={"port": st.sampled_from([8080, 8081, 0])}
    )
    return st.builds(
        lambda meta, ends, ports: convert(
            ENDPOINT_SLICE, {"metadata": meta, "addressType": family, "endpoints": ends, "ports": ports}
        ),
        metadata(SLICE_NAMES, NAMES.map(lambda name: {"kubernetes.io/service-name": name})),
        endpoints(family),
        st.lists(port, max_size=3),
    )


NODES = st.builds(
    lambda name, zone, addresses: convert(
        NODE,
        {
            "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone} if zone else {}},
            "status": {"addresses": [{"type": "InternalIP", "address": address} for address in addresses]},
        },
    ),
    st.sampled_from([NODE_NAME, "node1"]),
    st.sampled_from(["z1", "z2", ""]),
    st.lists(st.sampled_from(["10.1.0.1", "192.168.77.2", "fd77::2", "?"]), max_size=2),
)
SERVICE_CIDRS = st.builds(
    lambda name, cidrs: convert(SERVICE_CIDR, {"metadata": {"name": name}, "spec": {"cidrs": cidrs}}),
    st.sampled_from(["kubernetes", "more"]),
    st.lists(st.sampled_from(["10.96.0.0/12", "10.96.0.1/16", "fd00::/112", "nonsense"]), max_size=2),
)
OBJECTS = st.one_of(SERVICES, SERVICES, slices("IPv4"), slices("IPv4"), slices("IPv6"), NODES, SERVICE_CIDRS)
DELETES = st.one_of(
    st.builds(Delete, st.just(SERVICE), st.just("default"), NAMES),
    st.builds(Delete, st.just(ENDPOINT_SLICE), st.just("default"), SLICE_NAMES),
    st.builds(Delete, st.just(SERVICE_CIDR), st.just(""), st.sampled_from(["kubernetes", "more"])),
    st.builds(Delete, st.just(NODE), st.just(""), st.sampled_from([NODE_NAME, "node1"])),
)
REPLACES = st.one_of(
    st.builds(Replace, st.just(SERVICE), st.lists(SERVICES, max_size=4)),
    st.builds(Replace, st.just(ENDPOINT_SLICE), st.lists(slices("IPv4"), max_size=4)),
)
EVENTS: st.SearchStrategy[Event] = st.one_of(OBJECTS.map(Put), OBJECTS.map(Put), OBJECTS.map(Put), DELETES, REPLACES)
BATCHES = st.lists(st.lists(EVENTS, min_size=1, max_size=5), min_size=1, max_size=10)

Cluster = dict[tuple[str, str, str], KubeObject]


def identity(obj: KubeObject) -> tuple[str, str, str]:
    kind = kind_of(obj)
    return kind, obj.metadata.namespace if kind in (SERVICE, ENDPOINT_SLICE) else "", obj.metadata.name


def remember(cluster: Cluster, *events: Event) -> None:
    """The plain meaning of events, for comparison: what exists after them."""
    for event in events:
        match event:
            case Put(obj):
                cluster[identity(obj)] = obj
            case Delete(kind, namespace, name):
                cluster.pop((kind, namespace, name), None)
            case Replace(kind, objects):
                for key in [key for key in cluster if key[0] == kind]:
                    del cluster[key]
                for obj in objects:
                    cluster[identity(obj)] = obj


def listing(cluster: Cluster) -> list[Event]:
    """The same cluster as a fresh start would see it."""
    return [Replace(kind, [obj for key, obj in cluster.items() if key[0] == kind]) for kind in KINDS]
