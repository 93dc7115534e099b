"""Objects as plain data, as manifests and the API server's clients write them."""

from __future__ import annotations

import json
from typing import Any

Object = dict[str, Any]


def service(name: str, *ips: str, ports: list[Object] | None = None, namespace: str = "default", **spec: Any) -> Object:
    """A Service of these clusterIPs, and one port (TCP 80, "http") unless `ports` says otherwise."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": ips[0], "clusterIPs": list(ips), "ports": ports or [{"name": "http", "port": 80}]} | spec,
    }


def endpoint_slice(
    service_name: str,
    *endpoints: str | Object,
    name: str = "",
    ports: list[Object] | None = None,
    namespace: str = "default",
) -> Object:
    """A slice of a Service; an endpoint is an address, or all of it. Of the first one's family. Port 8080, "http"."""
    ready = [endpoint if isinstance(endpoint, dict) else {"addresses": [endpoint]} for endpoint in endpoints]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name or f"{service_name}-1",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service_name},
        },
        "addressType": "IPv6" if ready and ":" in ready[0]["addresses"][0] else "IPv4",
        "endpoints": ready,
        "ports": ports if ports is not None else [{"name": "http", "port": 8080}],
    }


def list_of(*objects: Object) -> str:
    """A manifest of all of them."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
