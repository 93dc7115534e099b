"""Nodes for the migration's tests: a namespace with the recorded addresses and one of the recorded dataplanes, and all that
can be seen of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.dataplanes import (
    DATA,
    restore_addresses,
    restore_ipsets,
    restore_iptables,
    restore_nftables,
    run,
)
from tests.netns import Namespace

REPO = Path(__file__).parents[1]
NODE = "node0"
MODES = ("iptables", "iptables-legacy", "nftables", "ipvs")
"""Without IPVS's virtual servers, which this kernel may not have."""

STATE = (
    ("nft", "list", "ruleset"),
    ("iptables-nft-save", "-c"),
    ("ip6tables-nft-save", "-c"),
    ("ipset", "save"),
    ("ip", "-d", "link"),
    ("ip", "addr"),
    ("ip", "rule"),
    ("ip", "route", "show", "table", "all"),
    ("ip", "-6", "route", "show", "table", "all"),
    ("cat", "/proc/net/nf_conntrack", "/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"),
    ("sh", "-c", "cd /proc/sys/net; find . -type f | sort | xargs grep -H . 2>/dev/null"),
)
"""What shows a node's whole state. Those that are not there say so, each time the same."""
UNSTEADY = ("./ipv4/tcp_mem", "./ipv4/udp_mem", "stable_secret", "./unix/", "random")


def objects() -> list[dict[str, Any]]:
    """The recorded cluster's, each with its kind."""
    items: list[dict[str, Any]] = json.loads((DATA / "objects.json").read_text())["items"]
    for item in items:
        if "addressType" in item:
            item["apiVersion"], item["kind"] = "discovery.k8s.io/v1", "EndpointSlice"
        elif "addresses" in item.get("status", {}):
            item["apiVersion"], item["kind"] = "v1", "Node"
        else:
            item["apiVersion"], item["kind"] = "v1", "Service"
    return items


def write_manifests(directory: Path, items: Sequence[dict[str, Any]] | None = None) -> Path:
    directory.mkdir(exist_ok=True)
    found = objects() if items is None else items
    (directory / "objects.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}))
    return directory


def config(mode: str) -> Path:
    return DATA / mode.partition("-")[0] / "config.json"


def make(mode: str) -> Namespace:
    """A node whose kube-proxy ran in this mode."""
    namespace = Namespace()
    run(namespace, "ip", "link", "set", "lo", "up")
    restore_addresses(namespace, ["eth0"])
    if mode == "nftables":
        restore_nftables(namespace)
    elif mode == "ipvs":
        restore_ipsets(namespace)
        restore_iptables(namespace, "ipvs", "nft")
        restore_addresses(namespace, ["kube-ipvs0"])
    elif mode:
        restore_iptables(namespace, "iptables", "legacy" if mode.endswith("legacy") else "nft")
    return namespace


def state(namespace: Namespace) -> dict[str, str]:
    found = {}
    for command in STATE:
        said = namespace.run(*command).stdout
        said = re.sub(
            r"^(ipv[46] .*?) +\d+ \d+ (?=(\w+ )?src=)", r"\1 ", said, flags=re.MULTILINE
        )  # a flow's time runs
        kept = (line for line in said.splitlines() if not line.startswith("#"))
        found[" ".join(command)] = "\n".join(line for line in kept if not any(word in line for word in UNSTEADY))
    return found


def migrate(
    namespace: Namespace | None, *arguments: str, user: str = "", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the command there; None: right here. user: "nobody", for one without privileges."""
    command = [sys.executable, "-P", "-m", "proxy", "migrate", *arguments]
    if user:
        command = ["setpriv", f"--reuid={user}", "--regid=nogroup", "--clear-groups", "--", *command]
    if namespace is not None:
        command = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{namespace.descriptor}", *command]
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPO), "HOME": "/nonexistent"} | (environment or {})
    return subprocess.run(command, capture_output=True, env=variables, timeout=120, cwd="/")


def report_of(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    """Of a run with -o json."""
    assert done.returncode in (0, 10, 11), done.stderr.decode()[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found
