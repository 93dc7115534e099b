"""The command line: kube-proxy-nft run | render | cleanup | demo."""

from __future__ import annotations

import argparse
import errno
import importlib.metadata
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import structlog

from proxy import logs, node_agent
from proxy.agent import explain, report
from proxy.config import Config, load_config, node_name
from proxy.errors import EXIT_CODES, KernelTooOld, NoPermission, UsageError, UserError
from proxy.events import Inbox
from proxy.manifests import ManifestSource
from proxy.settings import settings
from proxy.state import State
from rules.diff import scratch
from rules.errors import KernelUnreachable, TransactionError
from rules.kernel import Kernel
from rules.layout import LAYOUTS
from rules.objects import Family
from rules.tables import create, remove
from rules.text import render
from rules.transaction import Operation

if TYPE_CHECKING:
    from proxy.apiserver import ApiSource

LOG = structlog.get_logger()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit code (errors.EXIT_CODES)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["demo"]:
        return _demo(arguments[1:])
    options = _parser().parse_args(arguments)
    logs.configure(options.log_level)
    commands = {"run": _run, "render": _render, "cleanup": _cleanup}
    try:
        commands[options.command](options)
    except UserError as error:
        LOG.error("failed", error=str(error), exit_code=error.exit_code)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the last line of defence: a bug is reported as one event
        LOG.error("unexpected_failure", error=f"{type(error).__name__}: {error}", exc_info=True)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    codes = "\n".join(f"  {code:3}  {meaning}" for code, meaning in EXIT_CODES.items())
    parser = argparse.ArgumentParser(
        prog="kube-proxy-nft",
        description="Kubernetes Services in nftables: a kube-proxy whose changes cost the same in clusters of any size.",
        epilog=f"exit codes:\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kube-proxy-nft {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = _command(commands, "run", "program this node, and follow what changes until SIGTERM or SIGINT")
    _common(run)
    run.add_argument(
        "--kubeconfig", metavar="FILE", type=_path, help="how to reach the API server (default: the in-cluster account)"
    )
    run.add_argument(
        "--manifests", metavar="DIR", type=_path, help="take the objects from a directory of manifests instead"
    )
    run.add_argument("--once", action="store_true", help="program everything once, then exit")

    show = _command(commands, "render", "print the tables that a directory of manifests yields, touching nothing")
    _common(show)
    show.add_argument("--manifests", metavar="DIR", type=_path, required=True, help="a directory of manifests")

    clean = _command(commands, "cleanup", "remove our tables from this node, and nothing else")
    _log_level(clean)

    commands.add_parser("demo", help="see it work in network namespaces on this machine", add_help=False)
    return parser


def _command(commands: Any, name: str, summary: str) -> argparse.ArgumentParser:
    text = f"{summary[0].upper()}{summary[1:]}."
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=text)
    return parser


def _path(text: str) -> str:
    if not text:  # an unset variable in a script: not the same as leaving the option out
        raise argparse.ArgumentTypeError("it is empty")
    return text


def _version() -> str:
    try:
        return importlib.metadata.version("kube-proxy-nft")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=_path, help="a KubeProxyConfiguration (v1alpha1)")
    parser.add_argument("--node", metavar="NAME", help="this node's name (default: hostnameOverride, or the host name)")
    _log_level(parser)


def _log_level(parser: argparse.ArgumentParser) -> None:
    levels = ", ".join(logs.LEVELS)
    parser.add_argument(
        "--log-level", metavar="LEVEL", choices=list(logs.LEVELS), default="info", help=f"{levels} (default: info)"
    )


def _run(options: argparse.Namespace) -> None:
    inbox = Inbox()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: inbox.close())
    config = _config(options)
    node = node_name(config, options.node)
    kernel = _kernel()
    source = _source(options, config, inbox, node)
    LOG.info("starting", node=node, source=options.manifests or "API server")
    try:
        node_agent.run(config, node, kernel, source, inbox, once=options.once)
    finally:
        kernel.close()


def _source(options: argparse.Namespace, config: Config, inbox: Inbox, node: str) -> ManifestSource | ApiSource:
    if options.manifests:
        if options.kubeconfig:
            raise UsageError("--manifests and --kubeconfig", "both were given", "choose one source of objects")
        return ManifestSource(options.manifests, inbox)
    from proxy.apiserver import ApiSource, Connection  # the kubernetes package is not loaded for manifests

    return ApiSource(Connection(options.kubeconfig or config.client_connection.kubeconfig), inbox, node)


def _render(options: argparse.Namespace) -> None:
    config = _config(options)
    state = State(node_name(config, options.node))
    inbox = Inbox()
    ManifestSource(options.manifests, inbox).load()
    for event in inbox.take():
        state.apply(event)
    ports = [port for port in state.everything().values() if port]
    report(state.problems)
    made = settings(config)
    rule_options = made.options_on(state.node) or made.options
    addresses = made.nodeport_ips(state.node, ())
    texts = []
    for family in Family:
        operations = create(LAYOUTS[family], rule_options, state.service_cidrs)
        operations += scratch(family, [p for p in ports if p.family is family], addresses[family]).operations
        texts.append(render(operations))
    _print("".join(texts))


def _print(text: str) -> None:
    """To standard output, in nft's encoding whatever the locale's is."""
    if sys.stdout is None:
        raise UserError("standard output", "it is closed")
    try:
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left in the buffer
        if error.errno != errno.EPIPE:  # the reader has had enough
            raise UserError("standard output", error.strerror or str(error)) from None


def _cleanup(_options: argparse.Namespace) -> None:
    kernel = _kernel()
    operations: list[Operation] = [operation for family in Family for operation in remove(LAYOUTS[family])]
    try:
        kernel.commit(operations)
    except TransactionError as error:
        raise explain(error) from error
    finally:
        kernel.close()
    LOG.info("cleaned_up", tables=[f"{family.nft} {LAYOUTS[family].table.name}" for family in Family])


def _demo(arguments: Sequence[str]) -> int:
    try:
        from integration import demo
    except ImportError as error:
        print(f"kube-proxy-nft demo: {error}: it runs from a checkout, after `make demo`", file=sys.stderr)
        return UsageError.exit_code
    return demo.main(list(arguments))


def _config(options: argparse.Namespace) -> Config:
    config = load_config(options.config)
    for path, reason in config.warnings:
        LOG.warning("config_field_unknown", file=options.config, field=path, reason=reason)
    for path, reason in config.without_effect:
        LOG.info("config_field_without_effect", file=options.config, field=path, reason=reason)
    return config


def _kernel() -> Kernel:
    try:
        return Kernel()
    except KernelUnreachable as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            raise NoPermission("nftables", str(error), "run as root") from error
        raise KernelTooOld(
            "nftables", str(error), "use a kernel with CONFIG_NETFILTER_NETLINK and CONFIG_NF_TABLES"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
