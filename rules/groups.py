"""Service ports whose clients stay, by session affinity or by their addresses, and the chains that those share.
Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from rules.endpoint_numbers import LOCAL, TICKET
from rules.objects import Chain, Rule, Set, Statements
from rules.service_ports import DRAWS, Ports, filled, tickets_of
from rules.statements.matches import InSet
from rules.statements.nat import DnatBySource, DnatByTicket
from rules.statements.priority import ShowDraw, ShowMapped
from rules.statements.tickets import HoldTicket
from rules.statements.verdicts import goto, jump


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
        yield filled(Chain(self.ports.table, self.name), *draws, (goto(self.ports.pick_late(self.local).name),))
        yield filled(self.ports.pick_special(self.local), (InSet(self.services), goto(self.name)))

    def _tickets(self, numbers: list[int]) -> Iterator[Statements]:
        tickets = tickets_of(self.ports.table, self.local)
        yield (ShowMapped(self.ports.affinity),)
        offset = TICKET | (LOCAL if self.local else 0)
        for modulus in [numbers[0], *numbers, *([1] if self.band else [])]:
            yield (HoldTicket(tickets, modulus, offset, self.timeout),)
            yield (jump(self.ports.use_ticket(self.local).name),)
        # No room for another ticket.
        for modulus in numbers:
            yield ShowDraw(modulus, offset), DnatByTicket(self.ports.sticky_endpoints)

    def _hashes(self, numbers: list[int]) -> Iterator[Statements]:
        offset = LOCAL if self.local else 0
        for seed, modulus in enumerate(numbers, 1):
            yield (DnatBySource(self.ports.endpoints, modulus, offset, seed),)


def _count(i: int) -> str:
    return f"{2 ** (i - 1) + 1} to {2**i} endpoints" if i > 1 else f"{i + 1} endpoint{'s' * (i > 0)}"
