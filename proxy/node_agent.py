"""The agent with all that belongs to it on a node: where objects come from, who acts beside nftables, what is served."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol

import structlog
from msgspec import Struct

from proxy import healthz, sysctls
from proxy.agent import Agent
from proxy.command_line import version
from proxy.committed import Committed, Follower
from proxy.config import Config
from proxy.conntrack import Conntrack
from proxy.detect.api_reader import Transport as Reading
from proxy.errors import UserError
from proxy.events import Inbox
from proxy.forwarder import Forwarder
from proxy.health_server import HealthServer
from proxy.healthz import Health
from proxy.http_connections import Wrap
from proxy.instance import Instance
from proxy.kernel_check import check
from proxy.measures import Measures, Requests
from proxy.node_addresses import AddressSource
from proxy.node_events import EventRecorder
from proxy.node_events import Transport as Sending
from proxy.node_families import missing, report_missing
from proxy.node_log import NodeLog
from proxy.node_reports import Nobody, NodeReports
from proxy.ownership import Ownership, choose, remove_leftover
from proxy.page_server import PageServer
from proxy.settings import Settings, settings
from proxy.standby import Standby
from proxy.state import State
from proxy.table_watch import TableWatch
from proxy.tls_files import TlsFiles
from rules.errors import KernelUnreachable
from rules.kernel import Kernel
from rules.layout import LAYOUTS
from rules.objects import Family
from rules.table_reader import TableReader

LOG = structlog.get_logger()

GRACE_SECONDS: Final = 2.0
"""How long the first sync waits for the Node and the ServiceCIDRs when Services and EndpointSlices are listed."""
SYNC_PERIODS: Final = 2
"""How many sync periods a change may wait before this agent calls itself unhealthy; as kube-proxy."""


class Source(Protocol):
    """Where events come from. `start` may raise UserError; `stop` may be called without it."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class ApiServer(Reading, Sending, Protocol):
    """The way to an API server: proxy.apiserver.Connection."""

    @property
    def requests(self) -> Requests: ...


class Surroundings(Struct, frozen=True):
    """What an agent has around it. node: its name. api: None where there is no API server to talk to. config_file: where
    the configuration is from, '' for nowhere. ownership: as --table-ownership says. take_over: remove what kube-proxy has
    left. metrics_tls: for metricsBindAddress, None: plain HTTP. status_page: whether it is served there."""

    config: Config
    node: str
    kernel: Kernel
    source: Source
    inbox: Inbox
    api: ApiServer | None = None
    config_file: str = ""
    ownership: Ownership = Ownership.NEVER
    take_over: bool = False
    metrics_tls: TlsFiles | None = None
    status_page: bool = True


def run(here: Surroundings, *, once: bool) -> None:
    """Program this node until the inbox is closed, or `once`. Raises UserError."""
    config = here.config
    made = settings(config)
    causes = missing()
    causes |= check(here.kernel, [family for family in Family if family not in causes])
    report_missing(causes)
    families = [family for family in Family if family not in causes]
    health = Health(SYNC_PERIODS * config.nftables.sync_period, programmed=_has_tables(here.kernel, families))
    with contextlib.ExitStack() as ends:
        instance = Instance(here.node)
        ends.callback(instance.close)
        reports = NodeReports()
        followers: list[Follower] = []
        measures = Measures()
        show: Callable[[Agent], list[Follower]] | None = None
        if not once:
            recorder = EventRecorder(here.api, here.node) if here.api else None
            reports = NodeReports(recorder or Nobody())
            followers = _followers(here, made, families, health, measures, ends)
        if made.follows_addresses:
            addresses = AddressSource(here.inbox)
            ends.callback(addresses.stop)
            addresses.start()
        ends.callback(here.source.stop)
        if not once:  # these use the source's connection, and end before it
            if recorder:
                ends.callback(recorder.stop)
                recorder.start()
                followers.append(_About(recorder, reports))
            looks, show = _metrics(here, families, recorder, measures, ends)
            followers.append(looks)
            if here.take_over:
                followers.append(_take_over(ends))
        here.source.start()
        remove_leftover(here.kernel)
        ownership = choose(here.ownership, here.kernel, families[0], once=once)
        standby = Standby() if ownership is Ownership.STANDBY else None
        if standby:
            ends.callback(standby.close)
        agent = Agent(
            State(here.node, made.bound),
            here.kernel,
            here.inbox,
            made,
            followers,
            families=families,
            health=health,
            reports=reports,
            grace=GRACE_SECONDS,
            owned=ownership is Ownership.OWNED,
            standby=standby,
            open_reader=None if once else TableReader,
            syncs=measures.syncs,
        )
        if show:
            followers += show(agent)
        try:
            agent.run(once=once)
        except UserError as error:
            reports.start_failed(str(error))
            raise


def _take_over(ends: contextlib.ExitStack) -> Follower:
    from proxy.leftovers.take_over import TakeOver  # with what it needs of the detector

    take_over = TakeOver()
    ends.callback(take_over.stop)
    return take_over


def _has_tables(kernel: Kernel, families: Collection[Family]) -> bool:
    """Whether an earlier agent's rules are there."""
    try:
        return all(kernel.has(LAYOUTS[family].table) for family in families)
    except KernelUnreachable:
        return False  # the first transaction will say why


