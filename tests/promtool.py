"""promtool, which comes with Prometheus: checks rules, and plays them on series that are made up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

INSTALLED = shutil.which(
    "promtool", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
)
needed = pytest.mark.skipif(INSTALLED is None, reason="no promtool is installed")

FIRING = 'count by (alertname, node) (ALERTS{alertstate="firing"})'


def run(*arguments: str) -> str:
    """What it says. Fails where it does."""
    assert INSTALLED
    done = subprocess.run([INSTALLED, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def play(rules: Path, folder: Path, tests: Sequence[Mapping[str, Any]]) -> None:
    """Each of `tests` as promtool's unit tests have them; all in one go, because promtool takes a second to start."""
    file = folder / "tests.json"  # which is YAML, too
    file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "5m", "tests": list(tests)}))
    run("test", "rules", str(file))


def firing(at: str, alerts: Mapping[str, str]) -> dict[str, Any]:
    """A promql_expr_test: these alerts fire then, and no others. alerts: their nodes, '' for none."""
    samples = [
        {"labels": f'{{alertname="{alert}"' + (f', node="{node}"}}' if node else "}"), "value": 1}
        for alert, node in alerts.items()
    ]
    return {"expr": FIRING, "eval_time": at, "exp_samples": samples}
