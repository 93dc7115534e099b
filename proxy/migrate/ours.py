"""What kube-proxy-nft makes of the objects and of the present proxy's configuration. Pure: no kernel is asked.

The same way that the agent goes (proxy.state, rules.tables, rules.diff), so that a report speaks of what will run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from sys import intern
from typing import Final

import msgspec
from msgspec import Struct

from proxy import model
from proxy.config import API_VERSION, KIND, Config, load_config, parse_config
from proxy.errors import ConfigError
from proxy.events import LocalAddresses, Put
from proxy.migrate.entries import Entry, of_service_port
from proxy.migrate.facts import Facts, Interface
from proxy.model import ENDPOINT_SLICE, KINDS, NODE, SERVICE, SERVICE_CIDR, BadObject
from proxy.nodes import node_ips
from proxy.object_faults import Problem
from proxy.policy import LAST_RESORT, READY
from proxy.reading import ServiceReading, SliceReading
from proxy.reading import read as reduce
from proxy.services import Name, ServiceInfo
from proxy.settings import Settings, settings
from proxy.state import State
from proxy.unread import PLURAL
from rules.diff import scratch
from rules.elements import ServicePort
from rules.layout import LAYOUTS
from rules.objects import Family
from rules.tables import create
from rules.text import render
from rules.transaction import Operation

_ORDER: Final = (NODE, SERVICE_CIDR, SERVICE, ENDPOINT_SLICE)
IPVS_INTERFACE: Final = "kube-ipvs0"


class Ours(Struct):
    """What kube-proxy-nft would do on this node.

    ports: key -> service port. services: those that are ours to serve. types: every Service's type, also of those that
    are not. backends: Services that an EndpointSlice names, and what their best endpoint is (bits of proxy.policy).
    rivals: key -> the Services that claim it, where there are several. hinted: Services whose endpoints have hints, where
    the Node, which tells this node's zone, is not known. nodeless: addresses of endpoints without a node. node_ports: where NodePorts answer.
    config_error: why the configuration cannot be used, "" if it can; then `config` has the defaults.
    unread: kinds of objects that were not, or not all, read.
    """

    config: Config
    settings: Settings
    state: State
    ports: dict[bytes, ServicePort]
    services: dict[Name, ServiceInfo]
    types: dict[Name, str]
    backends: dict[Name, int]
    rivals: dict[bytes, list[Name]]
    hinted: set[Name]
    nodeless: set[bytes]
    node_ports: dict[Family, frozenset[bytes]]
    problems: tuple[Problem, ...]
    config_error: str = ""
    unread: frozenset[str] = frozenset()

    @property
    def addresses(self) -> tuple[bytes, ...]:
        """The node's own, as the Node has them: at most one of each family."""
        return node_ips(self.state.node, self.state.bound)

    @property
    def knows_node(self) -> bool:
        return self.state.node is not None and self.state.node.exists

    def entries(self) -> Iterator[Entry]:
        return map(of_service_port, self.ports.values())


def read(facts: Facts) -> Ours:
    """From a node's facts. An object that cannot be used is among `problems`, and the others count."""
    config, error = _config(facts)
    made = settings(config)
    state = State(facts.node, made.bound)
    local = node_addresses(facts.here.interfaces)
    state.apply(LocalAddresses(local))
    found = Ours(config, made, state, {}, {}, {}, {}, {}, set(), set(), {}, (), error, unread_kinds(facts))
    broken = [problem for kind in _ORDER for problem in _take(kind, facts.objects.get(kind, ()), found)]
    found.ports = {key: port for key, port in state.everything().items() if port}
    found.rivals = _rivals(found.services)
    found.node_ports = made.nodeport_ips(state.node, local)
    found.problems = (*broken, *state.faults.news)
    return found


def unread_kinds(facts: Facts) -> frozenset[str]:
    """Kinds of objects of which there may be more than is known."""
    told = {unread.what for unread in facts.unread}
    return frozenset(kind for kind in KINDS if kind not in facts.objects or PLURAL[kind] in told)


def node_addresses(interfaces: Sequence[Interface]) -> frozenset[bytes]:
    """All addresses of the node, but for those that IPVS mode gives it."""
    return frozenset(a for interface in interfaces if interface.name != IPVS_INTERFACE for a in interface.addresses)


def operations(ours: Ours) -> list[Operation]:
    """Both families' tables and all that is in them, into a kernel that has none of them."""
    return tables(ours.state, ours.settings, ours.ports, ours.node_ports)


def ruleset(ours: Ours) -> str:
    """The same as nft text."""
    return render(operations(ours))


def tables(
    state: State, made: Settings, ports: Mapping[bytes, ServicePort], node_ports: Mapping[Family, frozenset[bytes]]
) -> list[Operation]:
    """The tables for a state and these service ports of it."""
    options = made.options_on(state.node) or made.options
    found: list[Operation] = []
    for family in Family:
        found += create(LAYOUTS[family], options, state.service_cidrs)
        of_family = [port for port in ports.values() if port.family is family]
        found += scratch(family, of_family, node_ports[family]).operations
    return found


def _config(facts: Facts) -> tuple[Config, str]:
    document = {"apiVersion": API_VERSION, "kind": KIND, **facts.present.document}
    try:
        data = msgspec.json.encode(document)
        return parse_config(data, facts.present.source or "the present proxy's configuration"), ""
    except ConfigError as error:
        return load_config(None), str(error)
    except (TypeError, ValueError, OverflowError) as error:  # a bundle may hold anything
        return load_config(None), f"the present proxy's configuration is no plain data: {error}"


def _take(kind: str, objects: Sequence[msgspec.Raw], found: Ours) -> Iterator[Problem]:
    """Apply them one by one: the decoded objects of a big cluster are never in memory together."""
    for raw in objects:
        try:
            obj = model.decode(kind, raw)
        except BadObject as error:
            yield Problem(kind, error.namespace, error.name, error.reason)
            continue
        item = reduce(obj)
        match item:
            case ServiceReading(name, info):
                assert isinstance(obj, model.Service)
                found.types[name] = intern(obj.spec.type)
                if info:
                    found.services[name] = info
            case SliceReading(info=info) if info:
                best = [endpoint.conditions for endpoint in info.endpoints]
                usable = READY if any(c & READY for c in best) else 0
                usable |= LAST_RESORT if any(c & LAST_RESORT == LAST_RESORT for c in best) else 0
                found.backends[info.service] = found.backends.get(info.service, 0) | usable
                found.nodeless.update(endpoint.address for endpoint in info.endpoints if not endpoint.node)
                if not found.knows_node and info.has_hints:
                    found.hinted.add(info.service)
        found.state.apply(Put(item))


def _rivals(services: Mapping[Name, ServiceInfo]) -> dict[bytes, list[Name]]:
    first: dict[bytes, Name] = {}
    found: dict[bytes, list[Name]] = {}
    for name, info in services.items():
        for port in info.ports:
            if first.setdefault(port.key, name) != name:
                found.setdefault(port.key, [first[port.key]]).append(name)
    return found
