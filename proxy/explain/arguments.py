"""The options of `kube-proxy-nft explain`. Light: every command's start reads this."""

from __future__ import annotations

import argparse
from typing import Any, Final

from proxy import subcommand

SUMMARY: Final = "say where a connection goes, with which chances, and why not elsewhere"
_EPILOG: Final = """\
FROM   outside | node | an address | pod/NAME | pod/NAMESPACE/NAME
TO     10.96.0.10:53/udp | [fd00::a]:443 | svc/NAME | svc/NAMESPACE/NAME:PORT/udp | node:30080

The objects come from --manifests, or from an API server: --kubeconfig, or the pod's account. The
answer is what the rules that they yield do with that connection's first packet; with --live also
what the rules in this node's kernel do with it, and where the two differ.
"""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to argparse's subparsers."""
    parser = subcommand.add(commands, "explain", SUMMARY, _EPILOG)
    parser.add_argument("source", metavar="FROM", help="who connects")
    parser.add_argument("target", metavar="TO", help="to what")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--manifests", metavar="DIR", help="take the objects from a directory of manifests")
    where.add_argument("--kubeconfig", metavar="FILE", help="how to reach the API server")
    parser.add_argument("--config", metavar="FILE", help="a KubeProxyConfiguration (v1alpha1)")
    parser.add_argument("--node", metavar="NAME", help="this node's name (default: hostnameOverride, or the host name)")
    parser.add_argument("--live", action="store_true", help="compare with the table in this node's kernel")
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="how to print it (default: text)"
    )
    return parser