def _followers(
    here: Surroundings,
    made: Settings,
    families: Collection[Family],
    health: Health,
    measures: Measures,
    ends: contextlib.ExitStack,
) -> list[Follower]:
    """Those who act beside nftables, and the servers for health."""
    _allow_descriptors()
    config = here.config
    pages = PageServer(
        "healthz",
        "healthzBindAddress",
        config.healthz_bind_address,
        families,
        healthz.pages(health, families, probes=measures.probes),
        hard_fail=config.bind_address_hard_fail,
    )
    ends.callback(pages.stop)
    pages.start()
    checks = HealthServer(healthy=lambda: health.status(time.monotonic()).works)
    ends.callback(checks.stop)
    conntrack = Conntrack(measures.reconciles)
    ends.callback(conntrack.stop)
    forwarder = Forwarder([n for n in config.node_port_addresses.cidrs if Family.of_version(n.version) in families])
    ends.callback(forwarder.stop)
    watch = TableWatch(here.inbox, here.kernel.port)
    ends.callback(watch.stop)
    watch.start()  # before the tables are read: what others do from then on is known
    log = NodeLog(here.node, config, made.bound, families)

    def about_node(done: Committed) -> None:
        log(done.node)
        health.node_eligible(done.node is None or done.node.eligible)

    return [
        _Sysctls(config),
        conntrack,
        about_node,
        lambda done: measures.local_policies.update(done.ports, everything=done.everything),
        lambda done: checks.update(done.health_checks, done.nodeport_ips),
        lambda done: forwarder.update(done.ports, done.everything),
    ]


def _metrics(
    here: Surroundings,
    families: Collection[Family],
    recorder: EventRecorder | None,
    measures: Measures,
    ends: contextlib.ExitStack,
) -> tuple[Follower, Callable[[Agent], list[Follower]]]:
    """What is served on metricsBindAddress: who looks for what is deprecated on this node, and what is to be told of the
    agent, once there is one; that has more followers."""
    from proxy import metrics, metrics_zpages  # with what it needs, 60 ms that `run --once` can do without
    from proxy.detect import watcher
    from proxy.detect.node import gather_for_agent
    from proxy.metrics_table import Sources
    from proxy.no_endpoint_packets import NoEndpointPackets
    from proxy.status import pages as status
    from proxy.status.view import View

    registry = metrics.registry(version())
    deprecations = metrics.Family(watcher.METRIC, watcher.ABOUT, watcher.LABELS)
    registry.register(deprecations)
    given = {"config": here.config_file, "kubeconfig": here.config.client_connection.kubeconfig}
    view: View | None = None
    status_pages = status.pages(lambda: view) if here.status_page else {}
    paths = (metrics.METRICS, metrics.PROXY_MODE, *(path for path in status_pages if path == "/"))
    others = status_pages | metrics_zpages.pages(here.config, version(), datetime.now(UTC), given=given, paths=paths)
    pages = PageServer(
        "metrics",
        "metricsBindAddress",
        here.config.metrics_bind_address,
        families,
        metrics.pages(registry, others),
        hard_fail=here.config.bind_address_hard_fail,
        wrap=_wrap(here.metrics_tls),
    )
    ends.callback(pages.stop)
    pages.start()
    looks = watcher.DeprecationWatcher(
        partial(gather_for_agent, here.node, here.config_file),
        watcher.ServerVersion(here.api) if here.api else lambda: "",
        recorder or Nobody(),
        deprecations.show,
    )
    ends.callback(looks.stop)
    looks.start()

    def show(agent: Agent) -> list[Follower]:
        nonlocal view
        watchers = getattr(here.source, "watchers", ())
        sources = Sources(
            families=families,
            agent=agent,
            measures=measures,
            requests=here.api.requests if here.api else None,
            watchers=watchers,
            no_endpoints=NoEndpointPackets(TableReader),
        )
        registry.register(metrics.Table(sources))
        if not here.status_page:
            return []
        view = View(
            agent,
            here.config,
            version(),
            measures.syncs.commits,
            source="the API server" if here.api else "a directory of manifests",
            watchers=watchers,
            findings=lambda: looks.findings,
        )
        return [view]

    return looks, show


def _wrap(files: TlsFiles | None) -> Wrap | None:
    """Raises ConfigError."""
    if files is None:
        return None
    from proxy.tls import Certificates, wrapping  # with the ssl module

    return wrapping(Certificates(files))


class _About:
    """Tells whose Events they are, and once that the agent has begun."""

    def __init__(self, recorder: EventRecorder, reports: NodeReports) -> None:
        self._recorder, self._reports = recorder, reports
        self._has_started = False

    def __call__(self, done: Committed) -> None:
        if done.node:
            self._recorder.node_uid = done.node.uid
        if not self._has_started:
            self._has_started = True
            self._reports.started(version())


class _Sysctls:
    """Set them once, after the first commit: before it, conntrack may not be loaded."""

    def __init__(self, config: Config) -> None:
        self._config: Config | None = config

    def __call__(self, done: Committed) -> None:
        if self._config:
            sysctls.apply(self._config.conntrack)
            self._config = None


def _allow_descriptors() -> None:
    """As many as may be had: health checks need one for each port and address."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
