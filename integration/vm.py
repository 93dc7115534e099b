"""Run a command on another kernel than this machine's, in a virtual machine that sees this machine's files.

    python -m integration.vm -- .venv/bin/python -m pytest tests/vm

What the command writes to files is gone with the machine. Its output and exit code are passed on; IN_VM is set for it.
virtme-ng does the work. The processor is emulated, which is slow but works everywhere; `--kvm` is fast where it works (in
a virtual machine, a /dev/kvm need not).

The emulated machine does not know how slow it is: while it works, its clocks count instructions, a thousand million a
second; while it waits, they go with ours. So deadlines inside mean the same on a busy machine as on an idle one.
"""

from __future__ import annotations

import argparse
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from proxy.errors import UserError

KERNELS: Final = "/boot/vmlinuz-6.1.*"
SECONDS: Final = 1800.0
MEMORY: Final = "1G"
GOODBYE_SECONDS: Final = 60.0
"""Between the end of the output and that of the machine."""

IN_VM: Final = "KUBE_PROXY_NFT_VM"
"""Environment variable by which a test knows that the kernel is its own to change."""

EXIT_NO_ANSWER: Final = 124
"""The time was up; as timeout(1) has it."""
LONGEST_COMMAND: Final = 900
"""It gets to the machine in the kernel's command line, which has 2048 bytes, as base64, among others."""

EMULATED: Final = ("-cpu", "max,-erms,-fsrm,-la57,-avx,-avx2", "-icount", "shift=0")
"""Without what takes an emulator longer than what it stands for. 2^0 ns an instruction."""

_NEEDED: Final = {
    "vng": "install it: pip install virtme-ng",
    "virtme-run": "install it: pip install virtme-ng",
    "qemu-system-x86_64": "install it: apt-get install qemu-system-x86",
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.vm", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kernel", default=KERNELS, help="pattern; the newest file counts (%(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time limit (%(default)g)")
    parser.add_argument("--memory", default=MEMORY, help="%(default)s")
    parser.add_argument("--kvm", action="store_true", help="do not emulate the processor")
    parser.add_argument("command", nargs="+", help="after --")
    chosen = parser.parse_args(argv)
    try:
        return run(chosen.command, kernel=chosen.kernel, seconds=chosen.seconds, memory=chosen.memory, kvm=chosen.kvm)
    except UserError as error:
        print(f"vm: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def run(
    command: Sequence[str],
    *,
    kernel: str = KERNELS,
    seconds: float = SECONDS,
    memory: str = MEMORY,
    kvm: bool = False,
) -> int:
    """The command's exit code; EXIT_NO_ANSWER; 255 if the machine ended without an exit code. Raises UserError."""
    shell = script(command, Path.cwd())
    # virtme-ng is in the venv, whose bin need not be in PATH.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    for program, remedy in _NEEDED.items():
        if shutil.which(program, path=path) is None:
            raise UserError(f"program {program!r}", "it is not installed", remedy)
    arguments = ["--run", str(newest(kernel)), "--disable-microvm", "--user", "root", "--memory", memory]
    # Nobody attacks this machine, and the kernel's defences (retpolines, …) are slow to emulate.
    arguments += ["--append", "mitigations=off"]
    if not kvm:
        # Several processors whose clocks count instructions take turns, and wait for each other in vain.
        arguments += ["--disable-kvm", "--cpus", "1", *(f"--qemu-opts={option}" for option in EMULATED)]
    machine = subprocess.Popen(
        ["vng", *arguments, "--", shell],
        stdin=subprocess.DEVNULL,
        # A pipe, because QEMU opens its standard output once more, and would begin a file anew.
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PATH": path},
        start_new_session=True,
    )
    try:
        if _pass_on(machine, time.monotonic() + seconds):
            return machine.wait(timeout=GOODBYE_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _end(machine)
    print(f"vm: not done after {seconds:g} seconds: ended", file=sys.stderr)
    return EXIT_NO_ANSWER


def newest(pattern: str) -> Path:
    """The kernel with the highest version among those that match. Raises UserError if none does."""
    at = Path(pattern)
    found = [path for path in at.parent.glob(at.name) if path.is_file()]
    if not found:
        raise UserError(f"kernel {pattern}", "there is none", "install one: apt-get install linux-image-amd64")
    return max(found, key=lambda path: [int(part) for part in _numbers(path.name)])


def _numbers(name: str) -> list[str]:
    return "".join(letter if letter.isdecimal() else " " for letter in name).split()


def script(command: Sequence[str], directory: Path) -> str:
    """What the machine's shell runs. Raises UserError if it is too long."""
    there = f"mount -t tmpfs tmpfs /var/run && cd {shlex.quote(str(directory))}"
    whole = f"{there} && exec env {IN_VM}=1 {shlex.join(command)}"
    if len(whole.encode()) > LONGEST_COMMAND:
        raise UserError("command", f"it has more than {LONGEST_COMMAND} bytes", "put it into a script")
    return whole


def _pass_on(machine: subprocess.Popen[bytes], end: float) -> bool:
    """Copy its output until it closes it. False: the time was up before."""
    assert machine.stdout
    output = machine.stdout.fileno()
    while (left := end - time.monotonic()) > 0:
        if select.select([output], [], [], left)[0]:
            piece = os.read(output, 1 << 16)
            if not piece:
                return True
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    return False


def _end(machine: subprocess.Popen[bytes]) -> None:
    """The machine and all that belongs to it."""
    try:
        os.killpg(machine.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    machine.wait()
    assert machine.stdout
    machine.stdout.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # in order, so that the machine ends too
    sys.exit(main())
