"""What was found that kube-proxy may have left, before it is decided what goes. Plain data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from proxy.detect.ipvs_table import Server

Variant = Literal["nft", "legacy"]
FamilyName = Literal["ip", "ip6"]


class Rule(Struct, frozen=True, gc=False):
    """handle: what the kernel (nft) or its place in the table (legacy) knows it by. target: the chain that it jumps or
    goes to, "" if it does not. uses_set: it matches an ipset."""

    handle: int
    target: str = ""
    uses_set: bool = False


class XTable(Struct):
    """A table of iptables.

    chains: name -> its rules. Those of chains that kube-proxy alone makes need not be read, and may be missing.
    policies: of its base chains: "accept", "drop". bare: chains that kube-proxy makes, and others jump to, without rules.
    """

    variant: Variant
    family: FamilyName
    name: str
    chains: dict[str, list[Rule]] = field(default_factory=dict)
    policies: dict[str, str] = field(default_factory=dict)
    bare: set[str] = field(default_factory=set)

    @property
    def place(self) -> str:
        """For people: "iptables-nft ip nat"."""
        return f"iptables-{self.variant} {self.family} {self.name}"


class Unread(Struct, frozen=True):
    """Something that could not be read, why, and whether that was for want of permission."""

    what: str
    cause: str
    is_permission: bool = False


class Found(Struct):
    """nft_tables: family and name of kube-proxy's own. servers: kube-proxy's IPVS virtual servers. interface: how many
    addresses kube-ipvs0 has; None: it is not there. sets: names of its ipsets. kubelet: one runs here. sysctls: "net/..." -> value,
    those that kube-proxy sets, where it set them. other_servers: virtual servers of others."""

    tables: list[XTable] = field(default_factory=list)
    nft_tables: list[tuple[FamilyName, str]] = field(default_factory=list)
    servers: list[Server] = field(default_factory=list)
    other_servers: int = 0
    interface: int | None = None
    sets: list[str] = field(default_factory=list)
    kubelet: bool = False
    sysctls: dict[str, str] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)
