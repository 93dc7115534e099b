"""A pytest plugin (-p tests.vm.patience): an emulated processor takes its time, so whatever is waited for may take longer.

What is waited for ends the wait, so patience costs nothing where all is well; but for silence, which is only known when the
time is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from integration import traffic

FACTOR: Final = 12.0
SILENCE: Final = 2.0

_until = traffic.until


def until(condition: Callable[[], bool], timeout: float = 5.0) -> bool:
    """integration.traffic.until, with more patience."""
    return _until(condition, timeout * FACTOR)


traffic.until = until

from integration import agent, flows  # noqa: E402  # they import it from there

since, timeout = agent.Agent.wait.__defaults__ or ()
agent.Agent.wait.__defaults__ = (since, timeout * FACTOR)
flows.SILENCE = SILENCE  # type: ignore[misc]
