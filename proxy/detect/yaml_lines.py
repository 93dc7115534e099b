"""YAML and JSON with the line of every value, as far as they can be read. Pure.

A loader gives everything or nothing. Here, what comes before a fault of syntax is kept, and the fault has a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import yaml
from msgspec import Struct

DEPTH: Final = 100
"""Deeper nesting is a fault: no configuration has it."""
NODES: Final = 1_000_000
"""More values than that in one text are a fault. Aliases count as often as they are used."""

# libyaml's parser is twenty times as fast, and gives the same events up to the same line.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NO_TEXT: Final = re.compile(r"[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
RESTARTS: Final = 100
"""After so many documents with a fault, the rest is left."""
_DOCUMENT: Final = re.compile(r"---(\s|$)")
_FIELD: Final = re.compile(r"[A-Za-z][A-Za-z._/+-]{0,62}")
_NEVER: Final = 1 << 62  # no line: nothing after it is read
_BREAK: Final = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")


class Value(Struct):
    """`data`: None, bool, str (also what YAML takes for a number), list[Value] or dict[str, Value]."""

    data: Any
    line: int
    text_line: int = 0
    """Of a text that is a literal block (|): the line that its own first line is on. 0: its lines have no place."""
    whole: bool = True
    """False: the reader stopped inside this mapping or list, and there may be more in it."""

    def get(self, *path: str) -> Value | None:
        """What is under these keys; None when it is not there, or nothing there is a mapping."""
        found: Value | None = self
        for key in path:
            if found is None or not isinstance(found.data, dict):
                return None
            found = found.data.get(key)
        return found

    def lacks(self, *path: str) -> bool:
        """Whether there is surely nothing under these keys: not there, and not in a part that could not be read."""
        found = self
        for key in path:
            inner = found.get(key)
            if inner is None:
                return found.whole
            found = inner
        return False

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
    """is_read: nothing is hidden by it; `cause` says what it means."""

    line: int
    cause: str
    is_read: bool = False


def read_yaml(text: str, first_line: int = 1, *, one_line: bool = False) -> tuple[list[Value], list[Fault]]:
    """The documents of a text, and what is wrong with it. After a fault it goes on with the next document.

    first_line: the number of its first line, where it is part of a larger file. one_line: all of it is on that line.
    Empty documents are left out.
    """
    documents: list[Value] = []
    faults: list[Fault] = []
    strange = _NO_TEXT.search(text)
    if strange:
        line = 0 if one_line else len(_BREAK.findall(text, 0, strange.start()))
        faults.append(Fault(first_line + line, "characters that are no text"))
        text = _NO_TEXT.sub("\ufffd", text)
    # Tabs are white space in JSON and a fault in YAML.
    if text.lstrip("\ufeff \t\r\n")[:1] in ("{", "["):
        text = text.replace("\t", " ")
    start = 0
    for _ in range(RESTARTS):
        reader = _Reader(first_line, one_line)
        stopped = reader.read(text[start:] if start else text)
        documents += reader.documents
        faults += reader.faults
        if stopped is None:
            return documents, faults
        following = _next_document(text, start, max(stopped, 1))
        if following is None:
            return documents, faults
        start, lines = following
        first_line += lines
    faults.append(Fault(first_line, "more faults than are worth to be read on"))
    return documents, faults


def from_object(data: Any, depth: int = DEPTH) -> Value:
    """What a decoder of JSON gives, such as a Kubernetes client's answer, as the reader would give it, without lines."""
    if depth and isinstance(data, Mapping):
        return Value({str(key): from_object(value, depth - 1) for key, value in data.items()}, 0)
    if depth and isinstance(data, list | tuple):
        return Value([from_object(value, depth - 1) for value in data], 0)
    if data is None or isinstance(data, bool | Mapping | list | tuple):
        return Value(data if isinstance(data, bool) else None, 0)
    return Value(str(data), 0, text_line=1)


def _next_document(text: str, start: int, lines: int) -> tuple[int, int] | None:
    """Where the next document begins, `lines` lines after `start` or later, and how many lines that is."""
    for count, found in enumerate(_BREAK.finditer(text, start), 1):
        if count >= lines and _DOCUMENT.match(text, found.end()):
            return found.end(), count
    return None


