"""The options of `kube-proxy-nft detect`. Light: every command's start reads this."""

from __future__ import annotations

import argparse
from typing import Any, Final

from proxy import subcommand
from proxy.detect import versions
from proxy.subcommand import some_text

NAME: Final = "detect"
SUMMARY: Final = "say what of kube-proxy's modes will break with which version of Kubernetes, here or in a cluster"
FORMATS: Final = ("text", "json", "yaml")

_EPILOG: Final = """\
Without --config and --all-nodes: this node, from all that can be read of it, and the API server's
view of it, if --kubeconfig is given or the pod that this runs in has an account. What cannot be
read is said, and no failure. With --config: that file, and nothing else of this machine. With
--all-nodes: the API server alone; the kubeconfig is --kubeconfig, $KUBECONFIG, ~/.kube/config or
the pod's account, in this order.
"""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to argparse's subparsers."""
    parser = subcommand.add(commands, NAME, SUMMARY, _EPILOG)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--config",
        metavar="FILE",
        type=some_text,
        help="judge this file, and read nothing of the machine; -: standard input",
    )
    where.add_argument("--all-nodes", action="store_true", help="judge the whole cluster, through its API server alone")
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        type=some_text,
        help="how to reach the API server; with --config: to ask its version",
    )
    parser.add_argument(
        "--kubernetes-version",
        metavar="V",
        type=_version,
        help="judge by this version, such as 1.37, not the cluster's",
    )
    parser.add_argument("--node", metavar="NAME", type=some_text, help="this node's name (default: the host's)")
    parser.add_argument(
        "--proxy-url",
        metavar="URL",
        type=some_text,
        action="append",
        help="where this node's kube-proxy serves /proxyMode, if not on port 10249 of the loopback; may be repeated",
    )
    parser.add_argument("-o", "--output", choices=FORMATS, default="text", help="how to print it (default: text)")
    parser.add_argument("--exit-code", action="store_true", help="exit with 1 if anything is deprecated or worse")
    parser.add_argument(
        "--watch", action="store_true", help="print it again when something changes, until SIGINT or SIGTERM"
    )
    return parser


def _version(text: str) -> str:
    if versions.parse(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no version: write it as 1.37 or v1.37.2")
    return text
