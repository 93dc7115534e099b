"""What this kernel is, and whether it has something: built in, as a module that is loaded or could be, or not at all."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from proxy.detect.evidence import Kernel, Place

Presence = Literal["there", "loadable", "absent", "unknown"]
Support = Callable[[str, str], Presence]
"""Of a module and its kernel option: ("ip_vs", "CONFIG_IP_VS")."""

LARGEST: Final = 16 << 20


def could_be_there(presence: Presence) -> bool:
    """False where asking for it could only make the kernel load it."""
    return presence in ("there", "unknown")


class KernelFiles:
    """Where a kernel tells what it has. `root`: of the file system; in a container it may show less than the node's."""

    def __init__(self, root: Path = Path("/"), release: str = "") -> None:
        self.release = release or os.uname().release
        self._root = root

    def presence(self, module: str, option: str) -> Presence:
        if (self._root / "sys/module" / module).exists() or re.search(rf"^{module} ", self._loaded, re.MULTILINE):
            return "there"
        if re.search(rf"/{module}\.ko", self._built_in):
            return "there"
        if self._config:
            found = re.search(rf"^{option}=([ym])", self._config, re.MULTILINE)
            return "absent" if not found else "there" if found[1] == "y" else "loadable"
        if self._modules and self._built_in:
            return "loadable" if re.search(rf"/{module}\.ko", self._modules) else "absent"
        return "unknown"

    @property
    def ticks(self) -> int:
        """CONFIG_HZ; 0: not known."""
        found = re.search(r"^CONFIG_HZ=([0-9]+)$", self._config, re.MULTILINE)
        return int(found[1]) if found else 0

    @cached_property
    def _loaded(self) -> str:
        return self._read("proc/modules")

    @cached_property
    def _built_in(self) -> str:
        return self._read(f"lib/modules/{self.release}/modules.builtin")

    @cached_property
    def _modules(self) -> str:
        return self._read(f"lib/modules/{self.release}/modules.dep")

    @cached_property
    def _config(self) -> str:
        places = ("proc/config.gz", f"boot/config-{self.release}", f"lib/modules/{self.release}/config")
        found = (self._read(place) for place in places)
        return next((text for text in found if "CONFIG_NET=" in text), "")

    def _read(self, path: str) -> str:
        """'' if it is not there, or not what it should be."""
        try:
            whole = self._root / path
            with gzip.open(whole) if whole.suffix == ".gz" else whole.open("rb") as file:
                return file.read(LARGEST).decode(errors="replace")
        except (OSError, EOFError, zlib.error):
            return ""


def kernel(files: KernelFiles, *, has_ipvs: bool) -> Kernel:
    """has_ipvs: it was seen at work, whatever the files say."""
    ipvs = files.presence("ip_vs", "CONFIG_IP_VS")
    present = has_ipvs or ipvs in ("there", "loadable")
    return Kernel(
        place=Place("kernel", "uname"),
        release=files.release,
        ipvs="present" if present else "absent" if ipvs == "absent" else "unknown",
    )
