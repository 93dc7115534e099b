"""inotify_simple, without its search for the C library, which starts ldconfig or a compiler: the agent starts no process,
and its container may have neither."""

from __future__ import annotations

import ctypes

import inotify_simple
from inotify_simple import INotify, flags

__all__ = ["INotify", "flags"]

inotify_simple._libc = ctypes.CDLL(None, use_errno=True)  # what it is to find is in this process already
