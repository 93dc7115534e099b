"""k3s and RKE2 as evidence: what they hand on to their kube-proxy, from configuration files and command lines. Pure.

Their configuration file has the flags of their command line as keys. A file in config.yaml.d/ replaces what those before it
say about a key, or adds to it where the key ends in "+"; what their command line says comes last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from proxy.detect.command_line import ReadConfig, read_command
from proxy.detect.configured import off, set_aside
from proxy.detect.evidence import ConfiguredMode, Evidence, Place, Unreadable
from proxy.detect.proxy_config import at
from proxy.detect.words import Word
from proxy.detect.yaml_lines import Value

ARGUMENT: Final = "kube-proxy-arg"
DISABLE: Final = "disable-kube-proxy"
MODE: Final = "iptables"
"""What both pass as --proxy-mode where nothing else is given (on Linux)."""
_NO_TEXT: Final = f"what {ARGUMENT} has here is no text: which flags kube-proxy gets is not known"


class Layer(Struct, frozen=True):
    """What one file, or the command line, says. place: of the file. arguments: None when it says nothing of them.

    adds: it adds to what those before it say. whole: False where a fault hides a part of it. faults: those of them that
    are none of syntax.
    """

    place: Place
    arguments: tuple[Word, ...] | None = None
    adds: bool = False
    disabled: bool | None = None
    whole: bool = True
    faults: tuple[Unreadable, ...] = ()


def is_config(document: Value) -> bool:
    return not {ARGUMENT, f"{ARGUMENT}+", DISABLE}.isdisjoint(document.fields())


def from_file(document: Value, place: Place) -> list[Layer]:
    """What a configuration file says, in order."""
    disabled = document.text(DISABLE).lower()
    found = [Layer(place, disabled={"true": True, "false": False}.get(disabled), whole=document.whole)]
    for key, value in document.fields().items():
        if key.removesuffix("+") == ARGUMENT:
            items = value.data if isinstance(value.data, list) else [value]
            arguments = tuple(Word(item.text(), at(place, item)) for item in items if item.text())
            faults = tuple(
                Unreadable(place=at(place, item), cause=_NO_TEXT, remedy="write NAME=VALUE: proxy-mode=nftables")
                for item in items
                if isinstance(item.data, list | dict)
            )
            found.append(Layer(place, arguments, adds=key.endswith("+"), whole=not faults, faults=faults))
    return found


def from_command(words: Sequence[Word], place: Place) -> tuple[Layer, str]:
    """What the command line says (without "k3s server"), and the file that it names with --config, '' for none."""
    arguments: list[Word] = []
    disabled, config = None, ""
    waiting = list(reversed(words))
    while waiting:
        word = waiting.pop()
        name, equals, value = word.text.partition("=")
        if not name.startswith("-"):
            continue
        name = name.lstrip("-")
        if name == DISABLE:
            disabled = not equals or value.lower() == "true"
        elif name in (ARGUMENT, "config", "c"):
            taken = Word(value, word.place, word.unknown) if equals else waiting.pop() if waiting else Word("")
            if name == ARGUMENT:
                arguments.append(taken)
            else:
                config = taken.text
    return Layer(place, tuple(arguments) or None, adds=True, disabled=disabled), config


def read(program: str, layers: Iterable[Layer], read: ReadConfig, default: Place) -> list[Evidence]:
    """What all layers together make of its kube-proxy. program: "k3s" or "rke2". default: the place of what none of them
    says."""
    arguments: list[Word] = []
    replaced: list[tuple[Word, Place]] = []
    disabled: Layer | None = None
    whole = True
    faults: list[Unreadable] = []
    for layer in layers:
        faults += layer.faults
        disabled = disabled if layer.disabled is None else layer if layer.disabled else None
        whole = whole and layer.whole
        if layer.arguments is None:
            continue
        if not layer.adds:
            replaced += [(word, layer.place) for word in arguments]
            arguments = []
        arguments += [Word(word.text, word.place or layer.place, word.unknown) for word in layer.arguments]
    if disabled is not None:
        return [off(disabled.place, f"{DISABLE} is true")]
    flags = [_as_flag(word) for word in arguments]
    found = read_command(flags, default, read)
    if not _names(flags, "proxy-mode", "config"):
        because = f"{program} itself passes --proxy-mode={MODE}, where nothing else is set"
        found = [e for e in found if not (isinstance(e, ConfiguredMode) and not e.overridden)]
        if whole:
            found.insert(0, ConfiguredMode(place=default, sure="likely", mode=MODE, note=because))
    modes = [word for word in arguments if _names([_as_flag(word)], "proxy-mode")]
    replaced += [(word, modes[-1].place or default) for word in modes[:-1]]
    for word, by in replaced:
        if _names([_as_flag(word)], "proxy-mode"):
            found += set_aside(read_command([_as_flag(word)], default, read), f"{by.name} goes before it")
    return [*found, *faults]


def _as_flag(word: Word) -> Word:
    """They take the flags of kube-proxy without dashes, or with; "+" and "-" after a name are for lists."""
    name, equals, value = word.text.removeprefix("--").partition("=")
    return Word(f"--{name.rstrip('+-')}{equals}{value}" if equals else f"--{name}=true", word.place, word.unknown)


def _names(flags: Iterable[Word], *names: str) -> bool:
    return any(word.text.partition("=")[0].removeprefix("--") in names for word in flags)
