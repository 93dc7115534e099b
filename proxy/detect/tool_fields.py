"""What the readers of other tools' configuration files have in common. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from proxy.detect.command_line import read_command
from proxy.detect.evidence import ConfiguredMode, Evidence, IpvsOption, Mode, Place, Unreadable
from proxy.detect.proxy_config import at, gate, ipvs_options, last_of_each, mode_of, no_mode
from proxy.detect.words import Word
from proxy.detect.yaml_lines import Value


def named_mode(
    document: Value, path: str, place: Place, *, default: Mode, note: str, lower: bool = False
) -> list[Evidence]:
    """The mode at this dotted path. default: what the tool sets, or '' when it sets nothing, where the mode is not named;
    note says so. lower: the tool spells modes with capitals."""
    keys = path.split(".")
    value = document.get(*keys)
    mode = mode_of(value)
    where = msgspec.structs.replace(place, part=f"{place.part} {path}".strip())
    if mode:
        return [ConfiguredMode(place=at(where, value), mode=mode.lower() if lower else mode)]
    if value is not None and isinstance(value.data, list | dict):
        return [no_mode(value, at(where, value), "the mode")]
    if value is None and not document.lacks(*keys):
        return []  # the fault that hides it is named already
    return [ConfiguredMode(place=at(where, value or _nearest(document, keys)), sure="likely", mode=default, note=note)]


def is_true(document: Value, path: str) -> bool:
    return document.text(*path.split(".")).lower() in ("true", "yes", "on")


def is_false(document: Value, path: str) -> bool:
    return document.text(*path.split(".")).lower() in ("false", "no", "off")


def arguments(section: Value | None, place: Place) -> list[Word]:
    """Flags of a mapping: NAME: VALUE, or NAME: [VALUE, ...]."""
    found = []
    for name, value in section.fields().items() if section is not None else ():
        items = value.data if isinstance(value.data, list) else [value]
        found += [Word(f"--{name.lstrip('-')}={item.text()}", at(place, item)) for item in items]
    return found


def with_arguments(words: list[Word], place: Place, *, default: Mode, note: str) -> list[Evidence]:
    """What a kube-proxy does with these flags, to which the tool adds its own mode where they name none."""

    def config(path: str) -> list[Evidence]:
        cause = f"--config names the file {path} of the node, which decides"
        return [Unreadable(place=place, cause=cause, remedy="give that file with --config")]

    found = read_command(words, place, config)
    return [
        msgspec.structs.replace(e, sure="likely", mode=default, note=note)
        if isinstance(e, ConfiguredMode) and not e.mode and not e.overridden
        else e
        for e in found
    ]


def listed_gates(items: list[Value], place: Place) -> list[Evidence]:
    """Feature gates as texts: NAME=true."""
    return last_of_each(_listed_gates(items, place))


def _listed_gates(items: list[Value], place: Place) -> Iterator[Evidence]:
    for item in items:
        name, _, value = item.text().partition("=")
        yield from gate(name.strip(), value.strip(), at(place, item))


def prefixed_options(section: Value, prefix: str, place: Place) -> Iterator[IpvsOption]:
    """Options of IPVS that are fields beside the mode: ipvsScheduler for ipvs.scheduler."""
    for name, value in section.fields().items():
        short = name.removeprefix(prefix)
        if name.startswith(prefix) and short:
            wrapped = Value({short[0].lower() + short[1:]: value}, value.line)
            for option in ipvs_options(wrapped, place):
                yield msgspec.structs.replace(option, name=name)


def _nearest(document: Value, keys: list[str]) -> Value:
    """The innermost mapping around what is not there."""
    found = document
    for key in keys:
        inner = found.get(key)
        if inner is None:
            break
        found = inner
    return found
