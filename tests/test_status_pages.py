"""What is answered on the status page's paths."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

from proxy.http_message import Request
from proxy.status import pages
from tests.objects import endpoint_slice, service
from tests.status_world import StatusWorld


@pytest.fixture
def world() -> StatusWorld:
    made = StatusWorld()
    made.list(service("web", "10.96.0.1"), endpoint_slice("web", "10.244.0.1"))
    return made


def test_the_page_is_one_and_may_load_nothing_but_its_data(world: StatusWorld) -> None:
    said = world.get("/")
    text = said.body.decode()
    assert said.status == 200 and said.headers["Content-Type"] == "text/html; charset=utf-8"
    assert not re.search(r"(src|href|action)=\"?(https?:|//)|@import|url\(", text)
    policy = said.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'" in policy
    assert not re.search(r"\son[a-z]+=|\sstyle=", text)
    assert len(said.body) < 64 << 10


def test_the_page_is_there_before_the_agent() -> None:
    assert pages.answer(Request("GET", "/"), None).status == 200
    said = pages.answer(Request("GET", "/status/summary"), None)
    assert said.status == 503 and "starting" in json.loads(said.body)["error"]


@pytest.mark.parametrize("path", pages.PATHS)
def test_nothing_can_be_written_and_nothing_is_kept(path: str, world: StatusWorld) -> None:
    assert pages.answer(Request("POST", path), world.view).status == 405
    said = pages.answer(Request("HEAD", path, "namespace=default&name=web"), world.view)
    assert said.status == 200 and said.headers["Cache-Control"] == "no-store"
    assert said.headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in said.headers  # no other site may read it


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/status/services", "page=x", 400),
        ("/status/services", "page=-1", 400),
        ("/status/services", "page=٣", 400),
        ("/status/services", "page=" + "9" * 5000, 400),
        ("/status/services", "show=everything", 400),
        ("/status/services", "q=" + "a" * 501, 400),
        ("/status/services", "q=" + "+".join("abcdefghijk"), 400),
        ("/status/services", "&".join(f"a{i}=1" for i in range(50)), 400),
        ("/status/services", "q=%ff%00%3Cscript%3E", 200),
        ("/status/services", "=&&q", 200),
        ("/status/rejected", "page=1.5", 400),
        ("/status/service", "", 404),
        ("/status/service", "namespace=default&name=nobody", 404),
        ("/status/service", "namespace=../..&name=%2e%2e", 404),
        ("/status/service", "namespace=default&name=web", 200),
    ],
)
def test_odd_questions(path: str, query: str, status: int, world: StatusWorld) -> None:
    said = world.get(path, query)
    assert said.status == status and said.headers["Content-Type"] == "application/json"
    assert (said.status == 200) == ("error" not in json.loads(said.body))


def test_paths_for_the_metrics_port(world: StatusWorld) -> None:
    made = pages.pages(lambda: world.view)
    assert set(made) == set(pages.PATHS)
    assert made["/status/summary"](Request("GET", "/status/summary")).status == 200
