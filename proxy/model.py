"""The Kubernetes objects that a Service proxy reads, with only the fields it uses.

Decoded once, at the edge, by msgspec: straight from JSON bytes (API server) or from plain YAML data (manifests).
Names and meaning are the API's (core/v1, discovery.k8s.io/v1, networking.k8s.io/v1); what the API server would have
filled in has its default here, so a manifest written by hand means the same as the stored object.
Fields that are not listed are skipped by the decoder and never reach memory.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

SERVICE: Final = "Service"
ENDPOINT_SLICE: Final = "EndpointSlice"
NODE: Final = "Node"
SERVICE_CIDR: Final = "ServiceCIDR"
KINDS: Final = (SERVICE, ENDPOINT_SLICE, NODE, SERVICE_CIDR)

LABEL_SERVICE_NAME: Final = "kubernetes.io/service-name"
LABEL_PROXY_NAME: Final = "service.kubernetes.io/service-proxy-name"
LABEL_HEADLESS: Final = "service.kubernetes.io/headless"

# A port number is checked when the Service is read into the state, where the object can be named; the decoder only
# keeps out what is no 32-bit number at all.
Number = Annotated[int, Meta(ge=-(2**31), lt=2**31)]


class _Api(Struct, rename="camel", gc=False, omit_defaults=True):
    """Base: camelCase on the wire; no reference cycles, so no garbage collector bookkeeping."""


class ObjectMeta(_Api):
    """metadata: `creation_timestamp` stays RFC 3339 text, which sorts by time."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class ServicePortSpec(_Api):
    """One entry of Service.spec.ports. (The target port that counts is the EndpointSlice's.)"""

    port: Number
    name: str = ""
    protocol: str = "TCP"
    node_port: Number = 0


class LoadBalancerIngress(_Api):
    ip: str = ""
    ip_mode: str = "VIP"


class LoadBalancerStatus(_Api):
    ingress: list[LoadBalancerIngress] | None = None


class ServiceStatus(_Api):
    load_balancer: LoadBalancerStatus | None = None


class ClientIPConfig(_Api):
    timeout_seconds: Number = 10800


class SessionAffinityConfig(_Api):
    client_ip: ClientIPConfig | None = msgspec.field(name="clientIP", default=None)


class ServiceSpec(_Api):
    type: str = "ClusterIP"
    cluster_ip: str = msgspec.field(name="clusterIP", default="")
    cluster_ips: list[str] | None = msgspec.field(name="clusterIPs", default=None)
    ports: list[ServicePortSpec] | None = None
    external_ips: list[str] | None = msgspec.field(name="externalIPs", default=None)
    load_balancer_source_ranges: list[str] | None = None
    internal_traffic_policy: str = "Cluster"
    external_traffic_policy: str = "Cluster"
    session_affinity: str = "None"
    session_affinity_config: SessionAffinityConfig | None = None
    health_check_node_port: Number = 0


class Service(_Api):
    metadata: ObjectMeta
    spec: ServiceSpec
    status: ServiceStatus | None = None


class EndpointConditions(_Api):
    """null and missing mean: ready, serving, not terminating (discovery.k8s.io/v1 EndpointConditions)."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Hint(_Api):
    name: str


class EndpointHints(_Api):
    for_zones: list[Hint] | None = None
    for_nodes: list[Hint] | None = None


class Endpoint(_Api):
    addresses: list[str]
    conditions: EndpointConditions | None = None
    node_name: str | None = None
    zone: str | None = None
    hints: EndpointHints | None = None


class EndpointPort(_Api):
    name: str | None = None
    port: Number | None = None
    protocol: str | None = None


class EndpointSlice(_Api):
    metadata: ObjectMeta
    address_type: str = ""
    endpoints: list[Endpoint] | None = None
    ports: list[EndpointPort] | None = None


class NodeAddress(_Api):
    type: str = ""
    address: str = ""


class NodeMeta(ObjectMeta):
    """deletion_timestamp: RFC 3339, set while the object is being deleted."""

    deletion_timestamp: str | None = None


class Taint(_Api):
    key: str = ""


class NodeSpec(_Api):
    pod_cidr: str = msgspec.field(name="podCIDR", default="")
    pod_cidrs: list[str] | None = msgspec.field(name="podCIDRs", default=None)
    taints: list[Taint] | None = None


class NodeStatus(_Api):
    addresses: list[NodeAddress] | None = None


class Node(_Api):
    metadata: NodeMeta
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class ServiceCIDRSpec(_Api):
    cidrs: list[str] | None = None


class ServiceCIDR(_Api):
    metadata: ObjectMeta
    spec: ServiceCIDRSpec | None = None


KubeObject = Service | EndpointSlice | Node | ServiceCIDR

TYPES: Final[dict[str, type[KubeObject]]] = {
    SERVICE: Service,
    ENDPOINT_SLICE: EndpointSlice,
    NODE: Node,
    SERVICE_CIDR: ServiceCIDR,
}
API_VERSIONS: Final = {
    SERVICE: "v1",
    ENDPOINT_SLICE: "discovery.k8s.io/v1",
    NODE: "v1",
    SERVICE_CIDR: "networking.k8s.io/v1",
}
_KIND_OF: Final = {struct: kind for kind, struct in TYPES.items()}
_DECODERS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(struct) for kind, struct in TYPES.items()
}


class BadObject(ValueError):
    """An object does not have the shape of its kind. `reason` says where and why, in msgspec's words."""

    def __init__(self, kind: str, namespace: str, name: str, reason: str) -> None:
        self.kind, self.namespace, self.name, self.reason = kind, namespace, name, reason
        super().__init__(f"{kind} {namespace + '/' if namespace else ''}{name or '(no name)'}: {reason}")


DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises of bytes that are no JSON, of another shape, or nested a thousand times."""


class _OnlyMeta(Struct):
    metadata: dict[str, Any] = {}


def decode(kind: str, raw: bytes | msgspec.Raw) -> KubeObject:
    """Decode one object of `kind` (one of KINDS) from JSON. Raises BadObject, which names the object if it has a name."""
    try:
        obj: KubeObject = _DECODERS[kind].decode(raw)
    except DECODE_ERRORS as e:
        try:
            meta = msgspec.json.decode(raw, type=_OnlyMeta).metadata
        except DECODE_ERRORS:
            meta = {}
        raise BadObject(kind, str(meta.get("namespace", "")), str(meta.get("name", "")), str(e)) from None
    return _with_namespace(kind, obj)


def convert(kind: str, data: Any) -> KubeObject:
    """The same from plain data (dicts, lists, str, int), as a YAML parser gives. Raises BadObject."""
    try:
        obj: KubeObject = msgspec.convert(data, TYPES[kind], strict=True)
    except msgspec.ValidationError as e:
        raw = data.get("metadata") if isinstance(data, dict) else None
        meta = raw if isinstance(raw, dict) else {}
        raise BadObject(kind, str(meta.get("namespace", "")), str(meta.get("name", "")), str(e)) from None
    return _with_namespace(kind, obj)


def _with_namespace(kind: str, obj: KubeObject) -> KubeObject:
    if not obj.metadata.name:
        raise BadObject(kind, obj.metadata.namespace, "", "metadata.name is missing")
    if not obj.metadata.namespace and kind in (SERVICE, ENDPOINT_SLICE):
        obj.metadata.namespace = "default"  # as kubectl does with a manifest that names none
    return obj


def kind_of(obj: KubeObject) -> str:
    """'Service', 'EndpointSlice', 'Node' or 'ServiceCIDR'."""
    return _KIND_OF[type(obj)]
