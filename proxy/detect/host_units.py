"""The systemd services of a machine that start a kube-proxy, found in systemd's order: systemd.unit(5)."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from proxy.detect.evidence import Evidence, Place, Unreadable
from proxy.detect.host_files import HostFiles, NotAFile
from proxy.detect.started import reason, remedy_for
from proxy.detect.text import decode
from proxy.detect.units import Service, Setting, is_installable, parse, service

DIRECTORIES: Final = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
"""What comes first goes before the others."""
_OURS: Final = re.compile(b"kube-?proxy|hyperkube|k3s|rke2|kubelite", re.IGNORECASE)
_WANTING: Final = (".wants", ".requires", ".upholds")


class FoundService(Struct):
    """enabled: something starts it at boot, or may at any time. place: of its unit file."""

    service: Service
    enabled: bool
    place: Place


def services(files: HostFiles, node: str) -> tuple[list[FoundService], list[Evidence]]:
    """Those that start one of our programs, and what could not be read."""
    unread: list[Evidence] = []
    places: dict[str, str] = {}  # unit -> its file
    wanted: set[str] = set()
    dropped: dict[str, list[str]] = {}  # directory -> drop-ins
    for directory in DIRECTORIES:
        for name in _names(files, directory, node, unread):
            path = posixpath.join(directory, name)
            if name.endswith(".service"):
                places.setdefault(name, path)
            elif name.endswith(_WANTING):
                wanted.update(_names(files, path, node, unread))
            elif name.endswith(".service.d") or name == "service.d":
                dropped[path] = [n for n in _names(files, path, node, unread) if n.endswith(".conf")]
    found = []
    for name, path in sorted(places.items()):
        texts = [path, *_drop_ins(name, dropped)]
        settings = _settings(texts, files, node, unread)
        if settings:
            place = Place("unit", path, node=node)
            started = service(settings, place, files)
            enabled = name in wanted or not is_installable(settings)
            if started.launches or started.unread:
                found.append(FoundService(started, enabled, place))
    return found, unread


def _settings(paths: list[str], files: HostFiles, node: str, unread: list[Evidence]) -> list[Setting]:
    """[] when it has nothing to do with us, or is masked."""
    contents: list[tuple[str, bytes]] = []
    for number, path in enumerate(paths):
        try:
            contents.append((path, files.read(path)))
        except (NotAFile, FileNotFoundError):
            if number == 0:
                return []  # masked: a link to /dev/null; or a link into nowhere
        except OSError as error:
            unread.append(
                Unreadable(place=Place("unit", path, node=node), cause=reason(error), remedy=remedy_for(error))
            )
    if not any(_OURS.search(path.encode() + b"\n" + data) for path, data in contents):
        return []
    return [s for path, data in contents for s in parse(decode(data)[0], Place("unit", path, node=node))]


def _drop_ins(name: str, dropped: dict[str, list[str]]) -> Iterator[str]:
    """By their names, whatever their directory; of those with one name the first counts: a directory of the unit's own
    goes before one for all units of a prefix, and then by DIRECTORIES."""
    stem = name.removesuffix(".service")
    parts = stem.split("-")
    owners = [name, *("-".join(parts[:n]) + "-.service" for n in range(len(parts) - 1, 0, -1)), "service"]
    by_name: dict[str, str] = {}
    for owner in owners:
        for directory in DIRECTORIES:
            path = posixpath.join(directory, f"{owner}.d")
            for drop_in in dropped.get(path, ()):
                by_name.setdefault(drop_in, posixpath.join(path, drop_in))
    return iter(path for _, path in sorted(by_name.items()))


def _names(files: HostFiles, directory: str, node: str, unread: list[Evidence]) -> list[str]:
    try:
        return files.names(directory)
    except OSError as error:
        unread.append(
            Unreadable(place=Place("file", directory, node=node), cause=reason(error), remedy=remedy_for(error))
        )
        return []
