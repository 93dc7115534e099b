"""What becomes of a connection, and why: from the desired state, or from a table as it is. Pure."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from proxy.addresses import with_port
from proxy.claims import Claim
from proxy.explain.exclusion import why_not
from proxy.explain.question import Question
from proxy.explain.world import World
from proxy.forwarder_policy import loopback_families
from proxy.policy import Candidate
from proxy.services import Scope, ServiceInfo
from rules.dump import TableState
from rules.elements import Scheduler, node_port_key, service_key
from rules.interpret import Fate, fates

_SCOPES = {
    Scope.CLUSTER_IP: "clusterIP",
    Scope.EXTERNAL_IP: "externalIP",
    Scope.LOAD_BALANCER: "load balancer's address",
    Scope.NODE_PORT: "NodePort",
}


class Reached(Struct, frozen=True, rename="camel", order=True):
    """endpoint: "10.244.1.7:8080". chance: 0 to 1. node: its node's name, "" if it names none."""

    endpoint: str
    chance: float
    masqueraded: bool
    node: str = ""


class Excluded(Struct, frozen=True, rename="camel", order=True):
    endpoint: str
    why: str


class Outcome(Struct, frozen=True, rename="camel"):
    """refused, dropped, untouched: chances of these; untouched: it is none of this proxy's business. path: of chains and
    sets, of what is likeliest."""

    endpoints: tuple[Reached, ...] = ()
    refused: float = 0.0
    dropped: float = 0.0
    untouched: float = 0.0
    path: tuple[str, ...] = ()


class Answer(Struct, frozen=True, rename="camel"):
    """source, kind, target: the question. service: "namespace/name:port", "" if none has the address. address: what kind
    of its addresses this is. policy: why it is treated so, in sentences. also: Services that claim it, too, in vain.
    live: what the kernel's own table does, if that was asked for; differs: where that is something else."""

    source: str
    kind: str
    target: str
    service: str
    address: str
    outcome: Outcome
    policy: tuple[str, ...]
    excluded: tuple[Excluded, ...] = ()
    also: tuple[str, ...] = ()
    live: Outcome | None = None
    differs: tuple[str, ...] = ()


def answer(world: World, question: Question, live: TableState | None = None) -> Answer:
    """live: the kernel's table. Raises rules.interpret_rule.NotUnderstood of it alone."""
    packet = question.packet
    claims = _claims(world, question)
    candidates = world.state.candidates(claims[0]) if claims else []
    wanted = _outcome(fates(world.tables[packet.family], packet), candidates)
    there = _outcome(fates(live, packet), candidates) if live else None
    claim = claims[0] if claims else None
    return Answer(
        question.source,
        question.kind,
        question.target.text,
        _name(claim) if claim else "",
        _SCOPES[claim.port.scope] if claim else "",
        wanted,
        tuple(_policy(world, question, claim, wanted)),
        tuple(sorted(_excluded(world, claim, candidates, wanted))) if claim else (),
        tuple(_name(other) for other in claims[1:]),
        there,
        tuple(_differences(wanted, there)) if there else (),
    )


def _claims(world: World, question: Question) -> tuple[Claim, ...]:
    packet = question.packet
    found = world.state.claims_of(service_key(packet.destination, packet.protocol, packet.port))
    if not found and packet.destination in world.node_ports[packet.family]:
        found = world.state.claims_of(node_port_key(packet.family, packet.protocol, packet.port))
    return found


def _outcome(found: dict[Fate, float], candidates: list[Candidate]) -> Outcome:
    nodes = {(info.address, number): info.node for info, number in candidates}
    chances: defaultdict[str, float] = defaultdict(float)
    endpoints: defaultdict[tuple[bytes, bool], float] = defaultdict(float)
    for fate, chance in found.items():
        if fate.what == "endpoint":
            endpoints[fate.endpoint, fate.is_masqueraded] += chance
        else:
            chances[fate.what] += chance
    reached = []
    for (packed, is_masqueraded), chance in endpoints.items():
        address, port = packed[:-4], int.from_bytes(packed[-4:-2])
        node = nodes.get((address, port), "")
        reached.append(Reached(with_port(address, port), round(chance, 6), is_masqueraded, node))
    likeliest = max(found.items(), key=lambda item: (item[1], item[0]))[0] if found else Fate("untouched")
    parts = {what: round(chance, 6) for what, chance in chances.items() if chance > 1e-9}
    return Outcome(tuple(sorted(reached)), **parts, path=likeliest.path)


