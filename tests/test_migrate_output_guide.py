"""docs/migrate.md: its objects are valid, its options exist, its links lead somewhere, its words are those of the report."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import kubernetes_validate
import yaml

from proxy.migrate import arguments, output_words
from proxy.migrate.report import EXIT_CODES

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "migrate.md").read_text(encoding="utf-8")


def test_its_objects_are_valid() -> None:
    objects = [o for block in re.findall("(?s)```yaml\n(.*?)```", TEXT) for o in yaml.safe_load_all(block)]
    assert [o["kind"] for o in objects] == ["Pod", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"]
    for one in objects:
        kubernetes_validate.validate(one, "1.36", strict=True)


def test_its_options_are_all_that_there_are() -> None:
    parsers = arguments.add_parser(argparse.ArgumentParser().add_subparsers())
    there = {option for parser in parsers for action in parser._actions for option in action.option_strings}
    table = TEXT.partition("| option |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(-[a-z-]+)", table)) == {
        option for option in there if option not in ("-h", "--help", "--dry-run", "--output", "--log-level")
    }
    used = re.findall(r"kube-proxy-nft migrate (.*)", TEXT)
    assert used and {option for line in used for option in re.findall(r"(?<= )-[-a-z]+", line)} <= there


def test_its_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)", TEXT)
    assert "migrate-checks.md" in targets and all((DOCS / target).exists() for target in targets)


def test_its_words_are_those_of_the_report() -> None:
    for result, words in output_words.RESULTS.items():
        assert f"| {words} | `{result}` |" in TEXT
    for verdict, words in output_words.VERDICTS.items():
        assert f"| {words.lower()} | {EXIT_CODES[verdict]} |" in TEXT
    assert re.findall(r"^\| (blocker|change|notice|info) \|", TEXT, re.MULTILINE) == list(output_words.SEVERITIES)
