"""The agent with all that belongs to it on a node: where objects come from, and who acts beside nftables."""

from __future__ import annotations

import contextlib
import resource
from typing import Protocol

import structlog

from proxy import sysctls
from proxy.agent import Agent, Committed, Follower
from proxy.config import Config
from proxy.conntrack import Conntrack
from proxy.events import Inbox
from proxy.forwarder import Forwarder
from proxy.health_server import HealthServer
from proxy.node_addresses import AddressSource
from proxy.settings import settings
from proxy.state import State
from rules.kernel import Kernel

LOG = structlog.get_logger()


class Source(Protocol):
    """Where events come from. `start` may raise UserError; `stop` may be called without it."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


def run(config: Config, node: str, kernel: Kernel, source: Source, inbox: Inbox, *, once: bool) -> None:
    """Program this node until the inbox is closed, or `once`. Raises UserError."""
    made = settings(config)
    _allow_descriptors()
    with contextlib.ExitStack() as ends:
        followers: list[Follower] = []
        if not once:
            health = HealthServer(healthy=lambda: True)
            ends.callback(health.stop)
            conntrack = Conntrack()
            ends.callback(conntrack.stop)
            followers += [
                _Sysctls(config),
                conntrack,
                lambda done: health.update(done.health_checks, done.nodeport_ips),
            ]
            forwarder = Forwarder(config.node_port_addresses.cidrs)
            ends.callback(forwarder.stop)
            followers.append(lambda done: forwarder.update(done.ports, done.everything))
        if made.follows_addresses:
            addresses = AddressSource(inbox)
            ends.callback(addresses.stop)
            addresses.start()
        ends.callback(source.stop)
        source.start()
        Agent(State(node), kernel, inbox, made, followers).run(once=once)


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
