"""kube-proxy's command line as evidence: its flags, and the file that --config names. Pure; the file is read by the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from proxy import flags
from proxy.detect.evidence import ConfiguredMode, Evidence, IpvsOption, Place, Sure, Unreadable
from proxy.detect.proxy_config import WINDOWS, gate, last_of_each
from proxy.detect.words import Word

ReadConfig = Callable[[str], list[Evidence]]
"""What the file that --config names says; the path is as kube-proxy sees it. Never raises."""

BARE: Final = flags.BARE | {"alsologtostderr", "help", "logtostderr"}
"""kube-proxy's flags that need no value, and those of older releases."""
_OURS: Final = ("config", "feature-gates", "proxy-mode")
_ENDING: Final = ("cleanup", "help", "init-only", "version", "write-config-to")
"""With one of these it does something else, and ends."""
_ZERO: Final = ("", "0", "0s", "false", "[]")
_DEFAULT: Final = (("ipvs-sync-period", "30s"), ("ipvs-min-sync-period", "1s"))
_LONGEST: Final = 100  # characters of a value that are shown


class Flag(Struct, frozen=True):
    name: str
    value: str
    place: Place | None = None
    unknown: str = ""
    """The variable in the value that is not known."""
    bare: bool = False
    """It needs a value and has none."""


class Flags(Struct, frozen=True):
    """The flags of a command line. values: the last of each. all: in order. hidden: a word of which nothing but its variable
    is known: it may be any flags."""

    values: dict[str, Flag]
    all: tuple[Flag, ...] = ()
    hidden: Word | None = None


def parse_flags(arguments: Sequence[Word]) -> Flags:
    """What follows the program's name, as pflag reads it. What is no flag is passed over."""
    found: list[Flag] = []
    hidden: Word | None = None
    waiting = list(reversed(arguments))
    while waiting:
        word = waiting.pop()
        if word.text == "--":
            break
        if not word.text.startswith("-") or word.text.strip("-") == "":
            hidden = word if word.unknown else hidden
            continue
        name, equals, value = word.text.lstrip("-").partition("=")
        name, unknown = name.replace("_", "-"), word.unknown
        bare = not equals and name in _OURS and not waiting
        if not equals and (name in BARE or not waiting or (name not in _OURS and waiting[-1].text.startswith("-"))):
            value = "true"
        elif not equals:
            follows = waiting.pop()
            value, unknown = follows.text, follows.unknown
        found.append(Flag(name, "" if bare else value, word.place, unknown, bare))
    return Flags({flag.name: flag for flag in found}, tuple(found), hidden)


def read_command(
    arguments: Sequence[Word],
    place: Place,
    read: ReadConfig,
    *,
    sure: Sure = "certain",
    note: str = "",
    windows: bool = False,
) -> list[Evidence]:
    """What kube-proxy does with these arguments (without the program's name).

    With --config the file decides, and the flags for the mode, the gates and IPVS are not even looked at. sure, note:
    of the command line itself. windows: it runs on Windows.
    """
    flags = parse_flags(arguments)
    if any(flags.values[name].value not in _ZERO for name in _ENDING if name in flags.values):
        return []
    bare = next((flag for flag in flags.all if flag.bare), None)
    if bare is not None:
        cause = f"--{bare.name} has no value"
        remedy = f"write --{bare.name}=VALUE"
        return [Unreadable(place=_at(place, bare), cause=cause, remedy=remedy, effect="refused")]
    config = flags.values.get("config")
    if config is not None and config.unknown:
        return [_hidden(place, config, "--config names the file that decides")]
    if config is not None and config.value:
        found = [*read(config.value), *_mode(flags, place, sure, note, overridden=True)]
    else:
        found = [*_mode(flags, place, sure, note, overridden=False), *last_of_each(_others(flags, place))]
    return [_on_windows(item) for item in found] if windows else found


def _mode(flags: Flags, place: Place, sure: Sure, note: str, *, overridden: bool) -> Iterator[Evidence]:
    flag = flags.values.get("proxy-mode", Flag("proxy-mode", ""))
    if overridden:
        if flag.value:
            because = "--proxy-mode is ignored, because --config is given"
            yield ConfiguredMode(place=_at(place, flag), mode=flag.value[:_LONGEST], note=because, overridden=True)
    elif flag.unknown:
        yield _hidden(place, flag, "it is the mode")
    elif flags.hidden and not flag.value:
        yield _hidden(place, Flag("", "", flags.hidden.place, flags.hidden.unknown), "more flags are in it")
    else:
        yield ConfiguredMode(
            place=_at(place, flag) if flag.value else place, sure=sure, mode=flag.value[:_LONGEST], note=note
        )


def _others(flags: Flags, place: Place) -> Iterator[Evidence]:
    for flag in flags.values.values():
        if flag.name.startswith("ipvs-") and flag.value not in _ZERO and (flag.name, flag.value) not in _DEFAULT:
            yield IpvsOption(place=_at(place, flag), name=f"--{flag.name}", value=flag.value[:_LONGEST])
    for flag in flags.all:
        if flag.name == "feature-gates" and not flag.unknown:
            for entry in flag.value.split(","):
                name, _, value = entry.partition("=")
                yield from gate(name.strip(), value.strip(), _at(place, flag))


def _at(place: Place, flag: Flag) -> Place:
    where = flag.place or place
    return msgspec.structs.replace(where, part=f"{where.part} --{flag.name}".strip(), node=place.node)


def _hidden(place: Place, flag: Flag, what: str) -> Unreadable:
    """flag: without a name, when it may be any."""
    cause = f"{what}, and what {flag.unknown} is cannot be seen from here"
    remedy = "see the command line of the running process"
    return Unreadable(place=_at(place, flag) if flag.name else flag.place or place, cause=cause, remedy=remedy)


def _on_windows(item: Evidence) -> Evidence:
    if isinstance(item, ConfiguredMode) and item.mode == "" and not item.overridden:
        return msgspec.structs.replace(item, mode="kernelspace", sure="likely", note=WINDOWS, os="windows")
    return item
