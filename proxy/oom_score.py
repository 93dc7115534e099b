"""oomScoreAdj: how gladly the kernel kills this process when memory is short; -1000 is never, 1000 first."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

LOG = structlog.get_logger()
FILE: Final = Path("/proc/self/oom_score_adj")
NODE_CRITICAL: Final = -997
"""What the kubelet gives the containers of system-node-critical pods: next to the best, and not worth a warning."""


def apply(score: int, file: Path = FILE) -> None:
    """Set it, if it is another. Where that is not allowed, everything else works: a warning."""
    found: int | None = None
    try:
        found = int(file.read_text())
        if found == score:
            return
        file.write_text(str(score))
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        remedy = "give the capability SYS_RESOURCE, or set oomScoreAdj to what the container runtime gives"
        log = LOG.info if found is not None and found <= NODE_CRITICAL else LOG.warning
        log("oom_score_not_set", wanted=score, found=found, cause=cause, remedy=remedy)
    else:
        LOG.info("oom_score_set", value=score, before=found)
