"""A directory of manifests that an agent reads: a copy of the examples, to be changed while it runs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from integration.topology import CHECKOUT

EXAMPLES: Final = CHECKOUT / "examples"
CONFIG: Final = EXAMPLES / "config.yaml"


class Manifests:
    """Files in `directory`, which holds a copy of examples/manifests to begin with."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        shutil.copytree(EXAMPLES / "manifests", directory, dirs_exist_ok=True)

    def put(self, name: str, obj: Mapping[str, Any]) -> float:
        """Write an object to `name`, whole: beside it, then renamed. Returns `time.monotonic()` before the rename."""
        path = self.directory / name
        beside = path.with_name(f".{name}.tmp")
        beside.write_text(yaml.safe_dump(dict(obj), sort_keys=False))
        renamed = time.monotonic()
        beside.rename(path)
        return renamed

    def set_endpoints(self, name: str, addresses: Mapping[str, str]) -> float:
        """Replace the endpoints of the EndpointSlice in `name`: address -> node name, all ready. Returns as `put`."""
        obj = yaml.safe_load((self.directory / name).read_text())
        obj["endpoints"] = [
            {"addresses": [address], "nodeName": node, "conditions": {"ready": True}}
            for address, node in addresses.items()
        ]
        return self.put(name, obj)
