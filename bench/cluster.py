"""Clusters of any size, as decoded objects, for benchmarks and tests at scale."""

from __future__ import annotations

from collections.abc import Iterator

from proxy.model import ENDPOINT_SLICE, SERVICE, EndpointSlice, Service, convert

FIRST_CLUSTER_IP = 0x0A600100  # 10.96.1.0
FIRST_POD_IP = 0x0B000000  # 11.0.0.0
NODES = 500


def address(number: int) -> str:
    return ".".join(str(byte) for byte in number.to_bytes(4))


def service(number: int) -> Service:
    """Service number `number`: a clusterIP and one TCP port."""
    ip = address(FIRST_CLUSTER_IP + number)
    data = {
        "metadata": {"name": f"service-{number}", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
    }
    obj = convert(SERVICE, data)
    assert isinstance(obj, Service)
    return obj


def endpoint_slice(number: int, pods: list[int]) -> EndpointSlice:
    """The slice of Service number `number`; `pods`: numbers of its endpoints' addresses."""
    data = {
        "metadata": {
            "name": f"service-{number}-abcde",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": f"service-{number}"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [
            {
                "addresses": [address(FIRST_POD_IP + pod)],
                "nodeName": f"node-{pod % NODES}",
                "conditions": {"ready": True, "serving": True, "terminating": False},
            }
            for pod in pods
        ],
    }
    obj = convert(ENDPOINT_SLICE, data)
    assert isinstance(obj, EndpointSlice)
    return obj


def services(count: int) -> Iterator[Service]:
    return (service(number) for number in range(count))


def slices(count: int, endpoints: int) -> Iterator[EndpointSlice]:
    return (
        endpoint_slice(number, list(range(number * endpoints, (number + 1) * endpoints))) for number in range(count)
    )
