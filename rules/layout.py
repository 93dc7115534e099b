"""The table: its sets, its maps, its chains and rules, in one place that reads like `nft list table`.

What changes often (which service ports there are, where they lead) is elements; the chains below never change while
the agent runs. A service port with N endpoints is an element of the set `services-M`, M the power of two with
M/2 < N <= M, and N elements of the map `endpoints`, numbered from 0 without gaps. `pick-M` draws a number below M until
one is an endpoint's: evenly, in less than two draws on average. After DRAWS misses a number below M/2 decides, which
always is one, but for the packet that was already here when the Service shrank: for it there is number 0.

A service port of an external address (externalIPs, load balancer) is the same under another gate. NodePorts have
their own sets and map, without the address in the key: see `Ports`. With externalTrafficPolicy Local a service port has
two lists of endpoints, all and those on this node; the second is numbered from LOCAL on, and has its own sets.

Why not a verdict map with the exact count in it: docs/data-plane.md.
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
    DnatBySource,
    DnatByTicket,
    DropTicket,
    FlipMark,
    FromInterface,
    FromThisNode,
    GoToMapped,
    HasMark,
    HoldTicket,
    InSet,
    IsDestinationNatted,
    Masquerade,
    Refuse,
    RefuseTcp,
    SetMark,
    ShowDraw,
    ShowMapped,
    ShowNumber,
    ShowsTicket,
    Statement,
    drop,
    from_source,
    go_back,
    goto,
    jump,
    to_destination,
)

TABLE_NAME: Final = "kube-proxy-nft"
MAX_ENDPOINTS: Final = 65536
BANDS: Final = MAX_ENDPOINTS.bit_length()  # 1, 2, 4 … 65536
DRAWS: Final = 5
LOCAL: Final = MAX_ENDPOINTS  # where the numbers of the second list begin
TICKET: Final = 0x4B50_0000  # "KP": tickets are numbers above it, so that a priority of somebody else's is not cleared
TICKET_MASK: Final = 0xFFFE_0000
MAX_TICKETS: Final = 1 << 20  # clients with session affinity a node remembers at a time

ROUND_ROBIN: Final = "service ports that count: each has a chain"

Network = IPv4Network | IPv6Network
Statements = tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """What the configuration decides. Networks of the other family are ignored by a family's layout.

    local_*: how a packet from a local pod is known: by its source, or by the interface it came through. None of them:
    pods are like anybody else, and nothing is masqueraded for coming from elsewhere.
    """

    masquerade_mark: int = 1 << 14
    masquerade_all: bool = False
    local_networks: tuple[Network, ...] = ()
    local_interface: str = ""
    local_interface_prefix: str = ""


def band(endpoints: int) -> int:
    """Which band a number of endpoints (>= 1) belongs to: 0 for 1, 1 for 2, 2 for 3 and 4, 3 for 5 to 8 …"""
    return (endpoints - 1).bit_length()


def _filled(chain: Chain, *rules: Statements) -> tuple[Chain, list[Rule]]:
    return chain, [Rule(chain, statements) for statements in rules]


def tickets_of(table: Table, local: bool) -> Set:
    """What clients hold; of the second list, where it is one, a ticket of its own.

    nft 1.0.6 cannot read more than 16 bytes of key back in an `update`, so IPv6 clients are known by a hash: two with
    the same one share a ticket, which does no harm.
    """
    client = Field.IP_SADDR if table.family is Family.IPV4 else Field.IP6_SADDR_HASH
    return Set(
        table,
        "local-tickets" if local else "tickets",
        (client, Field.PRIORITY),
        (Field.PRIORITY,),
        comment="client . number of the service port : ticket",
        typeof=True,
        dynamic=MAX_TICKETS,
    )


@dataclass(frozen=True)
class Group:
    """Service ports of one band whose endpoints are not drawn anew for each connection; made when the first one comes,
    kept for good. timeout: session affinity, in seconds; 0: the client's address decides, and nothing is remembered."""

    ports: Ports
    local: bool
    band: int
    timeout: int

    @property
    def name(self) -> str:
        where = f"{self.ports.prefix}{'local-' if self.local else ''}"
        return f"{where}sticky-{2**self.band}-for-{self.timeout}s" if self.timeout else f"{where}hashed-{2**self.band}"

    @cached_property
    def services(self) -> Set:
        how = f"clients stay for {self.timeout} s" if self.timeout else "by the client's address"
        return Set(
            self.ports.table, self.name, self.ports.key, comment=f"service ports with {_count(self.band)}, {how}"
        )

    def rules(self) -> Iterator[tuple[Chain, list[Rule]]]:
        """Its chain, and the rule that leads there."""
        numbers = [2**self.band] * (DRAWS if self.band > 1 else 1)
        numbers += [2 ** (self.band - 1)] if self.band > 1 else []
        draws = self._tickets(numbers) if self.timeout else self._hashes(numbers)
        yield _filled(Chain(self.ports.table, self.name), *draws, (goto(self.ports.refuse.name),))
        yield _filled(self.ports.pick_special(self.local), (InSet(self.services), goto(self.name)))

    def _tickets(self, numbers: list[int]) -> Iterator[Statements]:
        tickets = tickets_of(self.ports.table, self.local)
        yield (ShowMapped(self.ports.affinity),)
        offset = TICKET | (LOCAL if self.local else 0)
        for modulus in [numbers[0], *numbers, *([1] if self.band else [])]:
            yield (HoldTicket(tickets, modulus, offset, self.timeout),)
            yield (jump(self.ports.use_ticket(self.local).name),)
        # No room for another ticket.
        for modulus in [*numbers, 1] if self.band else numbers:
            yield ShowDraw(modulus, offset), DnatByTicket(self.ports.sticky_endpoints)

    def _hashes(self, numbers: list[int]) -> Iterator[Statements]:
        offset = LOCAL if self.local else 0
        for seed, modulus in enumerate(numbers, 1):
            yield (DnatBySource(self.ports.endpoints, modulus, offset, seed),)
        yield (DnatByIndex(self.ports.endpoints, 1, offset),)


