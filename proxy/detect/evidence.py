"""What was found, where, and how sure that is: the detector's facts, before any judgement. Plain data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

PlaceKind = Literal[
    "file",  # name: its path ("-" for standard input); line counts
    "flag",  # of our own command line, such as --kubernetes-version
    "configmap",  # name: namespace/name, and the key in `part`
    "daemonset",
    "pod",  # also the mirror of a static pod
    "node",  # a Node object
    "process",  # name: "PID (command)"
    "unit",  # a systemd unit; name: its path or name
    "port",  # an HTTP port; name: its URL
    "interface",
    "ipvs",  # name: "netlink" or "/proc/net/ip_vs"
    "iptables",  # name: "nft" or "legacy"; part: "ip" or "ip6"
    "ipset",
    "nftables",  # name: family and table
    "kernel",
    "api-server",
]

Sure = Literal["certain", "likely", "possible"]
"""certain: the thing itself says so. likely: follows from defaults or from a part. possible: one reading of many."""

Mode = str
"""As kube-proxy spells it: "iptables", "ipvs", "nftables", "kernelspace", "" for unset; other words as they were found."""


class Place(Struct, frozen=True, order=True):
    """Where something was found. `node`: the node's name, '' when it holds for the whole cluster or is not known."""

    kind: PlaceKind
    name: str
    part: str = ""
    line: int = 0
    node: str = ""


class _Evidence(Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    place: Place
    sure: Sure = "certain"


class ConfiguredMode(_Evidence, frozen=True):
    """A kube-proxy's configuration (file, flags, or both) and the mode it asks for; mode '': it names none.

    overridden: this place does not decide, because another one goes before it (a flag beside --config, a file that
    k3s's kube-proxy-arg overrides); said in `note`. idle: no kube-proxy runs with it, because kube-proxy-nft is in its
    place, which reads no mode. os: "linux", "windows", '' where it is not known. sets_from: of an unset mode: from this
    version of Kubernetes on, the tool whose file this is sets iptables itself.
    """

    mode: Mode
    note: str = ""
    overridden: bool = False
    idle: bool = False
    os: Literal["linux", "windows", ""] = ""
    sets_from: str = ""


class IpvsOption(_Evidence, frozen=True):
    """An option that only IPVS mode reads is set to something: ipvs.strictARP, --ipvs-scheduler."""

    name: str
    value: str


class FeatureGate(_Evidence, frozen=True):
    """A feature gate of kube-proxy that bears on the mode: KubeProxyIPVS."""

    name: str
    value: bool


class ServedMode(_Evidence, frozen=True):
    """What a running kube-proxy says at /proxyMode."""

    mode: Mode


class IpvsTable(_Evidence, frozen=True):
    """IPVS virtual servers in the kernel. kube: how many of them have an address of kube-ipvs0 or of this node, as
    kube-proxy's have; 0 without that interface: others may be a load balancer's (keepalived). schedulers: name ->
    virtual servers."""

    services: int
    destinations: int
    schedulers: dict[str, int]
    kube: int


class IpvsInterface(_Evidence, frozen=True):
    """kube-ipvs0 exists."""

    addresses: int


class KubeChains(_Evidence, frozen=True):
    """KUBE-* chains of iptables. mode: whose they are ("iptables", "ipvs", "" when kubelet's alone: KUBE-FIREWALL,
    KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT). services: chains KUBE-SVC-*. empty: no packet is led by them: nothing is in
    those, or, of IPVS mode, in the chains that only it makes; or their table is dormant."""

    mode: Mode
    chains: int
    services: int
    empty: bool = False


class KubeSets(_Evidence, frozen=True):
    """ipsets named KUBE-*, which IPVS mode makes."""

    sets: int
    entries: int


class KubeTables(_Evidence, frozen=True):
    """nftables tables of a proxy: `owner` "kube-proxy" (upstream's nftables mode) or "kube-proxy-nft" (ours). running: its
    program is known to run. dormant: the table has that flag: none of its rules is in force."""

    owner: str
    chains: int
    running: bool = False
    dormant: bool = False


class OtherProxy(_Evidence, frozen=True):
    """A program that does kube-proxy's work: "cilium", "calico-ebpf", "kube-router", "antrea", ..."""

    program: str


class Kernel(_Evidence, frozen=True):
    """release: as uname -r. ipvs: "present", "absent" (this kernel has no IPVS), "unknown"."""

    release: str
    ipvs: Literal["present", "absent", "unknown"] = "unknown"


class Version(_Evidence, frozen=True):
    """A version of Kubernetes: of the API server, of a node's kubelet, or of kube-proxy's image. `of` says which."""

    version: str
    of: Literal["cluster", "kubelet", "kube-proxy"]


class Unreadable(_Evidence, frozen=True):
    """Something could not be read or asked: what was there is not known. harmless: nothing would be expected there.

    effect: what a kube-proxy does about it: "refused": it exits at its start; "passed-over": it goes on without what was
    meant, and all of it is known here; '': not known.
    """

    cause: str
    remedy: str = ""
    harmless: bool = False
    effect: Literal["refused", "passed-over", ""] = ""


Evidence = (
    ConfiguredMode
    | IpvsOption
    | FeatureGate
    | ServedMode
    | IpvsTable
    | IpvsInterface
    | KubeChains
    | KubeSets
    | KubeTables
    | OtherProxy
    | Kernel
    | Version
    | Unreadable
)
