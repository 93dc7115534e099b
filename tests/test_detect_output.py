"""What `kube-proxy-nft detect` prints, its schema and its document."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import msgspec
import pytest
import yaml

from docs import generate_detect
from proxy.detect import arguments, report, versions
from proxy.detect.evidence import (
    ConfiguredMode,
    IpvsTable,
    Place,
    Unreadable,
)
from proxy.detect.findings import SCHEMA, Report
from proxy.detect.judge import judge

REPO = Path(__file__).parents[1]


REPORTS: list[Report] = [
    judge([]),
    judge([ConfiguredMode(place=Place("file", "a: b\n#'\"\x07\u2028é", line=7), mode="1.40", note="yes")], "1.36"),
    judge(
        [
            ConfiguredMode(place=Place("configmap", "n/m", "config.conf"), mode="ipvs", sure="likely"),
            IpvsTable(place=Place("ipvs", "netlink"), services=3, destinations=4, schedulers={"rr": 3}, kube=3),
            Unreadable(place=Place("api-server", "192.0.2.1:6443", "pods"), cause="HTTP 403: no", harmless=True),
        ]
    ),
]


@pytest.mark.parametrize("found", REPORTS)
def test_outputs_are_read_back_as_the_same_report(found: Report) -> None:
    assert msgspec.json.decode(report.as_json(found), type=Report, strict=True) == found
    assert msgspec.json.decode(report.as_line(found), type=Report, strict=True) == found
    assert report.as_line(found).count("\n") == 1
    assert msgspec.convert(yaml.safe_load(report.as_yaml(found)), type=Report, strict=True) == found
    assert found.schema == SCHEMA


def test_the_schema_is_current() -> None:
    assert generate_detect.SCHEMA.read_bytes() == report.schema(), "run: python -m docs.generate_detect"


def test_the_document_is_current() -> None:
    text = generate_detect.FILE.read_text(encoding="utf-8")
    assert text == generate_detect.current(text), "run: python -m docs.generate_detect"
    with pytest.raises(ValueError, match="no place for the table"):
        generate_detect.current("nothing")


def test_everything_is_in_the_document() -> None:
    text = generate_detect.FILE.read_text(encoding="utf-8")
    source = "".join(path.read_text() for path in (REPO / "proxy/detect").glob("*check*.py"))
    source += (REPO / "proxy/detect/judge.py").read_text()
    checks = {one or two for one, two in re.findall(r'check="([a-z-]+)"|by_row\(\s*scope, "([a-z-]+)"', source)}
    assert len(checks) > 10 and all(f"`{check}`" in text for check in checks)
    options = {action.option_strings[-1] for action in parsed_actions()} - {"--help"}
    assert all(option in text for option in options - {"--output"})
    for row in versions.IPVS + versions.UNSET:
        assert row.what in text


def parsed_actions() -> list[argparse.Action]:
    parser = arguments.add_parser(argparse.ArgumentParser().add_subparsers())
    return [action for action in parser._actions if action.option_strings]


def test_a_file_cannot_command_a_terminal() -> None:
    evidence = [
        ConfiguredMode(place=Place("file", "\033[2Ja", node="\033[2Jn"), mode="\033]0;x\007\u202eipvs"),
        ConfiguredMode(place=Place("file", "\033[2Jb"), mode="nftables", note="\033[2J"),
    ]
    found = judge(evidence, "1.36")
    assert not re.search("[\0-\x09\x0b-\x1f\u202e]", report.as_text(found))
    assert "\\x1b[2Ja" in report.as_text(found)


def test_a_port_on_which_something_else_answers() -> None:
    place = Place("port", "http://127.0.0.1:10249/proxyMode")
    other = Unreadable(place=place, cause="it answers 404, as no kube-proxy does", harmless=True)
    assert "nobody on its port" in report.as_text(judge([]))
    text = report.as_text(judge([other]))
    assert "nobody on its port" not in text and "something else answers" in text
