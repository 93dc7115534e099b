"""Whether the configuration file has come to say something else: then the proxy ends, to be started with it."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from proxy.config import Config
from proxy.config_report import fields
from proxy.inotify import INotify, flags

LOG = structlog.get_logger()

POLL_SECONDS: Final = 30.0
"""For what inotify does not tell: a directory further up that is exchanged, a file system of another machine."""

_MASK: Final = (
    flags.CREATE
    | flags.DELETE
    | flags.MOVED_TO
    | flags.MOVED_FROM
    | flags.CLOSE_WRITE
    | flags.ATTRIB
    | flags.DELETE_SELF
    | flags.MOVE_SELF
    | flags.ONLYDIR
)
_MOST_LINKS: Final = 40


class ConfigWatch:
    """Calls `on_change`, once, from a thread of its own, when the file at `path` means something else than `current`.

    load: reads the file's content as at the start; where it raises an exception, `current` stays in use.
    """

    def __init__(
        self, path: str, current: Config, load: Callable[[bytes], Config], on_change: Callable[[], None]
    ) -> None:
        self.changed = False
        self._path, self._current, self._load, self._on_change = path, fields(current), load, on_change
        self._seen: bytes | None = None
        self._is_lost = False
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="watch-config", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        os.eventfd_write(self._stop, 1)
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._stop)

    def _run(self) -> None:
        while True:
            watch = _Places(Path(self._path))
            try:
                # After the watch is set up: what happens from here on is heard of.
                if self._is_changed() or not watch.wait(self._stop, POLL_SECONDS):
                    break
            finally:
                watch.close()
        if self.changed:
            self._on_change()

    def _is_changed(self) -> bool:
        try:
            data = Path(self._path).read_bytes()
        except OSError as e:
            if not self._is_lost:
                self._say("config_file_lost", cause=e.strerror or str(e), remedy="put it back")
            self._is_lost = True
            return False
        self._is_lost = False
        if data == self._seen:
            return False
        self._seen = data
        try:
            found = fields(self._load(data))
        except Exception as e:  # UserError, or a bug: either way the configuration in use works
            self._say("config_file_wrong", cause=str(e), remedy="correct it: the next start will fail")
            return False
        fields_changed = [name for name, value in found.items() if value != self._current[name]]
        if fields_changed:
            LOG.info("config_file_changed", file=self._path, fields=fields_changed, then="end, to start with it")
        self.changed = bool(fields_changed)
        return self.changed

    def _say(self, event: str, *, cause: str, remedy: str) -> None:
        LOG.warning(event, file=self._path, cause=cause, then="the configuration in use stays", remedy=remedy)


class _Places:
    """inotify on the places that decide what a path leads to; without it, where the kernel has none left, `wait` lasts
    for its time."""

    def __init__(self, path: Path) -> None:
        self._watched: dict[int, tuple[Path, set[str]]] = {}
        try:
            self._inotify: INotify | None = INotify()
        except OSError:
            self._inotify = None
            return
        for directory, names in places(path).items():
            try:
                self._watched[self._inotify.add_watch(directory, _MASK)] = directory, names
            except OSError:
                pass  # it is gone, or unreadable: then so is the file

    def wait(self, stop: int, seconds: float) -> bool:
        """Until one of the places may have changed, or the time is over. False: `stop` can be read."""
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(stop, select.POLLIN)
        if self._inotify:
            poll.register(self._inotify.fileno(), select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in poll.poll(left * 1000)}
            if stop in ready:
                return False
            if ready and self._is_told():
                return True
        return True

    def close(self) -> None:
        if self._inotify:
            self._inotify.close()

    def _is_told(self) -> bool:
        assert self._inotify
        return any(self._counts(*event) for event in self._inotify.read(timeout=0))

    def _counts(self, wd: int, mask: int, _cookie: int, name: str) -> bool:
        directory, names = self._watched.get(wd, (Path(), set[str]()))
        if name and name not in names:
            return False
        # A new file is still to be written, and then closed; a link is whole at once.
        return not mask & flags.CREATE or (directory / name).is_symlink()


def places(path: Path) -> dict[Path, set[str]]:
    """Directories, with the names in them that decide what `path` leads to: the links on the way, and the file. (A
    ConfigMap volume has two links: the file is one to ..data/FILE, and ..data one to the newest version.)"""
    found: dict[Path, set[str]] = {}
    here, links = Path("/"), 0
    left = list(reversed(path.absolute().parts[1:]))
    while left:
        name = left.pop()
        if name == "..":
            here = here.parent
            continue
        try:
            target = Path(os.readlink(here / name))
        except OSError:  # no link
            if not left:
                found.setdefault(here, set()).add(name)
            here /= name
            continue
        found.setdefault(here, set()).add(name)
        links += 1
        if links > _MOST_LINKS:
            break
        if target.is_absolute():
            here = Path("/")
        left += reversed([part for part in target.parts if part != "/"])
    return found
