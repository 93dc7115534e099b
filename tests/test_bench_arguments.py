"""The benchmarks of single things: what they take, and what they say of anything else."""

from __future__ import annotations

import subprocess
import sys

import pytest

SINGLE = ("affinity", "conntrack", "dataplane", "layouts", "load", "scrape")


@pytest.mark.parametrize("module", SINGLE)
@pytest.mark.parametrize(("given", "code"), [("--help", 0), ("nonsense", 2), ("0x10", 2)])
def test_a_wrong_argument_is_named(module: str, given: str, code: int) -> None:
    ended = subprocess.run([sys.executable, "-m", f"bench.{module}", given], capture_output=True, text=True, timeout=60)
    assert ended.returncode == code
    assert f"usage: python -m bench.{module} " in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    assert code == 0 or given in ended.stderr
