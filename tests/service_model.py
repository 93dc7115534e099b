"""What a Service proxy must do with the first packet of a connection: a plain model, to hold the real one against.

It works on the API's objects as plain dicts, one packet at a time, looks at everything anew each time, and shares no
code with what it judges. Objects are as the API server gives them: defaults filled in where it matters.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Object = Mapping[str, Any]
Endpoint = tuple[str, int]
"""Address and port."""

PRESERVED, MASQUERADED = "preserved", "masqueraded"
REJECTED, DROPPED = "rejected", "dropped"


@dataclass(frozen=True)
class Source:
    """address: the packet's source. interface: the one of the node that it came in through; '': the node sent it."""

    address: str
    interface: str = ""


@dataclass(frozen=True)
class Expected:
    """reach: every endpoint that may answer, and what it sees of the client's address; if empty, `fails` says how.

    sticky: all connections of one client to one service port reach the same one.
    """

    reach: Mapping[Endpoint, str] = field(default_factory=dict)
    fails: str = ""
    sticky: bool = False


@dataclass(frozen=True)
class World:
    """What the proxy of one node knows. interfaces: the addresses of the node's interfaces."""

    services: Sequence[Object]
    slices: Sequence[Object]
    node: Object
    config: Object
    service_cidrs: Sequence[str] = ()
    interfaces: Sequence[str] = ()


def expected(world: World, source: Source, address: str, port: int, protocol: str) -> Expected | None:
    """What becomes of a packet from `source` to address:port. None: it is none of the proxy's business."""
    services = [s for s in world.services if counts(s)]
    for service in services:
        for service_port in service["spec"].get("ports", ()):
            if service_port.get("protocol", "TCP") != protocol:
                continue
            kind = _kind(world, service, service_port, address, port)
            if kind:
                return _expected(world, service, service_port, kind, source, address)
    if any(_same(address, ip) for s in services for ip in _cluster_ips(s)):
        return Expected(fails=REJECTED)
    if any(_inside(address, cidr) for cidr in world.service_cidrs):
        return Expected(fails=DROPPED)
    return None


def counts(service: Object) -> bool:
    """Whether the Service is the proxy's to serve."""
    spec = service["spec"]
    if spec.get("type") == "ExternalName":
        return False
    if "service.kubernetes.io/service-proxy-name" in service["metadata"].get("labels", {}):
        return False
    return spec.get("clusterIP", "") not in ("", "None")


# Where to.


def _kind(world: World, service: Object, service_port: Object, address: str, port: int) -> str:
    """The kind of address of this service port that address:port is, '' if none."""
    spec = service["spec"]
    if port == service_port["port"]:
        if any(_same(address, ip) for ip in _cluster_ips(service)):
            return "clusterIP"
        if any(_same(address, ip) for ip in spec.get("externalIPs", ())):
            return "externalIP"
        if any(_same(address, ip) for ip in _load_balancer_ips(service)):
            return "loadBalancer"
    if port == service_port.get("nodePort") and any(_same(address, ip) for ip in _node_port_addresses(world)):
        if _version(address) in {_version(ip) for ip in _cluster_ips(service)}:
            return "nodePort"
    return ""


def _cluster_ips(service: Object) -> Sequence[str]:
    spec = service["spec"]
    return spec.get("clusterIPs") or [spec["clusterIP"]]


def _load_balancer_ips(service: Object) -> Iterator[str]:
    for ingress in service.get("status", {}).get("loadBalancer", {}).get("ingress", ()):
        if ingress.get("ip") and ingress.get("ipMode") != "Proxy":
            yield ingress["ip"]


def _node_port_addresses(world: World) -> Iterator[str]:
    selected = world.config.get("nodePortAddresses") or ["primary"]
    if selected == ["primary"]:
        for version in (4, 6):
            yield from [ip for ip in _internal_ips(world.node) if _version(ip) == version][:1]
        return
    for ip in world.interfaces:
        of_family = [cidr for cidr in selected if _version(cidr.partition("/")[0]) == _version(ip)]
        is_selected = any(_inside(ip, cidr) for cidr in of_family) or not of_family
        if not ipaddress.ip_address(ip).is_loopback and is_selected:
            yield ip


