"""The table: its sets, its map, its chains and rules, in one place that reads like `nft list table`.

What changes often (which service ports there are, where they lead) is elements; the chains below never change while
the agent runs. A service port with N endpoints is an element of the set `services-M`, M the power of two with
M/2 < N <= M, and N elements of the map `endpoints`, numbered from 0 without gaps. `pick-M` draws a number below M until
one is an endpoint's: evenly, in less than two draws on average. After DRAWS misses a number below M/2 decides, which
always is one, but for the packet that was already here when the Service shrank: for it there is number 0.

Why not a verdict map with the exact count in it? The kernel validates the whole table, every element of every verdict
map in it, in each transaction that adds a `goto`: 5 ms at 44,000 Services, for ever more at more. Sets are not
validated: a change costs the same among 10 Services and among 100,000. (README: "Numbers".)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from rules.objects import (
    OUTPUT,
    POSTROUTING,
    PREROUTING,
    Chain,
    Family,
    Field,
    Rule,
    Set,
    Table,
    destination_address,
    source_address,
)
from rules.statements import (
    DnatByIndex,
    FlipMark,
    HasMark,
    InSet,
    IsDestinationNatted,
    Masquerade,
    Refuse,
    RefuseTcp,
    SetMark,
    Statement,
    drop,
    from_source,
    goto,
    jump,
    to_destination,
)

TABLE_NAME: Final = "kube-proxy-nft"
MAX_ENDPOINTS: Final = 65536
BANDS: Final = MAX_ENDPOINTS.bit_length()  # 1, 2, 4 … 65536
DRAWS: Final = 5

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Options:
    """What the configuration decides. Networks of the other family are ignored by a family's layout."""

    masquerade_mark: int = 1 << 14
    masquerade_all: bool = False
    local_networks: tuple[Network, ...] = ()
    """Where local pods' addresses are; none: nothing is masqueraded for coming from elsewhere."""


def band(endpoints: int) -> int:
    """Which band a number of endpoints (>= 1) belongs to: 0 for 1, 1 for 2, 2 for 3 and 4, 3 for 5 to 8 …"""
    return (endpoints - 1).bit_length()


@dataclass(frozen=True)
class Layout:
    """The objects of one family's table."""

    family: Family

    @cached_property
    def table(self) -> Table:
        return Table(self.family, TABLE_NAME, "Kubernetes Services, programmed by kube-proxy-nft; do not edit")

    # Sets and the map.

    @cached_property
    def cluster_ips(self) -> Set:
        return Set(self.table, "cluster-ips", (destination_address(self.family),), comment="active clusterIPs")

    @cached_property
    def hairpins(self) -> Set:
        key = (source_address(self.family), destination_address(self.family))
        return Set(self.table, "hairpins", key, comment="endpoints on this node, which may reach themselves")

    @cached_property
    def services(self) -> tuple[Set, ...]:
        """By band."""
        return tuple(
            Set(self.table, f"services-{2**i}", self._service_key, comment=f"service ports with {_count(i)}")
            for i in range(BANDS)
        )

    @cached_property
    def dropped(self) -> Set:
        return Set(self.table, "dropped", self._service_key, comment="service ports with endpoints, but none for us")

    @cached_property
    def endpoints(self) -> Set:
        return Set(
            self.table,
            "endpoints",
            (*self._service_key, Field.INDEX),
            (destination_address(self.family), Field.DPORT),
            comment="service port . number : endpoint",
            typeof=True,
        )

    @property
    def sets(self) -> tuple[Set, ...]:
        return (self.cluster_ips, self.hairpins, *self.services, self.dropped, self.endpoints)

    @property
    def _service_key(self) -> tuple[Field, ...]:
        return (destination_address(self.family), Field.L4PROTO, Field.DPORT)

    # Chains.

    def chain(self, name: str, comment: str = "") -> Chain:
        return Chain(self.table, name, comment=comment)

    @cached_property
    def unallocated(self) -> Chain:
        return self.chain("unallocated", "addresses of ServiceCIDRs that no Service has")

    @cached_property
    def mark_clusterip_traffic(self) -> Chain:
        return self.chain("mark-cluster-ip-traffic", "mark what must be masqueraded")

    def rules(self, options: Options, service_cidrs: Iterable[Network]) -> Iterator[tuple[Chain, list[Rule]]]:
        """Every chain with its rules, each chain after those that it jumps to."""
        mark = options.masquerade_mark
        yield self._filled(self.chain("refuse"), (RefuseTcp(),), (Refuse(),))
        yield self._filled(self.mark_clusterip_traffic, *self._marking(options))
        for i in range(BANDS):
            yield self._filled(self.chain(f"pick-{2**i}"), *self._pick(i), (goto("refuse"),))
        yield self._filled(
            self.chain("cluster-ip", "to an active clusterIP"),
            (jump("mark-cluster-ip-traffic"),),
            *((InSet(services), goto(f"pick-{2**i}")) for i, services in enumerate(self.services)),
            (InSet(self.dropped), drop()),
            (goto("refuse"),),
        )
        yield self.unallocated, self.unallocated_rules(service_cidrs)
        yield self._filled(
            self.chain("services"),
            (InSet(self.cluster_ips), goto("cluster-ip")),
            (jump("unallocated"),),
        )
        yield self._filled(Chain(self.table, "prerouting", PREROUTING), (jump("services"),))
        yield self._filled(Chain(self.table, "output", OUTPUT), (jump("services"),))
        yield self._filled(
            Chain(self.table, "postrouting", POSTROUTING),
            (HasMark(mark), FlipMark(mark), Masquerade()),
            (IsDestinationNatted(), InSet(self.hairpins), Masquerade()),
        )

    def unallocated_rules(self, service_cidrs: Iterable[Network]) -> list[Rule]:
        return [Rule(self.unallocated, (to_destination(n), drop())) for n in self._of_family(service_cidrs)]

    def _marking(self, options: Options) -> Iterator[tuple[Statement, ...]]:
        local = self._of_family(options.local_networks)
        if options.masquerade_all:
            yield (SetMark(options.masquerade_mark),)
        elif local and all(n.prefixlen for n in local):
            yield (*(from_source(n, negate=True) for n in local), SetMark(options.masquerade_mark))

    def _pick(self, i: int) -> Iterator[tuple[Statement, ...]]:
        if i > 1:
            yield from [(DnatByIndex(self.endpoints, 2**i),)] * DRAWS
            yield (DnatByIndex(self.endpoints, 2 ** (i - 1)),)
        elif i == 1:
            yield (DnatByIndex(self.endpoints, 2),)
        yield (DnatByIndex(self.endpoints, 1),)

    def _filled(self, chain: Chain, *rules: tuple[Statement, ...]) -> tuple[Chain, list[Rule]]:
        return chain, [Rule(chain, statements) for statements in rules]

    def _of_family(self, networks: Iterable[Network]) -> list[Network]:
        version = 4 if self.family is Family.IPV4 else 6
        return [n for n in networks if n.version == version]


def _count(i: int) -> str:
    if i < 2:
        return ("1 endpoint", "2 endpoints")[i]
    return f"{2 ** (i - 1) + 1} to {2**i} endpoints"


LAYOUTS: Final = {family: Layout(family) for family in Family}
