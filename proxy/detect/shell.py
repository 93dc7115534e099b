"""Commands of a shell script, as far as they can be told without running it. Pure.

Reads what is found around a kube-proxy: wrappers of one line, start scripts. Conditions and loops are not followed: each
command in them counts as one that may run.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from proxy.detect.evidence import Place
from proxy.detect.words import LONGEST as LONGEST_VALUE
from proxy.detect.words import Variables, Word, lines_on

LONGEST: Final = 1 << 17  # characters of a script that are looked at

_ENDS: Final = ";&|()\n"
_KEYWORDS: Final = frozenset({
    "!", "case", "declare", "do", "done", "elif", "else", "esac", "export", "fi", "for", "function", "if", "in", "local",
    "readonly", "then", "time", "until", "while", "{", "}",
})  # fmt: skip
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^{}$`\"']*))?\}")


class _Reader(Struct):
    text: str
    place: Place | None
    counts_lines: bool
    variables: dict[str, Word | None]
    line: int = 0  # counted from the script's first
    position: int = 0
    waiting_documents: list[str] = []
    assigned: set[str] = set()


def commands(script: Word, variables: Variables, *, counts_lines: bool = False) -> list[list[Word]]:
    """The simple commands in it, without redirections and without the assignments before them.

    counts_lines: its lines are lines of the file that it is in. A variable that is neither in `variables` nor set in the
    script is unknown.
    """
    reader = _Reader(script.text[:LONGEST], script.place, counts_lines, dict(variables))
    found: list[list[Word]] = []
    while reader.position < len(reader.text):
        command = _assign(reader, _command(reader))
        if command:
            found.append(command)
    return found


def _command(reader: _Reader) -> list[Word]:
    """The words up to the next separator."""
    found: list[Word] = []
    skip = False  # the word after a redirection
    while reader.position < len(reader.text):
        char = reader.text[reader.position]
        if char in " \t\r":
            reader.position += 1
        elif char == "#":
            end = reader.text.find("\n", reader.position)
            reader.position = len(reader.text) if end < 0 else end
        elif char in "<>":
            if found and found[-1].text.isdecimal() and reader.text[reader.position - 1] != " ":
                found.pop()  # the 2 of 2>
            _redirection(reader)
            skip = True
        elif char in _ENDS:
            reader.position += 1
            if char == "\n":
                _new_line(reader)
            break
        else:
            read = _word(reader)
            if skip:
                skip = False
            else:
                found += read
    return found


def _redirection(reader: _Reader) -> None:
    text, position = reader.text, reader.position
    here = text.startswith("<<", position) and not text.startswith("<<<", position)
    while position < len(text) and text[position] in "<>&-|":
        position += 1
    reader.position = position
    if here:
        named = re.compile(r"[ \t]*[\"'\\]?([A-Za-z0-9_]+)").match(text, position)
        if named:
            reader.waiting_documents.append(named[1])


def _new_line(reader: _Reader) -> None:
    reader.line += reader.counts_lines
    while reader.waiting_documents:
        end = reader.waiting_documents.pop(0)
        while reader.position < len(reader.text):
            start, stop = reader.position, reader.text.find("\n", reader.position)
            reader.position = stop + 1 if stop >= 0 else len(reader.text)
            reader.line += reader.counts_lines
            if reader.text[start : reader.position].strip() == end:
                break


def _word(reader: _Reader) -> list[Word]:
    """One word; several, or none, where a variable outside quotes falls into parts."""
    text, place = reader.text, lines_on(reader.place, reader.line)
    parts = [""]
    unknown, quoted, started = "", "", False
    while reader.position < len(text):
        char = text[reader.position]
        if not quoted and char in " \t\r" + _ENDS + "<>":
            break
        reader.position += 1
        if char == "\n":
            reader.line += reader.counts_lines
        if quoted == "'" or (quoted and char not in '"\\$`'):
            quoted, parts[-1] = ("", parts[-1]) if char == quoted else (quoted, parts[-1] + char)
        elif char in "\"'":
            quoted, started = "" if quoted else char, True
        elif char == "\\":
            parts[-1] += _escaped(reader, bool(quoted))
        elif char in "$`":
            value = _substitution(reader, char)
            unknown = value.unknown or unknown
            if parts == [""] and value.place is not None:
                place = value.place
            if quoted or value.unknown:
                parts[-1] += value.text
            else:
                fields = re.split(r"\s+", value.text)
                parts[-1] += fields[0]
                parts += fields[1:]
        else:
            parts[-1] += char
    return [Word(part, place, unknown) for part in parts if part or started or unknown]


def _escaped(reader: _Reader, quoted: bool) -> str:
    """What a backslash and the character after it are."""
    following = reader.text[reader.position : reader.position + 1]
    reader.position += len(following)
    if following == "\n":
        reader.line += reader.counts_lines
        return ""
    return following if not quoted or following in ('"', "\\", "$", "`") else "\\" + following


def _substitution(reader: _Reader, char: str) -> Word:
    """The value of what begins with this character. A command's output is not known."""
    text, position = reader.text, reader.position
    following = text[position : position + 1]
    if char == "`" or following == "(":
        reader.position = _end_of_command(text, position, char)
        reader.line += text.count("\n", position, reader.position) if reader.counts_lines else 0
        return Word("$(...)", unknown="a command")
    braced, plain = _BRACED.match(text, position), _NAME.match(text, position)
    found = braced or plain
    if found:
        reader.position = found.end()
        name, default = (braced[1], braced[2]) if braced else (found[0], None)
        if name not in reader.variables and default is not None:
            return Word(default)
        return reader.variables.get(name) or Word(f"${name}", unknown=name)
    if following == "{":
        end = text.find("}", position)
        reader.position = len(text) if end < 0 else end + 1
        return Word("${...}", unknown="a variable")
    if following and (following in "@*" or following.isdecimal()):
        reader.position += 1
        return Word(f"${following}", unknown=following)
    return Word(char)


def _end_of_command(text: str, position: int, char: str) -> int:
    if char == "`":
        end = text.find("`", position)
        return len(text) if end < 0 else end + 1
    depth, end = 1, position + 1
    while end < len(text) and depth:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return end


def _assign(reader: _Reader, command: list[Word]) -> list[Word]:
    """Takes the assignments from its beginning. A variable that is set to two things is not known."""
    rest = list(command)
    while rest and rest[0].text in _KEYWORDS:
        rest.pop(0)
    while rest and (found := _ASSIGNMENT.fullmatch(rest[0].text)):
        name, word = found[1], rest.pop(0)
        value = None if word.unknown or len(found[2]) > LONGEST_VALUE else Word(found[2], word.place)
        before = reader.variables.get(name)
        if name in reader.assigned and (before is None or value is None or before.text != value.text):
            value = None
        reader.assigned.add(name)
        reader.variables[name] = value
    return rest
