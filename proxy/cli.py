"""The command line: kube-proxy-nft run | render | cleanup | config check | demo."""

from __future__ import annotations

import argparse
import contextlib
import errno
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from proxy import (
    command_line,
    config_file,
    config_report,
    instance,
    logs,
    node_agent,
    node_families,
    oom_score,
    privileges,
    signals,
    sysctls,
)
from proxy.config import Config, Given, load_config, node_name, parse_config
from proxy.config_watch import ConfigWatch
from proxy.conntrack_socket import FlowTable
from proxy.detect.output import put
from proxy.errors import ConfigChanged, KernelTooOld, NoPermission, UsageError, UserError
from proxy.events import Inbox
from proxy.flags import PORTS, TLS_FLAGS, GivenFlags
from proxy.manifests import ManifestSource
from proxy.ownership import Ownership
from proxy.problems import report
from proxy.refusals import explain
from proxy.settings import settings
from proxy.state import State
from proxy.tls_files import tls_files
from rules import standby
from rules.diff import scratch
from rules.errors import KernelUnreachable, TransactionError
from rules.kernel import Kernel
from rules.layout import LAYOUTS
from rules.objects import Family
from rules.tables import create, remove
from rules.text import render
from rules.transaction import Operation

if TYPE_CHECKING:
    from proxy.apiserver import ApiSource, Connection

