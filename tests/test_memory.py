"""proxy.memory: what is freed is the kernel's again."""

from __future__ import annotations

import platform
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import os
    import sys
    from proxy.memory import return_large_blocks

    def resident():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if sys.argv[1] == "yes":
        return_large_blocks()
    block = bytearray(30 << 20)
    del block  # what glibc learns from
    before = resident()
    block = bytearray(b"x" * (20 << 20))
    above = [bytearray(b"x" * 60_000) for _ in range(100)]
    del block
    print((resident() - before) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is told")
def test_a_large_block_is_given_back_when_it_is_freed() -> None:
    kept = {}
    for told in ("yes", "no"):
        argv = [sys.executable, "-c", textwrap.dedent(PROGRAM), told]
        kept[told] = int(subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout)
    assert kept["yes"] < 12
    assert kept["no"] >= 20  # or there is nothing to be done any more
