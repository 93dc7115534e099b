"""Who may do what, what there is, and objects written by clients: each test runs on the stand-in and on a real API server (see tests/apis.py)."""

from __future__ import annotations

import pytest

from integration.apiserver_real import SERVICE_CIDRS
from integration.rest import Refused
from tests.apis import Environment, endpoint_slice, env, node, version
from tests.asking import CIDRS, EVENTS, NODES, SERVICES, SLICES, Group, event, good, names, query, refusal, shown

__all__ = ["env"]


@pytest.mark.parametrize("path", [SERVICES, SERVICES + "?watch=1", "/version", "/apis/no/such/thing", NODES + "/x"])
def test_a_wrong_token(env: Environment, path: str) -> None:
    answer = env.admin.get(path, Authorization="Bearer wrong")
    assert refusal(answer, 401, "Unauthorized")["message"] == "Unauthorized"


@pytest.mark.parametrize(
    ("path", "verb", "said", "details"),
    [
        (SERVICES, "list", "services is forbidden", {"kind": "services"}),
        (SERVICES + "?watch=1", "watch", "services is forbidden", {"kind": "services"}),
        (
            SLICES,
            "list",
            "endpointslices.discovery.k8s.io is forbidden",
            {"group": "discovery.k8s.io", "kind": "endpointslices"},
        ),
        (NODES + "/n1", "get", 'nodes "n1" is forbidden', {"name": "n1", "kind": "nodes"}),
        (
            NODES + "?fieldSelector=metadata.name%3Dn1",
            "list",
            'nodes "n1" is forbidden',
            {"name": "n1", "kind": "nodes"},
        ),
    ],
)
@pytest.mark.parametrize("user", ["nobody", ""])
def test_what_is_not_allowed(
    env: Environment, user: str, path: str, verb: str, said: str, details: dict[str, str]
) -> None:
    status = refusal(env.server.rest(user).get(path), 403, "Forbidden")
    group, plural = details.get("group", ""), details["kind"]
    who = user or "system:anonymous"
    why = f'User "{who}" cannot {verb} resource "{plural}" in API group "{group}" at the cluster scope'
    assert status["message"] == f"{said}: {why}"
    assert status["details"] == details


def test_what_a_proxy_is_allowed(env: Environment) -> None:
    proxy = env.server.rest("system:kube-proxy")
    for path in (SERVICES, SLICES, NODES, CIDRS):
        assert proxy.get(path).status == 200
        assert proxy.get(path + "?watch=1&timeoutSeconds=1").status == 200
    assert proxy.get(NODES + "/none").status == 404
    assert proxy.request("POST", EVENTS, event(env.name("e"))).status == 201
    said = refusal(proxy.request("DELETE", "/api/v1/namespaces/default/services/none"), 403, "Forbidden")
    assert said["message"].endswith('cannot delete resource "services" in API group "" in the namespace "default"')


def test_what_anybody_may_see(env: Environment) -> None:
    anybody = env.server.rest("")
    assert good(anybody.get("/version"))["major"] == "1"
    ready = anybody.get("/readyz")
    assert (ready.status, ready.body) == (200, b"ok")


@pytest.mark.parametrize("path", ["/apis/networking.k8s.io/v1/nosuchthings", "/apis/no.such.group/v1/things"])
def test_what_is_not_there(env: Environment, path: str) -> None:
    answer = env.admin.get(path)
    assert answer.status == 404
    if path.startswith("/apis/networking"):
        said = refusal(answer, 404, "NotFound")
        assert said["message"] == "the server could not find the requested resource"


def test_objects_that_are_not_there(env: Environment) -> None:
    said = refusal(env.admin.get(NODES + "/none"), 404, "NotFound")
    assert said["message"] == 'nodes "none" not found'
    assert said["details"] == {"name": "none", "kind": "nodes"}
    said = refusal(
        env.admin.get(SLICES.replace("/endpoint", "/namespaces/default/endpoint") + "/none"), 404, "NotFound"
    )
    assert said["message"] == 'endpointslices.discovery.k8s.io "none" not found'
    assert said["details"] == {"name": "none", "group": "discovery.k8s.io", "kind": "endpointslices"}


def test_service_cidrs(env: Environment) -> None:
    found = good(env.admin.get(CIDRS + "?resourceVersion=0"))
    (first,) = (item for item in found["items"] if item["metadata"]["name"] == "kubernetes")
    assert first["spec"]["cidrs"] == list(SERVICE_CIDRS)
    name = env.name("cidr")
    start = version(good(env.admin.get(CIDRS)))
    with env.admin.watch(f"{CIDRS}?watch=1&resourceVersion={start}&timeoutSeconds=60") as events:
        env.put({"kind": "ServiceCIDR", "metadata": {"name": name}, "spec": {"cidrs": ["10.200.7.0/24"]}})
        added = next(event for event in events if event["object"]["metadata"]["name"] == name)
    assert added["type"] == "ADDED"
    assert added["object"]["spec"] == {"cidrs": ["10.200.7.0/24"]}


def test_a_node(env: Environment) -> None:
    name, other = env.name("node"), env.name("node")
    env.put(node(other))
    stored = env.put(node(name))
    assert good(env.admin.get(f"{NODES}/{name}")) == stored
    assert stored["status"]["addresses"] == [{"type": "InternalIP", "address": "192.168.77.2"}]
    assert stored["spec"]["podCIDRs"] == ["10.244.0.0/24"]
    mine = NODES + query({"fieldSelector": f"metadata.name={name}"})
    assert names(good(env.admin.get(mine))["items"]) == [name]
    with env.admin.watch(f"{mine}&watch=1&resourceVersion={version(stored)}&timeoutSeconds=60") as events:
        env.put(node(other, {"zone": "z1"}))
        env.put(node(name, {"zone": "z2"}))
        changed = next(events)
        assert shown(changed) == ("MODIFIED", name)
        assert changed["object"]["metadata"]["labels"]["zone"] == "z2"


def test_a_name_is_taken(env: Environment) -> None:
    obj = endpoint_slice(env.name("slice"), env.name("s"), "10.244.0.2")
    env.put(obj)
    path = SLICES.replace("/endpoint", "/namespaces/default/endpoint")
    said = refusal(env.admin.request("POST", path, obj), 409, "AlreadyExists")
    assert said["message"] == f'endpointslices.discovery.k8s.io "{obj["metadata"]["name"]}" already exists'


def test_a_version_that_is_not_the_newest(env: Environment) -> None:
    obj = Group(env).new()
    old = env.put(obj)
    obj["spec"]["ports"][0]["port"] = 81
    env.put(obj)
    path = f"/api/v1/namespaces/default/services/{obj['metadata']['name']}"
    said = refusal(env.admin.request("PUT", path, old), 409, "Conflict")
    assert said["message"].startswith(f'Operation cannot be fulfilled on services "{obj["metadata"]["name"]}"')


def test_what_is_deleted_is_gone(env: Environment) -> None:
    obj = env.put(Group(env).new())
    env.delete(obj)
    assert env.admin.get(f"/api/v1/namespaces/default/services/{obj['metadata']['name']}").status == 404
    with pytest.raises(Refused, match="404"):
        env.delete(obj)