LOG = structlog.get_logger()
DEBUG_FROM = 4
"""From this klog verbosity on, kube-proxy tells of each single change."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit code (errors.EXIT_CODES)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["demo"]:
        return _demo(arguments[1:])
    options = command_line.parse(arguments)
    logs.configure(options.log_level or "info")
    commands = {
        "run": _run,
        "render": _render,
        "cleanup": _cleanup,
        "config": _check,
        "detect": _detect,
        "explain": _explain,
        "migrate": _migrate,
        "status": _status,
        "trace": _trace,
    }
    try:
        return commands[options.command](options) or 0
    except ConfigChanged as end:
        LOG.info("ended", cause=str(end), exit_code=end.exit_code)
        return end.exit_code
    except (UserError, KernelUnreachable) as caught:
        error = caught if isinstance(caught, UserError) else _unreachable(caught)
        LOG.error("failed", error=str(error), exit_code=error.exit_code)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the last line of defence: a bug is reported as one event
        LOG.error("unexpected_failure", error=f"{type(error).__name__}: {error}", exc_info=True)
        return 1


def _run(options: argparse.Namespace) -> None:
    flags = GivenFlags(options.flags or (), beside_config=bool(options.config))
    _configure_logs(options, flags, Config())
    if flags.value("version") not in ("", "false"):
        put(f"kube-proxy-nft {command_line.version()}\n")
        return
    if flags.is_on("cleanup"):
        _cleanup(options)
        return
    fields = flags.fields
    if options.kubeconfig:
        given = Given("clientConnection.kubeconfig", options.kubeconfig, "--kubeconfig", repr(options.kubeconfig), True)
        fields.append(given)
    config = load_config(options.config, fields)
    _configure_logs(options, flags, config)
    _report_flags(flags)
    _report_fields(options.config, config)
    if path := flags.value("write-config-to"):
        _write_config(config, path)
    elif flags.is_on("init-only"):
        _init(config)
    else:
        _proxy(options, config, fields, flags)


def _init(config: Config) -> None:
    """What needs more privileges than the rest, so that the rest can go without them."""
    with contextlib.suppress(OSError), FlowTable() as flows:
        next(flows.flows(Family.IPV4, bytes(4)), None)  # to ask makes the kernel load nf_conntrack, if it is a module
    sysctls.apply(config.conntrack)


def _proxy(options: argparse.Namespace, config: Config, fields: Sequence[Given], flags: GivenFlags) -> None:
    tls = tls_files(*map(flags.value, TLS_FLAGS))
    if options.take_over and options.once:
        raise UsageError("--take-over and --once", "both were given", "run `cleanup --kube-proxy` after `run --once`")
    inbox = Inbox()
    with contextlib.ExitStack() as ends:
        ends.enter_context(signals.ending(inbox.close))
        node = node_name(config, options.node)
        kernel = Kernel()
        ends.callback(kernel.close)
        source, connection = _source(options, config, inbox, node, flags.value("master"))
        LOG.info("starting", node=node, source=options.manifests or "API server")
        watch = None
        if not options.once:
            oom_score.apply(config.oom_score_adj)
            reads = (
                options.config,
                options.manifests,
                *(connection.files if connection else ()),
                *(tls.paths if tls else ()),
            )
            privileges.drop(filter(None, reads))  # while there are no other threads
            if options.config:
                watch = ConfigWatch(
                    options.config, config, lambda data: parse_config(data, options.config, fields), inbox.close
                )
                ends.callback(watch.stop)
                watch.start()
        here = node_agent.Surroundings(
            config,
            node,
            kernel,
            source,
            inbox,
            connection,
            options.config or "",
            ownership=Ownership(options.table_ownership),
            take_over=options.take_over,
            metrics_tls=tls,
            status_page=options.status_page == "true",
        )
        node_agent.run(here, once=options.once)
        if watch and watch.changed:
            raise ConfigChanged(options.config, "it changed", "start again to use it")
        if inbox.is_closed:
            LOG.info("ended", cause="a signal", then="the rules stay")


def _source(
    options: argparse.Namespace, config: Config, inbox: Inbox, node: str, master: str
) -> tuple[ManifestSource | ApiSource, Connection | None]:
    """Where objects come from, and the way to the API server, if that is it."""
    if options.manifests:
        for option, value in (("--kubeconfig", options.kubeconfig), ("--master", master)):
            if value:
                raise UsageError(f"--manifests and {option}", "both were given", "choose one source of objects")
        return ManifestSource(options.manifests, inbox), None
    from proxy.apiserver import ApiSource, Connection  # its libraries are not loaded for manifests

    connection = Connection(config.client_connection.kubeconfig, master)
    return ApiSource(connection, inbox, node), connection


def _configure_logs(options: argparse.Namespace, flags: GivenFlags, config: Config) -> None:
    """The flags go before the file. "text" is what a file says that says nothing: no reason to leave JSON."""
    flag = flags.value("logging-format")
    verbose = config.logging.verbosity >= DEBUG_FROM
    json = True if config.logging.format == "json" else False if flag == "text" else None
    logs.configure(options.log_level or ("debug" if verbose else "info"), json)


def _report_flags(flags: GivenFlags) -> None:
    if flags.ignored:
        remedy = "set it in the file, or leave --config out"
        LOG.warning("flags_ignored", flags=flags.ignored, cause="--config is given", remedy=remedy)
    for name in PORTS:
        if flags.value(name):
            remedy = f"use --{name.replace('port', 'bind-address')}"
            LOG.warning("flag_deprecated", flag=f"--{name}", remedy=remedy)
    for name, reason in flags.without_effect:
        LOG.info("flag_without_effect", flag=name, reason=reason)


def _report_fields(file: str | None, config: Config) -> None:
    for path, reason in config.warnings:
        LOG.warning("config_field_unknown", file=file, field=path, reason=reason)
    for path, reason in config.without_effect:
        log = LOG.warning if path in ("mode", "--proxy-mode") else LOG.info
        if path.startswith("-"):
            log("flag_without_effect", flag=path, reason=reason)
        else:
            log("config_field_without_effect", file=file, field=path, reason=reason)


def _write_config(config: Config, path: str) -> None:
    try:
        Path(path).write_text(config_report.show(config), encoding="utf-8")
    except OSError as error:
        raise UsageError(path, f"cannot be written: {error.strerror}", "give another --write-config-to") from None
    LOG.info("config_written", file=path)


def _check(options: argparse.Namespace) -> None:
    if options.file == "-":
        source, data = "standard input", sys.stdin.buffer.read() if sys.stdin else b""
    else:
        source, data = options.file, config_file.read(options.file)
    config = parse_config(data, source)
    _report_fields(source, config)
    if not config.bind_address[0].is_unspecified:  # else the Node decides which family is the first
        for concern in node_families.concerns(config, frozenset(Family), [config.bind_address[0].packed], ()):
            LOG.warning("config_field_doubtful", file=source, field=concern.field, reason=concern.cause)
    put(config_report.show(config, options.output))


def _render(options: argparse.Namespace) -> None:
    config = load_config(options.config)
    _report_fields(options.config, config)
    state = State(node_name(config, options.node))
    inbox = Inbox()
    ManifestSource(options.manifests, inbox).load()
    for event in inbox.take():
        state.apply(event)
    ports = [port for port in state.everything().values() if port]
    report(state.faults.news)
    made = settings(config)
    rule_options = made.options_on(state.node) or made.options
    addresses = made.nodeport_ips(state.node, ())
    texts = []
    for family in Family:
        operations = create(LAYOUTS[family], rule_options, state.service_cidrs)
        operations += scratch(family, [p for p in ports if p.family is family], addresses[family]).operations
        texts.append(render(operations))
    put("".join(texts))


def _detect(options: argparse.Namespace) -> int:
    from proxy.detect import command

    return command.run(options)


def _trace(options: argparse.Namespace) -> None:
    from proxy.trace import command

    command.run(options)


def _migrate(options: argparse.Namespace) -> int:
    from proxy.migrate import command

    return command.run(options)


def _status(options: argparse.Namespace) -> int:
    from proxy.status import command

    return command.run(options)


def _explain(options: argparse.Namespace) -> None:
    from proxy.explain import command

    command.run(options)


def _cleanup(options: argparse.Namespace) -> None:
    if getattr(options, "kube_proxy", False):
        from proxy.leftovers import command  # with what it needs of the detector

        command.run(dry_run=options.dry_run, force=options.force, output=options.output or "text")
        return
    for option in ("dry_run", "force", "output"):
        if getattr(options, option, None):
            raise UsageError(f"--{option.replace('_', '-')}", "it means something with --kube-proxy only", "add that")
    instance.check()  # an agent that runs would go on as if its tables were there
    kernel = Kernel()
    operations: list[Operation] = [operation for family in Family for operation in remove(LAYOUTS[family])]
    for family in Family:
        operations += standby.remove(family)  # an agent's goes with it, but not one that came with a listing
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


def _unreachable(error: KernelUnreachable) -> UserError:
    if error.errno in (errno.EPERM, errno.EACCES):
        return NoPermission("nftables", str(error), "run as root, or with the capability CAP_NET_ADMIN")
    return KernelTooOld("nftables", str(error), "use a kernel with CONFIG_NETFILTER_NETLINK and CONFIG_NF_TABLES")


if __name__ == "__main__":
    sys.exit(main())
