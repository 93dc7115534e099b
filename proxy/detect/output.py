"""Standard output, of which a reader may have had enough."""

from __future__ import annotations

import errno
import os
import sys

from proxy.errors import UserError


def put(text: str) -> bool:
    """Write and flush, in UTF-8 whatever the locale's encoding is. False: nobody reads any more. Raises UserError."""
    if sys.stdout is None:
        raise UserError("standard output", "it is closed")
    try:
        sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
        sys.stdout.buffer.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left in the buffer
        if error.errno != errno.EPIPE:
            raise UserError("standard output", error.strerror or str(error)) from None
        return False
    return True


def is_terminal() -> bool:
    """Whether a person looks at it."""
    return sys.stdout is not None and sys.stdout.isatty()
