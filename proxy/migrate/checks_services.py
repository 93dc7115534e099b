"""Services that are deprecated, contradict each other, or work by accident. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from proxy.manifest_names import FILE
from proxy.migrate.case import Case, finding
from proxy.migrate.modes import CLAIMED, SOURCES
from proxy.migrate.ours import node_addresses
from proxy.migrate.report import Finding
from proxy.migrate.wording import is_are, many, service_of, services, some
from proxy.model import ENDPOINT_SLICE, NODE, SERVICE
from proxy.policy import READY
from proxy.services import Name, Scope
from rules.elements import address_of, describe_key
from rules.packed import address_text

KEP_EXTERNAL_IPS: Final = "KEP-5707"


def external_ips(case: Case) -> Iterator[Finding]:
    """spec.externalIPs is deprecated."""
    using = {name for name, info in case.ours.services.items() if any(p.scope is Scope.EXTERNAL_IP for p in info.ports)}
    if using:
        yield finding(
            "external-ips",
            "notice",
            f"{many(len(using), 'Service')} with externalIPs, which are deprecated",
            "Since 1.36 the API server warns of spec.externalIPs (whoever may write a Service can take any address with it,"
            " CVE-2020-8554). kube-proxy is to ignore them by default with 1.40 (feature gate AllowServiceExternalIPs), and"
            " for good with 1.43. kube-proxy-nft serves them.",
            "move to type LoadBalancer (MetalLB and others give addresses without a cloud) or to Gateway API",
            services(map("/".join, using)),
            KEP_EXTERNAL_IPS,
        )


def address_conflicts(case: Case) -> Iterator[Finding]:
    """An external address that is the node's own, or a clusterIP."""
    own = node_addresses(case.facts.here.interfaces) | set(case.ours.addresses)
    cluster = {
        address_of(port.key): name
        for name, info in case.ours.services.items()
        for port in info.ports
        if port.scope is Scope.CLUSTER_IP
    }
    found = []
    for name, info in case.ours.services.items():
        outside = (p for p in info.ports if p.scope in (Scope.EXTERNAL_IP, Scope.LOAD_BALANCER))
        for address in dict.fromkeys(address_of(p.key) for p in outside):
            if address in own:
                found.append(f"Service {_text(name)}: {address_text(address)} is an address of this node")
            elif cluster.get(address, name) != name:
                other = _text(cluster[address])
                found.append(f"Service {_text(name)}: {address_text(address)} is the clusterIP of Service {other}")
    if found:
        yield finding(
            "address-conflict",
            "notice",
            f"{many(len(found), 'external address')} of Services that {is_are(len(found))} something else as well",
            "Where it is an address of this node, the Service's port at it is the Service's and not the node's, in every"
            " mode. Where it is another Service's clusterIP, traffic to it is treated as that to a clusterIP.",
            "give the Service another address; an address of a node is better reached through a NodePort",
            sorted(found),
        )


def claimed_twice(case: Case) -> Iterator[Finding]:
    """Several Services want one address, protocol and port."""
    rivals = case.ours.rivals
    if not rivals:
        return
    found = []
    for key, names in rivals.items():
        port = case.ours.ports.get(key)
        others = ", ".join(sorted(_text(name) for name in names))
        found.append(f"{describe_key(key)}: Services {others}; here: {service_of(port.name) if port else 'none'}")
    yield finding(
        CLAIMED,
        "change",
        f"Several Services claim {many(len(rivals), 'address and port' if len(rivals) == 1 else 'addresses and port')}",
        "In kube-proxy it is chance who gets them, and changes with its next start (its nftables mode may refuse all"
        " rules). Here the older Service keeps them, and the other one is reported.",
        "give one of them another address or port",
        sorted(found),
    )


def source_ranges(case: Case) -> Iterator[Finding]:
    """loadBalancerSourceRanges that mean something else here."""
    explained = case.comparison.explained.get(SOURCES, [])
    unread = {_text(name) for name, info in case.ours.services.items() if info.unread_sources}
    if explained or unread:
        yield finding(
            SOURCES,
            "change" if unread else "notice",
            "loadBalancerSourceRanges will be read more strictly",
            "kube-proxy passes over ranges that it cannot read, and lets everybody in if none is left; here they let nobody"
            " in. In IPVS mode a load balancer's address is a source for itself only, here for all of its Service.",
            "correct the ranges",
            services({*map(service_of, explained), *unread}),
        )
    guarded = {_text(name) for name, info in case.ours.services.items() if info.sources is not None} - unread
    if case.mode == "ipvs" and guarded:
        yield finding(
            "source-ranges-node",
            "notice",
            f"Connections of this node to {many(len(guarded), 'Service')} with loadBalancerSourceRanges",
            "In IPVS mode the node talks to a load balancer's address with that address as its source, and is let in if its"
            " first IP is in a range. Here it has the address of the interface that leads there, which must be in a range.",
            "see that the ranges hold all addresses of the nodes, where nodes use these Services",
            services(guarded),
        )


