"""The status page in a real browser, which has no network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

import pytest

from proxy.detect.findings import Finding
from proxy.http_message import Request, Response
from proxy.status import pages
from tests import browser
from tests.objects import endpoint_slice, service
from tests.status_browser import ORIGIN, PageBrowser
from tests.status_world import StatusWorld, many

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(browser.find() is None, reason=f"no Chromium is installed ({', '.join(browser.NAMES)})"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the browser gets a network namespace of its own"),
]
HOSTILE = "<img src=x onerror='window.ran=1'>\u202e${ran}\"'&amp;"


class Site:
    """What answers: until it is `down`."""

    down = False

    def __init__(self, world: StatusWorld) -> None:
        self.world = world

    def __call__(self, request: Request) -> Response | None:
        return None if self.down or request.path not in pages.PATHS else pages.answer(request, self.world.view)


@pytest.fixture(scope="module")
def program() -> Iterator[PageBrowser]:
    name = browser.find()
    assert name
    opened = PageBrowser(name)
    yield opened
    opened.close()


@pytest.fixture
def chromium(program: PageBrowser) -> Iterator[PageBrowser]:
    """Whatever a test does, the page may ask for nothing but its data, or break its policy."""
    yield program
    assert {url.partition("?")[0] for url in program.asked} <= {ORIGIN + path for path in pages.PATHS}
    assert not program.complaints


@cache
def large() -> StatusWorld:
    made = StatusWorld()
    made.list(*many(10_000, 2), service("bad", "10.200.0.1", ports=[{"port": 70000}]))
    return made


def visit(chromium: PageBrowser, world: StatusWorld) -> Site:
    site = Site(world)
    chromium.visit(site)
    chromium.look(1280, 900)
    chromium.until("document.getElementById('matching').textContent")
    return site


def small() -> StatusWorld:
    made = StatusWorld()
    made.list(service("web", "10.96.0.1"), service("api", "10.96.0.2"), endpoint_slice("web", "10.244.0.1"))
    return made


def names(chromium: PageBrowser) -> list[str]:
    return chromium.texts("#rows .open")


def test_it_comes_up_with_what_the_agent_says(chromium: PageBrowser) -> None:
    visit(chromium, small())
    assert chromium.texts("#verdict-words") == ["Healthy"] and chromium.texts("#node") == ["node-1"]
    assert names(chromium) == ["default/api", "default/web"]
    assert chromium.texts("#rows .number") == ["0", "1"]
    assert chromium.ask("document.title") == "node-1: healthy"


def test_a_change_is_shown_without_a_touch(chromium: PageBrowser) -> None:
    world = small()
    visit(chromium, world)
    world.put(service("more", "10.96.0.3"), endpoint_slice("api", "10.244.0.2"))
    chromium.until("document.querySelectorAll('#rows .open').length === 3")
    assert chromium.texts("#rows .number") == ["1", "0", "1"]
    assert "of service ports" in chromium.texts("#changes-note")[0]
    assert chromium.ask("document.querySelectorAll('#changes rect').length") == 2  # the start, and this


def test_an_agent_that_went_is_said_and_so_is_its_return(chromium: PageBrowser) -> None:
    site = visit(chromium, small())
    site.down = True
    chromium.until("document.getElementById('verdict-words').textContent === 'The agent does not answer'")
    site.down = False
    chromium.until("document.getElementById('verdict-words').textContent === 'Healthy'")
    chromium.events.clear()  # that it could not connect is a complaint


def test_ten_thousand_services_are_searched_by_the_server(chromium: PageBrowser) -> None:
    visit(chromium, large())
    assert chromium.texts("#matching") == ["All 10,000 Services"] and len(names(chromium)) == 50
    chromium.click("#next")
    chromium.until("document.getElementById('page').textContent === 'Page 2 of 200'")
    chromium.ask("document.getElementById('search').focus()")
    chromium.type("10.96.4.210:80")
    chromium.until("document.querySelectorAll('#rows .open').length === 1")
    assert names(chromium) == ["team-14/service-01234"] and chromium.texts("#matching") == ["1 of 10,000 Services"]
    assert not chromium.texts("#pager")


def test_by_keyboard(chromium: PageBrowser) -> None:
    visit(chromium, large())
    chromium.press("/")
    assert chromium.ask("document.activeElement.id") == "search"
    chromium.type("service-09999")
    chromium.until("document.querySelectorAll('#rows .open').length === 1")
    chromium.press("Tab")
    chromium.press("Tab")
    assert chromium.ask("document.activeElement.className") == "open"
    chromium.press("Enter")
    chromium.until("document.querySelector('.way')")
    assert chromium.ask("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert len(chromium.texts(".way li")) == 2
    chromium.press("Enter")
    assert not chromium.texts(".way")


def test_what_is_left_out(chromium: PageBrowser) -> None:
    visit(chromium, large())
    chromium.until("document.querySelectorAll('#rejected-rows tr').length")
    assert chromium.texts("#rejected-rows td") == [
        "Service default/bad",
        "spec.ports[0].port: 70000 is not in 1..65535",
    ]
    assert chromium.texts("#verdict-words") == ["Healthy, but somebody should look"]


def test_hostile_names_are_text(chromium: PageBrowser) -> None:
    world = StatusWorld()
    slice_ = endpoint_slice(HOSTILE, {"addresses": ["10.244.0.1"], "nodeName": HOSTILE})
    world.list(
        service(HOSTILE, "10.96.0.1", ports=[{"name": "http", "port": 80}]),
        service("bad" + HOSTILE, "10.96.0.2", ports=[{"port": 70000}], namespace=HOSTILE),
        slice_,
    )
    world.findings = [Finding(check="x", severity="broken", title=HOSTILE, explanation="", remedy=HOSTILE, evidence=())]
    visit(chromium, world)
    chromium.click("#rows .open")
    chromium.until("document.querySelector('.way li')")
    assert names(chromium) == [f"default/{HOSTILE}"]
    assert HOSTILE in chromium.texts("#rejected-rows td")[0] and HOSTILE in chromium.texts(".finding h3")[0]
    assert chromium.ask("typeof ran") == "undefined" and chromium.ask("document.images.length") == 0


def test_what_gets_into_the_page_can_neither_run_nor_send(program: PageBrowser) -> None:
    visit(program, small())
    assert program.ask("fetch('http://192.0.2.1/').then(() => 'sent', () => 'refused')") == "refused"
    assert program.ask("try { document.body.innerHTML = '<b>'; 'made' } catch { 'refused' }") == "refused"


@pytest.mark.parametrize("width", [320, 400, 768, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits(chromium: PageBrowser, width: int, dark: bool) -> None:
    world = small()
    world.put(
        service("a-name-as-long-as-they-come-" * 2, "fd00:1234:5678:9abc:def0:1234:5678:9abc", namespace="n" * 63)
    )
    visit(chromium, world)
    chromium.look(width, 900, dark=dark)
    chromium.click("#rows .open")
    chromium.until("document.querySelector('.way')")
    assert chromium.ask("document.documentElement.scrollWidth") == width
    ground = chromium.ask("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") is not dark
