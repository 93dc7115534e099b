"""The process that measures the data plane, and tells what it finds as it goes on: see `records`. What it starts, and the
signals that it gets, are its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from bench import dataplane, records
from bench.dataplane_services import Size
from bench.plan import title
from bench.records import DataPlane, Step

REST: Final = {"flow": "established flows", "rate": "connections a second", "affinity": "session affinity"}


def parts(found: Mapping[str, Any]) -> Iterator[str]:
    """What has been measured: connections at each size, and REST."""
    for size in found.get("connect", {}):
        yield f"connect() at {title(Size.of(size))}"
    for key, name in REST.items():
        if key in found:
            yield name


def main(task: dict[str, Any]) -> None:
    found: dict[str, Any] = {}
    told: set[str] = set()

    def tell(now: str) -> None:
        new = [part for part in parts(found) if part not in told]
        told.update(new)
        if new:
            records.tell(DataPlane(found))
        for part in new:
            records.tell(Step(f"data plane: {part} measured", done=1))
        records.tell(Step(f"data plane: {now}"))

    dataplane.measure(task["sizes"], task["quick"], tell, found=found)
    tell("done")
    records.tell(DataPlane(found))  # with the load average at the end


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