class _TooMuch(Exception):
    def __init__(self, line: int, cause: str) -> None:
        self.line = line
        super().__init__(cause)


class _Open(Struct):
    """A mapping or list that is being read."""

    value: Value
    key: str | None = None
    key_line: int = 0
    merged: list[Value] = []
    """What "<<" names: it counts where the mapping itself says nothing."""

    def close(self) -> None:
        for other in self.merged:
            if isinstance(other.data, dict):
                self.value.data.update({k: v for k, v in other.data.items() if k not in self.value.data})


class _Reader:
    """Builds the values of one text, up to its end or its first fault of syntax."""

    def __init__(self, first_line: int, one_line: bool) -> None:
        self.documents: list[Value] = []
        self.faults: list[Fault] = []
        self._first, self._one_line = first_line, one_line
        self._open: list[_Open] = []
        self._anchors: dict[str, Value] = {}
        self._count = 0
        self._last: Any = None
        self._resolver = yaml.resolver.Resolver()

    def read(self, text: str) -> int | None:
        """The line, counted from 0, that it could not read; None when it read all."""
        stopped = None
        try:
            for event in yaml.parse(text, Loader=_LOADER):
                self._take(event)
                self._last = event
        except yaml.MarkedYAMLError as error:
            mark, begun = error.problem_mark or error.context_mark, error.context_mark
            stopped = min(mark.line, len(_BREAK.findall(text.rstrip()))) if mark else 0
            self._forget(mark)
            since = f" (it begins in line {self._line(begun.line)})" if begun and begun.line < stopped else ""
            context = f"{error.context}{since}: " if error.context else ""
            self._fault(stopped, f"not YAML: {context}{error.problem or 'syntax error'}")
        except _TooMuch as error:
            stopped = _NEVER
            self._fault(error.line, str(error))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            stopped = 0
            self._fault(0, f"not YAML: {type(error).__name__}")
        for opened in reversed(self._open):
            opened.value.whole = False
            opened.close()
        return stopped

    def _forget(self, fault: Any) -> None:
        """Takes the last value away, if the fault is right behind it: "a: b: c" has no value b."""
        event = self._last
        if isinstance(event, yaml.ScalarEvent) and not event.style and fault and self._open:
            end, top = cast(yaml.Mark, event.end_mark), self._open[-1]
            if (end.line, end.column) == (fault.line, fault.column) and top.value.data and top.key is None:
                if isinstance(top.value.data, list):
                    top.value.data.pop()
                else:
                    top.value.data.popitem()

    def _line(self, line: int) -> int:
        return self._first if self._one_line else self._first + line

    def _fault(self, line: int, cause: str, *, is_read: bool = False) -> None:
        self.faults.append(Fault(self._line(line), " ".join(cause.split()), is_read))

    def _take(self, event: Any) -> None:
        line = event.start_mark.line
        match event:
            case yaml.ScalarEvent():
                block = event.style == "|" and not self._one_line
                value = Value(self._scalar(event), self._line(line), self._line(line) + 1 if block else 0)
                self._put(value, event.anchor, line)
            case yaml.AliasEvent():
                self._alias(event, line)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                value = Value({} if isinstance(event, yaml.MappingStartEvent) else [], self._line(line))
                if self._open and self._open[-1].key is not None:
                    value.line = self._open[-1].key_line  # people look for the name, not for what is below it
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
            self._fault(line, "an alias of what is not there")
            known = Value(None, self._line(line))
        elif any(top.value is known for top in self._open):
            self._fault(line, "an alias of what it is within")
            known = Value(None, self._line(line))
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
            top.key_line = value.line
        else:
            key, top.key = top.key, None
            if key == "<<":
                top.merged += value.data if isinstance(value.data, list) else [value]
                return
            if key in top.value.data:
                self._fault(line, f"{field_name(key)} is given twice; the last one counts", is_read=True)
            top.value.data[key] = value


def field_name(key: str) -> str:
    """A key as it may be shown: a broken file may have a secret where a key should be."""
    return key if _FIELD.fullmatch(key) else "a field"


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
