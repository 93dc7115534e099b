"""What an answer is made of: the objects, this node, and the tables that come of them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Struct

from proxy.config import Config
from proxy.errors import UsageError
from proxy.events import Event, LocalAddresses
from proxy.nodes import node_ips
from proxy.settings import settings
from proxy.state import State
from rules.diff import scratch
from rules.dump import TableState
from rules.fake import FakeKernel
from rules.layout import LAYOUTS, Options
from rules.objects import Family
from rules.tables import create


class World(Struct):
    """state: with all objects. tables: as they are wanted. node_ports: where NodePorts answer. addresses: of this node's
    interfaces, as far as they are known; packed, like all addresses."""

    config: Config
    state: State
    options: Options
    tables: dict[Family, TableState]
    node_ports: dict[Family, frozenset[bytes]]
    addresses: frozenset[bytes]

    def node_address(self, family: Family) -> bytes:
        """The one that this node sends from; b"" if it is not known."""
        own = [*node_ips(self.state.node, self.state.bound), *sorted(self.addresses)]
        return next((address for address in own if Family.of(address) is family), b"")


def world(config: Config, node: str, events: Iterable[Event], addresses: Collection[bytes] = ()) -> World:
    """events: of a source that has been read once. Raises UsageError where the objects do not say what is needed."""
    made = settings(config)
    state = State(node, made.bound)
    for event in events:
        state.apply(event)
    state.apply(LocalAddresses(frozenset(addresses)))
    ports = [port for port in state.everything().values() if port]
    options = made.options_on(state.node)
    if options is None:
        raise UsageError(f"Node {node}", "detectLocalMode is NodeCIDR, and it has no podCIDRs", "give its Node object")
    node_ports = made.nodeport_ips(state.node, addresses)
    kernel = FakeKernel()
    for family in Family:
        kernel.commit(create(LAYOUTS[family], options, state.service_cidrs))
        kernel.commit(scratch(family, [p for p in ports if p.family is family], node_ports[family]).operations)
    tables = {family: kernel.dump(LAYOUTS[family].table) or TableState() for family in Family}
    return World(config, state, options, tables, node_ports, frozenset(addresses))
