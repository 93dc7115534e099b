"""Whether this kernel can do what the agent is about to ask of it: before anything is programmed."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Sequence
from typing import Final

from proxy.errors import KernelTooOld
from proxy.node_families import NAMES
from proxy.refusals import explain
from rules.errors import TransactionError
from rules.objects import Family
from rules.probe import OLDEST, Missing, is_too_old, probe
from rules.rehearsal import Kernel

NEEDED: Final = f"Linux {OLDEST[0]}.{OLDEST[1]}"


def check(kernel: Kernel, families: Collection[Family], release: str = "") -> dict[Family, str]:
    """The families to leave out, and why (for node_families.report_missing). Raises UserError: nothing would work.

    IPv6 is left out where the kernel lacks something for it, and IPv4 works: most clusters do without, and small systems'
    kernels often lack a module of it. release: uname's, of the running kernel unless given.
    """
    release = release or platform.release()
    if is_too_old(release):
        raise KernelTooOld(f"kernel {release}", f"it is older than {NEEDED}", f"use {NEEDED} or newer")
    try:
        missing = probe(kernel, families)
    except TransactionError as error:
        raise explain(error) from error
    lacking = {one.family for one in missing}
    if not lacking:
        return {}
    if lacking == {Family.IPV6} and Family.IPV4 in families:
        return {Family.IPV6: f"kernel {release} has {_list(missing)}"}
    raise KernelTooOld(
        f"kernel {release}", f"it has {_list(missing)}", "load what is missing as a module, or use a kernel with it"
    )


def _list(missing: Sequence[Missing]) -> str:
    return ", ".join(
        f"no {one.what} for {NAMES[one.family]} ({one.option}: {os.strerror(one.errno)})" for one in missing
    )
