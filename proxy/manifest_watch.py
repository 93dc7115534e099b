"""What inotify says about one directory, put as batches: which files to read, which are gone, whether it is lost."""

from __future__ import annotations

import errno
import os
import select
import stat
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from proxy.inotify import INotify, flags
from proxy.manifest_directory import ATOMIC_LINK
from proxy.manifest_parse import is_manifest

_COMES: Final = flags.CREATE | flags.MOVED_TO
_GOES: Final = flags.DELETE | flags.MOVED_FROM
_SELF: Final = flags.DELETE_SELF | flags.MOVE_SELF
# ATTRIB: a chmod may make an unreadable file readable.
_MASK: Final = _COMES | _GOES | _SELF | flags.CLOSE_WRITE | flags.ATTRIB | flags.ONLYDIR
_PARENT_MASK: Final = _COMES | _GOES | flags.ONLYDIR

_LOST: Final = {
    flags.UNMOUNT: "it was unmounted",
    flags.DELETE_SELF: "it was deleted",
    flags.MOVE_SELF: "it was moved away",
    flags.IGNORED: "it can no longer be watched",
}


class Batch(Struct):
    """The net meaning of all events that were waiting."""

    files: dict[str, bool] = field(default_factory=dict)
    """Manifests that have new content (True) or are gone (False)."""
    touched: set[str] = field(default_factory=set)
    """Manifests whose permissions may have changed."""
    swapped: bool = False
    """A new version of a ConfigMap volume: any file may have changed."""
    moved: bool = False
    """The path may lead to another directory now."""
    overflow: bool = False
    """Events are missing."""
    lost: str = ""
    """Why nothing more will be heard of this directory, until `attach` is called again."""


class DirectoryWatch:
    """Watches the directory at `path`, and in its parent whether another one takes its place. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inotify = INotify()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._inotify.fileno(), select.POLLIN)
        self._poll.register(self._stop, select.POLLIN)
        self._watch: int | None = None
        self._parent: int | None = None
        self._is_mount = self._was_unmounted = False

    def attach(self) -> None:
        """Watch what is at the path now; what was watched before is not watched any more."""
        if self._watch is not None:
            try:
                self._inotify.rm_watch(self._watch)
            except OSError:
                pass  # it went with its directory
            self._watch = None
        if self._parent is None:
            try:
                self._parent = self._inotify.add_watch(self._path.parent, _PARENT_MASK)
            except OSError:
                pass  # the directory itself is what counts
        is_mount = os.path.ismount(self._path)
        if self._was_unmounted and not is_mount:
            raise OSError(errno.ENODEV, "nothing is mounted there")  # the mount point looks like an empty directory
        self._watch = self._inotify.add_watch(self._path, _MASK)
        self._is_mount, self._was_unmounted = is_mount, False

    def wait(self, timeout_ms: int | None = None) -> bool:
        """Until something is waiting, or the time is over. False: `stop` was called."""
        return all(fd != self._stop for fd, _ in self._poll.poll(timeout_ms))

    def read(self) -> Batch:
        """Everything that is waiting, at once."""
        batch = Batch()
        for wd, mask, _cookie, name in self._inotify.read(timeout=0):
            if mask & flags.Q_OVERFLOW:
                batch.overflow = True
            if wd == self._parent:
                batch.moved |= name == self._path.name
                if mask & flags.IGNORED:
                    self._parent = None
            if wd == self._watch:
                self._add(batch, mask, name)
        return batch

    def stop(self) -> None:
        """Let `wait` return False, in whatever thread it is."""
        os.eventfd_write(self._stop, 1)

    def close(self) -> None:
        self._inotify.close()
        os.close(self._stop)

    def _add(self, batch: Batch, mask: int, name: str) -> None:
        if not name:
            batch.lost = batch.lost or next((why for flag, why in _LOST.items() if mask & flag), "")
            self._was_unmounted |= bool(mask & flags.UNMOUNT) and self._is_mount
        elif name == ATOMIC_LINK:
            batch.swapped |= bool(mask & _COMES)
        elif mask & flags.ISDIR or not is_manifest(name):
            pass
        elif mask & _GOES:
            # Not "look whether it is there": it may be there again, half written, and then its close is still to come.
            batch.files[name] = False
        elif mask & flags.ATTRIB:
            batch.touched.add(name)
        elif not mask & flags.CREATE or self._is_complete(name):
            batch.files[name] = True

    def _is_complete(self, name: str) -> bool:
        """A link is whole as soon as it is there, and nothing more is heard of it; a new file is still to be written."""
        try:
            status = os.lstat(self._path / name)
        except OSError:
            return False
        return stat.S_ISLNK(status.st_mode) or status.st_nlink > 1
