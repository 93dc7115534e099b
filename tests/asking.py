"""What tests ask an API server, and how they read its answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from integration.rest import Answer, Object
from tests.apis import Environment, service

SERVICES = "/api/v1/services"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
NODES = "/api/v1/nodes"
CIDRS = "/apis/networking.k8s.io/v1/servicecidrs"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
FUTURE = 10**15
PATIENCE = 20.0
HEADLESS = "service.kubernetes.io/headless"
MARK = "test.example.com/of"


class Group:
    """Some Services of one test, told from all others by a label."""

    def __init__(self, env: Environment) -> None:
        self.env, self.mark = env, env.name("group")

    def new(self, name: str = "", **spec: Any) -> Object:
        return service(name or self.env.name("s"), self.env.address(), labels={MARK: self.mark}, **spec)

    def put(self, count: int) -> list[Object]:
        return [self.env.put(self.new()) for _ in range(count)]

    def list(self, **parameters: object) -> Object:
        return good(self.env.admin.get(self.path(**parameters)))

    def path(self, **parameters: object) -> str:
        return SERVICES + query(parameters | {"labelSelector": f"{MARK}={self.mark}"})


def query(parameters: dict[str, object]) -> str:
    return "?" + "&".join(f"{name}={quote(str(value), safe='')}" for name, value in parameters.items())


def good(answer: Answer) -> Object:
    assert answer.status == 200, answer.body
    found: Object = answer.json()
    return found


def names(items: list[Object]) -> list[str]:
    return [item["metadata"]["name"] for item in items]


def eventually(env: Environment, path: str, expected: list[str]) -> Object:
    """Wait for a list from the cache to have these: a real one is some milliseconds behind."""
    deadline = time.monotonic() + PATIENCE
    while names((found := good(env.admin.get(path)))["items"]) != expected:
        assert time.monotonic() < deadline, f"{names(found['items'])} and not {expected}"
        time.sleep(0.02)
    return found


def refusal(answer: Answer, code: int, reason: str) -> Object:
    """The Status that the server refused with."""
    said: Object = answer.json()
    assert (answer.status, said["kind"], said["status"]) == (code, "Status", "Failure"), said
    assert (said["code"], said["reason"]) == (code, reason)
    return said


def shown(event: Object) -> tuple[str, str]:
    return event["type"], event["object"]["metadata"].get("name", "")


def take(events: Iterator[Object], count: int) -> list[tuple[str, str]]:
    return [shown(next(events)) for _ in range(count)]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def event(name: str, **fields: Any) -> Object:
    """An Event about a Node; a field that is None is left out."""
    made: Object = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "eventTime": now(),
        "reportingController": "kube-proxy-nft",
        "reportingInstance": "kube-proxy-nft-node0",
        "action": "StartKubeProxy",
        "reason": "Starting",
        "type": "Normal",
        "regarding": {"kind": "Node", "name": "node0", "apiVersion": "v1"},
        "note": "started",
    }
    return {name: value for name, value in (made | fields).items() if value is not None}
