"""What happens to a stand-in, one thing a line: [at SECONDS] METHOD [VALUE...] [NAME=VALUE...]

    fail 429 kind=Service times=3 retry_after=1
    at 5 cut_watches EndpointSlice reset=true
    at 10 put more.yaml
    at 20 heal

Methods are FakeApi's; `put` takes files. Values are YAML. Empty lines and those that begin with '#' say nothing.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from integration.apiserver.load import load
from integration.apiserver.mischief import Mischief
from integration.apiserver.server import FakeApi

METHODS = {name for name, _ in inspect.getmembers(Mischief, inspect.isfunction) if not name.startswith("_")}
METHODS |= {"compact", "delete", "put", "restart", "start", "stop"}
METHODS -= {"inject"}  # takes bytes, which a line of a script has none of


class ScriptError(Exception):
    """A line that cannot be read or done; the message says which, and why."""


@dataclass
class Step:
    line: str
    after: float  # seconds since the script began
    method: str
    values: list[Any] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)


def read(lines: Iterable[str]) -> Iterator[Step]:
    """Raises ScriptError for a line that says nothing that could be done."""
    for line in map(str.strip, lines):
        if not line or line.startswith("#"):
            continue
        try:
            words = shlex.split(line)
            after = float(words[1]) if words[0] == "at" else 0.0
            method, *rest = words[2:] if words[0] == "at" else words
        except (ValueError, IndexError) as e:
            raise ScriptError(f"{line}: {e}") from None
        if method not in METHODS:
            raise ScriptError(f"{line}: there is no {method!r}; there are: {', '.join(sorted(METHODS))}")
        step = Step(line, after, method)
        for word in rest:
            name, equals, value = word.partition("=")
            if equals:
                step.names[name] = _value(value)
            else:
                step.values.append(_value(word))
        yield step


def _value(text: str) -> Any:
    return float(text) if text == "inf" else yaml.safe_load(text)


def do(api: FakeApi, step: Step) -> None:
    """Raises ScriptError when the method does not take it."""
    try:
        if step.method == "put":
            api.put_all(load(Path(str(value)) for value in step.values))
        else:
            method: Callable[..., object] = getattr(api, step.method)
            method(*step.values, **step.names)
    except (TypeError, KeyError, OSError, yaml.YAMLError) as e:
        raise ScriptError(f"{step.line}: {e}") from None


def run(api: FakeApi, steps: Iterable[Step], sleep: Callable[[float], object], clock: Callable[[], float]) -> None:
    """Do them all, each when its time has come; in the order of the lines."""
    began = clock()
    for step in steps:
        wait = began + step.after - clock()
        if wait > 0:
            sleep(wait)
        do(api, step)
