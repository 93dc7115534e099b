"""Tells of objects that had to be left out."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from proxy.object_faults import Problem

LOG = structlog.get_logger()


def report(problems: Iterable[Problem]) -> None:
    """Log each."""
    for problem in problems:
        name = f"{problem.namespace}/{problem.name}" if problem.namespace else problem.name
        LOG.warning(
            "object_left_out",
            kind=problem.kind,
            object=f"{problem.kind} {name}",
            reason=problem.reason,
            remedy="mend the object; it is read again when it changes",
        )
