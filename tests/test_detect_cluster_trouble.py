"""What of a cluster may not, or cannot, be read: said, and the rest goes on."""

from __future__ import annotations

import pytest

from proxy.detect import cluster
from proxy.detect.api_reader import PAGE, ApiReader
from proxy.detect.evidence import ConfiguredMode, Unreadable
from proxy.detect.node_table import as_table
from proxy.detect.objects import read_objects
from tests.cluster_api import (
    Answer,
    ClusterApi,
    Json,
    expired,
    node,
)
from tests.test_detect_cluster import gathered, kubeadm, report, rows, unreadable


@pytest.mark.parametrize(
    ("plural", "rule", "modes"),
    [
        ("daemonsets", 'verbs ["list"] on resource "daemonsets" in apiGroup "apps"', {"-"}),
        ("pods", 'verbs ["list"] on resource "pods" in apiGroup ""', {"ipvs"}),
        ("configmaps", 'verbs ["get"] on resource "configmaps" in apiGroup ""', {"-"}),
        ("nodes", 'verbs ["list"] on resource "nodes" in apiGroup ""', {"ipvs"}),
    ],
)
def test_what_is_forbidden_is_named_with_its_rule_and_the_rest_goes_on(plural: str, rule: str, modes: set[str]) -> None:
    api = ClusterApi(kubeadm("ipvs"))
    api.forbidden.add(plural)
    found = report(api)
    items = [item for item in unreadable(found.evidence) if rule in item.remedy]
    assert len(items) == 1 and "403" in items[0].cause and plural in items[0].cause
    cells = rows(found)
    assert {cell[0] for cell in cells.values()} == modes and set(cells) == {"a", "b"}
    if modes == {"-"}:
        assert {cell[1] for cell in cells.values()} == {"not known: see below"}
    assert plural in as_table(found)


def test_a_server_that_does_not_answer_is_asked_for_one_thing_only() -> None:
    api = ClusterApi(kubeadm("ipvs"))
    api.is_away = True
    (item,) = gathered(api)
    assert isinstance(item, Unreadable) and item.cause == "connection refused"
    assert len(api.asked) == 2


def test_a_server_that_goes_away_meanwhile_is_not_waited_for_again_and_again() -> None:
    api = ClusterApi(kubeadm("ipvs"))

    def leave(path: str) -> None:
        api.is_away = "pods" in path

    api.before = leave
    items = unreadable(gathered(api))
    after = api.asked[next(i for i, path in enumerate(api.asked) if "pods" in path) + 1 :]
    assert after == ["/api/v1/namespaces/kube-system/configmaps/kube-proxy"] * 2  # once more, and no more
    assert [item.place.part for item in items if item.cause == "connection refused"] == ["", "pods", "nodes"]


def test_what_cannot_be_read_is_said_once_for_all_nodes() -> None:
    api = ClusterApi(kubeadm("ipvs", [f"n{i}" for i in range(50)]))
    api.forbidden.add("configmaps")
    items = unreadable(gathered(api))
    assert len(items) == 1 and {item.place.node for item in items} == {""}


def test_a_busy_server_is_asked_again() -> None:
    api, waits = ClusterApi(kubeadm("ipvs")), list[float]()
    busy = iter([Answer(429, b"{}", {"Retry-After": "7"}), Answer(503, b"down"), Answer(500, b"")])
    api.before = lambda path: next(busy, None) if "daemonsets" in path else None
    patient = ApiReader(api, sleep=waits.append, rand=lambda: 0.5)
    evidence = cluster.gather(patient, read_objects)
    assert not unreadable(evidence) and {e.mode for e in evidence if isinstance(e, ConfiguredMode)} == {"ipvs"}
    assert len(waits) == 3 and waits[0] == 7.0 and max(waits[1:]) < 2


def test_a_server_that_is_broken_for_long_is_given_up() -> None:
    api = ClusterApi(kubeadm("ipvs"))
    api.before = lambda path: Answer(500, b"etcd is gone") if "/nodes" in path else None
    (item,) = unreadable(gathered(api))
    assert (item.place.part, item.cause) == ("nodes", "HTTP 500: etcd is gone")


