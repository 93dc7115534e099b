"""Build the Dockerfile's stages without a container engine: every RUN, COPY and ENV of it, in chroots made by debootstrap.

    python -m integration.check_dockerfile [--base DIR] [--mirror URL]

Then the entry point is run inside the last stage, also as deploy/ runs it: read-only, with the DaemonSet's
capabilities. The size of the tree is printed. Needs root, debootstrap and a network. `debian:bookworm-slim` is stood in for by debootstrap's minbase variant, which is larger: it keeps
documentation and locales. Instructions that are not used in this Dockerfile are refused, not guessed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CERTIFICATES = "/run/certificates.crt"

# The chroot's mounts live in a mount namespace of the command, so they are gone when it ends, however it ends.
IN_CHROOT = """
root=$1 mode=$2; shift 2
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t sysfs sysfs "$root/sys"
mount -o "remount,bind,$mode" "$root"
exec chroot "$root" "$@"
"""


@dataclass
class Stage:
    """One FROM: its tree, and what its instructions have set so far."""

    tree: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    directory: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)

    def run(self, argv: list[str], *, read_only: bool = False, expected: int = 0) -> None:
        """Run `argv` inside, in the stage's directory and environment. SystemExit unless the exit code is `expected`."""
        settings = {"HOME": "/root", **self.environment, **_network_settings(self.tree)}
        inside = ["env", "-i", f"--chdir={self.directory}", *(f"{k}={v}" for k, v in settings.items()), *argv]
        whole = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", IN_CHROOT, "sh", str(self.tree)]
        whole.append("ro" if read_only else "rw")
        code = subprocess.run([*whole, *inside], stdin=subprocess.DEVNULL, check=False).returncode
        if code != expected:
            sys.exit(f"exit code {code}, not {expected}: {shlex.join(argv)}")


def _network_settings(tree: Path) -> dict[str, str]:
    """What a container engine or its host would provide for pip: a package index, certificates."""
    settings = {name: os.environ[name] for name in ("PIP_INDEX_URL",) if name in os.environ}
    if bundle := os.environ.get("SSL_CERT_FILE"):
        shutil.copyfile(bundle, tree / CERTIFICATES.lstrip("/"))
        settings["PIP_CERT"] = CERTIFICATES
    return settings


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, its arguments) of a Dockerfile, with continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    words = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(word[0].upper(), word[1]) for word in words]


def ignored(path: Path, patterns: list[str]) -> bool:
    """Whether .dockerignore keeps this path (relative to the context) out: the last pattern that matches decides."""
    result = False
    for pattern in patterns:
        wanted = pattern.removeprefix("!")
        names = [str(p) for p in (path, *path.parents) if p.name]
        if wanted.startswith("**/"):
            names, wanted = list(path.parts), wanted.removeprefix("**/")
        if any(fnmatch(name, wanted) for name in names):
            result = not pattern.startswith("!")
    return result


def make_context(into: Path) -> None:
    """Copy the files that git would give a fresh clone and that .dockerignore lets through."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listing.stdout.split("\0")):
        if not ignored(Path(name), patterns) and (ROOT / name).is_file():
            target = into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)


def copy(arguments: str, stage: Stage, context: Path, stages: dict[str, Stage]) -> None:
    """COPY: from the context or, with --from, from an earlier stage. A directory's contents go into the target."""
    words = shlex.split(arguments)
    if words[0].startswith("--from="):
        context = stages[words.pop(0).removeprefix("--from=")].tree
    *sources, target = words
    into = stage.tree / os.path.join(stage.directory, target).lstrip("/")
    for name in sources:
        source = context / name.lstrip("/")
        if source.is_dir():
            shutil.copytree(source, into, symlinks=True, dirs_exist_ok=True)
        elif target.endswith("/"):
            into.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, into)
        else:
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, into)


