"""Files that hold flags, or variables with flags in them: /etc/default/kube-proxy, EnvironmentFile= of systemd. Pure."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from proxy.detect import shell
from proxy.detect.evidence import Place
from proxy.detect.words import Word

_MOST_LINES: Final = 200  # of one variable
_ASSIGNMENT: Final = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def flag_words(text: str, place: Place) -> list[Word]:
    """Flags of one command over any number of lines, as microk8s keeps them. place: of the file."""
    script = Word(text.replace("\\\n", " \n").replace("\r", ""), msgspec.structs.replace(place, line=1))
    return [word for command in shell.commands(script, {}, counts_lines=True) for word in command]


def environment(text: str, place: Place) -> dict[str, Word]:
    """The variables of an environment file, as systemd.exec(5) has it: nothing in it is expanded. place: of the file."""
    found: dict[str, Word] = {}
    lines = text.replace("\r", "").split("\n")
    number = 0
    while number < len(lines):
        first, line = number, lines[number]
        number += 1
        if line.lstrip().startswith(("#", ";")):
            continue
        while _is_open(line) and number < len(lines) and number - first < _MOST_LINES:
            line = f"{line[:-1]} {lines[number]}" if line.endswith("\\") else f"{line}\n{lines[number]}"
            number += 1
        match = _ASSIGNMENT.fullmatch(line)
        if match:
            found[match[1]] = Word(_unquoted(match[2].strip()), msgspec.structs.replace(place, line=first + 1))
    return found


def _is_open(line: str) -> bool:
    """Whether the next line belongs to it: it ends in a backslash, or inside quotes."""
    if line.endswith("\\"):
        return True
    match = _ASSIGNMENT.fullmatch(line)
    value = match[2].strip() if match else ""
    return value[:1] in ('"', "'") and (len(value) == 1 or not value.endswith(value[0]))


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] in ('"', "'") and value[-1] == value[0]:
        inner = value[1:-1]
        return re.sub(r"\\([\\\"$`])", r"\1", inner) if value[0] == '"' else inner
    return value
