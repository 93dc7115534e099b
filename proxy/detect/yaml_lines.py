"""YAML and JSON with the line of every value, as far as they can be read. Pure.

A loader gives everything or nothing. Here, what comes before a fault of syntax is kept, and the fault has a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml
from msgspec import Struct

DEPTH: Final = 100
"""Deeper nesting is a fault: no configuration has it."""
NODES: Final = 200_000
"""More values than that in one text are a fault. Aliases count as often as they are used."""


class Value(Struct):
    """`data`: None, bool, str (also what YAML takes for a number), list[Value] or dict[str, Value]."""

    data: Any
    line: int

    def get(self, *path: str) -> Value | None:
        """What is under these keys; None when it is not there, or nothing there is a mapping."""
        found: Value | None = self
        for key in path:
            if found is None or not isinstance(found.data, dict):
                return None
            found = found.data.get(key)
        return found

    def text(self, *path: str) -> str:
        """The text under these keys; '' when it is not there, empty, or no text."""
        found = self.get(*path)
        if found is None or not isinstance(found.data, bool | str):
            return ""
        return found.data if isinstance(found.data, str) else str(found.data).lower()

    def items(self, *path: str) -> list[Value]:
        """The list under these keys; [] when there is none."""
        found = self.get(*path)
        return found.data if found is not None and isinstance(found.data, list) else []

    def fields(self, *path: str) -> dict[str, Value]:
        """The mapping under these keys; {} when there is none."""
        found = self.get(*path)
        return found.data if found is not None and isinstance(found.data, dict) else {}


class Fault(Struct, frozen=True):
    line: int
    cause: str


def read_yaml(text: str, first_line: int = 1) -> tuple[list[Value], list[Fault]]:
    """The documents of a text, and what is wrong with it. `first_line`: the number of its first line, where it is part
    of a larger file. Empty documents are left out."""
    reader = _Reader(first_line)
    try:
        for event in _events(text):
            reader.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reader.fault(mark.line if mark else 0, f"not YAML: {error.problem or error.context or 'syntax error'}")
    except yaml.YAMLError as error:  # bytes that are no text
        reader.fault(0, f"not YAML: {' '.join(str(error).split())}")
    except _TooMuch as error:
        reader.fault(error.line, str(error))
    except (ValueError, RecursionError) as error:
        reader.fault(0, f"not YAML: {error}")
    reader.finish()
    return reader.documents, reader.faults


def _events(text: str) -> Iterator[Any]:
    # Tabs are white space in JSON and a fault in YAML.
    if text.lstrip()[:1] in ("{", "["):
        text = text.replace("\t", " ")
    yield from yaml.parse(text, Loader=yaml.SafeLoader)


class _TooMuch(Exception):
    def __init__(self, line: int, cause: str) -> None:
        self.line = line
        super().__init__(cause)


class _Open(Struct):
    """A mapping or list that is being read."""

    value: Value
    key: str | None = None
    merged: list[Value] = []
    """What "<<" names: it counts where the mapping itself says nothing."""

    def close(self) -> None:
        for other in self.merged:
            if isinstance(other.data, dict):
                self.value.data.update({k: v for k, v in other.data.items() if k not in self.value.data})


class _Reader:
    """Builds values from the parser's events."""

    def __init__(self, first_line: int) -> None:
        self.documents: list[Value] = []
        self.faults: list[Fault] = []
        self._first = first_line
        self._open: list[_Open] = []
        self._anchors: dict[str, Value] = {}
        self._count = 0
        self._resolver = yaml.resolver.Resolver()

    def fault(self, line: int, cause: str) -> None:
        self.faults.append(Fault(line + self._first, " ".join(cause.split())))

    def finish(self) -> None:
        """The text is over, or cannot be read any further."""
        while self._open:
            self._open.pop().close()

    def take(self, event: Any) -> None:
        line = event.start_mark.line
        match event:
            case yaml.ScalarEvent():
                self._put(Value(self._scalar(event), line + self._first), event.anchor, line)
            case yaml.AliasEvent():
                self._alias(event, line)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                value = Value({} if isinstance(event, yaml.MappingStartEvent) else [], line + self._first)
                self._put(value, event.anchor, line)
                self._open.append(_Open(value))
                if len(self._open) > DEPTH:
                    raise _TooMuch(line, "nested too deeply")
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._open.pop().close()
            case yaml.DocumentStartEvent():
                self._anchors = {}
            case _:
                pass

    def _scalar(self, event: Any) -> bool | str | None:
        if event.tag not in (None, "!"):
            tag = event.tag
        else:
            tag = self._resolver.resolve(yaml.ScalarNode, event.value, event.implicit)  # type: ignore[no-untyped-call]
        if tag == "tag:yaml.org,2002:null":
            return None
        if tag == "tag:yaml.org,2002:bool":
            return bool(event.value.lower() in ("true", "yes", "on", "y"))
        return str(event.value)

    def _alias(self, event: Any, line: int) -> None:
        known = self._anchors.get(event.anchor)
        if known is None:
            self.fault(line, f"unknown alias *{event.anchor}")
            known = Value(None, line + self._first)
        self._count += _size(known, NODES)
        self._put(known, None, line)

    def _put(self, value: Value, anchor: str | None, line: int) -> None:
        self._count += 1
        if self._count > NODES:
            raise _TooMuch(line, "more values than any configuration has")
        if anchor:
            self._anchors[anchor] = value
        if not self._open:
            if value.data is not None:
                self.documents.append(value)
            return
        top = self._open[-1]
        if isinstance(top.value.data, list):
            top.value.data.append(value)
        elif top.key is None:
            # A key that is no scalar is legal YAML, and means nothing in a configuration.
            top.key = str(value.data) if not isinstance(value.data, list | dict) else "?"
        else:
            key, top.key = top.key, None
            if key == "<<":
                top.merged += value.data if isinstance(value.data, list) else [value]
                return
            if key in top.value.data:
                self.fault(value.line - self._first, f"{key} is given twice; the last one counts")
            top.value.data[key] = value


def _size(value: Value, limit: int) -> int:
    """How many values it holds, or more than `limit`."""
    count, waiting = 0, [value]
    while waiting and count <= limit:
        found = waiting.pop()
        count += 1
        if isinstance(found.data, list):
            waiting += found.data
        elif isinstance(found.data, dict):
            waiting += found.data.values()
    return count
