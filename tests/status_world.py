"""An agent with a fake kernel and a view of it, for tests of the status page; and large ones."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from proxy.agent import Agent
from proxy.committed import Committed
from proxy.config import Config
from proxy.detect.findings import Finding
from proxy.events import Event, Inbox, Put, Replace
from proxy.http_message import Request, Response
from proxy.measures import COMMIT_BOUNDS, Histogram
from proxy.model import ENDPOINT_SLICE, KINDS, SERVICE, convert
from proxy.reading import read
from proxy.state import State
from proxy.status import pages
from proxy.status.view import View
from rules.fake import FakeKernel
from tests.objects import Object, endpoint_slice, service

NODE = "node-1"


class Clock:
    """Two clocks in one: monotonic seconds, and `now` since 1970."""

    def __init__(self, at: float = 1_800_000_000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


class StatusWorld:
    """commits: what is counted of them. kernel: rules.fake.FakeKernel, or a real one."""

    def __init__(self, kernel: Any = None, clock: Callable[[], float] | None = None, **options: Any) -> None:
        self.clock = clock or Clock()
        self.commits = Histogram(COMMIT_BOUNDS)
        self.followers: list[Callable[[Committed], None]] = []
        self.inbox = Inbox()
        self.agent = Agent(
            State(NODE), kernel or FakeKernel(), self.inbox, followers=self.followers, clock=self.clock, **options
        )
        self.findings: Sequence[Finding] = ()
        self.view = View(
            self.agent,
            Config(),
            "1.2.3",
            self.commits,
            source="manifests",
            findings=lambda: self.findings,
            clock=self.clock,
            now=self.clock,
        )
        self.followers += [self._committed, self.view]
        self._started = 0.0

    def _committed(self, done: Committed) -> None:
        self.commits.observe(time.perf_counter() - self._started)

    def handle(self, events: Sequence[Event]) -> None:
        self._started = time.perf_counter()
        self.agent.handle(events)

    def list(self, *objects: Object) -> None:
        """As complete lists of all kinds."""
        self.handle([Replace(kind, [_read(one) for one in objects if one["kind"] == kind]) for kind in KINDS])

    def put(self, *objects: Object) -> None:
        self.handle([Put(_read(one)) for one in objects])

    def get(self, path: str, query: str = "") -> Response:
        return pages.answer(Request("GET", path, query), self.view)

    def ask(self, path: str, query: str = "") -> Any:
        """The JSON of an answer that must be well."""
        said = self.get(path, query)
        assert said.status == 200, (said.status, said.body)
        return json.loads(said.body)


def _read(obj: Object) -> Any:
    return read(convert(obj["kind"], obj))


def many(services: int, endpoints: int) -> list[Object]:
    """Services of so many endpoints each, in 20 namespaces; every tenth with a NodePort, every 50th without endpoints."""
    found: list[Object] = []
    for i in range(services):
        name, namespace = f"service-{i:05}", f"team-{i % 20}"
        ip = f"10.{96 + (i >> 16)}.{i >> 8 & 255}.{i & 255}"
        port = {"name": "http", "port": 80} | ({"nodePort": 30000 + i // 10} if i % 10 == 0 and i < 27000 else {})
        found.append(
            service(name, ip, ports=[port], namespace=namespace, type="NodePort" if i % 10 == 0 else "ClusterIP")
        )
        there = [
            {"addresses": [f"10.{128 + (n >> 16)}.{n >> 8 & 255}.{n & 255}"], "nodeName": f"node-{n % 100}"}
            for n in range(i * endpoints, (i + 1) * endpoints)
        ]
        found.append(endpoint_slice(name, *(there if i % 50 else ()), namespace=namespace))
    return found


__all__ = ["ENDPOINT_SLICE", "NODE", "SERVICE", "Clock", "StatusWorld", "many"]
