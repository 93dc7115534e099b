"""Objects from files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from integration.apiserver.kinds import KINDS
from integration.apiserver.status import Object


def load(paths: Iterable[Path]) -> Iterator[Object]:
    """The objects in YAML or JSON files, of the kinds that a proxy follows; directories are searched."""
    for path in paths:
        files = sorted(path.rglob("*.[yj][as][mo][ln]")) if path.is_dir() else [path]
        for file in files:
            for document in yaml.safe_load_all(file.read_text()):
                for obj in document.get("items", [document]) if document else ():
                    if obj.get("kind") in KINDS:
                        yield obj