@dataclass(frozen=True)
class Ports:
    """Service ports under one kind of key: (address, protocol, port), or for NodePorts (protocol, port).

    Sets, maps and chains of the second kind have `prefix` before their names.
    """

    table: Table
    key: tuple[Field, ...]
    prefix: str = ""

    # The two gates of external traffic: who comes from outside leads to all endpoints, or only to those on this node.

    @cached_property
    def external(self) -> Set:
        comment = "external service ports, policy Cluster"
        return Set(self.table, f"{self.prefix}external", self.key, comment=comment)

    @cached_property
    def external_local(self) -> Set:
        comment = "external service ports, policy Local"
        return Set(self.table, f"{self.prefix}external-local", self.key, comment=comment)

    # Where a service port leads.

    @cached_property
    def services(self) -> tuple[Set, ...]:
        """By band of the number of endpoints."""
        return self._bands("services", "")

    @cached_property
    def local_services(self) -> tuple[Set, ...]:
        """By band of the number of endpoints on this node."""
        return self._bands("local-services", " on this node")

    def _bands(self, name: str, where: str) -> tuple[Set, ...]:
        return tuple(
            Set(
                self.table,
                f"{self.prefix}{name}-{2**i}",
                self.key,
                comment=f"service ports with {_count(i)}{where}",
            )
            for i in range(BANDS)
        )

    @cached_property
    def dropped(self) -> Set:
        comment = "service ports with endpoints, but none on this node, where they must be"
        return Set(self.table, f"{self.prefix}dropped", self.key, comment=comment)

    @cached_property
    def no_endpoints(self) -> Set:
        """Asked for what nothing else was found for; so those that get endpoints may stay in it, with their counts."""
        comment = "service ports that have, or once had, no endpoints, and how many packets were refused for that"
        return Set(self.table, f"{self.prefix}no-endpoints", self.key, comment=comment, counts=True)

    @cached_property
    def endpoints(self) -> Set:
        return Set(
            self.table,
            f"{self.prefix}endpoints",
            (*self.key, Field.INDEX),
            (destination_address(self.table.family), Field.DPORT),
            comment="service port . number : endpoint",
            typeof=True,
        )

    # Round robin: each service port counts in a chain of its own.

    def turns(self, local: bool) -> Set:
        return self._local_turns if local else self._turns

    @cached_property
    def _turns(self) -> Set:
        return Set(self.table, f"{self.prefix}round-robin", self.key, verdict=True, comment=ROUND_ROBIN)

    @cached_property
    def _local_turns(self) -> Set:
        return Set(self.table, f"{self.prefix}local-round-robin", self.key, verdict=True, comment=ROUND_ROBIN)

    def turn(self, local: bool, number: int) -> Chain:
        """One of the chains that service ports with round robin have, one each."""
        return Chain(self.table, f"{self.prefix}{'local-' if local else ''}turn-{number}")

    def turn_rules(self, local: bool, number: int, endpoints: int) -> list[Rule]:
        """Its rules for so many endpoints. If none hits, `pick` goes on behind it."""
        offset = LOCAL if local else 0
        statements = [DnatByIndex(self.endpoints, endpoints, offset, in_turn=True)]
        if endpoints > 1:
            statements.append(DnatByIndex(self.endpoints, 1, offset))
        return [Rule(self.turn(local, number), (statement,)) for statement in statements]

    # Session affinity.

    @cached_property
    def affinity(self) -> Set:
        return Set(
            self.table,
            f"{self.prefix}affinity",
            self.key,
            (Field.PRIORITY,),
            comment="service port with session affinity : the same number for all its addresses",
            typeof=True,
        )

    @cached_property
    def sticky_endpoints(self) -> Set:
        return Set(
            self.table,
            f"{self.prefix}sticky-endpoints",
            (*self.key, Field.PRIORITY),
            (destination_address(self.table.family), Field.DPORT),
            comment="service port . ticket : endpoint",
            typeof=True,
        )

    @property
    def sets(self) -> tuple[Set, ...]:
        return (
            self.external,
            self.external_local,
            *self.services,
            *self.local_services,
            self.dropped,
            self.no_endpoints,
            self.endpoints,
            self.affinity,
            self.sticky_endpoints,
            self._turns,
            self._local_turns,
        )

    # Chains.

    @property
    def refuse(self) -> Chain:
        return Chain(self.table, f"{self.prefix}no-endpoints", comment="refuses, and counts it for service ports")

    def pick(self, local: bool) -> Chain:
        return Chain(self.table, f"{self.prefix}pick{'-local' if local else ''}")

    def pick_special(self, local: bool) -> Chain:
        return Chain(self.table, f"{self.prefix}pick{'-local' if local else ''}-special")

    def use_ticket(self, local: bool) -> Chain:
        return Chain(self.table, f"{self.prefix}use{'-local' if local else ''}-ticket")

    def rules(self) -> Iterator[tuple[Chain, list[Rule]]]:
        """`pick` and `pick-local` and what they lead to: never back."""
        yield _filled(self.refuse, (InSet(self.no_endpoints), goto("refuse")), (goto("refuse"),))
        for local in (False, True):
            tickets = tickets_of(self.table, local)
            yield _filled(
                self.use_ticket(local),
                (ShowMapped(tickets),),
                (DnatByTicket(self.sticky_endpoints),),
                (ShowMapped(self.affinity),),
                (DropTicket(tickets),),
            )
            yield _filled(self.pick_special(local), (GoToMapped(self.turns(local)),))
            pick = self.pick(local)
            for i in range(BANDS):
                draws = self._draws(i, LOCAL if local else 0)
                yield _filled(Chain(self.table, f"{pick.name}-{2**i}"), *draws, (goto(self.refuse.name),))
            bands = self.local_services if local else self.services
            first = LOCAL if local else 0
            yield _filled(
                pick,
                *((InSet(services), goto(f"{pick.name}-{2**i}")) for i, services in enumerate(bands)),
                (jump(self.pick_special(local).name),),
                (InSet(self.dropped), drop()),
                # A service port may have moved to a set that was asked before it was there. Its number 0 tells.
                (DnatByIndex(self.endpoints, 1, first),),
                (ShowMapped(self.affinity), jump(self.use_ticket(local).name)),
                (ShowNumber(TICKET | first), DnatByTicket(self.sticky_endpoints)),
                (goto(self.refuse.name),),
            )

    def _draws(self, i: int, offset: int) -> Iterator[Statements]:
        yield from [(DnatByIndex(self.endpoints, 2**i, offset),)] * (DRAWS if i > 1 else 1)
        if i > 1:
            yield (DnatByIndex(self.endpoints, 2 ** (i - 1), offset),)
        if i:
            yield (DnatByIndex(self.endpoints, 1, offset),)


