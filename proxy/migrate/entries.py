"""What a dataplane does with each address, protocol and port: one form for kube-proxy's three modes and ours. Pure data."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from proxy.unread import Unread
from rules.elements import ServicePort, Sources

ModeName = Literal["iptables", "ipvs", "nftables", "kube-proxy-nft"]
Refusal = Literal["", "reject", "drop"]


class Entry(Struct, frozen=True, gc=False):
    """One address, protocol and port, or NodePort, and where it leads.

    key: as rules.elements.service_key or node_port_key makes it. (A NodePort that a dataplane has once for each
    address of the node is one entry.)
    name: "namespace/name:port" as far as the dataplane tells, else "".
    endpoints: what connections from pods and from this node get; each packed by rules.elements.endpoint.
    outside: what connections from elsewhere get: the same, unless a policy makes a difference.
    refusal, outside_refusal: what happens where those are empty; "" where they are not, or where it is not known.
    keeps_source: whether connections from elsewhere arrive with their own address; None: not told (as for a clusterIP).
    affinity: seconds; 0: none.
    sources: who may use it; None: everybody.
    scheduler: as IPVS spells it; "random" in the other modes.
    connections: that the dataplane itself tracks and would lose (IPVS: active and inactive); no part of a comparison.
    doubtful: a rule on the way was not understood: what is said here may not be so. damaged: its rules are not as their
    proxy writes them. The dataplane's `unread` and `remarks` tell which; no part of a comparison.
    """

    key: bytes
    name: str = ""
    endpoints: frozenset[bytes] = frozenset()
    outside: frozenset[bytes] = frozenset()
    refusal: Refusal = ""
    outside_refusal: Refusal = ""
    keeps_source: bool | None = None
    affinity: int = 0
    sources: Sources | None = None
    scheduler: str = "random"
    connections: int = 0
    doubtful: bool = False
    damaged: bool = False


EVERYBODY: Final = "all"


class Beside(Struct, frozen=True):
    """What rules say beside their entries; None: they, or what was read of them, do not tell it.

    pods: family ("ip", "ip6") -> how a pod's packet is told where clusterIPs are masqueraded: "10.244.0.0/16", "cbr0",
    "cali*"; "": not at all; EVERYBODY: pods are masqueraded, too. hairpins: endpoints that may connect to themselves: the protocol's number, and the packed
    endpoint. health_checks: ports that are let in for load balancers' health checks, as rules.elements.node_port_key makes
    them. dropped: ranges of clusterIPs; what goes to one that no Service has is dropped. strays: service keys of virtual
    servers that may be kube-proxy's, or another program's. uneven: service keys whose endpoints have weights other than 1.
    """

    pods: dict[str, str] = {}
    hairpins: frozenset[bytes] | None = None
    health_checks: frozenset[bytes] | None = None
    dropped: Sources | None = None
    strays: tuple[bytes, ...] = ()
    uneven: tuple[bytes, ...] = ()


class Dataplane(Struct, frozen=True):
    """The entries that a kernel has of one mode. A node in the middle of a switch has two of them.

    nodeport_addresses: packed; where NodePorts answer; None: at all addresses of the node. One that is all zero: at all
    addresses of its family. (): nowhere.
    masquerade_mark: the bit in the packet mark that asks for masquerading; 0: none was found.
    source: where it was read: "netlink", "iptables-nft-save", "/proc/net/ip_vs".
    unread: parts that could not be read; then what is missing in `entries` may be there.
    remarks: what is wrong with rules that were read: they are stale, or damaged. `entries` says what they do.
    localhost_nodeports: NodePorts answer at 127.0.0.0/8 too (if route_localnet is set).
    """

    mode: ModeName
    entries: tuple[Entry, ...]
    nodeport_addresses: tuple[bytes, ...] | None = None
    masquerade_mark: int = 0
    source: str = ""
    unread: tuple[Unread, ...] = ()
    localhost_nodeports: bool = False
    remarks: tuple[Unread, ...] = ()
    beside: Beside = Beside()


def of_service_port(port: ServicePort) -> Entry:
    """What our own tables do with a service port."""
    inside = frozenset(port.endpoints)
    outside = frozenset(port.local) if port.local_policy else inside
    refusal: Refusal = "drop" if port.drop else "reject"
    return Entry(
        port.key,
        port.name,
        inside,
        outside,
        "" if inside else refusal,
        "" if outside else refusal,
        port.local_policy if port.external else None,
        port.timeout,
        port.sources,
        port.scheduler.value,
    )
