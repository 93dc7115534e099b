"""What the programs that are, have or start a kube-proxy make of their command lines and of the files around them. Pure; a
Machine reads the files."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Final, Protocol

from proxy.detect import k3s
from proxy.detect.command_line import parse_flags, read_command
from proxy.detect.evidence import Evidence, Place, Unreadable
from proxy.detect.flag_files import flag_words
from proxy.detect.k3s import Layer
from proxy.detect.launch import Launch
from proxy.detect.proxy_config import read_as_kube_proxy, unreadable
from proxy.detect.text import decode
from proxy.detect.yaml_lines import read_yaml

_AS_ROOT: Final = "run this on the node, as root"
_SUFFIXES: Final = (".yaml", ".yml")


class Machine(Protocol):
    """A machine's files. Paths begin with /."""

    def read(self, path: str) -> bytes:
        """The content of a regular file. Raises OSError."""

    def names(self, directory: str) -> list[str]:
        """What is in a directory, sorted; [] when it is not there. Raises OSError."""


def read_launch(launch: Launch, place: Place, machine: Machine | None) -> list[Evidence]:
    """What this command starts. place: of the command. machine: where it runs, None when its files are not to be had."""
    match launch.program:
        case "kubelite":
            return _kubelite(launch, place, machine)
        case "k3s" | "rke2":
            return read_k3s(launch, place, machine)
        case _:
            return read_command(launch.arguments, place, config_reader(place, machine))


def config_reader(place: Place, machine: Machine | None) -> Callable[[str], list[Evidence]]:
    """Reads the file that a kube-proxy's --config names. place: of its command line."""

    def read(path: str) -> list[Evidence]:
        at = Place("file", path, node=place.node)
        said = f"--config of {place.kind} {place.name} names it"
        if machine is None:
            remedy = "run this on the node, or give that file with --config"
            return [Unreadable(place=at, cause=f"{said}, and it is not to be had from here", remedy=remedy)]
        try:
            text, faults = decode(machine.read(path))
        except OSError as error:
            return [Unreadable(place=at, cause=f"{said}: {reason(error)}", remedy=remedy_for(error))]
        return [*(unreadable(fault, at) for fault in faults), *read_as_kube_proxy(text, at)]

    return read


def read_k3s(launch: Launch, place: Place, machine: Machine | None) -> list[Evidence]:
    """A server or an agent of k3s or RKE2, with its configuration files."""
    command, named = k3s.from_command(launch.arguments, place)
    path = named or f"/etc/rancher/{launch.program}/config.yaml"
    layers, found = k3s_layers(path, place.node, machine) if machine is not None else ([], [])
    evidence = k3s.read(launch.program, [*layers, command], config_reader(place, machine), place)
    return [*evidence, *found]


def k3s_layers(path: str, node: str, machine: Machine) -> tuple[list[Layer], list[Evidence]]:
    """What this configuration file and those in its directory ….d say, and what of them could not be read."""
    layers: list[Layer] = []
    found: list[Evidence] = []
    directory = f"{path}.d"
    try:
        names = [name for name in machine.names(directory) if name.lower().endswith(_SUFFIXES)]
    except OSError as error:
        names = []
        found.append(
            Unreadable(place=Place("file", directory, node=node), cause=reason(error), remedy=remedy_for(error))
        )
    for file in [path, *(posixpath.join(directory, name) for name in names)]:
        at = Place("file", file, node=node)
        try:
            text, faults = decode(machine.read(file))
        except FileNotFoundError:
            continue
        except OSError as error:
            found.append(Unreadable(place=at, cause=reason(error), remedy=remedy_for(error)))
            layers.append(Layer(at, whole=False))
            continue
        documents, more = read_yaml(text)
        layers += [layer for document in documents[:1] for layer in k3s.from_file(document, at)]
        found += [unreadable(fault, at) for fault in faults + more]
    return layers, found


def reason(error: OSError) -> str:
    return (error.strerror or str(error) or "it cannot be read").lower()


def remedy_for(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return _AS_ROOT
    return "see what is there" if not isinstance(error, FileNotFoundError) else "see why it is missing"


def _kubelite(launch: Launch, place: Place, machine: Machine | None) -> list[Evidence]:
    """microk8s keeps kube-proxy's flags in a file."""
    named = parse_flags(launch.arguments).values.get("proxy-args-file")
    if named is None or not named.value:
        return []
    if machine is None:
        cause = "--proxy-args-file names it, and it is not to be had from here"
        return [
            Unreadable(place=Place("file", named.value, node=place.node), cause=cause, remedy="give it with --config")
        ]
    return read_flag_file(named.value, place.node, machine)


def read_flag_file(path: str, node: str, machine: Machine) -> list[Evidence]:
    """A file that holds kube-proxy's flags. [] when it is not there."""
    at = Place("file", path, node=node)
    try:
        text, faults = decode(machine.read(path))
    except FileNotFoundError:
        return []
    except OSError as error:
        return [Unreadable(place=at, cause=reason(error), remedy=remedy_for(error))]
    found = read_command(flag_words(text, at), at, config_reader(at, machine))
    return [*found, *(unreadable(fault, at) for fault in faults)]