def build(base: Path, context: Path, work: Path) -> Stage:
    """Follow the Dockerfile from its first FROM to its end; the last stage."""
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for name, arguments in instructions((ROOT / "Dockerfile").read_text()):
        print(f"== {name} {arguments}", flush=True)
        if name == "FROM":
            image, _, label = arguments.partition(" AS ")
            if not image.startswith("debian:bookworm"):
                sys.exit(f"FROM {image}: only Debian bookworm can be made here")
            stage = Stage(work / f"stage-{len(stages)}")
            subprocess.run(["cp", "-a", "--reflink=auto", str(base), str(stage.tree)], check=True)
            stages[label or str(len(stages))] = stage
            continue
        if stage is None:
            sys.exit(f"{name} before FROM")
        match name:
            case "RUN":
                stage.run(["/bin/sh", "-c", arguments])
            case "COPY":
                copy(arguments, stage, context, stages)
            case "ENV":
                stage.environment |= dict(word.split("=", 1) for word in shlex.split(arguments))
            case "WORKDIR":
                stage.directory = os.path.join(stage.directory, arguments)
                (stage.tree / stage.directory.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "ENTRYPOINT":
                stage.entrypoint = json.loads(arguments)
            case "CMD":
                stage.command = json.loads(arguments)
            case _:
                sys.exit(f"{name}: not known here")
    if stage is None:
        sys.exit("Dockerfile: no FROM")
    return stage


def check(stage: Stage) -> None:
    """The image starts, and has nothing that only a build needs."""
    if stage.command != ["run"]:
        sys.exit(f"CMD is {stage.command}, not ['run']")
    for option in ("--version", "--help", "run --help"):
        print(f"== {shlex.join(stage.entrypoint)} {option}", flush=True)
        stage.run([*stage.entrypoint, *option.split()])
    for unwanted in ("pip", "pip3", "gcc", "cc", "git"):
        stage.run(["/bin/sh", "-c", f"! command -v {unwanted}"])
    if slow := [path for path in sources(stage.tree) if not bytecode(path).exists()]:
        sys.exit(f"no bytecode, so each start compiles {len(slow)} modules, such as {slow[0]}")
    check_as_deployed(stage)


def sources(tree: Path) -> list[Path]:
    """The modules of the image: the standard library and what is installed."""
    [library] = tree.glob("usr/lib/python3.*")
    return [path for top in (library, tree / "opt/venv/lib") for path in top.rglob("*.py")]


def bytecode(source: Path) -> Path:
    [version] = re.findall(r"/python3\.(\d+)/", str(source))[-1:]
    return source.parent / "__pycache__" / f"{source.stem}.cpython-3{version}.pyc"


def check_as_deployed(stage: Stage) -> None:
    """The agent programs a network namespace with what the DaemonSet gives it, and finds the way to an API server."""
    [names] = re.findall(r"^ +add: \[(.+)\]$", (ROOT / "deploy/base/daemonset.yaml").read_text(), re.MULTILINE)
    given = ",".join(f"+{name.lower()}" for name in names.split(", "))
    contained = ["unshare", "--net", "setpriv", f"--bounding-set=-all,{given}", "--inh-caps=-all", "--no-new-privs"]
    shutil.copytree(ROOT / "examples", stage.tree / "examples")
    program = [*contained, *stage.entrypoint, "run", "--node=node0"]
    for options, code in (
        (["--once", "--config=/examples/config.yaml", "--manifests=/examples/manifests"], 0),
        (["--once", "--kubeconfig=/there-is-none"], 4),
    ):
        print(f"== {shlex.join([*program, *options])}", flush=True)
        stage.run([*program, *options], read_only=True, expected=code)
    shutil.rmtree(stage.tree / "examples")


def megabytes(tree: Path) -> float:
    done = subprocess.run(["du", "-sxB1", str(tree)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0]) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the Dockerfile's stages in chroots and run the result.")
    parser.add_argument("--base", type=Path, help="a minimal Debian 12 tree to start from (default: make one)")
    parser.add_argument("--mirror", default="", help="where debootstrap gets packages (default: its own choice)")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("check_dockerfile: needs root, for chroot")
    with tempfile.TemporaryDirectory(prefix="check-dockerfile-") as name:
        work = Path(name)
        base = options.base
        if base is None:
            base = work / "base"
            mirror = [options.mirror] if options.mirror else []
            subprocess.run(["debootstrap", "--variant=minbase", "bookworm", str(base), *mirror], check=True)
            subprocess.run(["chroot", str(base), "apt-get", "clean"], check=True)
        context = work / "context"
        context.mkdir()
        make_context(context)
        image = build(base, context, work)
        check(image)
        (image.tree / CERTIFICATES.lstrip("/")).unlink(missing_ok=True)
        print(f"== image {megabytes(image.tree):.0f} MB, of which the base is {megabytes(base):.0f} MB")


if __name__ == "__main__":
    main()
