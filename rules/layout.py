"""The table: its sets, its maps, its chains and rules, in one place that reads like `nft list table`.

What changes often (which service ports there are, where they lead) is elements; the chains below never change while
the agent runs. How a service port's endpoint is chosen: rules/service_ports.py and rules/groups.py. A service port of
an external address (externalIPs, load balancer) is chosen for like one of a clusterIP, behind another gate. NodePorts
have their own sets and map, without the address in the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from rules.endpoint_numbers import TICKET, TICKET_MASK
from rules.objects import (
    OUTPUT,
    POSTROUTING,
    PREROUTING,
    Chain,
    Family,
    Field,
    Rule,
    Set,
    Statements,
    Table,
    destination_address,
    source_address,
)
from rules.service_ports import Ports, filled, hairpins_of, numbers, tickets_of
from rules.statements.marks import FlipMark, HasMark, Mark, SetMark
from rules.statements.matches import (
    FromInterface,
    FromThisNode,
    InSet,
    IsDestinationNatted,
    from_source,
    to_destination,
)
from rules.statements.nat import Masquerade
from rules.statements.priority import ShowMapped, ShowNumber, ShowsNumber, ShowsTicket
from rules.statements.verdicts import Refuse, RefuseTcp, drop, go_back, goto, jump
from rules.transaction import AddElement

TABLE_NAME: Final = "kube-proxy-nft"

Network = IPv4Network | IPv6Network


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
    def cluster_ip_ports(self) -> Set:
        """Of service ports of clusterIPs, what `Ports.services` is of others."""
        return numbers(self.table, "cluster-ip-ports", self.addresses.key, "endpoints")

    @cached_property
    def external_ips(self) -> Set:
        return self._addresses("external-ips", "externalIPs and load balancers' addresses")

    @cached_property
    def nodeport_ips(self) -> Set:
        return self._addresses("nodeport-ips", "addresses of this node that accept NodePort traffic")

    @cached_property
    def hairpins(self) -> Set:
        return hairpins_of(self.table)

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
            self.cluster_ip_ports,
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

    @cached_property
    def fixed(self) -> dict[tuple[str, bytes], AddElement]:
        """The elements that do not depend on any Service, by set and key; to be added behind the chains."""
        elements = (*self.addresses.fixed, *self.node_ports.fixed)
        return {(element.set.name, element.key): element for element in elements}

    # Chains.

    def chain(self, name: str, comment: str = "") -> Chain:
        return Chain(self.table, name, comment=comment)

    @cached_property
    def unallocated(self) -> Chain:
        return self.chain("unallocated", "addresses of ServiceCIDRs that no Service has")

    def rules(self, options: Options, service_cidrs: Iterable[Network]) -> Iterator[tuple[Chain, list[Rule]]]:
        """Every chain with its rules, each chain after those that it jumps to."""
        mark = options.masquerade_mark
        yield filled(self.chain("refuse"), (RefuseTcp(),), (Refuse(),))
        yield from self.addresses.rules(mark)
        yield from self.node_ports.rules(mark)
        yield from self.local_rules(options)
        yield filled(self.chain("check-source"), (InSet(self.allowed_sources), go_back()), (drop(),))
        for ports in (self.addresses, self.node_ports):
            yield filled(self.chain(f"{ports.prefix}to-all"), (SetMark(mark),), (goto(ports.pick(False).name),))
        yield filled(
            self.chain("external-ip", "to an externalIP or a load balancer's address; returns for other ports"),
            (InSet(self.guarded), jump("check-source")),
            (InSet(self.addresses.external), goto("to-all")),
            (InSet(self.addresses.external_local), goto("to-local")),
        )
        yield filled(
            self.chain("nodeport", "to this node; returns for other ports"),
            (InSet(self.node_ports.external), goto("nodeport-to-all")),
            (InSet(self.node_ports.external_local), goto("nodeport-to-local")),
        )
        yield self.unallocated, self.unallocated_rules(service_cidrs)
        yield filled(
            self.chain("services"),
            # Before clusterIPs: an externalIP may be one, too, of another Service.
            (InSet(self.external_ips), jump("external-ip")),
            (InSet(self.cluster_ips), goto("cluster-ip")),
            (InSet(self.nodeport_ips), jump("nodeport")),
            (jump("unallocated"),),
        )
        for hook in (PREROUTING, OUTPUT):
            yield filled(Chain(self.table, hook.name, hook), self.short_way, (jump("services"),))
        yield filled(
            Chain(self.table, "postrouting", POSTROUTING),
            (ShowsTicket(TICKET_MASK, TICKET), IsDestinationNatted(), ShowNumber(0)),
            # Who was led nowhere has its connection's mark from somebody else.
            (
                HasMark(mark, Mark.CONNECTION),
                IsDestinationNatted(),
                FlipMark(mark, Mark.CONNECTION),
                InSet(self.hairpins),
                SetMark(mark),
            ),
            (HasMark(mark), FlipMark(mark), Masquerade()),
        )

    @property
    def short_way(self) -> Statements:
        """Most connections to Services need no more than this: to a clusterIP, whose endpoints are drawn."""
        return ShowsNumber(0), ShowMapped(self.cluster_ip_ports), goto("cluster-ip-port")

    def local_rules(self, options: Options) -> Iterator[tuple[Chain, list[Rule]]]:
        """The chains that ask whether a packet comes from a local pod: all that depends on how that is known."""
        mark = SetMark(options.masquerade_mark)
        marked = [(*not_local, mark) for not_local in self._from_elsewhere(options)]
        ports, late = self.addresses, (goto(self.addresses.pick_late(False).name),)
        comment = "to a clusterIP, with the number of endpoints in the packet's priority"
        yield filled(self.chain("cluster-ip-port", comment), *marked, ports.go_by_number(False), late)
        yield filled(self.chain("cluster-ip", "to an active clusterIP"), *marked, (goto(ports.pick(False).name),))
        for ports in (self.addresses, self.node_ports):
            to_all = goto(ports.pick(False).name)
            yield filled(
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


LAYOUTS: Final = {family: Layout(family) for family in Family}
