"""Running programs that are, or have, a kube-proxy: what they were started with. Files are read where they see them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from proxy.detect.evidence import Evidence
from proxy.detect.host_files import HostFiles
from proxy.detect.launch import launches
from proxy.detect.processes import RunningProxy
from proxy.detect.started import read_launch
from proxy.detect.words import words


def read_processes(running: Iterable[RunningProxy], node: str = "") -> list[Evidence]:
    """running: as processes.scan gives it. k3s and RKE2 hide their arguments: what they have of them is in their files,
    for which gather_host looks."""
    found: list[Evidence] = []
    for process in running:
        place = msgspec.structs.replace(process.place, node=node)
        for launch in launches(words(process.argv), {}):
            found += read_launch(launch, place, HostFiles(Path(process.root)))
    return found
