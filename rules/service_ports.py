"""Service ports in the table: the sets and maps that they are in, and the chains that choose an endpoint.

A service port with N endpoints is an element of a map that says N, and N elements of the map `endpoints`, numbered from
0 without gaps (rules/endpoint_numbers.py). Chain `pick-N` draws a number below N and looks it up. Above EXACT there are
chains for powers of two only: they draw until a number is an endpoint's, evenly, in less than two draws on average.
After DRAWS misses a number below the half decides, which always is one, but for the packet that was already here when
the service port changed: for it there is `pick-late`.

Between the look-up of N and its chain, N travels in the packet's priority, the one field that nft 1.0.6 lets a rule use
for that. Only where it was 0, which it is again before the draw: packets with a priority of their own keep it, and
their endpoint is drawn without N (`_blind`).

Nor does every packet need to be asked whether its endpoint is its own sender (a hairpin, to be masqueraded): the number
says where an endpoint may be one (HERE), and leads to `pick-N-here`, where the connections of such senders get a mark
that stays until postrouting has looked; so do those whose endpoint is chosen without a number. (A connection's mark:
routing goes by the packet's, and IPv4 makes the priority anew when it forwards.)

With externalTrafficPolicy Local a service port has two lists of endpoints, all and those on this node; the second is
numbered from LOCAL on, and has maps of its own.

Why not a verdict map that leads to the chains at once: docs/data-plane.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from rules.endpoint_numbers import EXACT, LOCAL, MODULI, POWERS, TICKET, shown
from rules.objects import Chain, Family, Field, Rule, Set, Statements, Table, destination_address, source_address
from rules.statements.marks import Mark, SetMark
from rules.statements.matches import InSet, MayReachItself
from rules.statements.nat import DnatByIndex, DnatByTicket
from rules.statements.priority import ShowMapped, ShowNumber, ShowsNumber
from rules.statements.tickets import DropTicket
from rules.statements.verdicts import GoToMapped, drop, goto, jump
from rules.transaction import AddElement

DRAWS: Final = 5
BLIND_DRAWS: Final = 3
MAX_TICKETS: Final = 1 << 20
"""Clients with session affinity that a node remembers at a time."""

ROUND_ROBIN: Final = "service ports that count: each has a chain"


def filled(chain: Chain, *rules: Statements) -> tuple[Chain, list[Rule]]:
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


def hairpins_of(table: Table) -> Set:
    key = (source_address(table.family), destination_address(table.family))
    return Set(table, "hairpins", key, comment="endpoints on this node, which may reach themselves")


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

    def services(self, local: bool) -> Set:
        """What `shown` gives for all endpoints of a service port, or for those on this node."""
        return self._local_services if local else self._services

    @cached_property
    def _services(self) -> Set:
        return numbers(self.table, f"{self.prefix}service-ports", self.key, "endpoints")

    @cached_property
    def _local_services(self) -> Set:
        return numbers(self.table, f"{self.prefix}local-service-ports", self.key, "endpoints on this node")

    def by_number(self, local: bool) -> Set:
        """From what `shown` gives to the chain that draws so. Its elements never change: see `fixed`."""
        return self._local_by_number if local else self._by_number

    @cached_property
    def _by_number(self) -> Set:
        return self._chains_by_number(False)

    @cached_property
    def _local_by_number(self) -> Set:
        return self._chains_by_number(True)

    def _chains_by_number(self, local: bool) -> Set:
        return Set(
            self.table,
            f"{self.pick(local).name}-by-number",
            (Field.PRIORITY,),
            verdict=True,
            size=2 * len(MODULI),
            comment="number of endpoints : the chain that draws one",
        )

    @cached_property
    def fixed(self) -> tuple[AddElement, ...]:
        """The elements that do not depend on any service port."""
        return tuple(
            AddElement(self.by_number(local), shown(modulus, here=here), chain.name.encode())
            for local in (False, True)
            for modulus in MODULI
            for here, chain in ((False, self._pick_below(local, modulus)), (True, self._pick_here(local, modulus)))
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
            self._services,
            self._local_services,
            self._by_number,
            self._local_by_number,
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

    def pick_late(self, local: bool) -> Chain:
        comment = "for packets whose service port has changed since it was looked for"
        return Chain(self.table, f"{self.pick(local).name}-late", comment=comment)

    def pick_special(self, local: bool) -> Chain:
        return Chain(self.table, f"{self.prefix}pick{'-local' if local else ''}-special")

    def use_ticket(self, local: bool) -> Chain:
        return Chain(self.table, f"{self.prefix}use{'-local' if local else ''}-ticket")

    def rules(self, mark: int) -> Iterator[tuple[Chain, list[Rule]]]:
        """`pick` and `pick-local` and what they lead to: never back. mark: the bit of a connection that may be led to
        its sender."""
        self_marked = (MayReachItself(hairpins_of(self.table)), SetMark(mark, Mark.CONNECTION))
        yield filled(self.refuse, (InSet(self.no_endpoints), goto("refuse")), (goto("refuse"),))
        for local in (False, True):
            tickets, late = tickets_of(self.table, local), (goto(self.pick_late(local).name),)
            yield filled(
                self.use_ticket(local),
                (ShowMapped(tickets),),
                (DnatByTicket(self.sticky_endpoints),),
                (ShowMapped(self.affinity),),
                (DropTicket(tickets),),
            )
            yield filled(self.pick_special(local), (GoToMapped(self.turns(local)),))
            first = LOCAL if local else 0
            # It may have got endpoints, or have lost those that were drawn, or its session affinity. Number 0 tells.
            yield filled(
                self.pick_late(local),
                self_marked,
                (DnatByIndex(self.endpoints, 1, first),),
                (ShowMapped(self.affinity), jump(self.use_ticket(local).name)),
                (ShowNumber(TICKET | first), DnatByTicket(self.sticky_endpoints)),
                (InSet(self.dropped), drop()),
                (goto(self.refuse.name),),
            )
            for modulus in POWERS:
                yield filled(self._draw(local, modulus), (DnatByIndex(self.endpoints, modulus, first),))
            for modulus in MODULI:
                below = self._pick_below(local, modulus)
                yield filled(below, *self._draws(local, modulus), late)
                yield filled(self._pick_here(local, modulus), self_marked, (goto(below.name),))
            yield filled(self._pick_by_number(local), self.go_by_number(local), late)
            yield filled(self._pick_blind(local), *self._blind(local))
            yield filled(
                self.pick(local),
                (ShowsNumber(0), ShowMapped(self.services(local)), goto(self._pick_by_number(local).name)),
                self_marked,
                (jump(self.pick_special(local).name),),
                (ShowsNumber(0, negate=True), jump(self._pick_blind(local).name)),
                late,
            )

    def go_by_number(self, local: bool) -> Statements:
        """With a number that `services` gave in the packet's priority: to an endpoint."""
        return (GoToMapped(self.by_number(local)),)

    def _draws(self, local: bool, modulus: int) -> Iterator[Statements]:
        yield ShowNumber(0), DnatByIndex(self.endpoints, modulus, LOCAL if local else 0)
        if modulus > EXACT:
            yield from [(jump(self._draw(local, modulus).name),)] * (DRAWS - 1)
            yield (jump(self._draw(local, modulus // 2).name),)

    def _blind(self, local: bool) -> Iterator[Statements]:
        """Without knowing how many there are: below a number that is too high nothing is found, mostly; below the right
        power of two, more than half of the draws find something, each endpoint alike."""
        for modulus in reversed(POWERS):
            yield from [(jump(self._draw(local, modulus).name),)] * BLIND_DRAWS

    def _pick_by_number(self, local: bool) -> Chain:
        return Chain(self.table, f"{self.pick(local).name}-by-number")

    def _pick_below(self, local: bool, modulus: int) -> Chain:
        return Chain(self.table, f"{self.pick(local).name}-{modulus}")

    def _draw(self, local: bool, modulus: int) -> Chain:
        """One draw, for all chains that repeat it: each new element of a map has the kernel look at every rule that
        asks the map, so few rules should."""
        return Chain(self.table, f"{self.prefix}draw{'-local' if local else ''}-{modulus}")

    def _pick_here(self, local: bool, modulus: int) -> Chain:
        return Chain(self.table, f"{self._pick_below(local, modulus).name}-here")

    def _pick_blind(self, local: bool) -> Chain:
        return Chain(self.table, f"{self.pick(local).name}-blind", comment="for packets that keep their priority")


def numbers(table: Table, name: str, key: tuple[Field, ...], of_what: str) -> Set:
    """A map from service ports to what `shown` gives."""
    comment = f"service port : number of {of_what}, above {EXACT} the next power of two (4b52: some on this node)"
    return Set(table, name, key, (Field.PRIORITY,), comment=comment, typeof=True)
