"""`kube-proxy-nft detect`: gathers evidence, judges it, prints the report."""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from proxy import given_file, signals
from proxy.config import Config, node_name
from proxy.detect import cluster, output, report
from proxy.detect.api_reader import ApiReader, Transport
from proxy.detect.cluster import ReadObjects
from proxy.detect.evidence import ConfiguredMode, Evidence, Kernel, Place, Unreadable, Version
from proxy.detect.findings import Report
from proxy.detect.follow import Seldom, follow
from proxy.detect.judge import judge
from proxy.detect.node_table import as_table
from proxy.errors import ConfigError, SourceError, UsageError

SECONDS: Final = 1.0
"""Between two looks at this machine or at a file, with --watch."""
API_SECONDS: Final = 60.0
"""Between two looks at the API server."""
NODE_TIMEOUT: Final = 10.0
"""Seconds for which the API server may be silent, where it is one source of many."""

Look = Callable[[], Report]


class Sources(Struct, frozen=True):
    """Where evidence comes from. read_file: of a file's name and content. node: of its name, and where to ask for
    /proxyMode (None: where kube-proxy serves it by default). connect: with a kubeconfig, '' for the pod's account; may
    raise SourceError."""

    read_file: Callable[[str, bytes], Iterable[Evidence]]
    node: Callable[[str, Sequence[str] | None], Iterable[Evidence]]
    read_objects: ReadObjects
    connect: Callable[[str], Transport]
    environment: Mapping[str, str] = os.environ


def run(options: argparse.Namespace, sources: Sources | None = None) -> int:
    """Do what the options of `arguments` say. The exit code. Raises UserError."""
    sources = sources or machine()
    look = _looker(options, sources)
    if options.watch:
        last = _watch(options, look)
    else:
        last = look()
        output.put(_text(options, last))
    return 1 if options.exit_code and report.is_alarming(last) else 0


def machine() -> Sources:
    """This machine, and the API server."""
    from proxy.apiserver import Connection
    from proxy.detect.files import read_file
    from proxy.detect.node import gather
    from proxy.detect.objects import read_objects

    return Sources(partial(read_file, expected=True), gather, read_objects, Connection)


# -- Looking -----------------------------------------------------------------------------------------------------------


def _looker(options: argparse.Namespace, sources: Sources) -> Look:
    for option in ("node", "proxy_url"):
        if getattr(options, option) and (options.config or options.all_nodes):
            other = "--config" if options.config else "--all-nodes"
            name = f"--{option.replace('_', '-')}"
            raise UsageError(f"{name} and {other}", "both were given", f"{name} is about this machine: leave one out")
    if options.config:
        return _file(options, sources)
    if options.all_nodes:
        return _all_nodes(options, sources)
    return _node(options, sources)


def _file(options: argparse.Namespace, sources: Sources) -> Look:
    if options.config == "-" and options.watch:
        raise UsageError("--config - and --watch", "standard input comes once", "give a file")
    connection = sources.connect(options.kubeconfig) if options.kubeconfig else None

    def ask() -> list[Evidence]:
        return [cluster.cluster_version(ApiReader(connection, read_timeout=NODE_TIMEOUT))] if connection else []

    version = Seldom(ask, API_SECONDS, time.monotonic)

    def look() -> Report:
        return judge([*file_evidence(options.config, sources), *version()], options.kubernetes_version or "")

    return look


def file_evidence(path: str, sources: Sources) -> list[Evidence]:
    """What a file says. Raises ConfigError for one from which no mode can be told."""
    name = given_file.name_of(path)
    found = list(sources.read_file("-" if path == "-" else name, given_file.read(path)))
    if not any(isinstance(item, ConfiguredMode) for item in found):
        faults = [item for item in found if isinstance(item, Unreadable)]
        faults.sort(key=lambda fault: fault.effect == "passed-over")
        if faults:
            line = f"{name}, line {faults[0].place.line}" if faults[0].place.line else name
            raise ConfigError(line, f"{faults[0].cause}; no mode can be told from it", faults[0].remedy)
        remedy = "give a KubeProxyConfiguration, or a file that has or starts a kube-proxy"
        raise ConfigError(name, "there is no configuration of kube-proxy in it", remedy)
    return found


def _all_nodes(options: argparse.Namespace, sources: Sources) -> Look:
    connection = sources.connect(kubeconfig(options.kubeconfig, sources.environment))

    def look() -> Report:
        reader = ApiReader(connection)
        found = cluster.gather(reader, sources.read_objects)
        unread = [item for item in found if isinstance(item, Unreadable)]
        if unread and all(isinstance(item, Unreadable | Version) and not item.place.node for item in found):
            more = f"; and {len(unread) - 1} more" if len(unread) > 1 else ""
            raise SourceError(
                reader.server, f"nothing can be learned from it: {unread[0].cause}{more}", unread[0].remedy
            )
        return judge(found, options.kubernetes_version or "")

    return look


def kubeconfig(given: str | None, environment: Mapping[str, str]) -> str:
    """As kubectl finds it: given, the first of $KUBECONFIG that there is, ~/.kube/config; '' for the pod's account."""
    if given:
        return given
    named = [path for path in environment.get("KUBECONFIG", "").split(os.pathsep) if path]
    if named:
        return next((path for path in named if os.path.exists(path)), named[0])
    home = environment.get("HOME", "")
    default = Path(home, ".kube/config")
    return str(default) if home and default.exists() else ""


def _node(options: argparse.Namespace, sources: Sources) -> Look:
    node = node_name(Config(), options.node)
    api: Callable[[], list[Evidence]] = list
    if options.kubeconfig:
        api = _view_of(sources.connect(options.kubeconfig), node, sources)
    elif sources.environment.get("KUBERNETES_SERVICE_HOST"):
        try:
            api = _view_of(sources.connect(""), node, sources)
        except SourceError as error:
            place = Place("api-server", error.what)
            unread: list[Evidence] = [Unreadable(place=place, cause=error.cause, remedy=error.remedy)]
            api = unread.copy

    def look() -> Report:
        here = sources.node(node, options.proxy_url)
        known = (item for item in api() if not isinstance(item, Kernel))  # this machine knows its own
        return judge([*here, *known], options.kubernetes_version or "")

    return look


def _view_of(connection: Transport, node: str, sources: Sources) -> Callable[[], list[Evidence]]:
    """What the API server knows of this node."""

    def ask() -> list[Evidence]:
        return cluster.gather(ApiReader(connection, read_timeout=NODE_TIMEOUT), sources.read_objects, node)

    return Seldom(ask, API_SECONDS, time.monotonic)


# -- Printing ----------------------------------------------------------------------------------------------------------


def _text(options: argparse.Namespace, found: Report) -> str:
    if options.output == "json":
        return report.as_line(found) if options.watch else report.as_json(found)
    if options.output == "yaml":
        return ("---\n" if options.watch else "") + report.as_yaml(found)
    colours = output.is_terminal() and not os.environ.get("NO_COLOR")
    text = as_table(found, colours=colours) if options.all_nodes else report.as_text(found, colours=colours)
    return f"-- {time.strftime('%H:%M:%S')}\n{text}\n" if options.watch else text


def _watch(options: argparse.Namespace, look: Look) -> Report:
    end = threading.Event()
    with signals.ending(end.set):
        return follow(
            look,
            lambda found: output.put(_text(options, found)),
            lambda seconds: not end.wait(seconds),
            time.monotonic,
            interval=API_SECONDS if options.all_nodes else SECONDS,
        )
