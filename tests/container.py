"""A DaemonSet's container, as a kubelet and a container engine would make it, without either: namespaces, mounts,
capabilities. The program is this checkout's, with the interpreter that runs the tests.

What is missing of a real one: its image, cgroups, seccomp, and AppArmor or SELinux.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.netns import Namespace

REPO = Path(__file__).parents[1]
PROGRAM = (sys.executable, "-m", "proxy")
NSENTER, UNSHARE, SETPRIV, CHROOT, SH = (
    shutil.which(name) or name for name in ("nsenter", "unshare", "setpriv", "chroot", "sh")
)
NODE = "node0"

# $1: what to mount, a line each: read-only or not, source, target. The new root has nothing but that.
SCRIPT = r"""
root=/mnt
mount -t tmpfs -o mode=755 tmpfs "$root"
mkdir "$root/proc" "$root/dev"
: >"$root/dev/null"
mount --bind /dev/null "$root/dev/null"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
printf '%s\n' "$1" | while IFS="$(printf '\t')" read -r mode source target; do
    if [ -L "$source" ]; then
        cp -d "$source" "$root$target"
        continue
    elif [ -d "$source" ]; then
        mkdir -p "$root$target"
    else
        mkdir -p "$(dirname "$root$target")"
        : >"$root$target"
    fi
    mount --bind "$source" "$root$target"
    mount -o "remount,bind,$mode" "$root$target"
done
mount -o remount,ro "$root"
shift
exec "$@"
"""


@dataclass(frozen=True)
class Mount:
    source: Path
    target: Path
    read_only: bool = True


def pod_spec(daemonset: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = daemonset["spec"]["template"]["spec"]
    return spec


def container(daemonset: dict[str, Any]) -> dict[str, Any]:
    [only] = pod_spec(daemonset)["containers"]
    found: dict[str, Any] = only
    return found


def capabilities(daemonset: dict[str, Any]) -> set[str]:
    """Those that the container has. It must have dropped those that an engine gives by itself."""
    named = container(daemonset)["securityContext"]["capabilities"]
    assert named["drop"] == ["ALL"]
    return set(named["add"])


def environment(daemonset: dict[str, Any]) -> dict[str, str]:
    fields = {"spec.nodeName": NODE, "metadata.name": "kube-proxy-nft-x7x7x"}
    return {
        entry["name"]: entry["value"] if "value" in entry else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for entry in container(daemonset)["env"]
    }


def arguments(daemonset: dict[str, Any]) -> list[str]:
    """With $(NAME) in the place of what the environment has."""
    values = environment(daemonset)
    return [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], text) for text in container(daemonset)["args"]]


def mounts(daemonset: dict[str, Any], configmaps: Path) -> list[Mount]:
    """configmaps: where there is a directory for each ConfigMap."""
    found = []
    volumes = {volume["name"]: volume for volume in pod_spec(daemonset)["volumes"]}
    for mount in container(daemonset)["volumeMounts"]:
        volume = volumes[mount["name"]]
        source = Path(volume["hostPath"]["path"]) if "hostPath" in volume else configmaps / volume["configMap"]["name"]
        found.append(Mount(source, Path(mount["mountPath"]), mount.get("readOnly", False)))
    return found


def start(
    namespace: Namespace, daemonset: dict[str, Any], mounts: list[Mount], command: list[str], **more: Any
) -> subprocess.Popen[str]:
    """Run `command` in it, on a node whose network is `namespace`."""
    system = [path for name in ("usr", "bin", "sbin", "lib", "lib64", "etc") if (path := Path("/", name)).exists()]
    python = [path for path in {Path(sys.prefix), Path(sys.base_prefix)} if not path.is_relative_to("/usr")]
    image = [Mount(path, path) for path in (*system, *sorted(python), REPO)]
    table = "\n".join(f"{'ro' if m.read_only else 'rw'}\t{m.source}\t{m.target}" for m in (*image, *mounts))
    bounding = ",".join(("-all", *(f"+{name.lower()}" for name in sorted(capabilities(daemonset)))))
    less = [SETPRIV, "--bounding-set", bounding, "--inh-caps", "-all", "--no-new-privs"]
    argv = [NSENTER, f"--net=/proc/{os.getpid()}/fd/{namespace.descriptor}"]
    argv += [UNSHARE, "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    argv += [SH, "-euc", SCRIPT, "sh", table, CHROOT, "/mnt", *less, *command]
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPO), "PYTHONDONTWRITEBYTECODE": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    return subprocess.Popen(argv, env=variables | environment(daemonset), text=True, cwd="/", **streams)


def first_process(engine: subprocess.Popen[str]) -> int:
    """The pid of what runs in it."""
    [pid] = Path(f"/proc/{engine.pid}/task/{engine.pid}/children").read_text().split()
    return int(pid)
