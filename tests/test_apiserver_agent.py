"""`kube-proxy-nft run` with an API server, the stand-in and a real one: the kernel has what the server's objects say."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from integration.apiserver.kinds import KINDS
from integration.relay import Relay
from integration.rest import Object
from tests.apis import Environment, endpoint_slice, env, node, service
from tests.histories import NODE_NAME
from tests.netns import Namespace
from tests.test_end_to_end import Node

__all__ = ["env"]

pytestmark = pytest.mark.root
USER = "system:kube-proxy"  # with what kube-proxy is allowed to do


def listener(namespace: Namespace, port: int) -> socket.socket:
    """A socket of the namespace, bound to this port of its loopback."""
    return namespace.inside(lambda: socket.create_server(("127.0.0.1", port)))


class Cluster:
    """An agent in a namespace, and the API server that it reaches through a relay."""

    def __init__(self, env: Environment, agent: Node, relay: Relay, kubeconfig: str) -> None:
        self.env, self.agent, self.relay, self.kubeconfig = env, agent, relay, kubeconfig

    def start(self) -> None:
        self.agent.start("--kubeconfig", self.kubeconfig)

    def objects(self) -> list[Object]:
        """All that the server has."""
        found: list[Object] = []
        for kind in KINDS.values():
            items = self.env.admin.get(kind.path).json()["items"]
            found += [{"apiVersion": kind.api_version, "kind": kind.name} | item for item in items]
        return found

    def agrees(self, attempts: int = 1) -> None:
        """Wait until the kernel has what a fresh agent would make of them. More attempts are more patience: after a
        server was away, its clients wait for a while before they ask again."""
        for _ in range(attempts - 1):
            with suppress(AssertionError):
                self.agent.holds(*self.objects())
        self.agent.holds(*self.objects())

    def service_ports(self) -> int:
        return self.agent.events("programmed")[-1]["service_ports"]  # type: ignore[no-any-return]

    def web(self, *pods: int) -> list[Object]:
        """A Service that no other test has, and a slice of it; not put."""
        name = self.env.name("web")
        return [
            service(name, self.env.address()),
            endpoint_slice(f"{name}-1", name, *(f"10.244.0.{pod}" for pod in pods)),
        ]


@pytest.fixture
def cluster(env: Environment, namespace: Namespace, tmp_path: Path) -> Iterator[Cluster]:
    agent = Node(namespace, tmp_path / "log")
    relay = Relay(listener(namespace, env.server.port), env.server.port)
    relay.start()
    yield Cluster(env, agent, relay, env.server.kubeconfig(tmp_path / "kubeconfig", USER))
    if agent.process:
        agent.stop()
    relay.stop()
    assert "Traceback" not in agent.log.read_text()


def test_objects_that_are_there_and_that_change(cluster: Cluster) -> None:
    env = cluster.env
    first, second = cluster.web(1, 2), cluster.web(3)
    env.put(node(NODE_NAME, {"topology.kubernetes.io/zone": "z1"}), *first)
    cluster.start()
    cluster.agrees()
    env.put(*second)
    cluster.agrees()
    first[0]["spec"]["ports"][0]["port"] = 8000
    second[1]["endpoints"].append({"addresses": ["10.244.0.9"], "conditions": {"ready": False}})
    env.put(first[0], second[1])
    cluster.agrees()
    env.delete(first[1])
    env.delete(second[0])
    cluster.agrees()
    assert cluster.agent.stop() == 0


def test_all_sorts_of_services(cluster: Cluster) -> None:
    env = cluster.env
    name = env.name("all")
    ports = [{"name": p.lower(), "port": 53, "protocol": p, "targetPort": 1053} for p in ("TCP", "UDP", "SCTP")]
    lb = service(
        env.name("lb"),
        env.address(),
        ports=[{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080, "nodePort": 30080}],
        type="LoadBalancer",
        externalTrafficPolicy="Local",
        healthCheckNodePort=30081,
        loadBalancerSourceRanges=["192.0.2.0/24"],
        sessionAffinity="ClientIP",
    )
    lb["status"] = {"loadBalancer": {"ingress": [{"ip": "198.51.100.7", "ipMode": "VIP"}]}}
    v6 = f"fd00:10:96::{next(env._numbers):x}"
    env.put(
        service(name, env.address(), ports=ports, externalIPs=["198.51.100.8"]),
        lb,
        service(env.name("dual"), env.address()) | {"spec": {
            "clusterIP": v6, "clusterIPs": [v6, env.address()], "ipFamilies": ["IPv6", "IPv4"],
            "ipFamilyPolicy": "RequireDualStack", "ports": [{"name": "http", "port": 80}]}},
        service(env.name("headless"), "None"),
        endpoint_slice(env.name("lb"), lb["metadata"]["name"], "10.244.0.2", "10.244.0.3"),
        endpoint_slice(env.name("six"), name, "fd44::1"),
        {"kind": "ServiceCIDR", "metadata": {"name": env.name("more")}, "spec": {"cidrs": ["10.200.9.0/24"]}},
    )  # fmt: skip
    cluster.start()
    cluster.agrees()
    assert cluster.service_ports() > 6


def test_changes_while_there_is_no_agent(cluster: Cluster) -> None:
    env = cluster.env
    web = cluster.web(1, 2)
    env.put(*web)
    cluster.start()
    cluster.agrees()
    cluster.agent.stop()
    env.put(*cluster.web(3))
    env.delete(web[0])
    cluster.start()
    cluster.agrees()


def test_connections_that_break(cluster: Cluster) -> None:
    cluster.start()
    cluster.agrees()
    for reset in (False, True, False):
        cluster.relay.cut(reset=reset)
        cluster.env.put(*cluster.web(1))
        cluster.agrees()
    assert len(cluster.agent.events("api_list_done")) == 4  # one for each kind: it went on where it was


def test_connections_that_stand_still(cluster: Cluster) -> None:
    cluster.start()
    cluster.agrees()
    before = cluster.agent.tables()
    cluster.relay.hold()
    cluster.env.put(*cluster.web(1))
    assert cluster.agent.tables() == before
    cluster.relay.let_go()
    cluster.agrees()


@pytest.mark.parametrize("what", ["restart", "compact"])
def test_a_server_that_comes_back(cluster: Cluster, what: str) -> None:
    env = cluster.env
    web = cluster.web(1, 2)
    env.put(*web)
    cluster.start()
    cluster.agrees()
    before = cluster.agent.tables()
    getattr(env.server, what)()
    assert cluster.agent.tables() == before
    env.put(*cluster.web(3))
    env.delete(web[1])
    cluster.agrees(attempts=3)
    assert not cluster.agent.events("transaction_refused")


def test_a_hundred_changes(cluster: Cluster) -> None:
    env, rand = cluster.env, random.Random(7)
    webs = [cluster.web(1) for _ in range(8)]
    there: set[int] = set()
    cluster.start()
    for step in range(100):
        i = rand.randrange(len(webs))
        web, slice_ = webs[i]
        if i in there and rand.random() < 0.3:
            env.delete(web)
            env.delete(slice_)
            there.discard(i)
        else:
            pods = rand.sample(range(1, 250), rand.randrange(1, 6))
            ready = {"ready": True, "serving": True, "terminating": False}
            slice_["endpoints"] = [{"addresses": [f"10.244.{i}.{pod}"], "conditions": ready} for pod in pods]
            env.put(web, slice_)
            there.add(i)
        if step % 25 == 12:
            cluster.relay.cut(reset=True)
    cluster.agrees()
    assert not cluster.agent.events("transaction_refused", "object_left_out")
