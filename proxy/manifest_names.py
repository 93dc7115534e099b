"""Names in a directory of manifests behind which there is no file to read: pipes, directories, links that lead nowhere."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from proxy.manifest_parse import is_manifest
from proxy.unread import Unread

FILE: Final = "manifest "
"""What each Unread of a file begins with."""
_KINDS: Final = (
    (stat.S_ISDIR, "it is a directory: only files of the directory itself are read"),
    (stat.S_ISFIFO, "it is a pipe, and no file"),
    (stat.S_ISSOCK, "it is a socket, and no file"),
    (stat.S_ISCHR, "it is a device, and no file"),
    (stat.S_ISBLK, "it is a device, and no file"),
)


def no_files(directory: str) -> list[Unread]:
    """Each of them that is called as a manifest is, and each directory. Nothing is opened; [] if the directory is gone."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    found = ((name, _why_not(os.path.join(directory, name), is_manifest(name))) for name in names)
    at = os.path.abspath(directory)
    return [Unread(f"{FILE}{os.path.join(at, name)}", cause, _REMEDY) for name, cause in found if cause]


def _why_not(path: str, is_named_so: bool) -> str:
    """Why it is not read; "" if it is, or is no manifest by its name."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "a link that leads nowhere" if is_named_so else ""
    except OSError as error:
        return f"{error.strerror}" if is_named_so and error.errno != errno.ELOOP else ""  # who opens it tells that one
    hidden = os.path.basename(path).startswith(".")  # as those of a ConfigMap's versions
    if stat.S_ISREG(mode) or hidden or not (is_named_so or stat.S_ISDIR(mode)):
        return ""
    return next((cause for is_kind, cause in _KINDS if is_kind(mode)), "it is no file")


_REMEDY: Final = "give the manifests as files of this directory, or take this name away"