def test_a_list_that_breaks_off_counts_as_far_as_it_came() -> None:
    names = [f"n{i:04}" for i in range(PAGE + 5)]
    api = ClusterApi([node(name) for name in names])
    api.before = lambda path: Answer(500, b"no") if "nodes" in path and "continue" in path else None
    found = report(api)
    assert len(found.nodes) == PAGE
    assert unreadable(found.evidence)[0].cause.endswith(f"after {PAGE} of them")


@pytest.mark.parametrize(("token", "nodes"), [(f"t{PAGE}", PAGE + 5), ("", PAGE)])
def test_a_continue_token_that_has_expired(token: str, nodes: int) -> None:
    """The server gives another one, to go on with what there is now."""
    api = ClusterApi([node(f"n{i:04}") for i in range(PAGE + 5)])
    answers = iter([expired(token)])
    api.before = lambda path: next(answers, None) if "continue" in path else None
    found = report(api)
    assert len(found.nodes) == nodes and bool(unreadable(found.evidence)) == (not token)


def test_a_server_whose_tokens_always_expire() -> None:
    api = ClusterApi([node(f"n{i:04}") for i in range(PAGE + 5)])
    api.before = lambda path: expired("t1") if "continue" in path else None
    assert "410" in unreadable(gathered(api))[0].cause


@pytest.mark.parametrize("body", [b"<html>hello</html>", b'{"items": 7}', b"\xff\xfe", b"[]"])
def test_an_answer_that_is_not_the_apis(body: bytes) -> None:
    api = ClusterApi()
    api.before = lambda _path: Answer(200, body)
    items = unreadable(gathered(api))
    assert {item.place.part for item in items} == {"version", "daemonsets", "pods", "nodes"}
    assert all("the answer is no" in item.cause for item in items)


def test_objects_that_are_not_what_they_should_be() -> None:
    broken: list[Json] = [
        {"kind": "DaemonSet", "metadata": {"name": "x", "namespace": "y"}},
        {
            "kind": "DaemonSet",
            "metadata": {"name": "z", "namespace": "y"},
            "spec": {"selector": None, "template": None},
        },
        {"kind": "Node", "metadata": {"name": "n", "labels": None, "annotations": None}, "status": {}},
        {"kind": "Node", "metadata": {"name": 7}},
    ]
    evidence = gathered(ClusterApi([*broken, *kubeadm("ipvs")]))
    assert [item.place.part for item in unreadable(evidence)] == ["nodes"]
    assert {e.mode for e in evidence if isinstance(e, ConfiguredMode)} == {"ipvs"}


def test_the_summary_does_not_contradict_what_is_found_of_the_whole_cluster() -> None:
    """Without its pods, a DaemonSet may be on any node."""
    api = ClusterApi(kubeadm("ipvs", ["a", "b"]))
    api.forbidden.add("pods")
    found = report(api)
    assert [f.node for f in found.findings if f.check == "ipvs-mode"] == [""]
    text = as_table(found)
    assert text.endswith("2 nodes by mode: 2 ipvs; 2 with something deprecated or worse\n")
    assert text.split("\n\n")[1].splitlines()[1].endswith("ipvs-mode")


@pytest.mark.parametrize(("is_forbidden", "remedy"), [(True, "grant this account"), (False, "see why it is missing")])
def test_nodes_of_which_nothing_is_known(is_forbidden: bool, remedy: str) -> None:
    api = ClusterApi(kubeadm("ipvs", ["a", "b", "c"]))
    if is_forbidden:
        api.forbidden.add("configmaps")
    else:
        api.clear("ConfigMap")
    found = report(api)
    (finding,) = found.findings
    assert remedy in finding.remedy
    last = as_table(found).splitlines()[-1]
    assert last == "3 nodes by mode: 3 not known; what is deprecated on them cannot be told"
