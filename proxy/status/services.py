"""Services as the page shows them: found, fifty at a time, and one with all its endpoints. Looks at the agent's state from
another thread: see proxy.status.look."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from proxy.agent import Agent
from proxy.explain.exclusion import why_not
from proxy.policy import Candidate, gather
from proxy.services import UNDATED, Name, PortInfo, Scope, ServiceInfo
from proxy.status import look
from proxy.status.report import EndpointShown, RejectedPage, ServiceDetail, ServicePage, ServiceRow, Ways
from proxy.status.search import find, words
from rules.elements import Scheduler, ServicePort, describe_key, family_of
from rules.elements import endpoint as packed_endpoint

PAGE: Final = 50
NAMED_ADDRESSES: Final = 3
"""Of a Service in the list."""
MOST_ENDPOINTS: Final = 500
"""Of one way in one answer; those that are in use come first."""
SHOWS: Final = ("all", "no-endpoints", "trouble")
"""What of the Services is listed. no-endpoints: some port of theirs leads nowhere from here."""

INTERNAL, EXTERNAL = "internalTrafficPolicy", "externalTrafficPolicy"


def page(agent: Agent, query: str, show: str = "all", number: int = 1) -> ServicePage:
    """Those that fit, in the order of names. number: from 1; beyond the last one: the last one."""
    state, wanted = agent.state, words(query)
    everything = look.services(state)
    found = find(everything, wanted, lambda: look.slices(state))
    if show != "all":
        found = [service for service in found if _is_shown(agent, service, show)]
    found.sort(key=lambda service: service.name)
    number, pages, first = place(len(found), number)
    rows = tuple(_row(agent, service) for service in found[first : first + PAGE])
    return ServicePage(total=len(found), of=len(everything), page=number, pages=pages, rows=rows)


def rejected(agent: Agent, watchers: Sequence[look.Watcher] = (), number: int = 1) -> RejectedPage:
    """What is left out."""
    found = look.rejected(agent.state, watchers)
    number, pages, first = place(len(found), number)
    return RejectedPage(total=len(found), page=number, pages=pages, rows=tuple(found[first : first + PAGE]))


def place(total: int, number: int) -> tuple[int, int, int]:
    """The page that there is, how many there are, and the place of its first row."""
    pages = max(1, -(-total // PAGE))
    number = min(max(1, number), pages)
    return number, pages, (number - 1) * PAGE


def detail(agent: Agent, name: Name) -> ServiceDetail | None:
    """None: there is none of this name, or none for us."""
    service = agent.state.service(name)
    if service is None:
        return None
    # All addresses that lead to the same, at one place.
    alike: defaultdict[tuple[object, ...], list[PortInfo]] = defaultdict(list)
    for port in service.ports:
        made = look.programmed(agent, port.key)
        leads_to = (made.endpoints, made.local, made.drop, made.external) if made else None
        troubles = tuple(_troubles(agent, service, port))
        alike[port.name, port.protocol, family_of(port.key), leads_to, troubles].append(port)
    ways = tuple(_ways(agent, service, ports) for ports in alike.values())
    created = "" if service.created == UNDATED else service.created
    return ServiceDetail(namespace=name[0], name=name[1], created=created, policy=_policy(service), ways=ways)


def _is_shown(agent: Agent, service: ServiceInfo, show: str) -> bool:
    if show == "trouble":
        return any(True for port in service.ports for _ in _troubles(agent, service, port))
    return any(_reached(look.programmed(agent, port.key)) == 0 for port in service.ports)


def _reached(port: ServicePort | None) -> int:
    return max(len(port.endpoints), len(port.local)) if port else 0


def _row(agent: Agent, service: ServiceInfo) -> ServiceRow:
    reached = [_reached(look.programmed(agent, port.key)) for port in service.ports] or [0]
    troubles = dict.fromkeys(trouble for port in service.ports for trouble in _troubles(agent, service, port))
    return ServiceRow(
        namespace=service.name[0],
        name=service.name[1],
        addresses=tuple(describe_key(port.key) for port in service.ports[:NAMED_ADDRESSES]),
        more=max(0, len(service.ports) - NAMED_ADDRESSES),
        endpoints=(min(reached), max(reached)),
        policy=_policy(service),
        troubles=tuple(troubles),
    )


def _troubles(agent: Agent, service: ServiceInfo, port: PortInfo) -> Iterator[str]:
    """Why it is not programmed."""
    holder = look.holder_of(agent.state, port.key)
    if holder is not None and holder != service.name:
        yield f"{describe_key(port.key)} belongs to Service {'/'.join(holder)}, which is older"
    elif look.programmed(agent, port.key) is None and family_of(port.key) in agent.tables.programmed:
        yield f"{describe_key(port.key)} is not programmed"


def _policy(service: ServiceInfo) -> tuple[str, ...]:
    """What is not the default."""
    found = []
    if service.internal_local:
        found.append(f"{INTERNAL}: Local")
    if service.external_local:
        found.append(f"{EXTERNAL}: Local")
    if service.timeout:
        found.append(f"sessionAffinity: ClientIP, {service.timeout} s")
    if service.sources is not None:
        found.append(f"loadBalancerSourceRanges: {', '.join(map(str, service.sources)) or 'none that can be read'}")
    if service.health_check_port:
        found.append(f"healthCheckNodePort: {service.health_check_port}")
    if service.scheduler is not Scheduler.RANDOM:
        found.append(f"scheduler: {service.scheduler.value}")
    return tuple(found)


def _ways(agent: Agent, service: ServiceInfo, ports: Sequence[PortInfo]) -> Ways:
    first = ports[0]
    candidates = gather(
        look.slices_of(agent.state, service.name), family_of(first.key).address_size, first.name, first.protocol
    )
    made = look.programmed(agent, first.key)
    policy = _local_policy(service, first)
    shown = list(_endpoints(agent, candidates, made, policy))
    return Ways(
        port=first.name,
        protocol=first.protocol,
        addresses=tuple(describe_key(port.key) for port in ports),
        outcome=_outcome(made),
        endpoints=tuple(shown),
        total=len(candidates),
        troubles=tuple(_troubles(agent, service, first)),
    )


def _local_policy(service: ServiceInfo, port: PortInfo) -> str:
    """Which field says Local for this address."""
    if port.scope is Scope.CLUSTER_IP:
        return INTERNAL if service.internal_local else ""
    return EXTERNAL if service.external_local else ""


def _outcome(port: ServicePort | None) -> str:
    if port is None:
        return "not programmed"
    what = "dropped" if port.drop else "refused"
    if port.local_policy and not port.local:
        return f"from outside: {what}; from pods and the node: {_to(len(port.endpoints)) if port.endpoints else what}"
    if not port.endpoints and not port.local:
        return what
    if port.local_policy:
        return f"from outside: {_to(len(port.local))} of this node; from pods and the node: {_to(len(port.endpoints))}"
    return _to(len(port.endpoints))


def _to(count: int) -> str:
    return f"to {count:,} endpoint{'s' * (count != 1)}"


def _endpoints(
    agent: Agent, candidates: Collection[Candidate], port: ServicePort | None, policy: str
) -> Iterator[EndpointShown]:
    used = dict.fromkeys(port.endpoints, "inside" if port.local_policy else "yes") if port else {}
    used |= dict.fromkeys(port.local if port else (), "yes")
    all_ = list(candidates)
    rank = {"yes": 0, "inside": 1, "no": 2}
    found = [(used.get(packed_endpoint(info.address, number), "no"), (info, number)) for info, number in all_]
    found.sort(key=lambda one: (rank[one[0]], one[1][0].address, one[1][1]))
    for how, (info, number) in found[:MOST_ENDPOINTS]:
        address = ipaddress.ip_address(info.address)
        text = f"[{address}]:{number}" if address.version == 6 else f"{address}:{number}"
        why = "" if how == "yes" else why_not((info, number), all_, agent.state.place, policy)
        yield EndpointShown(endpoint=text, node=info.node, used=how, why=why)  # type: ignore[arg-type]
