"""Objects from a directory of manifests, and the thread that follows it.

Everything that inotify has waiting is one change: it is read, and its net effect goes to the inbox at once.
There are no timers; only a directory that is gone is looked for once a second.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Final

import structlog

from proxy.errors import SourceError
from proxy.events import Failed, Inbox
from proxy.manifest_directory import ManifestDirectory, Report
from proxy.manifest_watch import DirectoryWatch

log = structlog.get_logger()

RETRY_MS: Final = 1000

_CAUSES: Final = {  # errno: cause, remedy; inotify uses some for what their usual text does not tell
    errno.ENOENT: ("there is no such directory", "create it, or name another one"),
    errno.ENOTDIR: ("this is not a directory", "name the directory that has the manifests"),
    errno.EACCES: ("permission denied", "let this process read the directory"),
    errno.ENOSPC: ("no inotify watch is left", "raise the sysctl fs.inotify.max_user_watches"),
    errno.EMFILE: ("no inotify instance is left", "raise the sysctl fs.inotify.max_user_instances"),
}


class ManifestSource:
    """Puts the Services, EndpointSlices, Nodes and ServiceCIDRs of a directory's .yaml, .yml and .json files.

    A file is read when it was renamed into place or closed after writing. One that is broken keeps the last good
    version of its objects. Of an object that is there twice, the first file by name counts.
    `report`, if given, hears of each problem besides the log (see proxy.manifest_directory.Report), in the thread
    that found it: the caller's or the one that follows.
    """

    def __init__(self, directory: str | Path, inbox: Inbox, report: Report | None = None) -> None:
        self._path = Path(os.path.abspath(directory))
        self._inbox = inbox
        self._report: Report = report or (lambda problem, what, reason: None)
        self._directory = ManifestDirectory(self._path, self._report)
        self._following: tuple[DirectoryWatch, threading.Thread] | None = None
        self._lost = ""  # why the directory cannot be followed at present

    def load(self) -> None:
        """Read the directory and put one Replace for each kind. Raises SourceError."""
        try:
            self._directory.rescan()
        except OSError as e:
            raise self._source_error(e) from None
        self._put_everything()

    def start(self) -> None:
        """`load`, then follow the directory in a thread until `stop`. Raises SourceError."""
        watch = None
        try:
            watch = DirectoryWatch(self._path)
            watch.attach()  # before the scan, so that nothing is missed in between
            self._directory.rescan()
            self._absorb(watch)  # what came during the scan belongs to the first picture
        except OSError as e:
            if watch:
                watch.close()
            raise self._source_error(e) from None
        self._put_everything()
        thread = threading.Thread(target=self._follow, args=(watch,), name="manifests", daemon=True)
        self._following = watch, thread
        thread.start()

    def stop(self) -> None:
        """End the thread and wait for it. Does nothing if there is none."""
        if self._following:
            watch, thread = self._following
            watch.stop()
            thread.join()
            watch.close()
            self._following = None

    def _follow(self, watch: DirectoryWatch) -> None:
        try:
            while watch.wait(RETRY_MS if self._lost else None):
                try:
                    self._step(watch)
                except Exception:
                    log.error("manifests_unexpected", path=str(self._path), exc_info=True, remedy="report this bug")
                    self._recover(watch, "an unexpected failure")
                    self._put_changes()
        except Exception as e:  # it failed right after starting afresh, too
            log.error("manifests_stopped", path=str(self._path), exc_info=True, remedy="report this bug")
            self._inbox.put(Failed(e))

    def _step(self, watch: DirectoryWatch) -> None:
        try:
            self._absorb(watch)
        except OSError as e:
            self._recover(watch, _cause(e)[0])
        else:
            if self._lost:
                self._recover(watch, self._lost)
        self._put_changes()

    def _absorb(self, watch: DirectoryWatch) -> None:
        """Take in all that inotify has waiting. OSError: the directory cannot be followed any more."""
        batch = watch.read()
        if self._lost:
            return  # events of its parent: perhaps it is back
        if batch.lost:
            raise OSError(errno.ESTALE, batch.lost)
        if batch.overflow:
            log.warning("manifest_events_missed", path=str(self._path), remedy="none needed: reading all files again")
            watch.attach()  # that it was lost may be among what was missed
        if batch.overflow or batch.swapped:
            self._directory.rescan()
            return
        readable = {name: True for name in batch.touched if self._directory.is_unreadable(name)}
        if batch.files or readable or batch.moved:
            self._directory.update(readable | batch.files)

    def _recover(self, watch: DirectoryWatch, why: str) -> None:
        """Start afresh with what is at the path now; if nothing is, keep what there was."""
        try:
            watch.attach()
            self._directory.rescan()
        except OSError as e:
            now = _cause(e)[0]
            if not self._lost:
                cause = why if why == now else f"{why}; {now}"
                remedy = "put it back; its last good objects stay in use, and it is looked for every second"
                log.error("manifest_directory_lost", path=str(self._path), cause=cause, remedy=remedy)
                self._report("directory_lost", str(self._path), cause)
            self._lost = now
        else:
            log.info("manifest_directory_back", path=str(self._path), after=why)
            self._lost = ""

    def _put_everything(self) -> None:
        self._directory.take_changes()  # reports the duplicates; the events are all in the complete lists
        self._inbox.put(*self._directory.everything())

    def _put_changes(self) -> None:
        if events := self._directory.take_changes():
            self._inbox.put(*events)

    def _source_error(self, error: OSError) -> SourceError:
        return SourceError(str(self._path), *_cause(error))


def _cause(error: OSError) -> tuple[str, str]:
    text = error.strerror or str(error)
    return _CAUSES.get(error.errno or 0, (text, "make the directory readable for this process"))