@dataclass(frozen=True)
class Layout:
    """The objects of one family's table."""

    family: Family

    @cached_property
    def table(self) -> Table:
        return Table(self.family, TABLE_NAME, "Kubernetes Services, programmed by kube-proxy-nft; do not edit")

    @cached_property
    def addresses(self) -> Ports:
        """Service ports of clusterIPs and external addresses."""
        return Ports(self.table, (destination_address(self.family), Field.L4PROTO, Field.DPORT))

    @cached_property
    def node_ports(self) -> Ports:
        return Ports(self.table, (Field.L4PROTO, Field.DPORT), "nodeport-")

    # Sets.

    def _addresses(self, name: str, comment: str) -> Set:
        return Set(self.table, name, (destination_address(self.family),), comment=comment)

    @cached_property
    def cluster_ips(self) -> Set:
        return self._addresses("cluster-ips", "active clusterIPs")

    @cached_property
    def external_ips(self) -> Set:
        return self._addresses("external-ips", "externalIPs and load balancers' addresses")

    @cached_property
    def nodeport_ips(self) -> Set:
        return self._addresses("nodeport-ips", "addresses of this node that accept NodePort traffic")

    @cached_property
    def hairpins(self) -> Set:
        key = (source_address(self.family), destination_address(self.family))
        return Set(self.table, "hairpins", key, comment="endpoints on this node, which may reach themselves")

    @cached_property
    def guarded(self) -> Set:
        return Set(self.table, "guarded", self.addresses.key, comment="service ports with loadBalancerSourceRanges")

    @cached_property
    def allowed_sources(self) -> Set:
        key = (*self.addresses.key, source_address(self.family))
        return Set(self.table, "allowed-sources", key, comment="guarded service port . who may use it", interval=True)

    @property
    def sets(self) -> tuple[Set, ...]:
        return (
            self.cluster_ips,
            self.external_ips,
            self.nodeport_ips,
            self.hairpins,
            self.guarded,
            self.allowed_sources,
            tickets_of(self.table, local=False),
            tickets_of(self.table, local=True),
            *self.addresses.sets,
            *self.node_ports.sets,
        )

    # Chains.

    def chain(self, name: str, comment: str = "") -> Chain:
        return Chain(self.table, name, comment=comment)

    @cached_property
    def unallocated(self) -> Chain:
        return self.chain("unallocated", "addresses of ServiceCIDRs that no Service has")

    def rules(self, options: Options, service_cidrs: Iterable[Network]) -> Iterator[tuple[Chain, list[Rule]]]:
        """Every chain with its rules, each chain after those that it jumps to."""
        mark = options.masquerade_mark
        yield _filled(self.chain("refuse"), (RefuseTcp(),), (Refuse(),))
        yield from self.addresses.rules()
        yield from self.node_ports.rules()
        yield from self.local_rules(options)
        yield _filled(
            self.chain("cluster-ip", "to an active clusterIP"),
            (jump("mark-cluster-ip-traffic"),),
            (goto("pick"),),
        )
        yield _filled(self.chain("check-source"), (InSet(self.allowed_sources), go_back()), (drop(),))
        for ports in (self.addresses, self.node_ports):
            yield _filled(self.chain(f"{ports.prefix}to-all"), (SetMark(mark),), (goto(ports.pick(False).name),))
        yield _filled(
            self.chain("external-ip", "to an externalIP or a load balancer's address; returns for other ports"),
            (InSet(self.guarded), jump("check-source")),
            (InSet(self.addresses.external), goto("to-all")),
            (InSet(self.addresses.external_local), goto("to-local")),
        )
        yield _filled(
            self.chain("nodeport", "to this node; returns for other ports"),
            (InSet(self.node_ports.external), goto("nodeport-to-all")),
            (InSet(self.node_ports.external_local), goto("nodeport-to-local")),
        )
        yield self.unallocated, self.unallocated_rules(service_cidrs)
        yield _filled(
            self.chain("services"),
            (InSet(self.cluster_ips), goto("cluster-ip")),
            (InSet(self.external_ips), jump("external-ip")),
            (InSet(self.nodeport_ips), jump("nodeport")),
            (jump("unallocated"),),
        )
        yield _filled(Chain(self.table, "prerouting", PREROUTING), (jump("services"),))
        yield _filled(Chain(self.table, "output", OUTPUT), (jump("services"),))
        yield _filled(
            Chain(self.table, "postrouting", POSTROUTING),
            (IsDestinationNatted(), ShowsTicket(TICKET_MASK, TICKET), ShowNumber(0)),
            (HasMark(mark), FlipMark(mark), Masquerade()),
            (IsDestinationNatted(), InSet(self.hairpins), Masquerade()),
        )

    def local_rules(self, options: Options) -> Iterator[tuple[Chain, list[Rule]]]:
        """The chains that ask whether a packet comes from a local pod: all that depends on how that is known."""
        mark = SetMark(options.masquerade_mark)
        yield _filled(
            self.chain("mark-cluster-ip-traffic", "what must be masqueraded"),
            *[(*not_local, mark) for not_local in self._from_elsewhere(options)],
        )
        for ports in (self.addresses, self.node_ports):
            to_all = goto(ports.pick(False).name)
            yield _filled(
                self.chain(f"{ports.prefix}to-local", "pods and this node may use all endpoints, others those here"),
                *[(*local, to_all) for local in self._from_local_pod(options)],
                (FromThisNode(), mark),
                (FromThisNode(), to_all),
                (goto(ports.pick(True).name),),
            )

    def unallocated_rules(self, service_cidrs: Iterable[Network]) -> list[Rule]:
        return [Rule(self.unallocated, (to_destination(n), drop())) for n in self._of_family(service_cidrs)]

    def _from_elsewhere(self, options: Options) -> Iterator[Statements]:
        """At most one: what is true of traffic to clusterIPs that must be masqueraded."""
        networks = self._of_family(options.local_networks)
        if options.masquerade_all:
            yield ()
        elif options.local_interface:
            yield (FromInterface(options.local_interface, negate=True),)
        elif options.local_interface_prefix:
            yield (FromInterface(options.local_interface_prefix, prefix=True, negate=True),)
        elif networks and all(n.prefixlen for n in networks):
            yield tuple(from_source(n, negate=True) for n in networks)

    def _from_local_pod(self, options: Options) -> Iterator[Statements]:
        """Ways to know a local pod, any of which will do."""
        if options.local_interface:
            yield (FromInterface(options.local_interface),)
        elif options.local_interface_prefix:
            yield (FromInterface(options.local_interface_prefix, prefix=True),)
        else:
            yield from ((from_source(n),) for n in self._of_family(options.local_networks))

    def _of_family(self, networks: Iterable[Network]) -> list[Network]:
        version = 4 if self.family is Family.IPV4 else 6
        return [n for n in networks if n.version == version]


def _count(i: int) -> str:
    if i < 2:
        return ("1 endpoint", "2 endpoints")[i]
    return f"{2 ** (i - 1) + 1} to {2**i} endpoints"


LAYOUTS: Final = {family: Layout(family) for family in Family}
