"""docs/commands.md has every command and option, and documents refer to what there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs import generate_commands

REPO = Path(__file__).parents[1]
DOCUMENTS = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]
TEXT = generate_commands.FILE.read_text(encoding="utf-8")


def test_the_tables_are_current() -> None:
    assert generate_commands.current(TEXT) == TEXT, "run: python -m docs.generate_commands"


def test_every_command_and_option_is_in_it() -> None:
    commands = list(generate_commands.commands())
    named = {command.prog.split()[-1] for command in commands}
    assert {"run", "render", "cleanup", "status", "trace", "migrate", "collect"} <= named
    for command in commands:
        _, found, section = TEXT.partition(f"## {command.prog}\n")
        assert found
        section = section.partition("\n## ")[0]
        for action in generate_commands.options(command):
            assert all(f"`{name}" in section for name in action.option_strings)
            assert action.help, (command.prog, action)


def anchors(document: Path) -> set[str]:
    """As they are made of headings."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(document: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:")):
            yield target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in links(document):
        file, _, anchor = target.partition("#")
        to = document.parent / file if file else document
        assert to.exists(), target
        assert not anchor or anchor in anchors(to), target