def _policy(world: World, question: Question, claim: Claim | None, outcome: Outcome) -> Iterator[str]:
    packet = question.packet
    if claim is None:
        yield from _loopback(world, question) if _is_loopback(packet.destination) else _no_service(world, question)
        return
    service, scope = claim.service, claim.port.scope
    if scope is Scope.LOAD_BALANCER and service.sources is not None:
        inside = any(ipaddress.ip_address(packet.source) in network for network in service.sources)
        ranges = ", ".join(map(str, service.sources)) or "none that can be read"
        yield f"loadBalancerSourceRanges: {ranges}; the source is {'inside' if inside else 'outside'}"
    if scope is Scope.CLUSTER_IP:
        policy = "Local: endpoints on this node only" if service.internal_local else "Cluster: all endpoints"
        yield f"internalTrafficPolicy {policy}"
    elif not service.external_local:
        yield "externalTrafficPolicy Cluster: all endpoints, and the source is masqueraded"
    elif not _uses_local(outcome):
        yield "externalTrafficPolicy Local, but the source is in the cluster: all endpoints, as if it came back from outside"
    else:
        yield "externalTrafficPolicy Local: endpoints on this node only, and the source is kept"
    yield from _choice(service, outcome)
    if outcome.refused:
        yield "no endpoint is there to be led to: refused (TCP reset, else ICMP port unreachable)"
    elif outcome.dropped and not _is_kept_out(outcome):
        yield "there are endpoints, but none that the policy allows here: dropped"


def _choice(service: ServiceInfo, outcome: Outcome) -> Iterator[str]:
    if len(outcome.endpoints) > 1 or service.timeout:
        if service.timeout:
            yield f"sessionAffinity ClientIP: a client stays with its endpoint for {service.timeout} s from its last connection"
        elif service.scheduler is Scheduler.RR:
            yield "scheduler rr: each in turn"
        elif service.scheduler is Scheduler.SH:
            yield "scheduler sh: by the client's address"


def _no_service(world: World, question: Question) -> Iterator[str]:
    packet = question.packet
    address = ipaddress.ip_address(packet.destination)
    if packet.destination in _cluster_ips(world, question):
        yield f"{address} is a clusterIP, but none of its ports is {question.target.port}/{question.target.protocol}: refused"
    elif any(address in cidr for cidr in world.state.service_cidrs):
        yield f"{address} is in a ServiceCIDR, and no Service has it: dropped"
    elif packet.destination in world.node_ports[packet.family]:
        yield "no NodePort: the node itself answers"
    else:
        yield "no Service has this address: none of this proxy's business"


def _is_loopback(address: bytes) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _loopback(world: World, question: Question) -> Iterator[str]:
    packet = question.packet
    if not world.state.claims_of(node_port_key(packet.family, packet.protocol, packet.port)):
        yield "packets to loopback do not leave the node: none of this proxy's business"
    elif packet.family not in loopback_families(world.config.node_port_addresses.cidrs):
        yield "no rule leads from loopback to a pod; list localhost in nodePortAddresses, and a forwarder answers TCP there"
    elif question.target.protocol == "TCP":
        yield "this is a NodePort, and the forwarder answers on loopback (KEP-6032): it connects to an endpoint itself"
    else:
        yield "this is a NodePort, and the forwarder on loopback has TCP only"


def _cluster_ips(world: World, question: Question) -> frozenset[bytes]:
    return frozenset(world.tables[question.packet.family].sets["cluster-ips"].elements)


def _excluded(world: World, claim: Claim, candidates: list[Candidate], outcome: Outcome) -> Iterator[Excluded]:
    service, scope = claim.service, claim.port.scope
    if scope is Scope.CLUSTER_IP:
        policy = "internalTrafficPolicy" if service.internal_local else ""
    else:
        policy = "externalTrafficPolicy" if service.external_local and _uses_local(outcome) else ""
    is_kept_out = _is_kept_out(outcome)
    reached = {each.endpoint for each in outcome.endpoints}
    for candidate in candidates:
        endpoint = with_port(candidate[0].address, candidate[1])
        if endpoint not in reached:
            why = why_not(candidate, candidates, world.state.place, policy)
            yield Excluded(endpoint, "the source may not use this address" if is_kept_out else why)


def _uses_local(outcome: Outcome) -> bool:
    """Whether it came to where endpoints on this node count alone."""
    return any("pick-local" in step.split()[0] for step in outcome.path)


def _is_kept_out(outcome: Outcome) -> bool:
    return bool(outcome.dropped) and outcome.path[-1:] == ("check-source",)


def _differences(wanted: Outcome, there: Outcome) -> Iterator[str]:
    mine, theirs = ({e.endpoint: e for e in outcome.endpoints} for outcome in (wanted, there))
    for name in sorted(mine.keys() - theirs.keys()):
        yield f"{name} is missing in the kernel's table"
    for name in sorted(theirs.keys() - mine.keys()):
        yield f"{name} is in the kernel's table, and should not be"
    for name in sorted(mine.keys() & theirs.keys()):
        if mine[name].masqueraded != theirs[name].masqueraded:
            yield f"{name} is {'' if theirs[name].masqueraded else 'not '}masqueraded in the kernel's table"
        elif abs(mine[name].chance - theirs[name].chance) > 1e-3:
            yield f"{name} has a chance of {theirs[name].chance:.1%} in the kernel's table, not {mine[name].chance:.1%}"
    kinds: tuple[Literal["refused", "dropped", "untouched"], ...] = ("refused", "dropped", "untouched")
    for kind in kinds:
        if abs(getattr(wanted, kind) - getattr(there, kind)) > 1e-3:
            yield f"{kind}: {getattr(there, kind):.1%} in the kernel's table, not {getattr(wanted, kind):.1%}"


def _name(claim: Claim) -> str:
    service = "/".join(claim.service.name)
    return f"{service}:{claim.port.name}" if claim.port.name else service
