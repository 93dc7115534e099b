"""Errors of the kernel, as the detector reports what it could not read."""

from __future__ import annotations

import errno

from proxy.detect.evidence import Place, Unreadable

PERMISSION = "run it as root, or with the capability CAP_NET_ADMIN"


def because(place: Place, error: OSError | ValueError, remedy: str = PERMISSION) -> Unreadable:
    """remedy: for a missing permission."""
    if isinstance(error, ValueError):
        return Unreadable(
            place=place, cause=f"what the kernel says cannot be understood: {error}", remedy="report this bug"
        )
    if error.errno in (errno.EPERM, errno.EACCES):
        return Unreadable(place=place, cause="no permission", remedy=remedy)
    cause = error.strerror or str(error)
    return Unreadable(place=place, cause=cause, remedy="try again; if it stays so, report it with the kernel's version")
