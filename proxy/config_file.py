"""From a configuration file's bytes, YAML or JSON, to its fields by their dotted paths: what they mean is not known here."""

from __future__ import annotations

import difflib
import json
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from proxy import config_values as values
from proxy.errors import ConfigError

API_VERSION: Final = "kubeproxy.config.k8s.io/v1alpha1"
KIND: Final = "KubeProxyConfiguration"

Note = tuple[str, str]
"""A field's full dotted path, and what is to be said about it."""


def read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as e:
        raise ConfigError(path, f"cannot be read: {e.strerror}", "check the path and its permissions") from None


def parse(data: bytes, source: str) -> tuple[dict[Any, Any], list[Note]]:
    """The one document, which is a KubeProxyConfiguration, and its keys that are there twice. `source` is what errors
    call the file. Raises ConfigError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise ConfigError(source, f"is not UTF-8 text (byte {e.start})", "save it as UTF-8") from None
    documents, repeated = _documents(source, text)
    documents = [document for document in documents if document is not None]
    if not documents:
        raise ConfigError(source, "is empty", f"it must hold a {KIND} ({API_VERSION})")
    if len(documents) > 1:
        raise ConfigError(
            source, f"holds {len(documents)} YAML documents", f"keep only the {KIND}, without '---' between documents"
        )
    if not isinstance(documents[0], dict):
        raise ConfigError(source, f"holds {values.kind_of(documents[0])}, not a mapping", f"it must hold a {KIND}")
    _check_kind(source, documents[0])
    return documents[0], repeated


class Leaves:
    """The fields of a document that have a value, the unknown ones, and what is no mapping and should be one."""

    def __init__(self, data: dict[Any, Any], fields: Iterable[str], sections: Iterable[str]) -> None:
        self.found: list[tuple[str, Any]] = []
        self.unknown: list[Note] = []
        self.faults: list[str] = []
        self._fields, self._sections = frozenset(fields), frozenset(sections)
        self._walk(data, "", ("apiVersion", "kind"))

    def _walk(self, data: dict[Any, Any], prefix: str, skipped: Container[Any] = ()) -> None:
        for key, value in data.items():
            name = f"{prefix}{key}"
            if key in skipped:
                continue
            if name not in self._fields and name not in self._sections:
                close = difflib.get_close_matches(name, [*self._fields, *self._sections], n=1, cutoff=0.8)
                self.unknown.append((name, "unknown field" + (f"; did you mean {close[0]}?" if close else "")))
            elif value is None:
                continue
            elif name in self._fields:
                self.found.append((name, value))
            elif isinstance(value, dict):
                self._walk(value, f"{name}.")
            else:
                self.faults.append(f"{name} is {values.show(value)}: must be a mapping of fields")


class _Loader(yaml.SafeLoader):
    """SafeLoader that remembers keys which a mapping has twice: YAML forbids them, PyYAML silently takes the last."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.repeated: list[Note] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                line = key.start_mark.line + 1
                self.repeated.append((str(key.value), f"given twice (line {line}); the last one counts"))
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _documents(source: str, text: str) -> tuple[list[Any], list[Note]]:
    repeated: list[Note] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        repeated.extend((n, "given twice; the last one counts") for n in dict.fromkeys(names) if names.count(n) > 1)
        return dict(items)

    try:
        if text.lstrip().startswith("{"):
            try:
                return [json.loads(text, object_pairs_hook=pairs)], repeated
            except ValueError:
                repeated.clear()  # YAML's own {braces}, then
        loader = _Loader(text)
        documents = []
        while loader.check_data():  # type: ignore[no-untyped-call]  # types-PyYAML leaves it out
            documents.append(loader.get_data())
        return documents, loader.repeated
    except yaml.YAMLError as e:
        raise ConfigError(source, f"is not YAML: {' '.join(str(e).split())}", "correct the syntax") from None
    except (ValueError, LookupError, TypeError, AttributeError) as e:  # such as 2026-13-45; and what !!tags raise
        raise ConfigError(source, f"is not YAML: {e}", "put text into quotes") from None
    except RecursionError:
        raise ConfigError(source, "is not a configuration: nested too deeply", "correct the file") from None


def _check_kind(source: str, data: dict[Any, Any]) -> None:
    kind, version = data.get("kind"), data.get("apiVersion")
    if kind == KIND and version == API_VERSION:
        return
    found = f"kind is {values.show(kind)} and apiVersion is {values.show(version)}"
    remedy = f"expected: kind {KIND}, apiVersion {API_VERSION}"
    if kind == "ConfigMap":
        remedy += "; for kubeadm's ConfigMap, give the text under its key config.conf"
    raise ConfigError(source, found, remedy)
