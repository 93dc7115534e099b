"""The migration report as a page: what stands in the file. tests/test_migrate_output_browser.py looks at it in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import msgspec
import pytest

from proxy.migrate import output_html
from proxy.migrate.report import Report
from proxy.web_page import parts
from tests import migrate_reports
from tests.test_migrate_output import HOSTILE, REPORTS, reports

VOID = {"meta", "link", "input", "rect"}


class Parsed(HTMLParser):
    """Elements with their attributes, and the texts between them. AssertionError: elements are not nested properly."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._open[-1] if self._open else "", []).append(data)


@reports
def test_the_page_is_well_formed_and_loads_nothing(report: Report) -> None:
    page = Parsed(output_html.render(report))
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "src", "action")]
        assert (attributes.get("href") or "#").startswith(("#", "data:,")), (tag, attributes)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {attributes["href"] for tag, attributes in page.elements if tag == "a"}
    assert targets <= {f"#{name}" for name in ids}


def test_names_from_outside_stay_texts() -> None:
    text = output_html.render(REPORTS["hostile"])
    plain, page = Parsed(output_html.render(migrate_reports.with_texts(REPORTS["small"], "x"))), Parsed(text)
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert not re.search("[\0-\x09\x0b-\x1f\u202e\u2028\ud800]", text)
    shown = HOSTILE.split("\n")[0].encode("ascii", "backslashreplace").decode().replace("\x1b", "\\x1b")
    for element in ("bdi", "dd", "h3", "h4", "li", "code", "td", "p"):
        assert any(shown in part for part in page.texts[element]), element
    [data, _] = page.texts["script"]
    assert json.loads(data)["services"][0][0].startswith(shown)


def test_only_the_pages_own_style_and_script_are_allowed() -> None:
    page = output_html.render(REPORTS["small"])
    [policy] = [a["content"] for tag, a in Parsed(page).elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy and policy.startswith("default-src 'none';")
    for element in ("style", "script"):
        [content] = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}';" in policy
    assert "unsafe" not in policy and "http" not in policy


def test_the_script_makes_no_html() -> None:
    script = parts("proxy.migrate").script
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|<!--|</script", script)


def test_most_of_a_big_report_is_told_once() -> None:
    page = output_html.render(migrate_reports.report(10_000))
    assert len(page) < 4_000_000
    assert "And 900 more Services with differences: to see them, allow JavaScript." in page


@pytest.mark.parametrize("endpoints", [10, 3_000])
def test_the_size_does_not_grow_with_the_endpoints(endpoints: int) -> None:
    report = migrate_reports.report(300, endpoints=endpoints)
    many = msgspec.structs.replace(
        report, services=tuple(msgspec.structs.replace(row, result="behaviour") for row in report.services)
    )
    page = output_html.render(many)
    assert len(page) < 25 * output_html.MOST_ENDPOINTS_IN_ALL
    [data] = re.findall(r'id="data">(.*?)</script>', page, re.DOTALL)
    sets = [one for service in json.loads(data)["services"] for one in service[4]]
    assert sum(len(shown) for shown, _ in sets) <= output_html.MOST_ENDPOINTS_IN_ALL
    assert all(count == endpoints for _, count in sets)


def test_a_report_without_a_comparison_says_so() -> None:
    page = output_html.render(REPORTS["not compared"])
    assert '<body class="uncompared">' in page and "There were no rules to compare with" in page
    assert "<svg" not in page
