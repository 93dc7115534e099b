"""The resources that the stand-in has, and which of them a URL's path means."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One resource. `empty`: what a bookmark of it holds beside its metadata."""

    name: str
    group: str  # '' is the core group
    plural: str
    empty: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def root(self) -> str:
        return f"/apis/{self.group}/v1" if self.group else "/api/v1"

    @property
    def path(self) -> str:
        """Where all of them are listed."""
        return f"{self.root}/{self.plural}"

    @property
    def qualified(self) -> str:
        """As error messages name the resource."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path_of(self, namespace: str, name: str = "") -> str:
        """Where one of them is, or without a name where those of the namespace are created."""
        place = f"{self.root}/namespaces/{namespace}/{self.plural}" if self.namespaced else self.path
        return f"{place}/{name}" if name else place


KINDS = {
    "Service": Kind("Service", "", "services", ',"spec":{},"status":{"loadBalancer":{}}'),
    "EndpointSlice": Kind(
        "EndpointSlice", "discovery.k8s.io", "endpointslices", ',"addressType":"","endpoints":null,"ports":null'
    ),
    "ServiceCIDR": Kind(
        "ServiceCIDR", "networking.k8s.io", "servicecidrs", ',"spec":{"cidrs":null},"status":{}', namespaced=False
    ),
    "Node": Kind(
        "Node",
        "",
        "nodes",
        ',"spec":{},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":0}},"nodeInfo":{"machineID":"",'
        '"systemUUID":"","bootID":"","kernelVersion":"","osImage":"","containerRuntimeVersion":"","kubeletVersion":"",'
        '"kubeProxyVersion":"","operatingSystem":"","architecture":""}}',
        namespaced=False,
    ),
}
"""What a Service proxy follows."""

EVENT = Kind("Event", "events.k8s.io", "events", ',"eventTime":null,"deprecatedSource":{}')
ALL = KINDS | {"Event": EVENT}
_AT = {kind.path: kind for kind in ALL.values()}


@dataclass(frozen=True)
class Target:
    """What a path means: all objects of a kind, those of a namespace, or one."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def target(path: str) -> Target | None:
    """None: there is nothing at this path."""
    parts = path.strip("/").split("/")
    head = 3 if parts[0] == "apis" else 2
    root, rest = parts[:head], parts[head:]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    kind = _AT.get("/" + "/".join([*root, *rest[:1]]))
    if not kind or len(rest) > 3 or (namespace and not kind.namespaced):
        return None
    name, subresource = (*rest[1:], "", "")[:2]
    if name and kind.namespaced and not namespace:
        return None
    return Target(kind, namespace, name, subresource)
