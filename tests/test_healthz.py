"""/healthz and /livez: when this proxy is well, when its node gets new traffic, and what is said."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import HostPort
from proxy.healthz import NEVER, Health, Status, answer, pages
from proxy.http_message import Request
from proxy.measures import Counts
from proxy.page_server import PageServer
from rules.objects import Family
from tests.netns import in_new_namespace
from tests.test_http_server import ask

V4, V6 = Family.IPV4, Family.IPV6
NOW = datetime(2026, 11, 30, 4, 36, 31, 156142, UTC)
TIMEOUT = 60.0
HEALTHZ, LIVEZ = Request("GET", "/healthz"), Request("GET", "/livez")

# What kube-proxy v1.36.2 said 8 seconds after it had programmed both families.
RECORDED = (
    '{"lastUpdated":"2026-11-30T04:36:31.156142912Z","currentTime":"2026-11-30T04:36:31.156092262Z",'
    '"nodeEligible":true,"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-11-30T04:36:23.700457642Z",'
    '"healthy":true},"IPv6":{"lastUpdated":"2026-11-30T04:36:23.740444013Z","healthy":true}}}'
)


def said(request: Request, status: Status, families: tuple[Family, ...] = (V4, V6)) -> tuple[int, dict[str, Any]]:
    response = answer(request, status, families, NOW)
    assert response.headers == {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"}
    return response.status.value, json.loads(response.body)


def codes(health: Health, now: float) -> tuple[int, int]:
    """Of /healthz and /livez."""
    status = health.status(now)
    return said(HEALTHZ, status)[0], said(LIVEZ, status)[0]


def shape(value: Any) -> Any:
    """Names in their order, and types."""
    return [(name, shape(v)) for name, v in value.items()] if isinstance(value, dict) else type(value)


# -- When --------------------------------------------------------------------------------------------------------------


def test_a_start() -> None:
    health = Health(TIMEOUT)
    assert codes(health, 0) == (503, 200)  # there are no rules: traffic that comes is lost, and a restart no help
    assert codes(health, 1e6) == (503, 200)  # the API server is away
    health.queued(1e6)
    assert codes(health, 1e6 + 1) == (503, 200)
    health.synced(1e6 + 1)
    assert codes(health, 1e6 + 1) == codes(health, 2e6) == (200, 200)


def test_a_start_over_rules_that_are_there() -> None:
    health = Health(TIMEOUT, programmed=True)
    assert codes(health, 0) == codes(health, 1e6) == (200, 200)


@pytest.mark.parametrize("programmed", [True, False])
def test_a_first_sync_that_never_ends(programmed: bool) -> None:
    health = Health(TIMEOUT, programmed=programmed)
    health.queued(10)
    assert codes(health, 10 + TIMEOUT - 0.1)[1] == 200
    assert codes(health, 10 + TIMEOUT) == (503, 503)


def test_a_change_may_wait_only_so_long() -> None:
    health = Health(TIMEOUT)
    health.synced(0)
    health.queued(1000)
    health.queued(1050)  # the oldest counts
    assert codes(health, 1059.9) == (200, 200)
    assert codes(health, 1060) == codes(health, 5000) == (503, 503)
    health.synced(5000)
    assert codes(health, 5000) == (200, 200)
    health.queued(5001)
    assert codes(health, 5060) == (200, 200)
    assert codes(health, 5061) == (503, 503)


def test_a_node_that_is_about_to_go_is_well_but_gets_nothing_new() -> None:
    health = Health(TIMEOUT)
    health.synced(0)
    health.node_eligible(False)
    assert codes(health, 1) == (503, 200)
    health.node_eligible(True)
    assert codes(health, 1) == (200, 200)


EVENTS = st.lists(st.tuples(st.sampled_from(["queued", "synced"]), st.floats(0, 100)))


@given(EVENTS, st.floats(0, 100))
def test_well_means_that_nothing_waits_for_too_long(events: list[tuple[str, float]], later: float) -> None:
    health, now = Health(TIMEOUT), 0.0
    waits: list[float] = []
    for what, after in events:
        now += after
        getattr(health, what)(now)
        waits = [] if what == "synced" else [*waits, now]
    now += later
    assert health.status(now).works is all(now - since < TIMEOUT for since in waits)


# -- What --------------------------------------------------------------------------------------------------------------


def test_it_says_what_kube_proxy_says() -> None:
    code, body = said(HEALTHZ, Status(True, True, True, 8.0))
    assert code == 200
    assert shape(body) == shape(json.loads(RECORDED))
    assert body["currentTime"] == body["lastUpdated"] == "2026-11-30T04:36:31.156142Z"
    assert body["status"]["IPv4"]["lastUpdated"] == "2026-11-30T04:36:23.156142Z"
    compact = json.dumps(body, separators=(",", ":")).encode()
    assert answer(HEALTHZ, Status(True, True, True, 8.0), (V4, V6), NOW).body == compact


def test_livez_says_nothing_of_the_node() -> None:
    code, body = said(LIVEZ, Status(True, True, False, 8.0))
    assert code == 200 and body["healthy"] and "nodeEligible" not in body


def test_who_is_not_well_says_since_when() -> None:
    for request in (HEALTHZ, LIVEZ):
        code, body = said(request, Status(False, True, True, 100.0))
        assert code == 503 and not body["healthy"]
        assert body["lastUpdated"] == "2026-11-30T04:34:51.156142Z"
        assert body["status"]["IPv6"] == {"lastUpdated": "2026-11-30T04:34:51.156142Z", "healthy": False}
    assert said(HEALTHZ, Status(True, True, False, 100.0))[1] == {
        "lastUpdated": "2026-11-30T04:34:51.156142Z",
        "currentTime": "2026-11-30T04:36:31.156142Z",
        "nodeEligible": False,
        "healthy": True,
        "status": {f: {"lastUpdated": "2026-11-30T04:34:51.156142Z", "healthy": True} for f in ("IPv4", "IPv6")},
    }


def test_before_the_first_sync_there_is_no_time() -> None:
    code, body = said(HEALTHZ, Status(True, False, True))
    assert code == 503
    assert body == {
        "lastUpdated": NEVER,
        "currentTime": "2026-11-30T04:36:31.156142Z",
        "nodeEligible": True,
        "healthy": False,
    }


def test_only_the_families_that_are_programmed() -> None:
    assert list(said(HEALTHZ, Status(True, True, True, 1.0), (V6,))[1]["status"]) == ["IPv6"]


def test_times_are_utc() -> None:
    there = NOW.astimezone(timezone(timedelta(hours=5)))
    assert answer(HEALTHZ, Status(True, True, True), (), there) == answer(HEALTHZ, Status(True, True, True), (), NOW)


@pytest.mark.parametrize("path", ["/", "/healthz/", "/livez/x", "/HEALTHZ", "/metrics", "*"])
def test_nothing_else_is_there(path: str) -> None:
    assert answer(Request("GET", path), Status(True, True, True), (), NOW).status == 404


@pytest.mark.parametrize(("method", "code"), [("GET", 200), ("HEAD", 200), ("POST", 405), ("DELETE", 405)])
def test_it_is_only_read(method: str, code: int) -> None:
    for path in ("/healthz", "/livez"):
        assert answer(Request(method, path), Status(True, True, True), (), NOW).status == code
    assert answer(Request(method, "/healthz", "verbose"), Status(True, True, True), (), NOW).status == code


def test_answers_are_counted() -> None:
    probes, health, clock = Counts(), Health(TIMEOUT, programmed=True), [0.0]
    page = pages(health, (V4,), lambda: clock[0], probes=probes)
    health.queued(0)
    for path in ("/healthz", "/livez", "/livez", "/other"):
        page(Request("GET", path))
    page(Request("POST", "/livez"))
    clock[0] = TIMEOUT
    page(LIVEZ)
    assert probes.read() == {("/healthz", "200"): 1, ("/livez", "200"): 2, ("/livez", "503"): 1}


# -- And served --------------------------------------------------------------------------------------------------------


@pytest.mark.root
def test_asked_over_a_socket() -> None:
    health, clock = Health(TIMEOUT, programmed=True), [0.0]

    def body() -> list[bytes]:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        page = pages(health, (V4, V6), lambda: clock[0])
        server = PageServer("healthz", "healthzBindAddress", HostPort("0.0.0.0", 10256), (V4, V6), page)
        server.start()
        try:
            codes = []
            for now, family, path in ((0, "127.0.0.1", "healthz"), (0, "::1", "livez"), (60, "127.0.0.1", "livez")):
                clock[0] = now
                codes.append(ask(f"GET /{path} HTTP/1.1\r\n\r\n".encode(), family, 10256)[9:12])
                health.queued(0)
            return codes
        finally:
            server.stop()

    assert in_new_namespace(body) == [b"200", b"200", b"503"]
