"""The migration report as text on a terminal, as JSON and YAML with its schema, and as Markdown."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from docs import generate_migrate
from proxy.migrate import output_data, output_markdown, output_text
from proxy.migrate.report import Report, Verdict
from tests import migrate_reports

REPO = Path(__file__).parents[1]
HOSTILE = (
    "</script></script x=1><!--<script>\"'`|[red]a[/red]\x1b[2J\u202e\u2028\ud800<!-- *b* [c](d:e) &amp; @all\nnext"
)
REPORTS = {
    "empty": migrate_reports.report(0, "ready"),
    "small": migrate_reports.report(44),
    "blocked": migrate_reports.report(33, "blocked"),
    "not compared": migrate_reports.report(33, compared=False),
    "hostile": migrate_reports.with_texts(migrate_reports.report(1), HOSTILE),
}
reports = pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
VERDICTS: tuple[Verdict, ...] = ("ready", "ready-with-changes", "blocked")


# Text.


def test_what_matters_comes_first() -> None:
    text = output_text.render(migrate_reports.report(44, "blocked"))
    order = ("BLOCKED", "- A firewall", "Findings", "BLOCKER  A firewall", "CHANGE ", "NOTICE ", "INFO ", "Services: 39 the same",
             "kube-system/login-13", "Proof: not tried", "CAP_SYS_ADMIN", "Not covered", "HTTP 403", "Plan for kubeadm",
             "The way back")  # fmt: skip
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_only_differences_are_listed_and_the_rest_is_counted() -> None:
    report = migrate_reports.report(10_000)
    listed = re.findall(r"^  [a-z-]+/[a-z]+-\d+", output_text.render(report), re.MULTILINE)
    different = {row.service for row in report.services if row.result != "same"}
    assert len(listed) == output_text.MOST_SERVICES and {name.strip() for name in listed} <= different
    assert "and 950 more that differ: all are in -o html and -o json" in output_text.render(report)
    assert " more that differ" not in output_text.render(migrate_reports.report(44))


def test_commands_are_those_of_the_platform() -> None:
    report = migrate_reports.report(1)
    text = output_text.render(report)
    assert "kubectl --namespace kube-system patch" in text and "disable-kube-proxy" not in text
    unknown = msgspec.structs.replace(report, plan=msgspec.structs.replace(report.plan, platform=""))
    assert "k3s and RKE2:\n        echo 'disable-kube-proxy" in output_text.render(unknown)


@reports
@pytest.mark.parametrize("width", [20, 40, 80, 300])
def test_lines_fit_but_for_commands(report: Report, width: int) -> None:
    commands = {line.strip() for line in output_text.render(report, width=1000).split("\n") if line.startswith(" " * 8)}
    for line in output_text.render(report, width=width).split("\n"):
        assert len(line) <= min(width, output_text.WIDTH) or line.strip() in commands, line


@reports
def test_nothing_commands_the_terminal(report: Report) -> None:
    assert not re.search("[\0-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028\ud800]", output_text.render(report))
    coloured = output_text.render(report, colours=True)
    assert "\x1b[" in coloured
    assert not re.search("[\0-\x09\x0b-\x1f\u202e]", re.sub(r"\x1b\[[0-9;]*m", "", coloured))
    assert output_text.render(report, ascii_only=True).isascii()


def test_names_are_no_markup() -> None:
    text = output_text.render(REPORTS["hostile"], width=300)
    assert "[red]a[/red]\\x1b[2J\\u202e" in text


def test_what_cannot_be_compared_is_said() -> None:
    text = output_text.render(REPORTS["not compared"])
    assert "Services: not compared" in text and "the same" not in text


PRINT = "from proxy.migrate import output_text as t; from tests import migrate_reports as m; print(t.for_standard_output(m.report(44)))"


def on_a_terminal(columns: int, **environment: str) -> str:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM", "COLUMNS")}
    child = subprocess.Popen(
        [sys.executable, "-c", PRINT], stdout=slave, stdin=slave, cwd=REPO, env=clean | {"TERM": "xterm"} | environment
    )
    os.close(slave)
    data = b""
    try:
        while got := os.read(master, 65536):
            data += got
    except OSError:  # EIO: the other side is closed
        pass
    os.close(master)
    assert child.wait(60) == 0
    return data.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("environment", "colours"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_a_terminal_is_asked_for_its_width_and_a_person_for_colours(environment: dict[str, str], colours: bool) -> None:
    text = on_a_terminal(60, **environment)
    assert ("\x1b[" in text) == colours
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).split("\n")
    assert 50 < max(len(line) for line in lines if not line.startswith(" " * 8)) <= 60


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_pipe_gets_neither_colours_nor_what_its_encoding_lacks(encoding: str) -> None:
    program = PRINT.replace("m.report(44)", "m.with_texts(m.report(1), 'grün→')")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPO, env=os.environ | {"PYTHONIOENCODING": encoding}, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"\x1b" not in done.stdout
    assert ("grün→" if encoding == "utf-8" else "gr\\xfcn\\u2192") in done.stdout.decode(encoding)


# JSON and YAML.


def valid(document: Any) -> None:
    jsonschema.validate(document, json.loads(generate_migrate.SCHEMA.read_bytes()), jsonschema.Draft202012Validator)


@reports
def test_documents_are_as_the_schema_says_and_hold_the_report(report: Report) -> None:
    document = json.loads(output_data.as_json(report))
    valid(document)
    assert yaml.safe_load(output_data.as_yaml(report)) == document
    if report is not REPORTS["hostile"]:
        assert msgspec.json.decode(output_data.as_json(report), type=Report, strict=True) == report
    assert (document["apiVersion"], document["kind"]) == ("kube-proxy-nft/migrate/v1", "MigrationReport")


def test_yaml_in_several_pieces_is_one_document() -> None:
    report = migrate_reports.report(1001, endpoints=1)
    assert msgspec.convert(yaml.load(output_data.as_yaml(report), yaml.CSafeLoader), type=Report) == report


@pytest.mark.parametrize(
    "change", [{"verdict": "perhaps"}, {"kind": "x"}, {"gaps": [{}]}, {"counts": {}}, {"node": None}]
)
def test_the_schema_refuses_what_is_wrong(change: dict[str, Any]) -> None:
    document = json.loads(output_data.as_json(REPORTS["small"]))
    with pytest.raises(jsonschema.ValidationError):
        valid(document | change)
    del document["reasons"]
    with pytest.raises(jsonschema.ValidationError, match="'reasons' is a required property"):
        valid(document)


def test_the_schema_is_current() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(generate_migrate.schema()))
    assert generate_migrate.SCHEMA.read_bytes() == generate_migrate.schema(), "run: python -m docs.generate_migrate"


# Markdown.

MARKDOWN = MarkdownIt("commonmark").enable("table")


def inline(text: str) -> list[Token]:
    return [child for token in MARKDOWN.parse(text) for child in token.children or ()]


TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from("`|\\*_[]()<>&#-+=!~:.1 "), min_size=1)


@given(TEXTS)
def test_prose_is_read_as_it_was_written(text: str) -> None:
    wanted = " ".join(text.replace("\0", "").split())
    children = inline(f"x {output_markdown.prose(wanted)}")
    assert {child.type for child in children} <= {"text", "text_special"}
    assert "".join(child.content for child in children) == f"x {wanted}".rstrip()


@given(TEXTS)
def test_code_is_read_as_it_was_written(text: str) -> None:
    wanted = " ".join(text.replace("\0", "").split())
    table = MARKDOWN.parse(f"| a | b |\n| --- | --- |\n| {output_markdown.code(wanted, in_table=True)} | c |\n")
    cells = [token for token in table if token.type == "inline"][2:]
    assert len(cells) == 2 and cells[1].content == "c"
    for children in (inline(output_markdown.code(wanted)), cells[0].children):
        assert children is not None
        [span] = children
        assert span.type == "code_inline" and span.content.strip(" ") == wanted


@reports
def test_markdown_has_no_markup_from_outside(report: Report) -> None:
    text = output_markdown.render(report)
    kinds = {token.type for token in MARKDOWN.parse(text)} | {child.type for child in inline(text)}
    assert not kinds & {"html_block", "link_open", "image", "em_open", "blockquote_open"}
    assert {t.content for t in inline(text) if t.type == "html_inline"} <= {"<br>"}
    assert not re.search("[\0-\x09\x0b-\x1f\u202e]", text)
    assert "@" not in output_markdown.prose("@all")  # which would send mail


def test_the_longest_table_is_cut_with_a_count() -> None:
    text = output_markdown.render(migrate_reports.report(10_000))
    rows = [line for line in text.split("\n") if line.startswith("| `")]
    assert len(rows) == output_markdown.MOST_ROWS
    assert "And 800 more Services that differ: `-o html` and `-o json` have all." in text
    assert len(text) < 65_536  # what GitHub takes for the text of a pull request


def test_markdown_has_the_commands_of_every_platform() -> None:
    text = output_markdown.render(REPORTS["small"])
    code = [token.content for token in MARKDOWN.parse(text) if token.type == "fence"]
    assert "echo 'disable-kube-proxy: true' >> /etc/rancher/k3s/config.yaml\n" in code
    assert "This node is run by kubeadm." in text


@pytest.mark.parametrize("verdict", VERDICTS)
def test_all_forms_say_the_verdict(verdict: Verdict) -> None:
    report = migrate_reports.report(3, verdict)
    words = {"ready": "Ready", "ready-with-changes": "Ready, with changes", "blocked": "Blocked"}[verdict]
    assert f"\n{words.upper()}\n" in output_text.render(report)
    assert f"\n**{words}**\n" in output_markdown.render(report)
