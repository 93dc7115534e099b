"""From the bytes of one manifest file to the objects in it. Pure: no files, no logs.

YAML is read as kubectl reads it: YAML 1.1 without timestamps and base 60 numbers.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import yaml
from msgspec import Struct

from proxy import model

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML built without libyaml: the same, slower
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

Key = tuple[str, str, str]
"""Names an object: kind, namespace ('' for Node and ServiceCIDR), name."""

MAX_BYTES: Final = 32 * 1024 * 1024
# A file without aliases has fewer nodes than bytes; a few hundred bytes of nested aliases can stand for billions.
MAX_NODES_WITH_ALIASES: Final = 1_000_000

_SUFFIXES: Final = (".yaml", ".yml", ".json")
_MEND: Final = "mend the file; its last good objects stay in use until then"

_KINDS: Final = {(version, kind): kind for kind, version in model.API_VERSIONS.items()}
# What an item of the list is when the item does not say so itself (the API leaves it out in typed lists).
_LISTS: Final[dict[tuple[str, str], tuple[str | None, str | None]]] = {
    ("v1", "List"): (None, None),
    **{(version, kind + "List"): (version, kind) for kind, version in model.API_VERSIONS.items()},
}


class Broken(Exception):
    """A file of which nothing can be used: `cause` says why and, for bad syntax, where; `remedy` what to do."""

    def __init__(self, cause: str, remedy: str = _MEND) -> None:
        self.cause, self.remedy = cause, remedy
        super().__init__(f"{cause} ({remedy})")


class Bad(Struct, frozen=True):
    """One part of a file that cannot be used while the rest can.

    `what` is for people ("Service default/web", "document 2"); `key` is None if the part does not name its object.
    """

    key: Key | None
    what: str
    reason: str


class Parsed(Struct):
    """What a file holds."""

    objects: dict[Key, model.KubeObject]
    """In the file's order; of two with one key, the first."""
    bad: list[Bad]
    twice: list[Key]
    """Objects that were found again after their first occurrence."""
    ignored: set[str]
    """'apps/v1 Deployment': kinds in the file that are of no concern to a Service proxy."""
    empty: bool
    """Nothing but blanks, comments and separators."""


def is_manifest(name: str) -> bool:
    """Does a file of this name count? Not if hidden, or an editor's backup or swap file, or of another type."""
    return name.endswith(_SUFFIXES) and not name.startswith(".")


def key_of(obj: model.KubeObject) -> Key:
    return model.kind_of(obj), obj.metadata.namespace, obj.metadata.name


def describe(key: Key) -> str:
    """'Service default/web', 'Node node-1'."""
    kind, namespace, name = key
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def parse(name: str, data: bytes) -> Parsed:
    """Read the file called `name` with the content `data`. Raises Broken, and nothing else."""
    parsed = Parsed(objects={}, bad=[], twice=[], ignored=set(), empty=True)
    try:
        for number, document in enumerate(_documents(name, data), start=1):
            if document is not None:
                parsed.empty = False
                _read(document, f"document {number}", (None, None), parsed)
    except Broken:
        raise
    except RecursionError:
        raise Broken("nested too deeply") from None
    except MemoryError:
        raise Broken("needs more memory than there is") from None
    except Exception as e:  # PyYAML lets through whatever int() and the like raise for a wrong !!tag
        raise Broken(f"a value does not fit its type: {type(e).__name__}: {e}") from None
    return parsed


def _documents(name: str, data: bytes) -> Iterable[Any]:
    is_json = name.endswith(".json")
    if is_json or data[:1] == b"{":  # JSON in a .yaml file is YAML too, but a hundred times slower when read as such
        try:
            return [msgspec.json.decode(data.removeprefix(codecs.BOM_UTF8))] if data.strip() else []
        except msgspec.DecodeError as e:
            if is_json:
                raise _json_error(data, e) from None
    return _yaml_documents(data)


def _json_error(data: bytes, error: msgspec.DecodeError) -> Broken:
    try:
        data.decode()
    except UnicodeDecodeError as e:
        return Broken(f"{_position(data, e.start)}: not UTF-8: {e.reason}")
    reason, _, offset = str(error).partition(" (byte ")
    return Broken(f"{_position(data, int(offset[:-1]) if offset else len(data))}: {reason}")


