"""Session affinity: what clients hold.

A ticket is what a client holds of a service port: the number of an endpoint. Three look-ups (address -> service port,
client and service port -> ticket, address and ticket -> endpoint) hand on what they find in the packet's priority.
"""

from __future__ import annotations

from dataclasses import dataclass

from rules import expressions as e
from rules.objects import Family, Set
from rules.statements.numgen import numgen, numgen_text
from rules.statements.packet_key import behind, key_text, load_key


@dataclass(frozen=True, slots=True)
class HoldTicket:
    """Give the client a ticket if it has none, drawn like an index; in any case it is good for `timeout` seconds from
    now on."""

    map: Set
    modulus: int
    offset: int
    timeout: int

    def text(self, family: Family) -> str:
        number = numgen_text(self.modulus, self.offset)
        return f"update @{self.map.name} {{ {key_text(self.map.key)} timeout {_duration(self.timeout)} : {number} }}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, words = load_key(self.map.key)
        data = behind(words)
        change = e.DynamicSet(self.map.name, e.DynamicSet.UPDATE, e.REGISTER, data, self.timeout * 1000)
        return (*loads, numgen(self.modulus, self.offset, data), change)


@dataclass(frozen=True, slots=True)
class DropTicket:
    """The client has no ticket any more."""

    map: Set

    def text(self, family: Family) -> str:
        return f"delete @{self.map.name} {{ {key_text(self.map.key)} : none }}"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        loads, words = load_key(self.map.key)
        data = behind(words)
        # The kernel wants data for a map, and does not look at it.
        change = e.DynamicSet(self.map.name, e.DynamicSet.DELETE, e.REGISTER, data)
        return (*loads, e.Immediate(bytes(4), data), change)


def _duration(seconds: int) -> str:
    """As nft writes it: "3h", "1h30m", "1d2s"."""
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
