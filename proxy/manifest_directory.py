"""The manifest directory as it was last read: every file once, its faults told once, and what changed.

Reads files; does not know when to (`proxy.manifests` does). Not thread safe.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog
from msgspec import Struct

from proxy.events import Event, Replace
from proxy.manifest_index import ManifestIndex, Objects
from proxy.manifest_parse import MAX_BYTES, Broken, Key, Parsed, describe, is_manifest, parse

log = structlog.get_logger()

Report = Callable[[str, str, str], None]
"""Called as (problem, object, reason); problem is one of PROBLEMS, object a path or 'Service default/web'."""

PROBLEMS: Final = ("broken_file", "empty_file", "bad_object", "duplicate_object", "directory_lost")

ATOMIC_LINK: Final = "..data"
"""In a ConfigMap or Secret volume the files are links through this link, and a new version is one rename of it."""


class Replaced(OSError):
    """Another directory is at this path than the one that was read."""


class _File(Struct):
    """What is remembered of a file besides its objects."""

    content: bytes | str
    """A digest of what was last read, or why it could not be read: the same again needs no work and no report."""
    state: str = "good"  # or "empty", "broken", "unreadable"
    told: frozenset[tuple[str, str]] = frozenset()
    """(object, reason) of the bad objects that were reported."""


class ManifestDirectory:
    def __init__(self, path: Path, report: Report) -> None:
        self.path = path
        self._report = report
        self._files: dict[str, _File] = {}
        self._index = ManifestIndex()
        self._identity = (0, 0)
        self._ignored: set[str] = set()

    def rescan(self) -> None:
        """Read every file whose content is not known yet. OSError: the directory cannot be read, nothing changed."""
        with self._open() as fd:
            self._identity = _identity(fd)
            while True:
                version = _atomic_version(fd)
                names = {name for name in os.listdir(fd) if is_manifest(name)}
                for name in self._files.keys() - names:
                    self._forget(name)
                for name in sorted(names):
                    self._read(fd, name)
                # Files of two versions of a ConfigMap do not belong together: read again if it was swapped meanwhile.
                if _atomic_version(fd) == version:
                    break

    def update(self, names: Mapping[str, bool]) -> None:
        """Read the named files (True) or forget them (False). OSError: the directory cannot be read or was Replaced."""
        with self._open() as fd:
            if _identity(fd) != self._identity:
                raise Replaced(errno.ESTALE, "another directory took its place")
            for name, exists in names.items():
                if exists:
                    self._read(fd, name)
                else:
                    self._forget(name)

    def is_unreadable(self, name: str) -> bool:
        return name in self._files and self._files[name].state == "unreadable"

    def take_changes(self) -> list[Event]:
        """Put and Delete events for everything that changed since the last call."""
        changes = self._index.take()
        for clash in changes.clashes:
            self._tell_twice(clash.key, clash.used, clash.ignored)
        return list(changes.events)

    def everything(self) -> list[Event]:
        """One Replace for each kind of model.KINDS."""
        return [Replace(kind, objects) for kind, objects in self._index.objects().items()]

    @contextmanager
    def _open(self) -> Iterator[int]:
        # Everything is read relative to this descriptor, so that a directory moved away meanwhile does not look empty.
        # It is closed at once: an open directory could not be unmounted.
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    def _read(self, directory: int, name: str) -> None:
        try:
            data = _read_file(directory, name)
        except OSError as e:
            broken = Broken(f"cannot be read: {e.strerror}", "let this process read it; its last good objects stay")
            self._broken(name, broken, broken.cause, "unreadable")
            return
        except Broken as e:
            self._broken(name, e, e.cause)
            return
        if data is None:
            self._forget(name)
            return
        content = hashlib.blake2b(data, digest_size=16).digest()
        if name in self._files and self._files[name].content == content:
            return
        try:
            parsed = parse(name, data)
        except Broken as e:
            self._broken(name, e, content)
        else:
            self._accept(name, content, parsed)

    def _forget(self, name: str) -> None:
        if self._files.pop(name, None):
            self._index.set(name, {})

    def _broken(self, name: str, broken: Broken, content: bytes | str, state: str = "broken") -> None:
        old = self._files.get(name)
        if old and old.content == content:
            return
        self._files[name] = _File(content, state, old.told if old else frozenset())
        log.error("manifest_broken", path=self._at(name), cause=broken.cause, remedy=broken.remedy)
        self._report("broken_file", self._at(name), broken.cause)

    def _accept(self, name: str, content: bytes, parsed: Parsed) -> None:
        old = self._files.get(name)
        if old and old.state in ("broken", "unreadable"):
            log.info("manifest_mended", path=self._at(name))
        if parsed.empty and not (old and old.state == "empty"):
            log.warning("manifest_empty", path=self._at(name), remedy="remove the file if it is to have no objects")
            self._report("empty_file", self._at(name), "no objects")
        told = old.told if old else frozenset()
        self._files[name] = _File(content, "empty" if parsed.empty else "good", self._tell_bad(name, parsed, told))
        self._index.set(name, _with_last_good(parsed, self._index.held_by(name)))
        if new := parsed.ignored - self._ignored:
            self._ignored |= new
            log.info("manifest_kinds_ignored", path=self._at(name), kinds=sorted(new))

    def _tell_bad(self, name: str, parsed: Parsed, told: frozenset[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Report what `told` does not have; gives what is told now."""
        bad = frozenset((part.what, part.reason) for part in parsed.bad)
        for what, reason in sorted(bad - told):
            log.error("manifest_object_bad", path=self._at(name), object=what, reason=reason, remedy="mend the object")
            self._report("bad_object", what, reason)
        twice = frozenset((describe(key), "twice in this file") for key in parsed.twice)
        for key in parsed.twice:
            if (describe(key), "twice in this file") not in told:
                self._tell_twice(key, name, name)
        return bad | twice

    def _tell_twice(self, key: Key, used: str, ignored: str) -> None:
        what, used, ignored = describe(key), self._at(used), self._at(ignored)
        remedy = "remove one of the two; the first file by name, and the first place in a file, counts"
        log.warning("manifest_object_duplicate", object=what, used=used, ignored=ignored, remedy=remedy)
        self._report("duplicate_object", what, f"{ignored} has it again; the one in {used} counts")

    def _at(self, name: str) -> str:
        return str(self.path / name)


def _with_last_good(parsed: Parsed, last: Objects) -> Objects:
    """The file's objects; where one went bad, its last good version."""
    if not parsed.bad:
        return parsed.objects
    if any(part.key is None for part in parsed.bad):  # it may be any of them
        return {**last, **parsed.objects}
    kept = {part.key: last[part.key] for part in parsed.bad if part.key and part.key in last}
    return {**kept, **parsed.objects}


def _read_file(directory: int, name: str) -> bytes | None:
    """The file's content; None if there is no such file or it is a directory, a pipe and so on. Raises OSError, Broken."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        with open(fd, "rb", closefd=False) as file:
            data = file.read(MAX_BYTES + 1) if status.st_size <= MAX_BYTES else b""
    finally:
        os.close(fd)
    size = max(status.st_size, len(data))
    if size > MAX_BYTES:
        raise Broken(f"larger than {MAX_BYTES >> 20} MiB ({size} bytes)", "split it into several files")
    return data


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _atomic_version(directory: int) -> str:
    try:
        return os.readlink(ATOMIC_LINK, dir_fd=directory)
    except OSError:
        return ""
