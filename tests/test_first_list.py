"""The agent's rules follow complete lists, and nothing less: `kube-proxy-nft run` with API servers that hesitate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.apiserver.server import FakeApi, error_line
from proxy.model import KINDS
from tests.netns import Namespace
from tests.objects import endpoint_slice, service
from tests.test_end_to_end import Node, eventually

pytestmark = pytest.mark.root


@pytest.fixture
def node(namespace: Namespace, tmp_path: Path) -> Iterator[Node]:
    made = Node(namespace, tmp_path / "log")
    yield made
    if made.process:
        made.stop(9)
    assert "Traceback" not in made.log.read_text()


@pytest.fixture
def api(node: Node) -> Iterator[FakeApi]:
    server = FakeApi()
    node.namespace.inside(server.start)
    yield server
    server.stop()


OBJECTS = [
    obj
    for i in range(1, 9)
    for obj in (service(f"s{i}", f"10.96.0.{i}"), endpoint_slice(f"s{i}", f"10.244.0.{i}", f"10.244.1.{i}"))
]


def listed(node: Node, *kinds: str) -> bool:
    return {event["kind"] for event in node.events("api_list_done")} >= set(kinds)


@pytest.mark.parametrize("streaming", ["on", "refused"])
@pytest.mark.parametrize("slow", ["Service", "EndpointSlice"])
def test_half_a_list_programs_nothing(node: Node, api: FakeApi, tmp_path: Path, streaming: str, slow: str) -> None:
    api.streaming = streaming
    for obj in OBJECTS:
        api.put(obj)
    api.stall(at=1500, kind=slow, verb="watch" if streaming == "on" else "list")
    node.start("--kubeconfig", api.kubeconfig(tmp_path / "kubeconfig"))
    others = [kind for kind in KINDS if kind != slow]
    eventually(lambda: listed(node, *others), "the other lists")
    assert not listed(node, slow)
    assert node.tables() == [None, None]
    assert node.events("programmed") == []
    api.heal()
    node.logged("programmed")
    node.holds(*OBJECTS)
    modes = {event["mode"] for event in node.events("api_list_done")}
    assert modes == {"streaming" if streaming == "on" else "list"}


def test_half_a_list_leaves_the_rules_of_before(node: Node, api: FakeApi, tmp_path: Path) -> None:
    for obj in OBJECTS:
        api.put(obj)
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    node.start("--kubeconfig", kubeconfig)
    node.holds(*OBJECTS)
    assert node.stop() == 0
    api.delete("Service", "default", "s8")
    api.delete("EndpointSlice", "default", OBJECTS[-1]["metadata"]["name"])
    api.stall(at=1500, kind="EndpointSlice")
    node.log.unlink()
    node.start("--kubeconfig", kubeconfig)
    eventually(lambda: listed(node, "Service", "Node", "ServiceCIDR"), "the other lists")
    assert not listed(node, "EndpointSlice")
    node.holds(*OBJECTS)
    api.heal()
    node.holds(*OBJECTS[:-2])


def test_a_streaming_list_that_breaks_again_and_again(node: Node, api: FakeApi, tmp_path: Path) -> None:
    for obj in OBJECTS:
        api.put(obj)
    api.reset(at=1500, kind="EndpointSlice", verb="watch", times=2)
    node.start("--kubeconfig", api.kubeconfig(tmp_path / "kubeconfig"))
    node.holds(*OBJECTS)
    assert len(node.events("programmed")) == 1


def test_a_list_of_the_same_objects_commits_nothing(node: Node, api: FakeApi, tmp_path: Path) -> None:
    for obj in OBJECTS:
        api.put(obj)
    node.start("--kubeconfig", api.kubeconfig(tmp_path / "kubeconfig"))
    node.logged("programmed")
    api.wait_for(api.watching)
    node.logged("api_list_done", 4)
    for kind in KINDS:
        api.inject(kind, error_line(410, "Expired", "too old resource version"))
    node.logged("api_list_done", 8)
    api.wait_for(api.watching)
    added = [service("new", "10.96.0.99"), endpoint_slice("new", "10.244.0.99")]
    for obj in added:
        api.put(obj)
    node.holds(*OBJECTS, *added)
    committed = node.events("committed")
    assert 1 <= len(committed) <= 2  # of the new ones alone
    assert sum(event["service_ports"] for event in committed) <= 2
