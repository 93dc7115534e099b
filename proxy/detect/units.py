"""systemd services that start a kube-proxy: systemd.service(5), systemd.exec(5). Pure; a Machine reads environment files.

A service is its unit file and its drop-ins in the order in which systemd applies them.
"""

from __future__ import annotations

import bisect
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from proxy.detect.evidence import Evidence, Place, Unreadable
from proxy.detect.flag_files import environment
from proxy.detect.launch import Launch, in_script, launches
from proxy.detect.started import Machine, read_launch, reason, remedy_for
from proxy.detect.text import decode
from proxy.detect.words import Word

_SECTION: Final = re.compile(r"\[(.+)\]\s*")
_REFERENCE: Final = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")  # without braces it is a word of its own
_ALONE: Final = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_PREFIXES: Final = "@-:+!|"


class Setting(Struct, frozen=True):
    """One line of a unit file, continued lines joined. starts: the offset in `value` at which each of its lines begins."""

    section: str
    name: str
    value: str
    place: Place
    starts: tuple[int, ...] = (0,)

    def place_of(self, offset: int) -> Place:
        number = bisect.bisect_right(self.starts, offset) - 1
        return msgspec.structs.replace(self.place, line=self.place.line + max(number, 0))


def parse(text: str, place: Place) -> list[Setting]:
    """place: of the file."""
    found: list[Setting] = []
    section = ""
    lines = text.replace("\r", "").split("\n")
    number = 0
    while number < len(lines):
        line, first = lines[number].strip(), number
        number += 1
        header = _SECTION.fullmatch(line)
        if header:
            section = header[1]
        if header or not line or line.startswith(("#", ";")):
            continue
        parts, starts = [line], [0]
        while parts[-1].endswith("\\") and number < len(lines):
            parts[-1] = parts[-1][:-1] + " "
            following = lines[number].strip()
            number += 1
            # Comments may stand between continued lines.
            parts.append("\\" if following.startswith(("#", ";")) else following)
            starts.append(starts[-1] + len(parts[-2]))
        name, equals, _ = "".join(parts).partition("=")
        if equals:
            value = "".join(parts)[len(name) + 1 :]
            offset = len(name) + 1 + len(value) - len(value.lstrip())
            at = msgspec.structs.replace(place, line=first + 1)
            shifted = tuple(start - offset for start in starts)
            found.append(Setting(section, name.strip(), value.strip(), at, shifted))
    return found


def is_unit(text: str) -> bool:
    return re.search(r"^\[(Unit|Service)\]\s*$", text, re.MULTILINE) is not None


def is_installable(settings: Sequence[Setting]) -> bool:
    """Whether it can be enabled; otherwise something else starts it."""
    return any(s.section == "Install" and s.name in ("WantedBy", "RequiredBy", "UpheldBy") for s in settings)


class Service(Struct):
    """What a service starts of our programs, each with its place, and what of it could not be read."""

    launches: list[tuple[Launch, Place]]
    unread: list[Evidence]


def service(settings: Sequence[Setting], place: Place, machine: Machine | None) -> Service:
    """place: of the unit; its `name` is the unit's path."""
    commands = _in_force(settings, "ExecStart")
    variables, hidden, unread = _variables(settings, place, machine)
    found = [
        (launch, msgspec.structs.replace(command.place, part="ExecStart"))
        for command in commands
        for launch in _launches(command, variables, hidden, machine)
    ]
    if not found and commands and "/kube-proxy." in f"/{place.name}":
        at = msgspec.structs.replace(commands[-1].place, part="ExecStart")
        cause = "what it starts cannot be understood"
        unread = [Unreadable(place=at, cause=cause, remedy="see the command line of the running process")]
    elif not found:
        unread = []
    return Service(found, unread)


def read(settings: Sequence[Setting], place: Place, machine: Machine | None) -> list[Evidence]:
    """The evidence of a service; [] if it starts no kube-proxy, nor what has one."""
    found = service(settings, place, machine)
    return [*(e for launch, at in found.launches for e in read_launch(launch, at, machine)), *found.unread]


def _in_force(settings: Sequence[Setting], name: str) -> list[Setting]:
    """Those of a list that count: an empty one takes all before it away."""
    found: list[Setting] = []
    for setting in settings:
        if setting.section == "Service" and setting.name == name:
            found = [*found, setting] if setting.value else []
    return found


