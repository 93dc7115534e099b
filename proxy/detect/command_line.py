"""kube-proxy's command line as evidence: its flags, and the file that --config names. Pure; the file is read by the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from proxy.detect.evidence import ConfiguredMode, Evidence, IpvsOption, Place, Unreadable
from proxy.detect.proxy_config import gate, read_text

ReadFile = Callable[[str], str | None]
"""The text of a file as the command would see it; None when it is not to be had. May raise OSError."""

BARE: Final = frozenset({
    "bind-address-hard-fail", "cleanup", "conntrack-tcp-be-liberal", "help", "init-only", "iptables-localhost-nodeports",
    "ipvs-strict-arp", "log-json-split-stream", "log-text-split-stream", "masquerade-all", "profiling",
})  # fmt: skip
"""kube-proxy's flags that need no value."""
_ZERO: Final = ("", "0", "0s", "false", "[]")


class Flags(Struct, frozen=True):
    """The flags of a command line, names without dashes, the last value of each; `gates`: all of --feature-gates."""

    values: dict[str, str]
    gates: tuple[tuple[str, str], ...] = ()


def parse_flags(arguments: Sequence[str]) -> Flags:
    """What follows the program's name, as pflag reads it. What is no flag is passed over."""
    values: dict[str, str] = {}
    gates: list[tuple[str, str]] = []
    waiting = [text.strip() for text in arguments]
    while waiting:
        word = waiting.pop(0)
        if word == "--":
            break
        if not word.startswith("-") or word.strip("-") == "":
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if not equals:
            value = "true" if name in BARE or not waiting or waiting[0].startswith("--") else waiting.pop(0)
        value = value.strip("\"'")
        values[name] = value
        if name == "feature-gates":
            gates += [(n.strip(), v.strip()) for n, _, v in (entry.partition("=") for entry in value.split(",")) if n]
    return Flags(values, tuple(gates))


def read_command(arguments: Sequence[str], place: Place, read: ReadFile) -> list[Evidence]:
    """What kube-proxy does with these arguments (without the program's name).

    With --config the file decides, and the flags for the mode, the gates and IPVS are not even looked at.
    """
    flags = parse_flags(arguments)
    if flags.values.get("cleanup") == "true":
        return []  # it takes its rules away and ends
    path = flags.values.get("config", "")
    own = list(_flag_evidence(flags, place, overridden=bool(path)))
    if not path:
        return own
    return [*_file_evidence(path, place, read), *own]


def _flag_evidence(flags: Flags, place: Place, *, overridden: bool) -> Iterator[Evidence]:
    mode = flags.values.get("proxy-mode", "")
    note = "--proxy-mode is ignored, because --config is given" if overridden else ""
    if mode or not overridden:
        yield ConfiguredMode(
            place=msgspec.structs.replace(place, part="--proxy-mode"), mode=mode, note=note, overridden=overridden
        )
    if overridden:
        return
    for name, value in flags.values.items():
        if (
            name.startswith("ipvs-")
            and value not in _ZERO
            and (name, value) not in (("ipvs-sync-period", "30s"), ("ipvs-min-sync-period", "1s"))
        ):
            yield IpvsOption(place=place, name=f"--{name}", value=value)
    for name, value in flags.gates:
        yield from gate(name, value, msgspec.structs.replace(place, part="--feature-gates"))


def _file_evidence(path: str, place: Place, read: ReadFile) -> list[Evidence]:
    file = Place("file", path, node=place.node)
    try:
        text = read(path)
    except OSError as error:
        cause = f"--config of {place.kind} {place.name} names it: {error.strerror or error}"
        return [Unreadable(place=file, cause=cause, remedy="read it on the node, as root")]
    if text is None:
        cause = f"--config of {place.kind} {place.name} names it, and it is not to be had from here"
        return [Unreadable(place=file, cause=cause, remedy="run this on the node, or give the file with --config")]
    found = read_text(text, file)
    if not any(isinstance(e, ConfiguredMode) for e in found):
        found.append(
            Unreadable(place=file, cause="it holds no KubeProxyConfiguration", remedy="see what --config names")
        )
    return found
