"""The iptables programs of this node: which are there, which may be run, what they print. They are asked to list, no more.

A program is only run for a variant and family whose tables exist: iptables-legacy-save would make the kernel load modules
and create tables otherwise.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from rules.objects import Family

Variant = Literal["nft", "legacy"]

PATH: Final = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin"
ENVIRONMENT: Final = {"PATH": PATH, "LC_ALL": "C"}
PATIENCE: Final = 20.0
"""Seconds, for all programs together. iptables-nft-save takes about 4 for the rules of 10,000 Services."""
LEAST: Final = 0.5
"""Seconds for each, where another one has used up the rest."""
LARGEST: Final = 1 << 30
CHUNK: Final = 1 << 20
_PREFIX: Final = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}


class Patience:
    """What is left of the time that the programs of one look may take."""

    def __init__(self, seconds: float = PATIENCE) -> None:
        self._left = seconds

    def run(self, command: list[str]) -> bytes | bytearray:
        """As `run`."""
        began = time.monotonic()
        try:
            return run(command, max(self._left, LEAST))
        finally:
            self._left -= time.monotonic() - began


class ProgramError(Exception):
    """A program cannot be run, or failed. `remedy`: what to do."""

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause)
        self.remedy = remedy


class Printed(Struct, frozen=True):
    """source: the program's name. text: what it printed."""

    source: str
    text: bytes | bytearray


def save(variant: Variant, family: Family, patience: Patience | None = None) -> Printed:
    """What this variant's tables hold. Only for tables that exist. Raises ProgramError."""
    program = find(variant, family)
    if not program:
        name = f"{_PREFIX[family]}-{variant}-save"
        raise ProgramError(f"{name} is not installed", "run this on the node itself, or in an image with iptables")
    return Printed(os.path.basename(program), (patience or Patience()).run([program]))


def find(variant: Variant, family: Family) -> str:
    """Path of the program that lists a variant's tables; "" if there is none."""
    prefix = _PREFIX[family]
    for name in (f"{prefix}-{variant}-save", f"{prefix}-save"):
        path = shutil.which(name, path=PATH)
        if path and (name != f"{prefix}-save" or variant_of(path) == variant):
            return path
    return ""


def variant_of(path: str) -> Variant | None:
    """Of a program named without one. It is a link to the real one, most often; else it is asked."""
    name = Path(path).resolve().name
    if "nft" in name:
        return "nft"
    if "legacy" in name or name == "xtables-multi":  # before 1.8 there was but one
        return "legacy"
    try:
        said = run([path, "--version"], patience=5.0)
    except ProgramError:
        return None
    return "nft" if b"nf_tables" in said else "legacy" if b"legacy" in said else None


def run(command: list[str], patience: float = PATIENCE) -> bytes | bytearray:
    """Its standard output. Raises ProgramError if it fails, does not end in time, or prints more than LARGEST."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            start_new_session=True,
        )
    except OSError as error:
        raise ProgramError(f"{command[0]} cannot be run: {error.strerror}") from error
    with process:
        try:
            printed, said = _collect(process, time.monotonic() + patience)
            process.wait(patience)
        except (subprocess.TimeoutExpired, TimeoutError):
            os.killpg(process.pid, signal.SIGKILL)  # and what a script has started
            cause = f"{command[0]} did not end within {patience:.3g} s"
            raise ProgramError(cause, "run it by hand: another program may hold /run/xtables.lock") from None
        except ValueError as error:
            os.killpg(process.pid, signal.SIGKILL)
            raise ProgramError(f"{command[0]}: {error}") from None
    if process.returncode:
        first = said.decode(errors="replace").strip().partition("\n")[0]
        raise ProgramError(
            f"{command[0]} failed with {process.returncode}: {first[:300]}", "run it by hand; it needs CAP_NET_ADMIN"
        )
    return printed


def _collect(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytearray, bytearray]:
    """Both outputs until they end. A bytearray grows in place: there are never two copies of what may be 100 MB."""
    assert process.stdout is not None and process.stderr is not None
    found = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for descriptor in found:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            events = selector.select(max(0.0, deadline - time.monotonic()))
            if not events:
                raise TimeoutError
            for key, _ in events:
                chunk = os.read(key.fd, CHUNK)
                if not chunk:
                    selector.unregister(key.fd)
                found[key.fd] += chunk
                if len(found[key.fd]) > LARGEST:
                    raise ValueError(f"more than {LARGEST >> 20} MiB")
    printed, said = found.values()
    return printed, said
