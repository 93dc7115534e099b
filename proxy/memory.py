"""What the C library does with memory that Python has given back to it."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

M_MMAP_THRESHOLD: Final = -3
LARGE: Final = 1 << 20


def return_large_blocks() -> None:
    """Have blocks of a megabyte or more given back to the kernel when they are freed, in this process, for good.

    Left alone, glibc learns from the first large block that is freed to keep the next ones (mallopt(3), dynamic mmap
    threshold): after a list of 40 MB, 30 of them stay resident and unused. Other C libraries have nothing to set.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)
