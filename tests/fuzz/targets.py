"""All targets."""

from __future__ import annotations

from typing import Final

from tests.fuzz import on_configuration, on_detection, on_netlink, on_objects, on_tables, on_traces, on_watch
from tests.fuzz.hunt import Target

TARGETS: Final[tuple[Target, ...]] = (
    *on_objects.TARGETS,
    *on_watch.TARGETS,
    *on_configuration.TARGETS,
    *on_netlink.TARGETS,
    *on_tables.TARGETS,
    *on_detection.TARGETS,
    *on_traces.TARGETS,
)
