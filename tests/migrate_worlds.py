"""Clusters for tests of what is read of rules: the recorded flows' objects, and one with odd names and every feature."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from integration import flows
from integration.cluster import CONFIG, node
from tests.service_model import Object, World

FLOWS = Path(__file__).parent / "data" / "flows"


def of_flows() -> Iterator[tuple[str, World]]:
    """(name, cluster): of each step of each recording, after it."""
    for path in sorted(FLOWS.glob("*.json")):
        case = flows.load(path)
        objects: dict[str, Object] = {}
        for number, step in enumerate(case.steps):
            for reference in step.deletes:
                del objects[reference]
            objects.update({f"{o['kind']}/{o['metadata']['name']}": o for o in step.objects})
            services = [o for o in objects.values() if o["kind"] == "Service"]
            slices = [o for o in objects.values() if o["kind"] == "EndpointSlice"]
            yield f"{case.name}-{number}", World(services, slices, node(case.node_labels), CONFIG)


def odd() -> World:
    """Long names, unnamed ports, SCTP, IPv6, dual stack; local policies with affinity, ranges and several addresses."""
    long = "n" * 63
    services, slices = [], []

    def add(name: str, spec: dict[str, Any], ports: list[dict[str, Any]], *, namespace: str = "shop", here: int = 1, there: int = 2, ingress: tuple[str, ...] = ()) -> None:  # fmt: skip
        number = len(services) + 1
        four, six = f"10.96.9.{number}", f"fd00:10:96::9:{number:x}"
        spec = {"clusterIP": four, "clusterIPs": [four, six], "ports": ports, **spec}
        status = {"loadBalancer": {"ingress": [{"ip": ip} for ip in ingress]}}
        services.append(
            {"kind": "Service", "metadata": {"namespace": namespace, "name": name}, "spec": spec, "status": status}
        )
        for version, prefix in ((4, "10.244.{}.{}"), (6, "fd44:{}::{:x}")):
            ends = [("node0", 0, 10 * number + i) for i in range(here)] + [
                ("node1", 1, 10 * number + i) for i in range(there)
            ]
            slices.append(
                {
                    "kind": "EndpointSlice",
                    "metadata": {"namespace": namespace, "name": f"{name}-{version}", "labels": {"kubernetes.io/service-name": name}},
                    "addressType": f"IPv{version}",
                    "ports": [{**({"name": p["name"]} if "name" in p else {}), "port": 8000 + p["port"], "protocol": p["protocol"]} for p in ports],
                    "endpoints": [{"addresses": [prefix.format(net, host % 250 if version == 4 else host)], "nodeName": on} for on, net, host in ends],
                }
            )  # fmt: skip

    add("unnamed", {"type": "ClusterIP"}, [{"port": 80, "protocol": "TCP"}])
    add(long, {"type": "ClusterIP"}, [{"name": "p" * 63, "port": 81, "protocol": "SCTP"}], namespace="s" * 63)
    add("x", {"type": "NodePort"}, [{"name": f"p{i}", "port": i, "protocol": p, "nodePort": 30000 + i} for i, p in enumerate(("TCP", "UDP", "SCTP"), 1)])  # fmt: skip
    add(
        "all",
        {
            "type": "LoadBalancer", "externalIPs": ["192.0.2.7", "2001:db8::7"], "externalTrafficPolicy": "Local",
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 77}},
            "loadBalancerSourceRanges": ["192.168.77.0/24", "2001:db8:9::/48", " 198.18.0.0/15", "198.20.0.0/16", "198.18.5.0/24"],
        },
        [{"name": "a-b", "port": 443, "protocol": "TCP", "nodePort": 30443}],
        ingress=("198.51.100.9", "198.51.100.10", "2001:db8:1::9"),
    )  # fmt: skip
    add("here-only", {"type": "NodePort", "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local"}, [{"port": 82, "protocol": "UDP", "nodePort": 30082}])  # fmt: skip
    add("none-here", {"type": "NodePort", "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local"}, [{"port": 83, "protocol": "TCP", "nodePort": 30083}], here=0)  # fmt: skip
    add("nobody", {"type": "LoadBalancer", "externalIPs": ["192.0.2.8"]}, [{"port": 84, "protocol": "TCP", "nodePort": 30084}], here=0, there=0, ingress=("198.51.100.11",))  # fmt: skip
    add("many", {"type": "ClusterIP", "sessionAffinity": "ClientIP"}, [{"name": "m", "port": 85, "protocol": "TCP"}], here=9, there=0)  # fmt: skip
    return World(services, slices, node({}), CONFIG)
