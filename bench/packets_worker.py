"""The process that measures the data plane, and tells what it finds: see `records`. What it starts, and the signals that it
gets, are its own."""

from __future__ import annotations

import json
import sys
from typing import Any

from bench import dataplane, records
from bench.records import DataPlane, Step


def main(task: dict[str, Any]) -> None:
    found = dataplane.measure(task["sizes"], task["quick"], lambda text: records.tell(Step(f"data plane: {text}")))
    records.tell(DataPlane(found))
    records.tell(Step("data plane measured", done=1))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
