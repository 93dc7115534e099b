"""The options of `kube-proxy-nft migrate`. Light: every command's start reads this."""

from __future__ import annotations

import argparse
from typing import Any, Final

from proxy import subcommand
from proxy.subcommand import some_text

NAME: Final = "migrate"
SUMMARY: Final = "say what would change on this node with kube-proxy-nft in kube-proxy's place, touching nothing"
FORMATS: Final = ("text", "json", "yaml", "markdown", "html")

_EPILOG: Final = """\
Objects come from the API server: --kubeconfig, the pod's account, what this node's kube-proxy
uses, $KUBECONFIG or ~/.kube/config, in this order; from files, with --manifests; or all of it
from a bundle that `migrate collect` has made. On the node itself its live rules are compared,
too: run it as root, in a pod with hostNetwork and hostPID. Our tables are loaded into a network
namespace that is thrown away. What cannot be read is said, and the rest is reported.

exit codes: 0: ready; 10: ready with changes; 11: blocked, or not known; others: as of all commands
"""
_COLLECT: Final = "write one file with all that the report needs, nothing secret, to read elsewhere with --bundle"


def add_parser(commands: Any) -> tuple[argparse.ArgumentParser, ...]:
    """Add the command to argparse's subparsers. Returns its parser, and those of its own commands."""
    parser = subcommand.add(commands, NAME, SUMMARY, _EPILOG)
    parser.usage = "kube-proxy-nft migrate --dry-run [options]\n       kube-proxy-nft migrate collect [options] FILE"
    parser.add_argument("--dry-run", action="store_true", help="needed, since migrate only ever looks")
    _sources(parser)
    parser.add_argument("--bundle", metavar="FILE", type=some_text, help="report on this bundle; -: standard input")
    parser.add_argument("-o", "--output", choices=FORMATS, default="text", help="how to print it (default: text)")
    parser.add_argument("--output-file", metavar="FILE", type=some_text, help="write it there, not to standard output")
    parser.add_argument("--ruleset", metavar="FILE", type=some_text, help="write the tables there, too, as nft text")
    inner = parser.add_subparsers(dest="migrate_command", metavar="COMMAND", prog="kube-proxy-nft migrate")
    collect = subcommand.add(inner, "collect", _COLLECT)
    _sources(collect, default=argparse.SUPPRESS)
    collect.add_argument("file", metavar="FILE", type=some_text, help="such as node-1.json.gz; -: standard output")
    return parser, collect


def _sources(parser: argparse.ArgumentParser, **more: Any) -> None:
    """Options that both commands have. more: without defaults, what was given before the inner command stays."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--kubeconfig", metavar="FILE", type=some_text, help="how to reach the API server", **more)
    where.add_argument("--manifests", metavar="DIR", type=some_text, help="take the objects from files instead", **more)
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=some_text,
        help="the present kube-proxy's configuration (default: it is looked for); -: standard input",
        **more,
    )
    parser.add_argument(
        "--node",
        metavar="NAME",
        type=some_text,
        help="the Node that it is about (default: the one whose name or addresses this machine has)",
        **more,
    )
    parser.add_argument(
        "--here",
        action="store_true",
        help="this machine is that node, whatever its name and addresses say",
        **more,
    )
    parser.add_argument(
        "--root", metavar="DIR", type=some_text, help="where the node's file system is, such as /host in a pod", **more
    )
