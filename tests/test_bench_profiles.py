"""Where the time of a load and of a change goes can be shown again by anyone."""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import sys

import pytest

from bench import profiles
from bench.machine import CHECKOUT


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace: run as root")
def test_a_load_and_a_change_are_shown_by_module() -> None:
    argv = [sys.executable, "-m", "bench.profiles", "20x2"]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    load, change = re.split(r"\n20x2: ", done.stdout)[1:]
    assert load.startswith("first load") and change.startswith("one endpoint changes")
    assert "rules.wire" in load and "rules.diff" in change
    for part in (load, change):
        shares = [float(share) for share in re.findall(r" ([\d.]+) %  \S+", part)]
        assert 0 < sum(shares) <= 201, part  # by module, and by function
        assert "the kernel (socket calls)" in part, part


def test_no_size_is_told_in_one_line() -> None:
    argv = [sys.executable, "-m", "bench.profiles", "many"]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "'many' is no size" in done.stderr and "Traceback" not in done.stderr


def test_a_function_is_of_a_module() -> None:
    assert profiles.module_of(str(CHECKOUT / "rules" / "diff.py"), "plan") == "rules.diff"
    assert profiles.module_of("~", "<method 'send' of '_socket.socket' objects>") == "the kernel (socket calls)"
    assert profiles.module_of("~", "<method 'decode' of 'msgspec.json.Decoder' objects>") == "msgspec"
    assert profiles.module_of(selectors.__file__, "select") == "selectors"
