"""All that a migration report is made of, as it was gathered on a node: the content of a bundle. Plain data, no secrets.

msgspec encodes it; proxy.migrate.bundle makes a file of it.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Struct

from proxy.detect.evidence import Evidence
from proxy.migrate.entries import Dataplane
from proxy.migrate.report import Proof
from proxy.unread import Unread

FORMAT: Final = "kube-proxy-nft/migration-facts/v1"
Hook = Literal["prerouting", "input", "forward", "output", "postrouting", "ingress", "egress"]


class BaseChain(Struct, frozen=True):
    """A base chain of nftables, anybody's (iptables-nft's too), or of iptables-legacy. rules: how many; -1: not counted.

    family: "ip", "ip6", "inet". kind: "nat", "filter", "route". policy: "accept", "drop".
    """

    family: str
    table: str
    name: str
    kind: str
    hook: Hook
    priority: int
    policy: Literal["accept", "drop"] = "accept"
    rules: int = -1
    program: str = ""
    """Whose it is, as far as that can be told: "iptables", "kube-proxy", "firewalld", "calico", "docker", ..."""


class ForwardFilter(Struct, frozen=True):
    """A chain at the forward hook whose policy is drop, or that drops what it does not know: does it let pods through?

    accepts: words of the rules that accept (source, destination, interface, mark), as far as they are understood; a rule
    that accepts everything, or all that goes to or comes from a pod range, is among them as it is written.
    lets_dnat: "yes", "no", "unknown": whether a new connection from outside that was sent to a pod by DNAT passes without
    kube-proxy's own rules (KUBE-FORWARD). apart: in a table that is not iptables': what KUBE-FORWARD accepts comes by all
    the same, since a packet passes the base chains of each table.
    """

    place: str
    lets_dnat: Literal["yes", "no", "unknown"]
    accepts: tuple[str, ...] = ()
    apart: bool = False


class Listener(Struct, frozen=True):
    """A socket of the node that listens. address: packed, all zero for any. program: "" where it may not be seen."""

    protocol: Literal["TCP", "UDP", "SCTP"]
    address: bytes
    port: int
    program: str = ""


WHOLE_MARK: Final = (1 << 32) - 1
"""Of MarkUse: all bits."""


class MarkUse(Struct, frozen=True):
    """Bits of the packet mark (or, `of_connections`, of theirs) that a rule of another program sets or matches."""

    place: str
    mask: int
    program: str = ""
    of_connections: bool = False


class Translation(Struct, frozen=True):
    """A rule of another program's that leads packets elsewhere. destination: an address or a range. protocol: "TCP"; "" for
    any. ports: "80", "80:90", "80,443"; "" for any. to: as it is written, "" for this node."""

    place: str
    destination: str
    protocol: str = ""
    ports: str = ""
    to: str = ""


class Interface(Struct, frozen=True):
    """addresses: packed, without their prefix lengths."""

    name: str
    addresses: tuple[bytes, ...] = ()


class NodeFacts(Struct, frozen=True):
    """What this node is like. None, "" and () where it was not read: `unread` of Facts says so.

    is_this_node: the facts are those of the node that the report is about, not of somebody's workstation.
    kernel: as uname -r. missing_features: kernel options of nftables features that the kernel lacks, found by trying.
    sysctls: "net/ipv4/conf/all/route_localnet" -> value. localhost_packets: that went to NodePorts at 127.0.0.0/8 (the
    counter localhost_nps_accepted_pkts of kube-proxy). cni: names as in /etc/cni/net.d, or told by interfaces.
    """

    is_this_node: bool = True
    kernel: str = ""
    missing_features: tuple[str, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    listeners: tuple[Listener, ...] = ()
    sysctls: dict[str, str] = {}
    conntrack_count: int | None = None
    conntrack_max: int | None = None
    chains: tuple[BaseChain, ...] = ()
    forward: tuple[ForwardFilter, ...] = ()
    marks: tuple[MarkUse, ...] = ()
    localhost_packets: int | None = None
    cni: tuple[str, ...] = ()
    platform: Literal["kubeadm", "k3s", "rke2", "daemonset", ""] = ""
    translations: tuple[Translation, ...] = ()


class PresentProxy(Struct, frozen=True):
    """The kube-proxy that is there now.

    mode: the mode in force, an unset one resolved; "" if not known. mode_is_set: whether the configuration names it.
    document: its KubeProxyConfiguration with flags merged in, as plain data; {} if none was found. source: where that was
    read. version: of its image or binary; "" if not known. refused: why kube-proxy-nft does not start with the file as it
    is; "" if it does, or there is no file. unknown: fields that no kube-proxy has, and what is to be said about each.
    """

    mode: str = ""
    mode_is_set: bool = False
    document: dict[str, object] = {}
    source: str = ""
    version: str = ""
    refused: str = ""
    unknown: tuple[tuple[str, str], ...] = ()


class Facts(Struct):
    """node: its name. made: RFC 3339. made_by: our version. objects: kind -> each object's JSON, with only what a proxy
    reads. evidence: of the detector. source: where the objects come from, for people. proof: what the kernel that it was made
    on said to our tables; None: it is not known yet."""

    node: str
    made: str
    made_by: str
    present: PresentProxy
    objects: dict[str, list[msgspec.Raw]]
    here: NodeFacts
    dataplanes: tuple[Dataplane, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    unread: tuple[Unread, ...] = ()
    cluster_version: str = ""
    source: str = ""
    format: str = FORMAT
    proof: Proof | None = None