def _launches(command: Setting, variables: dict[str, Word], hidden: bool, machine: Machine | None) -> list[Launch]:
    words = _words(command, variables, hidden)
    found = launches(words, variables)
    if not found and words and machine is not None and words[0].text.startswith("/"):
        return list(_script(words[0].text, variables, command.place.node, machine))
    return found


def _script(path: str, variables: dict[str, Word], node: str, machine: Machine) -> Iterator[Launch]:
    """A start script, if this is one."""
    try:
        data = machine.read(path)
    except OSError:
        return
    if data.startswith(b"#!"):
        script = Word(decode(data)[0], Place("file", path, line=1, node=node))
        yield from in_script(script, variables, counts_lines=True)


def _words(command: Setting, variables: dict[str, Word], hidden: bool) -> list[Word]:
    """The words of a command line. hidden: a variable that is not there may be one that cannot be seen."""
    found: list[Word] = []
    for number, (text, offset, quoted) in enumerate(_split(command.value)):
        place = msgspec.structs.replace(command.place_of(offset), part="ExecStart")
        if number == 0:
            text = text.lstrip(_PREFIXES)
        alone = _ALONE.fullmatch(text)
        if alone and not quoted:
            value = variables.get(alone[1])
            if value is not None:
                found += [Word(part, value.place, value.unknown) for part in value.text.split()]
            elif hidden:
                found.append(Word(text, place, alone[1]))
            continue
        found.append(_expanded(text, place, variables, hidden))
    return found


def _expanded(text: str, place: Place, variables: dict[str, Word], hidden: bool) -> Word:
    unknown, where = "", place

    def value(match: re.Match[str]) -> str:
        nonlocal unknown, where
        name = match[1]
        if name is None:
            return "$"
        known = variables.get(name)
        if known is None:
            unknown = name if hidden else unknown
            return match[0] if hidden else ""
        where = known.place or where
        return known.text

    return Word(_REFERENCE.sub(value, text).replace("%%", "%"), where, unknown)


def _split(value: str) -> list[tuple[str, int, bool]]:
    """Words with their offset, and whether they are quoted. A quote that is not closed goes to the end."""
    found: list[tuple[str, int, bool]] = []
    pattern = re.compile(r"\s*((?:\"(?:\\.|[^\"\\])*(?:\"|$)|'(?:\\.|[^'\\])*(?:'|$)|\\.|[^\s\"'\\]|\\$)+)", re.DOTALL)
    for match in pattern.finditer(value):
        raw = match[1]
        pieces = re.findall(
            r"\"((?:\\.|[^\"\\])*)(?:\"|$)|'((?:\\.|[^'\\])*)(?:'|$)|(\\.|[^\"'\\]|\\$)", raw, re.DOTALL
        )
        text = "".join(_unescaped("".join(piece)) for piece in pieces)
        found.append((text, match.start(1), raw[0] in "\"'"))
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t", "s": " "}.get(m[1], m[1]), text, flags=re.DOTALL)


def _variables(
    settings: Sequence[Setting], place: Place, machine: Machine | None
) -> tuple[dict[str, Word], bool, list[Evidence]]:
    """The variables; whether there may be more that cannot be seen; and what could not be read."""
    found: dict[str, Word] = {}
    hidden, unread = False, list[Evidence]()
    for setting in _in_force(settings, "Environment"):
        for text, offset, _ in _split(setting.value):
            name, equals, value = text.partition("=")
            if equals:
                at = msgspec.structs.replace(setting.place_of(offset), part="Environment")
                found[name] = Word(value, at)
    for setting in _in_force(settings, "EnvironmentFile"):
        optional, path = setting.value.startswith("-"), setting.value.lstrip("-").strip("\"'")
        path = path.replace("%N", posixpath.basename(place.name).removesuffix(".service")).replace("%%", "%")
        at = Place("file", path, node=place.node)
        if machine is None:
            hidden = True
            continue
        try:
            text, _ = decode(machine.read(path))
        except FileNotFoundError:
            if not optional:
                cause = (
                    f"EnvironmentFile of {setting.place.name} names it, and it is not there: the service does not start"
                )
                unread.append(Unreadable(place=at, cause=cause, remedy="see why it is missing"))
        except OSError as error:
            hidden = True
            cause = f"EnvironmentFile of {setting.place.name} names it: {reason(error)}"
            unread.append(Unreadable(place=at, cause=cause, remedy=remedy_for(error)))
        else:
            found |= environment(text, at)
    return found, hidden, unread
