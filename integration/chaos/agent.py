"""The agent as it is, but for its patience: what takes minutes with a real server takes seconds here.

python -m integration.chaos.agent run --kubeconfig …
"""

from __future__ import annotations

import sys

from proxy import cli, trouble, watch


def hurry() -> None:
    """Make time-outs and pauses short. (They are constants: nobody else has a reason to change them.)"""
    for name, seconds in {
        "HEAD_TIMEOUT": 1.5,
        "WATCH_SILENCE": 3.0,
        "LIST_TIMEOUT": 2.5,
        "LIST_SILENCE": 1.5,
        "STREAM_SILENCE": 1.0,
        "STREAM_SECONDS": 3.0,
        "NO_STREAMING_SECONDS": 2.0,
    }.items():
        assert hasattr(watch, name)
        setattr(watch, name, seconds)
    trouble.BACKOFF_FIRST, trouble.BACKOFF_MAX = 0.05, 2.0  # type: ignore[misc]


if __name__ == "__main__":
    hurry()
    sys.exit(cli.main())
