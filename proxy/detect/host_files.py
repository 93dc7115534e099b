"""The files of a machine, or of a container, under a root directory: what reads them for the detector.

Symbolic links are followed inside the root, where their machine sees them: an absolute one begins at the root.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

LARGEST: Final = 4 << 20
"""Bytes of a file that are read. The API server takes no ConfigMap above 1 MiB."""
MOST_NAMES: Final = 5_000
"""Names of a directory that are looked at."""
_LINKS: Final = 40  # MAXSYMLINKS of linux/namei.h


class NotAFile(OSError):
    """It is there, and is no regular file."""


class HostFiles:
    """Implements started.Machine."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def read(self, path: str) -> bytes:
        fd = self._open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise NotAFile(errno.EINVAL, "it is no regular file")
        with open(fd, "rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise OSError(errno.EFBIG, f"it is larger than {LARGEST >> 20} MiB")
        return data

    def names(self, directory: str) -> list[str]:
        try:
            fd = self._open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            found: list[str] = []
            with os.scandir(fd) as entries:
                for entry in entries:
                    if len(found) == MOST_NAMES:
                        break
                    found.append(entry.name)
            return sorted(name for name in found if name.isprintable())
        finally:
            os.close(fd)

    def _open(self, path: str, flags: int) -> int:
        """One step at a time, so that nobody leads it out of the root, or elsewhere meanwhile."""
        waiting = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        above = [os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
        links = 0
        try:
            while waiting:
                part = waiting.pop()
                if part == "..":
                    if len(above) > 1:
                        os.close(above.pop())
                    continue
                target = _link(part, above[-1])
                if target is not None:
                    links += 1
                    if links > _LINKS:
                        raise OSError(errno.ELOOP, "too many symbolic links")
                    waiting += [step for step in reversed(target.split("/")) if step not in ("", ".")]
                    if target.startswith("/"):
                        while len(above) > 1:
                            os.close(above.pop())
                elif waiting:
                    step = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                    above.append(os.open(part, step, dir_fd=above[-1]))
                else:
                    return os.open(part, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above[-1])
            return os.open(".", flags | os.O_CLOEXEC, dir_fd=above[-1])
        finally:
            for fd in above:
                os.close(fd)


def _link(name: str, directory: int) -> str | None:
    """Where a symbolic link leads; None when it is none."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise
