"""Several stand-ins of one store, caches that lag, rules for users, and what a store remembers."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from integration.apiserver import FakeApi, Store, store
from tests.raw_client import (
    A_MOMENT,
    PATIENCE,
    SERVICES,
    SLICES,
    WATCH,
    Client,
    body,
    get,
    lines,
    names,
    service,
    shown,
)


def test_servers_that_share_a_store(api: FakeApi) -> None:
    with FakeApi(store=api.store) as other:
        api.put(service("a"))
        other.put(service("b"))
        for server in (api, other):
            assert names(get(server, SERVICES + "?resourceVersion=0")[2]["items"]) == ["a", "b"]


def test_a_server_that_lags_serves_an_older_state(api: FakeApi) -> None:
    with FakeApi(store=api.store) as other:
        api.put(service("old"))
        other.lag("Service")
        api.put(service("new"))
        api.delete("Service", "default", "old")
        newest = get(api, SERVICES + "?resourceVersion=0")[2]["metadata"]["resourceVersion"]
        assert names(get(other, SERVICES + "?resourceVersion=0")[2]["items"]) == ["old"]
        assert names(get(other, SERVICES)[2]["items"]) == ["new"]  # the newest is read from the store
        assert get(other, f"{SERVICES}?resourceVersion={newest}&resourceVersionMatch=NotOlderThan")[0] == 504
        client = Client(other, f"{SERVICES}?watch=1&resourceVersion=2")
        other.wait_for(lambda: other.watching("Service"))
        assert body(client.read(patience=A_MOMENT)) == b""
        other.catch_up("Service", changes=1)
        client.read(b'"ADDED"')
        other.catch_up()
        client.read(b'"DELETED"')
        assert shown(client.got) == [("ADDED", "new"), ("DELETED", "old")]
        assert names(get(other, SERVICES + "?resourceVersion=0")[2]["items"]) == ["new"]


def test_kinds_lag_apart(api: FakeApi) -> None:
    api.lag("Service")
    api.put(service("web"))
    api.put({"kind": "Node", "metadata": {"name": "n"}})
    assert get(api, SERVICES + "?resourceVersion=0")[2]["items"] == []
    assert names(get(api, "/api/v1/nodes?resourceVersion=0")[2]["items"]) == ["n"]


def test_a_list_waits_for_a_cache_that_comes(api: FakeApi) -> None:
    api.patience = PATIENCE
    api.lag()
    api.put(service("web"))
    asked = threading.Thread(target=lambda: answers.append(get(api, f"{SERVICES}?resourceVersion={api.version}")))
    answers: list[Any] = []
    asked.start()
    api.wait_for(lambda: len(api.requests) == 1)
    assert answers == []
    api.catch_up()
    asked.join(PATIENCE)
    assert names(answers[0][2]["items"]) == ["web"]


def test_a_cache_that_is_not_synced(api: FakeApi) -> None:
    client = Client(api, WATCH)
    api.wait_for(lambda: api.watching("Service"))
    api.unsync("Service")
    assert client.read(b"0\r\n\r\n")
    for path in (SERVICES + "?resourceVersion=0", SERVICES, WATCH):
        code, headers, said = get(api, path)
        assert (code, headers["Retry-After"], said["message"]) == (429, "1", "storage is (re)initializing")
    assert get(api, SLICES + "?resourceVersion=0")[0] == 200
    api.put(service("web"))
    api.sync()
    assert names(get(api, SERVICES + "?resourceVersion=0")[2]["items"]) == ["web"]


def test_a_restart_forgets_the_history(api: FakeApi) -> None:
    api.put(service("a"))
    api.restart()
    assert names(get(api, SERVICES + "?resourceVersion=0")[2]["items"]) == ["a"]
    (line,) = lines(Client(api, WATCH).read(b"0\r\n\r\n"))
    assert (line["type"], line["object"]["code"]) == ("ERROR", 410)


def test_not_ready(api: FakeApi) -> None:
    assert b"200 OK" in Client(api, "/readyz", "Connection: close\r\n").read()
    api.ready = False
    assert b"500 Internal" in Client(api, "/readyz", "Connection: close\r\n").read()


def test_a_token_that_is_replaced(api: FakeApi) -> None:
    api.token = "first"
    assert get(api, SERVICES, Authorization="Bearer first")[0] == 200
    api.token = "second"
    assert get(api, SERVICES, Authorization="Bearer first")[0] == 401
    assert get(api, SERVICES, Authorization="Bearer second")[0] == 200


def test_rules_of_a_role(api: FakeApi) -> None:
    api.tokens = {"t": "proxy"}
    api.rules = {
        "proxy": [
            {"apiGroups": [""], "resources": ["services"], "verbs": ["list"]},
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["*"], "resourceNames": ["mine"]},
        ]
    }

    def code(path: str) -> int:
        return get(api, path, Authorization="Bearer t")[0]

    assert code(SERVICES) == 200
    assert code(SERVICES + "?watch=1") == 403
    assert code(SLICES) == 403
    assert code("/api/v1/nodes") == 403
    assert code("/api/v1/nodes?fieldSelector=metadata.name%3Dmine") == 200
    assert code("/api/v1/nodes?fieldSelector=metadata.name%3Dother") == 403
    assert code("/api/v1/nodes/mine") == 404


def test_what_is_forbidden_to_all(api: FakeApi) -> None:
    api.forbid("endpointslices", "watch")
    assert get(api, SLICES)[0] == 200
    code, _, said = get(api, SLICES + "?watch=1")
    assert code == 403
    assert said["message"].startswith('endpointslices.discovery.k8s.io is forbidden: User "admin" cannot watch')
    api.allow()
    client = Client(api, SLICES + "?watch=1")
    assert b"200 OK" in client.read(b"\r\n\r\n")


def test_a_store_remembers_how_it_was() -> None:
    store = Store()
    versions = {}
    for i in range(20):
        store.put(service(f"s{i % 7}"))
        if i % 5 == 4:
            store.delete("Service", ("default", f"s{i % 7}"))
        versions[store.version] = set(store.objects["Service"])
    assert {version: {stored.key for stored in store.at("Service", version)} for version in versions} == versions


def test_a_page_shows_the_state_of_the_first(api: FakeApi) -> None:
    api.put_all([service(f"s{i}") for i in range(5)])
    first = get(api, SERVICES + "?limit=3")[2]
    api.delete("Service", "default", "s4")
    api.put(service("s5"))
    token = first["metadata"]["continue"]
    rest = get(api, f"{SERVICES}?limit=3&continue={token}")[2]
    assert names(first["items"] + rest["items"]) == ["s0", "s1", "s2", "s3", "s4"]
    api.compact()
    code, _, said = get(api, f"{SERVICES}?limit=3&continue={token}")
    assert code == 410
    go_on = said["metadata"]["continue"]
    assert names(get(api, f"{SERVICES}?limit=3&continue={go_on}")[2]["items"]) == ["s3", "s5"]


def test_the_oldest_history_goes_by_itself(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "KEPT", 10)
    for i in range(30):
        api.put(service(f"s{i:02}"))
    assert [line["object"]["code"] for line in lines(Client(api, WATCH).read(b"0\r\n\r\n"))] == [410]
    first = api.store.history[0].version
    client = Client(api, f"{SERVICES}?watch=1&resourceVersion={first - 1}")
    assert len(lines(client.read(b'"s29"'))) == len(api.store.history) == 10
    assert get(api, f"{SERVICES}?resourceVersion={first - 2}&resourceVersionMatch=Exact")[0] == 410
    assert len(get(api, f"{SERVICES}?resourceVersion={first}&resourceVersionMatch=Exact")[2]["items"]) == 21
