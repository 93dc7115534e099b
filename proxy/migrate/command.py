"""`kube-proxy-nft migrate`: gathers, proves, judges, prints. It only ever looks."""

from __future__ import annotations

import argparse
import os
import shutil
from typing import Final

import structlog

from proxy.detect import output
from proxy.detect.api_reader import Transport
from proxy.errors import UsageError
from proxy.migrate import bundle, judge, ours, progress
from proxy.migrate.access import Connect
from proxy.migrate.facts import Facts
from proxy.migrate.gather import Wanted, gather
from proxy.migrate.ours import Ours
from proxy.migrate.proof import prove
from proxy.migrate.report import Proof, Report
from proxy.migrate.whole_file import write
from proxy.snapshot import Progress

LOG = structlog.get_logger()

_LOOKS: Final = "it changes nothing, neither on this node nor in the cluster: it only ever looks"
_OF_MACHINE: Final = ("kubeconfig", "manifests", "config", "node", "here", "root")


def run(options: argparse.Namespace, connect: Connect | None = None) -> int:
    """Do what the options of `arguments` say. The exit code. Raises UserError."""
    collects = options.migrate_command == "collect"
    if not collects and not options.dry_run:
        raise UsageError("migrate", _LOOKS, "say --dry-run; to write a bundle: migrate collect FILE")
    _check(options, collects)
    with progress.shown() as tell:
        facts = _facts(options, connect or _connection, tell)
        made = ours.read(facts)
        proof = _proof(facts.proof, made, tell)
        if collects:
            facts.proof = proof
            _collect(facts, options.file)
            return 0
        tell("the report", 0)
        found = judge.report(facts, proof, made)
        text = render(found, options.output, colours=_colours(options), width=shutil.get_terminal_size().columns)
    if options.ruleset:
        write(options.ruleset, ours.ruleset(made).encode(), "--ruleset")
    if options.output_file:
        write(options.output_file, text.encode(errors="backslashreplace"), "--output-file")
    else:
        output.put(text)
    return found.exit_code


def render(report: Report, form: str, *, colours: bool = False, width: int = 0) -> str:
    """form: one of arguments.FORMATS."""
    match form:
        case "json" | "yaml":
            from proxy.migrate import output_data

            return output_data.as_json(report) if form == "json" else output_data.as_yaml(report)
        case "markdown":
            from proxy.migrate import output_markdown

            return output_markdown.render(report)
        case "html":
            from proxy.migrate import output_html

            return output_html.render(report)
    from proxy.migrate import output_text

    return output_text.render(report, width=min(width or 120, 160), colours=colours)


def _check(options: argparse.Namespace, collects: bool) -> None:
    if options.bundle:
        others = [f"--{name}" for name in _OF_MACHINE if getattr(options, name)]
        if collects or others:
            what = "migrate collect" if collects else others[0]
            raise UsageError(f"--bundle and {what}", "both were given", "a bundle has it all: leave one of them out")
    if collects and (options.output != "text" or options.output_file or options.ruleset):
        raise UsageError("migrate collect", "it writes a bundle, and no report", "leave -o and its like out")
    if options.kubeconfig and options.manifests:  # one before and one after "collect"
        raise UsageError("--manifests and --kubeconfig", "both were given", "choose one source of objects")
    if options.root and not os.path.isdir(options.root):
        raise UsageError(f"--root {options.root}", "there is no such directory", "name where the node's / is mounted")


def _facts(options: argparse.Namespace, connect: Connect, tell: Progress) -> Facts:
    if options.bundle:
        tell("the bundle", 0)
        return bundle.read(options.bundle)
    wanted = Wanted(
        options.kubeconfig or "",
        options.manifests or "",
        options.config or "",
        (options.node or "").strip().lower(),
        options.root or "/",
        options.here,
    )
    return gather(wanted, connect=connect, progress=tell)


def _connection(kubeconfig: str) -> Transport:
    from proxy.apiserver import Connection  # its libraries are not loaded for manifests and bundles

    return Connection(kubeconfig)


def _proof(known: Proof | None, made: Ours, tell: Progress) -> Proof:
    """known: of the node that a bundle was made on; where it could not be tried there, this machine may do."""
    if known is not None and known.status != "not-tried":
        return known
    tell("our tables in a throw-away network namespace", 0)
    found = prove(ours.operations(made))
    return known if known is not None and found.status == "not-tried" else found


def _collect(facts: Facts, path: str) -> None:
    size = bundle.write(facts, path)
    LOG.info("bundle_written", file=path, bytes=size, node=facts.node, not_read=len(facts.unread))


def _colours(options: argparse.Namespace) -> bool:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not options.output_file and output.is_terminal() and not plain
