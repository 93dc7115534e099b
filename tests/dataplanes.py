"""What kube-proxy v1.36.2 left behind in each mode (tests/data/dataplanes), put back into a namespace."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import pickle
import re
import shutil
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from rules.netlink import attribute
from tests.netns import Namespace

DATA = Path(__file__).parent / "data" / "dataplanes"
NOBODY = 65534
ACCOUNTING_SUBSYSTEM, ACCOUNTING_NAME = 7, 1  # NFNL_SUBSYS_ACCT, NFACCT_NAME
_LIBC = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip where one of these programs is not installed."""
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def recorded(mode: str, name: str) -> str:
    return (DATA / mode / name).read_text()


def inside(namespace: Namespace, action: Callable[[], T], *, privileged: bool = True) -> T:
    """As Namespace.inside; `privileged` False: as the user nobody."""
    return namespace.inside(action if privileged else lambda: _as_nobody(action))


def _as_nobody(action: Callable[[], T]) -> T:
    """In a process of its own: a thread alone cannot give up its groups."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.write(writer, pickle.dumps(action()))  # little enough for a pipe
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        said = file.read()
    os.waitpid(child, 0)
    assert said, "it failed in the child"
    result: T = pickle.loads(said)
    return result


def run(namespace: Namespace, *command: str, stdin: str | None = None) -> None:
    done = namespace.run(*command, stdin=stdin)
    assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stderr[:2000]}"


def restore_iptables(namespace: Namespace, mode: str, variant: str) -> None:
    """variant: "nft" or "legacy"."""
    inside(namespace, lambda: make_counters("ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts"))
    for program in ("iptables", "ip6tables"):
        rules = recorded(mode, f"{program}-save.txt")
        run(
            namespace, f"{program}-{variant}-restore", stdin=re.sub(r"^\[\d+:\d+\] -A", "-A", rules, flags=re.MULTILINE)
        )


def recorded_chains(mode: str, program: str) -> tuple[int, int]:
    """How many KUBE-* chains, and how many of them KUBE-SVC-*."""
    lines = recorded(mode, f"{program}-save.txt").splitlines()
    return tuple(sum(line.startswith(start) for line in lines) for start in (":KUBE-", ":KUBE-SVC-"))  # type: ignore[return-value]


def make_counters(*names: str) -> None:
    """What kube-proxy's rules count with (nfacct): linux/netfilter/nfnetlink_acct.h."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as sock:
        for name in names:
            body = attribute(ACCOUNTING_NAME, name.encode() + b"\0")
            flags = 0x1 | 0x4 | 0x400  # request, acknowledge, create
            sock.send(struct.pack("=IHHIIBBH", 20 + len(body), ACCOUNTING_SUBSYSTEM << 8, flags, 1, 0, 0, 0, 0) + body)
            (code,) = struct.unpack_from("=i", sock.recv(4096), 16)
            if code and -code != errno.EBUSY:  # it is there already
                raise OSError(-code, os.strerror(-code))


def restore_ipsets(namespace: Namespace) -> None:
    run(namespace, "ipset", "restore", stdin=recorded("ipvs", "ipset-save.txt"))


def restore_nftables(namespace: Namespace) -> None:
    namespace.nft("-f", str(DATA / "nftables" / "nft-ruleset.txt"))


def restore_addresses(namespace: Namespace, names: Sequence[str], kind: str = "bridge") -> None:
    """Interfaces with these names, and their recorded addresses. (kube-ipvs0 is of the kind dummy, where there is it.)"""
    commands = []
    for interface in json.loads(recorded("ipvs", "ip-addr.json")):
        if (name := interface["ifname"]) in names:
            commands.append(f"link add {name} type {kind}")
            for address in interface["addr_info"]:
                if address["scope"] == "global":
                    commands.append(f"addr add {address['local']}/{address['prefixlen']} dev {name}")
    run(namespace, "ip", "-batch", "-", stdin="\n".join(commands))
