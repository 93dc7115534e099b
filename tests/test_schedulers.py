"""The annotation kube-proxy-nft/scheduler, for those who come from IPVS, with real connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from integration.cluster import Cluster, endpoint_slice, port, service
from integration.topology import Bed, Host
from integration.traffic import ask
from proxy.model import SERVICE, Service, convert
from proxy.services import read_service

ADDRESSES = {4: "10.96.50.1", 6: "fd00:10:96::501"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Bed() as bed:
        made = Cluster(bed, tmp_path_factory.mktemp("cluster"))
        made.start()
        yield made
        made.stop()


def put(cluster: Cluster, name: str, number: int, scheduler: str, *pods: Host, **spec: Any) -> None:
    """A Service of both families at ADDRESSES, port `number`."""
    made = dict(service(name, list(ADDRESSES.values()), port("", number), **spec))
    made["metadata"] = {**made["metadata"], "annotations": {"kube-proxy-nft/scheduler": scheduler}}
    cluster.put(made)
    for family in (4, 6):
        there = {pod.ipv4 if family == 4 else pod.ipv6: node_of(cluster.bed, pod) for pod in pods}
        cluster.put(endpoint_slice(f"{name}-{family}", name, there, port("", 8080)))


def node_of(bed: Bed, pod: Host) -> str:
    return "node0" if pod in (bed.pod1, bed.pod2) else "node1"


def reached(source: Host, family: int, number: int, times: int) -> list[str]:
    return [ask(source, ADDRESSES[family], number).endpoint for _ in range(times)]


@pytest.mark.parametrize("family", [4, 6])
def test_round_robin_takes_endpoints_in_turn_whatever_other_services_do(cluster: Cluster, family: int) -> None:
    bed = cluster.bed
    put(cluster, "turns", 81, "rr", bed.pod1, bed.pod3, bed.pod4)
    put(cluster, "others", 82, "rr", bed.pod1, bed.pod3, bed.pod4)
    cluster.settle()
    seen, others = [], []
    for _ in range(9):
        seen += reached(bed.client, family, 81, 1)
        others += reached(bed.client, family, 82, 1)
    for order in (seen, others):
        assert len(set(order[:3])) == 3
        assert order == order[:3] * 3
    put(cluster, "turns", 81, "rr", bed.pod1, bed.pod3)
    cluster.settle()
    order = reached(bed.client, family, 81, 6)
    assert len(set(order)) == 2
    assert order == order[:2] * 3


def test_round_robin_comes_and_goes_and_comes_again(cluster: Cluster) -> None:
    bed = cluster.bed
    for scheduler in ("rr", "random", "rr"):
        put(cluster, "back", 83, scheduler, bed.pod1, bed.pod3)
        cluster.settle()
        assert len(set(reached(bed.client, 4, 83, 24))) == 2
    put(cluster, "back", 83, "rr")
    cluster.settle()
    with pytest.raises(ConnectionRefusedError):
        reached(bed.client, 4, 83, 1)


@pytest.mark.parametrize("family", [4, 6])
def test_source_hash_keeps_a_client_with_its_endpoint(cluster: Cluster, family: int) -> None:
    bed = cluster.bed
    put(cluster, "hashed", 84, "sh", bed.pod1, bed.pod3, bed.pod4)
    cluster.settle()
    assert len(set(reached(bed.client, family, 84, 12))) == 1
    assert len(set(reached(bed.pod2, family, 84, 12))) == 1


def test_source_hash_spreads_clients(cluster: Cluster) -> None:
    bed = cluster.bed
    put(cluster, "spread", 85, "sh", bed.pod1, bed.pod3)
    cluster.settle()
    found = set()
    for number in range(1, 40):
        address = f"192.168.77.{100 + number}"
        bed.client.namespace.run(["ip", "addr", "add", f"{address}/24", "dev", "e0"])
        source = Host("another", bed.client.namespace, address, bed.client.ipv6)
        found |= set(reached(source, 4, 85, 1))
        if len(found) == 2:
            return
    pytest.fail(f"39 clients, and all were led to {found}")


def test_a_node_port_with_round_robin_and_local_policy(cluster: Cluster) -> None:
    bed = cluster.bed
    ports = port("", 86) | {"nodePort": 30086}  # type: ignore[operator]
    made = dict(service("local-turns", [ADDRESSES[4]], ports, type="NodePort", externalTrafficPolicy="Local"))
    made["metadata"] = {**made["metadata"], "annotations": {"kube-proxy-nft/scheduler": "rr"}}
    cluster.put(made)
    there = {bed.pod1.ipv4: "node0", bed.pod2.ipv4: "node0", bed.pod3.ipv4: "node1"}
    cluster.put(endpoint_slice("local-turns", "local-turns", there, port("", 8080)))
    cluster.settle()
    order = [ask(bed.client, "192.168.77.2", 30086).endpoint for _ in range(6)]
    assert set(order) == {f"{bed.pod1.ipv4} 8080", f"{bed.pod2.ipv4} 8080"} or len(set(order)) == 2
    assert order == order[:2] * 3


@pytest.mark.parametrize(
    ("wanted", "why"), [("wlc", "has no counterpart in nftables"), ("fastest", "is not known"), ("", "is not known")]
)
def test_an_unknown_scheduler_is_random_and_told(wanted: str, why: str) -> None:
    obj = convert(
        SERVICE,
        {
            "metadata": {"name": "a", "annotations": {"kube-proxy-nft/scheduler": wanted}},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]},
        },
    )
    assert isinstance(obj, Service)
    info, faults = read_service(obj)
    assert info is not None
    assert info.scheduler.value == "random"
    [fault] = faults
    assert why in fault
    assert "random, rr, sh" in fault
