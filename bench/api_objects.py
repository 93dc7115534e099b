"""Clusters of any size as an API server shows them: with all that a proxy has to read past."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from bench.cluster import FIRST_CLUSTER_IP, FIRST_POD_IP, NODES, address

Object = dict[str, Any]
NODE = "node-1"
TIME = "2026-01-01T00:00:00Z"


def service(number: int) -> Object:
    """A Service as `kubectl apply` makes it of a usual chart's manifest: a clusterIP and one TCP port."""
    ip = address(FIRST_CLUSTER_IP + number)
    name = f"service-{number}"
    labels = {f"app.kubernetes.io/{key}": name for key in ("name", "instance", "managed-by")}
    selector = {"app.kubernetes.io/name": name}
    ports = [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}]
    applied: Object = {"apiVersion": "v1", "kind": "Service"}
    applied |= {"metadata": {"annotations": {}, "labels": labels, "name": name, "namespace": "default"}}
    applied |= {"spec": {"ports": ports, "selector": selector}}
    port: Object = {".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}}
    fields = {
        "f:metadata": {
            "f:annotations": {".": {}, "f:kubectl.kubernetes.io/last-applied-configuration": {}},
            "f:labels": {".": {}} | {f"f:{label}": {} for label in labels},
        },
        "f:spec": {
            "f:internalTrafficPolicy": {},
            "f:ports": {".": {}, 'k:{"port":80,"protocol":"TCP"}': port},
            "f:selector": {},
            "f:sessionAffinity": {},
            "f:type": {},
        },
    }
    return {
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": _uid("service", number),
            "creationTimestamp": TIME,
            "labels": labels,
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(applied) + "\n"},
            "managedFields": _managed("kubectl-client-side-apply", "v1", fields),
        },
        "spec": {
            "ports": ports,
            "selector": selector,
            "clusterIP": ip,
            "clusterIPs": [ip],
            "type": "ClusterIP",
            "sessionAffinity": "None",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
        },
        "status": {"loadBalancer": {}},
    }


def endpoint_slice(number: int, pods: Sequence[int]) -> Object:
    """The slice that the controller makes for Service `number`; pods: numbers of its endpoints' addresses."""
    name = f"service-{number}"
    owner = {"apiVersion": "v1", "kind": "Service", "name": name, "uid": _uid("service", number), "controller": True}
    label = "kubernetes.io/service-name"
    fields: Object = {
        "f:addressType": {},
        "f:endpoints": {},
        "f:metadata": {
            "f:annotations": {".": {}, "f:endpoints.kubernetes.io/last-change-trigger-time": {}},
            "f:generateName": {},
            "f:labels": {".": {}, "f:endpointslice.kubernetes.io/managed-by": {}, f"f:{label}": {}},
            "f:ownerReferences": {".": {}, f'k:{{"uid":"{owner["uid"]}"}}': {}},
        },
        "f:ports": {},
    }
    return {
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{name}-abcde",
            "generateName": f"{name}-",
            "namespace": "default",
            "uid": _uid("slice", number),
            "generation": 12,
            "creationTimestamp": TIME,
            "labels": {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io", label: name},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": TIME},
            "ownerReferences": [owner | {"blockOwnerDeletion": True}],
            "managedFields": _managed("kube-controller-manager", "discovery.k8s.io/v1", fields),
        },
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": [address(FIRST_POD_IP + pod)],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "targetRef": {
                    "kind": "Pod",
                    "namespace": "default",
                    "name": f"{name}-7c5ddbdf54-{pod % 100000:05d}",
                    "uid": _uid("pod", pod),
                },
                "nodeName": f"node-{pod % NODES}",
                "zone": f"zone-{pod % 3}",
            }
            for pod in pods
        ],
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }


def pods_of(number: int, endpoints: int) -> list[int]:
    """The pods of Service `number` where each has so many."""
    return list(range(number * endpoints, (number + 1) * endpoints))


def objects(services: int, endpoints: int) -> Iterator[Object]:
    """All of a cluster of this size."""
    for number in range(services):
        yield service(number)
        yield endpoint_slice(number, pods_of(number, endpoints))
    yield {"kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12"]}}
    metadata = {"name": NODE, "labels": {"topology.kubernetes.io/zone": "zone-1"}}
    addresses = [{"type": "InternalIP", "address": "192.0.2.1"}]
    yield {"kind": "Node", "metadata": metadata, "spec": {}, "status": {"addresses": addresses}}


def _uid(kind: str, number: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind} {number}"))


def _managed(manager: str, api_version: str, fields: Object) -> list[Object]:
    entry = {"manager": manager, "operation": "Update", "apiVersion": api_version, "time": TIME}
    return [entry | {"fieldsType": "FieldsV1", "fieldsV1": fields}]
