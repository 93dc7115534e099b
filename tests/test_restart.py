"""An agent ends and another starts over its rules, under probes that connect every millisecond: no packet is lost."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from integration import privileges
from integration.agent import Agent
from integration.apiserver import FakeApi
from integration.cluster import SERVICE_CIDRS, endpoint_slice, node, port, service
from integration.probe import Answers, Outcome, Place, Probe
from integration.topology import CHECKOUT, Bed
from integration.traffic import Commits, ask

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`"),
]

NODE: Final = "192.168.77.2"
BALANCER: Final = "192.0.2.7"
STICKY: Final = ("10.96.9.2", 80)
FROM_OUTSIDE: Final = (
    "TCP 10.96.9.1 80",
    "UDP 10.96.9.1 80",
    "TCP fd00:10:96::9:1 80",
    "TCP {} {}".format(*STICKY),
    f"TCP {NODE} 30901",
    f"UDP {NODE} 30901",
    f"TCP {NODE} 30903",  # externalTrafficPolicy: Local
    f"TCP {BALANCER} 80",
)
FROM_THE_NODE: Final = ("TCP 10.96.9.1 80", "UDP 10.96.9.2 80")
POD_PORT: Final = 7000
MANY: Final = 500


class Cluster:
    """An API server with Services of many kinds, and agents one after the other on the bed's node."""

    def __init__(self, bed: Bed, directory: Path) -> None:
        self.bed = bed
        self.api = FakeApi()
        self.api.put(dict(SERVICE_CIDRS))
        self.api.put(dict(node({})))
        ports = [{**port(p.lower(), 80, p), "nodePort": 30901} for p in ("TCP", "UDP")]
        self.api.put(dict(service("plain", ["10.96.9.1", "fd00:10:96::9:1"], *ports, type="NodePort")))
        plain = [port(p.lower(), 80, p) for p in ("TCP", "UDP")]
        self.api.put(dict(service("sticky", ["10.96.9.2"], *plain, sessionAffinity="ClientIP")))
        ports = [{**port("tcp", 80), "nodePort": 30903}]
        local = dict(service("local", ["10.96.9.3"], *ports, type="LoadBalancer", externalTrafficPolicy="Local"))
        self.api.put(local | {"status": {"loadBalancer": {"ingress": [{"ip": BALANCER}]}}})
        self.lead("node0", "node1")
        for number in range(MANY):  # so that a start takes its time
            address = f"10.97.{number >> 8}.{number & 255}"
            self.api.put(dict(service(f"other-{number}", [address], port("tcp", 80))))
            self.put_other(number, first=10)
        self._answers = Answers(*self._pods())
        self.answer()
        self._kubeconfig = self.api.kubeconfig(directory / "kubeconfig")
        self.agent = self.start()
        self.agent.wait("programmed")

    def lead(self, *nodes: str) -> None:
        """To the pods on these nodes; of the policy Local always to the one that is on this node."""
        pods = {pod: where for pod, where in ((self.bed.pod1, "node0"), (self.bed.pod3, "node1")) if where in nodes}
        ports = [port(p.lower(), POD_PORT, p) for p in ("TCP", "UDP")]
        by_ipv4 = {pod.ipv4: where for pod, where in pods.items()}
        self.api.put(dict(endpoint_slice("plain-4", "plain", by_ipv4, *ports)))
        self.api.put(dict(endpoint_slice("plain-6", "plain", {pod.ipv6: where for pod, where in pods.items()}, *ports)))
        self.api.put(dict(endpoint_slice("sticky", "sticky", by_ipv4, *ports)))
        self.api.put(dict(endpoint_slice("local", "local", {self.bed.pod2.ipv4: "node0", **by_ipv4}, *ports)))

    def _pods(self) -> Iterator[Place]:
        for pod in (self.bed.pod1, self.bed.pod2, self.bed.pod3):
            for address, protocol in itertools.product((pod.ipv4, pod.ipv6), ("TCP", "UDP")):
                yield Place(pod.namespace, protocol, address, POD_PORT)

    def put_other(self, number: int, first: int) -> None:
        """The endpoints of a Service that nobody asks for."""
        pods = {f"10.244.{i}.{number % 250}": "node1" for i in range(first, first + 10)}
        self.api.put(dict(endpoint_slice(f"other-{number}", f"other-{number}", pods, port("tcp", 80))))

    def answer(self) -> None:
        """Let the API server be there, as seen from the node."""
        with self.bed.node.namespace.entered():
            self.api.start()

    def start(self) -> Agent:
        argv = [sys.executable, "-m", "proxy", "run", "--kubeconfig", self._kubeconfig, "--node", "node0"]
        self.agent = Agent(self.bed.node.namespace, argv, CHECKOUT)
        return self.agent

    def end(self, number: signal.Signals) -> int:
        self.agent.process.send_signal(number)
        code = self.agent.process.wait(10)
        self.agent.stop()
        return code

    def endpoints(self) -> str:
        """What the Service with the policy Cluster leads to, in nft's words."""
        return self.bed.node.namespace.run(["nft", "list", "map", "ip", "kube-proxy-nft", "endpoints"]).stdout

    def close(self) -> None:
        self.agent.stop()
        self.api.stop()
        self._answers.stop()