def _position(data: bytes, offset: int) -> str:
    before = data[:offset]
    line, column = before.count(b"\n") + 1, offset - before.rfind(b"\n")
    return f"line {line}, column {column}"


class _Loader(_SafeLoader):
    """Resolves plain scalars as kubectl does: 2026-01-01T00:00:00Z and 1:2:3:4:5:6:7:8 are strings."""


_DROPPED_TAGS = {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value"}
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, re.compile(rf"(?!.*:)(?:{pattern.pattern})", pattern.flags))
        for tag, pattern in resolvers
        if tag not in _DROPPED_TAGS
    ]
    for first, resolvers in _SafeLoader.yaml_implicit_resolvers.items()
}


def _yaml_documents(data: bytes) -> Iterator[Any]:
    may_have_aliases = b"&" in data and b"*" in data
    try:
        loader = _Loader(data)
        try:
            while loader.check_node():
                node = loader.get_node()
                if may_have_aliases:
                    _limit_aliases(node)
                yield loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise Broken(where + (e.problem or e.context or "not YAML")) from None
    except yaml.reader.ReaderError as e:
        raise Broken(f"{_position(data, e.position)}: {e.reason}") from None


def _limit_aliases(root: Any) -> None:
    sizes: dict[int, int] = {}  # by id of node; 0: begun, not yet known

    def size(node: Any) -> int:
        known = sizes.get(id(node))
        if known is None:
            sizes[id(node)] = 0
            if isinstance(node, yaml.MappingNode):
                known = 1 + sum(size(key) + size(value) for key, value in node.value)
            elif isinstance(node, yaml.SequenceNode):
                known = 1 + sum(size(item) for item in node.value)
            else:
                known = 1
            sizes[id(node)] = known
        elif known == 0:
            raise Broken(f"line {node.start_mark.line + 1}: an alias stands inside what it stands for")
        return known

    if size(root) > MAX_NODES_WITH_ALIASES:
        raise Broken(f"its aliases stand for more than {MAX_NODES_WITH_ALIASES} values", "write fewer aliases")


def _read(data: Any, where: str, default: tuple[str | None, str | None], into: Parsed) -> None:
    if not isinstance(data, dict):
        into.bad.append(Bad(None, where, f"a Kubernetes object is a mapping, this is of type {type(data).__name__}"))
        return
    version, kind = data.get("apiVersion", default[0]), data.get("kind", default[1])
    if not (version and kind and isinstance(version, str) and isinstance(kind, str)):
        into.bad.append(Bad(None, where, "apiVersion or kind is missing"))
    elif (version, kind) in _LISTS:
        items = data.get("items")
        if not isinstance(items, list | None):
            into.bad.append(Bad(None, where, f"{kind}.items is no list"))
            return
        for index, item in enumerate(items or ()):
            _read(item, f"{where}, items[{index}]", _LISTS[version, kind], into)
    elif (version, kind) in _KINDS:
        _read_object(kind, data, where, into)
    else:
        into.ignored.add(f"{version} {kind}")


def _read_object(kind: str, data: dict[str, Any], where: str, into: Parsed) -> None:
    try:
        obj = model.convert(kind, data)
    except model.BadObject as e:
        named = _named(kind, data)
        into.bad.append(Bad(named, describe(named) if named else f"{kind} in {where}", e.reason))
        return
    key = key_of(obj)
    if key in into.objects:
        into.twice.append(key)
    else:
        into.objects[key] = obj


def _named(kind: str, data: dict[str, Any]) -> Key | None:
    """Which object a bad one is meant to be, if its name is in order."""
    meta = data.get("metadata")
    name, namespace = (meta.get("name"), meta.get("namespace")) if isinstance(meta, dict) else (None, None)
    if not (name and isinstance(name, str) and isinstance(namespace, str | None)):
        return None
    return kind, namespace or ("default" if kind in (model.SERVICE, model.ENDPOINT_SLICE) else ""), name
