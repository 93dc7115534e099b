"""docs/events.md has every event that the code logs, and every Event that it records, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from docs import generate_events, log_calls
from docs.generate_events import PACKAGES, logged
from docs.log_meanings import EVENTS, REASONS
from proxy import node_reports
from proxy.detect.watcher import OTHER
from proxy.detect.watcher import REASONS as DEPRECATIONS
from proxy.errors import EXIT_CODES

REPO = Path(__file__).parents[1]
TEXT = generate_events.FILE.read_text(encoding="utf-8")
SAME_CALL_AS_OPEN = {"committed"}
"""Logged by a call that has more fields for another event."""


def test_the_tables_are_current() -> None:
    assert generate_events.current(TEXT) == TEXT, "run: python -m docs.generate_events"


def test_what_is_logged_is_explained_and_nothing_else() -> None:
    found = {call.event: call.place for call in logged()}
    assert not {event: place for event, place in found.items() if event not in EVENTS}, (
        "explain it: docs/log_meanings.py"
    )
    assert not EVENTS.keys() - found.keys(), "nothing logs this"
    assert all(f"`{event}`" in TEXT for event in found)


def test_fields_that_are_put_together_at_run_time_are_told() -> None:
    is_open = {call.event for call in logged() if call.is_open} - SAME_CALL_AS_OPEN
    assert {event for event, meaning in EVENTS.items() if meaning.more} == is_open


def test_names_are_snake_case_and_errors_say_what_to_do() -> None:
    for call in logged():
        for name in (call.event, *call.fields):
            assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name), (name, call.place)
        if call.level == "error":
            said = call.fields & {"remedy", "then", "exit_code", "exception"}
            assert said or EVENTS[call.event].do, call.place


def test_objects_are_named_with_their_namespace() -> None:
    """One field has both: what is searched for in a log is namespace/name."""
    assert not [call.place for call in logged() if {"namespace", "name"} <= call.fields]


def test_all_loggers_are_known() -> None:
    for package in PACKAGES:
        for path in (REPO / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            made = re.findall(r"^\s*(?:self\.)?(\w+) = structlog\.get_logger\(", text, re.MULTILINE)
            assert len(made) == text.count("get_logger("), path
            assert set(made) <= set(log_calls.LOGGERS), path
            assert made or not re.search(r"^import structlog$", text, re.MULTILINE) or path.name == "logs.py", path


def test_every_reason_of_an_event_is_explained() -> None:
    text = Path(node_reports.__file__).read_text(encoding="utf-8")
    reasons = {
        getattr(node_reports, node.args[0].id)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._recorder.record"
        if isinstance(node.args[0], ast.Name) and node.args[0].id.isupper()
    }
    assert reasons | {OTHER} == REASONS.keys()
    detect = generate_events.FILE.with_name("detect.md").read_text(encoding="utf-8")
    assert all(f"`{reason}`" in detect for reason in DEPRECATIONS.values())


def test_the_readme_has_every_exit_code() -> None:
    readme = (REPO / "README.md").read_text(encoding="utf-8")
    assert [int(code) for code in re.findall(r"^\| (\d+) \| ", readme, re.MULTILINE)] == list(EXIT_CODES)


def read(tmp_path: Path, code: str) -> list[tuple[str, str, set[str]]]:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text(code)
    return [(call.event, call.level, set(call.fields)) for call in log_calls.calls(tmp_path, ["package"])]


def test_how_events_are_found(tmp_path: Path) -> None:
    code = """
class Server:
    def __init__(self, name="metrics"):
        self._log = structlog.get_logger().bind(kind=1)
        self._name = name

    def say(self, event, cause):
        self._log.warning(event, cause=cause)

    def run(self, rule):
        self.say("one", 1)
        LOG.info(f"{self._name}_two", **rest)
        log = LOG.info if event == "six" else LOG.debug
        log(rule.event, value=1)
        other = "five"
        LOG.error(other, exc_info=True)

RULES = [Rule("six"), Rule("seven")]
"""
    assert read(tmp_path, code) == [
        ("one", "warning", {"kind", "cause"}),
        ("metrics_two", "info", {"kind"}),
        ("six", "info", {"kind", "value"}),
        ("seven", "debug", {"kind", "value"}),
        ("five", "error", {"kind", "exception"}),
    ]


@pytest.mark.parametrize("name", ["unknown", "f'{unknown}_x'", "a + b", "self.names[0]"])
def test_a_name_that_cannot_be_found_out(tmp_path: Path, name: str) -> None:
    with pytest.raises(log_calls.Unresolved, match=r"package/module\.py:3"):
        read(tmp_path, f"LOG = structlog.get_logger()\ndef f(self):\n    LOG.info({name})\n")
