"""The words of command lines, with what is known of them: where they are written, and which variables they hold. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from proxy.detect.evidence import Place


class Word(Struct, frozen=True):
    """place: where it is written, if that is not where its command is. unknown: the variable in it whose value is not
    known, '' if there is none; `text` has its name then."""

    text: str
    place: Place | None = None
    unknown: str = ""


Variables = Mapping[str, Word | None]
"""Values by name; None: there is one, and it cannot be seen from here."""

_REFERENCE: Final = re.compile(r"\$\$|\$\(([A-Za-z0-9_.-]+)\)")

LONGEST: Final = 1 << 16
"""A value that is longer is not known: variables that hold each other can double a text again and again."""


def words(texts: Iterable[str]) -> list[Word]:
    return [Word(text) for text in texts]


def lines_on(place: Place | None, lines: int) -> Place | None:
    """So many lines further down."""
    return msgspec.structs.replace(place, line=place.line + lines) if place is not None and place.line else place


def references(text: str) -> list[str]:
    """The names in $(NAME)."""
    return [found[1] for found in _REFERENCE.finditer(text) if found[1]]


def expand(word: Word, variables: Variables) -> Word:
    """A container's `command`, `args` and `env`: $(NAME) is the variable's value, $$ is one $. What is not defined
    stays."""
    unknown = word.unknown

    def value(found: re.Match[str]) -> str:
        nonlocal unknown
        name = found[1]
        if name is None:
            return "$"
        if name not in variables:
            return found[0]
        known = variables[name]
        if known is None or known.unknown:
            unknown = name
            return found[0]
        return known.text

    expanded = _REFERENCE.sub(value, word.text)
    return Word(expanded, word.place, unknown) if len(expanded) <= LONGEST else Word("", word.place, "a long text")
