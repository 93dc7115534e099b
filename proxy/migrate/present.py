"""The present kube-proxy's configuration as one KubeProxyConfiguration: a file, flags, or both as kube-proxy merges them.

Pure. Only fields that kube-proxy has are kept: a broken file may have anything in it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from proxy.config import parse_config
from proxy.config_fields import FIELDS, SECTIONS
from proxy.config_values import BadValue
from proxy.detect.command_line import parse_flags
from proxy.detect.proxy_config import API_VERSION, KIND, is_proxy_config, looks_like_one
from proxy.detect.text import decode
from proxy.detect.words import Word
from proxy.detect.yaml_lines import Value, field_name, read_yaml
from proxy.errors import ConfigError, UsageError
from proxy.flags import FLAGS, GivenFlags
from proxy.unread import Unread

Read = Callable[[str], bytes]
"""The content of a file that a command line names. Raises OSError."""

MOST_PARSED: Final = 1 << 20
"""Bytes of a file that is tried as kube-proxy-nft would."""
MOST_UNKNOWN: Final = 100
LONGEST: Final = 4096
"""Characters of a text that are kept."""
_ALSO: Final = {"nftables.masqueradeAll": "iptables.masqueradeAll"}
"""--masquerade-all is for whatever mode there is."""
_ONE: Final = "take it out of the file: kube-proxy-nft refuses files with several"
_NAMES: Final = {name.lower(): name for name in (*FIELDS, *SECTIONS)}
_CORRECT: Final = "correct it, or give the configuration with --config"


class Found(Struct):
    """document, refused, unknown: as facts.PresentProxy has them. kubeconfig: the path that it names, as its kube-proxy sees
    it."""

    document: dict[str, Any]
    source: str
    unread: list[Unread] = []
    refused: str = ""
    unknown: list[tuple[str, str]] = []

    @property
    def kubeconfig(self) -> str:
        connection = self.document.get("clientConnection")
        return str(connection.get("kubeconfig", "")) if isinstance(connection, dict) else ""


def of_text(data: bytes, source: str) -> Found | None:
    """The first KubeProxyConfiguration of a file, also where others are before it, or the file is a ConfigMap that has one.
    None: there is none in it."""
    text, _ = decode(data)
    documents, faults = read_yaml(text)
    unread = [Unread(f"{source}, line {fault.line}", fault.cause, _CORRECT) for fault in faults if not fault.is_read]
    ours = next((d for d in documents if is_proxy_config(d)), None) or next(
        (d for d in documents if looks_like_one(d)), None
    )
    if ours is not None:
        made = of_document(ours, source)
        made.unread = [*unread, *_later(documents, ours, source), *made.unread]
        made.refused = _refused(data, source) if documents[0] is ours else ""
        return made
    for inner in _inside(documents):
        if found := of_text(inner.encode(), source):
            found.unread = unread + found.unread
            return found
    return None


def _inside(documents: Iterable[Value]) -> Iterator[str]:
    """Texts of ConfigMaps that may be a configuration."""
    for document in documents:
        for item in (document, *document.items("items")):
            if item.text("kind") in ("ConfigMap", ""):
                for value in item.fields("data").values():
                    if isinstance(value.data, str) and KIND in value.data:
                        yield value.data


def _later(documents: Sequence[Value], ours: Value, source: str) -> Iterator[Unread]:
    """Further ones, which somebody may take for the one that counts."""
    for number, document in enumerate(documents, 1):
        if document is not ours and is_proxy_config(document):
            yield Unread(
                f"{source}: document {number}", f"kube-proxy reads one {KIND}, and there is one before it", _ONE
            )


def _refused(data: bytes, source: str) -> str:
    """Why kube-proxy-nft does not start with this file."""
    if len(data) > MOST_PARSED:
        return ""
    try:
        parse_config(data, source)
    except ConfigError as error:
        cause = error.cause
        return cause.partition(":")[0] if cause.startswith("is not YAML") else cause  # the rest quotes the file
    return ""


def of_document(document: Value, source: str) -> Found:
    """What a mapping says that is meant as one, and what of it is of no use."""
    found: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND}
    unread: list[Unread] = []
    unknown: list[tuple[str, str]] = []
    for name, right in (("kind", KIND), ("apiVersion", API_VERSION)):
        if document.text(name) != right:
            unread.append(Unread(f"{source}: {name}", f"it is not {right}: kube-proxy refuses this file", _CORRECT))
    _walk(document, "", source, found, unread, unknown)
    return Found(found, source, unread, unknown=unknown)


def _walk(
    section: Value,
    prefix: str,
    source: str,
    found: dict[str, Any],
    unread: list[Unread],
    unknown: list[tuple[str, str]],
) -> None:
    for key, value in section.fields().items():
        name = f"{prefix}{key}"
        if name in ("apiVersion", "kind") or value.data is None:
            continue
        where = f"{source}: {prefix}{field_name(key)}"
        if name in SECTIONS:
            if isinstance(value.data, dict):
                _walk(value, f"{name}.", source, found, unread, unknown)
            else:
                unread.append(Unread(where, "it is no mapping of fields", _CORRECT))
        elif name in FIELDS:
            put(found, name, _plain(name, value))
        elif len(unknown) < MOST_UNKNOWN:
            close = difflib.get_close_matches(name.lower(), _NAMES, n=1, cutoff=0.8)
            reason = "unknown field" + (f"; did you mean {_NAMES[close[0]]}?" if close else "")
            unknown.append((f"{prefix}{field_name(key)}", reason))


def of_flags(arguments: Sequence[Word], source: str, read: Read) -> Found:
    """What kube-proxy is started with; the file that --config names goes before all flags but a few. arguments: without the
    program's name."""
    flags = parse_flags(arguments)
    config = flags.values.get("config")
    found = Found({"apiVersion": API_VERSION, "kind": KIND}, source)
    if config is not None and config.value:
        path = config.value
        try:
            found = of_text(read(path), path) or found
        except OSError as error:
            found.unread.append(Unread(path, (error.strerror or str(error)).lower(), "give it with --config"))
    if flags.hidden:
        cause = f"what {flags.hidden.unknown} is cannot be seen from here"
        found.unread.append(Unread(f"flags of {source}", cause, "give its configuration with --config"))
    for flag in flags.all:
        if flag.name == "kubeconfig" and not (config and config.value):
            put(found.document, "clientConnection.kubeconfig", flag.value)
    known = [(flag.name, flag.value) for flag in flags.all if flag.name in FLAGS and not flag.unknown and not flag.bare]
    for name, text in known:
        found.unread += _fault(source, name, text)
    given = GivenFlags([pair for pair in known if not _fault(source, *pair)], bool(config and config.value))
    for item in given.fields:
        put(found.document, item.field, item.raw)
        if item.field in _ALSO:
            put(found.document, _ALSO[item.field], item.raw)
    return found


