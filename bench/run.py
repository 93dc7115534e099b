"""Runs the workers, one size at a time, and gathers what they tell. What has been measured stays, whatever happens."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench import packets_worker, records
from bench.dataplane_services import Size
from bench.machine import CHECKOUT
from bench.plan import Plan
from bench.progress import Bar
from bench.records import DataPlane, Failure, Measurement, Record, Step
from bench.subjects import Subject

CONTROL, LAYOUTS, DATAPLANE = PARTS = ("control", "layouts", "dataplane")
_TAIL: Final = 12


class Run:
    """`document`: grows while it runs."""

    def __init__(
        self, sizes: Sequence[Size], subjects: Sequence[Subject], plan: Plan, document: dict[str, Any], bar: Bar
    ) -> None:
        self._sizes, self._subjects, self._plan = sizes, subjects, plan
        self._document, self._bar = document, bar

    def control(self) -> None:
        for size in self._sizes:
            self._work(CONTROL, "bench.control_worker", size)

    def layouts(self) -> None:
        for size in self._sizes:
            self._work(LAYOUTS, "bench.layouts_worker", size)

    def dataplane(self, quick: bool) -> None:
        """quick: at one size only, of the middle."""
        wanted = [str(size) for size in dataplane_sizes(self._sizes, quick)]
        self._run(DATAPLANE, "bench.packets_worker", "all sizes", {"sizes": wanted, "quick": quick})

    def _work(self, part: str, module: str, size: Size) -> None:
        task = {
            "size": str(size),
            "subjects": [asdict(subject) for subject in self._subjects],
            "plan": asdict(self._plan),
        }
        self._run(part, module, str(size), task)

    def _run(self, part: str, module: str, size: str, task: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory(prefix="bench-") as directory:
            task["directory"] = directory
            errors = Path(directory, "errors")
            with errors.open("wb") as output:
                # In namespaces of its own, of which it is the first process: with it, all ends that it has started.
                process = subprocess.Popen(
                    [
                        *("setpriv", "--pdeathsig", "KILL", "--"),
                        *("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"),
                        *(sys.executable, "-m", module, json.dumps(task)),
                    ],
                    cwd=CHECKOUT,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    text=True,
                    process_group=0,  # ^C is for us
                )
            assert process.stdout
            try:
                for line in process.stdout:
                    if line.endswith("\n"):
                        self._take(records.parse(line))
                code = process.wait()
            finally:
                process.kill()
                process.wait()
                process.stdout.close()
            if code:
                log = errors.read_text(errors="replace").splitlines()[-_TAIL:]
                cause = f"{module} ended with exit code {code}"
                self._failed(Failure(part, size, "bench", "the process that measures", cause, log))

    def _take(self, record: Record) -> None:
        match record:
            case Step():
                self._bar.step(record.text, record.done)
            case Failure():
                self._failed(record)
            case DataPlane():
                self._document["dataplane"] = record.found
            case Measurement():
                self._document["measurements"].append(asdict(record))

    def _failed(self, failure: Failure) -> None:
        self._document["failures"].append(asdict(failure))
        self._bar.note(f"{failure.size} {failure.subject}: {failure.during}: {failure.cause}")
        for line in failure.log:
            self._bar.note(f"    {line}")


def dataplane_sizes(sizes: Sequence[Size], quick: bool) -> Sequence[Size]:
    return [sizes[len(sizes) // 2]] if quick else sizes


def parts_of(
    plan: Plan, sizes: Sequence[Size], subjects: int, layouts: int, parts: Sequence[str], *, quick: bool
) -> int:
    """How many there are, for the bar."""
    return (
        (CONTROL in parts) * plan.rounds * len(sizes) * subjects
        + (LAYOUTS in parts) * plan.layout_rounds * len(sizes) * layouts
        + (DATAPLANE in parts) * (len(dataplane_sizes(sizes, quick)) + len(packets_worker.REST))
    )
