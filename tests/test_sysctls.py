"""What is asked of the kernel, written to a directory of our own and to a real network namespace."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy import sysctls
from proxy.config import Conntrack
from proxy.sysctls import apply, wanted
from tests.netns import in_new_namespace

PREFIX = "net.netfilter.nf_conntrack_"
NOTHING = Conntrack(max_per_core=0, tcp_established_timeout=0, tcp_close_wait_timeout=0)


TIMES = {"tcp_timeout_established": 86400, "tcp_timeout_close_wait": 3600}


def short(found: dict[str, int]) -> dict[str, int]:
    return {name.removeprefix(PREFIX): value for name, value in found.items()}


@pytest.mark.parametrize(
    ("conntrack", "cores", "expected"),
    [
        # kube-proxy's defaults: on a small machine, on a bigger one, and on one that would be given too much.
        (Conntrack(), 2, {"max": 131072, "buckets": 32768} | TIMES),
        (Conntrack(), 8, {"max": 262144, "buckets": 65536} | TIMES),
        (Conntrack(), 512, {"max": 1048576, "buckets": 262144} | TIMES),
        (Conntrack(max_per_core=1000, min=0), 4, {"max": 4000, "buckets": 1000} | TIMES),
        (Conntrack(min=1 << 21), 64, {"max": 1 << 21, "buckets": 1 << 19} | TIMES),
        (Conntrack(max_per_core=0), 8, TIMES),
        (NOTHING, 8, {}),
        (
            Conntrack(0, 10**6, 0.5, 2.9, True, 30.0, 180.0),
            8,
            {
                "tcp_timeout_established": 1,
                "tcp_timeout_close_wait": 2,
                "tcp_be_liberal": 1,
                "udp_timeout": 30,
                "udp_timeout_stream": 180,
            },
        ),
    ],
)
def test_wanted(conntrack: Conntrack, cores: int, expected: dict[str, int]) -> None:
    assert short(wanted(conntrack, cores)) == expected


ALL = Conntrack(1, 400_000, 86400.0, 3600.0, True, 30.0, 180.0)


def tree(root: Path, **values: int | str) -> Path:
    directory = root / "net" / "netfilter"
    directory.mkdir(parents=True)
    for name, value in values.items():
        (directory / f"nf_conntrack_{name}").write_text(f"{value}\n")
    return root


def read(root: Path) -> dict[str, int]:
    files = (root / "net" / "netfilter").iterdir()
    return {file.name.removeprefix("nf_conntrack_"): int(file.read_text()) for file in files}


def run(conntrack: Conntrack, root: Path) -> list[Any]:
    with capture_logs() as logs:
        apply(conntrack, root)
    return logs


FRESH = {
    "max": 262144,
    "buckets": 262144,
    "tcp_timeout_established": 432000,
    "tcp_timeout_close_wait": 60,
    "tcp_be_liberal": 0,
    "udp_timeout": 30,
    "udp_timeout_stream": 120,
}


def test_what_differs_is_written(tmp_path: Path) -> None:
    root = tree(tmp_path, **FRESH)
    logs = run(ALL, root)
    assert read(root) == {
        "max": 400_000,
        "buckets": 262144,  # enough for 400,000 entries
        "tcp_timeout_established": 86400,  # a time-out is lowered, too
        "tcp_timeout_close_wait": 3600,
        "tcp_be_liberal": 1,
        "udp_timeout": 30,
        "udp_timeout_stream": 180,
    }
    assert [(log["event"], log["name"].removeprefix(PREFIX), log["before"], log["value"]) for log in logs] == [
        ("sysctl_set", "max", 262144, 400_000),
        ("sysctl_set", "tcp_timeout_established", 432000, 86400),
        ("sysctl_set", "tcp_timeout_close_wait", 60, 3600),
        ("sysctl_set", "udp_timeout_stream", 120, 180),
        ("sysctl_set", "tcp_be_liberal", 0, 1),
    ]
    assert run(ALL, root) == []


def test_a_limit_is_never_lowered(tmp_path: Path) -> None:
    root = tree(tmp_path, **FRESH | {"max": 10**7, "buckets": 8})
    assert next(iter(run(ALL, root)))["name"] == sysctls.BUCKETS
    assert read(root)["max"] == 10**7
    assert read(root)["buckets"] == 100_000


def test_nothing_is_asked_for(tmp_path: Path) -> None:
    assert run(NOTHING, tmp_path) == []


def test_without_conntrack_it_is_said(tmp_path: Path) -> None:
    logs = run(ALL, tmp_path)
    assert len(logs) == 7
    assert logs[0] == {
        "event": "sysctl_not_set",
        "log_level": "warning",
        "name": "net.netfilter.nf_conntrack_max",
        "wanted": 400_000,
        "found": None,
        "cause": "No such file or directory",
        "remedy": "load the kernel module nf_conntrack before the start (and where KUBE_PROXY_NFT_SYSCTLS is set, mount the"
        " node's /proc/sys/net/netfilter below what it names)",
    }


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (
            errno.EROFS,
            (
                "mount the node's /proc/sys/net/netfilter writable and set KUBE_PROXY_NFT_SYSCTLS: see docs/install.md;"
                " or set it on the node"
            ),
        ),
        (errno.EACCES, "set it in the node's own network namespace: it can be written there only"),
        (errno.EPERM, "set it in the node's own network namespace: it can be written there only"),
        (errno.EINVAL, "set a value that the kernel takes"),
    ],
)
def test_one_that_cannot_be_written_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str
) -> None:
    root = tree(tmp_path, **FRESH)
    real = Path.write_text

    def write_text(path: Path, text: str) -> int:
        if path.name == "nf_conntrack_max":
            raise OSError(code, os.strerror(code))
        return real(path, text)

    monkeypatch.setattr(Path, "write_text", write_text)
    warnings = [log for log in run(ALL, root) if log["log_level"] == "warning"]
    assert [(log["name"], log["wanted"], log["found"], log["cause"], log["remedy"]) for log in warnings] == [
        (sysctls.MAX, 400_000, 262144, os.strerror(code), remedy)
    ]
    assert read(root) | {"max": 400_000} == {
        "max": 400_000,
        "buckets": 262144,
        "tcp_timeout_established": 86400,
        "tcp_timeout_close_wait": 3600,
        "tcp_be_liberal": 1,
        "udp_timeout": 30,
        "udp_timeout_stream": 180,
    }


def test_the_environment_says_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBE_PROXY_NFT_SYSCTLS", str(tree(tmp_path, **FRESH)))
    with capture_logs() as logs:
        apply(Conntrack(0, 0, 77, 0))
    assert [(log["event"], log["value"]) for log in logs] == [("sysctl_set", 77)]
    assert read(tmp_path)["tcp_timeout_established"] == 77


def test_an_empty_variable_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBE_PROXY_NFT_SYSCTLS", "")
    read_from: list[Path] = []
    monkeypatch.setattr(sysctls, "_set", lambda root, name, value: read_from.append(root))
    apply(Conntrack())
    assert set(read_from) == {Path("/proc/sys")}


def test_nonsense_is_no_crash(tmp_path: Path) -> None:
    root = tree(tmp_path, **FRESH | {"udp_timeout_stream": "much"})
    (warning,) = [log for log in run(ALL, root) if log["event"] == "sysctl_not_set"]
    assert warning["name"] == f"{PREFIX}udp_timeout_stream"
    assert "'much" in warning["cause"]


@pytest.mark.root
def test_in_a_network_namespace() -> None:
    """Time-outs belong to the namespace, the limit to the node: asked for here, it can only be warned of."""
    directory = Path("/proc/sys/net/netfilter")
    nft = "add table ip t; add chain ip t c { type nat hook output priority 0; }"

    def values() -> dict[str, int]:
        return {name: int((directory / f"nf_conntrack_{name}").read_text()) for name in FRESH}

    def action() -> tuple[dict[str, int], dict[str, int], list[Any]]:
        subprocess.run(["nft", nft], check=True)  # loads conntrack where nothing else has
        before = values()
        logs = run(Conntrack(1, before["max"] + 4, 77.0, 78.0, True, 79.0, 80.0), Path("/proc/sys"))
        return before, values(), logs

    before, after, logs = in_new_namespace(action)
    assert after == {
        "max": before["max"],
        "buckets": before["buckets"],
        "tcp_timeout_established": 77,
        "tcp_timeout_close_wait": 78,
        "tcp_be_liberal": 1,
        "udp_timeout": 79,
        "udp_timeout_stream": 80,
    }
    warnings = [log for log in logs if log["log_level"] == "warning"]
    assert sysctls.MAX in {log["name"] for log in warnings}
    assert {log["name"] for log in warnings} <= sysctls.RAISED
    assert {log["cause"] for log in warnings} == {"Permission denied"}
    if directory.exists():
        assert values()["tcp_timeout_established"] != 77


@pytest.mark.root
def test_what_the_kernel_refuses_is_said() -> None:
    def action() -> list[Any]:
        subprocess.run(["nft", "add table ip t; add chain ip t c { type nat hook output priority 0; }"], check=True)
        return run(Conntrack(0, 0, 0, 0, udp_timeout=1e12), Path("/proc/sys"))

    (warning,) = in_new_namespace(action)
    assert (warning["name"], warning["wanted"], warning["cause"], warning["remedy"]) == (
        f"{PREFIX}udp_timeout",
        10**12,
        "Invalid argument",
        "set a value that the kernel takes",
    )