class Probes:
    """A context manager: attempts from outside and from the node itself; `outcomes` are there after the block."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self.outcomes: list[Outcome] = []

    def __enter__(self) -> Probes:
        self._probes = [
            Probe(FROM_OUTSIDE, self._bed.client.namespace),
            Probe(FROM_THE_NODE, self._bed.node.namespace),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        self.outcomes = [outcome for probe in self._probes for outcome in probe.stop()]

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.failed]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    privileges.acquire()
    with Bed() as bed:
        made = Cluster(bed, tmp_path)
        yield made
        made.close()


def nothing(cluster: Cluster) -> None:
    """All is as the agent left it."""


def others_change(cluster: Cluster) -> None:
    """Of other Services: some get other endpoints, some go."""
    for number in range(0, MANY, 5):
        cluster.put_other(number, first=100)
        cluster.api.delete("Service", "default", f"other-{number + 1}")


def rules_change(cluster: Cluster) -> None:
    """So that they have to be mended."""
    for family in ("ip", "ip6"):
        cluster.bed.node.namespace.run(["nft", "insert", "rule", family, "kube-proxy-nft", "services", "counter"])


def table_is_foreign(cluster: Cluster) -> None:
    """So that it has to be replaced."""
    for family in ("ip", "ip6"):
        cluster.bed.node.namespace.run(["nft", "add", "chain", family, "kube-proxy-nft", "foreign"])


@pytest.mark.parametrize("meanwhile", [nothing, others_change, rules_change, table_is_foreign])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_restart_loses_nothing(
    cluster: Cluster, number: signal.Signals, code: int, meanwhile: Callable[[Cluster], None]
) -> None:
    before = ask(cluster.bed.client, *STICKY).endpoint
    with Probes(cluster.bed) as probes:
        assert cluster.end(number) == code
        meanwhile(cluster)
        cluster.start().wait("programmed")
    assert not probes.failed
    assert all(outcome.attempts > 10 for outcome in probes.outcomes), probes.outcomes
    replaced = any(line.event == "table_not_adopted" for line in cluster.agent.log())
    assert replaced == (meanwhile is table_is_foreign)
    if not replaced:  # with the table, what it knows of clients goes
        assert ask(cluster.bed.client, *STICKY).endpoint == before


def test_while_the_api_server_is_away_rules_stay_as_they_are(cluster: Cluster) -> None:
    commits = Commits(cluster.bed.node.namespace)
    try:
        with Probes(cluster.bed) as probes:
            cluster.api.stop()
            for number in (signal.SIGKILL, signal.SIGTERM):
                cluster.end(number)
                cluster.start().wait("api_unreachable")
            assert not commits.times
            cluster.lead("node1")
            cluster.answer()
            cluster.agent.wait("programmed", timeout=30)
            commits.after(0.0)
    finally:
        commits.close()
    assert not probes.failed
    assert {pod: pod in cluster.endpoints() for pod in (cluster.bed.pod1.ipv4, cluster.bed.pod3.ipv4)} == {
        cluster.bed.pod1.ipv4: False,
        cluster.bed.pod3.ipv4: True,
    }


def test_a_probe_sees_it_when_rules_are_gone(cluster: Cluster) -> None:
    with Probes(cluster.bed) as probes:
        cluster.end(signal.SIGTERM)  # while it runs, nobody else can delete them, where the kernel can do that
        for family in ("ip", "ip6"):
            cluster.bed.node.namespace.run(["nft", "delete", "table", family, "kube-proxy-nft"])
        cluster.start().wait("programmed")
    assert {outcome.target for outcome in probes.failed} == {*FROM_OUTSIDE, *FROM_THE_NODE}
