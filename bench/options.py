"""The command line of `python -m bench`."""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.dataplane_services import Size
from bench.plan import FULL, QUICK, QUICK_SIZES, SIZES, Plan, sizes
from bench.run import LAYOUTS, PARTS
from bench.subjects import Subject, ours, peers
from proxy.errors import UsageError

OUTPUT: Final = Path("bench-results")
_ABOUT: Final = """\
Measure the control plane and the data plane at several sizes, beside peers: docs/benchmarks.md says what each figure means. A
table goes to standard output; all samples and the machine's description go to bench.json, plots to *.svg. Needs root.
Measure on a machine that does nothing else."""


@dataclass(frozen=True)
class Options:
    """draw_from: a bench.json to make tables and plots of, instead of measuring."""

    sizes: list[Size]
    subjects: list[Subject]
    plan: Plan
    parts: tuple[str, ...]
    quick: bool
    output: Path
    draw_from: Path | None = None


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Raises SystemExit(2) for what is wrong with the line, UsageError for a peer that cannot be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=_ABOUT)
    parser.add_argument(
        "--sizes",
        action="append",
        metavar="SERVICESxENDPOINTS,…",
        help=f"the default is {','.join(SIZES)}; with --quick {','.join(QUICK_SIZES)}",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, few samples: less than two minutes")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="PATH",
        help="a proxy that takes --config FILE with a KubeProxyConfiguration, as kube-proxy; may be given again",
    )
    parser.add_argument(
        "--peer-mode", choices=("nftables", "iptables"), default="nftables", help="of all peers (%(default)s)"
    )
    parser.add_argument(
        "--rounds", type=_positive(int), help=f"the default is {FULL.rounds}; with --quick {QUICK.rounds}"
    )
    parser.add_argument(
        "--timeout",
        type=_positive(float),
        metavar="SECONDS",
        help=f"what takes longer is given up, and shown so; the default is {FULL.timeout:g}, with --quick {QUICK.timeout:g}",
    )
    parser.add_argument(
        "--parts",
        type=_parts,
        metavar="PART,…",
        help=f"some of {','.join(PARTS)}; the default is all, but {LAYOUTS} only without --peer",
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="DIR", help="for files (%(default)s)")
    parser.add_argument(
        "--draw", type=Path, metavar="FILE", help="measure nothing: make the tables and plots of this bench.json"
    )
    given = parser.parse_args(arguments)
    plan = QUICK if given.quick else FULL
    if given.rounds:
        plan = replace(plan, rounds=given.rounds, layout_rounds=given.rounds)
    if given.timeout:
        plan = replace(plan, timeout=given.timeout)
    try:
        wanted = sizes(given.sizes or (QUICK_SIZES if given.quick else SIZES))
    except ValueError as error:
        parser.error(f"argument --sizes: {error}")
    for path in given.peer:
        check_peer(path)
    if given.peer and given.peer_mode == "iptables":
        check_iptables()
    parts = given.parts or tuple(part for part in PARTS if part != LAYOUTS or not given.peer)
    subjects = [ours(), *peers(given.peer, given.peer_mode)]
    return Options(wanted, subjects, plan, parts, given.quick, given.output, given.draw)


def check_peer(path: str) -> None:
    """Raises UsageError."""
    if not os.path.isfile(path):
        raise UsageError(f"--peer {path}", "there is no such file", "give the path of a program")
    if not os.access(path, os.X_OK):
        raise UsageError(f"--peer {path}", "it is not executable", f"chmod +x {path}")


def check_iptables() -> None:
    """What iptables-legacy commits is told to nobody, so nobody can see when. Raises UsageError."""
    try:
        said = subprocess.run(["iptables", "--version"], capture_output=True, text=True).stdout.strip()
    except OSError as error:
        raise UsageError("iptables", str(error.strerror), "install the package iptables") from None
    if "nf_tables" not in said:
        raise UsageError(
            "--peer-mode iptables",
            f"{said} is not iptables-nft: the kernel tells nobody when iptables-legacy commits",
            "let `iptables` be iptables-nft (update-alternatives --config iptables); "
            f"--parts {LAYOUTS} measures loads with both",
        )


def _positive(kind: type[int] | type[float]) -> type[int] | type[float]:
    def number(text: str) -> float:
        value = kind(text)
        if not 0 < value < 1e6:
            raise ValueError(text)
        return value

    number.__name__ = "number above 0"
    return number  # type: ignore[return-value]


def _parts(text: str) -> tuple[str, ...]:
    wanted = {part.strip() for part in text.split(",")}
    if unknown := sorted(wanted - set(PARTS)):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in wanted)