def without_endpoints(case: Case) -> Iterator[Finding]:
    """Refused: how that looks to clients."""
    if ENDPOINT_SLICE in case.ours.unread or not case.mode or case.mode == "kube-proxy-nft":
        return
    empty = {service_of(port.name) for port in case.ours.ports.values() if not port.endpoints and not port.drop}
    if empty:
        yield finding(
            "no-endpoints",
            "info",
            f"{many(len(empty), 'Service')} without endpoints",
            "They are refused, today and after the switch: TCP by a reset (kube-proxy answers with ICMP, which IPv6 clients ignore until"
            " they time out), the rest by ICMP.",
            "nothing",
            services(empty),
        )


def terminating(case: Case) -> Iterator[Finding]:
    """Served by endpoints that are about to go."""
    last = {_text(name) for name, best in case.ours.backends.items() if best and not best & READY}
    last &= {_text(name) for name in case.ours.services}
    if last:
        yield finding(
            "terminating-endpoints",
            "info",
            f"{many(len(last), 'Service')} only with endpoints that terminate",
            "Where none is ready, those that still serve while they terminate are used (KEP-1669), in every mode. Connections"
            " that are open when an endpoint goes stay with it, in IPVS mode with its weight 0, here in connection tracking.",
            "nothing; look at them if they do not come back",
            services(last),
        )


def unallocated(case: Case) -> Iterator[Finding]:
    """What is sent to addresses and ports that no Service has."""
    ranges = case.ours.state.service_cidrs
    if case.mode == "iptables" or (case.mode == "ipvs" and ranges):
        yield finding(
            "unallocated-cluster-ips",
            "info",
            "What is sent to no Service does not leave the node any more",
            "A port that no Service has, of a clusterIP that one has, is refused, and so is ping; an address of the ServiceCIDRs"
            f" that no Service has is dropped. {case.mode} mode lets "
            + ("both" if case.mode == "iptables" else "the second")
            + " through to where the routes lead.",
            "nothing; traffic that runs into time-outs now was never answered",
            [str(network) for network in ranges],
        )


def orphans(case: Case) -> Iterator[Finding]:
    """EndpointSlices whose Service is not there."""
    if SERVICE in case.ours.unread:
        return
    lost = {_text(name) for name in case.ours.backends if name not in case.ours.types}
    if lost:
        yield finding(
            "orphan-slices",
            "info",
            f"EndpointSlices of {many(len(lost), 'Service')} that {'was' if len(lost) == 1 else 'were'} not found",
            "There is no such Service, or it is another proxy's: those with the label service.kubernetes.io/service-proxy-name are"
            " not asked for. Somebody who manages EndpointSlices by hand may have meant another name.",
            "if there is no such Service, delete them, or correct their label kubernetes.io/service-name",
            services(lost),
        )


def left_out(case: Case) -> Iterator[Finding]:
    """Objects, or parts of them, that cannot be used."""
    found = [p for p in case.ours.problems if not p.is_conflict]
    if found:
        yield finding(
            "objects-left-out",
            "change",
            f"{many(len({(p.kind, p.namespace, p.name) for p in found}), 'object')} with something that cannot be used",
            "They would not pass today's validation, or name what there is not. What is wrong is left out, the rest works;"
            " kube-proxy may make something else of it.",
            "correct them",
            [f"{p.kind} {_path(p.namespace, p.name)}: {p.reason}" for p in found],
        )


def manifests(case: Case) -> Iterator[Finding]:
    """Files of --manifests that could not be read."""
    found = [one for one in case.facts.unread if one.what.startswith(FILE)]
    if found:
        yield finding(
            "manifests-unread",
            "change",
            f"{many(len(found), 'manifest')} could not be read",
            "Objects in them are missing here: Services of which this report knows nothing, or endpoints that seem to be gone.",
            "see the gaps: each is named with its cause; correct them, and run this again",
            [f"{one.what}: {one.cause}" for one in found],
        )


def no_services(case: Case) -> Iterator[Finding]:
    """Not one."""
    if SERVICE not in case.ours.unread and not case.ours.types:
        yield finding(
            "no-services",
            "blocker",
            "No Services were found",
            "Every cluster has at least default/kubernetes: these are not the objects of a cluster, and this report says"
            f" nothing about one. They came from {case.facts.source or 'an unknown place'}.",
            "see that the source of objects is the right one",
        )


def node_missing(case: Case) -> Iterator[Finding]:
    """No Node of this name, or it could not be read."""
    node = case.ours.state.node
    if node is None or not node.exists:
        unread = NODE in case.ours.unread
        yield finding(
            "node-missing",
            "change",
            f"The Node {case.facts.node} could not be read" if unread else f"There is no Node {case.facts.node}",
            "Its addresses, its zone and its pods' range come from it: without, local endpoints and NodePorts come out wrong."
            f" Primary addresses are taken from the interfaces: {_addresses(case.ours.addresses) or 'none'}.",
            "allow the account of this report to get nodes"
            if unread
            else "name the node with --node, or set hostnameOverride as kubelet has it",
        )


def _addresses(addresses: Iterable[bytes]) -> str:
    return some([address_text(address) for address in addresses])


def _text(name: Name) -> str:
    return "/".join(name)


def _path(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name or "(without a name)"