def _fault(source: str, name: str, text: str) -> list[Unread]:
    flag = FLAGS[name]
    try:
        raw = flag.kind.convert(text)
        if flag.field:
            FIELDS[flag.field].parse(raw)
        if name.endswith("-port"):
            int(text, 0)
    except (BadValue, UsageError, ValueError) as error:
        return [Unread(f"{source}: --{name}", str(error), _CORRECT)] if not name.endswith("-port") else []
    return []


def put(document: dict[str, Any], name: str, value: Any) -> None:
    """Set a field by its dotted path."""
    *sections, last = name.split(".")
    place = document
    for section in sections:
        inner = place.setdefault(section, {})
        if not isinstance(inner, dict):
            return
        place = inner
    place[last] = value


def _plain(name: str, value: Value) -> Any:
    """As a YAML parser gives it: a text that only fits as a number is one."""
    plain = _any(value)
    if not isinstance(plain, str):
        return plain
    for candidate in _readings(plain):
        try:
            FIELDS[name].parse(candidate)
        except BadValue:
            continue
        return candidate
    return plain


def _readings(text: str) -> Iterator[Any]:
    yield text
    for convert in (lambda word: int(word, 0), float):
        try:
            yield convert(text)
        except ValueError:
            continue


def _any(value: Value) -> Any:
    if isinstance(value.data, dict):
        return {key: _any(item) for key, item in value.data.items()}
    if isinstance(value.data, list):
        return [_any(item) for item in value.data]
    return value.data[:LONGEST] if isinstance(value.data, str) else value.data
