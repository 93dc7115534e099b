"""The migration report's page in a real browser, which has no network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

import pytest

from proxy.migrate import output_html
from tests import browser, migrate_reports
from tests.browser import Browser
from tests.test_migrate_output import HOSTILE, REPORTS

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(browser.find() is None, reason=f"no Chromium is installed ({', '.join(browser.NAMES)})"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the browser gets a network namespace of its own"),
]


@pytest.fixture(scope="module")
def program() -> Iterator[Browser]:
    name = browser.find()
    assert name
    opened = Browser(name)
    yield opened
    opened.close()


@pytest.fixture
def chromium(program: Browser) -> Iterator[Browser]:
    """With a window of common size. Whatever a test does, no page may ask for anything but itself, or break its policy."""
    program.renew()
    program.look(1280, 900)
    yield program
    assert {url.partition(":")[0] for url in program.requests} <= {"file", "data", "about"}, program.requests
    assert not program.complaints


@cache
def page(name: str) -> str:
    return output_html.render(REPORTS[name] if name in REPORTS else migrate_reports.report(int(name)))


def names(chromium: Browser) -> list[str]:
    """Of the Services in the table."""
    return list(chromium.ask("[...document.querySelectorAll('#rows .open')].map(e => e.textContent)"))


def choose(chromium: Browser, selector: str, value: str) -> None:
    chromium.ask(
        f"{{ const s = document.querySelector({selector!r}); s.value = {value!r};"
        " s.dispatchEvent(new Event('input', {bubbles: true})); }"
    )


def visible(chromium: Browser, selector: str) -> list[str]:
    """The texts of elements that take room on the page."""
    return list(
        chromium.ask(
            f"[...document.querySelectorAll({selector!r})].filter(e => e.checkVisibility()).map(e => e.innerText)"
        )
    )


@pytest.mark.parametrize("name", [*REPORTS, "10000"])
def test_every_page_comes_up_and_asks_for_nothing(chromium: Browser, name: str) -> None:
    chromium.open(page(name))
    assert chromium.ask("document.documentElement.classList.contains('js')")
    assert len([url for url in chromium.requests if url.startswith("file:")]) == 1


INTRUDER = """
<script>window.ran = 1</script><script src="http://192.0.2.1/s.js"></script><img src="http://192.0.2.1/i.png" onerror="ran = 2">
<link rel="stylesheet" href="http://192.0.2.1/s.css"><iframe src="http://192.0.2.1/f.html"></iframe><style>body{opacity:0}</style>
<form action="http://192.0.2.1/"><button id="send">send</button></form>
"""


def test_even_what_gets_into_the_page_can_neither_run_nor_ask_for_anything(program: Browser) -> None:
    program.renew()
    program.open(page("small").replace("<main>", f"{INTRUDER}<main>"))
    assert program.ask("fetch('http://192.0.2.1/').then(() => 'sent', () => 'refused')") == "refused"
    assert program.ask("try { document.body.innerHTML = '<b>'; 'made' } catch { 'refused' }") == "refused"
    program.click("#send")
    assert program.ask("[typeof ran, getComputedStyle(document.body).opacity, location.protocol]") == [
        "undefined",
        "1",
        "file:",
    ]
    asked = {event["params"]["requestId"] for event in program.events if event["method"] == "Network.requestWillBeSent"
             and event["params"]["request"]["url"].startswith("http")}  # fmt: skip
    failed = {event["params"]["requestId"]: event["params"].get("blockedReason") for event in program.events
              if event["method"] == "Network.loadingFailed"}  # fmt: skip
    assert asked and {failed.get(request) for request in asked} == {"csp"}


def test_hostile_names_are_shown_and_do_nothing(chromium: Browser) -> None:
    chromium.open(page("hostile"))
    shown = HOSTILE.encode("ascii", "backslashreplace").decode().replace("\x1b", "\\x1b")
    assert names(chromium) == [shown]
    chromium.click("#rows .open")
    assert shown.split("\n")[0] in chromium.ask("document.querySelector('.entry .address').textContent")
    chromium.ask("document.querySelector('.entry a').click()")  # to its finding, which has such a name, too
    assert chromium.ask("location.hash") == "#finding-0"
    chromium.click(".finding button")
    assert names(chromium) == [shown]


def test_services_are_filtered(chromium: Browser) -> None:
    chromium.open(page("small"))
    report = REPORTS["small"]
    assert len(names(chromium)) == 44 and names(chromium)[0] == "kube-system/login-13"

    choose(chromium, "#namespace", "shop")
    assert sorted(names(chromium)) == sorted(r.service for r in report.services if r.service.startswith("shop/"))
    choose(chromium, "#search", "NodePort  10.96.0.1:80/tcp")
    assert names(chromium) == ["shop/api-1"]
    choose(chromium, "#search", "nowhere")
    assert names(chromium) == [] and visible(chromium, "#more") == ["No Service matches."]
    chromium.click("#clear")
    assert len(names(chromium)) == 44

    choose(chromium, "#search", "10.0.5.3:8080")  # an endpoint
    assert names(chromium) == ["default/login-5"]
    chromium.click("#clear")

    chromium.click("#results label:last-child input")
    assert sorted(names(chromium)) == sorted(r.service for r in report.services if r.result != "same")
    assert visible(chromium, "#matching") == ["5 of 44 Services"]
    chromium.click("#clear")

    options = chromium.ask("[...document.querySelectorAll('#finding option')].map(e => e.textContent)")
    assert options == ["any or none", "all of severity change", "The scheduler wlc has no counterpart",
                       "The rules of 2 Services are stale"]  # fmt: skip
    choose(chromium, "#finding", "0")
    assert names(chromium) == ["kube-system/cache-43", "kube-system/api-33"]  # one differs by it, both are named
    choose(chromium, "#finding", "2")
    assert names(chromium) == ["kube-system/mail-23", "kube-system/api-33"]
    choose(chromium, "#finding", "change")
    assert names(chromium) == ["kube-system/mail-23", "kube-system/cache-43", "kube-system/api-33"]


def test_findings_are_filtered_by_severity_and_lead_to_their_services(chromium: Browser) -> None:
    chromium.open(page("small"))
    assert len(visible(chromium, ".finding")) == 5
    chromium.click("#severities [value=change]")
    assert visible(chromium, ".finding h3") == [
        "NodePorts do not answer on localhost any more",
        "externalIPs are deprecated",
    ]
    chromium.click("#severities [value=change]")
    assert visible(chromium, ".finding button") == ["Show the 2 Services"] * 2  # none is known of what others name
    chromium.click("[data-check=stale-rules] button")
    assert names(chromium) == ["kube-system/mail-23", "kube-system/api-33"]


def test_a_service_opens(chromium: Browser) -> None:
    chromium.open(page("small"))
    choose(chromium, "#search", "api-33")
    chromium.click("#rows .open")
    [text] = visible(chromium, "#rows .detail")
    assert "scheduler: now wlc, then random ipvs-scheduler" in text
    assert "client's address: now replaced by the node's, then kept stale or damaged rules" in text
    assert text.count("10.0.33.10:8080") == 1  # the same for its three addresses
    chromium.click("#rows .open")
    assert visible(chromium, "#rows .detail") == []


def test_the_keyboard_is_enough(chromium: Browser) -> None:
    chromium.open(page("small"))
    chromium.press("/")
    chromium.type("api-33")
    assert names(chromium) == ["kube-system/api-33"]
    chromium.ask("document.querySelector('#results input:last-of-type').focus()")
    for _ in range(10):
        if chromium.ask("document.activeElement.className") == "open":
            break
        chromium.press("Tab")
    chromium.press("Enter")
    assert len(visible(chromium, "#rows .detail")) == 1
    assert chromium.ask("document.activeElement.getAttribute('aria-expanded')") == "true"


def test_commands_are_those_of_the_platform_and_can_be_copied(chromium: Browser) -> None:
    chromium.open(page("small"))
    assert not any("disable-kube-proxy" in text for text in visible(chromium, "#plan pre"))
    chromium.click("#platforms [value=k3s]")
    texts = visible(chromium, "#plan pre")
    assert any("disable-kube-proxy" in text for text in texts)
    assert not any("kube-proxy-patch.yaml" in text for text in texts)
    chromium.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    chromium.click("[data-platform=k3s] .copy")
    assert (
        chromium.ask("navigator.clipboard.readText()")
        == "echo 'disable-kube-proxy: true' >> /etc/rancher/k3s/config.yaml"
    )


def test_ten_thousand_services_come_in_pages(chromium: Browser) -> None:
    chromium.open(page("10000"))
    assert len(names(chromium)) == 100
    first = names(chromium)
    chromium.click("#next")
    assert len(names(chromium)) == 100 and not set(first) & set(names(chromium))
    assert visible(chromium, "#page") == ["101–200 of 10,000"]
    chromium.click("#previous")
    assert names(chromium) == first
    choose(chromium, "#search", "10.39.15.7:8080")
    assert names(chromium) == ["monitoring/mail-9999"]
    assert visible(chromium, "#pager") == []


def test_without_javascript_the_summary_the_findings_and_the_plan_are_there(chromium: Browser) -> None:
    chromium.open(page("10000"), javascript=False)
    assert visible(chromium, ".verdict strong") == ["Ready, with changes"]
    assert len(visible(chromium, ".finding")) == 5 and len(visible(chromium, "#rows tr")) == 100
    assert visible(chromium, "#more") == ["And 900 more Services with differences: to see them, allow JavaScript."]
    texts = visible(chromium, "#plan pre")
    assert any("kube-proxy-patch" in text for text in texts) and any("disable-kube-proxy" in text for text in texts)
    assert visible(chromium, "#filters, #severities, #pager, .copy, #platforms, .finding button") == []


def test_it_fits_a_telephone(chromium: Browser) -> None:
    for name in ("small", "hostile", "not compared", "empty"):
        chromium.look(400, 800)
        chromium.open(page(name))
        chromium.ask("document.querySelectorAll('#rows .open').forEach(e => e.click())")
        assert chromium.ask("document.documentElement.scrollWidth") <= 400, name


def test_it_is_dark_where_the_reader_wants_it(chromium: Browser) -> None:
    grounds = []
    for dark in (False, True):
        chromium.look(1280, 900, dark=dark)
        chromium.open(page("small"))
        grounds.append(chromium.ask("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(255, 255, 255)", "rgb(21, 24, 28)"]


def test_it_can_be_printed(chromium: Browser) -> None:
    chromium.open(page("10000"))
    chromium.look(1280, 900, dark=True, media="print")
    assert visible(chromium, "#filters, #pager, .copy, nav") == []
    chromium.ask("dispatchEvent(new Event('beforeprint'))")
    assert len(names(chromium)) == 1000 and visible(chromium, "#more") == ["And 9,000 more."]
    assert len(visible(chromium, "#rows .detail")) == 1000  # they come first, and all of them differ
    chromium.ask("dispatchEvent(new Event('afterprint'))")
    assert len(names(chromium)) == 100


def test_without_a_comparison_there_are_no_results(chromium: Browser) -> None:
    chromium.open(page("not compared"))
    assert visible(chromium, ".compared") == []
    assert len(names(chromium)) == 33
    chromium.click("#rows .open")
    assert "the same" not in visible(chromium, "#rows .detail")[0]


def contrast(chromium: Browser) -> list[str]:
    """Texts whose colour is too close to what is behind them: WCAG 2.1 asks for 4.5 to 1."""
    return list(
        chromium.ask(
            """
            (() => {
              const light = (c) => c.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
                .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
              const parse = (c) => c.match(/[\\d.]+/g).map(Number);
              const behind = (e) => { for (; e; e = e.parentElement) {
                const c = parse(getComputedStyle(e).backgroundColor); if (c[3] !== 0) return c.slice(0, 3); } };
              const bad = [];
              for (const e of document.querySelectorAll('body *')) {
                const text = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join('');
                if (!text || !e.checkVisibility() || e.matches('script, option, :disabled')) continue;
                const [a, b] = [light(parse(getComputedStyle(e).color).slice(0, 3)), light(behind(e))];
                const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
                if (ratio < 4.5) bad.push(`${ratio.toFixed(2)} ${text.slice(0, 40)}`);
              }
              return [...new Set(bad)];
            })()
            """
        )
    )


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["small", "blocked", "empty"])
def test_every_text_can_be_read(chromium: Browser, name: str, dark: bool) -> None:
    chromium.look(1280, 900, dark=dark)
    chromium.open(page(name))
    chromium.ask("document.querySelectorAll('#rows .open').forEach(e => e.click())")
    assert contrast(chromium) == []
