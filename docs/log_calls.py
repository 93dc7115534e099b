"""What the code logs, read from its source: every call of structlog's in a package. Events whose names are put together at
run time are resolved by the few ways that the code has of doing so; anything else is a mistake here, or there."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

LOGGERS: Final = ("LOG", "log", "_log")
LEVELS: Final = ("debug", "info", "warning", "error")
NAMERS: Final = {"self.site.name": ("Site", "PageServer"), "self._site.name": ("Site", "PageServer")}
"""Beginnings of events' names: expressions in f-strings, and the classes whose first argument they are."""


class Call(Struct, frozen=True):
    """event: its name. fields: by name. is_open: there are others, which a mapping holds. place: path and line."""

    event: str
    level: str
    fields: frozenset[str]
    is_open: bool
    place: str


_Way = tuple[str, str]
"""A level, and the condition for it, if there is one."""


class Unresolved(ValueError):
    """An event's name is none that this module can find out. Says where."""


def calls(root: Path, packages: Iterable[str]) -> list[Call]:
    """Of all modules in these packages. Raises Unresolved."""
    sources = {
        path: path.read_text(encoding="utf-8")
        for package in packages
        for path in sorted((root / package).rglob("*.py"))
    }
    trees = {path: ast.parse(source) for path, source in sources.items()}
    everywhere = _first_texts(trees.values())
    return [
        call
        for path, tree in trees.items()
        if "get_logger" in sources[path]
        for call in _Module(tree, str(path.relative_to(root)), everywhere).calls()
    ]


class _Module:
    def __init__(self, tree: ast.Module, path: str, everywhere: dict[str, list[str]]) -> None:
        self._tree, self._path, self._everywhere = tree, path, everywhere
        self._bound = frozenset(
            keyword.arg or ""
            for node in _calls(tree)
            if isinstance(node.func, ast.Attribute) and node.func.attr == "bind" and "get_logger" in _text(node.func)
            for keyword in node.keywords
        )

    def calls(self) -> Iterator[Call]:
        for function in ast.walk(self._tree):
            if isinstance(function, ast.FunctionDef):
                aliases = dict(_aliases(function))
                for node in _calls(function):
                    for level, condition in _levels(node.func, aliases):
                        for call in self._read(node, level, function):
                            if _may_hold(condition, call.event):
                                yield call

    def _read(self, node: ast.Call, level: str, function: ast.FunctionDef) -> Iterator[Call]:
        fields = self._bound | {keyword.arg for keyword in node.keywords if keyword.arg} - {"exc_info"}
        if any(keyword.arg == "exc_info" for keyword in node.keywords):
            fields |= {"exception"}
        is_open = any(keyword.arg is None for keyword in node.keywords)
        for name in self._names(node.args[0], function):
            yield Call(name, level, frozenset(fields), is_open, f"{self._path}:{node.lineno}")

    def _names(self, given: ast.expr, function: ast.FunctionDef) -> list[str]:
        match given:
            case ast.Constant(value=str(name)):
                return [name]
            case ast.JoinedStr(values=[ast.FormattedValue(value=begin), ast.Constant(value=str(end))]):
                return [f"{name}{end}" for name in self._beginnings(begin)]
            case ast.Attribute(value=ast.Name(id=what), attr="event"):  # rule.event: of a Rule("...")
                return self._everywhere.get(what.capitalize(), [])
            case ast.Name(id=name):
                for node in ast.walk(function):
                    if isinstance(node, ast.Assign) and _text(node.targets[0]) == name:
                        return self._names(node.value, function)
                if name in [argument.arg for argument in function.args.args]:
                    here = _first_texts([self._tree])
                    return here.get(f"self.{function.name}", []) + here.get(function.name, [])
        raise Unresolved(f"{self._path}:{given.lineno}: {_text(given)}")

    def _beginnings(self, expression: ast.expr) -> list[str]:
        text = _text(expression)
        if text in NAMERS:
            return [name for namer in NAMERS[text] for name in self._everywhere.get(namer, [])]
        attribute = text.removeprefix("self._")  # self._name: what `name` is by default
        found = [
            default.value
            for function in ast.walk(self._tree)
            if isinstance(function, ast.FunctionDef) and function.name == "__init__"
            for argument, default in zip(reversed(function.args.args), reversed(function.args.defaults), strict=False)
            if argument.arg == attribute and isinstance(default, ast.Constant) and isinstance(default.value, str)
        ]
        if not found:
            raise Unresolved(f"{self._path}:{expression.lineno}: {text}")
        return found


def _first_texts(trees: Iterable[ast.AST]) -> dict[str, list[str]]:
    """By function or class: the texts that it is called with first."""
    found: dict[str, list[str]] = {}
    for tree in trees:
        for node in _calls(tree):
            match node.args:
                case [ast.Constant(value=str(text)), *_]:
                    found.setdefault(_text(node.func), []).append(text)
    return found


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _text(expression: ast.expr) -> str:
    return ast.unparse(expression)


def _level(expression: ast.expr) -> str:
    """Of LOG.info, self._log.info; '' of anything else."""
    if isinstance(expression, ast.Attribute) and expression.attr in LEVELS:
        if _text(expression.value).rpartition(".")[2] in LOGGERS:
            return expression.attr
    return ""


def _levels(expression: ast.expr, aliases: dict[str, list[_Way]]) -> list[_Way]:
    if isinstance(expression, ast.Name):
        return aliases.get(expression.id, [])
    level = _level(expression)
    return [(level, "")] if level else []


def _aliases(function: ast.FunctionDef) -> Iterator[tuple[str, list[_Way]]]:
    """log = LOG.info if ... else LOG.warning."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp):
            condition = _text(node.value.test)
            parts = ((node.value.body, condition), (node.value.orelse, f"not {condition}"))
            levels = [(level, condition) for part, condition in parts if (level := _level(part))]
            if levels:
                yield _text(node.targets[0]), levels


def _may_hold(condition: str, event: str) -> bool:
    """Where it is about the event's name, whether it holds; of others nobody knows."""
    unless, begin, name = condition.rpartition("event == ")
    return not begin or (name == repr(event)) is not (unless == "not ")