def _internal_ips(node: Object) -> list[str]:
    return [a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP"]


# Where from.


def _local_pods_are_known(world: World, version: int) -> bool:
    """Whether anything tells how to know a local pod."""
    mode = world.config.get("detectLocalMode") or "ClusterCIDR"
    return mode not in ("ClusterCIDR", "NodeCIDR") or bool(_pod_cidrs(world, mode, version))


def _is_local_pod(world: World, source: Source) -> bool:
    mode = world.config.get("detectLocalMode") or "ClusterCIDR"
    how = world.config.get("detectLocal", {})
    if mode == "BridgeInterface":
        return source.interface == str(how["bridgeInterface"])
    if mode == "InterfaceNamePrefix":
        return source.interface.startswith(str(how["interfaceNamePrefix"]))
    return any(_inside(source.address, cidr) for cidr in _pod_cidrs(world, mode, _version(source.address)))


def _pod_cidrs(world: World, mode: str, version: int) -> list[str]:
    if mode == "NodeCIDR":
        cidrs = world.node["spec"].get("podCIDRs", ())
    else:
        cidrs = [cidr for cidr in world.config.get("clusterCIDR", "").split(",") if cidr]
    return [cidr for cidr in cidrs if _version(cidr) == version]


def _may_use_load_balancer(world: World, service: Object, source: Source) -> bool:
    """loadBalancerSourceRanges."""
    ranges = [r.strip() for r in service["spec"].get("loadBalancerSourceRanges", ())]
    ranges = [r for r in ranges if _version(r) == _version(source.address)]
    if not ranges or any(r.endswith("/0") for r in ranges):
        return True
    if any(_inside(source.address, r) for r in ranges):
        return True
    if any(_inside(ip, r) for ip in _internal_ips(world.node) for r in ranges):
        return any(_same(source.address, ip) for ip in _load_balancer_ips(service))
    return False


# Which endpoints, and what they see.


def _expected(world: World, service: Object, service_port: Object, kind: str, source: Source, address: str) -> Expected:
    spec = service["spec"]
    internal = kind == "clusterIP"
    local_only = spec.get("internalTrafficPolicy" if internal else "externalTrafficPolicy") == "Local"
    local_pod, from_node = _is_local_pod(world, source), not source.interface

    if kind == "loadBalancer" and not _may_use_load_balancer(world, service, source):
        return Expected(fails=DROPPED)

    if internal:
        known = _local_pods_are_known(world, _version(source.address))
        masquerade = bool(world.config.get("nftables", {}).get("masqueradeAll")) or (known and not local_pod)
    elif not local_only:
        masquerade = True
    elif local_pod or from_node:  # as if it had gone out to a load balancer and come back
        local_only, masquerade = False, not local_pod
    else:
        masquerade = False

    endpoints = _endpoints(world, service, service_port, _version(address))
    everywhere = _everywhere(world, endpoints)
    if not everywhere:
        return Expected(fails=REJECTED)
    chosen = _here(world, endpoints) if local_only else everywhere
    if not chosen:
        return Expected(fails=DROPPED)
    seen = {e: MASQUERADED if masquerade or _same(e[0], source.address) else PRESERVED for e in chosen}
    return Expected(seen, sticky=spec.get("sessionAffinity") == "ClientIP")


def _endpoints(world: World, service: Object, service_port: Object, version: int) -> dict[Endpoint, Object]:
    """All endpoints of a service port, whatever their condition: the slices merged."""
    merged: dict[Endpoint, Object] = {}
    for each in world.slices:
        labels = each["metadata"].get("labels", {})
        if each["metadata"].get("namespace") != service["metadata"].get("namespace"):
            continue
        if labels.get("kubernetes.io/service-name") != service["metadata"]["name"]:
            continue
        if {"service.kubernetes.io/headless", "service.kubernetes.io/service-proxy-name"} & set(labels):
            continue
        if each["addressType"] != f"IPv{version}":
            continue
        for slice_port in each.get("ports", ()):
            if slice_port.get("name", "") != service_port.get("name", ""):
                continue
            if slice_port.get("protocol", "TCP") != service_port.get("protocol", "TCP"):
                continue
            if slice_port.get("port") is None:
                continue
            for endpoint in each.get("endpoints", ()):
                key = (endpoint["addresses"][0], slice_port["port"])
                if key not in merged or _terminating(merged[key]):
                    merged[key] = endpoint
    return merged


def _everywhere(world: World, endpoints: Mapping[Endpoint, Object]) -> list[Endpoint]:
    ready = {key: e for key, e in endpoints.items() if _ready(e)}
    if not ready:
        return [key for key, e in endpoints.items() if _serving(e) and _terminating(e)]
    node = world.node["metadata"]["name"]
    zone = world.node["metadata"].get("labels", {}).get("topology.kubernetes.io/zone")
    for hint, mine in (("forNodes", node), ("forZones", zone)):
        hints = {key: [h["name"] for h in (e.get("hints") or {}).get(hint, ())] for key, e in ready.items()}
        if all(hints.values()) and any(mine in names for names in hints.values()):
            return [key for key, names in hints.items() if mine in names]
    return list(ready)


def _here(world: World, endpoints: Mapping[Endpoint, Object]) -> list[Endpoint]:
    node = world.node["metadata"]["name"]
    here = {key: e for key, e in endpoints.items() if e.get("nodeName") == node}
    ready = [key for key, e in here.items() if _ready(e)]
    return ready or [key for key, e in here.items() if _serving(e) and _terminating(e)]


def _ready(endpoint: Object) -> bool:
    return _condition(endpoint, "ready", missing=True)


def _serving(endpoint: Object) -> bool:
    return _condition(endpoint, "serving", missing=True)


def _terminating(endpoint: Object) -> bool:
    return _condition(endpoint, "terminating", missing=False)


def _condition(endpoint: Object, name: str, *, missing: bool) -> bool:
    value = endpoint.get("conditions", {}).get(name)
    return missing if value is None else bool(value)


# Addresses.


def _version(text: str) -> int:
    """The IP version of an address or CIDR."""
    return 6 if ":" in text else 4


def _same(one: str, other: str) -> bool:
    return ipaddress.ip_address(one) == ipaddress.ip_address(other)


def _inside(address: str, cidr: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(cidr, strict=False)
