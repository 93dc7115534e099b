"""What the command line may say: commands, their options, the help texts."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from typing import Final

from proxy import __version__, config_report, flags, logs, subcommand
from proxy.detect import arguments as detect
from proxy.errors import EXIT_CODES
from proxy.explain import arguments as explain
from proxy.migrate import arguments as migrate
from proxy.ownership import CHOICES
from proxy.status import arguments as status
from proxy.subcommand import some_text
from proxy.trace import arguments as trace

_OURS: Final = ("-h", "--help", "--version")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options, with the command in `command`. Without a command, flags mean `run`: so says kube-proxy's own command
    line. Ends the process, as argparse does, when it is wrong or asks for help."""
    if arguments and arguments[0].startswith("-") and arguments[0] not in _OURS:
        arguments = ["run", *arguments]
    if arguments[:1] == ["run"]:
        arguments = flags.normalise(arguments)
    return _parser().parse_args(arguments)


def version() -> str:
    return __version__


def _parser() -> argparse.ArgumentParser:
    codes = "\n".join(f"  {code:3}  {meaning}" for code, meaning in EXIT_CODES.items())
    parser = argparse.ArgumentParser(
        prog="kube-proxy-nft",
        description="Kubernetes Services in nftables: a kube-proxy whose changes cost the same in clusters of any size.",
        epilog=f"exit codes:\n{codes}",
        formatter_class=subcommand.Help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kube-proxy-nft {version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = subcommand.add(commands, "run", "program this node, and follow what changes until SIGTERM or SIGINT")
    run.usage = "kube-proxy-nft [run] [--config FILE] [--kubeconfig FILE | --manifests DIR] [FLAG ...]"
    _config(run)
    run.add_argument(
        "--kubeconfig",
        metavar="FILE",
        type=some_text,
        help="how to reach the API server (default: the in-cluster account)",
    )
    run.add_argument(
        "--manifests", metavar="DIR", type=some_text, help="take the objects from a directory of manifests instead"
    )
    _node(run)
    run.add_argument("--once", action="store_true", help="program everything once, then exit")
    run.add_argument(
        "--table-ownership",
        choices=CHOICES,
        default="auto",
        help="auto: where the kernel can do it (Linux 6.9), nobody else can change our tables while the agent runs; else as "
        "standby, if it can do that (Linux 5.12) (default); standby: everybody can, and it is undone, and a second table "
        "that nobody else can change answers before and after ours; never: everybody can, and it is undone",
    )
    run.add_argument(
        "--take-over",
        action="store_true",
        help="once our rules are in place and kube-proxy has ended, remove what it has left on this node; connections that "
        "IPVS carries have 15 minutes to end",
    )
    run.add_argument(
        "--status-page",
        choices=["true", "false"],
        nargs="?",
        const="true",
        default="true",
        help="serve a page about this agent at / on metricsBindAddress (default: true)",
    )
    _log_level(run, "info, or what -v says")
    flags.add_arguments(run)
    run.epilog = textwrap.fill(
        "Together with --config, those of kube-proxy's flags that set what the file sets are ignored, and the log says so. "
        "--hostname-override, -v, the flags for logs, and those that are no settings count.",
        subcommand.HELP_WIDTH,
    )

    show = subcommand.add(commands, "render", "print the tables that a directory of manifests yields, touching nothing")
    _config(show)
    show.add_argument("--manifests", metavar="DIR", type=some_text, required=True, help="a directory of manifests")
    _node(show)
    _log_level(show)

    clean = subcommand.add(
        commands, "cleanup", "remove our tables from this node, or what kube-proxy left, and nothing else"
    )
    clean.add_argument(
        "--kube-proxy",
        action="store_true",
        help="instead of our tables, remove what kube-proxy has left, in whichever mode: its chains of iptables and jumps to "
        "them, ipsets, IPVS virtual servers, kube-ipvs0, and its nftables tables; an agent may run meanwhile",
    )
    clean.add_argument("--dry-run", action="store_true", help="with --kube-proxy: list it, and remove nothing")
    clean.add_argument(
        "--force", action="store_true", help="with --kube-proxy: also while kube-proxy runs, which puts it back"
    )
    clean.add_argument(
        "-o", "--output", choices=["text", "json"], help="with --kube-proxy: how to print it (default: text)"
    )
    _log_level(clean)

    config = subcommand.add(commands, "config", "look at a configuration").add_subparsers(
        dest="config_command", required=True, metavar="COMMAND"
    )
    check = subcommand.add(
        config, "check", "print what a configuration means with all defaults, and say what is wrong with it"
    )
    check.add_argument(
        "file", metavar="FILE", type=some_text, help="a KubeProxyConfiguration (v1alpha1); -: standard input"
    )
    check.add_argument(
        "-o", "--output", choices=config_report.FORMATS, default="yaml", help="how to print it (default: yaml)"
    )
    _log_level(check)

    _log_level(detect.add_parser(commands))
    _log_level(explain.add_parser(commands))
    _log_level(status.add_parser(commands))
    _log_level(trace.add_parser(commands))

    for part in migrate.add_parser(commands):
        _log_level(part)

    commands.add_parser("demo", help="see it work in network namespaces on this machine", add_help=False)
    return parser


def _config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=some_text, help="a KubeProxyConfiguration (v1alpha1)")


def _node(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", metavar="NAME", help="this node's name (default: hostnameOverride, or the host name)")


def _log_level(parser: argparse.ArgumentParser, default: str = "info") -> None:
    levels = ", ".join(logs.LEVELS)
    parser.add_argument(
        "--log-level", metavar="LEVEL", choices=list(logs.LEVELS), help=f"{levels} (default: {default})"
    )
